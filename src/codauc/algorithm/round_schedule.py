"""When rounds happen within a stage: after how many steps, at once or after a delay."""

from __future__ import annotations

import time
from collections import deque
from statistics import median
from typing import Any

from codauc.algorithm.coda_state import CoDAState
from codauc.algorithm.link_trial import try_link
from codauc.algorithm.round_periods import (
    TRIAL,
    Decision,
    Measured,
    PeriodState,
    evened,
    measured_period,
    quadratic_period,
)
from codauc.algorithm.rounds import Averager
from codauc.algorithm.schedules import Stage

_TIMED = 31  # steps of which the median is taken: evaluations between them do not count


class RoundSchedule:
    """Starts the rounds of a stage's periods, and lets delayed ones take effect.

    The step of the next round is a function of what all workers know: the stage, the step size, and
    for "auto" what the last message brought.
    """

    def __init__(self, averager: Averager, delay: int) -> None:
        self.averager, self.delay = averager, delay
        self.synced_at = 0  # the step of the stage's last round
        self.inner_at = 0  # the step of its last round inside the machine
        self.periods = PeriodState()
        self.stages = 0  # how many were done before this one
        self.clock = StepClock()

    def begin(self, stage: Stage, stages: int) -> None:
        """The first step of a stage comes next."""
        self.synced_at = self.inner_at = 0
        self.stages = stages
        if self._untried(stage):
            self.periods.next_at = TRIAL
        elif isinstance(stage.sync_every, str):
            self._decide(0, stage)

    def sync(self, step: int, stage: Stage) -> None:
        """What is due at this step and not yet done: a round, its delayed effect, an inner round.

        Workers of a machine take the same delayed correction, so they first become equal.
        """
        if step and isinstance(stage.sync_every, str):
            self.clock.stop()
            self.periods.note(self._factor())
        if self.averager.under_way and step >= self.synced_at + self.delay:
            self.averager.complete(step - self.synced_at)
            self._decide(step, stage)
        if self._untried(stage) and self._due(step, stage):
            vector = self.averager.message.vector
            size = self.averager.encoding.size(vector)
            self.periods.measured = try_link(self.averager.group, vector, size, self.clock.seconds)
            self._decide(0, stage)
        due = self._due(step, stage) and step != self.synced_at
        local = stage.local_every is not None and step != self.inner_at
        if local and (_ends(step, stage, stage.local_every) or due) and (self.delay or not due):
            self.averager.inner_round()
            self.inner_at = step
        if due:
            self._round(step, stage)
        self.clock.start()

    def _round(self, step: int, stage: Stage) -> None:
        self.averager.step_seconds = self.clock.seconds
        self.averager.begin() if self.delay else self.averager.round()
        self.synced_at = step
        if not self.averager.under_way:
            self._decide(step, stage)

    def _due(self, step: int, stage: Stage) -> bool:
        if isinstance(stage.sync_every, int):
            return _ends(step, stage, stage.sync_every)
        return self.periods.next_at <= step < stage.steps and not self.averager.under_way

    def _decide(self, step: int, stage: Stage) -> None:
        """Find the next round's step, where the period is not fixed."""
        if isinstance(stage.sync_every, int):
            return
        kept, measured = self.periods, None
        if stage.sync_every == "auto":
            measured = kept.measured = self._measured() if step else kept.measured
            least = self.delay + 1
            period = measured_period(kept.before, least, measured or Measured(0.0, 0.0, 0.0))
            period = max(least, evened(period, stage.steps - self.synced_at))
        else:
            period = quadratic_period(stage.least_period, kept.peak, self._factor())
        kept.decide(Decision(self.stages, self.synced_at, period, measured))

    def _untried(self, stage: Stage) -> bool:
        """Whether nothing is known of the link by which a period is to be found."""
        several = self.averager.group.size > 1
        return stage.sync_every == "auto" and several and self.periods.measured is None

    def _measured(self) -> Measured | None:
        """What the last round said; its seconds are first known at the second."""
        heard, before = self.averager.measured, self.periods.measured
        if heard is None or before is None or heard.round_seconds > 0:
            return heard
        return heard._replace(round_seconds=before.round_seconds)

    def _factor(self) -> float:
        """What a scheduler multiplies the stage's step size by."""
        return self.averager.opt.step_size / self.averager.opt.stage_lr

    def state(self) -> dict[str, Any]:
        """Its part of the engine's state."""
        names = ("synced_at", "inner_at", "periods")
        return {name: getattr(self, name) for name in names}

    def load(self, saved: CoDAState) -> None:
        """Continue where the engine was that gave this state."""
        self.synced_at, self.inner_at = saved.synced_at, saved.inner_at
        self.stages, self.periods = saved.stages_done, saved.periods
        self.clock = StepClock()

    def close(self) -> None:
        """The stage's last round, which carries the averages of its iterates."""
        if self.averager.under_way:
            self.averager.complete(self.averager.opt.steps - self.synced_at)
        self.averager.round(closing=True)


class StepClock:
    """Seconds of a step of this worker, the median of the last ones."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._steps: deque[float] = deque(maxlen=_TIMED)

    def start(self) -> None:
        """A step begins."""
        self._since = time.perf_counter()

    def stop(self) -> None:
        """It has ended."""
        if self._since is not None:
            self._steps.append(time.perf_counter() - self._since)

    @property
    def seconds(self) -> float:
        """The median; 0 before the first step."""
        return median(self._steps) if self._steps else 0.0


def _ends(step: int, stage: Stage, every: int | None) -> bool:
    """Whether a period ends at this step; a stage's end has a round of its own."""
    return every is not None and step > 0 and step % every == 0 and step < stage.steps
