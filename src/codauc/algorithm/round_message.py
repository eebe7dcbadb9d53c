"""The vector that a round sums over the workers, and what of it is not state."""

from __future__ import annotations

import torch
from torch import Tensor

from codauc.algorithm._large_pages import empty_vector
from codauc.algorithm.ppdsg import PPDSG
from codauc.algorithm.round_costs import REQUESTS, tail_lengths
from codauc.algorithm.round_periods import Measured
from codauc.workers.group import Group

_BASE = 4096  # counts travel as two digits to this base, each exact in float32


class NotFiniteError(ArithmeticError):
    """A worker's weights, or its loss, became infinite or NaN; all workers raise it together."""


class RoundRequests:
    """What this worker asks of all, and what one of them had asked in the last round."""

    def __init__(self) -> None:
        self.asking: set[str] = set()
        self.asked: set[str] = set()
        self.heard = 0  # rounds that carried requests

    def values(self) -> list[float]:
        """One number for each request, for a message."""
        return [float(name in self.asking) for name in REQUESTS]

    def hear(self, sums: Tensor) -> None:
        """Take over the sums of all workers' numbers."""
        self.heard += 1
        self.asked = {r for r, total in zip(REQUESTS, sums.tolist(), strict=True) if total > 0}

    def hear_alone(self) -> None:
        """A single worker hears itself."""
        self.asked = set(self.asking)


class FiniteCheck:
    """Whether the numbers of a worker, and its losses since the last check, are finite."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self.group = group
        self.losses = torch.zeros((), device=device)  # their sum

    def is_finite(self, values: Tensor) -> bool:
        """Whether these values and the losses are."""
        fine = bool((values.sum() + self.losses).isfinite())
        if not fine:  # a sum of finite numbers may overflow
            fine = bool(values.isfinite().all() and self.losses.isfinite())
        self.losses.zero_()
        return fine

    def require(self, *vectors: Tensor) -> None:
        """Raise if this worker's numbers are not finite."""
        self.refuse(float(not all(self.is_finite(vector) for vector in vectors)))

    def refuse(self, bad: float) -> None:
        """Raise if a number of workers above 0 has numbers that are not finite."""
        if bad > 0:
            raise NotFiniteError(
                f"the weights or the loss of {'a' if self.group.size > 1 else 'the'} worker are "
                "not finite: expected numbers; lower the step size, or look for bad input."
            )


class RoundMessage:
    """The state, then label counts, seconds of the last round, requests and a mark of bad numbers.

    With control variates these follow the state. The seconds show who waited: the worker whose
    round took the least waited for nobody. A single worker sends no state. While `measuring`,
    seconds per step and drift come last, for periods that set themselves.
    """

    def __init__(self, opt: PPDSG, group: Group, *, correcting: bool = False) -> None:
        self.opt, self.group, self.measuring = opt, group, False
        self.correcting = correcting  # whether control variates travel
        self.measured = (0.0, 0.0)  # seconds per step and drift of this worker
        self.heard: Measured | None = None  # what the last answer said of all
        self.lay_out()
        self.labels = opt.loss.seen.clone()  # the label counts that the last message reports
        self.requests = RoundRequests()
        self.finite = FiniteCheck(group, self.vector.device)

    def lay_out(self) -> None:
        """Make the vector for what is trained and measured now."""
        self.tail_sizes = tail_lengths(self.opt.loss.tasks, self.group.size, self.measuring)
        self.layout = self.opt.trained.layout()
        several, trained = self.group.size > 1, self.opt.trained
        self.size = trained.size if several else 0  # of the state
        self.variate_size = trained.steered_size if several and self.correcting else 0
        self.vector = self.buffer()

    def buffer(self) -> Tensor:
        """Zeros of the length of a message."""
        trained = self.opt.trained
        size = self.size + self.variate_size + sum(self.tail_sizes)
        return empty_vector(size, trained.dtype, trained.device).zero_()

    @property
    def state(self) -> Tensor:
        """The part that is averaged."""
        return self.vector[: self.size]

    @property
    def variates(self) -> Tensor:
        """The part for control variates, w, a, b and alpha's."""
        return self.vector[self.size : self.size + self.variate_size]

    def pack(self, primal: list[Tensor] | None, divisor: float, seconds: float) -> None:
        """Write the state, divided, with other values in the place of v if given, and the rest.

        A worker that is away reports no labels until it is back.
        """
        loss = self.opt.loss
        self.opt.trained.pack(self.state, primal, divisor)
        digits, times, asking, bad, measures = self._tail()
        self.labels.copy_(loss.reported if self.opt.away else loss.seen)
        fresh = self.labels - loss.reported
        digits[0].copy_(fresh // _BASE)
        digits[1].copy_(fresh % _BASE)
        times.zero_()[self.group.rank] = seconds
        asking.copy_(asking.new_tensor(self.requests.values()))
        bad.fill_(float(not self.finite.is_finite(self.state)))
        measures.copy_(measures.new_tensor(self.measured[: len(measures)]))

    def unpack_tail(self) -> None:
        """Take from the answer what is not state; raise if a worker's numbers are not finite."""
        digits, times, asking, bad, measures = self._tail()
        self.finite.refuse(float(bad))
        self.requests.hear(asking)
        high, low = digits.round().to(torch.int64)
        self.opt.loss.agree(high * _BASE + low, self.labels)
        if (least := float(times.min())) > 0:  # all workers report the round before
            self.group.ledger.of("round").waiting += float(times[self.group.rank]) - least
        if self.measuring:
            step_seconds, drift = (measures / self.group.size).tolist()
            self.heard = Measured(step_seconds, least, drift)

    def _tail(self) -> tuple[Tensor, ...]:
        start = self.size + self.variate_size
        digits, *rest = torch.split(self.vector[start:], self.tail_sizes)
        return digits.view(2, 2, -1), *rest
