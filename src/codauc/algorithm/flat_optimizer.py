"""An optimizer whose model and loss live in one flat vector, and what it keeps between steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from codauc.algorithm.flat_state import Entry, FlatState, entries_of
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.optimizer_state import OptimizerState
from codauc.algorithm.parameter_groups import checked_options
from codauc.algorithm.stretches import StretchPlan


class FlatOptimizer(torch.optim.Optimizer):
    """Memory, stages and saved state of `PPDSG`; the step itself is the subclass's.

    The last parameter group is that of a, b and alpha.
    """

    flat: FlatState  # model, a, b, alpha and BatchNorm statistics; made last
    gamma: float
    max_grad_norm: float | None

    def __init__(
        self,
        model: nn.Module,
        loss: MinMaxAUCLoss,
        groups: list[dict[str, Any]],
        defaults: dict[str, float],
        *,
        average: bool,
    ) -> None:
        if not isinstance(average, bool):
            raise ValueError(f"average={average!r}: expected True, or False for the last iterate.")
        self.model, self.loss, self.average = model, loss, average
        self.base_lr = self.stage_lr = defaults["lr"]
        self.steps = 0
        self.engaged = False  # whether a CoDA drives it
        self._check_step_size(self.stage_lr)
        plain = {"momentum": 0.0, "weight_decay": 0.0}
        super().__init__([*groups, {"params": [loss.sums], **plain}], defaults)
        self._flatten([group["params"] for group in groups])

    def _flatten(self, groups: list[list[nn.Parameter]]) -> None:
        entries = list(entries_of(self.model, groups))
        names = {"a": "ab", "b": "ab", "alpha": "alpha"}
        for name, role in names.items():
            entries.append(Entry(f"loss.{name}", role, len(groups), self.loss, name))
        self.flat = flat = FlatState([*entries, *self._moments(entries)])
        self.anchor = flat.like_primal()
        self.averages = flat.like_primal(torch.float32) if self.average else []
        self.momenta: list[Tensor] = []  # made when a group first has momentum
        (self._ab,) = (block for block in flat.blocks if block.role == "ab")
        self._weights = [entry.tensor for entry in flat.entries if entry.role == "weight"]
        self._plan = StretchPlan(flat)

    def _moments(self, entries: list[Entry]) -> list[Entry]:
        """Further tensors that rounds average: none for plain steps."""
        del entries
        return []

    def _check_step_size(self, eta: float) -> None:
        """Raise if a, b and alpha cannot take steps of this size."""
        raise NotImplementedError

    def begin_stage(self, lr: float | None = None) -> None:
        """Start a stage: the next step begins at its anchor; averages and momentum restart."""
        lr = self.stage_lr if lr is None else checked_options({"lr": lr})["lr"]
        self._check_step_size(self._step_size(self.param_groups[-1], lr))
        self.stage_lr, self.steps = lr, 0
        for vector in [*self.averages, *self.momenta]:
            vector.zero_()

    @torch.no_grad()
    def end_stage(self) -> None:
        """Take the stage's result, the average of its iterates, as the point to begin anew from."""
        if self.steps:
            for v, result in zip(self.flat.primal, self.result, strict=True):
                v.copy_(result)
            self.flat.mark_changed()
        self.begin_stage()

    @property
    def result(self) -> list[Tensor]:
        """What the stage returns: the running average of v, or its last value."""
        return self.averages if self.average else self.flat.primal

    def _step_size(self, group: dict[str, Any], stage_lr: float) -> float:
        return stage_lr * (float(group["lr"]) / self.base_lr)

    @property
    def step_size(self) -> float:
        """The step size of the next step: the stage's, times what a scheduler makes of it."""
        return self._step_size(self.param_groups[-1], self.stage_lr)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused once the vector is laid out: make a new optimizer instead."""
        if hasattr(self, "flat"):
            raise ValueError(
                "a parameter group cannot join a PPDSG that is already laid out: "
                "make a new PPDSG, between stages, with params=[...]."
            )
        param_group.update(checked_options(param_group))
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """All of the optimizer's state and the loss's a, b, alpha and counts, as copies."""
        return self.state_record().pack()

    def state_record(self) -> OptimizerState:
        """The same as a record."""
        groups = super().state_dict()["param_groups"]
        return OptimizerState(
            layout=self.flat.layout(),
            anchor=_copies(self.anchor),
            averages=_copies(self.averages),
            momenta=_copies(self.momenta),
            loss={name: t.detach().clone() for name, t in self.loss.state_dict().items()},
            steps=self.steps,
            stage_lr=self.stage_lr,
            base_lr=self.base_lr,
            gamma=self.gamma,
            max_grad_norm=self.max_grad_norm,
            settings=self.settings(),
            param_groups=[dict(group) for group in groups],
        )

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave; the argument is neither kept nor changed."""
        state = OptimizerState.unpack(state_dict)
        state.check(self.flat.layout(), self.settings(), set(self.loss.state_dict()))
        super().load_state_dict({"state": {}, "param_groups": state.param_groups})
        self._restore(state)

    def _restore(self, state: OptimizerState) -> None:
        """Take over a checked state."""
        self.momenta = self.flat.like_primal() if state.momenta else []
        self._plan.reset()
        _copy_into(self.anchor, state.anchor)
        _copy_into(self.averages, state.averages)
        _copy_into(self.momenta, state.momenta)
        self.loss.load_state_dict(state.loss)
        self.steps, self.stage_lr = state.steps, state.stage_lr
        self.base_lr, self.gamma = state.base_lr, state.gamma
        self.max_grad_norm = state.max_grad_norm

    def settings(self) -> dict[str, Any]:
        """What a saved state must share with the optimizer that loads it, beside the layout."""
        loss = self.loss
        return {
            "tensors": len(self.flat.entries),
            "groups": [len(group["params"]) for group in self.param_groups],
            "average": self.average,
            "pos_ratio": None if loss.known_ratio is None else list(loss.known_ratio),
            "margin": loss.margin,
            "link": loss.link,
        }

    def __getstate__(self) -> dict[str, Any]:
        """Refused: a copy would no longer share memory with the model it trains."""
        raise TypeError("PPDSG cannot be copied or pickled: make a new one and load_state_dict.")


def _copies(vectors: Iterable[Tensor]) -> list[Tensor]:
    return [vector.clone() for vector in vectors]


def _copy_into(targets: Iterable[Tensor], saved: Iterable[Tensor]) -> None:
    for target, tensor in zip(targets, saved, strict=True):
        target.copy_(tensor)
