"""Table 1: iterations and rounds to a target AUC, as K and I vary, beside the theory's."""

from __future__ import annotations

from codauc.experiments import vary_period, vary_workers
from codauc.experiments.study import Point


def points(*, with_k4: bool) -> tuple[Point, ...]:
    """One worker, naive parallel ones, and CoDA's."""
    found = [Point(1), *vary_workers.panel().points]
    for workers in (4, 16) if with_k4 else (16,):
        found += vary_period.panel(workers).points
    return tuple(dict.fromkeys(found))
