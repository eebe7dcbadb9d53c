"""AUC, exact with ties, and its confidence interval."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from codauc._internal.checks import known_arguments, real
from codauc.metrics.score_classes import Counts, Scores, checked, edges_of, split_classes


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
    values, positive = checked(scores, labels)
    if values.ndim == 1:
        return _auc(*split_classes(values, positive))
    columns = range(values.shape[1])
    return np.array(
        [_auc(*split_classes(values[:, c], positive[:, c], c)) for c in columns], dtype=float
    )


@known_arguments
def auc_interval(scores: Any, labels: Any, level: float = 0.95) -> AUC:
    """The AUC with DeLong's normal confidence interval, cut to [0, 1].

    A placement is the share of the other class that a sample is on the right side of. With S+ and
    S- the sample variances of the placements of the positives and of the negatives,

        std_error^2 = S+/n+ + S-/n-

    - A class with one sample has no S: 1/4 stands for it, the largest variance on [0, 1].
    - If all placements are equal, AUC 0 or 1, std_error is 0, and an interval without width would
      be false comfort. The exact binomial bound stands in its place: n = min(n+, n-) disjoint pairs
      all came out the same, so a pair does so with a chance of at least q = ((1 - level)/2)^(1/n).
      The interval is [q, 1] for AUC = 1 and [0, 1-q] for 0.
    - If every score is tied, AUC 1/2, std_error is 0 too, and the scores tell nothing of any pair.
      The interval is that of ties broken by chance, whose placements are uniform, with the variance
      (n+ + n- + 1)/(12 n+ n-): as of any scores without information, however little they differ.

    Scores and labels have shape [N]; call it once for each column of [N, C].

    >>> interval = auc_interval([0.1, 0.4, 0.35, 0.8, 0.7, 0.2], [0, 0, 1, 1, 1, 0])
    >>> [round(number, 3) for number in interval]
    [0.889, 0.581, 1.0, 0.157, 0.0]
    >>> round(auc_interval([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1]).low, 3)  # 0.025 ** (1 / 2)
    0.158
    """
    level = share(level)
    values, positive = checked(scores, labels, columns=False)
    return sorted_interval(*split_classes(values, positive), level)


def sorted_interval(ups: Scores, downs: Scores, level: float) -> AUC:
    """`auc_interval` of sorted positives and negatives, at least one of each."""
    few, many = sorted((ups, downs), key=len)
    ends, left, right = _places(few, many)
    counts, n = np.diff(ends, prepend=0), len(many)
    value = _won(counts, left, right, few is ups, 2 * len(few) * n)
    # all of the few are at one place: below all of the many, above all, or tied with all
    if left[0] == left[-1] in (0, n) and right[0] == right[-1] in (0, n):
        if value == 0.5:
            return tied_interval(len(few), n, level)
        return binomial_interval(value, len(few), level)
    # a negative's wins are what its placement lacks to 1, and vary just as much
    mean = value if few is ups else 1 - value
    total = squares(counts, left + right, 2 * n, mean)
    spread = variance(total, len(few)) / len(few)
    # the same for the many: those below all of the few, those tied with some, those above
    total = int(left[0]) * (1 - mean) ** 2
    total += squares(right - left, 2 * ends - counts, 2 * len(few), 1 - mean)
    right[:-1] -= left[1:]
    right[-1] -= n
    total += squares(-right, ends, len(few), 1 - mean)
    spread += variance(total, n) / n
    return normal_interval(value, math.sqrt(spread), level)


def _auc(ups: Scores, downs: Scores) -> float:
    few, many = sorted((ups, downs), key=len)
    ends, left, right = _places(few, many)
    return _won(np.diff(ends, prepend=0), left, right, few is ups, 2 * len(few) * len(many))


def _places(few: Scores, many: Scores) -> tuple[Counts, Counts, Counts]:
    """For each distinct one of `few`: #{few up to it}, #{many below it} and #{many up to it}.

    Both are sorted. Only the smaller class is searched for; that places the larger too.
    """
    is_last = np.ones(len(few), bool)
    np.not_equal(few[1:], few[:-1], out=is_last[:-1])
    last = is_last.nonzero()[0]
    left, right = edges_of(many, few[last])
    last += 1
    return last, left, right


def _won(counts: Counts, left: Counts, right: Counts, ups: bool, doubled_pairs: int) -> float:
    """The AUC from the `_places` of the smaller class, which are the `ups` or not."""
    wins = int(np.dot(counts, left)) + int(np.dot(counts, right))
    return (wins if ups else doubled_pairs - wins) / doubled_pairs


def share(level: float) -> float:
    """`level` as a float between 0 and 1."""
    return real("level", level, above=0, below=1, remedy="use 0.95 for a 95% interval")


def normal_interval(
    value: float, error: float, level: float, bound: float = 0.0, slack: float = 0.0
) -> AUC:
    """DeLong's, cut to [0, 1], for a value off by `bound` and a standard error off by `slack`."""
    reach = NormalDist().inv_cdf((1 + level) / 2) * (error + slack) + bound
    return AUC(value, max(0.0, value - reach), min(1.0, value + reach), error, bound)


def binomial_interval(value: float, pairs: int, level: float) -> AUC:
    """Where all of `pairs` disjoint pairs came out the same."""
    q = ((1 - level) / 2) ** (1 / pairs)
    return AUC(value, value * q, 1 - (1 - value) * q, 0.0)


def tied_interval(positives: float, negatives: float, level: float) -> AUC:
    """Where all scores are equal: that of scores without information (Mann and Whitney's)."""
    variance = (positives + negatives + 1) / (12 * positives * negatives)
    return normal_interval(0.5, math.sqrt(variance), level)._replace(std_error=0.0)


def squares(counts: Counts, wins: Counts, scale: int, mean: float) -> float:
    """The sum of squares about `mean` of placements `wins / scale` that occur `counts` times."""
    placements = wins / scale
    placements -= mean
    placements *= placements
    return float(np.dot(counts, placements))


def variance(total: float, n: int) -> float:
    """The sample variance of n placements from their sum of squares; 1/4 if there is only one."""
    return 0.25 if n == 1 else total / (n - 1)
