"""AUC is exact, and its interval covers."""

import math
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score

from codauc.metrics import auc, auc_interval, score_classes
from codauc.metrics.binned_auc import bin_counts, binned_interval, cut_points, parts_for
from codauc.metrics.score_classes import sorted_classes

SEEDED = settings(derandomize=True, deadline=None)


def placements(scores, labels):
    """For every positive and negative the share of the other class it is rightly ordered with."""
    ups, downs = scores[labels == 1][:, None], scores[labels != 1][None, :]
    wins = (ups > downs) + 0.5 * (ups == downs)
    return wins.mean(axis=1), wins.mean(axis=0)


def slow_delong(scores, labels):
    """DeLong's standard error by all n+ n- pairs."""
    ups, downs = placements(scores, labels)
    return math.sqrt(ups.var(ddof=1) / len(ups) + downs.var(ddof=1) / len(downs))


def samples(element):
    """Lists of (score, label) with both classes."""
    pairs = st.lists(st.tuples(element, st.booleans()), min_size=2, max_size=60)
    return pairs.filter(lambda rows: len({y for _, y in rows}) == 2)


HEAVY_TIES = st.integers(-2, 2)
INTEGERS = st.integers(-(2**62), 2**62)
FLOATS = st.floats(allow_nan=False)
FLOATS32 = st.floats(width=32, min_value=0, max_value=1)


@SEEDED
@given(rows=samples(HEAVY_TIES) | samples(INTEGERS) | samples(FLOATS) | samples(FLOATS32))
def test_auc_equals_the_exact_share_of_ordered_pairs(rows):
    ups, downs = [s for s, y in rows if y], [s for s, y in rows if not y]
    wins = sum(Fraction(2 * (u > d) + (u == d), 2) for u in ups for d in downs)
    scores, labels = zip(*rows, strict=True)
    assert auc(list(scores), list(labels)) == float(wins / (len(ups) * len(downs)))


@pytest.mark.parametrize("decimals", [0, 1, 2, 17])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("p", [0.01, 0.5, 0.9])
def test_auc_equals_scikit_learn(p, dtype, decimals):
    rng = np.random.default_rng(0)
    labels = (rng.random(5000) < p).astype(int)
    scores = np.round(rng.normal(size=5000) + labels, decimals).astype(dtype)
    assert auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


@SEEDED
@given(rows=samples(st.floats(-1e300, 1e300)))
def test_auc_equals_scikit_learn_on_huge_values(rows):
    scores, labels = map(np.array, zip(*rows, strict=True))
    assert auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_integers_that_float64_cannot_tell_apart_are_told_apart():
    scores = np.array([2**60, 2**60 + 1])
    assert auc(scores, [0, 1]) == 1.0
    assert auc(torch.from_numpy(scores), [0, 1]) == 1.0


@SEEDED
@given(rows=samples(HEAVY_TIES))
def test_negated_scores_and_swapped_labels_mirror_auc(rows):
    scores, labels = map(np.array, zip(*rows, strict=True))
    assert auc(-scores, labels) == pytest.approx(1 - auc(scores, labels), abs=1e-15)
    assert auc(-scores, ~labels) == auc(scores, labels)
    assert auc(np.exp(scores), labels) == auc(scores, labels)


def test_infinite_scores_are_in_order():
    assert auc([-np.inf, 0.0, np.inf, np.inf], [0, 1, 0, 1]) == 0.625


def test_zero_and_minus_zero_are_tied():
    assert auc([0.0, -0.0], [1, 0]) == auc([-0.0, 0.0], [1, 0]) == 0.5


@pytest.mark.parametrize("labels", [[0, 1, 0, 1], [-1, 1, -1, 1], [False, True, False, True]])
@pytest.mark.parametrize(
    "kind", [list, np.array, torch.tensor, lambda x: np.array(x, float), lambda x: np.int8(x)]
)
def test_every_kind_of_labels_means_the_same(kind, labels):
    assert auc([0.3, 0.4, 0.5, 0.6], kind(labels)) == 0.75


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_of_every_type_keep_their_ties(dtype):
    scores = torch.tensor([0.5, 0.5001, 0.1, 0.9], requires_grad=True).to(dtype)
    tied = scores[0].item() == scores[1].item()
    assert tied == (dtype is torch.bfloat16 or dtype is torch.float16)
    assert auc(scores, [0, 1, 0, 1]) == (0.875 if tied else 1.0)


