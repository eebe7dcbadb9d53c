"""Figures 1 to 3 (b), those of the supplement, and those with K=4: K is fixed, I varies."""

from __future__ import annotations

from codauc.experiments.panels import Panel
from codauc.experiments.study import Point, Study


def panel(study: Study, workers: int = 16) -> Panel:
    """I in {1, 8, 64, 512, 1024}."""
    points = tuple(Point(workers, every) for every in study.size.periods)
    name = "period" if workers == 16 else f"period-k{workers}"
    return Panel(name, f"Fix K={workers}, vary I", points)
