"""Periods that set themselves: by the step size, or by measured times and drift."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

SHARE = 0.05  # of the time, that "auto" lets rounds take
DRIFT = 0.05  # |w - mean| / |mean| at rounds, up to which "auto" looks at time alone
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
    """The shortest period whose round takes at most 5% of the time, while drift stays in bounds.

    `last` is the period before the round whose drift was measured; drift is taken to grow in
    proportion to the period. Where the two cannot both be had, the period lies between them, twice
    as near to drift's on a logarithmic scale: steps to a given AUC grow slowly with the period,
    about as its power 0.3 where this was measured, and over a slow link rounds are nearly all.

    >>> measured_period(1, 1, Measured(0.01, 0.1, 0.0001))
    190
    >>> measured_period(64, 1, Measured(0.01, 10.0, 0.1))
    269
    """
    if measured.round_seconds <= 0 or measured.step_seconds <= 0:
        return least
    cheap = measured.round_seconds * (1 - SHARE) / (SHARE * measured.step_seconds)
    near = last * DRIFT / measured.drift if measured.drift > 0 else math.inf
    period = cheap if cheap <= near else near * (cheap / near) ** (1 / 3)
    return max(least, min(math.ceil(period - 1e-9), _MOST))


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
