"""Control variates: what keeps a worker's steps in the direction of all workers' mean (CODASCA)."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from codauc.algorithm.inner_steps import InnerVariables
from codauc.algorithm.sites import Mean, Sites
from codauc.algorithm.trained_state import TrainedState, view_like

CORRECTIONS = ("scaffold",)


class ControlVariates:
    """c_k, the mean gradient of this worker in the last period, and c, its mean over the workers.

        g <- grad F_k - c_k + c              in the steps of a period, for w
        c_k <- mean of grad F_k over the period's steps
        c   <- sum_k lambda_k c_k            over the workers of the period that comes

    The gradient is corrected before anything is made of it, so that momentum and Adam's moments are
    those of the corrected one. a, b and alpha have steps of their own, explicit or implicit: for
    them c_k is the mean of how far they moved of their own, over the step size, and each step is
    longer by the step size times c - c_k.

    A worker that has not been measured takes its own gradients, and is not in c. The (c - c_k) of
    the workers of a period add up to zero with their weights, so that a worker that is away has no
    part in it, however long. Vectors are laid out as what steps move: w, a, b, alpha.
    """

    def __init__(self, trained: TrainedState, tasks: int, like: Tensor) -> None:
        self.size, self.places = trained.steered_size, dict[Tensor, int]()
        self.own, self.pull, self.total = (like.new_zeros(self.size) for _ in range(3))
        self.steps = 0  # of this period, on all workers
        self.before = 0  # of the last period that was measured
        self.known: set[int] = set()  # workers that have a c_k
        for place, weight in enumerate(trained.weights):
            self.places[weight] = place
        self.pulls, self.totals = (_views(trained.weights, v) for v in (self.pull, self.total))
        self.inner_pull, self.inner_total = (
            vector[trained.weight_size :].view(3, tasks) for vector in (self.pull, self.total)
        )

    def corrected(self, weights: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        """The gradients of some weights with c - c_k; they count towards the next c_k."""
        places = [self.places[weight] for weight in weights]
        torch._foreach_add_([self.totals[i] for i in places], gradients)
        pulls = [self.pulls[i] for i in places]
        return [g + pull.to(g.dtype) for g, pull in zip(gradients, pulls, strict=True)]

    def corrected_inner(
        self, before: InnerVariables, after: InnerVariables, eta: float
    ) -> InnerVariables:
        """a, b and alpha after a step of their own that began at `before`, with the correction."""
        moves: list[Any] = [(b - a) / eta for a, b in zip(before, after, strict=True)]
        if isinstance(moves[0], Tensor):
            self.inner_total.add_(torch.stack(moves))
            pulls: Any = self.inner_pull
        else:
            self.inner_total.add_(self.inner_total.new_tensor(moves).view(3, 1))
            pulls = self.inner_pull[:, 0].tolist()
        return InnerVariables(*(b + eta * pull for b, pull in zip(after, pulls, strict=True)))

    def measured(self, *, closing: bool) -> bool:
        """Whether this period counts: not a stage's last one that is cut short, mostly noise."""
        return self.steps > 0 and not (closing and 2 * self.steps < self.before)

    def coming(self, sites: Sites, *, closing: bool) -> Mean:
        """How c is taken in the round that ends this period: over the workers of the next one."""
        return sites.mean(self._known_then(sites, closing=closing) & sites.there(later=1))

    def _known_then(self, sites: Sites, *, closing: bool) -> set[int]:
        return self.known | sites.there() if self.measured(closing=closing) else self.known

    def pack(self, part: Tensor, divisor: float, *, away: bool, closing: bool) -> None:
        """Write this worker's c_k, divided, into its part of a message."""
        fresh = not away and self.measured(closing=closing)
        if fresh:
            torch.div(self.total, self.steps, out=part)
        else:
            part.copy_(self.own)
        if divisor != 1:
            part.div_(divisor)

    def take(self, part: Tensor, sites: Sites, *, closing: bool) -> None:
        """The round succeeded, and c is in this part of the answer."""
        mean, measured = self.coming(sites, closing=closing), self.measured(closing=closing)
        self.known = self._known_then(sites, closing=closing)
        if measured and not sites.away:
            torch.div(self.total, self.steps, out=self.own)
        if measured:
            self.before = self.steps
        there = sites.rank in self.known and any(mean.shares or (1,))
        torch.sub(part, self.own, out=self.pull) if there else self.pull.zero_()
        self.total.zero_()
        self.steps = 0

    def begin_anew(self) -> None:
        """Nothing is known: of another objective, or of other data."""
        for vector in (self.own, self.pull, self.total):
            vector.zero_()
        self.steps, self.before = 0, 0
        self.known = set()

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint needs, as copies."""
        vectors = {name: getattr(self, name).clone() for name in ("own", "pull", "total")}
        counts = torch.tensor([self.steps, self.before])
        return {**vectors, "counts": counts, "known": torch.tensor(sorted(self.known))}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` gave; after nothing, they begin anew."""
        if not state:
            self.begin_anew()
            return
        for name in ("own", "pull", "total"):
            getattr(self, name).copy_(state[name])
        self.steps, self.before = state["counts"].tolist()
        self.known = {int(worker) for worker in state["known"].tolist()}


def _views(weights: list[Tensor], vector: Tensor) -> list[Tensor]:
    """The part of a vector for each weight, in its shape."""
    starts = accumulate((weight.numel() for weight in weights), initial=0)
    return [
        view_like(weight, vector, start) for weight, start in zip(weights, starts, strict=False)
    ]
