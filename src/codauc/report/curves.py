"""Curves of a test set: ROC, precision and recall, histograms, thresholds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

Z = 1.959963984540054  # 95% of a normal distribution lie within +-Z
_FEWEST = 10  # samples of the rarer class in a group of scores


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


def thinned_points(points: Operating, most: int = 400) -> Operating:
    """At most `most` of the points, unchanged, both ends among them.

    Half are evenly spread along the ROC curve, half are denser among the first, where precision
    moves most.
    """
    if len(points.hits) <= most:
        return points
    along = points.recall + points.false_rate
    even = np.searchsorted(along, np.linspace(along[0], along[-1], most // 2))
    early = np.geomspace(1, len(along), most - len(even)).astype(int) - 1
    return points.at(np.unique(np.concatenate([even, early])))


def wilson(rate: Floats, n: Any) -> tuple[Floats, Floats]:
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


def shares(scores: Floats, edges: Floats) -> Floats:
    """The share of the `scores` from each of the `edges` to the next; the end ones have the rest.

    >>> shares(np.array([-9.0, -9.0, 9.0, np.nan]), np.array([-1.0, 0.0, 1.0])).round(2).tolist()
    [0.67, 0.33]
    """
    scores = scores[~np.isnan(scores)]
    counts = np.histogram(np.clip(scores, edges[0], edges[-1]), edges)[0]
    return np.asarray(counts / max(1, len(scores)))


class ScoreGroup(NamedTuple):
    """Samples of neighbouring scores: the mean probability by their scores, and what they are."""

    predicted: float
    positives: int
    samples: int


def score_groups(scores: Floats, labels: NDArray[np.bool_], most: int = 10) -> list[ScoreGroup]:
    """The samples in at most `most` groups by score, of about as many of the rarer class each.

    Equal scores stay together; with few of the rarer class there are fewer groups. So each group
    has a share of positives to compare with, also where positives are rare.

    >>> scores = np.array([-3.0, -2.0, -1.0, 0.0, 1.0, 2.0])
    >>> [(g.positives, g.samples) for g in score_groups(scores, scores > 0.5, most=2)]
    [(1, 5), (1, 1)]
    """
    good = ~np.isnan(scores)
    scores, labels = scores[good], labels[good]
    rarer = np.sort(scores[labels if 2 * labels.sum() <= len(labels) else ~labels])
    if not len(rarer):
        return []
    number = min(most, max(2, len(rarer) // _FEWEST))
    cuts = np.unique(rarer[(np.arange(1, number) * len(rarer)) // number])
    group = np.searchsorted(cuts, scores, side="right")
    predicted = sigmoid(scores)
    return [
        ScoreGroup(float(predicted[mine].mean()), int(labels[mine].sum()), int(mine.sum()))
        for i in range(len(cuts) + 1)
        if (mine := group == i).any()
    ]


def reaching(points: Operating, recall: float) -> Operating:
    """The highest threshold with at least this recall, as one point.

    >>> points = operating(np.array([3.0, 2.0, 1.0, 0.0]), np.array([True, False, True, False]))
    >>> reaching(points, 0.5).thresholds.tolist(), reaching(points, 0.6).thresholds.tolist()
    ([3.0], [1.0])
    """
    needed = int(np.ceil(recall * points.positives - 1e-9))
    first = int(np.searchsorted(points.hits, max(needed, 1)))
    return points.at(slice(first, first + 1))
