"""The paper's findings, as SPEC states them, each with what was measured and whether it holds."""

from __future__ import annotations

import math
from typing import NamedTuple

from codauc._internal.formats import digits
from codauc.reproduce.study import FIXED, WORKERS, Study, StudyPoint
from codauc.reproduce.study_results import MARGIN, Estimate, Results, estimate_positive

FEWER = {4: 2.0, 16: 4.0}  # times fewer iterations than one worker, at least
HARMLESS = (8, 64)  # the I's that cost nothing at K=16
# The largest I without a clear loss, by data set and K, as the paper states it.
PAPER = {"cifar10": {16: 64, 4: 512}, "cifar100": {16: 64, 4: 512}, "imagenet": {16: 1024}}


class Finding(NamedTuple):
    """What is claimed, expected and measured, and whether it holds; None where it is not known.

    `sure` is whether the whole interval is on the same side, where there is one.
    """

    claim: str
    expected: str
    measured: str = "-"
    holds: bool | None = None
    sure: bool = True

    @property
    def verdict(self) -> str:
        """The result in a few words."""
        if self.holds is None:
            return "not measured"
        text = "holds" if self.holds else "does not hold"
        return text if self.sure else f"{text}, in the mean"


def findings(study: Study, results: Results) -> list[Finding]:
    """All that can be said of a study's runs; the paper has more of them at 71% positives."""
    more, periods = study.percent == 71, study.periods
    pairs = [
        (k, every) for every in (1, FIXED) for k in WORKERS[1:] if more or (k, every) != (4, 1)
    ]
    found = [_fewer(results, StudyPoint(*pair)) for pair in pairs]
    found += [_harmless(results, every) for every in HARMLESS if every in periods]
    found += [_rounds(results, every) for every in HARMLESS[-1:] if every in periods]
    if HARMLESS[-1] in periods and periods[-1] > PAPER[study.data][16]:
        found.append(_largest_loses(results, periods[-1]))
    for margin in (MARGIN, 2 * MARGIN) if more else ():  # what a clear loss is, it does not state
        few, many = (harmless_range(study, results, workers, margin) for workers in (4, 16))
        found += [
            _largest(workers, margin, limit, paper)
            for workers, limit in ((16, many), (4, few))
            if (paper := PAPER[study.data].get(workers)) in periods
        ]
        found.append(_trade_off(few, many, margin))
    return [*found, _soonest(results)]


def harmless(study: Study, results: Results, workers: int, margin: float = MARGIN) -> int | None:
    """The largest I up to which no I loses more than `margin` of the final AUC with I=1."""
    found = harmless_range(study, results, workers, margin)
    return None if found is None else found.mean


class Harmless(NamedTuple):
    """The largest harmless I: by the means, and the least and most by the intervals' ends."""

    mean: int
    low: int
    high: int

    @property
    def text(self) -> str:
        """As people read it.

        >>> Harmless(64, 8, 64).text, Harmless(64, 64, 64).text
        ('64 (8 to 64)', '64')
        """
        ends = "" if self.low == self.high == self.mean else f" ({self.low} to {self.high})"
        return f"{self.mean}{ends}"


def harmless_range(
    study: Study, results: Results, workers: int, margin: float = MARGIN
) -> Harmless | None:
    """`harmless` with what the intervals of the losses leave open; None where an I was not run."""
    naive = StudyPoint(workers, 1)
    losses = {i: results.loss(StudyPoint(workers, i), naive) for i in study.periods}
    if None in losses.values():
        return None

    def largest(end: str) -> int:
        found = 1
        for every, loss in losses.items():
            if getattr(loss, end) > margin:
                break
            found = every
        return found

    return Harmless(largest("mean"), largest("high"), largest("low"))


def _fewer(results: Results, point: StudyPoint) -> Finding:
    least = FEWER[point.workers]
    unknown = Finding(
        f"More workers need fewer iterations: {point.label} against K=1",
        f"at least {least:g} times fewer to the target",
    )
    if StudyPoint(1) not in results or point not in results:
        return unknown
    ratio = results.times_fewer(point)
    if ratio is None:
        hits = results.hits(point)
        text = f"target not reached with {hits.count(None)} of {len(hits)} seeds"
        return unknown._replace(measured=text, holds=False)
    return unknown._replace(
        measured=f"{ratio.text('.2f')} times fewer",
        holds=ratio.mean >= least,
        sure=not ratio.low < least <= ratio.high,
    )


