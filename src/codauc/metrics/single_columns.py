"""Columns that decide alone, which often means that they were made from the labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from codauc.data.dataset import DataSet, Part
from codauc.data.rows import as_rows
from codauc.metrics.auc_values import auc

DECIDES = 0.99  # the AUC of one column from which on it is named
_LEAST = 5  # rows of each class: of fewer, some column of many would seem to decide by chance
_ROWS = 100_000  # that are looked at, at most
_FIRST = 2000  # of each class, which show that most columns do not decide
_DOUBTFUL = 0.95  # the AUC of the first rows from which on all are looked at

_NAMED = 5  # columns that hints name, at most

Flags = NDArray[np.bool_]


def with_deciding_columns(opened: DataSet) -> DataSet:
    """The data with the AUC of each column that decides alone, and a hint on it.

    The training rows of this worker are looked at, at most 100,000 of them.
    """
    found = deciding_columns(opened.train) if opened.train.columns else {}
    if not found:
        return opened
    columns = [replace(record, auc=found.get(record.name)) for record in opened.train.columns]
    train = replace(opened.train, columns=tuple(columns))
    hints = [record.leak for record in columns if record.leak][:_NAMED]
    return replace(opened, train=train, hints=(*opened.hints, *hints))


def deciding_columns(part: Part) -> dict[str, float]:
    """The columns of a table with an AUC over 0.99 by themselves, with the AUC.

    A number counts in either direction, its being missing by itself. Values of a category are
    ordered by their share of positives in one half of the rows, and tested on the other.
    """
    encoder, y = part.encoder, part.y
    if encoder is None or encoder.shape or y is None:
        return {}
    labels = y.numpy().astype(np.bool_)
    if min(labels.sum(), (~labels).sum()) < _LEAST:
        return {}
    chosen = _both_classes(labels, _ROWS // 2)
    first = _both_classes(labels[chosen], _FIRST)
    rows = as_rows(part.x)
    few = rows.gather(torch.from_numpy(chosen[first])).numpy()
    sizes = [0] * (encoder.inputs - len(encoder.categories))
    sizes += [category.size for category in encoder.categories]
    open_ = [
        column
        for column, size in enumerate(sizes)
        if _alone(few[:, column], labels[chosen[first]], size) > _DOUBTFUL
    ]
    found: dict[str, float] = {}
    values: Any = rows.gather(torch.from_numpy(chosen)).numpy() if open_ else None
    for column in open_:
        value = _alone(values[:, column], labels[chosen], sizes[column])
        if value > DECIDES:
            name = encoder.sources[column]
            found[name] = max(value, found.get(name, 0.0))
    return found


def _both_classes(labels: Flags, most: int) -> NDArray[np.int64]:
    """Rows of each class, spread evenly over all, in order."""

    def spread() -> Iterator[NDArray[np.int64]]:
        for flag in (False, True):
            places = np.flatnonzero(labels == flag)
            count = min(len(places), most)
            yield places[np.linspace(0, len(places) - 1, count).astype(np.int64)]

    return np.sort(np.concatenate(list(spread())))


def _alone(values: NDArray[np.float32], labels: Flags, size: int) -> float:
    """The AUC of one input; `size` is how many codes a category has, 0 for a number."""
    if size:
        values, labels = _by_share(values.astype(np.int64), labels, size)
    if labels.all() or not labels.any():
        return 0.5
    value = float(auc(values, labels))
    return value if size else max(value, 1 - value)


def _by_share(
    codes: NDArray[np.int64], labels: Flags, size: int
) -> tuple[NDArray[np.float32], Flags]:
    """The share of positives of each value in half of the rows, for the rows of the other half."""
    half = np.zeros(len(labels), bool)
    for flag in (False, True):
        half[np.flatnonzero(labels == flag)[::2]] = True
    count = np.bincount(codes[half], minlength=size)
    positives = np.bincount(codes[half], labels[half], minlength=size)
    usual = labels[half].mean() if half.any() else 0.5
    shares = (positives + usual) / (count + 1)
    return shares[codes[~half]].astype(np.float32), labels[~half]
