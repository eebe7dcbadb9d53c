"""Which rows of a table a worker reads, and which it keeps for passes to come."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from codauc.data.tables.columnar_files import TableSource, arrow
from codauc.data.tables.labels import Integers

Mask = Callable[[Integers], NDArray[np.bool_]]  # which of the rows of these numbers
NumberedBatches = Iterator[
    tuple[Integers, Any]
]  # the numbers of some rows, and a batch of the table


class KeptRows:
    """Rows that one pass over a file keeps for later ones, which need not read the file again.

    Beyond `memory` bytes they go to a file without a name in `folder`.
    """

    def __init__(self, memory: int, folder: Path | None = None) -> None:
        self.memory, self.folder, self.bytes = memory, folder, 0
        self._rows: list[Integers] = []
        self._batches: list[Any] = []
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def add(self, rows: Integers, batch: Any) -> None:
        """Keep some rows; each batch has the same columns."""
        self._rows.append(rows)
        self._batches.append(batch)
        self.bytes += batch.nbytes
        if self.bytes > self.memory:
            self._to_disk(batch.schema)

    def _to_disk(self, schema: Any) -> None:
        if self._writer is None:
            self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115
            self._writer = arrow().ipc.new_stream(self._file, schema)
        for batch in self._batches:
            self._writer.write_batch(batch)
        self._batches = []

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, columns: Sequence[str]) -> NumberedBatches:
        """All of them, in the order in which they came."""
        batches = iter(self._batches)
        if self._file is not None:
            self._file.flush()
            self._file.seek(0)
            batches = iter(arrow().ipc.open_stream(self._file))
        for rows, batch in zip(self._rows, batches, strict=True):
            yield rows, batch.select(list(columns))


def all_rows(
    table: TableSource, columns: Sequence[str], masks: Sequence[Mask] = ()
) -> NumberedBatches:
    """The rows of a table, except blocks of which no mask, if there are any, chooses a row."""
    start = 0
    for block, count in enumerate(table.blocks or [None]):  # None: a file of unknown length
        if count is not None and masks:
            rows = np.arange(start, start + count)
            if not any(mask(rows).any() for mask in masks):
                start += count
                continue
        for batch in table.read(columns, block):
            if batch.num_rows:
                yield np.arange(start, start + batch.num_rows), batch
            start += batch.num_rows


def chosen_rows(
    batches: NumberedBatches, mask: Mask | None, later: tuple[Mask, KeptRows] | None = None
) -> NumberedBatches:
    """Those that the mask chooses, or all; those of the mask of `later` are kept there."""
    for rows, batch in batches:
        if later is not None:
            kept = np.flatnonzero(later[0](rows))
            if len(kept):
                later[1].add(rows[kept], batch.take(kept))
        if mask is not None:
            kept = np.flatnonzero(mask(rows))
            rows, batch = rows[kept], batch.take(kept)
        if len(rows):
            yield rows, batch


def one_of(chosen: Tensor) -> Mask:
    """Whether a row is one of these."""
    flags = np.zeros(int(chosen.max()) + 2 if len(chosen) else 1, bool)
    flags[chosen.numpy()] = True
    return lambda rows: flags[np.minimum(rows, len(flags) - 1)]


def within(ranges: Sequence[tuple[int, int]]) -> Mask:
    """Whether a row is in one of these ranges, which are in order."""
    bounds = np.array(ranges).flatten()
    return lambda rows: np.searchsorted(bounds, rows, side="right") % 2 == 1
