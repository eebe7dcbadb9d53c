"""What an optimizer puts into a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor


@dataclass
class OptimizerState:
    """The state of `PPDSG` or `PPDAdam` beside the model's weights; `pack` gives a plain dict."""

    layout: list[list[str]]  # of what is trained
    frozen: list[str]  # names of weights that were frozen within the stage
    own: dict[str, Tensor]  # anchor and average of a and b
    loss: dict[str, Tensor]  # a, b, alpha and label counts
    steps: int  # of the stage so far
    stage_lr: float
    base_lr: float
    first_lr: float
    gamma: float
    max_grad_norm: float | None
    settings: dict[str, Any]  # that model, loss and optimizer must share with these
    param_groups: list[dict[str, Any]]
    state: dict[int, dict[str, Any]]  # anchor, average and moments by the weight's index

    def pack(self) -> dict[str, Any]:
        """The state in the form of torch's optimizers."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: own.pop(name) for name in ("state", "param_groups")} | {"ppdsg": own}

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> OptimizerState:
        """What `pack` gave; the tensors are shared."""
        own = packed.get("ppdsg")
        if own is None:
            raise ValueError("state_dict: expected one of PPDSG.state_dict(); this is of another.")
        state = {int(index): kept for index, kept in packed["state"].items()}
        return cls(**own, param_groups=packed["param_groups"], state=state)

    def check(self, layout: list[list[str]], settings: dict[str, Any], loss: set[str]) -> None:
        """Raise if it is of another model, other settings, or a loss with other tensors."""
        for here, there in zip(layout, self.layout, strict=False):
            if here[:3] != list(there[:3]):
                raise ValueError(
                    f"state_dict of another model: {' '.join(there)} there, {' '.join(here)} here; "
                    "build the same model, with the same parameters frozen, before loading."
                )
        for name in {**settings, **self.settings}:
            saved, setting = self.settings.get(name), settings.get(name)
            if saved != setting:
                raise ValueError(
                    f"state_dict with {name}={saved}, here {setting}: "
                    "make model, loss and PPDSG as they were when it was saved."
                )
        missing = sorted(loss ^ self.loss.keys())
        if missing:
            raise ValueError(f"state_dict whose loss differs in {missing}: it is not whole.")

    def tensors_to_average(self) -> Iterator[Tensor]:
        """What each worker has of its own, and a state for other workers has as a mean."""
        for kept in (*self.state.values(), self.own):
            yield from (tensor for tensor in kept.values() if isinstance(tensor, Tensor))
        yield from (tensor for tensor in self.loss.values() if tensor.is_floating_point())

    def forget_unreported_labels(self) -> None:
        """Keep only the label counts that a round has summed: no worker has the others."""
        self.loss["seen"] = self.loss["reported"].clone()
