"""The paper's claim in one picture: what the target AUC costs in rounds and in bytes."""

from __future__ import annotations

from codauc.experiments.study import Point, Study

LABELS = {
    Point(16, 1): "NP-PPD-SG (I=1)",
    Point(16, 8): "CoDA (I=8)",
    Point(16, 64): "CoDA (I=64)",
    Point(16, objective="bce"): "data parallel cross-entropy",
}


def points(study: Study) -> tuple[Point, ...]:
    """The naive way, CoDA, and what people do today."""
    known = study.size.periods
    return tuple(p for p in LABELS if p.objective == "bce" or p.sync_every in known)