def _harmless(results: Results, every: int) -> Finding:
    point, naive = StudyPoint(16, every), StudyPoint(16, 1)
    unknown = Finding(
        f"Skipping rounds costs nothing: K=16, I={every} against I=1",
        f"at most {MARGIN:g} of the final AUC lost, {every} times fewer rounds",
    )
    loss = results.loss(point, naive)
    if loss is None:
        return unknown
    seed = results.seeds(point, naive)[0]
    rounds, all_rounds = (results.evaluations[p][seed][-1].rounds for p in (point, naive))
    fewer = all_rounds / max(rounds, 1)
    return unknown._replace(
        measured=f"{loss.text('+.4f')} lost, {fewer:.1f} times fewer rounds",
        holds=loss.mean <= MARGIN and fewer > 0.95 * every,
        sure=not loss.low <= MARGIN < loss.high,
    )


def _rounds(results: Results, every: int) -> Finding:
    point, naive = StudyPoint(16, every), StudyPoint(16, 1)
    unknown = Finding(f"Fewer rounds to the target: K=16, I={every} against I=1", "fewer")
    if StudyPoint(1) not in results or not results.seeds(point, naive):
        return unknown
    hits = {p: results.hits(p) for p in (point, naive)}
    if any(None in found for found in hits.values()):
        missed = " and ".join(p.label for p, found in hits.items() if None in found)
        return unknown._replace(measured=f"target not always reached: {missed}", holds=False)
    pairs = [
        (results.reached(point, seed), results.reached(naive, seed))
        for seed in results.seeds(point, naive, StudyPoint(1))
    ]
    ratio = estimate_positive([n.rounds / max(1, p.rounds) for p, n in pairs if p and n])
    text = f"{ratio.text('.1f')} times fewer"
    return unknown._replace(measured=text, holds=ratio.mean > 1, sure=ratio.low > 1)


def _largest_loses(results: Results, largest: int) -> Finding:
    unknown = Finding(f"Too large an I costs AUC: K=16, I={largest}", "loses more than I=64")
    loss = results.loss(StudyPoint(16, largest), StudyPoint(16, 1))
    more = results.loss(StudyPoint(16, largest), StudyPoint(16, HARMLESS[-1]))
    if loss is None or more is None:
        return unknown
    return unknown._replace(
        measured=f"{loss.text('+.4f')} lost; {more.text('+.4f')} more than with I=64",
        holds=more.mean > 0,
        sure=not more.low <= 0 < more.high,
    )


def _largest(workers: int, margin: float, found: Harmless | None, paper: int | None) -> Finding:
    claim = f"The largest I that loses at most {margin:g} at K={workers}"
    if found is None:
        return Finding(claim, f"{paper}, in the paper")
    sure = found.low == found.high == found.mean or not found.low <= (paper or 0) <= found.high
    return Finding(claim, f"{paper}, in the paper", found.text, found.mean == paper, sure)


def _trade_off(few: Harmless | None, many: Harmless | None, margin: float) -> Finding:
    unknown = Finding(
        f"Fewer workers tolerate at least as large an I, at a loss of {margin:g}: K=4 against K=16",
        "the largest such I is not below that at K=16",
    )
    if few is None or many is None:
        return unknown
    holds = few.mean >= many.mean
    sure = few.low >= many.high if holds else few.high < many.low
    text = f"{few.text} against {many.text}"
    return unknown._replace(measured=text, holds=holds, sure=sure)


def _soonest(results: Results) -> Finding:
    """Of the figure that varies K: who reaches the target first, in modelled time."""
    points = [StudyPoint(1), *(StudyPoint(workers, FIXED) for workers in WORKERS[1:])]
    times = {point: results.needed(point, "seconds") for point in points if point in results}
    reached = {p: time.mean for p, time in times.items() if time and not math.isnan(time.mean)}
    times_text = "; ".join(f"K={p.workers}: {digits(t, 3)} s" for p, t in reached.items())
    whole = len(times) == len(points) and bool(reached)
    ahead = _ahead(results, points[-1], [p for p in points[:-1] if p in reached])
    return Finding(
        "K=16 is the most time-efficient (time modelled)",
        "the soonest at the target",
        times_text or "-",
        min(reached, key=lambda p: reached[p]) == points[-1] if whole else None,
        ahead is None or not ahead.low <= 1 < ahead.high,
    )


def _ahead(results: Results, point: StudyPoint, others: list[StudyPoint]) -> Estimate | None:
    """How many times sooner a point is at the target than the best of others, seed by seed."""
    ratios = []
    for seed in results.seeds(point, *others) if others and results.hits(point) else ():
        mine, *theirs = (results.reached(p, seed) for p in (point, *others))
        known = [hit.seconds for hit in theirs if hit is not None]
        if mine is None or not known:
            return None
        ratios.append(min(known) / max(mine.seconds, 1e-12))
    return estimate_positive(ratios) if ratios else None
