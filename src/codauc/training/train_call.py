"""`codauc.train`: what it is given as settings and data, and what it returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from codauc._internal.notebook import in_notebook
from codauc._internal.progress import status
from codauc.data.in_memory import IN_MEMORY, InMemory, is_in_memory
from codauc.data.row_sites import EACH
from codauc.report.run_summary import RunSummary
from codauc.runs.directory import RunFolder
from codauc.runs.named_settings import settings_by_name
from codauc.runs.settings import RunSettings
from codauc.training.callbacks import Callback
from codauc.training.directory_claim import check_free, new_directory, of_several
from codauc.training.profiler import prepare
from codauc.training.run import Job, restarts, start
from codauc.training.site_choice import with_workers
from codauc.workers.signals import Requests

_OF_FILES = ("images", "file_column", "image_size", "channels")


def train(
    data: Any,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool | None = None,
    tensorboard: bool = False,
    profile: bool = False,
    callbacks: Sequence[Callback] = (),
    words: Callable[[str], str] = str,
    **settings: Any,
) -> RunSummary:
    """Train a network on `data`, into the directory `out`.

    A run that was asked to leave (SIGTERM) saves its state and returns {"stopped": True, ...}.

    Args:
        data: a frame (pandas, polars, Arrow, or with `__dataframe__`), a numpy array, a tensor, a
            sparse matrix, or the path of what `codauc train` reads; or `RunSettings`, in which the
            data are named and everything else is set.
        out: the directory; None for the first of runs/NAME-1, runs/NAME-2, ... that is free.
        resume: continue the run in `out` as if it had never stopped, or begin it if there is none;
            of a finished run only the summary is returned. Data in memory are given again.
        overwrite: remove an existing run in `out`.
        quiet: show no progress; by default it is shown in a notebook alone.
        tensorboard: also write events for TensorBoard.
        profile: also write profile.json and trace.json, which say where the time went.
        callbacks: called in worker 0.
        words: turns messages that name arguments into those of another way in, as the command's.
        settings: by the names of the options of `codauc train`, with underscores, such as
            `target="y"`, `drop=["id"]`, `steps=500`, `workers=4, simulate=True`. `target` is the
            column of labels; of an array, or beside a frame, it is the labels themselves, one per
            row. `test` is a file, a frame, or a pair (X, y).

    Returns:
        What summary.json holds, as a dict that shows itself in a notebook; its "run" is the
        directory. Under torchrun only worker 0 returns it, the others {}.
    """
    chosen, memory = _settings(data, settings)
    if out is not None and not isinstance(out, str | os.PathLike):
        raise ValueError(
            f"out is of type {type(out).__name__}: expected the directory of the run; labels are "
            "given by name, train(X, target=y)."
        )
    if resume and (overwrite or out is None):
        raise ValueError("resume=True: expected out, the run's directory, and no overwrite.")
    if out is not None and resume and of_several(RunFolder(out)):
        raise ValueError(
            f"out={out} holds the runs of test_site='each': expected the directory of one run; "
            "choose one of those below it, or use test_site='each' to continue them all."
        )
    if out is not None and not resume and not restarts():
        check_free(RunFolder(out), overwrite=overwrite)
    _check_own(chosen)
    if chosen.data.test_site == EACH:
        raise ValueError(
            "test_site='each' is one run for each site: expected the name of one; train once for "
            "each of them, or use codauc.training.left_out.each_site."
        )
    chosen = with_workers(chosen, memory)
    made = None
    if out is None and chosen.safety.max_restarts and "RANK" not in os.environ:
        out = made = new_directory(chosen.data.source)  # all attempts write to one directory
    if profile and chosen.communication.simulate:
        prepare()
    silent = not in_notebook() if quiet is None else quiet
    options = (resume, overwrite, silent, tensorboard, profile, tuple(callbacks), words)
    place, requests = None if out is None else str(out), Requests(partial(_on_stop, silent))
    try:
        return RunSummary(start(Job(chosen, requests, place, *options, memory)))
    except BaseException:
        if made is not None:
            RunFolder(made).remove_unbegun()
        raise


def _on_stop(quiet: bool) -> None:
    if not quiet:
        status("\nEnding with what there is, at the next round; Ctrl-C again to leave at once.")


def _check_own(settings: RunSettings) -> None:
    """Raise where workers that read files of their own are given one file."""
    source, workers = settings.data.source, settings.communication.size
    if settings.data.own and workers > 1 and "{rank}" not in source:
        raise ValueError(
            f"own with {source} for {workers} workers: expected a file for each of them; write "
            "{rank} for the worker's number in its name."
        )


def _settings(data: Any, given: Mapping[str, Any]) -> tuple[RunSettings, InMemory | None]:
    """The settings of the run, and its data if they are in memory."""
    if isinstance(data, RunSettings):
        if given:
            raise ValueError(
                f"{', '.join(given)} beside RunSettings: expected all settings in it; give the "
                "data in place of RunSettings to set some by name."
            )
        return data, None
    if isinstance(data, str | os.PathLike):
        return settings_by_name(os.fspath(data), given), None
    if not is_in_memory(data):
        raise ValueError(
            f"data of type {type(data).__name__}: expected RunSettings, a path, a frame (pandas, "
            "polars, Arrow), a numpy array, a tensor or a sparse matrix."
        )
    refused = next((name for name in _OF_FILES if given.get(name) is not None), None)
    if refused is not None:
        raise ValueError(f"{refused} with data in memory: expected a path; leave it out.")
    target, test = given.get("target"), given.get("test")
    labels = None if target is None or isinstance(target, str) else target
    memory = InMemory(data, labels, _test_set(test))
    named = dict(given)
    if labels is not None:
        named["target"] = memory.target
    if memory.test is not None:
        named["test"] = IN_MEMORY
    return settings_by_name(IN_MEMORY, named), memory


def _test_set(test: Any) -> InMemory | None:
    """A test set in memory; None for one in a file, or none."""
    if isinstance(test, tuple) and len(test) == 2 and is_in_memory(test[0]):
        return InMemory(*test)
    return InMemory(test) if is_in_memory(test) else None
