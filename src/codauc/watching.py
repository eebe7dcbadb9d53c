"""Looks at the validation set: which weights are looked at, and the scores of all workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from codauc.agreement import gather_bytes
from codauc.data.opening import Part
from codauc.evaluation import logits_of
from codauc.group import Group
from codauc.optim import PPDSG

_CPU = torch.device("cpu")


class Window:
    """The mean of the models that all workers shared since it was last used; nothing is sent."""

    def __init__(self, opt: PPDSG) -> None:
        self.opt, self.count = opt, 0
        self.means = [torch.zeros_like(weights) for weights in self._weights()]

    def _weights(self) -> list[Tensor]:
        flat = self.opt.flat
        return [block.of(flat.vectors) for block in flat.blocks if block.role == "weight"]

    @torch.no_grad()
    def add(self) -> None:
        """Count the weights as they are now."""
        self.count += 1
        for mean, weights in zip(self.means, self._weights(), strict=True):
            mean.lerp_(weights, 1 / self.count)

    @contextmanager
    def as_weights(self) -> Iterator[None]:
        """The model has the mean for weights while this lasts; then a new mean begins."""
        own = [weights.clone() for weights in self._weights()]
        if self.count:
            self._set(self.means)
        try:
            yield
        finally:
            self._set(own)
            self.count = 0

    @torch.no_grad()
    def _set(self, values: list[Tensor]) -> None:
        for weights, value in zip(self._weights(), values, strict=True):
            weights.copy_(value)
        self.opt.flat.mark_changed()

    def state_dict(self) -> dict[str, Any]:
        """The mean so far, as a copy."""
        return {"count": self.count, "means": [mean.clone() for mean in self.means]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a mean that was saved."""
        self.count = int(state["count"])
        for mean, saved in zip(self.means, state["means"], strict=True):
            mean.copy_(saved)


class Watch:
    """The validation set: every worker scores its part, all know the scores of all."""

    def __init__(self, model: nn.Module, part: Part | None, group: Group) -> None:
        self.model, self.part, self.group = model, part, group
        self.labels: NDArray[np.bool_] = np.empty(0, bool)
        if part is not None:
            assert part.y is not None
            self.labels = gathered(part.y.numpy().astype(np.bool_), group)

    def look(self, drift: float | None) -> tuple[NDArray[Any], float | None]:
        """All scores, in the order of the labels, and the root mean square of the drifts."""
        assert self.part is not None
        scores = scores_of(self.model, self.part)
        if self.group.size == 1:
            return scores, None
        drifts = gathered(np.array([np.nan if drift is None else drift]), self.group)
        mean = None if np.isnan(drifts).any() else float(np.sqrt((drifts**2).mean()))
        return gathered(scores, self.group), mean


def scores_of(model: nn.Module, part: Part) -> NDArray[Any]:
    """The logits of a worker's samples, as float32."""
    if not len(part.x):
        return np.empty(0, np.float32)
    return logits_of(model, part.x).astype(np.float32, copy=False)


def gathered(values: NDArray[Any], group: Group) -> NDArray[Any]:
    """The workers' arrays, end to end in the order of ranks, on each of them."""
    if group.size == 1:
        return values
    parts = gather_bytes(group, values.tobytes(), "evaluate", _CPU)
    return np.concatenate([np.frombuffer(part, values.dtype) for part in parts])
