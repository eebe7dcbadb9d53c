"""The paper's figures: which points of a study each one shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from codauc.reproduce.study import DATA, FIXED, KEEP, WORKERS, Study, StudyPoint

FIRST_PERIODS = (8, 64, 512)  # I_0 where I grows; the paper does not state its own
HEADLINE = {
    StudyPoint(16, 1): "NP-PPD-SG (I=1)",
    StudyPoint(16, 8): "CoDA (I=8)",
    StudyPoint(16, 64): "CoDA (I=64)",
    StudyPoint(16, objective="bce"): "data parallel cross-entropy",
}


class Panel(NamedTuple):
    """Curves in one picture: its name, its title, and the points in the order of the legend."""

    name: str
    title: str
    points: tuple[StudyPoint, ...]


def vary_workers(study: Study) -> Panel:
    """Figures 1 to 3 (a), and those of the supplement: I is fixed, K in {1, 4, 16}."""
    del study  # the same at all scales
    points = tuple(StudyPoint(k, 1 if k == 1 else FIXED) for k in WORKERS)
    return Panel("workers", f"Fix I={FIXED}, vary K", points)


def vary_period(study: Study, workers: int = 16) -> Panel:
    """Figures 1 to 3 (b), and those of the supplement: K is fixed, I in {1, 8, 64, 512, 1024}."""
    points = tuple(StudyPoint(workers, every) for every in study.size.periods)
    name = "period" if workers == 16 else f"period-k{workers}"
    return Panel(name, f"Fix K={workers}, vary I", points)


def growing_period(study: Study) -> Panel:
    """The supplement's last figure: I grows as the step size falls, I_s = I_0 3^(s-1)."""
    longest = max(study.size.periods)
    points = tuple(StudyPoint(16, i, growing=True) for i in FIRST_PERIODS if i < longest)
    return Panel("growing", "Fix K=16, I_s = I_0 3^(s-1)", points)


def headline(study: Study) -> tuple[StudyPoint, ...]:
    """What the target AUC costs in rounds and bytes: averaging every step, CoDA, cross-entropy."""
    known = study.size.periods
    return tuple(p for p in HEADLINE if p.objective == "bce" or p.sync_every in known)


def table1(study: Study) -> tuple[StudyPoint, ...]:
    """Table 1: iterations and rounds to a target AUC; the paper has K=4 at 71% alone."""
    found = [*vary_workers(study).points]
    for workers in (4, 16) if study.percent == 71 else (16,):
        found += vary_period(study, workers).points
    return tuple(sorted(set(found), key=lambda point: (point.workers, point.sync_every)))


_PANELS: dict[str, Callable[[Study], Panel]] = {
    "workers": vary_workers,
    "period": vary_period,
    "period-k4": partial(vary_period, workers=4),
    "growing": growing_period,
}
_TABLES = {"headline": headline, "table1": table1}


def figures(percent: int) -> tuple[str, ...]:
    """The names of what the paper shows at this share of positives, in the order of running."""
    if percent == 71:
        return ("workers", "period", "period-k4", "headline", "table1", "tuning", "growing")
    return ("workers", "period", "table1", "tuning")


def catalogue() -> dict[str, tuple[str, int, tuple[str, ...]]]:
    """Every name that can be typed: its data set, its per cent of positives, its figures."""
    found = {}
    for data in DATA:
        for percent in KEEP:
            everything = figures(percent)
            found[f"{data}-{percent}"] = (data, percent, everything)
            for figure in everything:
                found[f"{data}-{percent}-{figure}"] = (data, percent, (figure,))
    return found


def panels(study: Study, wanted: Sequence[str]) -> list[Panel]:
    """The pictures of curves among the figures."""
    return [_PANELS[name](study) for name in wanted if name in _PANELS]


def points(study: Study, wanted: Sequence[str]) -> dict[StudyPoint, bool]:
    """What is run for the figures, each point once, and whether a finding depends on it.

    The single worker is among them: its final AUC sets the target of all.
    """
    found: dict[StudyPoint, bool] = {}
    for name in wanted:
        some = _PANELS[name](study).points if name in _PANELS else ()
        for point in (*some, *(_TABLES[name](study) if name in _TABLES else ())):
            found.setdefault(StudyPoint(1), True)
            needed = name != "growing" and point.objective == "auc"
            found[point] = found.get(point, False) or needed
    return found