def test_a_matrix_gives_one_auc_a_column():
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 5, (50, 3)), rng.integers(0, 2, (50, 3))
    values = auc(scores, labels)
    assert isinstance(values, np.ndarray)
    assert values.tolist() == [auc(scores[:, c], labels[:, c]) for c in range(3)]
    assert isinstance(auc(scores[:, 0], labels[:, 0]), float)


def test_a_million_samples_do_not_overflow():
    labels = np.arange(1_000_000) % 2
    assert auc(labels.astype(np.float32), labels) == 1.0


@SEEDED
@given(rows=samples(HEAVY_TIES) | samples(FLOATS32))
def test_interval_equals_delong_by_all_pairs(rows):
    scores, labels = map(np.array, zip(*rows, strict=True))
    interval = auc_interval(scores, labels)
    assert interval.value == auc(scores, labels)
    assert 0 <= interval.low <= interval.value <= interval.high <= 1
    assert interval.low < interval.high
    if min(labels.sum(), (~labels).sum()) > 1:
        expected = slow_delong(scores, labels)
        assert interval.std_error == pytest.approx(expected, abs=1e-12)
        if expected > 1e-9:
            low, high = interval.value - 1.959964 * expected, interval.value + 1.959964 * expected
            assert interval.low == pytest.approx(max(0, low), abs=1e-6)
            assert interval.high == pytest.approx(min(1, high), abs=1e-6)


def counted(scores, labels):
    """The AUC by all n+ n- pairs, in Python's integers."""
    ups = [s for s, y in zip(scores, labels, strict=True) if y]
    downs = [s for s, y in zip(scores, labels, strict=True) if not y]
    doubled = sum(2 * (u > d) + (u == d) for u in ups for d in downs)
    return doubled / (2 * len(ups) * len(downs))


EDGES = st.sampled_from([-math.inf, -1.0, -(2.0**-149), -0.0, 0.0, 2.0**-149, 1.0, math.inf])


@SEEDED
@given(rows=samples(EDGES), dtype=st.sampled_from([np.float32, np.float64]))
def test_infinities_zeros_and_the_smallest_numbers_are_counted_as_all_pairs_are(rows, dtype):
    scores, labels = zip(*rows, strict=True)
    scores, labels = np.array(scores, dtype), np.array(labels)
    assert auc(scores, labels) == counted(scores.tolist(), labels)
    assert auc_interval(scores, labels).value == auc(scores, labels)
    if 1 < labels.sum() < len(labels) - 1:
        expected = slow_delong(scores, labels)
        assert auc_interval(scores, labels).std_error == pytest.approx(expected, abs=1e-12)


TYPES = ["?", "int8", "uint8", "int64", "uint64", "float16", "float32", "float64"]


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("top", [2, 7, 100])
@pytest.mark.parametrize("dtype", TYPES)
def test_scores_of_every_type_are_counted_as_all_pairs_are(dtype, top, share):
    """With a share of 0 or 1 a class has one sample."""
    rng = np.random.default_rng(top)
    labels = rng.random(300) < share
    labels[:2] = True, False
    scores = rng.integers(0, top, 300).astype(dtype)
    expected = counted(scores.tolist(), labels)
    assert auc(scores, labels) == auc(torch.from_numpy(scores), labels) == expected
    assert auc_interval(scores, labels).value == expected
    if 0 < share < 1:
        expected = slow_delong(scores.astype(float), labels)
        assert auc_interval(scores, labels).std_error == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("decimals", [2, 17])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_many_samples_have_the_interval_of_their_ranks(p, decimals):
    """More scores than are looked up at a time; placements by ranks instead of by all pairs."""
    rng = np.random.default_rng(0)
    labels = rng.random(20_000) < p
    scores = np.round(rng.normal(size=20_000) + labels, decimals).astype(np.float32)
    within = np.where(labels, *(rankdata_of(scores, mask) for mask in (labels, ~labels)))
    placed = (rankdata(scores) - within) / np.where(labels, (~labels).sum(), labels.sum())
    interval = auc_interval(scores, labels)
    assert interval.value == pytest.approx(placed[labels].mean(), abs=1e-14)
    spread = sum(placed[mask].var(ddof=1) / mask.sum() for mask in (labels, ~labels))
    assert interval.std_error == pytest.approx(math.sqrt(spread), rel=1e-12)


def rankdata_of(scores, mask):
    """The ranks within the samples of the mask; 0 elsewhere."""
    ranks = np.zeros(len(scores))
    ranks[mask] = rankdata(scores[mask])
    return ranks


