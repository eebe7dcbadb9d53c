"""AUC of samples that have weights, and its interval also where samples are of few groups."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codauc._internal.checks import known_arguments
from codauc.metrics.auc_values import (
    AUC,
    auc_interval,
    binomial_interval,
    normal_interval,
    share,
    tied_interval,
)
from codauc.metrics.score_classes import checked, require_both

Floats = NDArray[np.float64]


@known_arguments
def weighted_auc_interval(
    scores: Any, labels: Any, weights: Any = None, groups: Any = None, level: float = 0.95
) -> AUC:
    """The AUC in which each sample counts as often as its weight says, with its interval.

        AUC = sum over pairs of w+ w- ( [h+ > h-] + [h+ = h-]/2 ) / ( sum of w+  sum of w- )

    h is `scores`. So a sample of weight 2 counts as two, and one of weight 0 is left out. With V
    the weighted share of the other class that a sample is on the right side of, its influence on
    the AUC is d = w (V - AUC) / (sum of its class's w), and

        std_error^2 = sum of d^2 n/(n-1),    n = (sum of w)^2 / (sum of w^2) of each class

    n is the effective size: a weight makes a sample more important, but not into several
    independent ones. Samples of one of the `groups` (one value per sample), such as a patient,
    depend on each other. Then d and w are the sums of a group, n is the smaller of the two
    classes' sizes, and the interval is Student's with n - 1 degrees of freedom: groups may be few.
    Without weights and groups this is `auc_interval`, DeLong's.

    >>> import codauc
    >>> scores, labels = [0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]
    >>> weighted_auc_interval(scores, labels, weights=[1, 1, 2, 1]).value == codauc.auc(
    ...     [0.1, 0.4, 0.35, 0.35, 0.8], [0, 0, 1, 1, 1])
    True
    >>> weighted_auc_interval(scores, labels, groups=["a", "a", "b", "b"]).value
    0.75
    """
    if weights is None and groups is None:
        return auc_interval(scores, labels, level)
    level = share(level)
    values, positive = checked(scores, labels, columns=False)
    sizes = np.ones(len(values)) if weights is None else _checked_weights(weights, len(values))
    used = sizes > 0
    values, positive, sizes = values[used], positive[used], sizes[used]
    require_both(int(positive.sum()), int((~positive).sum()))
    found = _placed(values, positive, sizes)
    if groups is None:
        return _interval(found, positive, sizes, None, level)
    which = np.unique(np.asarray(groups), return_inverse=True)[1].ravel()
    if len(which) != len(used):
        raise ValueError(f"{len(which)} groups for {len(used)} scores: expected one per score.")
    return _interval(found, positive, sizes, which[used], level)


class _Placed(NamedTuple):
    """The AUC and each sample's placement."""

    value: float
    placements: Floats


def _checked_weights(weights: Any, count: int) -> Floats:
    sizes = np.asarray(weights, np.float64)
    if sizes.shape != (count,) or not np.isfinite(sizes).all() or (sizes < 0).any():
        raise ValueError(
            f"weights of shape {list(sizes.shape)} for {count} scores: expected one finite number "
            ">= 0 per score."
        )
    return sizes


def _placed(values: NDArray[Any], positive: NDArray[np.bool_], sizes: Floats) -> _Placed:
    placements = np.empty(len(values))
    for mine in (positive, ~positive):
        order = np.argsort(values[~mine], kind="stable")
        others, heavy = values[~mine][order], sizes[~mine][order]
        below = np.concatenate([[0.0], np.cumsum(heavy)])
        left, right = (np.searchsorted(others, values[mine], side) for side in ("left", "right"))
        part = (below[left] + below[right]) / (2 * below[-1])
        placements[mine] = part if mine is positive else 1 - part
        if mine is positive:  # divided once: exact for whole weights
            wins = float(np.dot(sizes[mine], below[left] + below[right]))
            value = wins / (2 * float(sizes[mine].sum()) * float(below[-1]))
    return _Placed(value, placements)


def _interval(
    found: _Placed,
    positive: NDArray[np.bool_],
    sizes: Floats,
    groups: NDArray[np.int64] | None,
    level: float,
) -> AUC:
    value, placements = found
    classes = (positive, ~positive)
    counts = [_effective(sizes[mask], None if groups is None else groups[mask]) for mask in classes]
    if np.ptp(placements) == 0:
        if abs(value - 0.5) < 1e-12:
            return tied_interval(max(1.0, counts[0]), max(1.0, counts[1]), level)
        return binomial_interval(value, max(1, int(min(counts) + 1e-9)), level)
    influence, spread = np.zeros(len(sizes)), 0.0
    for mask, count in zip(classes, counts, strict=True):
        influence[mask] = sizes[mask] * (placements[mask] - value) / sizes[mask].sum()
        if groups is None:
            spread += _scaled(influence[mask], count)
    if groups is None:
        return normal_interval(value, math.sqrt(spread), level)
    error = math.sqrt(_scaled(np.bincount(groups, influence).astype(np.float64), min(counts)))
    wide = normal_interval(value, error * _longer_tails(min(counts) - 1, level), level)
    return wide._replace(std_error=error)


def _effective(sizes: Floats, groups: NDArray[np.int64] | None) -> float:
    """How many samples, or groups, of a class are as good as independent and equal."""
    sums = sizes if groups is None else np.bincount(groups, sizes)
    return float(sums.sum() ** 2 / (sums**2).sum())


def _scaled(influences: Floats, count: float) -> float:
    """The variance from independent influences; the largest there is, if it is only one."""
    if count < 1 + 1e-9:
        return 0.25
    return float((influences**2).sum()) * count / (count - 1)


def _longer_tails(freedom: float, level: float) -> float:
    """Student's t quantile over the normal one (the expansion of Cornish and Fisher)."""
    z, n = NormalDist().inv_cdf((1 + level) / 2), max(freedom, 1.0)
    more = (z**2 + 1) / 4 / n + (5 * z**4 + 16 * z**2 + 3) / 96 / n**2
    return 1 + more + (3 * z**6 + 19 * z**4 + 17 * z**2 - 15) / 384 / n**3
