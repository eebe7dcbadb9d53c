"""Two things in turn: their times, the ratios of neighbours in time, and what came of it."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Thing = Callable[[], Any]

_LEAST = 2e-3  # seconds that one timing lasts at least


class Missing(Exception):  # noqa: N818
    """What a benchmark needs is not here; the text says what, and where it comes from."""


@dataclass(frozen=True)
class Options:
    """How much to measure, and where data are."""

    short: bool = False
    data: Path | None = None

    def times(self, repeats: int) -> int:
        """So many repetitions, or two."""
        return 2 if self.short else repeats


@dataclass(frozen=True)
class Pairs:
    """What was measured of ours and of theirs, each pair in the same moment."""

    ours: list[float]
    theirs: list[float]
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        """Ours over theirs, of each pair, in order of size; infinite is what was never reached."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return sorted(math.inf if math.isinf(a) else a / b for a, b in pairs)

    def summary(self) -> dict[str, Any]:
        """Medians, also of the ratios, and the middle half of the ratios.

        >>> Pairs([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]).summary()["ratio"]
        1.0
        """
        ratios, quarter = self.ratios, len(self.ratios) // 4
        return {
            "ours": statistics.median(self.ours),
            "theirs": statistics.median(self.theirs),
            "ratio": statistics.median(ratios),
            "spread": [ratios[quarter], ratios[-1 - quarter]],
            "pairs": len(ratios),
        }


@dataclass(frozen=True)
class Benchmark:
    """A ratio to measure, and the goal for it: at most so much, or with `higher` at least."""

    name: str
    ours: str
    theirs: str
    measure: Callable[[Options], Pairs]
    goal: float | None = None
    unit: str = "s"
    higher: bool = False

    def run(self, options: Options) -> dict[str, Any]:
        """The result as plain data."""
        pairs = self.measure(options)
        found = pairs.summary()
        return {
            "name": self.name,
            **found,
            "unit": self.unit,
            "goal": self.goal,
            "better": "higher" if self.higher else "lower",
            "met": None if options.short else self._met(found["ratio"]),
            "ours is": self.ours,
            "theirs is": self.theirs,
            **({"notes": pairs.notes} if pairs.notes else {}),
        }

    def _met(self, ratio: float) -> bool | None:
        if self.goal is None:
            return None
        return ratio >= self.goal if self.higher else ratio <= self.goal


def alternate(ours: Thing, theirs: Thing, repeats: int, *, least: float = _LEAST) -> Pairs:
    """Seconds of one call of each, in turn; what lasts less than `least` is called often enough.

    Which of the two comes first changes from pair to pair.
    """
    things = (ours, theirs)
    calls = [_calls(thing, least) for thing in things]
    found: tuple[list[float], list[float]] = ([], [])
    with no_collector():
        for repeat in range(repeats):
            for i in (0, 1) if repeat % 2 == 0 else (1, 0):
                found[i].append(seconds(things[i], calls[i]) / calls[i])
    return Pairs(*found)


def _calls(thing: Thing, least: float) -> int:
    """How often to call it so that it lasts, even at its fastest; this also warms it up."""
    tries: list[float] = []
    while len(tries) < 5 and sum(tries) < 1:
        tries.append(seconds(thing))
    return max(1, math.ceil(least / max(min(tries), 1e-9)))


def seconds(thing: Thing, calls: int = 1) -> float:
    """How long so many calls take."""
    start = time.perf_counter()
    for _ in range(calls):
        thing()
    return time.perf_counter() - start


@contextmanager
def no_collector() -> Iterator[None]:
    """Without garbage collection, which would fall on one of the two."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def status(name: str) -> int:
    """A number of bytes that the system knows of this process: VmRSS, or VmHWM, its peak."""
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
