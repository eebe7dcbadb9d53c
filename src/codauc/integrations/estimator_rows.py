"""What an estimator is given as X: an array, a sparse matrix or a frame, as rows to read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data  # type: ignore[import-untyped]

from codauc._internal.checks import listed
from codauc.data import Encoder
from codauc.data.dataset import Part
from codauc.data.tables import read_table
from codauc.data.tables.columnar_files import arrow
from codauc.data.tables.frames import as_arrow, frame_names, is_frame

Array = NDArray[Any]
_SMALL = 1000  # rows of an array whose order does not count
Rows = Any  # a numpy array, a sparse matrix of scipy in CSR form, or a pyarrow table


def frame_columns(X: Any) -> list[str] | None:
    """The names of the columns of a frame; None for an array or a sparse matrix."""
    return frame_names(X) if is_frame(X) else None


def checked_rows(estimator: Any, X: Any, columns: list[str] | None, *, reset: bool) -> Rows:
    """`X` as numbers, dense or sparse, or as a table without the columns to be dropped.

    `columns` are those of the frame of training, None if that was an array. With `reset` it is `X`
    that the estimator is trained on.
    """
    given, drop = frame_columns(X), as_names(estimator.drop)
    if columns is not None and given is not None:
        keep = [name for name in given if name not in _columns_to_drop(given, drop)]
        table = as_arrow(X, keep)
        known = X if hasattr(X, "shape") else _empty(given, table.num_rows)
        validate_data(estimator, known, reset=reset, skip_check_array=True)
        if not table.num_rows:  # in scikit-learn's words, which its checks look for
            raise ValueError(
                f"Found array with 0 sample(s) (shape=(0, {len(given)})) while a minimum of 1 is "
                "required."
            )
        return table
    options = {"allow_nd": True, "ensure_all_finite": "allow-nan", "accept_sparse": "csr"}
    x = validate_data(estimator, X, reset=reset, **options)
    if columns is None:
        return x
    return _as_table(x, columns, drop)


def as_names(columns: Any) -> tuple[str, ...]:
    """Names of columns, given as one, several or none."""
    if columns is None:
        return ()
    return (columns,) if isinstance(columns, str) else tuple(str(name) for name in columns)


def _empty(columns: list[str], rows: int) -> Rows:
    """A table without values, for scikit-learn to find the names of a frame it does not know."""
    return arrow().table({name: arrow().nulls(rows) for name in columns})


def _columns_to_drop(columns: list[str], drop: tuple[str, ...]) -> tuple[str, ...]:
    missing = [name for name in drop if name not in columns]
    if missing:
        raise ValueError(
            f"drop has {listed(missing)}: expected columns of the frame, {listed(columns)}."
        )
    return drop


def _as_table(x: Any, columns: list[str], drop: tuple[str, ...]) -> Rows:
    """Numbers, as a table with the columns of training."""
    dense = x if isinstance(x, np.ndarray) else x.toarray()
    chosen = {name: dense[:, i] for i, name in enumerate(columns) if name not in drop}
    return arrow().table(chosen)


def read_rows(x: Rows, labels: Array, **options: Any) -> Part:
    """Rows with their labels: beside an array, in a further column of a table."""
    if not is_frame(x):
        return read_table(x, labels, nan="missing", **options)
    name = "target"
    while name in x.column_names:
        name += "_"
    table = x.append_column(name, arrow().array(labels))
    return read_table(table, name, nan="missing", **options)


def in_own_order(x: Rows, labels: Array, weights: Array | None) -> tuple[Array, bool]:
    """Which rows of a small array to train on, and whether weights are thereby accounted for.

    They are sorted by their values, so that the model does not depend on the order of the rows. A
    whole weight is a row repeated as often: both give the same model, to the last digit.
    """
    numbers = np.arange(len(labels))
    if is_frame(x) or len(labels) > _SMALL:
        return numbers, False
    dense = x if isinstance(x, np.ndarray) else x.toarray()
    numbers = np.lexsort((labels, *dense.reshape(len(labels), -1).T))
    if weights is None or (weights != weights.round()).any() or weights.sum() > _SMALL:
        return numbers, False
    return np.repeat(numbers, weights[numbers].astype(np.int64)), True


def first_encoder(x: Rows, labels: Array, categories: tuple[str, ...]) -> Encoder:
    """What the columns hold, by the first rows of a stream; also if they are of one class."""
    if not 0 < labels.sum() < len(labels):
        twice = np.tile(np.arange(len(labels)), 2)
        labels = np.repeat([0, 1], len(labels))
        x = x.take(twice) if is_frame(x) else x[twice]
    encoder = read_rows(x, labels, categories=categories).encoder
    assert encoder is not None
    return encoder
