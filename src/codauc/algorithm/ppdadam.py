"""The adaptive step: a size of its own for every weight; a, b and alpha follow the class means."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from codauc._internal.checks import known_arguments, real
from codauc.algorithm.inner_steps import BatchMeans, InnerVariables, implicit_step
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.ppdsg import PPDSG, kept_tensors


class PPDAdam(PPDSG):
    """The proximal primal-dual step with Adam's sizes for w, and implicit steps for a, b and alpha.

        m <- beta1 m + (1 - beta1) g,   s <- beta2 s + (1 - beta2) g^2
        w <- argmin_u <m^, u> + |u - w|_H^2 / (2 eta) + |u - w0|^2 / (2 gamma),  H = sqrt(s^) + eps
        a <- argmin_u F_batch(u) + |u - a|^2 p(1-p) / eta_d,   b alike
        alpha <- alpha + (change of b) - (change of a) - eta_d / (1 + eta_d) (alpha - (b - a))

    m^ and s^ are without Adam's bias. Both moments begin anew with each stage: a stage may have
    another objective, whose gradients are of another size. eta is `lr` and decides how far a weight
    moves in a step, whatever the scale of its gradients; so tables of any scale, rare positives and
    deep layers need no tuning.

    F is a quadratic in a and b, and the batch's minimiser is its class's mean score. A batch whose
    share of positives is r p moves a by r eta_d / (1 + r eta_d) of the way there: with eta_d, which
    is `dual_lr`, where the share is the usual one and eta_d is small, and never beyond it, however
    many positives it has. alpha's optimum is b - a at the optimal a and b. Its step is the gradient
    in alpha less a part of mean zero, by which a batch has more or fewer positives than usual, and
    so does not leave [-1, 1] (with the sigmoid) where positives are rare or shards differ.

    s is part of the state that rounds average, in the same collective: the message is twice as long
    as that of `PPDSG` (`compress` sends s in as many bits as the weights). m stays with its worker.
    The rest is as in `PPDSG`, whose other arguments mean the same; `gamma` is infinite unless
    given.

    >>> model, loss = nn.Linear(3, 1), MinMaxAUCLoss(pos_ratio=0.01)
    >>> opt = PPDAdam(model, loss, lr=1e-3)
    >>> before = model.weight.detach().clone()
    >>> loss(model(torch.ones(2, 3)), torch.tensor([0, 1])).backward()
    >>> opt.step()
    >>> (model.weight - before).abs().max().item() < 1.01e-3
    True
    """

    @known_arguments
    def __init__(
        self,
        model: nn.Module,
        loss: MinMaxAUCLoss,
        *,
        lr: float = 1e-3,
        dual_lr: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        gamma: float = math.inf,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
        average: bool = True,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]] | None = None,
    ) -> None:
        self.betas, self.eps = _betas(betas), real("eps", eps, above=0, remedy="use 1e-8")
        self.dual_lr = real("dual_lr", dual_lr, above=0, remedy="use for example 0.1")
        for group in params if isinstance(params, list | tuple) else ():
            if isinstance(group, dict) and "momentum" in group:
                raise ValueError("parameter group with momentum: PPDAdam has betas instead.")
        super().__init__(
            model,
            loss,
            lr=lr,
            gamma=gamma,
            weight_decay=weight_decay,
            max_grad_norm=max_grad_norm,
            average=average,
            params=params,
        )
        for options in (self.defaults, *self.param_groups):  # where torch's schedulers look
            del options["momentum"]
            options["betas"] = self.betas

    def moments(self, weights: list[Tensor]) -> list[Tensor]:
        """The second moments, which rounds average."""
        return kept_tensors("second", weights, [self.state[weight] for weight in weights])

    def _fresh_state(self, weight: Tensor) -> dict[str, Any]:
        kept = {"updates": 0, "first": torch.zeros_like(weight), "second": torch.zeros_like(weight)}
        return {**super()._fresh_state(weight), **kept}

    def _dual_step_size(self, stage_lr: float) -> float:
        """`dual_lr` times the stage's lr over the first lr; schedulers do not touch it."""
        return self.dual_lr * stage_lr / self.base_lr

    def _inner_step(
        self, means: BatchMeans, pos_ratio: Any, inner: InnerVariables, eta: float
    ) -> InnerVariables:
        return self._within_bounds(implicit_step(means, pos_ratio, inner, eta))

    def _within_bounds(self, inner: InnerVariables) -> InnerVariables:
        if self.loss.link != "sigmoid":
            return inner
        alpha = inner.alpha  # whose optimum is a difference of scores
        held = alpha.clamp(-1, 1) if isinstance(alpha, Tensor) else min(1.0, max(-1.0, alpha))
        return inner._replace(alpha=held)

    def _inner_pull(self, pos_ratio: Any, eta: float) -> Any:
        size = eta / (2 * pos_ratio * (1 - pos_ratio))
        return size / (size + self.gamma)

    def _stand_still(self, states: list[dict[str, Any]]) -> None:
        for state in states:  # the second moments that rounds bring are of all steps
            state["updates"] += 1

    def _primal_step(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        states: list[dict[str, Any]],
        group: dict[str, Any],
    ) -> None:
        eta, (beta1, beta2) = self._step_size(group), group["betas"]
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - eta * group["weight_decay"])
        for state in states:
            state["updates"] += 1
        firsts, seconds = ([state[name] for state in states] for name in ("first", "second"))
        torch._foreach_lerp_(firsts, gradients, 1 - beta1)
        torch._foreach_mul_(seconds, beta2)
        torch._foreach_addcmul_(seconds, gradients, gradients, value=1 - beta2)
        scales = torch._foreach_sqrt(seconds)
        torch._foreach_mul_(scales, [(1 - beta2 ** s["updates"]) ** -0.5 for s in states])
        torch._foreach_add_(scales, self.eps)
        sizes = [-eta / (1 - beta1 ** state["updates"]) for state in states]
        torch._foreach_addcdiv_(weights, firsts, scales, sizes)
        if math.isfinite(self.gamma):
            for weight, state, scale in zip(weights, states, scales, strict=True):
                own_eta = eta / scale
                weight.lerp_(state["anchor"], own_eta / (own_eta + self.gamma))

    def _check_step_size(self, eta: float) -> None:
        """Any size is stable: the steps of a, b and alpha are implicit."""

    def settings(self) -> dict[str, Any]:
        """Also Adam's numbers."""
        adam = {"betas": list(self.betas), "eps": self.eps, "dual_lr": self.dual_lr}
        return {**super().settings(), "adam": adam}


def _betas(betas: tuple[float, float]) -> tuple[float, float]:
    remedy = "use (0.9, 0.999)"
    try:
        first, second = betas
    except (TypeError, ValueError):
        raise ValueError(f"betas={betas!r}: expected two numbers below 1; {remedy}.") from None
    return (
        real("beta1", first, least=0, below=1, remedy=remedy),
        real("beta2", second, least=0, below=1, remedy=remedy),
    )
