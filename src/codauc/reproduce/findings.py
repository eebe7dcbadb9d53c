"""The paper's findings, as SPEC states them, each with what was measured and whether it holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from codauc._internal.formats import digits
from codauc.reproduce.study import FIXED, WORKERS, Study, StudyPoint
from codauc.reproduce.study_results import MARGIN, Results

FEWER = {4: 2.0, 16: 4.0}  # times fewer iterations than one worker, at least
HARMLESS = (8, 64)  # the I's that cost nothing at K=16
# The largest I without a clear loss, by data set and K, as the paper states it.
PAPER = {
    "cifar10": {16: 64, 4: 512},
    "cifar100": {16: 64, 4: 512},
    "imagenet": {16: 1024},
}


class Finding(NamedTuple):
    """What is claimed, expected and measured, and whether it holds; None where it is not known.

    `sure` is whether the whole interval is on the same side, where there is one.
    """

    claim: str
    expected: str
    measured: str
    holds: bool | None
    sure: bool = True

    @property
    def verdict(self) -> str:
        """The result in a few words."""
        if self.holds is None:
            return "not measured"
        text = "holds" if self.holds else "does not hold"
        return text if self.sure else f"{text}, in the mean"


def findings(study: Study, results: Results) -> list[Finding]:
    """All that can be said of a study's runs."""
    pairs = [(k, every) for every in (1, FIXED) for k in WORKERS[1:]]
    if study.percent != 71:
        pairs.remove((4, 1))  # which the paper does not have there
    found: list[Finding | None] = [_fewer(results, StudyPoint(*pair)) for pair in pairs]
    found += [_harmless(results, every) for every in HARMLESS if every in study.size.periods]
    found += [_largest_loses(study, results)]
    for margin in (MARGIN, 2 * MARGIN):  # what a clear loss is, the paper does not state
        found += [_limit(study, results, workers, margin) for workers in (16, 4)]
        found += [_trade_off(study, results, margin)]
    found += [_soonest(results)]
    return [finding for finding in found if finding is not None]


def harmless(study: Study, results: Results, workers: int, margin: float = MARGIN) -> int | None:
    """The largest I up to which no I loses more than `margin` of the final AUC with I=1."""
    limit = None
    for every in study.size.periods:
        loss = results.loss(StudyPoint(workers, every), StudyPoint(workers, 1))
        if loss is None:
            return None
        if loss.mean > margin:
            break
        limit = every
    return limit


def _fewer(results: Results, point: StudyPoint) -> Finding:
    ratio = results.times_fewer(point, StudyPoint(1), "step")
    least, known = FEWER[point.workers], _known(results, point)
    text = "-"
    if known:
        text = "target not reached with {} of {} seeds".format(*results.missed(point))
    return Finding(
        f"More workers need fewer iterations: {point.label} against K=1",
        f"at least {least:g} times fewer to the target",
        text if ratio is None else f"{ratio.text('.2f')} times fewer",
        known and (ratio is not None and ratio.mean >= least),
        ratio is None or not ratio.low < least <= ratio.high,
    )


def _known(results: Results, *points: StudyPoint) -> bool | None:
    """True if all were run, else None, so that `_known(...) and claim` is not False unseen."""
    return True if all(point in results for point in (StudyPoint(1), *points)) else None


def _harmless(results: Results, every: int) -> Finding:
    point, naive = StudyPoint(16, every), StudyPoint(16, 1)
    loss = results.loss(point, naive)
    text, holds, sure = "-", None, True
    if loss is not None:
        seed = results.seeds(point, naive)[0]
        rounds = [results.evaluations[p][seed][-1].rounds for p in (naive, point)]
        fewer = rounds[0] / max(rounds[1], 1)
        text = f"{loss.text('+.4f')} lost, {fewer:.1f} times fewer rounds"
        holds = loss.mean <= MARGIN and fewer > 0.95 * every
        sure = not loss.low <= MARGIN < loss.high
    return Finding(
        f"Skipping rounds costs nothing: K=16, I={every} against I=1",
        f"at most {MARGIN:g} of the final AUC lost, {every} times fewer rounds",
        text,
        holds,
        sure,
    )


def _largest_loses(study: Study, results: Results) -> Finding | None:
    largest, small = study.size.periods[-1], StudyPoint(16, HARMLESS[-1])
    if small.sync_every not in study.size.periods or PAPER[study.data][16] == largest:
        return None
    loss = results.loss(StudyPoint(16, largest), StudyPoint(16, 1))
    more = results.loss(StudyPoint(16, largest), small)
    text, holds, sure = "-", None, True
    if loss is not None and more is not None:
        text = f"{loss.text('+.4f')} lost; {more.text('+.4f')} more than with I=64"
        holds, sure = more.mean > 0, not more.low <= 0 < more.high
    return Finding(
        f"Too large an I costs AUC: K=16, I={largest}", "loses more than I=64", text, holds, sure
    )


def _limit(study: Study, results: Results, workers: int, margin: float) -> Finding | None:
    expected = PAPER[study.data].get(workers)
    if expected is None or expected not in study.size.periods or study.percent != 71:
        return None
    limit = harmless(study, results, workers, margin)
    return Finding(
        f"The largest I that loses at most {margin:g} at K={workers}",
        f"{expected}, in the paper",
        "-" if limit is None else str(limit),
        None if limit is None else limit == expected,
    )


def _trade_off(study: Study, results: Results, margin: float) -> Finding | None:
    if study.percent != 71:
        return None
    few, many = (harmless(study, results, workers, margin) for workers in (4, 16))
    unknown = few is None or many is None
    return Finding(
        f"Fewer workers tolerate at least as large an I, at a loss of {margin:g}: K=4 against K=16",
        "the largest such I is not below that at K=16",
        "-" if unknown else f"{few} against {many}",
        None if few is None or many is None else few >= many,
    )


def _soonest(results: Results) -> Finding:
    """Of the figure that varies K: who reaches the target first, in modelled time."""
    points = [StudyPoint(1), *(StudyPoint(workers, FIXED) for workers in WORKERS[1:])]
    times = {point: results.needed(point, "seconds") for point in points if point in results}
    means = {point: time.mean for point, time in times.items() if time is not None}
    reached = {point: mean for point, mean in means.items() if not math.isnan(mean)}
    times_text = "; ".join(f"K={p.workers}: {digits(t, 3)} s" for p, t in reached.items())
    whole = len(times) == len(points) and bool(reached)
    return Finding(
        "K=16 is the most time-efficient (time modelled)",
        "the soonest at the target",
        times_text or "-",
        min(reached, key=lambda p: reached[p]) == points[-1] if whole else None,
    )


def rows(found: Sequence[Finding]) -> list[list[str]]:
    """For a table."""
    return [[f.claim, f.expected, f.measured, f.verdict] for f in found]
