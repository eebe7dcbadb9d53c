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
    """Finds parameters that ask for gradients and would not be trained."""

    def __init__(self, model: nn.Module) -> None:
        self.known = {id(p) for p in model.parameters()}

    def check(self, opt: StagedOptimizer, *, all_modules: bool) -> None:
        """Raise if there is one; `all_modules` also looks for parameters added since.

        Those that were unfrozen within a stage join it, unless rounds without them are under way.
        """
        trained = {id(weight) for weight in opt.trained.weights}
        groups = [group["params"] for group in opt.param_groups[:-1]]
        new = [p for group in groups for p in group if p.grad is not None and id(p) not in trained]
        if new and not opt.engaged:
            opt.join(new)
        elif new:
            raise RuntimeError(
                f"{_name(opt.model, new[0])} was unfrozen within a stage of CoDA, whose rounds do "
                "not average it: unfreeze between two stages."
            )
        if all_modules:
            added = [p for p in opt.model.parameters() if id(p) not in self.known]
            listed = {id(p) for group in groups for p in group}
            missing = [p for p in added if p.requires_grad and id(p) not in listed]
            if missing:
                raise RuntimeError(
                    f"{_name(opt.model, missing[0])} asks for gradients, but was not there when "
                    "the optimizer was made, and would not be trained: add it by "
                    "opt.add_param_group({'params': ...}), or make a new optimizer."
                )


def _name(model: nn.Module, parameter: Tensor) -> str:
    return next((name for name, p in model.named_parameters() if p is parameter), "a parameter")


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
