"""Curves of a test set: ROC, precision and recall, histograms, thresholds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

Z = 1.959963984540054  # 95% of a normal distribution lie within +-Z
_FEW = 20_000


class Operating(NamedTuple):
    """What thresholds give: `hits[i]` of the `positives` and `alarms[i]` of the `negatives` have a
    score of at least `thresholds[i]`. Thresholds fall, from one above all scores.
    """

    thresholds: Floats
    hits: Counts
    alarms: Counts
    positives: int
    negatives: int

    @property
    def recall(self) -> Floats:
        """The share of the positives that is found: the true positive rate."""
        return np.asarray(self.hits / self.positives)

    @property
    def false_rate(self) -> Floats:
        """The share of the negatives that is found: the false positive rate."""
        return np.asarray(self.alarms / self.negatives)

    @property
    def precision(self) -> Floats:
        """The share of what is found that is positive; 0 where nothing is."""
        return np.asarray(self.hits / np.maximum(self.hits + self.alarms, 1))

    def at(self, index: Any) -> Operating:
        """Some of the thresholds."""
        thresholds, hits, alarms = self.thresholds[index], self.hits[index], self.alarms[index]
        return Operating(thresholds, hits, alarms, self.positives, self.negatives)


def operating(scores: Floats, labels: NDArray[np.bool_]) -> Operating | None:
    """Every threshold that makes a difference; None unless both classes are there.

    NaN scores are left out.

    >>> points = operating(np.array([0.9, 0.7, 0.7, 0.1]), np.array([True, True, False, False]))
    >>> points.hits.tolist(), points.alarms.tolist()
    ([0, 1, 2, 2], [0, 0, 1, 2])
    """
    good = ~np.isnan(scores)
    scores, labels = scores[good], labels[good]
    if labels.all() or not labels.any():
        return None
    order = np.argsort(-scores)
    ordered = scores[order]
    last = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1)
    hits = np.cumsum(labels[order], dtype=np.int64)[last]
    alarms = last + 1 - hits
    curve = (np.append(np.inf, ordered[last]), np.append(0, hits), np.append(0, alarms))
    return Operating(*curve, int(hits[-1]), int(alarms[-1]))


def roc(points: Operating, most: int = 500) -> Operating:
    """At most `most` of the points of the ROC curve, unchanged.

    The ends are among them, and the corners of the curve's convex hull: all if they are at most
    half of `most`, else evenly chosen ones. The rest are evenly spread along the curve.
    """
    if len(points.hits) <= most:
        return points
    corners = hull(points.alarms, points.hits)
    kept = corners[_evenly(len(corners), most // 2)]
    along = points.recall + points.false_rate
    spread = np.searchsorted(along, np.linspace(0, along[-1], most - len(kept)))
    return points.at(np.unique(np.concatenate([kept, spread])))


def recall_curve(points: Operating, most: int = 400) -> Operating:
    """At most `most` points of the precision-recall curve, unchanged; the first has recall > 0.

    Half are evenly spread in recall, half are denser among the first, where precision moves most.
    """
    first = int(np.searchsorted(points.hits, 1))
    points = points.at(np.arange(first, len(points.hits)))
    if len(points.hits) <= most:
        return points
    even = np.searchsorted(points.hits, np.linspace(0, points.hits[-1], most // 2))
    early = np.geomspace(1, len(points.hits), most - len(even)).astype(int) - 1
    return points.at(np.unique(np.concatenate([even, early, [len(points.hits) - 1]])))


def hull(x: Counts, y: Counts) -> Counts:
    """Indices of the corners of the upper hull of a rising curve.

    A point not above the line between its neighbours is no corner, so all such are dropped at
    once, until few are left for the usual walk.

    >>> hull(np.array([0, 0, 1, 2, 4]), np.array([0, 2, 2, 4, 4])).tolist()
    [0, 1, 3, 4]
    """
    index = np.arange(len(x))
    for _ in range(40):
        if len(index) <= _FEW:
            break
        left, here, right = index[:-2], index[1:-1], index[2:]
        index = np.concatenate([index[:1], here[_turn(x, y, left, here, right) < 0], index[-1:]])
    corners: list[int] = []
    for i in index.tolist():
        while len(corners) > 1 and _turn(x, y, corners[-2], corners[-1], i) >= 0:
            corners.pop()
        corners.append(i)
    return np.array(corners)


def _turn(x: Counts, y: Counts, a: Any, b: Any, c: Any) -> Any:
    """Below 0 where the way from a over b to c turns to the right."""
    return (x[b] - x[a]) * (y[c] - y[b]) - (y[b] - y[a]) * (x[c] - x[b])


def _evenly(n: int, most: int) -> Counts:
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))


def wilson(rate: Floats, n: int) -> tuple[Floats, Floats]:
    """The 95% interval of Wilson of a share `rate` of `n` samples.

    >>> low, high = wilson(np.array([0.0, 0.5]), 10)
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.0, 0.237], [0.278, 0.763])
    """
    middle = (rate + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * np.sqrt(rate * (1 - rate) / n + Z**2 / (4 * n**2))
    return np.maximum(middle - half, 0), np.minimum(middle + half, 1)


def sigmoid(scores: Any) -> Floats:
    """Log-odds as a probability, without overflow.

    >>> sigmoid(np.array([-np.inf, 0.0, 1000.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    decay = np.exp(-np.abs(scores))
    return np.asarray(np.where(np.asarray(scores) >= 0, 1, decay) / (1 + decay))


def shares(scores: Floats, bins: int) -> Floats:
    """The share of the `scores`, as probabilities, in each of `bins` equal parts of [0, 1].

    >>> shares(np.array([-9.0, -9.0, 9.0, np.nan]), 2).round(2).tolist()
    [0.67, 0.33]
    """
    scores = scores[~np.isnan(scores)]
    counts = np.histogram(sigmoid(scores), bins, (0, 1))[0]
    return np.asarray(counts / max(1, len(scores)))


def reaching(points: Operating, recall: float) -> Operating:
    """The highest threshold with at least this recall, as one point.

    >>> points = operating(np.array([3.0, 2.0, 1.0, 0.0]), np.array([True, False, True, False]))
    >>> reaching(points, 0.5).thresholds.tolist(), reaching(points, 0.6).thresholds.tolist()
    ([3.0], [1.0])
    """
    needed = int(np.ceil(recall * points.positives - 1e-9))
    first = int(np.searchsorted(points.hits, max(needed, 1)))
    return points.at(slice(first, first + 1))
