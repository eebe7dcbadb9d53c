"""The one pass over a worker's rows: what it keeps of them, and what it tells the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from codauc.data.rows import Rows
from codauc.data.tables.arrays import Array
from codauc.data.tables.columns import Integers, check_finite, numbers_of, targets_of, texts_of
from codauc.data.tables.encoder import Columns, Encoder
from codauc.data.tables.files import arrow, rows_at_a_time
from codauc.data.tables.packed import Coder, EncodedRows, Packer, Vocabulary
from codauc.data.tables.selection import Selection
from codauc.data.tables.summary import Moments, Summary
from codauc.data.tables.target import MANY

Progress = Callable[[int], object]  # told how many rows were read

_TEXTS = 100_000  # different texts from which on a column is no category


class Pass(ABC):
    """A worker's rows after one pass: its part of the summary, and the labels as codes."""

    summary: Summary
    rows: Tensor  # their numbers in the file
    labels: Vocabulary | None = None
    codes: Tensor | None = None  # which of the labels each row has

    @abstractmethod
    def encoded(self, encoder: Encoder) -> Rows | Tensor:
        """The rows as inputs."""


class TablePass(Pass):
    """The rows of a table, packed."""

    def __init__(
        self,
        selection: Selection,
        columns: Columns,
        *,
        nan: str,
        memory: int,
        folder: Path | None,
        progress: Progress | None = None,
    ) -> None:
        self.path, self.nan, self.columns = selection.table.path, nan, columns
        packer = Packer(len(columns.numbers), len(columns.categories), memory, folder)
        packer.expect(selection.count)
        numbers, codes = list[Tensor](), list[Tensor]()
        kinds = selection.table.kinds
        self.labels = None if columns.target is None else Vocabulary()
        wanted = [*columns.numbers, *columns.categories]
        wanted += [] if columns.target is None else [columns.target]
        for rows, batch in selection.read(wanted):
            numbers.append(torch.from_numpy(rows))
            self._pack(packer, batch, rows)
            if progress is not None:
                progress(packer.rows)
            if columns.target is not None:
                column, kind = batch.column(columns.target), kinds[columns.target]
                found = targets_of(self.path, columns.target, kind, column, rows)
                codes.append(_labels(self.path, columns.target, self.labels, *found))
        arrow().default_memory_pool().release_unused()
        self.rows = torch.cat(numbers) if numbers else torch.empty(0, dtype=torch.int64)
        self.codes = torch.cat(codes) if codes else None
        self.summary, self.packer = packer.summary(), packer
        self.summary.targets = {} if self.labels is None else self.labels.as_counts()

    def _pack(self, packer: Packer, batch: Any, rows: Integers) -> None:
        numbers = numbers_of(self.path, self.columns.numbers, batch, rows, self.nan)
        texts = []
        names = self.columns.categories
        for name, vocabulary in zip(names, packer.vocabularies, strict=True):
            texts.append(vocabulary.encode(*texts_of(batch.column(name))))
            if len(vocabulary.codes) > _TEXTS:
                raise ValueError(
                    f"{self.path}, column {name!r} has more than {_TEXTS:,} different texts: "
                    f"expected a category; leave it out with drop=[{name!r}]."
                )
        packer.add(numbers, texts)

    def encoded(self, encoder: Encoder) -> Rows | Tensor:
        """Encoded at once if they are in memory, when asked for if they are on disk."""
        return self.packer.encoded(encoder)


class ArrayPass(Pass):
    """Some rows of an array, which stay where they are."""

    def __init__(
        self,
        path: str,
        array: Array,
        columns: Columns,
        labels: tuple[str, Array] | None,
        rows: Tensor | None,
        *,
        nan: str,
        memory: int,
        progress: Progress | None = None,
    ) -> None:
        self.array, self.chosen, self.memory = array, rows, memory
        self.rows = torch.arange(len(array)) if rows is None else rows
        moments = Moments(array.shape[1])
        for numbers, part in self._parts():
            flat = np.moveaxis(part, 1, -1).reshape(-1, part.shape[1]).astype(np.float64)
            moments.add(_checked(path, columns.numbers, flat, numbers, nan))
            if progress is not None:
                progress(int(moments.count.max()) * len(part) // len(flat))
        self.summary = Summary(len(self.rows), moments)
        if labels is not None and columns.target is not None:
            self.labels = Vocabulary()
            values = labels[1] if rows is None else labels[1][rows.numpy()]
            self.codes = self._label(labels[0], columns.target, np.asarray(values))
            self.summary.targets = self.labels.as_counts()

    def _parts(self) -> Iterator[tuple[Integers, Any]]:
        """The rows in the file's order, which is how a disk likes to be read."""
        step = rows_at_a_time(int(np.prod(self.array.shape[1:])))
        for start in range(0, len(self.rows), step):
            numbers = self.rows[start : start + step].numpy()
            yield numbers, self.array[numbers]

    def _label(self, path: str, name: str, values: Array) -> Tensor:
        if values.dtype.kind == "f" and np.isnan(values).any():
            row = int(self.rows[int(np.isnan(values).argmax())])
            raise ValueError(f"{path}, row {row}: the label is NaN; expected one in every row.")
        if values.dtype.kind == "S":
            values = np.char.decode(values)
        plain, which = np.unique(values, return_inverse=True)
        listed = [v if isinstance(v, str) else float(v) for v in plain.tolist()]
        return _labels(path, name, self.labels, listed, which)

    def encoded(self, encoder: Encoder) -> Rows | Tensor:
        """Encoded at once if they are small, when asked for otherwise."""
        coder = Coder(encoder, self.array.dtype)
        if len(self.rows) * int(np.prod(self.array.shape[1:])) * 4 > self.memory:
            return EncodedRows(self.array, coder, self.chosen)
        return coder.encode_all((part for _, part in self._parts()), len(self.rows))


def _checked(path: str, names: Sequence[str], values: Any, rows: Integers, nan: str) -> Any:
    if not np.isfinite(values.sum()):
        each = np.repeat(rows, len(values) // len(rows))
        for i, name in enumerate(names):
            check_finite(path, name, values[:, i], each, nan)
    return values


def _labels(
    path: str, name: str, labels: Vocabulary | None, values: Any, which: Integers
) -> Tensor:
    assert labels is not None
    codes = labels.encode(values, which)
    if len(labels.codes) > MANY:
        raise ValueError(
            f"{path}, column {name!r} has more than {MANY:,} different values: expected a few "
            "classes; is it the target?"
        )
    return torch.from_numpy(codes.astype(np.int16))
