"""Workers with parts of the data know the AUC of the whole."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import nn

import codauc
from codauc.metrics.auc_values import auc_interval
from codauc.metrics.evaluation import evaluate, group_auc
from codauc.workers import LocalGroup

SEEDED = settings(derandomize=True, deadline=None, max_examples=60)


def together(shards, dtype=None, **options):
    """What every worker gets for its shard of (score, label) rows."""

    def worker(group):
        scores, labels = ([row[i] for row in shards[group.rank]] for i in (0, 1))
        if dtype is not None:
            scores, labels = torch.tensor(scores, dtype=dtype), torch.tensor(labels)
        return group_auc(scores, labels, group, **options)

    return codauc.launch(worker, workers=len(shards), simulate=True)


def whole(shards, dtype=None):
    scores, labels = zip(*[row for shard in shards for row in shard], strict=True)
    return (torch.tensor(scores, dtype=dtype) if dtype else list(scores)), list(labels)


def splits(element):
    """One to five workers' rows, some without any, with both classes in the whole."""
    row = st.tuples(element, st.booleans())
    shards = st.lists(st.lists(row, max_size=25), min_size=1, max_size=5)
    return shards.filter(lambda parts: len({y for part in parts for _, y in part}) == 2)


TIES = st.integers(-2, 2).map(float)
FLOATS = st.floats(allow_nan=False, width=32)  # infinities included
TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64]


