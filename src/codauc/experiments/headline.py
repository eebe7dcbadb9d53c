"""The paper's claim in one picture: what the target AUC costs in rounds and in bytes."""

from __future__ import annotations

from codauc.experiments.study import Point

WORKERS = 16
NAIVE = Point(WORKERS, 1)
CODA = Point(WORKERS, 64)
BCE = Point(WORKERS, objective="bce")
LABELS = {
    NAIVE: "NP-PPD-SG (I=1)",
    CODA: f"CoDA (I={CODA.sync_every})",
    BCE: "data parallel cross-entropy",
}


def points() -> tuple[Point, ...]:
    """The naive way, CoDA, and what people do today."""
    return tuple(LABELS)
