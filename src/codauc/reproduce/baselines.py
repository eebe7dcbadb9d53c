"""The same network and number of steps trained in six ways, each a run of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from codauc._internal.progress import note
from codauc.data.opening import open_data
from codauc.runs.directory import RunFolder
from codauc.runs.settings import Recipe, RunSettings
from codauc.training.build import resolve_settings
from codauc.training.recipe import SYNC_EVERY, plan
from codauc.training.run import train
from codauc.workers.group import LocalGroup

_WORKERS = 4


def ways(settings: RunSettings) -> dict[str, RunSettings]:
    """Cross-entropy twice, then the paper's competitors and CoDA, by the names of directories."""
    recipe, parts = settings.recipe, settings.communication
    assert isinstance(recipe, Recipe)
    steps, every = plan(recipe, parts).steps, parts.sync_every or SYNC_EVERY
    bce = replace(recipe, name="bce", warm_start=1.0, steps=steps, stages=1)
    rounds = replace(parts, averages="weights", sync_every=every)
    each_step = replace(rounds, sync_every=1, delay=0)
    alone = replace(each_step, workers=1, simulate=True)
    once = replace(rounds, sync_every="once", delay=0)
    return {
        "bce-data-parallel": replace(
            settings, recipe=bce, communication=replace(once, averages="gradients", compress=None)
        ),
        "bce-local-steps": replace(settings, recipe=bce, communication=rounds),
        "ppd-sg": replace(settings, communication=alone),
        "np-ppd-sg": replace(settings, communication=each_step),
        "one-shot": replace(settings, communication=once),
        "coda": replace(settings, communication=rounds),
    }


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
    if settings.communication.workers == 1:
        settings = settings.with_changes("communication", workers=_WORKERS, simulate=True)
    RunFolder(out).refuse_links()
    opened = open_data(settings.data, LocalGroup(), settings.seed)
    resolved = resolve_settings(settings, opened, settings.communication.workers)
    settings = replace(resolved, communication=settings.communication)  # the same for all
    folders = []
    for name, each in ways(settings).items():
        if not quiet:
            note(f"{name}:")
        folders.append(out / name)
        summary = train(each, folders[-1], resume=resume, overwrite=overwrite, quiet=quiet)
        if not summary.get("finished"):
            break
    return folders
