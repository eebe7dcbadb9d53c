"""What a training loop may ask of the rounds, and read from them, beside the rounds themselves."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from codauc._internal.checks import choice
from codauc.algorithm.ppdsg import PPDSG
from codauc.algorithm.round_costs import REQUESTS
from codauc.algorithm.round_schedule import RoundSchedule
from codauc.algorithm.rounds import Around, Averager, observing_rounds
from codauc.algorithm.schedules import Stage
from codauc.workers.group import Group


class RoundControls:
    """Requests to all workers, finite numbers, drift and observers of `CoDA`'s rounds."""

    opt: PPDSG
    group: Group
    averager: Averager
    schedule: RoundSchedule
    current: Stage | None
    closed: bool

    def _after_step(self, *_: Any) -> None:
        raise NotImplementedError

    def average_gradients(self) -> None:
        """Before `opt.step()`: data parallel training, a message at every step, in place of rounds.

        All workers call it and then take the same step.
        """
        self.averager.gradients()

    def ask(self, request: str) -> None:
        """Ask something of all workers, until it is withdrawn: "stop", "leave" or "save".

        It travels with the next round; what it means is up to the loop.
        """
        self.averager.requests.asking.add(choice("request", request, REQUESTS))

    def withdraw(self, request: str) -> None:
        """Ask no longer."""
        self.averager.requests.asking.discard(request)
        self.averager.requests.asked.discard(request)

    def asked(self, request: str) -> bool:
        """Whether a worker had asked when the last round began: equal on all of them."""
        requests = self.averager.requests
        return request in (requests.asked if self.group.size > 1 else requests.asking)

    @property
    def requests_heard(self) -> int:
        """How many rounds carried requests so far."""
        return self.averager.requests.heard

    @property
    def alike(self) -> bool:
        """Whether all workers have the same state: right after a round that was not delayed."""
        delayed = self.schedule.delay > 0
        return 0 < self.opt.steps == self.schedule.synced_at and not delayed

    def period_changes(self) -> list[dict[str, float]]:
        """Where the period sets itself: stage (from 0), step, period, and what it was found from.

        Seconds per step and per round and the drift are there for "auto"; 0 is not known yet.
        """
        changes: list[dict[str, float]] = []
        for stage, step, period, measured in self.schedule.periods.decisions:
            known = {} if measured is None else measured._asdict()
            changes.append({"stage": stage, "step": step, "period": period, **known})
        return changes

    @property
    def under_way(self) -> bool:
        """Whether a delayed round has begun and not yet taken effect."""
        return self.averager.under_way

    @property
    def away(self) -> bool:
        """Whether this worker, a site, takes no part until the next round."""
        return self.opt.away and self.current is not None and not self.closed

    def skip(self) -> None:
        """Pass one step of a period in which this worker is away, in place of a batch.

        `stage` does it by itself; loops that have more to do at a step, on all workers, call it.
        """
        if not self.away or self.current is None or self.opt.steps >= self.current.steps:
            raise RuntimeError("skip() of a worker that is not away: it takes steps of its own.")
        self.opt.pass_by()
        self._after_step()

    def same_everywhere(self) -> None:
        """Give every worker the state of worker 0, as at the start."""
        self.averager.same_everywhere()

    def observing_rounds(self, around: Around) -> AbstractContextManager[None]:
        """A block inside which every round happens inside `around()`."""
        return observing_rounds(self.averager, around)

    def count_loss(self, loss: Tensor) -> None:
        """Let the next round also see whether the loss of this step is finite."""
        losses = self.averager.finite.losses
        losses.add_(loss.detach().to(losses))

    def check_finite(self) -> None:
        """Raise if this worker's weights or losses are not finite; rounds do it for all workers."""
        self.averager.finite.require(*self.opt.trained.tensors())

    def watch_drift(self) -> None:
        """Let rounds note how far this worker was from the mean: one more pass over the weights."""
        self.averager.watching = True

    @property
    def drift(self) -> float | None:
        """|w - mean of all workers' w| / |mean|, when last averaged; None before."""
        return self.averager.drift
