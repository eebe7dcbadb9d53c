"""What the runs of a study show: curves, targets, counts, and the time they would take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codauc.reproduce.study import StudyPoint
from codauc.runs.directory import Record

MARGIN = 0.01  # of AUC: the target is below one worker's final AUC by this much
Floats = NDArray[np.float64]

# 97.5% quantiles of Student's t, for 1, 2, ... degrees of freedom
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


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
    half = student(n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def estimate_positive(values: Sequence[float]) -> Estimate:
    """The same of counts and ratios, which are above 0: the geometric mean, with its interval.

    >>> estimate_positive([1.0, 4.0]).mean
    2.0
    """
    found = estimate([math.log(max(value, 1e-300)) for value in values])
    mean, low, high = (math.exp(part) for part in found[:3])
    return Estimate(mean, low, high, found.seeds)


def student(freedom: int) -> float:
    """The 97.5% quantile of Student's t; beyond the table by its expansion around the normal's.

    >>> student(2), round(student(11), 2), round(student(30), 3)
    (4.303, 2.2, 2.042)
    """
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = 1.959964
    first = (z**3 + z) / (4 * freedom)
    return z + first + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


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


LINKS = (  # to show how the best I depends on the link
    Link(),
    Link(1e-3, 125e6),
    Link(10e-3, 12.5e6),
    Link(50e-3, 12.5e6),
)


class StudyEvaluation(NamedTuple):
    """An evaluation of a run: measured counts, and the time that follows from them."""

    step: int
    rounds: int
    bytes: int
    auc: float
    seconds: float  # modelled
    low: float
    high: float


@dataclass(frozen=True)
class Results:
    """The evaluations of each run, by point and seed.

    Time is modelled: `step * step_seconds + rounds * 2 (K-1) latency + bytes / bandwidth`, that is
    workers that compute at once, as fast as one did here, and average in a ring.
    """

    evaluations: Mapping[StudyPoint, Mapping[int, Sequence[StudyEvaluation]]]

    def __contains__(self, point: StudyPoint) -> bool:
        return bool(self.evaluations.get(point))

    def seeds(self, *points: StudyPoint) -> list[int]:
        """Those with which all these points were run."""
        found = [set(self.evaluations.get(point, {})) for point in points]
        return sorted(set.intersection(*found)) if found else []

    def final(self, point: StudyPoint, seed: int) -> float:
        """The AUC of the last stage's result."""
        return self.evaluations[point][seed][-1].auc

    def target(self, seed: int) -> float | None:
        """One worker's final AUC less 0.01; None if it was not run."""
        if seed not in self.evaluations.get(StudyPoint(1), {}):
            return None
        return self.final(StudyPoint(1), seed) - MARGIN

    def reached(self, point: StudyPoint, seed: int) -> StudyEvaluation | None:
        """The first evaluation with the target's AUC; None if there was none."""
        target = self.target(seed)
        if target is None:
            return None
        return next((e for e in self.evaluations[point][seed] if e.auc >= target), None)

    def loss(self, point: StudyPoint, other: StudyPoint) -> Estimate | None:
        """By how much the final AUC of `point` is below that of `other`, seed by seed."""
        seeds = self.seeds(point, other)
        if not seeds:
            return None
        return estimate([self.final(other, s) - self.final(point, s) for s in seeds])

    def times_fewer(self, point: StudyPoint, other: StudyPoint, what: str) -> Estimate | None:
        """What `other` needs to reach the target over what `point` needs, seed by seed."""
        ratios = []
        for seed in self.seeds(point, other, StudyPoint(1)):
            mine, theirs = self.reached(point, seed), self.reached(other, seed)
            if mine is None or theirs is None:
                return None
            ratios.append(getattr(theirs, what) / max(getattr(mine, what), 1e-12))
        return estimate_positive(ratios) if ratios else None

    def needed(self, point: StudyPoint, what: str) -> Estimate | None:
        """What `point` needs to reach the target; None unless it does with every seed."""
        found = [self.reached(point, seed) for seed in self.seeds(point, StudyPoint(1))]
        if not found or None in found:
            return None
        return estimate_positive([float(getattr(e, what)) for e in found if e is not None])

    def missed(self, point: StudyPoint) -> tuple[int, int]:
        """With how many of how many seeds the target is not reached."""
        found = [self.reached(point, seed) for seed in self.seeds(point, StudyPoint(1))]
        return found.count(None), len(found)

    def mean_curve(self, point: StudyPoint) -> dict[str, Floats]:
        """At each evaluation, the mean of each column over seeds, the lowest and highest AUC."""
        runs = list(self.evaluations[point].values())
        count = min(len(run) for run in runs)
        columns = {
            name: np.array([[float(getattr(e, name)) for e in run[:count]] for run in runs])
            for name in ("step", "rounds", "bytes", "seconds", "auc")
        }
        mean = {name: column.mean(axis=0) for name, column in columns.items()}
        return mean | {"low": columns["auc"].min(axis=0), "high": columns["auc"].max(axis=0)}


def modelled(at: Record | StudyEvaluation, workers: int, step_seconds: float, link: Link) -> float:
    """Seconds to an evaluation, from its counts and the time of a step.

    >>> at = StudyEvaluation(100, rounds=10, bytes=1000, auc=0.9, seconds=0.0, low=0.9, high=0.9)
    >>> modelled(at, 2, 0.01, Link(latency=0.5, bandwidth=1000.0))  # 1 + 10 + 1
    12.0
    """
    sending = at.rounds * 2 * (workers - 1) * link.latency + at.bytes / link.bandwidth
    return at.step * step_seconds + sending


def evaluated(record: Record, workers: int, step_seconds: float, link: Link) -> StudyEvaluation:
    """An evaluation, with the time that the model gives it."""
    seconds = modelled(record, workers, step_seconds, link)
    counts = (record.step, record.rounds, record.bytes)
    return StudyEvaluation(*counts, record.auc, seconds, record.auc_low, record.auc_high)
