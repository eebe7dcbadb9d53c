"""DeLong's confidence interval of an AUC, from the squares of placements."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from codauc._internal.checks import real
from codauc.metrics.score_classes import Counts


class AUC(NamedTuple):
    """An AUC with its confidence interval and DeLong's standard error.

    `value` is off by at most `bound`; 0 means that it is exact.
    """

    value: float
    low: float
    high: float
    std_error: float
    bound: float = 0.0


def share(level: float) -> float:
    """`level` as a float between 0 and 1.

    >>> share(0.95)
    0.95
    """
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


def squares(counts: Counts, wins: Counts, scale: int, mean: float) -> float:
    """The sum of squares about `mean` of placements `wins / scale` that occur `counts` times."""
    placements = wins / scale
    placements -= mean
    placements *= placements
    return float(np.dot(counts, placements))


def variance(total: float, n: int) -> float:
    """The sample variance of n placements from their sum of squares; 1/4 if there is only one."""
    return 0.25 if n == 1 else total / (n - 1)