def test_tensors_of_a_type_that_numpy_has_are_not_copied_to_a_wider_one():
    scores = torch.tensor([0.1, 0.4, 0.4, 0.8])
    assert np.shares_memory(score_classes._array("scores", scores), scores.numpy())


def coverage(shift, n_pos, n_neg, truth, decimals=17, repeats=1500):
    rng = np.random.default_rng(0)
    labels = np.arange(n_pos + n_neg) < n_pos
    hits = 0
    for _ in range(repeats):
        scores = np.round(rng.normal(size=labels.size) + shift * labels, decimals)
        interval = auc_interval(scores, labels)
        hits += interval.low <= truth <= interval.high
    return hits / repeats


@pytest.mark.parametrize("shift", [0.0, 0.7, 1.2])
def test_interval_covers_about_95_percent(shift):
    truth = 0.5 * (1 + math.erf(shift / 2))
    assert 0.925 < coverage(shift, 40, 120, truth) < 0.975


def test_interval_covers_where_delong_has_no_width():
    """Mostly separated small samples: AUC is 1 in most draws, the truth 0.993."""
    assert coverage(3.5, 8, 8, 0.5 * (1 + math.erf(3.5 / 2))) > 0.95


def test_a_wider_level_gives_a_wider_interval():
    scores, labels = [0.1, 0.4, 0.35, 0.8, 0.7, 0.2], [0, 0, 1, 1, 1, 0]
    narrow, wide = (auc_interval(scores, labels, level=level) for level in (0.5, 0.9))
    assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize(("n_pos", "n_neg"), [(1, 1), (1, 9), (5, 3), (200, 300)])
def test_perfect_and_worst_auc_have_the_binomial_bound(n_pos, n_neg):
    labels = np.arange(n_pos + n_neg) < n_pos
    q = 0.025 ** (1 / min(n_pos, n_neg))
    assert auc_interval(labels * 1.0, labels) == (1, pytest.approx(q), 1, 0, 0)
    assert auc_interval(labels * -1.0, labels) == (0, 0, pytest.approx(1 - q), 0, 0)


def test_all_scores_tied_have_the_interval_of_scores_without_information():
    """Identical scores tell no more than scores that differ by chance alone."""
    labels = np.arange(300) < 40
    tied = auc_interval(np.full(300, 0.3), labels)
    error = (tied.high - tied.low) / 2 / 1.959964
    assert (tied.value, tied.std_error) == (0.5, 0.0)
    assert error == pytest.approx(math.sqrt(301 / (12 * 40 * 260)))
    rng = np.random.default_rng(0)
    broken = [auc_interval(rng.normal(size=300), labels).std_error for _ in range(200)]
    assert error == pytest.approx(np.mean(broken), rel=0.03)
    few = auc_interval([0.3] * 7, [1, 1, 1, 0, 0, 0, 0])
    assert (few.low, few.high) == (pytest.approx(0.038, abs=1e-3), pytest.approx(0.962, abs=1e-3))
    one = auc_interval([0.3] * 2, [1, 0])
    assert (one.low, one.high) == (0.0, 1.0)


@pytest.mark.parametrize("one_is_positive", [True, False])
def test_one_sample_of_a_class_counts_with_the_largest_variance(one_is_positive):
    scores = np.array([0.55, 0.1, 0.2, 0.6, 0.3])
    labels = (np.arange(5) == 0) == one_is_positive
    interval = auc_interval(scores, labels)
    others = np.array([1, 1, 0, 1]).var(ddof=1) / 4
    assert interval.std_error == pytest.approx(math.sqrt(0.25 + others))
    assert interval.value == (0.75 if one_is_positive else 0.25)


