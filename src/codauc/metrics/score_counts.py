"""AUCs of rows whose scores stay where they are: only how many fall in each bin is told."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codauc.workers.group import Group

BINS = 4096
_REACH = 6.0  # standard deviations on either side of the mean; what is beyond is in the last bin
_KIND = "evaluate"
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Grid:
    """BINS bins of equal width around the mean of the scores of all workers."""

    low: float
    width: float

    @staticmethod
    def of(scores: Floats, group: Group) -> Grid:
        """From one sum: the scores' number, their sum and that of their squares."""
        message = torch.tensor([len(scores), scores.sum(), np.square(scores).sum()]).double()
        group.sum_(message, _KIND)
        count, total, squares = message.tolist()
        mean = total / max(count, 1.0)
        std = math.sqrt(max(squares / max(count, 1.0) - mean**2, 0.0)) or 1.0
        return Grid(mean - _REACH * std, 2 * _REACH * std / BINS)

    def bins(self, scores: Floats) -> Integers:
        """The bin of each score."""
        return np.clip((scores - self.low) / self.width, 0, BINS - 1).astype(np.int64)

    @property
    def centres(self) -> Floats:
        """The middle of each bin, which stands for the scores in it."""
        centres: Floats = self.low + (np.arange(BINS, dtype=np.float64) + 0.5) * self.width
        return centres


@dataclass(frozen=True)
class ScoreCounts:
    """How many scores of all workers are in each bin, [2, BINS]: negatives, then positives.

    The exact AUC is within `bound` of that of the counts. Two scores of one bin may be in either
    order, which counts 1/2: with N_b negatives and P_b positives in bin b

        bound = 1/2 sum_b P_b N_b / (n+ n-)
    """

    grid: Grid
    counts: Integers
    bound: float

    def scores(self) -> tuple[Floats, NDArray[np.bool_]]:
        """The scores, each as the middle of its bin, and labels: negatives first, in order."""
        centres = self.grid.centres
        parts = [np.repeat(centres, each) for each in self.counts]
        return np.concatenate(parts), np.repeat([False, True], [len(part) for part in parts])

    def placements(self) -> Floats:
        """For a score in each bin the share of the other class on its wrong side, [2, BINS].

        A tie counts 1/2. In row 0 the share of positives below, in row 1 that of negatives.
        """
        below = np.cumsum(self.counts, axis=1) - self.counts / 2
        shares: Floats = below / np.maximum(self.counts.sum(1, keepdims=True), 1)
        return shares[::-1]


def count_scores(
    scores: Floats, labels: NDArray[np.bool_], group: Group, least: int = 0
) -> ScoreCounts:
    """Count the scores of all workers; each gives its own. All get the same.

    With `least` a worker tells of no bin with fewer samples of a class: neighbours are put together
    until they are enough, and count where their mean is. A class with fewer samples is left out.
    Then the AUC is between the one with each positive at the lower and each negative at the upper
    end of what it was put together with, and the reverse; `bound` is the distance to the farther.
    """
    scores = np.asarray(scores, np.float64)
    grid = Grid.of(scores, group)
    which = grid.bins(scores)
    classes = [np.bincount(which[labels == label], minlength=BINS) for label in (False, True)]
    if least < 2:
        message = torch.from_numpy(np.stack(classes))
        group.sum_(message, _KIND)
        counts = message.numpy()
        return ScoreCounts(grid, counts, _bound(counts, counts, counts))
    message = torch.from_numpy(np.stack([put_together(each, least) for each in classes], axis=1))
    group.sum_(message, _KIND)
    low, middle, high = message.numpy()
    return ScoreCounts(grid, middle, _bound(low, middle, high))


def put_together(counts: Integers, least: int) -> Integers:
    """Counts in which no bin has 1 to `least` - 1 samples, [3, BINS].

    Neighbours are put together until they are enough: at the first bin, at the mean, at the last.

    >>> put_together(np.array([1, 0, 1, 3, 0, 1]), least=2).tolist()
    [[2, 0, 0, 4, 0, 0], [0, 2, 0, 0, 4, 0], [0, 0, 2, 0, 0, 4]]
    """
    found, last = np.zeros((3, len(counts)), np.int64), len(counts) - 1
    cells, first, total, moment = list[tuple[int, int, int, int]](), 0, 0, 0
    for place in np.flatnonzero(counts).tolist():
        total, moment = total + int(counts[place]), moment + place * int(counts[place])
        if total >= least:
            cells.append((first, place, total, moment))
            first, total, moment = place + 1, 0, 0
    if not cells:
        return found
    start, _, before, weight = cells.pop()
    cells.append((start, last, before + total, weight + moment))
    for start, end, size, weight in cells:
        for row, place in enumerate((start, round(weight / size), end)):
            found[row, place] += size
    return found


def _bound(low: Integers, middle: Integers, high: Integers) -> float:
    """By how much the AUC of the scores may differ from that of the counts in the middle."""
    value = _wins(middle[1], middle[0], 0.5)
    least, most = _wins(low[1], high[0], 0.0), _wins(high[1], low[0], 1.0)
    return max(value - least, most - value)


def _wins(ups: Integers, downs: Integers, tie: float) -> float:
    """The share of pairs whose positive is in a higher bin; those in one bin count `tie`."""
    below = np.cumsum(downs) - downs
    pairs = max(1, int(ups.sum()) * int(downs.sum()))
    return float((ups * (below + tie * downs)).sum()) / pairs


def difference_error(
    first: Floats, second: Floats, labels: NDArray[np.bool_], group: Group, least: int = 0
) -> float:
    """The standard error of the difference of two models' AUCs on the same rows.

    DeLong's, as `paired_auc_difference` has it; placements are those among the counts of all
    workers, and of each class a worker tells the sum of their differences and of its squares.
    """
    apart = np.zeros(len(labels))
    for sign, scores in ((1, first), (-1, second)):
        counted = count_scores(scores, labels, group, least)
        places = counted.placements()
        apart += sign * places[labels.astype(int), counted.grid.bins(np.asarray(scores, float))]
    sums = [_sums(apart[labels == label], least) for label in (False, True)]
    message = torch.tensor(sums, dtype=torch.float64)
    group.sum_(message, _KIND)
    return math.sqrt(sum(_variance_of_mean(row) for row in message))


def _sums(values: Floats, least: int) -> list[float]:
    """How many, their sum and that of their squares; nothing of too few."""
    if len(values) < max(1, least):
        return [0.0, 0.0, 0.0]
    return [float(len(values)), float(values.sum()), float(np.square(values).sum())]


def _variance_of_mean(sums: Tensor) -> float:
    count, total, squares = sums.tolist()
    if count < 2:
        return 1.0
    return float(max(squares - total**2 / count, 0.0) / (count - 1) / count)
