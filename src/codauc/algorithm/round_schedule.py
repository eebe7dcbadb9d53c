"""When rounds happen within a stage: every so many steps, at once or after a delay."""

from __future__ import annotations

from codauc.algorithm.rounds import Averager
from codauc.algorithm.schedules import Stage


class RoundSchedule:
    """Starts the rounds of a stage's periods, and lets delayed ones take effect."""

    def __init__(self, averager: Averager, delay: int) -> None:
        self.averager, self.delay = averager, delay
        self.synced_at = 0  # the step of the stage's last round
        self.inner_at = 0  # the step of its last round inside the machine

    def sync(self, step: int, stage: Stage) -> None:
        """What is due at this step and not yet done: a round, its delayed effect, an inner round.

        Workers of a machine take the same delayed correction, so they first become equal.
        """
        if self.averager.under_way and step >= self.synced_at + self.delay:
            self.averager.complete()
        due = _due(step, stage, stage.sync_every) and step != self.synced_at
        local = stage.local_every is not None and step != self.inner_at
        if local and (_due(step, stage, stage.local_every) or due) and (self.delay or not due):
            self.averager.inner_round()
            self.inner_at = step
        if due:
            self.averager.begin() if self.delay else self.averager.round()
            self.synced_at = step

    def close(self) -> None:
        """The stage's last round, which carries the averages of its iterates."""
        if self.averager.under_way:
            self.averager.complete()
        self.averager.round(closing=True)


def _due(step: int, stage: Stage, every: int | None) -> bool:
    """Whether a period ends at this step; a stage's end has a round of its own."""
    return every is not None and step > 0 and step % every == 0 and step < stage.steps
