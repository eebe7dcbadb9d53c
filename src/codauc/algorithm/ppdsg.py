"""The local step of the algorithm as a torch optimizer, and the running average of its iterates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor, nn

from codauc._internal.checks import known_arguments, real
from codauc.algorithm.flat_optimizer import FlatOptimizer
from codauc.algorithm.flat_state import Block
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.parameter_groups import check_modules, checked_options, weight_groups
from codauc.algorithm.step_checks import StepSizeLimit, UntrainedCheck, has_gradients
from codauc.algorithm.stretches import Cut, Stretch, clip_factor


class PPDSG(FlatOptimizer):
    """Proximal primal-dual stochastic gradient: descends in v = (w, a, b), ascends in alpha.

        v     <- argmin_u <g, u> + |u - v|^2 / (2 eta) + |u - v0|^2 / (2 gamma)
               = (gamma (v - eta g) + eta v0) / (eta + gamma)
        alpha <- alpha + eta dF/dalpha

    with both gradients at the old point. eta is `lr`, gamma is `gamma` (`math.inf`: no pull), v0 is
    the anchor: where the stage began. w are the model's parameters that ask for gradients; a, b and
    alpha are the loss's. The running average of the stage's iterates is kept in at least float32;
    with `average=False` the stage returns its last iterate instead.

    `weight_decay` (decoupled), `momentum` (torch's meaning: buf = momentum buf + g) and
    `max_grad_norm` concern w alone; a, b and alpha always take the paper's step. `params` may give
    torch's parameter groups over the model's parameters, with `lr`, `weight_decay` and `momentum`
    of their own; the last of `param_groups` is that of a, b and alpha. A parameter without gradient
    is left alone, as by torch's optimizers. What the loss keeps for a, b and alpha is used up by
    the step: `model.zero_grad()` is enough between two steps.

    The step size is the stage's `lr` times the factor `group["lr"] / lr`, so that a torch
    `lr_scheduler` multiplies within a stage. One above 1/(2p(1-p)) makes alpha diverge and is
    refused. One above 1/(2 max(p, 1-p)) could carry a or b past the mean score of its class in the
    batch, and out of all bounds where the batch has more of a class than usual: such a step ends at
    that mean, which is warned about once.

    All tensors become views of one flat vector: move and cast the model before. A step touches
    memory once, in parts that fit the processor's cache.

    >>> model, loss = nn.Linear(3, 1), MinMaxAUCLoss(pos_ratio=0.5)
    >>> opt = PPDSG(model, loss, lr=0.1, gamma=500.0)
    >>> loss(model(torch.ones(2, 3)), torch.tensor([0, 1])).backward()
    >>> opt.step()
    >>> opt.steps
    1
    """

    @known_arguments
    def __init__(
        self,
        model: nn.Module,
        loss: MinMaxAUCLoss,
        *,
        lr: float = 0.1,
        gamma: float = 500.0,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
        average: bool = True,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]] | None = None,
    ) -> None:
        check_modules(model, loss)
        pull = "use math.inf for no pull to the anchor"
        self.gamma = real("gamma", gamma, above=0, below=None, remedy=pull)
        self.max_grad_norm = None
        if max_grad_norm is not None:
            remedy = "use None not to clip"
            self.max_grad_norm = real("max_grad_norm", max_grad_norm, above=0, remedy=remedy)
        defaults = checked_options({"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._limit, self._untrained = StepSizeLimit(loss), UntrainedCheck(model)
        super().__init__(model, loss, weight_groups(model, params), defaults, average=average)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One local step from the gradients at hand."""
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        flat = self.flat
        flat.check()
        self._untrained.check(all_modules=self.steps == 0)  # a walk through all: once a stage
        sizes = [self._step_size(group, self.stage_lr) for group in self.param_groups]
        self._check_step_size(sizes[-1])
        if not has_gradients(self._weights, self.loss):
            return value  # as torch's optimizers: nothing to do, and not counted
        if not self.momenta and self._has_momentum():
            self.momenta = flat.like_primal()
            self._plan.reset()
        if self.steps == 0:
            for anchor, v in zip(self.anchor, flat.primal, strict=True):
                anchor.copy_(v)
        clip = clip_factor(self._weights, self.max_grad_norm, flat.dtype)
        ways = [self._way(block, sizes) for block in flat.blocks]
        for stretch in self._plan.get(ways, self._sides):
            self._step_stretch(stretch, sizes[stretch.block.group], clip)
        self._step_own(sizes[-1])
        flat.mark_changed()
        self.steps += 1
        return value

    def _has_momentum(self) -> bool:
        return any(group["momentum"] for group in self.param_groups[:-1])

    def _way(self, block: Block, sizes: list[float]) -> tuple[Any, ...]:
        """What tells the step of one block from that of another."""
        group = self.param_groups[block.group]
        return (sizes[block.group], group["momentum"], group["weight_decay"], self.max_grad_norm)

    def _sides(self, stretch: Stretch) -> list[Tensor | None]:
        """What `Stretch.cut` wants."""
        kept = (self.flat.vectors, self.anchor, self.averages, self.momenta)
        sides = [stretch.of(vectors) if vectors else None for vectors in kept]
        return [*sides, None, None]

    def _step_stretch(self, stretch: Stretch, eta: float, clip: Tensor | None) -> None:
        """Step and average, part by part; what has no gradient is left alone."""
        gradients, missing = stretch.gradients()
        group = self.param_groups[stretch.block.group]
        kept = [(t, t.clone()) for i in missing if gradients for t in self._state_of(stretch, i)]
        for cut, own in zip(stretch.cuts, gradients, strict=False):
            if clip is not None:
                own = [gradient * clip.to(gradient.dtype) for gradient in own]
            self._primal_step(cut, own, eta, group)
            if not missing:
                self._average(cut)
        for tensor, before in kept:
            tensor.copy_(before)
        for cut in stretch.cuts if missing else ():
            self._average(cut)

    def _average(self, cut: Cut) -> None:
        if cut.average is not None:
            v = cut.v if cut.average.dtype == cut.v.dtype else cut.v.to(cut.average.dtype)
            cut.average.lerp_(v, 1 / (self.steps + 1))

    def _step_own(self, eta: float) -> None:
        """The step of a, b and alpha; it uses up what the loss has kept for it."""
        ab = self._ab.of(self.flat.vectors)
        pull = self._move_own(ab.view(2, -1), self.loss.alpha, eta)
        if pull is not None:
            ab.lerp_(self._ab.of(self.anchor), pull)
        if self.averages:
            average = self._ab.of(self.averages)
            average.lerp_(ab.to(average.dtype), 1 / (self.steps + 1))
        self.loss.sums.grad = None

    def _move_own(self, ab: Tensor, alpha: Tensor, eta: float) -> Tensor | float | None:
        """Move a, b and alpha, and return how far a and b are pulled to the anchor thereafter.

        a and b go no further than to the batch's class means: below the step size that is warned
        about, they never would.
        """
        slopes = self.loss.slopes()
        shorter = slopes.curvatures.mul_(eta).clamp_(min=1)
        ab.addcdiv_(slopes.ab, shorter, value=-eta)
        alpha.add_(slopes.alpha, alpha=eta)
        return eta / (eta + self.gamma)

    def _primal_step(
        self, cut: Cut, gradients: list[Tensor], eta: float, group: dict[str, Any]
    ) -> None:
        if group["weight_decay"]:
            cut.v.mul_(1 - eta * group["weight_decay"])
        if group["momentum"]:
            assert cut.momentum is not None
            cut.momentum.mul_(group["momentum"])
            torch._foreach_add_(cut.momenta, gradients)
            cut.v.add_(cut.momentum, alpha=-eta)
        else:
            torch._foreach_add_(cut.tensors, gradients, alpha=-eta)
        cut.v.lerp_(cut.anchor, eta / (eta + self.gamma))

    def _state_of(self, stretch: Stretch, index: int) -> list[Tensor]:
        """One tensor of a stretch, and what the optimizer keeps of it from step to step."""
        kept = [stretch.tensors[index].data]
        if self.momenta:
            kept.append(stretch.view(index, stretch.of(self.momenta)))
        return kept

    def _check_step_size(self, eta: float) -> None:
        self._limit.check(eta, in_stage=self.steps > 0)
