"""The network of tables: members side by side, validated crosswise, beside logistic regression."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import codauc
from codauc import AUCClassifier
from codauc.data.dataset import DataSet, Part
from codauc.data.shards import ShardCount
from codauc.data.tables.encoder import Encoder, Number, Target
from codauc.models import TabularEnsemble
from codauc.runs.settings import ModelSettings, RecipeSettings, RunSettings
from codauc.training.build import resolve_settings
from codauc.training.crossed import crossed, member_weights
from codauc.training.linear_start import start_linear_models
from codauc.training.recipe import Facts, resolve
from codauc.training.time_budget import within_budget
from codauc.training.validation import Validation, levelled, scores_of
from codauc.workers.group import LocalGroup


def table(rows=300, positives=30, columns=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    y = np.zeros(rows, int)
    y[np.argsort(-(x[:, 0] + rng.normal(size=rows)))[:positives]] = 1
    return x, y


def part(x, y, rows, groups=None):
    numbers = tuple(Number(f"c{i}", 0.0, 1.0, False) for i in range(x.shape[1]))
    return Part(
        x=torch.tensor(x[rows], dtype=torch.float32),
        y=torch.tensor(y[rows]),
        rows=torch.as_tensor(rows),
        counts=[ShardCount(len(rows), int(y[rows].sum()))],
        groups=None if groups is None else torch.as_tensor(groups[rows]),
        encoder=Encoder(numbers, (), Target("y", ("1",), ("0",))),
    )


def opened(x, y, groups=None):
    rows = np.arange(len(y))
    train, held = rows[rows % 7 > 0], rows[rows % 7 == 0]
    return DataSet(part(x, y, train, groups), part(x, y, held, groups), None, ("1",), ("0",))


def settings(members=5, seed=0):
    return RunSettings(
        model=ModelSettings("tabular-ensemble", {"numbers": 4, "members": members}), seed=seed
    )


def test_the_score_is_the_mean_of_the_members_which_can_be_asked_one_by_one():
    net = TabularEnsemble(numbers=2, categories=[3, 5], members=3, widths=[8, 4], pieces=4)
    x = torch.cat([torch.randn(50, 2), torch.randint(0, 3, (50, 2)).float()], dim=1)
    net.fit_pieces(x)
    for tensor in net.linear.parameters():
        torch.nn.init.normal_(tensor)
    each = net(x)
    assert each.shape == (50, 3)
    torch.testing.assert_close(net.eval()(x), each.mean(1))
    for member in range(3):
        torch.testing.assert_close(net(x, member=member), each[:, member])


@pytest.mark.parametrize("members", [1, 2, 5])
def test_an_ensemble_is_made_again_from_its_arguments_and_saved_weights(members, tmp_path):
    net = TabularEnsemble(numbers=1, categories=[4], members=members, widths=[6]).eval()
    again = codauc.models.build(net.model_name, **json.loads(json.dumps(net.arguments))).eval()
    again.load_state_dict(net.state_dict())
    x = torch.tensor([[0.5, 3.0], [-1.0, 0.0]])
    assert torch.equal(net(x), again(x))
    assert net(x).shape == (2,)


def test_a_member_learns_nothing_of_the_rows_held_out_of_it():
    """The labels of fold 1 are turned round: of all members only number 1 stays what it is."""
    x, y = torch.randn(60, 4), torch.arange(60) % 3 == 0
    folds = torch.arange(60) % 4
    turned = torch.where(folds == 1, ~y, y)
    x[:, 3] = torch.arange(60) % 5

    def trained(labels):
        torch.manual_seed(0)
        net = TabularEnsemble(numbers=3, categories=[5], members=4, widths=[8], dropout=0.2)
        loss = codauc.MinMaxAUCLoss(pos_ratio=[1 / 3] * 4, mix=0.5)
        loss.one_label, loss.mean_weight = True, 1.0
        opt = codauc.PPDAdam(net, loss, weight_decay=0.1)
        held = Part(x, labels, torch.arange(60), [], folds=folds)
        weights = member_weights(held, 4)
        for begin in range(0, 60, 20):
            rows = slice(begin, begin + 20)
            opt.zero_grad()
            loss(net(x[rows]), labels[rows], weights[rows]).backward()
            opt.step()
        return net.eval(), loss

    (one, loss), (other, other_loss) = trained(y), trained(turned)
    same = [torch.equal(one(x, member=m), other(x, member=m)) for m in range(4)]
    assert same == [False, True, False, False]
    assert (loss.alpha == other_loss.alpha).tolist() == same


def test_every_row_is_scored_by_the_member_that_never_saw_it():
    x, y = table()
    data = crossed(opened(x, y), settings(), LocalGroup())
    net = TabularEnsemble(numbers=4, members=5)
    found = scores_of(net, data.train)
    net.train()
    each = net(data.train.x).detach()
    own = each.gather(1, data.train.folds.unsqueeze(1)).squeeze(1)
    np.testing.assert_allclose(found, own.numpy(), atol=1e-6)


def test_folds_have_all_rows_and_as_many_positives_each():
    x, y = table(rows=500, positives=23)
    data = crossed(opened(x, y), settings(), LocalGroup())
    assert sorted(data.train.rows.tolist()) == list(range(500))
    assert data.train.samples == 500
    assert data.train.positives == 23
    counts = np.bincount(data.train.folds[data.train.y.bool()].numpy(), minlength=5)
    assert counts.max() - counts.min() <= 1
    assert np.bincount(data.train.folds.numpy(), minlength=5).min() > 60


def test_rows_of_a_group_are_in_one_fold():
    x, y = table()
    groups = np.random.default_rng(1).integers(0, 40, len(y))
    data = crossed(opened(x, y, groups), settings(), LocalGroup())
    pairs = set(zip(data.train.groups.tolist(), data.train.folds.tolist(), strict=True))
    assert len(pairs) == len({group for group, _ in pairs})


@pytest.mark.parametrize("workers", [1, 3])
def test_where_the_zero_of_a_member_is_does_not_change_crossed_scores(workers):
    rng = np.random.default_rng(0)
    folds, scores = rng.integers(4, size=300), rng.normal(size=300)  # no row in the fifth
    shifted = scores + np.array([5.0, -3.0, 0.0, 100.0, 1.0])[folds]

    def found(group):
        mine = slice(group.rank, None, group.size)
        return [levelled(each[mine], folds[mine], 5, group) for each in (scores, shifted)]

    results = codauc.launch(found, workers=workers, simulate=True)
    plain, moved = (np.empty(300) for _ in range(2))
    for rank, (one, other) in enumerate(results):
        plain[rank::workers], moved[rank::workers] = one, other
    assert np.ptp(moved - plain) < 1e-3  # as their sizes are, so is what counts as equal
    for fold in range(4):
        assert np.ptp((plain - scores)[folds == fold]) < 1e-5  # no row of a fold changes places
        assert plain[folds == fold].mean() == pytest.approx(scores.mean(), abs=1e-6)


def test_crossed_scores_of_equal_rows_are_equal():
    folds = np.arange(900) % 5
    scores = np.float32([1.7138559, 1.7509787, 1.7586097, 1.8092605, 1.8355141])[folds]
    scores[[2, 7]] = np.nextafter(np.float32(1.7586097), np.float32(2))  # another block of rows
    assert len(set(levelled(scores, folds, 5, LocalGroup()))) == 1


def test_folds_do_not_depend_on_the_number_of_workers():
    x, y = table()
    whole = crossed(opened(x, y), settings(), LocalGroup()).train
    alone = dict(zip(whole.rows.tolist(), whole.folds.tolist(), strict=True))

    def folds(group):
        rows = np.arange(len(y))
        mine = rows[rows % group.size == group.rank]
        data = opened(x, y)
        pieces = [
            replace(p, **{n: getattr(p, n)[torch.isin(p.rows, torch.as_tensor(mine))]
                          for n in ("x", "y", "rows")})
            for p in (data.train, data.validation)
        ]  # fmt: skip
        found = crossed(replace(data, train=pieces[0], validation=pieces[1]), settings(), group)
        return dict(zip(found.train.rows.tolist(), found.train.folds.tolist(), strict=True))

    parts = codauc.launch(folds, workers=3, simulate=True)
    assert {row: fold for found in parts for row, fold in found.items()} == alone


def test_the_linear_start_is_logistic_regression_however_rows_are_shared_out():
    x, y = table(rows=400, positives=60)
    rows = torch.tensor(x, dtype=torch.float32)
    features = np.hstack([x / np.sqrt(1 + (x / 10) ** 2), np.arcsinh(x)])
    expected = LogisticRegression(C=1.0, tol=1e-8).fit(features, y)

    def start(group):
        net = TabularEnsemble(numbers=4, members=2)
        mine = torch.arange(len(y)) % group.size == group.rank
        weights = torch.ones(int(mine.sum()), 2)
        start_linear_models(net, rows[mine], torch.tensor(y)[mine], weights, group)
        return net.eval()(rows).detach().numpy()

    for workers in (1, 3):
        found = codauc.launch(start, workers=workers, simulate=True)[0]
        np.testing.assert_allclose(found, expected.decision_function(features), atol=2e-3)


def test_few_positives_are_validated_crosswise_and_many_are_not():
    for positives, expected in ((30, True), (1500, False)):
        x, y = table(rows=4000, positives=positives)
        data = opened(x, y)
        found = resolve_settings(settings(), data, 1)
        assert found.recipe.crossed is expected


def test_every_row_of_a_large_table_is_seen():
    for samples in (10_000, 300_000, 5_000_000):
        recipe = resolve(RecipeSettings(), 1, Facts(samples, samples // 100, False, True))
        assert recipe.steps * recipe.batch_size >= samples


def test_a_time_budget_takes_fewer_steps_and_a_large_one_changes_nothing():
    x, y = table(rows=3000, positives=300)
    data = opened(x, y)
    asked = settings().with_changes("recipe", time_budget=1e6)
    resolved = resolve_settings(asked, data, 1)
    assert within_budget(resolved, data, LocalGroup()) == resolved
    short = resolved.with_changes("recipe", time_budget=1e-3)
    assert within_budget(short, data, LocalGroup()).recipe.steps < resolved.recipe.steps


def test_a_run_ends_when_its_models_get_no_better():
    x, y = table(rows=600, positives=200)
    rng = np.random.default_rng(0)
    flat = rng.permutation(y)  # nothing to learn: later models only learn the noise
    arguments = {"patience": 3, "evaluations": 60, "crossed": False, "linear_start": False}
    model = AUCClassifier(
        steps=1500, lr=0.01, weight_decay=0.0, recipe_arguments=arguments, random_state=0
    ).fit(np.hstack([x, rng.normal(size=(600, 20))]), flat)
    assert model.n_iter_ < 1500
    rejected = [record["step"] for record in model.history_[-3:]]
    assert model.best_step_ not in rejected


def test_a_blend_with_logistic_regression_has_the_blended_logits_of_each_member():
    x = torch.randn(20, 3)
    x[:, 2] = torch.arange(20) % 4
    net = TabularEnsemble(numbers=2, categories=[4], members=3, pieces=4)
    net.fit_pieces(x)
    with torch.no_grad():
        net.head.weight.zero_()
        net.linear.numbers.normal_()
    first, linear = net(x).detach(), net.linear_weights()
    with torch.no_grad():
        for weights in net.parameters():
            weights.normal_()
    own = net(x).detach()
    assert net.linear_weights() is None  # the networks add something
    net.blend(linear, 0.25)
    torch.testing.assert_close(net(x), 0.25 * own + 0.75 * first, rtol=1e-4, atol=1e-4)


def test_with_few_positives_the_kept_model_is_no_worse_crosswise_than_logistic_regression():
    x, y = table(rows=400, positives=25, columns=8)  # a linear truth, and noise
    model = AUCClassifier(random_state=0, steps=200).fit(x, y)
    start = model.history_[0]
    assert start["step"] == 0
    assert model.validation_auc_ >= max(record["auc"] for record in model.history_)
    logistic = LogisticRegression().fit(x, y)
    fresh, labels = table(rows=4000, positives=250, columns=8, seed=1)
    ours, theirs = (codauc.auc(m.decision_function(fresh), labels) for m in (model, logistic))
    assert ours > theirs - 0.01


def test_a_blend_needs_logistic_regression():
    x, y = table()
    with pytest.raises(ValueError, match="select=blend with a network that does not begin"):
        AUCClassifier(select="blend", recipe_arguments={"linear_start": False}).fit(x, y)


def test_validation_scores_are_in_one_order_so_that_other_workers_can_resume_with_them():
    x, y = table()

    def evaluated(group):
        torch.manual_seed(0)
        model = TabularEnsemble(numbers=4, members=2)
        loss = codauc.MinMaxAUCLoss(pos_ratio=[0.1] * 2)
        opt = codauc.PPDSG(model, loss, lr=0.1, gamma=500.0)
        rows = np.flatnonzero(np.arange(len(y)) % group.size == group.rank)
        recipe = resolve(RecipeSettings(average="none"), 1, Facts(300, 30, False))
        validation = Validation(opt, part(x, y, rows), group, RunSettings(recipe=recipe))
        with validation.evaluated(1, 0.0) as result:
            return validation.labels, result.scores

    (alone,) = codauc.launch(evaluated, workers=1, simulate=True)
    for labels, scores in codauc.launch(evaluated, workers=3, simulate=True):
        np.testing.assert_array_equal(labels, alone[0])
        np.testing.assert_allclose(scores, alone[1], rtol=1e-5)
