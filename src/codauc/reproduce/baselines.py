"""The same network and number of steps trained in six ways, each a run of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from codauc._internal.progress import note
from codauc.data.opening import open_data
from codauc.runs.directory import RunFolder
from codauc.runs.settings import Recipe, RunSettings
from codauc.training.build import resolve_settings
from codauc.training.recipe import SYNC_EVERY, plan
from codauc.training.run import train
from codauc.workers.group import LocalGroup

_WORKERS = 4


class Way(NamedTuple):
    """A name for the directory, the recipe, the workers (0: as asked), I, and what is averaged."""

    name: str
    recipe: str
    workers: int
    sync_every: int | str | None
    averages: str = "weights"


def ways(settings: RunSettings) -> list[Way]:
    """Cross-entropy twice, then the paper's competitors and CoDA."""
    own, every = settings.recipe.name, settings.communication.sync_every or SYNC_EVERY
    return [
        Way("bce-data-parallel", "bce", 0, "once", "gradients"),
        Way("bce-local-steps", "bce", 0, every),
        Way("ppd-sg", own, 1, 1),
        Way("np-ppd-sg", own, 0, 1),
        Way("one-shot", own, 0, "once"),
        Way("coda", own, 0, every),
    ]


def run_baselines(
    settings: RunSettings,
    out: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = True,
) -> list[Path]:
    """Run them one after the other, until one is interrupted; return their directories.

    With `resume` those that are finished are not run again, and an interrupted one is resumed.

    All take the same number of steps, with the same batches per worker; PPD-SG's one worker has all
    the data.
    """
    if settings.recipe.name == "bce":
        raise ValueError("recipe bce: expected default or paper; cross-entropy is among them.")
    parts = settings.communication
    if parts.workers == 1:
        settings = settings.with_changes("communication", workers=_WORKERS, simulate=True)
    RunFolder(out).refuse_links()
    settings = _fixed(settings)
    folders = []
    for way in ways(settings):
        if not quiet:
            note(f"{way.name}:")
        folders.append(out / way.name)
        summary = train(
            _as(settings, way), folders[-1], resume=resume, overwrite=overwrite, quiet=quiet
        )
        if not summary.get("finished"):
            break
    return folders


def _fixed(settings: RunSettings) -> RunSettings:
    """With everything decided that the data decide, so that it is the same for all."""
    opened = open_data(settings.data, LocalGroup(), settings.seed)
    settled = resolve_settings(settings, opened, settings.communication.workers)
    return replace(settled, communication=settings.communication)


def _as(settings: RunSettings, way: Way) -> RunSettings:
    recipe, parts = settings.recipe, settings.communication
    assert isinstance(recipe, Recipe)
    if way.recipe == "bce":
        total = plan(recipe, parts).steps
        recipe = replace(recipe, name="bce", warm_start=1.0, steps=total, stages=1)
    workers = way.workers or parts.workers
    communication = replace(
        parts,
        workers=workers,
        simulate=parts.simulate or workers == 1,
        sync_every=way.sync_every,
        averages=way.averages,
        compress=parts.compress if way.averages == "weights" else None,
        delay=parts.delay if way.name in ("coda", "bce-local-steps") else 0,
    )
    return replace(settings, recipe=recipe, communication=communication)
