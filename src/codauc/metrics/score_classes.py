"""Scores and labels as they are given, checked and sorted by class.

They are lists, numpy arrays or torch tensors. Labels are 0/1, -1/+1 or bool.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[Any]
Counts = NDArray[np.int64]
_BLOCK = 2048  # scores searched for at a time


def sorted_classes(scores: Any, labels: Any) -> tuple[Scores, Scores]:
    """The sorted scores of the positives and of the negatives, as int64 or float64, none changed.

    Either may be empty: it is a worker's part of the data.
    """
    values, positive = checked(scores, labels, empty=True, columns=False)
    return _classes(_widened(values), positive)


def split_classes(
    values: Scores, positive: NDArray[np.bool_], column: int | None = None
) -> tuple[Scores, Scores]:
    """The sorted scores of the positives and of the negatives, at least one of each."""
    ups, downs = _classes(values, positive)
    require_both(len(ups), len(downs), "" if column is None else f" in column {column}")
    return ups, downs


def _classes(values: Scores, positive: NDArray[np.bool_]) -> tuple[Scores, Scores]:
    """The sorted scores of the positives and of the negatives."""
    # for classes of equal size compress takes a third of the time of a mask as an index
    ups, downs = values.compress(positive), values.compress(~positive)
    ups.sort()
    downs.sort()
    return ups, downs


def require_both(positives: int, negatives: int, where: str = "") -> None:
    """Raise unless there is at least one of each class."""
    if positives == 0 or negatives == 0:
        raise ValueError(
            f"labels{where} with {positives} positives and {negatives} negatives: "
            "expected at least one of each; AUC compares the two classes, so evaluate on more data."
        )


def checked(
    scores: Any, labels: Any, *, empty: bool = False, columns: bool = True
) -> tuple[Scores, NDArray[np.bool_]]:
    """Scores without NaN and the mask of the positives, of one shape: [N], or [N, C] if allowed."""
    values, marks = _array("scores", scores), _array("labels", labels)
    if values.shape != marks.shape or values.ndim not in (1, 2):
        raise ValueError(
            f"scores of shape {list(values.shape)} and labels of shape {list(marks.shape)}: "
            "expected the same shape, [N] or [N, C]; for scores of shape [N, 1] use scores[:, 0]."
        )
    if values.size == 0 and not empty:
        raise ValueError(
            f"scores and labels of shape {list(values.shape)} are empty: "
            "expected at least one positive and one negative; check what was selected."
        )
    _refuse_nan("scores", values, "check the model's output, it may have diverged")
    _refuse_nan("labels", marks, "drop the samples without a label")
    if values.ndim == 2 and not columns:
        raise ValueError(
            f"scores of shape {list(values.shape)}: expected [N]; call it once for each column."
        )
    return values, _positives(marks)


def edges_of(values: Scores, grid: Scores) -> tuple[Counts, Counts]:
    """#{values below} and #{values up to} each point of the grid; both are sorted."""
    left = _below(values, grid)
    right = left.copy()
    if len(values):
        # a score without an equal needs no second search
        tied = (values.take(left, mode="clip") == grid).nonzero()[0]
        right[tied] = values.searchsorted(grid[tied], side="right")
    return left, right


def _below(values: Scores, grid: Scores) -> Counts:
    """#{values below} each point of the grid; both are sorted.

    In blocks, since a search through a few values stays in the cache: AUC takes 0.8 of the time.
    """
    found, low = np.empty(len(grid), np.int64), 0
    for start in range(0, len(grid), _BLOCK):
        block, out = grid[start : start + _BLOCK], found[start : start + _BLOCK]
        high = low + int(values[low:].searchsorted(block[-1]))
        np.add(values[low:high].searchsorted(block), low, out=out)
        low = high
    return found


def _widened(values: Scores) -> Scores:
    """`values` as int64 or float64, the same numbers."""
    with np.errstate(over="ignore"):
        wide = values.astype(np.float64 if values.dtype.kind == "f" else np.int64)
    if (wide != values).any():
        raise ValueError(
            f"scores of type {values.dtype}: expected values that {wide.dtype} holds exactly; "
            f"convert them, for example with .astype({wide.dtype.name!r})."
        )
    return wide


def _array(name: str, values: Any) -> Scores:
    """`values` as an array of real numbers, none of them changed, so that ties stay ties."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().resolve_neg()
        try:
            values = values.numpy()
        except TypeError:  # numpy has no bfloat16, and float64 holds every value of the small types
            values = values.double().numpy()
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{name}: expected numbers of shape [N] or [N, C], got {type(values).__name__} that "
            f"numpy cannot read ({error}); give an array, a tensor or a list of numbers."
        ) from error
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} of type {array.dtype}: expected real numbers; convert them, "
            "for example with .astype(float)."
        )
    return array


def _refuse_nan(name: str, values: Scores, remedy: str) -> None:
    # the largest is NaN if any is, and takes no memory to find
    if values.dtype.kind == "f" and np.isnan(values.max(initial=-np.inf)):
        bad = np.isnan(values)
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{name} with {int(bad.sum())} NaN, the first at index "
            f"{first[0] if len(first) == 1 else first}: expected numbers; {remedy}."
        )


def _positives(labels: Scores) -> NDArray[np.bool_]:
    """The mask of the positives in labels 0/1, -1/+1 or bool."""
    if labels.dtype.kind == "b":
        return labels
    positive: NDArray[np.bool_] = labels == 1
    others = labels.size - np.count_nonzero(positive)
    if not any(np.count_nonzero(labels == negative) == others for negative in (0, -1)):
        found = np.unique(labels)
        shown = ", ".join(f"{value:g}" for value in found[:5]) + (", ..." if found.size > 5 else "")
        raise ValueError(
            f"labels with values {shown}: expected 0/1, -1/+1 or bool; "
            "map the classes to two, for example with labels == positive_class."
        )
    return positive
