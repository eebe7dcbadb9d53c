"""What the demonstration runs; known without torch, so that help comes at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from codauc._internal.setting_types import setting


@dataclass(frozen=True)
class DemoSettings:
    """What the demonstration runs; the defaults take about a minute on two cores."""

    # fmt: off
    workers: int = setting(4, "simulated workers ({default})", metavar="K")
    sync_every: tuple[int, ...] = setting(
        (8, 64), "CoDA's steps between two rounds, one run for each ({default})", metavar="I")
    lr: float = setting(0.5, "step size of the first stage ({default})", metavar="ETA")
    steps: int = setting(64, "steps of the first stage ({default})", metavar="T0")
    stages: int = setting(3, "number of stages ({default})", metavar="S")
    gamma: float = setting(
        500.0, "the pull to the first weights of a stage is 1/gamma ({default})", metavar="GAMMA")
    seed: int = setting(0, "seed of shards, weights and batches ({default})", metavar="N")
    out: Path = setting(Path("runs/demo"), "directory of the results ({default})", metavar="DIR")
    # fmt: on
