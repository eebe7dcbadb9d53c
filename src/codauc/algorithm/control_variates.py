"""Control variates: what keeps a worker's steps in the direction of all workers' mean (CODASCA)."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from codauc.algorithm.inner_steps import InnerVariables
from codauc.algorithm.sites import Mean, Sites
from codauc.algorithm.trained_state import TrainedState, view_like

CORRECTIONS = ("scaffold",)
FADING = 0.8  # by which a c_k counts less after each period in which its worker was away
_VECTORS = ("own", "pull", "total", "sum")


class ControlVariates:
    """c_k, the mean gradient of this worker in the last period, and c, its mean over the workers.

        g <- grad F_k - c_k + c              in the steps of a period, for w
        c_k <- mean of grad F_k over the period's steps
        c   <- sum_k omega_k c_k / sum_k omega_k,   omega_k = lambda_k 0.8^(periods it was away)

    The gradient is corrected before anything is made of it, so that momentum and Adam's moments are
    those of the corrected one. a, b and alpha have steps of their own, explicit or implicit: for
    them c_k is the mean of how far they moved of their own, over the step size, and each step is
    longer by the step size times c - c_k.

    A worker that has not been measured takes its own gradients, and is not in c. One that is away
    stays in c by what it measured last, so that the others also follow what is known of its data,
    but counts less and less: one that is gone is forgotten. Messages carry by how much each
    worker's part of the sum changes, zeros for those that were away; all keep the sum. Vectors are
    laid out as what steps move: w, a, b, alpha.
    """

    def __init__(self, trained: TrainedState, tasks: int, like: Tensor, rank: int) -> None:
        self.size, self.places = trained.steered_size, dict[Tensor, int]()
        self.own, self.pull, self.total, self.sum = (like.new_zeros(self.size) for _ in range(4))
        self.steps = 0  # of this period, on all workers
        self.before = 0  # of the last period that was measured
        self.rank = rank
        self.ages: dict[int, int] = {}  # of the workers that have a c_k: periods since it was new
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

    def mean(self, sites: Sites, *, closing: bool) -> Mean:
        """How the changes of c_k add up in the round that ends this period."""
        mean = sites.mean(sites.able)
        fresh = self.measured(closing=closing) and not sites.away
        return mean if fresh else mean._replace(divisor=math.inf)

    def pack(self, part: Tensor, mean: Mean, *, divided: bool) -> None:
        """Write by how much this worker's part of the sum changes, zeros if it was not measured."""
        if math.isinf(mean.divisor):
            part.zero_()
            return
        torch.div(self.total, self.steps, out=part)
        if self.rank in self.ages:
            part.sub_(self.own, alpha=FADING ** (self.ages[self.rank] + 1))
        if divided:
            part.div_(mean.divisor)

    def take(self, part: Tensor, sites: Sites, *, closing: bool) -> None:
        """The round succeeded, and the sum of all changes is in this part of the answer."""
        if self.measured(closing=closing):
            if not sites.away:
                torch.div(self.total, self.steps, out=self.own)
            self.sum.mul_(FADING).add_(part)
            self.ages = {k: age + 1 for k, age in self.ages.items()}
            self.ages |= dict.fromkeys(sites.there(), 0)
            self.before = self.steps
        shares = sites.mean(sites.able).shares or ()
        weight = sum(shares[k] * FADING**age for k, age in self.ages.items())
        if self.rank in self.ages and weight > 0:
            torch.div(self.sum, weight, out=self.pull).sub_(self.own)
        else:
            self.pull.zero_()
        self.total.zero_()
        self.steps = 0

    def begin_anew(self) -> None:
        """Nothing is known: of another objective, or of other data."""
        for vector in (self.own, self.pull, self.total, self.sum):
            vector.zero_()
        self.steps, self.before = 0, 0
        self.ages = {}

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint needs, as copies."""
        vectors = {name: getattr(self, name).clone() for name in _VECTORS}
        counts = torch.tensor([self.steps, self.before])
        return {**vectors, "counts": counts, "ages": torch.tensor([*self.ages.items()]).view(-1, 2)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` gave; after nothing, they begin anew."""
        if not state:
            self.begin_anew()
            return
        for name in _VECTORS:
            getattr(self, name).copy_(state[name])
        self.steps, self.before = state["counts"].tolist()
        self.ages = {int(k): int(age) for k, age in state["ages"].tolist()}


def _views(weights: list[Tensor], vector: Tensor) -> list[Tensor]:
    """The part of a vector for each weight, in its shape."""
    starts = accumulate((weight.numel() for weight in weights), initial=0)
    return [
        view_like(weight, vector, start) for weight, start in zip(weights, starts, strict=False)
    ]