@pytest.mark.parametrize("function", [auc, auc_interval])
@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([0.1, np.nan, np.nan], [0, 1, 0], r"scores with 2 NaN, the first at index 1: .* diverged"),
        ([[0.1, 1], [0, np.nan]], [[0, 1], [1, 0]], r"scores with 1 NaN, .* index \(1, 1\)"),
        (torch.tensor([0.1, math.nan]).bfloat16(), [0, 1], r"scores with 1 NaN"),
        ([0.1, 0.2], [0, np.nan], r"labels with 1 NaN, the first at index 1: .*drop the samples"),
        ([0.1, 0.2], [1, 1], r"labels with 2 positives and 0 negatives: expected at least one of"),
        ([0.1, 0.2], [-1, -1], r"labels with 0 positives and 2 negatives"),
        ([], [], r"shape \[0\] are empty: expected at least one positive and one negative"),
        ([0.1, 0.2], [0, 1, 1], r"shape \[2\] and labels of shape \[3\]: expected the same shape"),
        ([[0.1], [0.2]], [0, 1], r"\[2, 1\] and labels of shape \[2\]: .* use scores\[:, 0\]"),
        (0.1, 1, r"scores of shape \[\] and labels of shape \[\]: expected"),
        ([0.1, 0.2, 0.3], [0, 1, 2], r"labels with values 0, 1, 2: expected 0/1, -1/\+1 or bool"),
        ([0.1, 0.2, 0.3], [0, 1, -1], r"labels with values -1, 0, 1: expected 0/1, -1/\+1 or bool"),
        ([0.1, 0.2], [0.2, 0.8], r"labels with values 0.2, 0.8: expected"),
        (range(9), range(9), r"labels with values 0, 1, 2, 3, 4, \.\.\.: expected"),
        (["0.1", "0.2"], [0, 1], r"scores of type <U3: expected real numbers; convert"),
        ([0.1, 0.2], ["a", "b"], r"labels of type <U1: expected real numbers"),
        ([0.1, None], [0, 1], r"scores of type object: expected real numbers"),
        ([1j, 2], [0, 1], r"scores of type complex128: expected real numbers"),
        ([[0.1], [0.2, 0.3]], [0, 1], r"scores: expected numbers of shape \[N\] or \[N, C\], got"),
    ],
)
def test_bad_input_is_an_error_that_says_what_was_got(function, scores, labels, message):
    with pytest.raises(ValueError, match=message):
        function(scores, labels)


def test_the_column_with_one_class_is_named():
    with pytest.raises(ValueError, match="labels in column 1 with 2 positives and 0 negatives"):
        auc([[0.1, 0.2], [0.3, 0.4]], [[0, 1], [1, 1]])


def test_interval_of_a_matrix_asks_for_columns():
    with pytest.raises(ValueError, match=r"scores of shape \[2, 2\]: expected \[N\]; call"):
        auc_interval([[0.1, 0.2], [0.3, 0.4]], [[0, 1], [1, 0]])


@pytest.mark.parametrize("level", [0, 1, -0.5, 95])
def test_level_is_a_share(level):
    with pytest.raises(ValueError, match=r"level=.*: expected a number > 0 and < 1; use 0.95"):
        auc_interval([0.1, 0.2], [0, 1], level=level)


def test_misspelt_arguments_are_named():
    with pytest.raises(ValueError, match="did you mean 'level'"):
        auc_interval([0.1, 0.2], [0, 1], levl=0.9)


@SEEDED
@given(values=st.lists(HEAVY_TIES | FLOATS, max_size=60).map(np.sort), parts=st.integers(2, 70))
def test_less_than_a_part_lies_between_cut_points_and_nothing_outside(values, parts):
    cuts = cut_points(values, parts)
    assert len(cuts) <= parts + 2
    assert set(cuts) <= set(values)
    assert np.all(np.diff(cuts) > 0)
    between = bin_counts(values, cuts)[::2]
    assert np.all(between * parts < max(1, len(values)))
    assert between[0] == between[-1] == 0
    if len(values) <= parts:
        assert between.sum() == 0


@SEEDED
@given(
    values=st.lists(HEAVY_TIES).map(np.sort), grid=st.lists(HEAVY_TIES, unique=True).map(np.sort)
)
def test_bin_counts_are_those_of_a_plain_loop(values, grid):
    edges = [-math.inf, *grid, math.inf]
    expected = [sum(edges[0] < v < edges[1] for v in values)]
    for low, high in pairwise(edges[1:]):
        expected += [sum(v == low for v in values), sum(low < v < high for v in values)]
    assert bin_counts(values, grid).tolist() == expected


@SEEDED
@given(tolerance=st.floats(1e-12, 0.5, exclude_max=True))
def test_parts_are_the_fewest_that_keep_the_tolerance(tolerance):
    parts = parts_for(tolerance)
    assert Fraction(1, 2 * parts) <= Fraction(tolerance) < Fraction(1, 2 * (parts - 1))


def binned(scores, labels, tolerance, level=0.95):
    classes, parts = sorted_classes(scores, labels), parts_for(tolerance)
    grid = np.unique(np.concatenate([cut_points(values, parts) for values in classes]))
    return binned_interval(*(bin_counts(values, grid) for values in classes), level)


