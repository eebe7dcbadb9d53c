"""Figures 1 to 3 (a), and those of the supplement: I is fixed, K varies."""

from __future__ import annotations

from codauc.experiments.panels import Panel
from codauc.experiments.study import FIXED, WORKERS, Point, Study


def panel(study: Study) -> Panel:
    """K in {1, 4, 16}."""
    del study  # which is the same at all scales
    points = tuple(Point(k, 1 if k == 1 else FIXED) for k in WORKERS)
    return Panel("workers", f"Fix I={FIXED}, vary K", points)
