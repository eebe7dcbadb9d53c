"""More about scores: average precision, and calibration."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_EQUAL = 1e-6  # of their size, by which scores that rounding alone tells apart may differ
_FLAT = 1e-100  # a scale above 0, at which they no longer do


class Calibration(NamedTuple):
    """The log-odds of a positive are `scale * score + shift`; AUC is the same for either."""

    scale: float = 1.0
    shift: float = 0.0

    def log_odds(self, scores: Array) -> Array:
        """Scores as log-odds, in float64.

        >>> Calibration(2.0, 1.0).log_odds(np.array([0.5], np.float32))
        array([2.])
        """
        return self.scale * scores.astype(np.float64) + self.shift


def average_precision(scores: Array, labels: Array, weights: Array | None = None) -> float:
    """The mean, over the positives, of the precision where each is reached; ties count as one step.

    With weights both are weighted.

    >>> round(average_precision(np.array([4, 3, 2, 1.]), np.array([1, 0, 1, 0], bool)), 4)
    0.8333
    """
    positive = labels.astype(bool, copy=False)
    if weights is not None:
        return _weighted_precision(scores, positive, weights)
    ups, downs = np.sort(scores.compress(positive)), np.sort(scores.compress(~positive))
    found = len(ups) - np.searchsorted(ups, ups)
    wrong = len(downs) - np.searchsorted(downs, ups)
    return float((found / (found + wrong)).mean())


def _weighted_precision(scores: Array, positive: Array, weights: Array) -> float:
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)  # of those that are tied
    ups = np.cumsum((weights * positive)[order])[last]
    precision = ups / np.maximum(np.cumsum(weights[order])[last], np.finfo(float).tiny)
    return float(np.dot(np.diff(ups, prepend=0.0), precision) / ups[-1])


def calibrate(scores: Array, labels: Array, weights: Array | None = None) -> Calibration:
    """Platt's: the logistic regression of labels on scores, by Newton's method.

    Labels count as (n+ + 1)/(n+ + 2) and 1/(n- + 2), so that separable scores have an answer. A
    scale that is not positive would turn the order round: then the scores stay as they are. Where
    scores differ by rounding alone every sample has the same log-odds. With weights the regression
    is weighted.

    >>> scores = np.array([-2.0, -1, 0, 1, 2, 3])
    >>> calibrate(scores, scores > 0).scale > 0
    True
    """
    positives = int(labels.sum())
    centre, spread = float(np.mean(scores)), float(np.std(scores)) or 1.0
    z = (np.asarray(scores, np.float64) - centre) / spread
    high, low = (positives + 1) / (positives + 2), 1 / (len(labels) - positives + 2)
    targets = np.where(labels, high, low)
    if len(scores) and np.ptp(scores) <= _EQUAL * np.abs(scores).max():
        share = float(np.average(targets, weights=weights))
        return Calibration(_FLAT, math.log(share / (1 - share)))
    slope, level = _newton(z, targets, weights)
    if slope <= 0:
        return Calibration()
    return Calibration(slope / spread, level - slope * centre / spread)


def _newton(z: Array, targets: Array, weights: Array | None) -> tuple[float, float]:
    """Slope and level of a logistic regression; a little ridge keeps it finite."""
    counts = None if weights is None else weights * (len(z) / weights.sum())
    mean = float(np.average(targets, weights=counts))
    point = np.array([1.0, math.log(mean / (1 - mean))])
    x = np.stack([z, np.ones_like(z)], axis=1)

    def cost(at: Array) -> float:
        odds = x @ at
        each = np.logaddexp(0, odds) - targets * odds
        each = each if counts is None else each * counts
        return float(each.mean() + 1e-6 * at[0] ** 2 / 2)

    now = cost(point)
    for _ in range(100):
        q = 1 / (1 + np.exp(-np.clip(x @ point, -500, 500)))
        slope, bend = q - targets, q * (1 - q)
        if counts is not None:
            slope, bend = slope * counts, bend * counts
        gradient = x.T @ slope / len(z) + np.array([1e-6 * point[0], 0.0])
        hessian = (x * bend[:, None]).T @ x / len(z) + 1e-9 * np.eye(2)
        step, size = np.linalg.solve(hessian, gradient), 1.0
        while size > 1e-8 and cost(point - size * step) > now:
            size /= 2
        point = point - size * step
        before, now = now, cost(point)
        if before - now < 1e-12:
            break
    return float(point[0]), float(point[1])
