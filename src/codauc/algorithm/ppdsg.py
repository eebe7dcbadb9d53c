"""The local step of the algorithm as a torch optimizer, and the running average of its iterates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import compress
from typing import Any, overload

import torch
from torch import Tensor, nn

from codauc._internal.checks import known_arguments, real
from codauc.algorithm.inner_steps import BatchMeans, InnerVariables, gradient_step, towards
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.parameter_groups import check_modules, checked_options, weight_groups
from codauc.algorithm.staged_optimizer import StagedOptimizer
from codauc.algorithm.step_checks import StepSizeLimit, UntrainedCheck, has_gradients


class PPDSG(StagedOptimizer):
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
    of their own; a, b and alpha are in none of them, so that clipping and unscaling gradients does
    not reach what they need. A parameter without gradient is left alone, as by torch's optimizers.
    What the loss keeps for a, b and alpha is used up by the step: `model.zero_grad()` is enough
    between two steps.

    The step size is the stage's `lr` times the factor `group["lr"] / lr`, so that a torch
    `lr_scheduler` multiplies within a stage. One above 1/(2p(1-p)) makes alpha diverge and is
    refused. One above 1/(2 max(p, 1-p)) could carry a or b past the mean score of its class in the
    batch, and out of all bounds where the batch has more of a class than usual: such a step ends at
    that mean, which is warned about once.

    The tensors stay the model's own: it may be saved, copied, compiled, moved, cast, or wrapped in
    `DistributedDataParallel` before or after. What is frozen or unfrozen counts from the next stage
    on. Under `DistributedDataParallel` a, b and alpha follow the batches of all ranks.

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
        self._kinds: list[Any] = []  # dtypes and devices of the weights at the last step
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
        self.trained.check()
        if self.steps == 0:  # a walk through all modules: once a stage
            self._untrained.check(self)
        dual_size = self._dual_step_size(self.stage_lr)
        self._check_step_size(dual_size)
        if self.away:
            self.pass_by()
            return value
        if not has_gradients(self.trained.weights, self.loss):
            return value  # as torch's optimizers: nothing to do, and not counted
        self._prepare_state()
        self.data_parallel.share(self.loss)
        clip = clip_factor(self.trained.weights, self.max_grad_norm)
        for group in self.param_groups:
            self._step_group(group, clip)
        self._step_own(dual_size)
        self._count()
        return value

    @torch.no_grad()
    def pass_by(self) -> None:
        """Count a step in which this worker, a site that is away, stands still."""
        self._prepare_state()
        for group in self.param_groups:
            states = [self.state[weight] for weight in group["params"] if weight in self.state]
            self._stand_still(states)
            self._average([w for w in group["params"] if w in self.state], states)
        self._average_own(self.loss.inner(numbers=False))
        self.loss.sums.grad = None
        self._count()

    def _stand_still(self, states: list[dict[str, Any]]) -> None:
        """What a step without a gradient makes of what is kept of the weights."""

    def _count(self) -> None:
        self.steps += 1
        if self.variates is not None:
            self.variates.steps += 1

    def _prepare_state(self) -> None:
        """Begin the averages with the stage's first step; follow tensors that were moved."""
        kinds = [(t.dtype, t.device) for t in (*self.trained.weights, self.loss.a)]
        if self.steps == 0:
            self._start_averages()
        elif kinds != self._kinds:
            self._follow_moves()
        self._kinds = kinds

    def _step_group(self, group: dict[str, Any], clip: Tensor | None) -> None:
        """Step the weights that have a gradient, then average all."""
        weights, states = [], []
        for weight in group["params"]:
            kept = self.state.get(weight)
            if kept is None and weight.requires_grad:
                kept = self._join(weight)
            if kept is not None:
                weights.append(weight)
                states.append(kept)
        with_gradient = [w.grad is not None for w in weights]
        if any(with_gradient):
            stepped = list(compress(weights, with_gradient))
            gradients = [_plain_gradient(weight) for weight in stepped]
            if clip is not None:
                gradients = [gradient * clip.to(gradient.dtype) for gradient in gradients]
            if self.variates is not None:
                gradients = self.variates.corrected(stepped, gradients)
            self._primal_step(stepped, gradients, list(compress(states, with_gradient)), group)
        self._average(weights, states)

    def _average(self, weights: list[Tensor], states: list[dict[str, Any]]) -> None:
        """Count the weights as they are now in the stage's average."""
        if self.average and states:
            averages = [state["average"] for state in states]
            values = [w.to(mean.dtype) for w, mean in zip(weights, averages, strict=True)]
            torch._foreach_lerp_(averages, values, 1 / (self.steps + 1))

    def _primal_step(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        states: list[dict[str, Any]],
        group: dict[str, Any],
    ) -> None:
        eta = self._step_size(group)
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - eta * group["weight_decay"])
        direction = gradients
        if group["momentum"]:
            direction = kept_tensors("momentum", weights, states)
            torch._foreach_mul_(direction, group["momentum"])
            torch._foreach_add_(direction, gradients)
        torch._foreach_add_(weights, direction, alpha=-eta)
        if math.isfinite(self.gamma):
            anchors = [state["anchor"] for state in states]
            torch._foreach_lerp_(weights, anchors, eta / (eta + self.gamma))

    def _step_own(self, eta: float) -> None:
        """The step of a, b and alpha; it uses up what the loss has kept for it."""
        loss, means = self.loss, self.loss.batch_means()
        numbers = isinstance(means.up, float)
        p, before = loss.ratio(numbers=numbers), loss.inner(numbers=numbers)
        if numbers and not math.isfinite(sum(means)):  # of a step that a GradScaler skipped
            means = BatchMeans(0.0, 0.0, 0.0, 0.0)
        a, b, alpha = after = self._inner_step(means, p, before, eta)
        if self.variates is not None:
            after = self.variates.corrected_inner(before, after, eta)
            a, b, alpha = self._within_bounds(after)
        if math.isfinite(self.gamma):
            pull, (a0, b0) = self._inner_pull(p, eta), _rows(self.own["anchor"], numbers)
            a, b = towards(a, a0, pull), towards(b, b0, pull)
        inner = InnerVariables(a, b, alpha)
        self._average_own(inner)
        loss.set_inner(inner)
        loss.sums.grad = None

    def _average_own(self, inner: InnerVariables) -> None:
        """Count a and b in the stage's average."""
        if self.average:
            numbers = isinstance(inner.a, float)
            mean, share = self.own["average"], 1 / (self.steps + 1)
            values = zip(_rows(mean, numbers), inner[:2], strict=True)
            rows = [towards(m, v, share) for m, v in values]
            mean.copy_(mean.new_tensor([rows]).t() if numbers else torch.stack(rows))

    def _within_bounds(self, inner: InnerVariables) -> InnerVariables:
        """a, b and alpha, where a correction carried them too far."""
        return inner

    def _inner_step(
        self, means: BatchMeans, pos_ratio: Any, inner: InnerVariables, eta: float
    ) -> InnerVariables:
        """a, b and alpha after a step, before a and b are pulled to the anchor."""
        return gradient_step(means, pos_ratio, inner, eta)

    def _inner_pull(self, pos_ratio: Any, eta: float) -> Any:
        """How far a and b are pulled to the anchor."""
        del pos_ratio
        return eta / (eta + self.gamma)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over what `__getstate__` gave; the copy's parameters are others."""
        super().__setstate__(state)
        self._untrained = UntrainedCheck(self.model)

    def _check_step_size(self, eta: float) -> None:
        self._limit.check(eta, in_stage=self.steps > 0)


