"""The outer step: what rounds do with the averaged change of the weights, beside taking it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from codauc._internal.checks import known_arguments, real


@dataclass(frozen=True)
class Nesterov:
    """Steps with momentum along the change that all workers' weights made since the last round.

        d = mean_k w_k - theta,   m <- momentum m + d,   theta <- theta + lr (d + momentum m)

    theta is where all workers were after the round before. With `lr` 1 and `momentum` 0 it is plain
    averaging. Only w takes outer steps: a, b and alpha have closed forms for given weights, so they
    are averaged, and the outer problem is plain minimisation.

    >>> Nesterov(lr=0.7, momentum=0.9)
    Nesterov(lr=0.7, momentum=0.9)
    """

    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        lr = real("lr", self.lr, above=0, remedy="use 1 to take the mean as it is")
        momentum = real("momentum", self.momentum, least=0, below=1, remedy="use 0 for none")
        object.__setattr__(self, "lr", lr)
        object.__setattr__(self, "momentum", momentum)


Nesterov.__init__ = known_arguments(Nesterov.__init__)  # type: ignore[method-assign]


class OuterStep:
    """Theta and the momentum of one worker; equal on all workers, so that nothing is sent.

    A stage begins with its first weights and without momentum.
    """

    def __init__(self, rule: Nesterov, message: Tensor, weights: int) -> None:
        self.rule, self.count = rule, weights
        self.theta = message.new_zeros(weights)
        self.momentum = message.new_zeros(weights)
        self.begun = False  # whether theta is where all workers were after a round

    def begin(self, message: Tensor) -> None:
        """A stage begins with the weights of this message."""
        self.theta.copy_(message[: self.count])
        self.momentum.zero_()
        self.begun = True

    def take(self, message: Tensor) -> None:
        """Replace the mean of the weights, with which the message begins, by the outer step's."""
        mean, rule = message[: self.count], self.rule
        change = mean - self.theta
        self.momentum.mul_(rule.momentum).add_(change)
        self.theta.add_(change.add_(self.momentum, alpha=rule.momentum), alpha=rule.lr)
        mean.copy_(self.theta)

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint needs, as copies."""
        if not self.begun:
            return {}
        return {"theta": self.theta.clone(), "momentum": self.momentum.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` gave; after nothing, the next stage begins it anew."""
        self.begun = bool(state)
        if not state:
            return
        self.theta.copy_(state["theta"])
        self.momentum.copy_(state["momentum"])
