"""A few steps of every configuration: does it build, load and train?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from codauc.data.opening import open_data
from codauc.runs.settings import RunSettings
from codauc.training.build import resolve_settings
from codauc.training.loop import fit
from codauc.workers.group import Group
from codauc.workers.launcher import launch

STEPS = 2  # of each of two stages
_BATCH = 4  # samples, as large images and networks take long on a CPU
_WORKERS = 2  # that are as good as sixteen, to see whether it works
_SAMPLES = 8  # for the estimate of alpha


def dry_run(
    runs: Sequence[tuple[str, RunSettings]], say: Callable[[str], object] = lambda _: None
) -> None:
    """Train each for a few steps of small batches, with at most two simulated workers.

    There are no evaluations and no files.
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
            settled = resolve_settings(short, opened, group.size)
            trained = fit(settled, replace(opened, validation=None), group)
            return trained.steps, sum(p.numel() for p in trained.model.parameters())

        steps, parameters = launch(work, workers=workers, simulate=True, seed=short.seed)[0]
        every = settings.communication.sync_every
        say(
            f"{name}: K={settings.communication.workers} (here {workers}), I={every}, "
            f"{settings.model.name} of {parameters:,} parameters: {steps} steps."
        )
