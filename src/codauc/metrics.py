"""AUC, exact with ties, and its confidence interval.

Scores and labels are lists, numpy arrays or torch tensors. Labels are 0/1, -1/+1 or bool.

`cut_points`, `bin_counts` and `binned_interval` give the AUC to a chosen tolerance from counts that
add up over any split of the data.
"""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from operator import mul
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codauc.checks import known_arguments, real

Scores = NDArray[Any]
Counts = NDArray[np.int64]
_BLOCK = 2048  # scores looked up at a time


class AUC(NamedTuple):
    """An AUC with its confidence interval and DeLong's standard error.

    `value` is off by at most `bound`; 0 means that it is exact.
    """

    value: float
    low: float
    high: float
    std_error: float
    bound: float = 0.0


@known_arguments
def auc(scores: Any, labels: Any) -> Any:
    """The share of pairs of a positive and a negative that are in the right order; ties count 1/2.

        AUC = ( #{h+ > h-} + #{h+ = h-}/2 ) / (n+ n-)

    h is `scores`. Pairs are counted in integers and divided once. Shape [N] gives a float; shape
    [N, C], C tasks, an array of C values. Infinite scores are in order; NaN is an error.

    >>> auc([0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1])
    0.875
    """
    values, positive = _checked(scores, labels)
    if values.ndim == 1:
        return _auc(*_split(values, positive))
    columns = range(values.shape[1])
    return np.array([_auc(*_split(values[:, c], positive[:, c], c)) for c in columns], dtype=float)


@known_arguments
def auc_interval(scores: Any, labels: Any, level: float = 0.95) -> AUC:
    """The AUC with DeLong's normal confidence interval, cut to [0, 1].

    A placement is the share of the other class that a sample is on the right side of. With S+ and
    S- the sample variances of the placements of the positives and of the negatives,

        std_error^2 = S+/n+ + S-/n-

    - A class with one sample has no S: 1/4 stands for it, the largest variance on [0, 1].
    - If all placements are equal (AUC 0 or 1, or 1/2 with every score tied) std_error is 0, and an
      interval without width would be false comfort. The exact binomial bound stands in its place:
      n = min(n+, n-) disjoint pairs all came out the same, so a pair does so with a chance of at
      least q = ((1 - level)/2)^(1/n). The interval is [q, 1] for AUC = 1, [0, 1-q] for 0, and
      [q/2, 1 - q/2] where all are tied.

    Scores and labels have shape [N]; call it once for each column of [N, C].

    >>> interval = auc_interval([0.1, 0.4, 0.35, 0.8, 0.7, 0.2], [0, 0, 1, 1, 1, 0])
    >>> [round(number, 3) for number in interval]
    [0.889, 0.581, 1.0, 0.157, 0.0]
    >>> round(auc_interval([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1]).low, 3)  # 0.025 ** (1 / 2)
    0.158
    """
    level = share(level)
    values, positive = _checked(scores, labels)
    _refuse_columns(values)
    return sorted_interval(*_split(values, positive), level)


def share(level: float) -> float:
    """`level` as a float between 0 and 1.

    >>> share(0.95)
    0.95
    """
    return real("level", level, above=0, below=1, remedy="use 0.95 for a 95% interval")


def sorted_classes(scores: Any, labels: Any) -> tuple[Scores, Scores]:
    """The sorted scores of the positives and of the negatives, as int64 or float64, none changed.

    Either may be empty: it is a worker's part of the data.

    >>> sorted_classes([3, 1, 2], [1, 1, 0])
    (array([1, 3]), array([2]))
    """
    values, positive = _checked(scores, labels, empty=True)
    _refuse_columns(values)
    values = _widened(values)
    return _classes(values, positive)


def sorted_interval(ups: Scores, downs: Scores, level: float) -> AUC:
    """`auc_interval` of sorted positives and negatives, at least one of each.

    >>> sorted_interval(np.array([2, 4]), np.array([1, 3]), 0.95).value
    0.75
    """
    few, many = sorted((ups, downs), key=len)
    ends, left, right = _places(few, many)
    counts, n = _steps(ends), len(many)
    value = _won(counts, left, right, few is ups, 2 * len(few) * n)
    # all of the few are at one place: below all of the many, above all, or tied with all
    if left[0] == left[-1] in (0, n) and right[0] == right[-1] in (0, n):
        return _binomial_interval(value, len(few), level)
    # a negative's wins are what its placement lacks to 1, and vary just as much
    mean = value if few is ups else 1 - value
    squares = _squares(counts, left + right, 2 * n, mean)
    spread = _variance(squares, len(few)) / len(few)
    # the same for the many: those below all of the few, those tied with some, those above
    squares = int(left[0]) * (1 - mean) ** 2
    squares += _squares(right - left, 2 * ends - counts, 2 * len(few), 1 - mean)
    right[:-1] -= left[1:]
    right[-1] -= n
    squares += _squares(-right, ends, len(few), 1 - mean)
    spread += _variance(squares, n) / n
    return _normal_interval(value, math.sqrt(spread), level)


