"""What commands run, as frozen data; known without torch, so that help comes at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from codauc.schedules import geometric


@dataclass(frozen=True)
class DemoSettings:
    """What the demonstration runs; the defaults take about a minute on two cores."""

    workers: int = 4
    sync_every: tuple[int, ...] = (8, 64)
    lr: float = 0.5
    steps: int = 64
    stages: int = 3
    gamma: float = 500.0
    seed: int = 0
    out: Path = Path("runs/demo")

    @property
    def iterations(self) -> int:
        """Steps of each worker in one run."""
        return sum(stage.steps for stage in geometric(self.lr, self.steps, self.stages))
