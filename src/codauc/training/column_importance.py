"""What each column of a table is worth to a model: the AUC that is lost when it is shuffled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from codauc._internal.random_streams import generator
from codauc.data.dataset import DataSet, Part
from codauc.data.rows import as_rows
from codauc.data.tables.encoder import Encoder
from codauc.metrics.auc_difference import Difference, paired_auc_difference
from codauc.metrics.evaluation import logits_of, predict
from codauc.training.shared_scores import gathered
from codauc.workers.group import Group

PERMUTATIONS = 5
MOST_MEASURED, MOST_SHOWN = 40, 20  # columns
MOST_ROWS, MOST_CELLS = 10_000, 20_000_000  # of the test set, all workers together
_Z = 1.959963984540054
_STREAM = 7001  # of random numbers, apart from those of training
NOT_COUNTED = (
    "The importance of columns is not measured: it needs the score of each row, and scores leave "
    "their worker as counts alone."
)
_BATCH = 256  # rows whose gradients are taken together


@dataclass(frozen=True)
class ColumnImportance:
    """The AUC that a model loses without the column, with its 95% interval."""

    name: str
    lost: float
    low: float
    high: float


def column_importance(
    model: nn.Module,
    opened: DataSet,
    group: Group,
    seed: int,
    limit: float,
    asked: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | None:
    """What importance.json holds, on every worker; None without a test set of both classes.

    A column's values are exchanged between rows of the test set, with whether they are missing, and
    the AUC of the scores before is compared with that after (DeLong's paired difference). No row
    leaves its worker: each exchanges its own. Of a test set with more than MOST_ROWS rows a
    sample is taken, with at least as many positives as half of it where there are so many. Of more
    than MOST_MEASURED columns those are measured of which a first pass expects most (`effects`).

    It ends after `limit` seconds, or when a worker is `asked` to end, with as many permutations as
    there was time for.
    """
    part, encoder = opened.test, opened.encoder
    if part is None or not 0 < part.positives < part.samples:
        return None
    if encoder is None or opened.shape:
        return {"columns": [], "reason": "The importance of columns is not measured for images."}
    inputs = encoder.inputs_of_columns()
    rows = _TestRows(model, part, group, seed, encoder.inputs)
    if not 0 < rows.labels.sum() < len(rows.labels):
        return None
    chosen = list(inputs)
    if len(inputs) > MOST_MEASURED:
        chosen = rows.most_promising(encoder, inputs)
    end = time.monotonic() + limit
    found, times = rows.measure(
        [inputs[name] for name in chosen], lambda: asked() or time.monotonic() > end
    )
    columns = [_interval(name, each) for name, each in zip(chosen, found, strict=True) if each]
    columns.sort(key=lambda column: -column.lost)
    return {
        "columns": [asdict(column) for column in columns[:MOST_SHOWN]],
        "of": len(inputs),
        "measured": len(columns),
        "permutations": times,
        "rows": len(rows.labels),
        "positives": int(rows.labels.sum()),
    }


def _interval(name: str, found: Sequence[Difference]) -> ColumnImportance:
    """The mean over permutations; its variance is no larger than that of one of them."""
    lost = float(np.mean([each.value for each in found]))
    reach = _Z * float(np.sqrt(np.mean([each.std_error**2 for each in found])))
    return ColumnImportance(name, lost, lost - reach, lost + reach)


class _TestRows:
    """A worker's sample of the test set, and rows whose values are put in place of theirs."""

    def __init__(self, model: nn.Module, part: Part, group: Group, seed: int, inputs: int) -> None:
        assert part.y is not None
        self.model, self.group = model, group
        self.random = generator(np.random.SeedSequence(seed, spawn_key=(group.rank, _STREAM)))
        most = min(MOST_ROWS, MOST_CELLS // max(inputs, 1)) // group.size
        mine = _sample(part.y, max(most, 2), self.random)
        others = torch.randperm(len(part.y), generator=self.random)[: len(mine)]
        rows = as_rows(part.x)
        self.x, self.others = rows.gather(mine), rows.gather(others)
        self.labels = gathered(part.y[mine].numpy().astype(np.bool_), group)
        self.counts = gathered(np.array([len(mine)]), group)
        self.scores = gathered(self._logits(self.x), group)

    def _logits(self, x: Tensor) -> NDArray[np.float64]:
        return logits_of(self.model, x).astype(np.float64) if len(x) else np.empty(0)

    def most_promising(self, encoder: Encoder, inputs: dict[str, list[int]]) -> list[str]:
        """The columns with the largest effects, the largest first."""
        mine = effects(self.model, self.x, self.others, encoder)
        mean = gathered(mine, self.group).reshape(self.group.size, -1).mean(0)
        sums = {name: float(mean[places].sum()) for name, places in inputs.items()}
        return sorted(sums, key=lambda name: -sums[name])[:MOST_MEASURED]

    def measure(
        self, columns: Sequence[list[int]], late: Callable[[], bool]
    ) -> tuple[list[list[Difference]], int]:
        """For each column the AUC lost in each permutation; and how many permutations all had."""
        found: list[list[Difference]] = [[] for _ in columns]
        for done in range(PERMUTATIONS):
            for differences, places in zip(found, columns, strict=True):
                scores, end = self._shuffled(places, late())
                differences.append(paired_auc_difference(self.scores, scores, self.labels))
                if end:  # the same on every worker
                    whole = done + (differences is found[-1])
                    return [each[: max(1, whole)] for each in found], max(1, whole)
        return found, PERMUTATIONS

    def _shuffled(self, places: list[int], late: bool) -> tuple[NDArray[np.float64], bool]:
        """The scores of all workers without the columns, and whether it is late for one of them."""
        order = torch.randperm(len(self.x), generator=self.random)
        x = self.x.clone()
        x[:, places] = self.others[order][:, places]
        every = gathered(np.append(self._logits(x), float(late)), self.group)
        ends = np.cumsum(self.counts + 1) - 1  # where each worker says whether it is late
        return np.nan_to_num(np.delete(every, ends)), bool(every[ends].any())


def _sample(labels: Tensor, most: int, random: torch.Generator) -> Tensor:
    """At most `most` rows: the positives up to half of them, then negatives, in order."""
    if len(labels) <= most:
        return torch.arange(len(labels))
    order = torch.randperm(len(labels), generator=random)
    positive = labels[order].bool()
    ups, downs = order[positive], order[~positive]
    kept = min(len(ups), max(most // 2, most - len(downs)))
    return torch.cat([ups[:kept], downs[: most - kept]]).sort().values


def effects(model: nn.Module, x: Tensor, others: Tensor, encoder: Encoder) -> NDArray[np.float64]:
    """How much the score should change if an input had the value of another row, for each input.

    Of a number this is the mean of |gradient * difference|, one pass backward for all of them; of a
    category the standard deviation of the mean scores of its values.
    """
    found = np.zeros(encoder.inputs)
    if not len(x):
        return found
    for start in range(0, len(x), _BATCH):
        there, other = x[start : start + _BATCH], others[start : start + _BATCH]
        found += ((other - there) * _gradient(model, there)).abs().sum(0).double().numpy()
    found /= len(x)
    scores = predict(model, x).flatten().double().numpy()
    for place in range(encoder.inputs - len(encoder.categories), encoder.inputs):
        found[place] = _spread(x[:, place].numpy().astype(np.int64), scores)
    return found


def _gradient(model: nn.Module, x: Tensor) -> Tensor:
    """Of each row's score with respect to its inputs; zeros where a network does not give it."""
    was, device = model.training, next((p.device for p in model.parameters()), x.device)
    model.eval()
    try:
        with torch.enable_grad():
            moved = x.to(device).requires_grad_()
            (found,) = torch.autograd.grad(model(moved).sum(), moved, allow_unused=True)
    except RuntimeError:  # a network of one's own that breaks the chain
        found = None
    finally:
        model.train(was)
    return torch.zeros_like(x) if found is None else found.cpu().nan_to_num()


def _spread(codes: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
    """The standard deviation, over rows, of the mean score of their category."""
    counts = np.bincount(codes)
    means = np.bincount(codes, scores) / np.maximum(counts, 1)
    return float(np.sqrt(np.average((means - scores.mean()) ** 2, weights=counts)))
