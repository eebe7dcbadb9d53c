"""Which rows of a table a worker reads, and which it keeps for passes to come."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from codauc.data.shards import Piece
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


class RowSelection:
    """The rows of some pieces of a table's blocks, or those that a mask chooses, or all."""

    def __init__(
        self,
        table: TableSource,
        pieces: Sequence[Piece] | None = None,
        mask: Mask | None = None,
        kept: KeptRows | None = None,
        later: tuple[Mask, KeptRows] | None = None,
    ) -> None:
        """With `kept` its rows are read in place of the file.

        With `later` the rows of its mask are kept there by the same pass.
        """
        self.table, self.mask, self.kept, self.later = table, mask, kept, later
        blocks = table.blocks
        self._starts = [0] if blocks is None else [0, *np.cumsum(blocks)[:-1].tolist()]
        if pieces is None and blocks is not None:
            pieces = [Piece(i, 0, count) for i, count in enumerate(blocks) if count]
        self.pieces = pieces  # None: a file of unknown length

    @property
    def count(self) -> int:
        """How many rows there are for certain; 0 if nobody knows yet."""
        if self.pieces is None or self.mask is not None:
            return 0
        return sum(piece.stop - piece.start for piece in self.pieces)

    def read(self, columns: Sequence[str]) -> NumberedBatches:
        """The chosen rows: their numbers in the file, and a batch of the table."""
        for rows, batch in self._all(columns) if self.kept is None else self.kept.read(columns):
            if self.later is not None:
                kept = np.flatnonzero(self.later[0](rows))
                if len(kept):
                    self.later[1].add(rows[kept], batch.take(kept))
            if self.mask is not None:
                kept = np.flatnonzero(self.mask(rows))
                rows, batch = rows[kept], batch.take(kept)
            if len(rows):
                yield rows, batch

    def _all(self, columns: Sequence[str]) -> NumberedBatches:
        """The rows of the pieces, except blocks of which no mask chooses a row."""
        if self.pieces is None:
            yield from _numbered(0, self.table.read(columns))
            return
        masks = [mask for mask in (self.mask, self.later and self.later[0]) if mask is not None]
        for piece in self.pieces:
            start = self._starts[piece.block]
            inside = np.arange(start, start + piece.stop)
            if self.mask is not None and not any(mask(inside).any() for mask in masks):
                continue
            for rows, batch in _numbered(start, self.table.read(columns, piece.block)):
                low, high = np.searchsorted(rows, [start + piece.start, start + piece.stop])
                if low < high:
                    yield rows[low:high], batch.slice(low, high - low)
                if rows[-1] + 1 >= start + piece.stop:
                    break


def _numbered(start: int, batches: Iterator[Any]) -> NumberedBatches:
    for batch in batches:
        if batch.num_rows:
            yield np.arange(start, start + batch.num_rows), batch
        start += batch.num_rows
