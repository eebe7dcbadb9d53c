"""Periods that set themselves: by the step size, or by measured times and drift."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SHARE = 0.05  # of the time, that "auto" lets rounds take where drift is small
DRIFT = 0.2  # |w - mean| / |mean| at rounds with which steps to a given AUC are taken to double
DOUBLING = 512  # the period with which they are taken to double until drift is known
TRIAL = 16  # steps before "auto" tries the link, so that not even its first round is a guess
FIRST = 64  # its periods where times are not known
LONGEST = 64  # periods of "qsr" are at most so many times the first
_MOST = 1 << 20  # steps of a period of "auto"


class Measured(NamedTuple):
    """Of one round, the same on all workers: means over them of seconds per step and of drift."""

    step_seconds: float
    round_seconds: float  # of the worker that waited for nobody; 0 if not known yet
    drift: float  # of the round before; 0 if not known yet


class Decision(NamedTuple):
    """From a step on, the period until the next round, and what it was decided from."""

    stage: int
    step: int
    period: int
    measured: Measured | None = None


def quadratic_period(first: int, peak: float, factor: float) -> int:
    """The quadratic synchronisation rule: I = max(I0, floor((c / eta)^2)), at most 64 I0.

    c is such that I is I0 at the peak of the step size; `peak` and `factor` are the largest step
    size so far and that of now. While it rises, I stays I0.

    >>> [quadratic_period(8, peak, now) for peak, now in ((1.0, 0.5), (1.0, 1e-3), (0.0, 0.1))]
    [32, 512, 8]
    """
    if factor * math.sqrt(LONGEST) <= peak:
        return LONGEST * first
    return max(first, math.floor(first * (peak / factor) ** 2 * (1 + 1e-12)))


def quadratic_rounds(steps: int, first: int, factor: Callable[[int], float]) -> Iterator[int]:
    """After which steps of a stage "qsr" has a round, its closing one included.

    `factor(t)` multiplies the step size of step t, counted from 0.

    >>> list(quadratic_rounds(20, 4, lambda step: 1.0 if step < 8 else 0.5))
    [4, 8, 12, 20]
    """
    peak, upcoming = 0.0, first
    for step in range(1, steps):
        now = factor(step - 1)
        peak = max(peak, now)
        if step == upcoming:
            yield step
            upcoming += quadratic_period(first, peak, now)
    yield steps


def measured_period(last: int, least: int, measured: Measured) -> int:
    """The period that is soonest at a given AUC, or the shortest whose rounds take 5% of the time.

        time per sample = (1 + I / I_d) (s + r / I), least at I = sqrt(I_d r / s)

    with s and r the seconds of a step and of a round. The square of the drift grows in proportion
    to the period, as that of a random walk, and steps to a given AUC are taken to grow with it:
    they double at I_d, or as long as drift is not known at 512. `last` is the period before the
    round whose drift was measured. A longer period than that of 5% would save next to nothing.

    >>> measured_period(1, 1, Measured(0.01, 0.1, 0.0001))
    190
    >>> measured_period(64, 1, Measured(0.01, 10.0, 0.1))
    506
    """
    if measured.round_seconds <= 0 or measured.step_seconds <= 0:
        return max(least, FIRST)
    steps = measured.round_seconds / measured.step_seconds  # that a round takes
    cheap = steps * (1 - SHARE) / SHARE
    doubled = last * (DRIFT / measured.drift) ** 2 if measured.drift > 0 else DOUBLING
    period = min(cheap, math.sqrt(doubled * steps))
    return max(least, min(math.ceil(period - 1e-9), _MOST))


def evened(period: int, left: int) -> int:
    """A stage's remaining steps in equal periods, about as long: the last is none of a few steps.

    >>> [evened(100, left) for left in (1000, 250, 120, 60)]
    [100, 84, 60, 60]
    """
    return -(-left // -(-left // period))


@dataclass
class PeriodState:
    """What periods that set themselves keep, equal on all workers; part of a checkpoint."""

    next_at: int = 0  # the step of the stage's next round
    peak: float = 0.0  # the largest factor of the step size so far
    period: int = 1  # before the last round
    before: int = 1  # before the round whose drift is known
    measured: Measured | None = None  # what was last heard, for "auto"
    decisions: list[Decision] = field(default_factory=list)  # where the period changed

    def note(self, factor: float) -> None:
        """A step was taken, of the stage's size times this factor."""
        self.peak = max(self.peak, factor)

    def decide(self, decision: Decision) -> None:
        """The next round comes after this period."""
        self.before, self.period = self.period, decision.period
        self.next_at = decision.step + decision.period
        if not self.decisions or self.decisions[-1].period != decision.period:
            self.decisions.append(decision)

    def pack(self) -> dict[str, Any]:
        """As plain values."""
        plain = {name: getattr(self, name) for name in ("next_at", "peak", "period", "before")}
        decisions = [list(_flat(each)) for each in self.decisions]
        return {**plain, "measured": list(self.measured or ()), "decisions": decisions}

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> PeriodState:
        """What `pack` gave."""
        decisions = [_decision(*values) for values in packed.get("decisions", [])]
        measured = Measured(*packed["measured"]) if packed.get("measured") else None
        return cls(**{**packed, "measured": measured, "decisions": decisions})


def _flat(decision: Decision) -> tuple[float, ...]:
    return (*decision[:3], *(decision.measured or ()))


def _decision(stage: int, step: int, period: int, *measured: float) -> Decision:
    return Decision(stage, step, period, Measured(*measured) if measured else None)
