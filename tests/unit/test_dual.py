"""Claims about the estimate of alpha between two stages."""

import itertools
import warnings

import pytest
import torch
from torch import nn

import codauc
import vectors

DTYPE = torch.float64
BATCH, STEPS = 4, 3


class Source:
    """Endless batches of one worker that remembers what was drawn; labels in a given order."""

    def __init__(self, rank, labels, tasks=1):
        self.labels = itertools.cycle(labels)
        self.generator = torch.Generator().manual_seed(rank)
        self.rank, self.tasks, self.drawn = rank, tasks, []

    def __iter__(self):
        return self

    def __next__(self):
        y = torch.tensor([next(self.labels) for _ in range(BATCH)])
        shift = y.view(BATCH, -1).sum(1, keepdim=True) + self.rank
        x = torch.randn(BATCH, 3, dtype=DTYPE, generator=self.generator) + shift
        self.drawn.append((x, y))
        return x, y

    def estimate_samples(self):
        """All samples drawn after the steps of the only stage."""
        xs, ys = zip(*self.drawn[STEPS:], strict=True)
        return torch.cat(xs), torch.cat(ys)


def fit(group, source, samples, dual="mean", stages=1, tasks=1, alphas=None):
    """Train; return the model, the loss and the source. `alphas` gets alpha after each step."""
    model = nn.Linear(3, tasks).to(DTYPE)
    ratio = [0.4] * tasks
    loss = codauc.MinMaxAUCLoss(ratio).double()
    opt = codauc.PPDSG(model, loss, lr=0.3, gamma=2.0)
    coda = codauc.CoDA(opt, group, dual=dual)
    for stage in codauc.constant(0.3, STEPS, stages, sync_every=2, dual_samples=samples):
        for x, y in coda.stage(stage, source):
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
            if alphas is not None:
                alphas.append(loss.alpha.detach().clone())
    return model, loss, source


def launch(function, workers):
    return codauc.launch(function, workers=workers, simulate=True)


def test_before_the_first_stage_a_b_and_alpha_become_those_of_the_first_weights():
    def begin(group):
        source = Source(group.rank, [1, 0, 0])
        model = nn.Linear(3, 1).to(DTYPE)
        loss = codauc.MinMaxAUCLoss(0.4).double()
        opt = codauc.PPDSG(model, loss, lr=0.3, gamma=2.0)
        coda = codauc.CoDA(opt, group)
        coda.estimate(source, samples=12)
        stage = codauc.constant(0.3, STEPS, sync_every=2)[0]
        next(coda.stage(stage, source))
        with pytest.raises(RuntimeError, match="within a stage"):
            coda.estimate(source)
        xs, ys = zip(*source.drawn[:3], strict=True)  # twelve samples are three batches
        h, y = torch.cat(xs) @ model.weight[0] + model.bias, torch.cat(ys).bool()
        means = [h.sigmoid()[mask].mean().item() for mask in (y, ~y)]
        return means, [t.item() for t in (loss.a, loss.b, loss.alpha)], group.ledger.calls("dual")

    results = launch(begin, 3)
    positive, negative = (sum(means[i] for means, *_ in results) / 3 for i in (0, 1))
    for _, found, calls in results:
        assert found == pytest.approx([positive, negative, negative - positive], abs=1e-12)
        assert calls == 1


def class_sums(model, x, y):
    """Sums of h and counts: of the negatives, of the positives."""
    h = model(x).detach().sigmoid().squeeze(1)
    negative, positive = h[y == 0], h[y == 1]
    return negative.sum(), len(negative), positive.sum(), len(positive)


def mean_of_ratios(parts):
    negatives = [part[0] / part[1] for part in parts if part[1]]
    positives = [part[2] / part[3] for part in parts if part[3]]
    return sum(negatives) / len(negatives) - sum(positives) / len(positives)


def pooled_ratio(parts):
    shares = [[value / (part[1] + part[3]) for value in part] for part in parts]
    low, lows, high, highs = (sum(column) for column in zip(*shares, strict=True))
    return low / lows - high / highs