@pytest.fixture
def data():
    """Scores of three decimals, so with ties, and labels, 20% positive."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.rand(3000, generator=generator) < 0.2
    scores = (torch.randn(3000, generator=generator) + labels).mul(1000).round().div(1000)
    return scores, labels


def errors(function, workers):
    """What each worker raises."""

    def worker(group):
        try:
            function(group)
        except Exception as error:
            return error

    return codauc.launch(worker, workers=workers, simulate=True)


@SEEDED
@given(shards=splits(TIES) | splits(FLOATS), dtype=st.sampled_from([None, *TYPES[:4]]))
def test_every_worker_gets_exactly_the_auc_of_the_whole(shards, dtype):
    expected = auc_interval(*whole(shards, dtype))
    assert together(shards, dtype) == [expected] * len(shards)
    assert together(shards[::-1], dtype) == [expected] * len(shards)


def test_it_is_scikit_learn_s_on_unequal_shards(data):
    scores, labels = data
    cuts = [0, 1, 1, 700, 2999, 3000]  # of 1, 0, 699, 2299 and 1 samples

    def worker(group):
        mine = slice(*cuts[group.rank : group.rank + 2])
        return group_auc(scores[mine], labels[mine], group)

    expected = roc_auc_score(labels, scores)
    for result in codauc.launch(worker, workers=5, simulate=True):
        assert result.value == pytest.approx(expected, abs=1e-12)
        assert result == auc_interval(scores, labels)


def test_a_worker_may_hold_one_class():
    shards = [[(0.9, 1), (0.2, 1)], [(0.1, 0), (0.3, 0), (0.9, 0)]]
    assert together(shards) == [auc_interval(*whole(shards))] * 2


@pytest.mark.parametrize("tolerance", [None, 0.01])
def test_workers_types_may_differ_and_ties_across_them_stay_ties(tolerance):
    rows = torch.tensor([0.5, 0.5001, 1 / 3, 0.9, 7.0])
    parts = [rows.to(dtype) for dtype in TYPES[:4]] + [torch.empty(0, dtype=torch.int64)]
    labels = [torch.tensor([0, 1, 0, 1, k % 2]) for k in range(4)] + [torch.empty(0)]

    def worker(group):
        return group_auc(parts[group.rank], labels[group.rank], group, tolerance=tolerance)

    expected = auc_interval(torch.cat([part.double() for part in parts]), torch.cat(labels))
    for result in codauc.launch(worker, workers=5, simulate=True):
        assert result.value == expected.value
        assert result == pytest.approx(expected, abs=0 if tolerance is None else 1e-12)


@pytest.mark.parametrize("tolerance", [None, 0.01])
def test_integers_that_float64_cannot_tell_apart_are_told_apart(tolerance):
    shards = [[(2**60, 0)], [(2**60 + 1, 1)], []]  # the empty one, float64, has no say
    assert [result.value for result in together(shards, tolerance=tolerance)] == [1.0] * 3


def test_only_scores_travel_in_their_own_type(data):
    scores, labels = data

    def sent(dtype):
        def worker(group):
            mine = slice(group.rank * 1000, (group.rank + 1) * 1000)
            group_auc(scores[mine].to(dtype), labels[mine], group)
            return group.ledger.tallies["evaluate"].sent

        return codauc.launch(worker, workers=3, simulate=True)

    header = 6 * 8
    for dtype, size in [(torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 2)]:
        assert sent(dtype) == [2 * (header + 1000 * size)] * 3


def test_evaluate_gives_every_worker_what_one_process_gets(data):
    scores, labels = data
    model = nn.Sequential(nn.Unflatten(0, (-1, 1)), nn.Tanh())  # a column, as networks give
    expected = evaluate(model, scores, labels, level=0.9)

    def worker(group):
        mine = slice(0, 0) if group.rank == 1 else slice(group.rank * 500, 1000 + group.rank * 1000)
        return evaluate(model, scores[mine], labels[mine], 7, 0.9, group=group)

    assert codauc.launch(worker, workers=3, simulate=True) == [expected] * 3


def test_a_worker_without_data_does_not_call_its_model():
    class Refuses(nn.Module):
        def forward(self, x):
            raise AssertionError

    def worker(group):
        if group.rank == 0:
            return evaluate(Refuses(), torch.empty(0, 3), torch.empty(0), group=group)
        return evaluate(nn.Identity(), torch.tensor([1.0, 2.0]), torch.tensor([0, 1]), group=group)

    assert [r.value for r in codauc.launch(worker, workers=2, simulate=True)] == [1.0, 1.0]


@SEEDED
@given(shards=splits(TIES) | splits(FLOATS), tolerance=st.floats(0.01, 0.49))
def test_a_tolerance_is_kept_and_the_interval_holds_the_exact_one(shards, tolerance):
    exact = auc_interval(*whole(shards))
    results = together(shards, tolerance=tolerance)
    assert results == [results[0]] * len(shards)
    assert abs(results[0].value - exact.value) <= results[0].bound + 1e-15
    assert results[0].bound <= tolerance
    assert results[0].low <= exact.low + 1e-12
    assert results[0].high >= exact.high - 1e-12
    if max(map(len, shards)) <= 1 / (2 * tolerance):
        assert results[0].bound == 0
        assert results[0].value == exact.value
        assert results[0] == pytest.approx(exact, abs=1e-12)


def test_a_tolerance_needs_messages_that_do_not_grow_with_the_data():
    tolerance, workers = 0.01, 3
    parts = math.ceil(1 / (2 * tolerance))

    def sent_for(n):
        def worker(group):
            rng = np.random.default_rng(group.rank)
            labels = rng.random(n) < 0.3
            result = group_auc(rng.normal(size=n) + labels, labels, group, tolerance=tolerance)
            return group.ledger.bytes_sent, result.bound

        return codauc.launch(worker, workers=workers, simulate=True)

    cuts = 2 * (parts + 2)
    counts = 2 * (2 * workers * cuts + 1)
    most = (workers - 1) * (6 * 8 + 8 * cuts) + 2 * (workers - 1) * 8 * counts // workers
    for n in (1000, 10_000, 100_000):
        for sent, bound in sent_for(n):
            assert sent <= most
            assert 0 < bound <= tolerance


def test_a_rare_class_is_exact_at_any_number_of_the_other():
    def worker(group):
        rng = np.random.default_rng(group.rank)
        labels = np.arange(20_000) < 50
        scores = rng.normal(size=20_000) + labels
        return (
            group_auc(scores, labels, group),
            group_auc(scores, labels, group, tolerance=0.01),
            group.ledger.tallies["evaluate"].calls,
        )

    for exact, result, calls in codauc.launch(worker, workers=2, simulate=True):
        assert result.value == exact.value
        assert result == pytest.approx(exact, abs=1e-12)
        assert calls == 2 + 3


def test_one_process_may_have_a_tolerance_too(data):
    scores, labels = data
    exact = evaluate(nn.Identity(), scores, labels)
    result = evaluate(nn.Identity(), scores, labels, tolerance=0.02)
    assert 0 < abs(result.value - exact.value) <= result.bound <= 0.02
    assert result == group_auc(scores, labels, LocalGroup(), tolerance=0.02)
    assert exact == evaluate(nn.Identity(), scores, labels, group=LocalGroup())
    assert exact.bound == 0


def fails(x):
    raise KeyError("weights")


BAD = [
    ({"y": torch.tensor([0, 2])}, ValueError, "labels with values 0, 2: expected 0/1"),
    (
        {"y": torch.tensor([0, 1, 1])},
        ValueError,
        r"scores of shape \[2\] and labels of shape \[3\]",
    ),
    ({"x": torch.tensor([0.1, math.nan])}, ValueError, "scores with 1 NaN, the first at index 1"),
    ({"x": torch.empty(0)}, ValueError, r"scores of shape \[0\] and labels of shape \[2\]"),
    ({"x": torch.ones(2, 3)}, ValueError, r"scores of shape \[2, 3\] and labels of shape \[2\]"),
    ({"x": None}, TypeError, r"TypeError: object of type 'NoneType' has no len\(\)"),
    ({"forward": fails}, KeyError, "KeyError: 'weights'"),
    ({"level": 95}, ValueError, "level=95: expected a number > 0 and < 1"),
    ({"tolerance": 0.7}, ValueError, "tolerance=0.7: expected a number > 0 and < 0.5"),
    ({"batch_size": 0}, ValueError, "batch_size=0: expected an integer >= 1"),
]


@pytest.mark.parametrize(("bad", "kind", "message"), BAD)
@pytest.mark.parametrize("tolerance", [None, 0.1])
@pytest.mark.parametrize("sick", [0, 2])
def test_what_is_wrong_on_one_worker_is_an_error_on_all(bad, kind, message, tolerance, sick):
    def function(group):
        given = {"x": torch.tensor([0.1, 0.2]), "y": torch.tensor([0, 1]), "tolerance": tolerance}
        given |= bad if group.rank == sick else {}
        model = nn.Identity()
        model.forward = given.pop("forward", model.forward)
        evaluate(model, given.pop("x"), given.pop("y"), group=group, **given)

    raised = errors(function, workers=3)
    own = raised.pop(sick)
    assert type(own) is kind
    for error in raised:
        assert type(error) is ValueError
        with pytest.raises(ValueError, match=f"^worker {sick}: {message}"):
            raise error


def test_the_others_are_told_of_every_sick_worker_and_long_messages_are_cut():
    def function(group):
        def forward(x):
            raise RuntimeError("ü" * 5000)

        model = nn.Identity()
        if group.rank:
            model.forward = forward
        evaluate(model, torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), group=group)

    first, *others = errors(function, workers=3)
    for rank, line in enumerate(str(first).split("\n"), start=1):
        assert line.startswith(f"worker {rank}: RuntimeError: üü")
        assert len(line) < 1100
    assert [str(error) for error in others] == ["ü" * 5000] * 2


@pytest.mark.parametrize("tolerance", [None, 0.1])
@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ([[(0.1, 1)], [], [(0.3, 1)]], "^labels with 2 positives and 0 negatives: expected at"),
        ([[], [], []], "^labels with 0 positives and 0 negatives: expected at least one of each"),
        ([[(1, 1)], [], [(0.3, 0)]], "^worker 0 has integer scores and worker 2 floating-point"),
    ],
)
def test_shards_that_make_no_whole_are_the_same_error_on_all(shards, message, tolerance):
    def function(group):
        scores, labels = ([row[i] for row in shards[group.rank]] for i in (0, 1))
        group_auc(scores, labels, group, tolerance=tolerance)

    for error in errors(function, workers=3):
        with pytest.raises(ValueError, match=message):
            raise error


def test_another_tolerance_on_one_worker_is_an_error_on_all():
    def function(group):
        group_auc([0.1, 0.2], [0, 1], group, tolerance=None if group.rank < 2 else 0.1)

    for error in errors(function, workers=3):
        with pytest.raises(
            ValueError, match=r"^worker 2 and worker 0 differ in tolerance: expected"
        ):
            raise error


def test_misspelt_arguments_are_named():
    with pytest.raises(ValueError, match="did you mean 'tolerance'"):
        group_auc([0.1, 0.2], [0, 1], LocalGroup(), tolerence=0.1)
    with pytest.raises(ValueError, match="did you mean 'group'"):
        evaluate(nn.Identity(), torch.zeros(2), torch.zeros(2), groups=LocalGroup())
