"""Claims about sample weights: in the loss, in the estimates, in batches, tables and runs."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import codauc
from codauc import MinMaxAUCLoss
from codauc.algorithm.objective import objective, saddle_point
from codauc.data import Split, read_table
from codauc.data.data_settings import DataSettings
from codauc.data.opening import open_data
from codauc.metrics.calibration import average_precision, calibrate
from codauc.runs.settings import RunSettings
from codauc.training.build import make_batches
from codauc.training.recipe import Facts, resolve
from codauc.workers import LocalGroup


def make(tasks, link="sigmoid", **options):
    loss = MinMaxAUCLoss([0.1, 0.4, 0.8][:tasks], link=link, **options).double()
    for tensor in (loss.a, loss.b, loss.alpha):
        tensor.normal_()
    return loss


def batch(size, tasks):
    shape = (size,) if tasks == 1 else (size, tasks)
    logits = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    return logits, torch.rand(shape) < 0.4, torch.randint(0, 4, (size,))


def all_of(loss, *arguments, call=None):
    """The value, its gradient in the logits, and what a, b and alpha get."""
    logits = arguments[0]
    logits.grad = loss.sums.grad = None
    value = (call or loss)(*arguments)
    value.backward()
    return value.detach(), logits.grad, loss.sums.grad.clone()


@given(
    st.integers(0, 10**6), st.integers(2, 30), st.sampled_from([1, 3]), st.sampled_from([0, 0.5])
)
@pytest.mark.parametrize("link", ["sigmoid", "identity"])
def test_whole_weights_are_rows_repeated_or_left_out(link, seed, size, tasks, mix):
    torch.manual_seed(seed)
    loss, (logits, labels, weights) = make(tasks, link, mix=mix), batch(size, tasks)
    weights[0] = 2
    mine = all_of(loss, logits, labels, weights)
    rows = torch.repeat_interleave(torch.arange(size), weights)
    repeated = logits.detach()[rows].requires_grad_()
    value, slopes, sums = all_of(loss, repeated, labels[rows])
    summed = torch.zeros_like(logits).index_add(0, rows, slopes)
    assert abs(mine[0] - value) < 1e-12
    assert torch.allclose(mine[1], summed, atol=1e-13)
    assert torch.allclose(mine[2], sums, atol=1e-13)
    mine = all_of(loss, logits, labels, weights, call=loss.cross_entropy)
    value, slopes, _ = all_of(loss, repeated, labels[rows], call=loss.cross_entropy)
    assert abs(mine[0] - value) < 1e-12
    assert torch.allclose(mine[1], torch.zeros_like(logits).index_add(0, rows, slopes), atol=1e-13)


@given(st.integers(0, 10**6), st.sampled_from([1, 3]))
def test_the_weighted_loss_equals_the_formula_of_each_sample_times_its_weight(seed, tasks):
    torch.manual_seed(seed)
    loss, (logits, labels, _) = make(tasks), batch(11, tasks)
    loss.mean_weight = 1.7
    weights = torch.rand(11, dtype=torch.float64) * 3
    value, slope, sums = all_of(loss, logits, labels, weights)
    h, p = logits.sigmoid(), torch.tensor([0.1, 0.4, 0.8][:tasks], dtype=torch.float64)
    inner = [t.clone().requires_grad_() for t in (loss.a, loss.b, loss.alpha)]
    each = objective(h, labels, inner, p)
    slow = (each.t() * weights).sum() / (11 * 1.7)
    z, a, b, alpha = torch.autograd.grad(slow, [logits, *inner])
    assert abs(slow - value) < 1e-12
    assert torch.allclose(z, slope, atol=1e-13)
    up, down, h_up, h_down = sums.t()[:4]
    own = [t.clone() for t in (loss.a, loss.b, loss.alpha)]
    assert torch.allclose(a, 2 * (1 - p) * (own[0] * up - h_up), atol=1e-12)
    assert torch.allclose(b, 2 * p * (own[1] * down - h_down), atol=1e-12)
    slope = 2 * p * h_down - 2 * (1 - p) * h_up - 2 * p * (1 - p) * own[2] * (up + down)
    assert torch.allclose(alpha, slope, atol=1e-12)


def test_with_the_mean_of_all_data_batches_are_repeated_rows_in_expectation():
    torch.manual_seed(0)
    logits, labels, _ = batch(12, 1)
    weights = torch.randint(1, 4, (12,)).double()
    share = float(weights[labels].sum() / weights.sum())
    loss = MinMaxAUCLoss(share).double()
    loss.mean_weight = float(weights.mean())
    parts = [loss(logits[i : i + 3], labels[i : i + 3], weights[i : i + 3]) for i in (0, 3, 6, 9)]
    whole = MinMaxAUCLoss(share).double()(logits, labels, weights)
    assert abs(sum(parts) / 4 - whole) < 1e-12


def test_bad_weights_are_refused():
    loss, logits, labels = MinMaxAUCLoss(0.5), torch.zeros(3), torch.tensor([1, 0, 0])
    for bad, message in [
        (torch.tensor([1.0, -1, 1]), "got -1 for sample 1"),
        (torch.tensor([1.0, 1, torch.nan]), "got nan for sample 2"),
        (torch.tensor([torch.inf, 1, 1]), "got inf for sample 0"),
        (torch.zeros(3), "all of the batch are 0"),
        (torch.ones(2), "one per sample"),
        ([1, 1, 1], "expected a tensor"),
    ]:
        with pytest.raises(ValueError, match=message):
            loss(logits, labels, bad)
    with pytest.raises(ValueError, match="weights without pos_ratio"):
        MinMaxAUCLoss()(logits, labels, torch.ones(3))


@pytest.mark.parametrize("dual", ["mean", "pooled"])
def test_alpha_is_estimated_with_weights(dual):
    torch.manual_seed(0)
    x, y = torch.randn(40, 3, dtype=torch.float64), torch.arange(40) % 4 == 0
    weights = torch.rand(40, dtype=torch.float64) / 50  # sums far below 1 too
    model, loss = nn.Linear(3, 1).double(), MinMaxAUCLoss(0.25).double()
    coda = codauc.CoDA(codauc.PPDSG(model, loss, lr=0.1), dual=dual)
    coda.estimate([(x, y, weights)], 40)
    h = model(x).detach().flatten().sigmoid()
    a, b = (float((h * weights)[m].sum() / weights[m].sum()) for m in (y, ~y))
    assert [float(v) for v in (loss.a, loss.b, loss.alpha)] == pytest.approx([a, b, b - a])
    coda.estimate([(x, y)], 40)
    plain = saddle_point(h, y)
    assert float(loss.alpha) == pytest.approx(float(plain.alpha))


def test_an_own_loop_with_weights_trains_and_repeats_rows():
    """Whole weights in full batches: the same weights of the network as with repeated rows."""
    torch.manual_seed(0)
    x, y = torch.randn(30, 4, dtype=torch.float64), torch.arange(30) % 3 == 0
    counts = torch.randint(0, 4, (30,))
    rows = torch.repeat_interleave(torch.arange(30), counts)
    share, found = float(y[rows].double().mean()), []
    for data in ([(x, y, counts.double())], [(x[rows], y[rows])]):
        torch.manual_seed(1)
        model, loss = nn.Linear(4, 1).double(), MinMaxAUCLoss(share).double()
        opt = codauc.PPDSG(model, loss, lr=0.3, gamma=500.0)
        coda = codauc.CoDA(opt)
        for stage in codauc.geometric(lr=0.3, steps=20, stages=2, sync_every=4):
            once = replace(stage, dual_samples=len(data[0][0]))
            for inputs, *rest in coda.stage(once, data):
                opt.zero_grad()
                loss(model(inputs), *rest).backward()
                opt.step()
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.allclose(*found, atol=1e-10)


def weighted_frame(count=400, seed=0):
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(random.normal(size=(count, 3)), columns=list("abc"))
    frame["ill"] = (frame.a + random.normal(size=count) > 1.2).astype(int)
    frame["w"] = random.integers(0, 4, count)
    return frame


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_weights_of_a_table_follow_their_rows_and_zero_leaves_a_row_out(suffix, workers, tmp_path):
    frame, path = weighted_frame(), tmp_path / f"t.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path, index=False)
    settings = DataSettings(source=str(path), target="ill", weight="w")

    def work(group):
        opened = open_data(settings, group)
        return [(p.rows, p.weights, p.pos_ratio) for p in (opened.train, opened.test)], opened

    found = codauc.launch(work, workers=workers, simulate=True)
    for place in range(2):
        rows = torch.cat([parts[place][0] for parts, _ in found])
        weights = torch.cat([parts[place][1] for parts, _ in found])
        own = frame.iloc[rows.numpy()]
        assert (own.w.to_numpy() == weights.numpy()).all()
        assert (weights > 0).all()
        share = float((own.w * own.ill).sum() / own.w.sum())
        assert found[0][0][place][2] == pytest.approx(share)
    assert "w" not in found[0][1].encoder.names
    without = frame[frame.w > 0]
    split = read_table(without, "ill", split=Split(0.2, 0.15), drop=["w"])
    train = torch.cat([parts[0][0] for parts, _ in found]).sort().values.numpy()
    assert list(without.index[split.rows.numpy()]) == list(train)  # as if rows were not there


def test_equal_weights_are_no_weights():
    frame = weighted_frame()
    frame["w"] = 2.5
    part = read_table(frame, "ill", weight="w")
    assert part.weights is None
    plain = read_table(frame, "ill", drop=["w"])
    assert torch.equal(part.x, plain.x)
    assert part.pos_ratio == plain.pos_ratio


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.assign(w=f.w.mask(f.index == 3, -1.0)), "column 'w', row 3: the weight is -1"),
        (lambda f: f.assign(w=f.w.mask(f.index == 3)), "column 'w', row 3: the weight is missing"),
        (lambda f: f.assign(w=0), "all weights are zero"),
        (lambda f: f.assign(w="heavy"), "column 'w' holds texts: expected numbers"),
        (lambda f: f.drop(columns="w"), "has no column 'w'"),
    ],
)
def test_bad_weights_of_a_table_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        read_table(change(weighted_frame()), "ill", weight="w")


def test_other_weights_are_other_data():
    frame = weighted_frame()
    first = read_table(frame, "ill", weight="w")
    frame.loc[frame.index[frame.w > 0][5], "w"] = 7
    assert read_table(frame, "ill", weight="w").fingerprint != first.fingerprint


@pytest.mark.parametrize("share", [None, 0.5])
def test_what_is_drawn_is_repeated_rows_in_expectation(share):
    frame = weighted_frame(300)
    part = read_table(frame, "ill", weight="w")
    settings = RunSettings()
    least = 0.0 if share is None else share
    recipe = replace(resolve(settings.recipe, 1, Facts(300, 50, False)), balance=least)
    batches = make_batches(replace(settings, recipe=recipe), part, LocalGroup(), [])
    drawn = [next(batches) for _ in range(400)]
    y, w = torch.cat([b[1] for b in drawn]), torch.cat([b[2] for b in drawn]).double()
    p = part.pos_ratio if share is None else batches.sampled_ratio
    assert float(w.mean()) == pytest.approx(1, abs=0.01)
    assert float(w[y].sum() / w.sum()) == pytest.approx(p, abs=0.005)


def test_a_weighted_calibration_and_precision_are_those_of_repeated_rows():
    random = np.random.default_rng(0)
    scores, weights = random.integers(0, 20, 200) / 4, random.integers(1, 4, 200)
    labels = random.random(200) < 1 / (1 + np.exp(2 - scores))
    rows = np.repeat(np.arange(200), weights)
    one = average_precision(scores, labels, weights)
    assert one == pytest.approx(average_precision(scores[rows], labels[rows]), abs=1e-12)
    mine, theirs = calibrate(scores, labels, weights), calibrate(scores[rows], labels[rows])
    assert tuple(mine) == pytest.approx(tuple(theirs), rel=0.05)


def test_a_run_uses_the_weights_and_says_so(tmp_path):
    """Rows with wrong labels at weight 1e-6 must not hurt."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(1200, 3)), columns=list("abc"))
    frame["ill"] = (frame.a + 0.5 * random.normal(size=1200) > 0.5).astype(int)
    wrong = random.random(1200) < 0.6
    frame.loc[wrong, "ill"] = 1 - frame.ill[wrong]
    frame["w"] = np.where(wrong, 1e-6, 1.0)
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = []
    for weight in ("w", None):
        data = DataSettings(source=str(tmp_path / "t.csv"), target="ill", weight=weight)
        data = replace(data, drop=() if weight else ("w",))
        settings = RunSettings(data).with_changes("recipe", steps=80)
        found.append(codauc.train(settings, tmp_path / f"run {weight}"))
    assert found[0]["test_auc"] > 0.9 > 0.6 > found[1]["test_auc"]
    assert any("weighted" in note for note in found[0]["notes"])
    assert not any("weighted" in note for note in found[1]["notes"])
