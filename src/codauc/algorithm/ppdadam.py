"""The adaptive step: a size of its own for every weight; a, b and alpha follow the class means."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from codauc._internal.checks import known_arguments, real
from codauc.algorithm.flat_state import Entry
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.optimizer_state import OptimizerState
from codauc.algorithm.ppdsg import PPDSG
from codauc.algorithm.stretches import BLOCK, Cut, Stretch


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
        self._holder = nn.Module()
        self._places: list[Tensor] = []
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
        self.param_groups[-1]["lr"] = self.dual_lr

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

    def _sides(self, stretch: Stretch) -> list[Tensor | None]:
        *sides, _, _ = super()._sides(stretch)
        place = self._place(stretch) if len(stretch.tensors) > 1 else None
        return [*sides, self._second(stretch), place]

    def _place(self, stretch: Stretch) -> Tensor:
        """Where to lay the gradients of several tensors side by side."""
        if not self._places:
            self._places = [v.new_empty(min(BLOCK, len(v))) for v in self.flat.vectors]
        return self._places[stretch.vector][: stretch.size]

    def _state_of(self, stretch: Stretch, index: int) -> list[Tensor]:
        return [*super()._state_of(stretch, index), stretch.view(index, self._second(stretch))]

    def _second(self, stretch: Stretch) -> Tensor:
        """The second moments of a stretch of weights, which lie in the same order."""
        block = stretch.block
        start = next(
            b.start - block.start
            for b in self.flat.blocks
            if b.role == "moment" and (b.group, b.vector) == (block.group, block.vector)
        )
        return self.flat.vectors[block.vector][start + stretch.start : start + stretch.stop]

    def begin_stage(self, lr: float | None = None) -> None:
        """Start a stage: as in `PPDSG`, and the second moments restart, too."""
        super().begin_stage(lr)
        for moment in self._holder.buffers():
            moment.zero_()

    def _move_own(self, ab: Tensor, alpha: Tensor, eta: float) -> Tensor | float | None:
        ratios, (shares, sums) = self.loss.class_ratios, self.loss.class_sums()
        rates = eta / ratios
        moves = rates * (sums - shares * ab) / (1 + rates * shares)
        whole = eta * shares.sum(0)  # of a loss that is scaled, as much less or more
        alpha.add_(moves[1] - moves[0] - (alpha - ab[1] + ab[0]) * (whole / (1 + whole)))
        ab.add_(moves)
        if self.loss.link == "sigmoid":
            alpha.clamp_(-1, 1)  # the optimum is a difference of scores
        if not math.isfinite(self.gamma):
            return None
        sizes = eta / (2 * ratios.prod(0))
        return (sizes / (sizes + self.gamma)).repeat(2)

    def _primal_step(
        self, cut: Cut, gradients: list[Tensor], eta: float, group: dict[str, Any]
    ) -> None:
        if group["weight_decay"]:
            cut.v.mul_(1 - eta * group["weight_decay"])
        direction, scale = self._adam(cut, cut.side_by_side(gradients))
        cut.v.addcdiv_(direction, scale, value=-eta / self._unbiased()[0])
        if math.isfinite(self.gamma):
            sizes = eta / scale
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
        """What Adam's bias leaves of the two moments since the stage began."""
        beta1, beta2 = self.betas
        return 1 - beta1 ** (self.steps + 1), 1 - beta2 ** (self.steps + 1)

    def _check_step_size(self, eta: float) -> None:
        """`eta` is the share of the way that alpha goes in a step."""
        if eta > 1 and hasattr(self, "flat"):
            raise ValueError(
                f"dual_lr times the stage's lr / the first lr is {eta:g}: expected at most 1, "
                "above which alpha diverges; lower dual_lr, or the stage's lr."
            )

    def state_record(self) -> OptimizerState:
        """As in `PPDSG`, and the second moments."""
        return replace(super().state_record(), seconds=[t.clone() for t in self._holder.buffers()])

    def _restore(self, state: OptimizerState) -> None:
        super()._restore(state)
        for mine, saved in zip(self._holder.buffers(), state.seconds, strict=True):
            mine.copy_(saved)

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
