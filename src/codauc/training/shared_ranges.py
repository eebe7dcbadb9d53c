"""The ranges of columns over the rows of all workers, from sums over all in place of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from codauc.data.rows import Rows
from codauc.workers.group import Group

_BINS = 1024  # of each column, fine around the mean, coarse far away
_MOST_SUMS = 1 << 20  # numbers of a message, by which many columns have fewer bins
_FINE, _FAR = 10.0, 10.0  # bins are equal for asinh(10 x) from -10 to 10: x from -1100 to 1100
ROWS = 20_000  # that are given at most, and that a worker counts at most


def rows_of_all(x: Rows, numbers: int, group: Group) -> Tensor:
    """Rows whose columns, each by itself, are distributed as those of all workers.

    What travels is the sum over all workers of how many values of a column are in each of 1,024
    bins, and of these values. A column of few different values gets exactly these, others the
    means of bins. Columns after the first `numbers` are 0. All workers call this, and get the same.
    """
    chosen = torch.linspace(0, len(x) - 1, min(len(x), ROWS)).long()
    own = x.gather(chosen).double()
    bins = max(64, min(_BINS, _MOST_SUMS // (2 * max(1, numbers))))
    message = torch.zeros(2, numbers, bins, dtype=torch.float64)
    weight = torch.full((len(own),), len(x) / max(1, len(own)), dtype=torch.float64)
    for column in range(numbers):
        values = own[:, column]
        places = _bins_of(values, bins)
        message[0, column].index_add_(0, places, weight)
        message[1, column].index_add_(0, places, weight * values)
    flat = message.flatten()
    group.sum_(flat, "start")
    counts, sums = flat.view(2, numbers, bins)
    rows = torch.zeros(min(ROWS, round(float(counts[:1].sum()))), own.shape[1])
    for column in range(numbers):
        rows[:, column] = _spread(counts[column], sums[column], len(rows)).float()
    return rows


def _bins_of(values: Tensor, bins: int) -> Tensor:
    """The number of each value's bin."""
    places = (torch.asinh(_FINE * values) / _FAR + 1) * (bins / 2)
    return places.long().clamp(0, bins - 1)


def _spread(counts: Tensor, sums: Tensor, size: int) -> Tensor:
    """The means of bins, `size` values in all, each as often as it is in the counts."""
    there = counts > 0
    means, ends = sums[there] / counts[there], counts[there].cumsum(0)
    places = (torch.arange(size, dtype=torch.float64) + 0.5) * (float(ends[-1]) / size)
    return means[torch.searchsorted(ends, places).clamp(max=len(means) - 1)]
