"""The paper's figures: which points of a study each one shows."""

from __future__ import annotations

from collections.abc import Sequence

from codauc.reproduce.study import DATA, FIXED, KEEP, WORKERS, Study, StudyPoint

FIRST_PERIODS = (8, 64, 512)  # I_0 where I grows; the paper does not state its own
HEADLINE = {
    StudyPoint(16, 1): "NP-PPD-SG (I=1)",
    StudyPoint(16, 8): "CoDA (I=8)",
    StudyPoint(16, 64): "CoDA (I=64)",
    StudyPoint(16, objective="bce"): "data parallel cross-entropy",
}
FIGURES = {  # in the order of running, with what they are
    "workers": "fixed I, K in {1, 4, 16}",
    "period": "fixed K=16, I in {1, 8, 64, 512, 1024}",
    "period-k4": "fixed K=4, the same I",
    "headline": "rounds and bytes to a target AUC: NP-PPD-SG, CoDA, data parallel cross-entropy",
    "table1": "iterations and rounds to a target AUC, and measured constants, beside the theory's",
    "tuning": "the grid of T_0 and eta_0, for one worker",
    "growing": "K=16, I_s = I_0 3^(s-1)",
}
TITLES = {  # of those that are pictures of curves
    "workers": f"Fix I={FIXED}, vary K",
    "period": "Fix K=16, vary I",
    "period-k4": "Fix K=4, vary I",
    "growing": "Fix K=16, I_s = I_0 3^(s-1)",
}
_ONLY_71 = ("period-k4", "headline", "growing")


def figures(percent: int) -> tuple[str, ...]:
    """The names of what the paper shows at this share of positives, in the order of running."""
    return tuple(name for name in FIGURES if percent == 71 or name not in _ONLY_71)


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


def points_of(study: Study, figure: str) -> list[StudyPoint]:
    """What a figure shows, in its order."""
    periods = study.periods
    match figure:
        case "workers":
            return [StudyPoint(k, 1 if k == 1 else FIXED) for k in WORKERS]
        case "period" | "period-k4":
            return [StudyPoint(4 if figure == "period-k4" else 16, every) for every in periods]
        case "growing":
            return [StudyPoint(16, i, growing=True) for i in FIRST_PERIODS if i < max(periods)]
        case "headline":
            return [p for p in HEADLINE if p.objective == "bce" or p.sync_every in periods]
        case "table1":  # the paper has K=4 at 71% alone
            names = ("workers", "period", "period-k4")
            shown = [name for name in names if name in figures(study.percent)]
            found = {point for name in shown for point in points_of(study, name)}
            return sorted(found, key=lambda point: (point.workers, point.sync_every))
    return []


def points(study: Study, wanted: Sequence[str]) -> dict[StudyPoint, bool]:
    """What is run for the figures, each point once, and whether a finding depends on it.

    The single worker is among them: its final AUC sets the target of all.
    """
    found: dict[StudyPoint, bool] = {}
    for name in wanted:
        for point in points_of(study, name):
            found.setdefault(StudyPoint(1), True)
            needed = name != "growing" and point.objective == "auc"
            found[point] = found.get(point, False) or needed
    return found
