"""What the runs of a study show: curves, targets, counts, and the time they would take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from codauc.report.axes import Floats
from codauc.reproduce.study import StudyPoint
from codauc.runs.directory import Record

MARGIN = 0.01  # of AUC: the target is below one worker's final AUC by this much

# 97.5% quantiles of Student's t, for 1, 2, ... degrees of freedom; the last serves for more
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)


class Estimate(NamedTuple):
    """A mean over seeds with its 95% interval (Student's t), which a single seed does not have."""

    mean: float
    low: float
    high: float
    seeds: int

    def text(self, form: str) -> str:
        """As people read it.

        >>> estimate([1.0, 2.0, 3.0]).text(".1f"), estimate([2.0]).text(".1f")
        ('2.0 (-0.5 to 4.5)', '2.0 (one seed)')
        """
        if self.seeds == 1:
            return f"{self.mean:{form}} (one seed)"
        return f"{self.mean:{form}} ({self.low:{form}} to {self.high:{form}})"


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of one value per seed, with its interval.

    >>> estimate([1.0, 1.0, 1.0])
    Estimate(mean=1.0, low=1.0, high=1.0, seeds=3)
    """
    n, mean = len(values), float(np.mean(values))
    if n == 1:
        return Estimate(mean, mean, mean, 1)
    half = _T[min(n - 1, len(_T)) - 1] * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def estimate_positive(values: Sequence[float]) -> Estimate:
    """The same of counts and ratios, which are above 0: the geometric mean, with its interval.

    >>> estimate_positive([1.0, 4.0]).mean
    2.0
    """
    found = estimate([math.log(max(value, 1e-300)) for value in values])
    mean, low, high = (math.exp(part) for part in found[:3])
    return Estimate(mean, low, high, found.seeds)


@dataclass(frozen=True)
class Link:
    """Between any two workers: seconds for a message to arrive, and bytes per second."""

    latency: float = 1e-4
    bandwidth: float = 1250e6

    @property
    def text(self) -> str:
        """As people read it.

        >>> Link().text
        '0.1 ms, 10000 Mbit/s'
        """
        return f"{1e3 * self.latency:g} ms, {8e-6 * self.bandwidth:g} Mbit/s"


# to show how the best I depends on the link
LINKS = (Link(), Link(1e-3, 125e6), Link(10e-3, 12.5e6), Link(50e-3, 12.5e6))


@dataclass(frozen=True)
class Results:
    """The evaluations of each run, by point and seed.

    Their seconds are modelled: those of workers that compute at once, as fast as one did here, and
    average in a ring.
    """

    evaluations: Mapping[StudyPoint, Mapping[int, Sequence[Record]]]

    def __contains__(self, point: StudyPoint) -> bool:
        return bool(self.evaluations.get(point))

    def seeds(self, *points: StudyPoint) -> list[int]:
        """Those with which all these points were run."""
        return sorted(set.intersection(*(set(self.evaluations.get(p, {})) for p in points)))

    def target(self, seed: int) -> float | None:
        """One worker's final AUC, that of its last stage's result, less 0.01; None if not run."""
        run = self.evaluations.get(StudyPoint(1), {}).get(seed)
        return None if run is None else run[-1].auc - MARGIN

    def reached(self, point: StudyPoint, seed: int) -> Record | None:
        """The first evaluation with the target's AUC; None if there was none."""
        target = self.target(seed)
        if target is None:
            return None
        return next((e for e in self.evaluations[point][seed] if e.auc >= target), None)

    def hits(self, point: StudyPoint) -> list[Record | None]:
        """The same for every seed that has a target."""
        return [self.reached(point, seed) for seed in self.seeds(point, StudyPoint(1))]

    def loss(self, point: StudyPoint, other: StudyPoint) -> Estimate | None:
        """By how much the final AUC of `point` is below that of `other`, seed by seed."""
        seeds = self.seeds(point, other)
        if not seeds:
            return None
        runs, others = self.evaluations[point], self.evaluations[other]
        return estimate([others[seed][-1].auc - runs[seed][-1].auc for seed in seeds])

    def times_fewer(self, point: StudyPoint) -> Estimate | None:
        """The iterations of one worker to the target over those of `point`, seed by seed."""
        ratios = []
        for seed in self.seeds(point, StudyPoint(1)):
            mine, theirs = self.reached(point, seed), self.reached(StudyPoint(1), seed)
            if mine is None or theirs is None:
                return None
            ratios.append(theirs.step / max(mine.step, 1e-12))
        return estimate_positive(ratios) if ratios else None

    def needed(self, point: StudyPoint, what: str) -> Estimate | None:
        """What `point` needs to reach the target; None unless it does with every seed."""
        found = self.hits(point)
        if not found or None in found:
            return None
        return estimate_positive([float(getattr(hit, what)) for hit in found])

    def mean_curve(self, point: StudyPoint) -> dict[str, Floats | None]:
        """At each evaluation, the means over seeds; of several, the lowest and highest AUC."""
        runs = list(self.evaluations[point].values())
        count = min(len(run) for run in runs)
        columns = {
            name: np.array([[float(getattr(e, name)) for e in run[:count]] for run in runs])
            for name in ("step", "seconds", "auc")
        }
        aucs, many = columns["auc"], len(runs) > 1
        ends = {"low": aucs.min(axis=0), "high": aucs.max(axis=0)} if many else {}
        means = {name: column.mean(axis=0) for name, column in columns.items()}
        return {"low": None, "high": None, **ends, **means}


def modelled(at: Record, workers: int, step_seconds: float, link: Link) -> float:
    """Seconds to an evaluation: computing, 2 (K-1) latencies for each round, and sending."""
    sending = at.rounds * 2 * (workers - 1) * link.latency + at.bytes / link.bandwidth
    return at.step * step_seconds + sending
