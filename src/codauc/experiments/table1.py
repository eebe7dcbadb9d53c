"""Table 1: iterations and rounds to a target AUC, as K and I vary, beside the theory's."""

from __future__ import annotations

from codauc.experiments import vary_period, vary_workers
from codauc.experiments.study import Point, Study


def points(study: Study) -> tuple[Point, ...]:
    """One worker, naive parallel ones, and CoDA's; the paper has K=4 at 71% alone."""
    found = [*vary_workers.panel(study).points]
    for workers in (4, 16) if study.percent == 71 else (16,):
        found += vary_period.panel(study, workers).points
    return tuple(sorted(set(found), key=lambda point: (point.workers, point.sync_every)))