def parts_for(tolerance: float) -> int:
    """The least m with 1/(2m) <= tolerance, for `cut_points`.

    >>> parts_for(1e-4), parts_for(0.3)
    (5000, 2)
    """
    remedy = "use for example 1e-4, or None for the exact AUC"
    tolerance = real("tolerance", tolerance, above=0, below=0.5, remedy=remedy)
    # in fractions, since a rounded quotient could miss the tolerance; no set has maxsize samples
    return min(math.ceil(1 / (2 * Fraction(tolerance))), sys.maxsize)


def cut_points(values: Scores, parts: int) -> Scores:
    """At most parts + 2 of the sorted `values`, less than 1/parts of them between two neighbours.

    None lies outside the first and the last. Every g-th of the n values is taken, g = ceil(n/parts)
    and g - 1 < n/parts; up to `parts` values are all taken. The smallest and the largest are, too,
    so that two classes without overlap have cut points to tell them apart.

    >>> cut_points(np.arange(10), parts=3)
    array([0, 3, 7, 9])
    """
    step = max(1, -(-len(values) // parts))
    return np.unique(np.concatenate([values[:1], values[step - 1 :: step], values[-1:]]))


def bin_counts(values: Scores, grid: Scores) -> Counts:
    """How many of the sorted `values` are below, at, between, at, ..., above the points of `grid`.

    The grid is sorted without repetition. Even entries count open bins, odd ones points of the
    grid. The counts of parts of the data add up to those of the whole.

    >>> bin_counts(np.array([1, 2, 2, 3, 5, 7]), grid=np.array([2, 5]))
    array([1, 2, 1, 1, 1])
    """
    left, right = _edges(values, np.asarray(grid))
    edges = np.append(np.stack([left, right], axis=1), len(values))
    return _steps(edges)


def binned_interval(ups: Counts, downs: Counts, level: float) -> AUC:
    """The AUC and an interval that holds DeLong's, from the `bin_counts` of the two classes.

    Only the order of pairs within an open bin is unknown. They count 1/2, so that the value is off
    by at most

        bound = 1/2 sum_b P_b N_b / (n+ n-)

    over the open bins b, with P_b positives and N_b negatives. If the grid holds the
    `cut_points(..., m)` of every worker's positives, b has less than 1/m of each worker's, hence of
    all: P_b < n+/m, and bound < 1/(2m) sum_b N_b / n- <= 1/(2m). With those of the negatives it
    also holds that N_b < n-/m.

    A placement is off by at most N_b/(2 n-) for a positive and P_b/(2 n+) for a negative. A
    standard deviation changes by no more than the root mean square of what its terms change by,
    which limits the error of std_error to sqrt(1/(n+ - 1) + 1/(n- - 1))/(2m); the interval is
    widened by what this is for the given counts, and by `bound`.

    >>> ups, downs = bin_counts(np.array([2, 5, 9]), [4]), bin_counts(np.array([1, 4, 6]), [4])
    >>> result = binned_interval(ups, downs, 0.95)  # not known: 2 > 1, 5 > 6, 9 > 6
    >>> round(result.value, 3), round(result.bound, 3)
    (0.611, 0.167)
    """
    n_ups, n_downs = int(ups.sum()), int(downs.sum())
    wins, losses = _binned_wins(downs), _binned_wins(ups)
    value = _dot(ups, wins) / (2 * n_ups * n_downs)
    bound = _dot(ups[::2], downs[::2]) / (2 * n_ups * n_downs)
    if bound == 0 and np.ptp(wins[ups > 0]) == 0 and np.ptp(losses[downs > 0]) == 0:
        return _binomial_interval(value, min(n_ups, n_downs), level)
    spread_ups = _variance(_squares(ups, wins, 2 * n_downs, value), n_ups) / n_ups
    spread_downs = _variance(_squares(downs, losses, 2 * n_ups, 1 - value), n_downs) / n_downs
    error = math.sqrt(spread_ups + spread_downs)
    slack = math.hypot(
        _slack(ups[::2], downs[::2], n_ups, n_downs), _slack(downs[::2], ups[::2], n_downs, n_ups)
    )
    return _normal_interval(value, error, level, bound, slack)


def _binomial_interval(value: float, pairs: int, level: float) -> AUC:
    """Where all of `pairs` disjoint pairs came out the same."""
    q = ((1 - level) / 2) ** (1 / pairs)
    return AUC(value, value * q, 1 - (1 - value) * q, 0.0)


def _normal_interval(
    value: float, error: float, level: float, bound: float = 0.0, slack: float = 0.0
) -> AUC:
    """DeLong's, cut to [0, 1], for a value off by `bound` and a standard error off by `slack`."""
    reach = NormalDist().inv_cdf((1 + level) / 2) * (error + slack) + bound
    return AUC(value, max(0.0, value - reach), min(1.0, value + reach), error, bound)


def _auc(ups: Scores, downs: Scores) -> float:
    few, many = sorted((ups, downs), key=len)
    ends, left, right = _places(few, many)
    return _won(_steps(ends), left, right, few is ups, 2 * len(few) * len(many))


def _places(few: Scores, many: Scores) -> tuple[Counts, Counts, Counts]:
    """For each distinct one of `few`: #{few up to it}, #{many below it} and #{many up to it}.

    Both are sorted. Only the smaller class is looked up: that tells the places of the larger too.
    """
    is_last = np.ones(len(few), bool)
    np.not_equal(few[1:], few[:-1], out=is_last[:-1])
    last = is_last.nonzero()[0]
    left, right = _edges(many, few[last])
    last += 1
    return last, left, right


def _edges(values: Scores, grid: Scores) -> tuple[Counts, Counts]:
    """#{values below} and #{values up to} each point of the grid; both are sorted."""
    left = _below(values, grid)
    right = left.copy()
    if len(values):
        # a score without an equal needs no second look
        tied = (values.take(left, mode="clip") == grid).nonzero()[0]
        right[tied] = values.searchsorted(grid[tied], side="right")
    return left, right


def _below(values: Scores, grid: Scores) -> Counts:
    """#{values below} each point of the grid; both are sorted."""
    found, low = np.empty(len(grid), np.int64), 0
    # in blocks, since a search through a few values stays in the cache
    for start in range(0, len(grid), _BLOCK):
        block, out = grid[start : start + _BLOCK], found[start : start + _BLOCK]
        high = low + int(values[low:].searchsorted(block[-1]))
        np.add(values[low:high].searchsorted(block), low, out=out)
        low = high
    return found


def _won(counts: Counts, left: Counts, right: Counts, ups: bool, doubled_pairs: int) -> float:
    """The AUC from the `_places` of the smaller class, which are the `ups` or not."""
    wins = int(np.dot(counts, left)) + int(np.dot(counts, right))
    return (wins if ups else doubled_pairs - wins) / doubled_pairs


def _steps(edges: Counts) -> Counts:
    """The first edge, and what each of the others adds to the one before."""
    steps = edges.copy()
    steps[1:] -= edges[:-1]
    return steps


def _binned_wins(others: Counts) -> Counts:
    """For a sample in each bin, 2 #{others in lower bins} + #{others in its own}."""
    return 2 * np.cumsum(others) - others


def _dot(a: Counts, b: Counts) -> int:
    """The sum of products in Python's integers: 10^10 samples have more pairs than int64 holds."""
    return sum(map(mul, a.tolist(), b.tolist()))


def _squares(counts: Counts, wins: Counts, scale: int, mean: float) -> float:
    """The sum of squares about `mean` of placements `wins / scale` that occur `counts` times."""
    placements = wins / scale
    placements -= mean
    placements *= placements
    return float(np.dot(counts, placements))


def _variance(squares: float, n: int) -> float:
    """The sample variance of n placements; 1/4 if there is only one."""
    return 0.25 if n == 1 else squares / (n - 1)


def _slack(mine: Counts, others: Counts, n: int, n_others: int) -> float:
    """The most by which the order within open bins changes this class' part of std_error."""
    if n == 1:
        return 0.0
    return math.sqrt(np.dot(mine, (others / (2 * n_others)) ** 2) / (n - 1) / n)


def _split(
    values: Scores, positive: NDArray[np.bool_], column: int | None = None
) -> tuple[Scores, Scores]:
    """The sorted scores of the positives and of the negatives, at least one of each."""
    ups, downs = _classes(values, positive)
    require_both(len(ups), len(downs), "" if column is None else f" in column {column}")
    return ups, downs


def _classes(values: Scores, positive: NDArray[np.bool_]) -> tuple[Scores, Scores]:
    """The sorted scores of the positives and of the negatives."""
    # for classes of equal size compress takes a third of the time of a mask as an index
    ups, downs = values.compress(positive), values.compress(~positive)
    ups.sort()
    downs.sort()
    return ups, downs


def require_both(positives: int, negatives: int, where: str = "") -> None:
    """Raise unless there is at least one of each class.

    >>> require_both(1, 2)
    """
    if positives == 0 or negatives == 0:
        raise ValueError(
            f"labels{where} with {positives} positives and {negatives} negatives: "
            "expected at least one of each; AUC compares the two classes, so evaluate on more data."
        )


def _checked(scores: Any, labels: Any, *, empty: bool = False) -> tuple[Scores, NDArray[np.bool_]]:
    """Scores without NaN and the mask of the positives, of one shape [N] or [N, C]."""
    values, marks = _array("scores", scores), _array("labels", labels)
    if values.shape != marks.shape or values.ndim not in (1, 2):
        raise ValueError(
            f"scores of shape {list(values.shape)} and labels of shape {list(marks.shape)}: "
            "expected the same shape, [N] or [N, C]; for scores of shape [N, 1] use scores[:, 0]."
        )
    if values.size == 0 and not empty:
        raise ValueError(
            f"scores and labels of shape {list(values.shape)} are empty: "
            "expected at least one positive and one negative; check what was selected."
        )
    _refuse_nan("scores", values, "look at the model's output, it may have diverged")
    _refuse_nan("labels", marks, "drop the samples without a label")
    return values, _positives(marks)


def _refuse_columns(values: Scores) -> None:
    if values.ndim != 1:
        raise ValueError(
            f"scores of shape {list(values.shape)}: expected [N]; call it once for each column."
        )


def _widened(values: Scores) -> Scores:
    """`values` as int64 or float64, the same numbers."""
    with np.errstate(over="ignore"):
        wide = values.astype(np.float64 if values.dtype.kind == "f" else np.int64)
    if (wide != values).any():
        raise ValueError(
            f"scores of type {values.dtype}: expected values that {wide.dtype} holds exactly; "
            f"convert them, for example with .astype({wide.dtype.name!r})."
        )
    return wide


def _array(name: str, values: Any) -> Scores:
    """`values` as an array of real numbers, none of them changed, so that ties stay ties."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().resolve_neg()
        try:
            values = values.numpy()
        except TypeError:  # numpy has no bfloat16, and float64 holds every value of the small types
            values = values.double().numpy()
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name}: expected numbers of shape [N] or [N, C], got {type(values).__name__} that "
            f"numpy cannot read ({error}); give an array, a tensor or a list of numbers."
        ) from error
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} of type {array.dtype}: expected real numbers; convert them, "
            "for example with .astype(float)."
        )
    return array


def _refuse_nan(name: str, values: Scores, remedy: str) -> None:
    # the largest is NaN if any is, and takes no memory to find
    if values.dtype.kind == "f" and np.isnan(values.max(initial=-np.inf)):
        bad = np.isnan(values)
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{name} with {int(bad.sum())} NaN, the first at index "
            f"{first[0] if len(first) == 1 else first}: expected numbers; {remedy}."
        )


def _positives(labels: Scores) -> NDArray[np.bool_]:
    """The mask of the positives in labels 0/1, -1/+1 or bool."""
    if labels.dtype.kind == "b":
        return labels
    positive: NDArray[np.bool_] = labels == 1
    others = labels.size - np.count_nonzero(positive)
    if not any(np.count_nonzero(labels == negative) == others for negative in (0, -1)):
        found = np.unique(labels)
        shown = ", ".join(f"{value:g}" for value in found[:5]) + (", ..." if found.size > 5 else "")
        raise ValueError(
            f"labels with values {shown}: expected 0/1, -1/+1 or bool; "
            "map the classes to two, for example with labels == positive_class."
        )
    return positive
