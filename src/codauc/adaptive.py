"""The adaptive step: a size of its own for every weight, and for a, b and alpha their curvature."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from codauc.checks import known_arguments, real
from codauc.flat import Block, Entry
from codauc.loss import MinMaxAUCLoss
from codauc.optim import PPDSG
from codauc.stretches import BLOCK, Cut, Stretch


class PPDAdam(PPDSG):
    """The proximal primal-dual step with Adam's sizes for w, and Newton's for a, b and alpha.

        m <- beta1 m + (1 - beta1) g,   s <- beta2 s + (1 - beta2) g^2
        w <- argmin_u <m^, u> + |u - w|_H^2 / (2 eta) + |u - w0|^2 / (2 gamma),  H = sqrt(s^) + eps
        (a, b, alpha) move by eta_d / (2p(1-p)) times their gradients, in the mean curvature

    m^ and s^ are without Adam's bias, the first since the stage began, the second since the very
    first step. eta is `lr` and decides how far a weight moves in a step, whatever the scale of its
    gradients; so tables of any scale, rare positives and deep layers need no tuning. F is a
    quadratic in a, b and alpha with the curvature 2p(1-p): `dual_lr`, eta_d <= 1, is the share of
    the way to the batch's class means that they go in a step.

    s is part of the state that rounds average, in the same collective: the message is twice as long
    as that of `PPDSG` (`compress` concerns the weights alone). m stays with its worker. The rest is
    as in `PPDSG`, whose other arguments mean the same; `gamma` is infinite unless given.

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
        if self.dual_lr > 1:
            raise ValueError(f"dual_lr={dual_lr!r}: expected at most 1, the whole way; use 0.1.")
        self.moment_steps = 0  # since the optimizer was made
        self._holder = nn.Module()
        self._places: list[Tensor] = []
        self._curvatures: dict[int, Tensor] = {}
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
        for group in self.param_groups[-2:]:
            group["lr"] = self.dual_lr

    def _moments(self, entries: list[Entry]) -> list[Entry]:
        """A second moment beside each weight, laid out in the same order."""
        found = []
        for index, entry in enumerate(e for e in entries if e.role == "weight"):
            name = f"s{index}"
            self._holder.register_buffer(name, torch.zeros_like(entry.tensor.detach()))
            title = _title(entry)
            found.append(Entry(title, "moment", entry.group, self._holder, name))
        return found

    def _has_momentum(self) -> bool:
        return True

    def _way(self, block: Block, sizes: list[float]) -> tuple[Any, ...]:
        return (block.role, *super()._way(block, sizes))

    def _sides(self, stretch: Stretch) -> list[Tensor | None]:
        *sides, second, place = super()._sides(stretch)
        if stretch.block.role == "weight":
            second = self._second(stretch)
        if len(stretch.tensors) > 1:
            place = self._place(stretch)
        return [*sides, second, place]

    def _place(self, stretch: Stretch) -> Tensor:
        """Where to lay the gradients of several tensors side by side."""
        if not self._places:
            self._places = [v.new_empty(min(BLOCK, len(v))) for v in self.flat.vectors]
        return self._places[stretch.vector][: stretch.size]

    def _state_of(self, stretch: Stretch, index: int) -> list[Tensor]:
        kept = super()._state_of(stretch, index)
        if stretch.block.role == "weight":
            kept.append(stretch.view(index, self._second(stretch)))
        return kept

    def _second(self, stretch: Stretch) -> Tensor:
        """The second moments of a stretch of weights, which lie in the same order."""
        block = stretch.block
        start = next(
            b.start - block.start
            for b in self.flat.blocks
            if b.role == "moment" and (b.group, b.vector) == (block.group, block.vector)
        )
        return self.flat.vectors[block.vector][start + stretch.start : start + stretch.stop]

    def _step(self, closure: Any = None) -> Any:
        before = self.steps
        value = super()._step(closure)
        self.moment_steps += self.steps - before
        return value

    def _dual_step(self, alpha: Tensor, gradient: Tensor, eta: float) -> None:
        alpha.add_(gradient * self._inverse_curvature(1), alpha=eta)

    def _primal_step(
        self, role: str, cut: Cut, gradients: list[Tensor], eta: float, group: dict[str, Any]
    ) -> None:
        gradient = cut.side_by_side(gradients)
        if role == "ab":
            sizes, direction = eta * self._inverse_curvature(2), gradient
            cut.v.addcmul_(direction, sizes, value=-1)
        else:
            if group["weight_decay"]:
                cut.v.mul_(1 - eta * group["weight_decay"])
            direction, scale = self._adam(cut, gradient)
            cut.v.addcdiv_(direction, scale, value=-eta / self._unbiased()[0])
            if not math.isfinite(self.gamma):
                return
            sizes = eta / scale
        if math.isfinite(self.gamma):
            cut.v.lerp_(cut.anchor, sizes / (sizes + self.gamma))

    def _adam(self, cut: Cut, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The direction, with Adam's bias, and what to divide each of its numbers by."""
        assert cut.momentum is not None
        assert cut.second is not None
        beta1, beta2 = self.betas
        first = cut.momentum.lerp_(gradient, 1 - beta1)
        second = cut.second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        return first, second.sqrt().mul_(self._unbiased()[1] ** -0.5).add_(self.eps)

    def _unbiased(self) -> tuple[float, float]:
        """What Adam's bias leaves of the moments: since the stage began, since the first step."""
        beta1, beta2 = self.betas
        return 1 - beta1 ** (self.steps + 1), 1 - beta2 ** (self.moment_steps + 1)

    def _inverse_curvature(self, times: int) -> Tensor:
        """1/(2p(1-p)) of each task, so many times; kept where p is given."""
        found = self._curvatures.get(times)
        if found is None or self.loss.known_ratio is None:
            p = self.loss.pos_ratio
            self._curvatures[times] = found = (0.5 / (p * (1 - p))).repeat(times)
        return found

    def _check_step_size(self, eta: float) -> None:
        """`eta` is the share of the way that alpha goes in a step."""
        if eta > 1 and hasattr(self, "flat"):
            raise ValueError(
                f"dual_lr times the stage's lr / the first lr is {eta:g}: expected at most 1, "
                "above which alpha diverges; lower dual_lr, or the stage's lr."
            )

    def state_dict(self) -> dict[str, Any]:
        """All of the optimizer's state, with the second moments."""
        whole = super().state_dict()
        state = whole["state"]["ppdsg"]
        state["seconds"] = [t.clone() for t in self._holder.buffers()]
        state["moment_steps"] = self.moment_steps
        return whole

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave; the argument is neither kept nor changed."""
        super().load_state_dict(state_dict)
        state = state_dict["state"]["ppdsg"]
        for mine, saved in zip(self._holder.buffers(), state["seconds"], strict=True):
            mine.copy_(saved)
        self.moment_steps = state["moment_steps"]

    def settings(self) -> dict[str, Any]:
        """Also Adam's numbers."""
        adam = {"betas": list(self.betas), "eps": self.eps, "dual_lr": self.dual_lr}
        return {**super().settings(), "adam": adam}


def _title(entry: Entry) -> str:
    return f"second moment of {entry.name}"


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
