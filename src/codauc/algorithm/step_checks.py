"""What PPDSG refuses or warns about before a step."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from codauc._internal.checks import warn
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.staged_optimizer import StagedOptimizer
from codauc.algorithm.theory import step_limits


class StepSizeLimit:
    """Refuses a step size with which alpha diverges; warns once if a and b may be held back."""

    def __init__(self, loss: MinMaxAUCLoss) -> None:
        self.loss = loss
        self.warned = False

    def check(self, eta: float, *, in_stage: bool) -> None:
        """Compare with both limits; an estimated p is read from the device only between stages."""
        if eta <= 0.5:  # the smallest value that either limit can have
            return
        ratios = self.loss.known_ratio
        if ratios is None:
            if in_stage or self.loss.a.is_meta:
                return
            ratios = tuple(self.loss.pos_ratio.tolist())
        limits = [(p, *step_limits(p)) for p in ratios]
        for p, refused, warned in limits:
            if eta > refused:
                raise ValueError(
                    f"lr={eta:g} with pos_ratio={p:g}: expected at most 1/(2p(1-p)) = {refused:g}, "
                    f"above which alpha diverges; use at most 1/(2 max(p, 1-p)) = {warned:g}."
                )
        for p, _, warned in limits:
            if eta > warned and not self.warned:
                self.warned = True
                warn(
                    f"lr={eta:g} with pos_ratio={p:g} is above 1/(2 max(p, 1-p)) = {warned:g}: "
                    "steps of a and b that would pass their class's mean score in the batch end "
                    "there; lower lr for the paper's own steps."
                )


class UntrainedCheck:
    """Finds parameters that were added to the model and would not be trained."""

    def __init__(self, model: nn.Module) -> None:
        self.known = {id(p) for p in model.parameters()}

    def check(self, opt: StagedOptimizer) -> None:
        """Raise if there is one."""
        listed = {id(p) for group in opt.param_groups for p in group["params"]}
        for name, p in opt.model.named_parameters():
            if p.requires_grad and id(p) not in self.known and id(p) not in listed:
                raise RuntimeError(
                    f"{name} asks for gradients, but was not there when the optimizer was made, "
                    "and would not be trained: add it by opt.add_param_group({'params': ...}), or "
                    "make a new optimizer."
                )


def has_gradients(weights: Iterable[Tensor], loss: MinMaxAUCLoss) -> bool:
    """Whether there is anything to do; raise if backward() did not reach a, b and alpha."""
    own = loss.sums.grad is not None
    if not own and any(tensor.grad is not None for tensor in weights):
        raise RuntimeError(
            "backward() reached the model but not a, b and alpha: expected one backward() of "
            "the loss given to PPDSG before each step(); the loop's loss may be another one, "
            "or step() was called twice."
        )
    return own
