"""Files of scores: one row for each sample, in the order of the data."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from codauc._internal.checks import listed
from codauc._internal.files import whole_file
from codauc.cli._large_csv import write_large

_SUFFIXES = (".parquet", ".csv", ".npy")
_LARGE = 10_000  # rows


def check_name(out: Path) -> None:
    """Raise where the name is not that of a file of scores."""
    if out.suffix not in _SUFFIXES:
        raise ValueError(f"--out {out}: expected a name that ends in {listed(_SUFFIXES)}.")


def write_scores(out: Path, columns: Mapping[str, Any]) -> None:
    """Write the columns, or to .npy the scores alone; the file is whole or not there.

    Columns are arrays of numpy or of pyarrow.
    """
    with whole_file(out, "the scores") as partial:
        if out.suffix == ".npy":
            with partial.open("wb") as file:
                np.save(file, columns["score"])
        elif out.suffix == ".parquet":
            from codauc.data.tables.columnar_files import arrow

            arrow("pyarrow.parquet").write_table(arrow().table(dict(columns)), partial)
        elif len(columns["score"]) >= _LARGE and find_spec("pyarrow") is not None:
            write_large(partial, columns)
        else:
            write_csv(partial, columns)


def write_csv(path: Path, columns: Mapping[str, Any]) -> None:
    """Write the columns with Python's csv module."""
    with path.open("w", encoding="utf-8", newline="") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*map(_values, columns.values()), strict=True))


def _values(column: Any) -> list[Any]:
    """As Python's own; arrays of pyarrow have another name for it than those of numpy."""
    return list(column.tolist() if isinstance(column, np.ndarray) else column.to_pylist())
