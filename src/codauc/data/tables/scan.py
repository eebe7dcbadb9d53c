"""The one pass over a worker's rows: what it keeps of them, and what it tells the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from codauc.data.fingerprint import add_texts, row_marks, total
from codauc.data.rows import Rows
from codauc.data.tables.arrays import Array
from codauc.data.tables.column_roles import TableRequest
from codauc.data.tables.column_statistics import Moments, Summary
from codauc.data.tables.column_values import (
    Integers,
    check_far,
    check_numbers,
    doubtful,
    numbers_of,
    targets_of,
    texts_of,
    without_nan,
)
from codauc.data.tables.columnar_files import arrow, rows_at_a_time
from codauc.data.tables.encoder import Columns, Encoder
from codauc.data.tables.labels import Labels
from codauc.data.tables.packed_rows import Coder, EncodedRows, Packer
from codauc.data.tables.row_selection import RowSelection

_TEXTS = 100_000  # different texts from which on a column is no category


class Pass(ABC):
    """A worker's rows after one pass: its part of the summary, and the labels as codes."""

    summary: Summary
    rows: Tensor  # their numbers in the file
    labels: Labels | None = None
    codes: Tensor | None = None  # which of the labels each row has
    fingerprint: int = 0  # of the rows' inputs, as they were read

    @abstractmethod
    def encoded(self, encoder: Encoder) -> Rows | Tensor:
        """The rows as inputs."""


class TablePass(Pass):
    """The rows of a table, packed."""

    def __init__(
        self,
        selection: RowSelection,
        columns: Columns,
        packer: Packer,
        request: TableRequest,
    ) -> None:
        self.path, self.nan = selection.table.path, request.nan
        self.columns, self.packer = columns, packer
        target, kinds = columns.target, selection.table.kinds
        self.labels = None if target is None else Labels(self.path, target)
        self._texts: list[dict[Any, int]] = [{} for _ in columns.categories]
        rows, codes = list[Tensor](), list[Tensor]()
        packer.expect(selection.count)
        wanted = [*columns.numbers, *columns.categories, *([] if target is None else [target])]
        for numbers, batch in selection.read(wanted):
            rows.append(torch.from_numpy(numbers))
            self._pack(batch, numbers)
            if self.labels is not None and target is not None:
                column = batch.column(target)
                found = targets_of(self.path, target, kinds[target], column, numbers)
                codes.append(_short(self.labels.add(*found)))
            if request.progress is not None:
                request.progress(packer.rows)
        arrow().default_memory_pool().release_unused()
        self.rows = torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64)
        self.codes = torch.cat(codes) if codes else None
        self.summary = packer.summary()
        self.summary.targets = {} if self.labels is None else self.labels.values.as_counts()

    def _pack(self, batch: Any, rows: Integers) -> None:
        columns, texts = self.columns, []
        numbers = numbers_of(self.path, columns.numbers, batch, rows, self.nan)
        if self.packer.encoder is not None:
            check_far(self.path, self.packer.encoder, numbers, rows)
        marks = row_marks(numbers)
        for i, name in enumerate(columns.categories):
            vocabulary, column = self.packer.vocabularies[i], batch.column(name)
            if name in columns.numeric:
                column = without_nan(self.path, name, column, rows, self.nan)
            found = texts_of(column, numeric=name in columns.numeric)
            texts.append(vocabulary.encode(*found))
            add_texts(marks, i, *found, self._texts[i])
            if len(vocabulary.codes) > _TEXTS:
                raise ValueError(
                    f"{self.path}, column {name!r} has more than {_TEXTS:,} different texts: "
                    f"expected a category; leave it out with drop=[{name!r}]."
                )
        self.fingerprint += total(rows, marks)
        self.packer.add(numbers, texts)

    def encoded(self, encoder: Encoder) -> Rows | Tensor:
        """Encoded at once if they are in memory, when asked for if they are on disk."""
        return self.packer.encoded(encoder)


class ArrayPass(Pass):
    """Some rows of an array, which stay where they are."""

    def __init__(
        self,
        path: str,
        array: Array,
        rows: Tensor | None,
        request: TableRequest,
        encoder: Encoder | None,
    ) -> None:
        self.path, self.array, self.chosen, self.memory = path, array, rows, request.memory
        self.rows = torch.arange(len(array)) if rows is None else rows
        moments, done = Moments(array.shape[1]), 0
        for numbers, part in self._parts():
            flat = np.moveaxis(part, 1, -1).reshape(-1, part.shape[1]).astype(np.float64)
            if doubtful(flat):
                each = np.repeat(numbers, len(flat) // len(numbers))
                for i in range(flat.shape[1]):
                    check_numbers(path, str(i), flat[:, i], each, request.nan)
            if encoder is not None:
                check_far(path, encoder, flat, np.repeat(numbers, len(flat) // len(numbers)))
            moments.add(flat)
            self.fingerprint += total(numbers, row_marks(part))
            done += len(part)
            if request.progress is not None:
                request.progress(done)
        self.summary = Summary(len(self.rows), moments)

    def label(self, labels: Labels, values: Array) -> None:
        """Take the labels of all rows of the array."""
        rows = self.rows.numpy()
        chosen = values if self.chosen is None else values[rows]
        self.labels, self.codes = labels, _short(labels.add_array(np.asarray(chosen), rows))
        self.summary.targets = labels.values.as_counts()

    def _parts(self) -> Iterator[tuple[Integers, Any]]:
        """The rows in the file's order, which is how a disk likes to be read."""
        step = rows_at_a_time(int(np.prod(self.array.shape[1:])))
        for start in range(0, len(self.rows), step):
            numbers = self.rows[start : start + step].numpy()
            yield numbers, self.array[numbers]

    def encoded(self, encoder: Encoder) -> Rows | Tensor:
        """Encoded at once if they are small, when asked for otherwise."""
        coder = Coder(encoder, self.array.dtype)
        if len(self.rows) * int(np.prod(self.array.shape[1:])) * 4 > self.memory:
            return EncodedRows(self.array, coder, self.chosen)
        parts = (part for _, part in self._parts())
        return coder.encode_all(parts, len(self.rows))


def _short(codes: Integers) -> Tensor:
    return torch.from_numpy(codes.astype(np.int16))
