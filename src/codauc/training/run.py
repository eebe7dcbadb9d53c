"""`codauc.train`: a run from its settings to its directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from codauc._internal.progress import note
from codauc.runs.directory import RunFolder
from codauc.runs.settings import RunSettings
from codauc.training.callbacks import Callback
from codauc.training.directory_claim import check_free, new_directory
from codauc.training.job import Job, restarts
from codauc.training.profiler import prepare
from codauc.workers.launcher import launch
from codauc.workers.signals import LEAVE, AskedToLeave, Requests

_LONGEST_WAIT = 1800.0  # seconds for another worker, while data are read


def train(
    settings: RunSettings,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = True,
    tensorboard: bool = False,
    profile: bool = False,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Train as `settings` say, into the directory `out`.

    A run that was asked to leave (SIGTERM) saves its state and returns {"stopped": True, ...}.

    Args:
        settings: of the run.
        out: the directory; None for the first of runs/NAME-1, runs/NAME-2, ... that is free.
        resume: continue the run in `out` as if it had never stopped, or begin it if there is none;
            of a finished run only the summary is returned.
        overwrite: remove an existing run in `out`.
        quiet: show no progress.
        tensorboard: also write events for TensorBoard.
        profile: also write profile.json and trace.json, which say where the time went.
        callbacks: called in worker 0.

    Returns:
        What summary.json holds; its "run" is the directory. Under torchrun only worker 0 returns
        it, the others {}.
    """
    parts, under_torchrun = settings.communication, "RANK" in os.environ
    if resume and (overwrite or out is None):
        raise ValueError("resume=True: expected out, the run's directory, and no overwrite.")
    if out is not None and not resume and not restarts():
        check_free(RunFolder(out), overwrite=overwrite)
    if settings.data.own and parts.workers > 1 and "{rank}" not in settings.data.source:
        raise ValueError(
            f"own with {settings.data.source} for {parts.workers} workers: expected a file for "
            "each of them; write {rank} for the worker's number in its name."
        )
    if out is None and settings.safety.max_restarts and not under_torchrun:
        out = new_directory(settings.data.source)  # all attempts write to one directory
    if profile and parts.simulate:
        prepare()
    place, requests = None if out is None else str(out), Requests(partial(_on_stop, quiet))
    job = Job(
        *(settings, requests, place, resume, overwrite, quiet, tensorboard, profile),
        tuple(callbacks),
    )
    try:
        with requests.listening():
            results = launch(
                job.work,
                workers=None if under_torchrun else parts.workers,
                simulate=parts.simulate,
                seed=settings.seed,
                timeout=parts.timeout or _LONGEST_WAIT,
                requests=requests,
                max_restarts=0 if under_torchrun else settings.safety.max_restarts,
            )
    except AskedToLeave:
        results = [None]
    if results[0] is None and requests.pending(LEAVE):
        return {"run": place, "stopped": True, "steps": None, "saved": True}
    return results[0] or {}


def _on_stop(quiet: bool) -> None:
    if not quiet:
        note("\nEnding with what there is, at the next round; Ctrl-C again to leave at once.")
