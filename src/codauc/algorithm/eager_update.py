"""How a worker continues while a round is under way, and how the round then takes effect."""

from __future__ import annotations

import torch
from torch import Tensor

from codauc.algorithm.ppdsg import PPDSG


class EagerUpdate:
    """The own part of a mean takes effect at once, the others' part when it arrives.

    `base` is the point from which this worker's steps count, x_k = base + its own steps:

        sent:      s_k <- x_k,   base <- base + share (x_k - base),   x_k <- base
        arrived:   x_k <- x_k + (mean - base),                        base <- mean

    With share = 1/K base is what the mean would be had the others stood still, so workers are apart
    by 1/K of their drift, where x_k itself would be apart by all of it. x stands for w, a, b and
    alpha. A stage's first round has no mean to count from: there x_k remains where it is.

    The stage's average of iterates counts those in between as if the mean had been there at once.
    """

    def __init__(self, opt: PPDSG) -> None:
        self.opt = opt
        self.base: Tensor | None = None
        self.sent: Tensor | None = None

    def forget(self) -> None:
        """The next round is the first of a stage."""
        self.base = self.sent = None

    def pack(self, like: Tensor) -> None:
        """Keep the state that a round takes."""
        if self.sent is None:
            self.sent = torch.empty_like(like)
        self.opt.trained.pack(self.sent)

    @property
    def taken(self) -> Tensor:
        """The state that the round under way took."""
        assert self.sent is not None
        return self.sent

    @property
    def taken_weights(self) -> Tensor:
        """The weights in it."""
        return self.taken[: self.opt.trained.weight_size]

    def hold_back(self, share: float) -> None:
        """The round is under way: apply the own part."""
        if self.base is None:
            self.base = self.taken.clone()
        else:
            self.base.lerp_(self.taken, share)
            self.opt.trained.steer(self.base)

    def arrive(self, mean: Tensor, steps: int) -> None:
        """The mean is here, `steps` steps after the round began: apply the others' part."""
        opt, base = self.opt, self.base
        assert base is not None
        change = torch.sub(mean, base, out=base)
        opt.trained.correct(mean, change)
        if opt.average:
            share = steps / opt.steps
            for average, part in zip(opt.result, opt.trained.parts(change), strict=False):
                average.add_(part, alpha=share)
        base.copy_(mean)

    def take_back(self) -> None:
        """The round failed: as if it had not begun."""
        if self.base is not None and self.sent is not None:
            self.opt.trained.shift(self.sent.sub_(self.base))
        self.forget()

    def load(self, base: Tensor | None, sent: Tensor | None) -> None:
        """Take over what a checkpoint holds."""
        device = self.opt.trained.device
        self.base = None if base is None else base.to(device, copy=True)
        self.sent = None if sent is None else sent.to(device, copy=True)
