"""The supplement's last figure: I grows as the step size falls, I_s = I_0 3^(s-1)."""

from __future__ import annotations

from codauc.experiments.panels import Panel
from codauc.experiments.study import Point, Study

FIRST = (8, 64, 512)  # I_0; the paper does not tell its own


def panel(study: Study) -> Panel:
    """K=16, and I_0 in {8, 64, 512}."""
    longest = max(study.size.periods)
    points = tuple(Point(16, first, growing=True) for first in FIRST if first < longest)
    return Panel("growing", "Fix K=16, I_s = I_0 3^(s-1)", points)
