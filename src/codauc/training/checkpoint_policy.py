"""When a run saves its state, and how it leaves when it is asked to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from codauc.algorithm.rounds import NotFiniteError
from codauc.runs.checkpoints import Checkpoints, Found
from codauc.training.profiler import Clock, Section
from codauc.training.run_progress import RunProgress
from codauc.workers.signals import AskedToLeave

_GRACE = 3.0  # seconds in which a worker that was asked to leave waits for a round


@dataclass(frozen=True)
class RunControl:
    """By default nothing is requested, saved, resumed or measured.

    Once `requested` is true on a worker for "stop", all end at the next round with what they have;
    for "leave", all save their states and raise `AskedToLeave`; for "save", they save and continue.
    """

    requested: Callable[[str], bool] = lambda _: False  # called after each step
    checkpoints: Checkpoints | None = None  # where states are saved
    found: Found | None = None  # the states to resume from
    data: Mapping[str, Any] = field(default_factory=dict)  # identifies the data
    clock: Clock | None = None  # measures where the time goes

    def section(self, name: Section) -> AbstractContextManager[None]:
        """Inside this block the time belongs to the section `name`, if it is measured."""
        return nullcontext() if self.clock is None else self.clock.section(name)


class CheckpointPolicy:
    """Saves by rounds, by time and on request, so that all workers save the same moment.

    Right after a round all workers know the requests of all, and save together. In between, a
    worker that waits too long for a round saves alone: what all have saved after the same round
    belongs together.
    """

    def __init__(self, progress: RunProgress, control: RunControl) -> None:
        self.progress, self.coda, safety = progress, progress.coda, progress.settings.safety
        self._rounds = safety.checkpoint_rounds or math.inf
        self._seconds = 60 * safety.checkpoint_minutes or math.inf
        self.checkpoints, self.requested = control.checkpoints, control.requested
        self.section = control.section
        self._saved_at = time.monotonic()
        self._leaving: float | None = None  # since when

    def forward_requests(self) -> None:
        """Let the next round carry what this process was asked for."""
        for name in ("stop", "leave", "save"):
            if self.requested(name):
                self.coda.ask(name)

    def notice_round(self, step: int) -> bool:
        """Whether a round took effect at this step, so that all know the requests of all."""
        heard = self.coda.requests_heard
        fresh = self.coda.group.size == 1 or heard != self.progress.heard
        if fresh:
            self.progress.rounds.step, self.progress.heard = step, heard
        return fresh

    def after_step(self, step: int, *, fresh: bool) -> None:
        """Save if it is time to; raise `AskedToLeave` if the run was asked to leave."""
        if self.checkpoints is None:
            return
        if fresh:
            self._after_round(step)
        elif not self.coda.under_way:  # all are after the same round
            self._between_rounds(step)

    def _after_round(self, step: int) -> None:
        assert self.checkpoints is not None
        self.progress.rounds.since_saved += 1
        due = self.progress.rounds.since_saved >= self._rounds
        if self.coda.group.rank == 0 and time.monotonic() - self._saved_at > self._seconds:
            self.coda.ask("save")
        leave = self.coda.asked("leave")
        if not (due or leave or self.coda.asked("save") or self.coda.asked("stop")):
            return
        if self.coda.group.size == 1:
            self.coda.check_finite()
        if leave:
            self._leave(step, everyone=True)
        self.coda.withdraw("save")
        self._saved_at, self.progress.rounds.since_saved = time.monotonic(), 0
        with self.section("checkpoint"):
            self.checkpoints.save(self.progress.rounds.step, self.progress.pack())

    def _between_rounds(self, step: int) -> None:
        if self.coda.group.apart and self.requested("leave"):
            self._leaving = self._leaving or time.monotonic()
            if time.monotonic() - self._leaving > _GRACE:
                self._leave(step)
        if time.monotonic() - self._saved_at > 1.5 * self._seconds:
            self._saved_at = time.monotonic()
            self._save_alone()

    def _save_alone(self) -> None:
        """Save the state of this worker, unless its numbers are not finite."""
        assert self.checkpoints is not None
        with suppress(NotFiniteError), self.section("checkpoint"):
            self.coda.check_finite()
            self.checkpoints.save_alone(self.progress.rounds.step, self.progress.pack())

    def _leave(self, step: int, *, everyone: bool = False) -> NoReturn:
        assert self.checkpoints is not None
        self._save_alone()
        self.checkpoints.confirm() if everyone else self.checkpoints.wait()
        raise AskedToLeave(step, saved=self.checkpoints.written == self.progress.rounds.step)

    def leave_after_failed_round(self, step: int, *, resumable: bool) -> None:
        """Leave if this worker was asked to, too: another one left first, so the round failed.

        `resumable`: the round can be repeated from the state as it is now.
        """
        if self.checkpoints is None or not self.requested("leave"):
            return
        if resumable:
            self._leave(step)
        raise AskedToLeave(step, saved=False)