@SEEDED
@given(
    rows=samples(HEAVY_TIES) | samples(INTEGERS) | samples(FLOATS),
    tolerance=st.floats(0.005, 0.499),
)
def test_binned_auc_is_within_its_bound_and_its_interval_holds_the_exact_one(rows, tolerance):
    scores, labels = zip(*rows, strict=True)
    exact, result = auc_interval(scores, labels), binned(scores, labels, tolerance)
    assert abs(result.value - exact.value) <= result.bound + 1e-15
    assert result.bound <= tolerance
    assert result.low <= exact.low + 1e-12
    assert result.high >= exact.high - 1e-12
    ups, downs = sum(labels), len(labels) - sum(labels)
    slack = tolerance * math.hypot(*(1 / math.sqrt(n - 1) for n in (ups, downs) if n > 1))
    assert abs(result.std_error - exact.std_error) <= slack + 1e-12


@SEEDED
@given(rows=samples(HEAVY_TIES) | samples(FLOATS))
def test_binned_auc_is_exact_if_one_class_has_few_samples(rows):
    scores, labels = zip(*rows, strict=True)
    few = min(sum(labels), len(labels) - sum(labels))
    result = binned(scores, labels, tolerance=1 / (2 * max(few, 2)))
    assert result == pytest.approx(auc_interval(scores, labels), abs=1e-12)
    assert result.value == auc(scores, labels)
    assert result.bound == 0


@pytest.mark.parametrize("sign", [1, -1, 0])
def test_binned_auc_of_separate_classes_or_all_ties_is_exact(sign):
    rng = np.random.default_rng(0)
    labels = rng.random(5000) < 0.3
    scores = sign * (labels + rng.random(5000))
    assert binned(scores, labels, tolerance=0.1) == auc_interval(scores, labels)


def test_the_bound_is_reached_where_the_classes_are_in_order_within_a_bin():
    scores, labels = np.arange(8), np.arange(8) >= 4
    counts = [bin_counts(values, np.array([0, 7])) for values in sorted_classes(scores, labels)]
    result = binned_interval(*counts, 0.95)
    assert result.bound == 3 * 3 / 2 / 16
    assert auc(scores, labels) - result.value == result.bound


@pytest.mark.parametrize("first", [0, 1])
def test_the_binned_interval_holds_the_exact_one_where_the_error_is_all_that_counts(first):
    """Between cut points come all of one class before the other; at a level near 0."""
    tenth = np.repeat([0, 1, 0, 1], [199, 199, 1, 1]) ^ first
    scores, labels = np.arange(4000), np.tile(tenth, 10)
    exact = auc_interval(scores, labels, level=0.01)
    result = binned(scores, labels, tolerance=0.05, level=0.01)
    assert abs(result.value - exact.value) > 0.9 * result.bound > 0.04
    assert 0 < result.low <= exact.low < exact.high <= result.high < 1


def test_counts_of_more_pairs_than_int64_holds_do_not_overflow():
    many = 10**10
    result = binned_interval(np.array([0, 0, 0, many, 0]), np.array([0, many, 0, 0, 0]), 0.95)
    assert result.value == 1.0
    half = binned_interval(np.array([0, many, 0, many, 0]), np.array([0, many, 0, many, 0]), 0.95)
    assert half.value == 0.5


def test_classes_are_sorted_and_keep_their_numbers():
    ups, downs = sorted_classes(torch.tensor([2.5, -math.inf, 1.0]).bfloat16(), [1, 0, 1])
    assert ups.tolist() == [1.0, 2.5]
    assert downs.tolist() == [-math.inf]
    assert [len(values) for values in sorted_classes([], [])] == [0, 0]
    assert sorted_classes(np.array([2**60 + 1, 2**60]), [1, 1])[0].tolist() == [2**60, 2**60 + 1]
    with pytest.raises(ValueError, match="uint64: expected values that int64 holds exactly"):
        sorted_classes(np.array([2**63], dtype=np.uint64), [1])
    with pytest.raises(ValueError, match=r"scores of shape \[1, 1\]: expected \[N\]"):
        sorted_classes([[0.1]], [[1]])


@pytest.mark.parametrize("tolerance", [0, 0.5, -1, math.nan, "0.1"])
def test_tolerance_is_between_0_and_a_half(tolerance):
    with pytest.raises(ValueError, match=r"tolerance=.*: expected a number > 0 and < 0.5; use for"):
        parts_for(tolerance)


def test_the_package_names_everything_and_needs_no_torch_for_it():
    code = (
        "import sys, codauc.metrics as metrics\n"
        "assert 'torch' not in sys.modules\n"
        "assert all(getattr(metrics, name) for name in metrics.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
