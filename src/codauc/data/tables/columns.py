"""From the columns of a batch of a table to numbers, codes and labels."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codauc.data.tables.files import arrow
from codauc.data.tables.summary import Floats, Value

Integers = NDArray[np.int64]


def numbers_of(path: str, names: Sequence[str], batch: Any, rows: Integers, nan: str) -> Floats:
    """The numbers of some columns, NaN where a value is missing; `rows` are for errors."""
    out = np.empty((batch.num_rows, len(names)))
    for i, name in enumerate(names):
        column = batch.column(name)
        out[:, i] = _as_floats(column)
        # one pass: a sum is finite only if all its terms are
        if not np.isfinite(out[:, i].sum()):
            check_finite(path, name, out[:, i], rows, nan, missing=_missing(column))
    return out


def check_finite(
    path: str, name: str, values: Floats, rows: Integers, nan: str, missing: Any = None
) -> None:
    """Raise with the place of the first value that is infinite, or NaN and not `missing`."""
    bad = np.isinf(values)
    if nan == "error":
        bad |= np.isnan(values) & ~missing if missing is not None else np.isnan(values)
    if not bad.any():
        return
    at = int(bad.argmax())
    text = "infinity" if np.isinf(values[at]) else "NaN"
    remedy = (
        "correct it, or leave it empty"
        if text == "infinity"
        else ("correct it, or say nan='missing' to take NaN for a missing value")
    )
    raise ValueError(
        f"{path}, column {name!r}, row {int(rows[at])}: got {text}, expected a number; {remedy}."
    )


def texts_of(column: Any) -> tuple[list[Value], Integers]:
    """The different values of a column as texts, None if missing, and which each row has."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    if not pa.types.is_dictionary(column.type):
        column = _as_text(column).dictionary_encode()
    values = _as_text(column.dictionary).to_pylist()
    which = pc.fill_null(column.indices, len(values)).cast(pa.int64()).to_numpy()
    return [*values, None], which


def targets_of(
    path: str, name: str, kind: str, column: Any, rows: Integers
) -> tuple[list[Value], Integers]:
    """The different values of a target, texts or numbers, and which each row has."""
    missing = _missing(column)
    if kind == "number":
        values, which = np.unique(_as_floats(column), return_inverse=True)
        missing |= np.isnan(values)[which]
        plain: list[Value] = values.tolist()
    else:
        plain, which = texts_of(column)
        none = [value is None or str(value).lower() == "nan" for value in plain]
        missing |= np.array(none)[which]
    if missing.any():
        raise ValueError(
            f"{path}, column {name!r}, row {int(rows[missing.argmax()])}: the label is missing; "
            "expected one in every row: fill it in, or leave the row out."
        )
    return plain, which


def _missing(column: Any) -> NDArray[np.bool_]:
    missing: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return missing.astype(bool)


def _as_floats(column: Any) -> Floats:
    """Times as microseconds, whatever unit they have in this file."""
    pa = arrow()
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        column = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    elif pa.types.is_duration(kind):
        column = column.cast(pa.duration("us"), safe=False).cast(pa.int64())
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type != pa.float32():
        column = column.cast(pa.float64(), safe=False)
    floats: Floats = column.to_numpy(zero_copy_only=False)
    return floats


def _as_text(column: Any) -> Any:
    pa = arrow()
    if pa.types.is_string(column.type):
        return column
    if pa.types.is_floating(column.type):  # pandas makes integers floats where some are missing
        with contextlib.suppress(pa.ArrowInvalid):
            column = column.cast(pa.int64())
    return column.cast(pa.string(), safe=False)
