"""A batch whose samples have weights."""

from __future__ import annotations

from typing import Any

from codauc.algorithm.closed_form import Given, are_readable
from codauc.algorithm.loss_checks import checked_weights


def weighted(given: Given, weights: Any, mean_weight: float | None, *, check: bool) -> Given:
    """The same batch with weights, as multiples of `mean_weight`, or of the batch's own mean."""
    marks = given.marks
    checked = checked_weights(weights, tuple(marks.shape), values=check)
    found = checked.to(marks.device, marks.dtype)
    if mean_weight is None:
        mean = found.mean()
        if are_readable(found) and not float(mean):
            raise ValueError(
                "weights: all of the batch are 0; expected some above. Skip the batch, or set "
                "mean_weight of the loss to the mean weight of all data."
            )
        found = found / mean
    else:
        found = found / mean_weight
    share: Any = (found * marks).mean(0)
    whole: Any = found.mean(0)
    if isinstance(given.pos_ratio, float):
        share, whole = share.item(), whole.item()
    return given._replace(share=share, other=whole - share, weights=found)


def check_ratio_is_known(ratio: tuple[float, ...] | None) -> None:
    """Raise where p would be estimated: labels are counted without weights."""
    if ratio is None:
        raise ValueError(
            "weights without pos_ratio: expected the share of positives among the weights of all "
            "data, the sum of the positives' weights over the sum of all."
        )