def kept_tensors(name: str, weights: list[Tensor], states: list[dict[str, Any]]) -> list[Tensor]:
    """One kind of tensor that is kept of each weight; zeros where it is new."""
    for weight, state in zip(weights, states, strict=True):
        if name not in state:
            state[name] = torch.zeros_like(weight)
    return [state[name] for state in states]


def _rows(tensor: Tensor, numbers: bool) -> Any:
    """The two rows of what is kept of a and b."""
    return tensor.flatten().tolist() if numbers else tensor


def _plain_gradient(weight: Tensor) -> Tensor:
    """A weight's gradient, dense and of its dtype."""
    gradient = weight.grad
    assert gradient is not None
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    return gradient if gradient.dtype == weight.dtype else gradient.to(weight.dtype)


def clip_factor(weights: list[Tensor], longest: float | None) -> Tensor | None:
    """What to multiply gradients by so that together they are at most `longest`; None for 1."""
    gradients = [tensor.grad for tensor in weights if tensor.grad is not None]
    if longest is None or not gradients:
        return None
    dense = (g.to_dense() if g.is_sparse else g for g in gradients)
    wide = [torch.promote_types(g.dtype, torch.float32) for g in gradients]
    widest = torch.float64 if torch.float64 in wide else torch.float32
    norms = [torch.linalg.vector_norm(g, dtype=widest) for g in dense]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    return torch.clamp(longest / (norm + 1e-6), max=1.0)
