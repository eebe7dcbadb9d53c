"""Rows of a table that have a label, and what to say of those that have none."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codauc.data.tables.columnar_files import Batch, TableSource, arrow


class LabelledRows(TableSource):
    """A table without the rows whose target is missing, numbered as if they were not there.

    Messages still name their places in the file.
    """

    def __init__(self, table: TableSource, target: str) -> None:
        super().__init__(table.path, table.kinds, None, table.bytes)
        self.locale, self.how, self.examples = table.locale, table.how, table.examples
        self.notes = dict(table.notes)
        self._table, self._target = table, target
        self._kept: list[NDArray[np.int64]] = []  # where rows are in the file, of the last pass

    def read(self, columns: Sequence[str], block: int) -> Iterator[Batch]:
        """All rows that have a label."""
        del block  # how many rows a block has is not known
        self._kept, rows = [], 0
        for batch in _batches(self._table, list(dict.fromkeys([*columns, self._target]))):
            there = np.flatnonzero(~without_label(batch.column(self._target)))
            self._kept.append(there + rows)
            rows += batch.num_rows
            yield batch.take(there).select(list(columns))
        left = rows - sum(map(len, self._kept))
        if left:
            self.notes[self._target] = [f"{left:,} of {rows:,} rows have no label and are left out"]

    def lines(self, rows: Collection[int]) -> dict[int, str]:
        """Where rows are in the file."""
        kept = np.concatenate([np.empty(0, np.int64), *self._kept])
        known = {row: int(kept[row]) if row < len(kept) else row for row in rows}
        lines = self._table.lines(list(known.values()))
        return {row: lines[place] for row, place in known.items()}


def without_label(column: Any) -> NDArray[np.bool_]:
    """Which values of a target are missing; NaN and the text NaN are."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    missing = pc.is_null(column, nan_is_null=pa.types.is_floating(column.type))
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        named = pc.equal(pc.utf8_lower(pc.utf8_trim_whitespace(column)), "nan")
        missing = pc.or_(missing, pc.fill_null(named, False))
    found: NDArray[np.bool_] = missing.to_numpy(zero_copy_only=False)
    return found.astype(np.bool_)


def no_labels(table: TableSource, target: str) -> str:
    """The message for rows without a label: how many there are, and where the first ones are."""
    rows, start = list[int](), 0
    for batch in _batches(table, [target]):
        rows += (np.flatnonzero(without_label(batch.column(target))) + start).tolist()
        start += batch.num_rows
    lines = table.lines(rows[:3])
    places = ", ".join(lines[row] for row in rows[:3]) + (", ..." if len(rows) > 3 else "")
    return (
        f"{table.path}, column {target!r}, {places}: the label is missing in {len(rows):,} of "
        f"{start:,} rows; expected one in every row: fill it in, or leave these rows out with "
        "unlabelled='drop'."
    )


def _batches(table: TableSource, columns: Sequence[str]) -> Iterator[Batch]:
    for block in range(len(table.blocks or [0])):
        yield from table.read(columns, block)
