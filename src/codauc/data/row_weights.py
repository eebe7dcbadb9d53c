"""How much each row counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codauc.workers.group import Group


def checked_weights(where: str, values: Any, count: int | None = None) -> NDArray[np.float64]:
    """Weights of all rows: finite, none below 0, some above.

    >>> checked_weights("weight", [1, 2])
    array([1., 2.])
    """
    weights = np.asarray(values, np.float64)
    if weights.ndim != 1 or (count is not None and len(weights) != count):
        expected = "one per row" if count is None else f"one per row, [{count}]"
        raise ValueError(f"{where} of shape {list(weights.shape)}: expected {expected}.")
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        at = int(bad.argmax())
        raise ValueError(
            f"{where}, row {at}: the weight is {weights[at]:g}; expected a finite number >= 0, "
            "such as 1; use 0 to leave a row out."
        )
    if not weights.any():
        raise ValueError(f"{where}: all weights are zero; expected some above.")
    return weights


def part_weights(
    weights: NDArray[np.float64] | None, rows: Tensor, y: Tensor | None, group: Group
) -> tuple[Tensor | None, tuple[float, float]]:
    """A worker's weights, and the sums of all workers' weights: of positives, and of all.

    Where all are equal there are none: that is training without weights.
    """
    if weights is None:
        return None, (0.0, 0.0)
    mine = torch.from_numpy(weights[rows.numpy()])
    ups = 0.0 if y is None else float(mine[y].sum())
    low, high = float(mine.min()), float(mine.max())
    found = group.gather(torch.tensor([ups, float(mine.sum()), low, high]).double(), "start")
    if float(found[:, 2].min()) == float(found[:, 3].max()):
        return None, (0.0, 0.0)
    return mine, (float(found[:, 0].sum()), float(found[:, 1].sum()))
