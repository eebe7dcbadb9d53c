"""AUC, exact with ties, and its confidence interval.

Scores and labels are lists, numpy arrays or torch tensors. Labels are 0/1, -1/+1 or bool.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codauc.checks import known_arguments, real

Scores = NDArray[Any]
Counts = NDArray[np.int64]


class AUC(NamedTuple):
    """An AUC with its confidence interval and DeLong's standard error."""

    value: float
    low: float
    high: float
    std_error: float


@known_arguments
def auc(scores: Any, labels: Any) -> Any:
    """The share of pairs of a positive and a negative that are in the right order; ties count 1/2.

        AUC = ( #{h+ > h-} + #{h+ = h-}/2 ) / (n+ n-)

    h is `scores`. Pairs are counted in integers and divided once. Shape [N] gives a float; shape
    [N, C], C tasks, an array of C values. Infinite scores are in order; NaN is an error.

    >>> auc([0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1])
    0.875
    """
    values, positive = _checked(scores, labels)
    if values.ndim == 1:
        return _auc(*_split(values, positive))
    columns = range(values.shape[1])
    return np.array([_auc(*_split(values[:, c], positive[:, c], c)) for c in columns], dtype=float)


@known_arguments
def auc_interval(scores: Any, labels: Any, level: float = 0.95) -> AUC:
    """The AUC with DeLong's normal confidence interval, cut to [0, 1].

    A placement is the share of the other class that a sample is on the right side of. With S+ and
    S- the sample variances of the placements of the positives and of the negatives,

        std_error^2 = S+/n+ + S-/n-

    - A class with one sample has no S: 1/4 stands for it, the largest variance on [0, 1].
    - If all placements are equal (AUC 0 or 1, or 1/2 with every score tied) std_error is 0, and an
      interval without width would be false comfort. The exact binomial bound stands in its place:
      n = min(n+, n-) disjoint pairs all came out the same, so a pair does so with a chance of at
      least q = ((1 - level)/2)^(1/n). The interval is [q, 1] for AUC = 1, [0, 1-q] for 0, and
      [q/2, 1 - q/2] where all are tied.

    Scores and labels have shape [N]; call it once for each column of [N, C].

    >>> interval = auc_interval([0.1, 0.4, 0.35, 0.8, 0.7, 0.2], [0, 0, 1, 1, 1, 0])
    >>> [round(number, 3) for number in interval]
    [0.889, 0.581, 1.0, 0.157]
    >>> round(auc_interval([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1]).low, 3)  # 0.025 ** (1 / 2)
    0.158
    """
    level = real("level", level, above=0, below=1, remedy="use 0.95 for a 95% interval")
    values, positive = _checked(scores, labels)
    if values.ndim != 1:
        raise ValueError(
            f"scores of shape {list(values.shape)}: expected [N]; "
            "call auc_interval once for each column."
        )
    ups, downs = _split(values, positive)
    # a negative's wins are what its placement lacks to 1, and vary just as much
    wins, losses = _doubled_wins(ups, downs), _doubled_wins(downs, ups)
    value = int(wins.sum()) / (2 * len(ups) * len(downs))
    if np.ptp(wins) == 0 and np.ptp(losses) == 0:
        q = ((1 - level) / 2) ** (1 / min(len(ups), len(downs)))
        return AUC(value, value * q, 1 - (1 - value) * q, 0.0)
    spread_ups = _variance(wins, 2 * len(downs)) / len(ups)
    spread_downs = _variance(losses, 2 * len(ups)) / len(downs)
    error = math.sqrt(spread_ups + spread_downs)
    reach = NormalDist().inv_cdf((1 + level) / 2) * error
    return AUC(value, max(0.0, value - reach), min(1.0, value + reach), error)


def _auc(ups: Scores, downs: Scores) -> float:
    return int(_doubled_wins(ups, downs).sum()) / (2 * len(ups) * len(downs))


def _doubled_wins(mine: Scores, others: Scores) -> Counts:
    """For each of `mine`, 2 #{others below} + #{others equal}; both are sorted."""
    left = np.searchsorted(others, mine, side="left")
    right = np.searchsorted(others, mine, side="right")
    return (left + right).astype(np.int64, copy=False)


def _variance(doubled: Counts, scale: int) -> float:
    """The sample variance of the placements `doubled / scale`; 1/4 if there is only one."""
    return 0.25 if len(doubled) == 1 else float(np.var(doubled / scale, ddof=1))


def _split(
    values: Scores, positive: NDArray[np.bool_], column: int | None = None
) -> tuple[Scores, Scores]:
    """The sorted scores of the positives and of the negatives, at least one of each."""
    ups, downs = np.sort(values[positive]), np.sort(values[~positive])
    if len(ups) == 0 or len(downs) == 0:
        where = "" if column is None else f" in column {column}"
        raise ValueError(
            f"labels{where} with {len(ups)} positives and {len(downs)} negatives: "
            "expected at least one of each; AUC compares the two classes, so evaluate on more data."
        )
    return ups, downs


def _checked(scores: Any, labels: Any) -> tuple[Scores, NDArray[np.bool_]]:
    """Scores without NaN and the mask of the positives, of one shape [N] or [N, C]."""
    values, marks = _array("scores", scores), _array("labels", labels)
    if values.shape != marks.shape or values.ndim not in (1, 2):
        raise ValueError(
            f"scores of shape {list(values.shape)} and labels of shape {list(marks.shape)}: "
            "expected the same shape, [N] or [N, C]; for scores of shape [N, 1] use scores[:, 0]."
        )
    if values.size == 0:
        raise ValueError(
            f"scores and labels of shape {list(values.shape)} are empty: "
            "expected at least one positive and one negative; check what was selected."
        )
    _refuse_nan("scores", values, "look at the model's output, it may have diverged")
    _refuse_nan("labels", marks, "drop the samples without a label")
    return values, _positives(marks)


def _array(name: str, values: Any) -> Scores:
    """`values` as an array of real numbers, none of them changed, so that ties stay ties."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        # numpy has no bfloat16, and float64 holds every value of the smaller types
        values = (values.double() if values.dtype.is_floating_point else values).numpy()
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
    if values.dtype.kind != "f":
        return
    bad = np.isnan(values)
    if bad.any():
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
    if not ((positive | (labels == 0)).all() or (positive | (labels == -1)).all()):
        found = np.unique(labels)
        shown = ", ".join(f"{value:g}" for value in found[:5]) + (", ..." if found.size > 5 else "")
        raise ValueError(
            f"labels with values {shown}: expected 0/1, -1/+1 or bool; "
            "map the classes to two, for example with labels == positive_class."
        )
    return positive
