"""Frames of other libraries as Arrow tables: pandas, polars, Arrow, and what can be exchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from codauc._internal.checks import listed
from codauc.data.tables.columnar_files import arrow

Table = Any  # pyarrow.Table; pyarrow has no types

_EXPECTED = (
    "a path, a pandas or polars frame, a pyarrow table or another frame with __dataframe__, a "
    "numpy array or a scipy sparse matrix"
)


def is_frame(data: Any) -> bool:
    """Whether it is a table in memory whose columns have names; a series is none.

    >>> import numpy as np
    >>> is_frame(np.zeros((2, 2))), is_frame({"a": [1]})
    (False, False)
    """
    if isinstance(data, type) or _is_lazy(data):
        return not isinstance(data, type)
    named = any(hasattr(data, name) for name in ("columns", "column_names"))
    exchanged = hasattr(data, "__arrow_c_stream__") or _is_pandas(data)
    return hasattr(data, "__dataframe__") or (named and exchanged)


def frame_names(data: Any) -> list[str]:
    """The names of a frame's columns, as texts."""
    if _is_lazy(data):
        return [str(name) for name in data.collect_schema().names()]
    if hasattr(data, "column_names") and not callable(data.column_names):
        return [str(name) for name in data.column_names]  # pyarrow: its columns are the values
    if hasattr(data, "columns"):
        return [str(name) for name in data.columns]
    return [str(name) for name in data.__dataframe__().column_names()]


def as_arrow(data: Any, keep: Sequence[str] | None = None) -> Table:
    """The frame as an Arrow table, without a copy where the library allows it.

    `keep` are the names of the columns to take: others need not be of a type that Arrow knows. The
    index of a pandas frame is left out, and the names of its columns become texts.

    >>> import pyarrow
    >>> as_arrow(pyarrow.table({"a": [1], "b": ["x"]}), keep=["b"]).column_names
    ['b']
    """
    if _is_lazy(data) or not is_frame(data):
        rest = "; use its collect()." if _is_lazy(data) else "."
        raise ValueError(f"source: got {type(data).__name__}, expected {_EXPECTED}{rest}")
    names = frame_names(data)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"the table has {listed(twice)} twice: expected names that differ.")
    keep = names if keep is None else list(keep)
    pa = arrow()
    # what other libraries raise for a type that Arrow does not know is theirs to choose
    try:
        return _with_plain_texts(_way(data)(data, names, keep))
    except (pa.ArrowException, ImportError, TypeError, AttributeError, *_STRANGE) as error:
        raise ValueError(
            f"the table cannot be read: {_line(error)}; expected columns of numbers, texts and "
            "dates; leave others out with drop=[...]."
        ) from error


_STRANGE = (OverflowError, RuntimeError, NotImplementedError, KeyError, IndexError)


def _way(data: Any) -> Callable[[Any, list[str], list[str]], Table]:
    if _is_pandas(data):
        return _from_pandas
    return _from_stream if hasattr(data, "__arrow_c_stream__") else _from_interchange


def _from_pandas(data: Any, names: list[str], keep: list[str]) -> Table:
    chosen = data.set_axis(names, axis=1)[keep]
    kinds = {name: getattr(kind, "subtype", None) for name, kind in chosen.dtypes.items()}
    # a sparse column, which Arrow does not have; an interval has a subtype, too
    sparse = {name: kind for name, kind in kinds.items() if hasattr(chosen[name], "sparse")}
    return arrow().Table.from_pandas(chosen.astype(sparse), preserve_index=False)


def _from_stream(data: Any, names: list[str], keep: list[str]) -> Table:
    del names
    return arrow().table(data.select(keep) if hasattr(data, "select") else data).select(keep)


def _from_interchange(data: Any, names: list[str], keep: list[str]) -> Table:
    del names
    chosen = data.__dataframe__().select_columns_by_name(keep)
    return import_module("pyarrow.interchange").from_dataframe(chosen)


def _with_plain_texts(table: Table) -> Table:
    """The table with texts as large strings where they are views, which few functions know."""
    pa = arrow()
    is_view = getattr(pa.types, "is_string_view", lambda _: False)
    for i, field in enumerate(table.schema):
        kind, column = field.type, table.column(i)
        if is_view(kind):
            table = table.set_column(i, field.name, column.cast(pa.large_string()))
        elif pa.types.is_dictionary(kind) and is_view(kind.value_type):
            chunks = [_with_plain_dictionary(chunk) for chunk in column.chunks]
            plain = pa.dictionary(kind.index_type, pa.large_string())
            table = table.set_column(i, field.name, pa.chunked_array(chunks, plain))
    return table


def _with_plain_dictionary(chunk: Any) -> Any:
    pa = arrow()
    return pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(pa.large_string()))


def _is_pandas(data: Any) -> bool:
    return hasattr(data, "set_axis") and hasattr(data, "iloc")


def _is_lazy(data: Any) -> bool:
    return hasattr(data, "collect") and hasattr(data, "collect_schema")


def _line(error: BaseException) -> str:
    """What the library says, which with pyarrow may be several texts, in one line."""
    texts = [str(part).strip().rstrip(".") for part in error.args if str(part).strip()]
    return ", ".join(texts or [type(error).__name__]).splitlines()[0]
