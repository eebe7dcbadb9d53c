"""What workers tell each other of the scores of a part: each row's, or counts alone."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from codauc.data.data_settings import DataSettings
from codauc.data.dataset import Part
from codauc.metrics.auc_difference import paired_auc_difference
from codauc.metrics.score_counts import ScoreCounts, count_scores, difference_error
from codauc.workers.agreement import gather_bytes
from codauc.workers.group import Group

_CPU = torch.device("cpu")
Array = NDArray[Any]


class SharedScores(Protocol):
    """The scores of all workers' rows of a part, from each one's own.

    `labels`, `groups` and `weights` are those of `shown` scores. What is `kept` of a model's scores
    is enough to show them later, or to compare it with another model.
    """

    labels: NDArray[np.bool_]
    groups: Array | None
    weights: Array | None
    bound: float | None  # by which the AUC of what was shown last may be off; None: exact

    def kept(self, own: Array) -> Array:
        """What a worker keeps of its own scores."""

    def shown(self, kept: Array) -> Array:
        """The scores of all, which belong to `labels`; all workers call it together."""

    def difference_error(self, first: Array, second: Array) -> float:
        """The standard error of the difference of two models' AUCs, from what was kept of each."""


class RowScores:
    """Every worker tells the score of each of its rows; all know all, in the order of the rows."""

    bound: float | None = None

    def __init__(self, part: Part, group: Group) -> None:
        assert part.y is not None
        self.group = group
        self.rows = gathered(part.rows.numpy(), group)
        self._order = np.argsort(self.rows, kind="stable")
        self.labels = self._all(part.y.numpy().astype(np.bool_))
        self.groups = None if part.groups is None else self._all(part.groups.numpy())
        self.weights = None if part.weights is None else self._all(part.weights.numpy())
        self.rows = self.rows[self._order]

    def _all(self, values: Array) -> Array:
        """The values of all workers by row, whichever worker has which: a run may be resumed."""
        return gathered(values, self.group)[self._order]

    def kept(self, own: Array) -> Array:
        """The scores of all."""
        return self._all(own)

    def shown(self, kept: Array) -> Array:
        """The same."""
        return kept

    def difference_error(self, first: Array, second: Array) -> float:
        """DeLong's, of paired rows."""
        return paired_auc_difference(first, second, self.labels).std_error


class CountedScores:
    """Scores stay with their worker, which tells how many are in each bin; see `count_scores`.

    What is shown are the middles of the bins, as often as scores are in them, and so the AUC is off
    by at most `bound`.
    """

    groups: Array | None = None
    weights: Array | None = None

    def __init__(self, part: Part, group: Group, least: int = 0) -> None:
        assert part.y is not None
        self.group, self.least = group, least
        self.own = part.y.numpy().astype(np.bool_)
        self.bound: float | None = None
        self.rows = np.empty(0, np.int64)
        self.labels = self._counted(np.zeros(len(self.own))).scores()[1]

    def _counted(self, own: Array) -> ScoreCounts:
        found = count_scores(own, self.own, self.group, self.least)
        self.bound = found.bound
        return found

    def kept(self, own: Array) -> Array:
        """The worker's own."""
        return own

    def shown(self, kept: Array) -> Array:
        """The middle of each score's bin, negatives first; not a number if one of them is not."""
        bad = torch.tensor([int((~np.isfinite(kept)).sum())])
        self.group.sum_(bad, "evaluate")
        if int(bad):
            return np.full(len(self.labels), np.nan)
        return self._counted(kept).scores()[0]

    def difference_error(self, first: Array, second: Array) -> float:
        """DeLong's, of paired rows, each compared by its own worker with the counts of all."""
        return difference_error(first, second, self.own, self.group, self.least)


def shared_scores(part: Part, group: Group, data: DataSettings) -> RowScores | CountedScores:
    """As the settings want it; a worker alone tells nobody anything."""
    if data.counted_scores and group.size > 1:
        return CountedScores(part, group, data.least_samples or 0)
    return RowScores(part, group)


def gathered(values: Array, group: Group) -> Array:
    """The workers' arrays, end to end in the order of ranks, on each of them."""
    if group.size == 1:
        return values
    parts = gather_bytes(group, values.tobytes(), "evaluate", _CPU)
    return np.concatenate([np.frombuffer(part, values.dtype) for part in parts])
