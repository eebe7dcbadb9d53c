"""What scikit-learn's users pass as X and y, as rows and labels."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import (  # type: ignore[import-untyped]
    assert_all_finite,
    check_consistent_length,
)
from sklearn.utils.multiclass import check_classification_targets  # type: ignore[import-untyped]
from sklearn.utils.validation import (  # type: ignore[import-untyped]
    column_or_1d,
    validate_data,
)

from codauc._internal.checks import listed
from codauc.data.dataset import Part
from codauc.data.tables import read_table

Array = NDArray[Any]


def is_frame(X: Any) -> bool:
    """Whether it is a pandas frame, or something like it."""
    return hasattr(X, "columns") and hasattr(X, "set_axis")


def frame_columns(X: Any) -> list[str] | None:
    """The names of a frame's columns, as texts; None for an array."""
    return [str(name) for name in X.columns] if is_frame(X) else None


def checked_rows(estimator: Any, X: Any, columns: list[str] | None, *, reset: bool) -> Any:
    """`X` as an array of numbers, or as a frame without the columns to be dropped.

    `columns` are those of the frame of training, None if that was an array. With `reset` it is `X`
    that the estimator is trained on.
    """
    if columns is not None and is_frame(X):
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        return _without(X.set_axis(frame_columns(X), axis=1), as_names(estimator.drop))
    options = {"allow_nd": True, "ensure_all_finite": "allow-nan"}
    x = validate_data(estimator, X, reset=reset, **options)
    if columns is None:
        return x
    frame = import_module("pandas").DataFrame(x, columns=columns)
    return _without(frame, as_names(estimator.drop))


def as_names(columns: Any) -> tuple[str, ...]:
    """Names of columns, given as one, several or none."""
    if columns is None:
        return ()
    return (columns,) if isinstance(columns, str) else tuple(str(name) for name in columns)


def _without(frame: Any, drop: tuple[str, ...]) -> Any:
    """A frame without some of its columns."""
    missing = [name for name in drop if name not in frame.columns]
    if missing:
        raise ValueError(
            f"drop has {listed(missing)}: expected columns of the frame, {listed(frame.columns)}."
        )
    return frame.drop(columns=list(drop))


def checked_targets(x: Any, y: Any) -> Array:
    """`y` as one label for each row of `x`."""
    if y is None:
        raise ValueError("AUCClassifier requires y to be passed, but the target y is None.")
    y = column_or_1d(y, warn=True)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    check_consistent_length(x, y)
    return np.asarray(y)


def two_classes(classes: Array) -> Array:
    """The classes, if they are two."""
    if len(classes) > 2:
        raise ValueError(
            "Only binary classification is supported. The type of the target is multiclass: got "
            f"the classes {listed(classes.tolist())}; use OneVsRestClassifier for more than two."
        )
    if len(classes) < 2:
        raise ValueError(
            f"y has one class alone, {listed(classes.tolist())}: expected two classes; AUC needs "
            "both."
        )
    return classes


def positives(y: Array, classes: Array) -> Array:
    """1 where `y` is the second class, 0 where it is the first."""
    unknown = np.setdiff1d(y, classes)
    if len(unknown):
        raise ValueError(
            f"y has {listed(unknown.tolist())}: expected the classes of training, "
            f"{listed(classes.tolist())}."
        )
    return np.asarray(y == classes[1], np.int64)


def read_rows(x: Any, labels: Array, **options: Any) -> Part:
    """Rows with their labels: beside an array, in a further column of a frame."""
    if isinstance(x, np.ndarray):
        return read_table(x, labels, nan="missing", **options)
    name = "target"
    while name in x.columns:
        name += "_"
    return read_table(x.assign(**{name: labels}), name, nan="missing", **options)
