"""A few steps of every configuration: does it build, load and train?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from codauc.config import RunSettings
from codauc.data.opening import open_data
from codauc.group import Group
from codauc.launching import launch
from codauc.making import settle
from codauc.trainer import fit

STEPS = 2  # of each of two stages
_BATCH = 4  # samples, as large images and networks take long on a CPU
_WORKERS = 2  # that are as good as sixteen, to see whether it works
_SAMPLES = 8  # for the estimate of alpha


def dry_run(
    runs: Sequence[tuple[str, RunSettings]], told: Callable[[str], object] = lambda _: None
) -> None:
    """Train each for a few steps of small batches, with at most two simulated workers.

    There are no looks and no files.
    """
    for name, settings in runs:
        workers = min(settings.communication.workers, _WORKERS)
        short = settings.with_changes(
            "recipe",
            steps=STEPS,
            stages=2,
            factor=1.0,
            batch_size=_BATCH,
            dual_samples=_SAMPLES,
        ).with_changes("communication", workers=workers, simulate=True)

        def work(group: Group, short: RunSettings = short) -> tuple[int, int]:
            opened = open_data(short.data, group, short.seed)
            settled = settle(short, opened, group.size)
            trained = fit(settled, replace(opened, validation=None), group)
            return trained.steps, sum(p.numel() for p in trained.model.parameters())

        steps, parameters = launch(work, workers=workers, simulate=True, seed=short.seed)[0]
        every = settings.communication.sync_every
        told(
            f"{name}: K={settings.communication.workers} (here {workers}), I={every}, "
            f"{settings.model.name} of {parameters:,} parameters: {steps} steps."
        )
