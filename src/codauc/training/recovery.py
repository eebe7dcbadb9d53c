"""Going back to the last good state when numbers are not finite."""

from __future__ import annotations

import math

from codauc.algorithm.rounds import NotFiniteError
from codauc.training.run_progress import RunProgress
from codauc.training.run_state import RunState

_REDUCTIONS = 8  # of the step size, after which a run is given up


class Recovery:
    """Keeps a good state in memory, and returns to it with half the step size.

    With `not_finite="stop"` in the settings the first error ends the run.
    """

    def __init__(self, progress: RunProgress) -> None:
        self.progress = progress
        self.enabled = progress.settings.safety.not_finite == "reduce"
        self.good: RunState | None = None

    def remember(self) -> None:
        """The state as it is now is good."""
        if self.enabled:
            self.good = self.progress.state()

    def go_back(self, error: NotFiniteError) -> None:
        """Return to the last good state; raise if there is none, or after too many attempts."""
        progress, step_size = self.progress, self.progress.step_size
        step, reduced = progress.position.step, step_size.reduced
        if self.good is None or reduced < 0.5**_REDUCTIONS:
            times = round(-math.log2(reduced))
            after = f", after the step size was halved {times} times" if times else ""
            raise NotFiniteError(f"step {step}{after}: {error}") from None
        began, notes = progress.journal.began, list(progress.journal.notes)
        progress.load(self.good)
        good, progress.journal.began, step_size.reduced = progress.position.step, began, reduced / 2
        step_size.set(good)
        progress.journal.notes[:] = [
            *notes,
            f"Step {step}: numbers were not finite; resumed from step {good} with 1/"
            f"{round(2 / reduced)} of the step size.",
        ]
        self.remember()
