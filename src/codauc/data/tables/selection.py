"""Which rows of a table a worker reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codauc.data.shards import Piece
from codauc.data.tables.columns import Integers
from codauc.data.tables.files import TableSource

Mask = Callable[[int, int], NDArray[np.bool_]]  # which of the rows from a start on


class Selection:
    """The rows of some pieces of a table's blocks, or those that a mask tells, or all."""

    def __init__(
        self,
        table: TableSource,
        pieces: Sequence[Piece] | None = None,
        mask: Mask | None = None,
    ) -> None:
        self.table, self.mask = table, mask
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

    def read(self, columns: Sequence[str]) -> Iterator[tuple[Integers, Any]]:
        """The chosen rows: their numbers in the file, and a batch of the table."""
        if self.pieces is None:
            yield from self._masked(0, self.table.read(columns))
            return
        for piece in self.pieces:
            start = self._starts[piece.block]
            if self.mask is not None and not self.mask(start, piece.stop).any():
                continue  # nothing here is this worker's, so nothing is read
            yield from self._masked(start, self.table.read(columns, piece.block), piece)

    def _masked(
        self, start: int, batches: Iterator[Any], piece: Piece | None = None
    ) -> Iterator[tuple[Integers, Any]]:
        for batch in batches:
            rows = np.arange(start, start + batch.num_rows)
            start += batch.num_rows
            if piece is not None:
                first = self._starts[piece.block]
                low, high = np.searchsorted(rows, [first + piece.start, first + piece.stop])
                rows, batch = rows[low:high], batch.slice(low, high - low)
            if self.mask is not None and len(rows):
                kept = np.flatnonzero(self.mask(int(rows[0]), len(rows)))
                rows, batch = rows[kept], batch.take(kept)
            if len(rows):
                yield rows, batch
            if piece is not None and start >= self._starts[piece.block] + piece.stop:
                return
