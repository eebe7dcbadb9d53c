"""AUC to a chosen tolerance, from counts that add up over any split of the data."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from operator import mul

import numpy as np

from codauc._internal.checks import real
from codauc.metrics.auc_values import (
    AUC,
    binomial_interval,
    normal_interval,
    squares,
    tied_interval,
    variance,
)
from codauc.metrics.score_classes import Counts, Scores, edges_of


def parts_for(tolerance: float) -> int:
    """The least m with 1/(2m) <= tolerance, for `cut_points`."""
    remedy = "use for example 1e-4, or None for the exact AUC"
    tolerance = real("tolerance", tolerance, above=0, below=0.5, remedy=remedy)
    # in fractions, since a rounded quotient could miss the tolerance; no set has maxsize samples
    return min(math.ceil(1 / (2 * Fraction(tolerance))), sys.maxsize)


def cut_points(values: Scores, parts: int) -> Scores:
    """At most parts + 2 of the sorted `values`, less than 1/parts of them between two neighbours.

    None lies outside the first and the last. Every g-th of the n values is taken, g = ceil(n/parts)
    and g - 1 < n/parts; up to `parts` values are all taken. The smallest and the largest are, too,
    so that two classes without overlap have cut points to tell them apart.
    """
    step = max(1, -(-len(values) // parts))
    return np.unique(np.concatenate([values[:1], values[step - 1 :: step], values[-1:]]))


def bin_counts(values: Scores, grid: Scores) -> Counts:
    """How many of the sorted `values` are below, at, between, at, ..., above the points of `grid`.

    The grid is sorted without repetition. Even entries count open bins, odd ones points of the
    grid. The counts of parts of the data add up to those of the whole.
    """
    left, right = edges_of(values, np.asarray(grid))
    edges = np.append(np.stack([left, right], axis=1), len(values))
    return np.diff(edges, prepend=0)


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
    """
    n_ups, n_downs = int(ups.sum()), int(downs.sum())
    wins, losses = _binned_wins(downs), _binned_wins(ups)
    value = _dot(ups, wins) / (2 * n_ups * n_downs)
    bound = _dot(ups[::2], downs[::2]) / (2 * n_ups * n_downs)
    if bound == 0 and np.ptp(wins[ups > 0]) == 0 and np.ptp(losses[downs > 0]) == 0:
        if value == 0.5:
            return tied_interval(n_ups, n_downs, level)
        return binomial_interval(value, min(n_ups, n_downs), level)
    spread_ups = variance(squares(ups, wins, 2 * n_downs, value), n_ups) / n_ups
    spread_downs = variance(squares(downs, losses, 2 * n_ups, 1 - value), n_downs) / n_downs
    error = math.sqrt(spread_ups + spread_downs)
    slack = math.hypot(
        _slack(ups[::2], downs[::2], n_ups, n_downs), _slack(downs[::2], ups[::2], n_downs, n_ups)
    )
    return normal_interval(value, error, level, bound, slack)


def _binned_wins(others: Counts) -> Counts:
    """For a sample in each bin, 2 #{others in lower bins} + #{others in its own}."""
    return 2 * np.cumsum(others) - others


def _dot(a: Counts, b: Counts) -> int:
    """The sum of products in Python's integers: 10^10 samples have more pairs than int64 holds."""
    return sum(map(mul, a.tolist(), b.tolist()))


def _slack(mine: Counts, others: Counts, n: int, n_others: int) -> float:
    """The most by which the order within open bins changes this class' part of std_error."""
    if n == 1:
        return 0.0
    return math.sqrt(np.dot(mine, (others / (2 * n_others)) ** 2) / (n - 1) / n)