BY_HAND = {"mean": mean_of_ratios, "pooled": pooled_ratio}
SKEWED = [[1, 0, 1, 1, 1], [0, 0, 1, 0, 0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("samples", [8, 10, 17])
@pytest.mark.parametrize("dual", ["mean", "pooled"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_alpha_is_the_spec_formula_over_exactly_m_samples_of_every_worker(workers, dual, samples):
    results = launch(
        lambda group: fit(group, Source(group.rank, SKEWED[group.rank]), samples, dual), workers
    )
    parts = []
    for model, _, source in results:
        x, y = source.estimate_samples()
        assert len(x) == -(-samples // BATCH) * BATCH
        parts.append(class_sums(model, x[:samples], y[:samples]))
    expected = BY_HAND[dual](parts)
    other = BY_HAND["pooled" if dual == "mean" else "mean"](parts)
    for _, loss, _ in results:
        assert (loss.alpha - expected).abs() < 1e-14
        assert torch.equal(loss.alpha, results[0][1].alpha)
        if workers > 1:
            assert (loss.alpha - other).abs() > 1e-4


def test_samples_after_the_m_th_do_not_matter_and_the_m_th_does():
    def alpha(changed):
        class Changed(Source):
            def __next__(self):
                x, y = super().__next__()
                if len(self.drawn) == STEPS + 2:
                    x[changed] += 1.0
                return x, y

        torch.manual_seed(0)
        return fit(None, Changed(0, [1, 0]), samples=6)[1].alpha

    assert torch.equal(alpha(2), alpha(3))
    assert not torch.equal(alpha(1), alpha(3))
    assert not torch.equal(alpha(0), alpha(1))


@pytest.mark.parametrize("dual", ["mean", "pooled"])
def test_a_draw_that_lacks_a_class_is_followed_by_another(dual):
    steps = [1, 0] * (STEPS * BATCH // 2)
    late = [*steps, *[0] * 19, 1, 0, 0, 0, 0]  # draws of 8: the third is the first with a positive

    def work(group):
        return fit(group, Source(group.rank, late if group.rank == 1 else [1, 0]), 8, dual)

    results = launch(work, 2)
    assert [len(source.drawn) - STEPS for *_, source in results] == [2, 6]
    parts = [class_sums(model, *source.estimate_samples()) for model, _, source in results]
    assert parts[1][3] == 1
    for _, loss, _ in results:
        assert (loss.alpha - BY_HAND[dual](parts)).abs() < 1e-14


@pytest.mark.parametrize("missing", [0, 1], ids=["no negatives", "no positives"])
@pytest.mark.parametrize("dual", ["mean", "pooled"])
def test_a_shard_of_one_class_takes_no_part_in_the_others_mean(dual, missing):
    shards = [SKEWED[0], [1 - missing], SKEWED[1]]
    word = "no negatives" if missing == 0 else "no positives"
    with pytest.warns(UserWarning, match=f"drew {word}") as told:
        results = launch(
            lambda group: fit(group, Source(group.rank, shards[group.rank]), 10, dual), 3
        )
    assert len(told) == 1
    parts = []
    for rank, (model, _, source) in enumerate(results):
        x, y = source.estimate_samples()
        assert len(x) == (36 if rank == 1 else 12)  # three draws for a class never met
        used = [*range(10), *range(12, len(x))]  # of the first draw ten, then whole batches
        parts.append(class_sums(model, x[used], y[used]))
    assert parts[1][1 if missing == 0 else 3] == 0
    for _, loss, _ in results:
        assert (loss.alpha - BY_HAND[dual](parts)).abs() < 1e-14


def test_a_shard_of_one_class_is_reported_once_over_all_stages():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        launch(
            lambda group: fit(group, Source(group.rank, [[1, 0], [0]][group.rank]), 8, stages=4), 2
        )
    assert ["drew no positives" in str(warning.message) for warning in told] == [True]


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("dual", ["mean", "pooled"])
@pytest.mark.parametrize("workers", [1, 2])
def test_where_no_worker_has_a_class_alpha_stays_and_a_warning_says_so(workers, dual, label):
    def work(group):
        alphas = []
        _, loss, _ = fit(group, Source(group.rank, [label]), 8, dual, alphas=alphas)
        return alphas[-1], loss.alpha

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        results = launch(work, workers)
    messages = [str(warning.message) for warning in told]
    assert sum("no worker has drawn both classes" in message for message in messages) == workers
    before = torch.stack([last for last, _ in results]).mean(0)
    for _, alpha in results:
        assert alpha.isfinite()
        assert (alpha - before).abs() < 1e-14


@pytest.mark.parametrize("dual", ["mean", "pooled"])
def test_every_task_has_its_own_estimate(dual):
    labels = [
        [[1, 0], [0, 0], [0, 1], [1, 1], [0, 0]],
        [[0, 1], [0, 1], [1, 0]],
    ]

    def work(group):
        return fit(group, Source(group.rank, labels[group.rank], 2), 10, dual, tasks=2)

    results = launch(work, 2)
    for task in range(2):
        parts = []
        for model, _, source in results:
            x, y = source.estimate_samples()
            parts.append(class_sums(lambda x, m=model, t=task: m(x)[:, [t]], x[:10], y[:10, task]))
        for _, loss, _ in results:
            assert (loss.alpha[task] - BY_HAND[dual](parts)).abs() < 1e-14


def test_a_task_without_a_class_keeps_its_alpha_and_the_others_get_theirs():
    alphas = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model, loss, source = fit(None, Source(0, [[1, 0], [0, 0]], 2), 8, tasks=2, alphas=alphas)
    assert any("alpha stays" in str(warning.message) for warning in told)
    x, y = source.estimate_samples()
    expected = mean_of_ratios([class_sums(lambda x: model(x)[:, :1], x, y[:, 0])])
    assert (loss.alpha[0] - expected).abs() < 1e-14
    assert loss.alpha[1] == alphas[-1][1]


@pytest.mark.parametrize("dual", ["mean", "pooled"])
@pytest.mark.parametrize("workers", [1, 3])
def test_one_sample_is_enough_because_the_worker_draws_again(workers, dual):
    results = launch(
        lambda group: fit(group, Source(group.rank, SKEWED[group.rank]), 1, dual), workers
    )
    parts = []
    for model, _, source in results:
        x, y = source.estimate_samples()
        used = [0, *range(BATCH, len(x))]  # the first sample, then whole batches
        x, y = x[used], y[used]
        assert {0, 1} == set(y.tolist())
        assert {0, 1} != set(y[:-BATCH].tolist())
        parts.append(class_sums(model, x, y))
    for _, loss, _ in results:
        assert (loss.alpha - BY_HAND[dual](parts)).abs() < 1e-14


def test_the_estimate_is_one_collective_and_moves_nothing_but_alpha(monkeypatch):
    monkeypatch.setattr("codauc.algorithm.unknown_ratio.SAMPLES", 0)
    seen = []

    def work(group):
        def forward(batch):
            x, y = batch
            seen.append((group.rank, torch.is_grad_enabled()))
            return model(x), y

        model, loss = nn.Linear(3, 1).to(DTYPE), codauc.MinMaxAUCLoss().double()
        opt = codauc.PPDSG(model, loss, lr=0.3, gamma=2.0)
        coda = codauc.CoDA(opt, group, forward=forward)
        for x, y in coda.stage(codauc.Stage(0.3, STEPS, 2, 8), Source(group.rank, [1, 0])):
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
        labels = STEPS * BATCH
        assert loss.seen.sum() == labels  # labels of the estimate are not counted twice
        assert loss.counts.sum() == 2 * labels
        return group.ledger.calls("dual"), vectors.primal(opt), vectors.average(opt)

    results = launch(work, 2)
    assert seen == [(0, False)] * 2 + [(1, False)] * 2
    assert [calls for calls, _, _ in results] == [1, 1]
    mean = (results[0][2] + results[1][2]) / 2
    for _, primal, _ in results:
        assert torch.equal(primal, mean)


def test_statistics_of_a_float64_model_keep_their_precision_beside_a_float32_loss():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3).double()
    model, loss = nn.Sequential(norm, nn.Linear(3, 1).double()), codauc.MinMaxAUCLoss(0.5)
    opt = codauc.PPDSG(model, loss, lr=0.1)
    coda = codauc.CoDA(opt)
    x = torch.randn(8, 3, dtype=torch.float64) + 0.1
    data = [(x, torch.arange(8) % 2)]
    for inputs, labels in coda.stage(codauc.Stage(0.1, 2, dual_samples=8), data):
        opt.zero_grad()
        loss(model(inputs), labels).backward()
        opt.step()
    assert (norm.running_mean - x.mean(0)).abs().max() < 1e-14
