"""The difference of two AUC on the same samples, with its interval."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codauc.metrics.score_classes import require_both, sorted_classes

Floats = NDArray[np.float64]
_TAIL = 0.025
_Z = 1.959963984540054


class Difference(NamedTuple):
    """AUC of the first minus AUC of the second, its 95% interval and standard error."""

    value: float
    low: float
    high: float
    std_error: float


def paired_auc_difference(scores_a: Any, scores_b: Any, labels: Any) -> Difference:
    """AUC(a) - AUC(b) with DeLong's paired 95% interval, in O(n log n).

    A placement is the share of the other class that a sample is on the right side of. With D the
    differences of a's and b's placements, and S+ and S- the sample variances of D over the
    positives and over the negatives,

        value = mean of D over the positives,    std_error^2 = S+/n+ + S-/n-

    The same samples are in both, so what makes both AUC high or low cancels: the interval is
    narrower than two separate ones suggest.

    - A class with one sample has no S: 1 stands for it, the largest variance on [-1, 1].
    - If all of D are equal, std_error is 0 and an interval without width would be false comfort.
      As if n = min(n+, n-) disjoint pairs had all come out with that difference, a pair does so
      with a chance of at least q = 0.025^(1/n): the interval is value * q -+ (1 - q).

    >>> a, b = [0.1, 0.4, 0.35, 0.8, 0.7, 0.2], [0.3, 0.4, 0.2, 0.8, 0.7, 0.1]
    >>> [round(x, 3) for x in paired_auc_difference(a, b, [0, 0, 1, 1, 1, 0])]
    [0.111, -0.197, 0.419, 0.157]
    """
    ups_a, downs_a = _placements(scores_a, labels)
    ups_b, downs_b = _placements(scores_b, labels)
    ups, downs = ups_a - ups_b, downs_a - downs_b
    value = float(np.mean(ups))
    if np.ptp(ups) < 1e-12 and np.ptp(downs) < 1e-12:
        q = _TAIL ** (1 / min(len(ups), len(downs)))
        return Difference(value, value * q - (1 - q), value * q + (1 - q), 0.0)
    error = math.sqrt(_variance(ups) / len(ups) + _variance(downs) / len(downs))
    reach = _Z * error
    return Difference(value, max(-1.0, value - reach), min(1.0, value + reach), error)


def _placements(scores: Any, labels: Any) -> tuple[Floats, Floats]:
    """Placements of the positives and of the negatives, in the order of the samples."""
    ups, downs = sorted_classes(scores, labels)
    require_both(len(ups), len(downs))
    positive = np.asarray(labels) == 1
    values = np.asarray(scores)
    mine, others = values[positive], values[~positive]
    return _below(mine, downs) / (2 * len(downs)), 1 - _below(others, ups) / (2 * len(ups))


def _below(values: NDArray[Any], ordered: NDArray[Any]) -> NDArray[Any]:
    """For each value, 2 #{ordered below} + #{ordered equal}."""
    left = np.searchsorted(ordered, values, side="left")
    return left + np.searchsorted(ordered, values, side="right")


def _variance(differences: Floats) -> float:
    return 1.0 if len(differences) == 1 else float(np.var(differences, ddof=1))
