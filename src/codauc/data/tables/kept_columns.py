"""Columns of a table as they are written, to be copied beside predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from codauc.data.tables.column_roles import no_column
from codauc.data.tables.columnar_files import arrow
from codauc.data.tables.locale import Locale
from codauc.data.tables.table_sources import TABLES, open_table

_ARRAYS = (".npy", ".npz")


def kept_columns(source: str, names: Sequence[str], encoding: str | None = None) -> dict[str, Any]:
    """Some columns of all rows of a table, as arrays of pyarrow; `encoding` is that of a CSV file.

    Those of a CSV file are texts, none of them changed: 007 stays 007, and NA stays NA.
    """
    path = Path(source)
    if not names:
        return {}
    if path.suffix.lower() in _ARRAYS or not path.exists():
        raise ValueError(
            f"keep={list(names)!r} with {source}: expected a table, whose columns have names "
            f"({', '.join(name for name in TABLES if name not in _ARRAYS)}); leave it out."
        )
    table = open_table(path, dict.fromkeys(names, "category"), Locale(encoding=encoding))
    for name in names:
        if name not in table.kinds:
            raise ValueError(no_column(table.path, name, list(table.kinds)))
    blocks = range(1 if table.blocks is None else len(table.blocks))
    batches = [batch for block in blocks for batch in table.copied(names, block)]
    copied = arrow().Table.from_batches(batches)
    return {name: copied.column(name) for name in names}
