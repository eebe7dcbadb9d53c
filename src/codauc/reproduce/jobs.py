"""Runs side by side, each a process of its own; what is finished is not run again."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.context import SpawnProcess
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from codauc._internal.files import read_text, regular_file
from codauc._internal.imports import as_started, safe_children
from codauc.reproduce.kept_runs import KeptRun
from codauc.runs.directory import RunFolder
from codauc.runs.settings import Recipe, RunSettings
from codauc.training.recipe import plan
from codauc.workers.watchdog import end_with_parent

LOG = "log.txt"
MADE_BY = "made-by.json"
_POLL = 0.5  # seconds
_PATIENCE = 60.0  # seconds in which a run that is asked to stop saves its state
_LEFT = 3  # the exit code of a run that was asked to stop
_DIVERGED = "diverged.txt"


class RunJob(NamedTuple):
    """A run: its name, its settings with a decided recipe, its directory, and what is kept of it.

    `kept` is what the study's tables say of it where it was run in another directory.
    """

    name: str
    settings: RunSettings
    out: Path
    kept: KeptRun | None = None

    @property
    def steps(self) -> int:
        """Iterations of each worker."""
        recipe = self.settings.recipe
        assert isinstance(recipe, Recipe)
        return plan(recipe, self.settings.communication).steps

    @property
    def work(self) -> int:
        """Steps of all workers."""
        return self.steps * self.settings.communication.size

    @property
    def lockstep(self) -> bool:
        """Whether its workers compute in lockstep, and not one after the other."""
        from codauc.reproduce.lockstep_runs import begun_otherwise, possible

        return possible(self.settings) and not begun_otherwise(self.out)

    @property
    def done(self) -> bool:
        """Whether it is finished."""
        return bool(self.kept and not self.kept.diverged) or self.here

    @property
    def here(self) -> bool:
        """Whether it was finished in its directory."""
        return RunFolder(self.out).finished

    @property
    def diverged(self) -> str:
        """Why it never finishes: its numbers are not finite; "" if they are."""
        path = self.out / _DIVERGED
        if not path.exists():
            return "its numbers were not finite" if self.kept and self.kept.diverged else ""
        return read_text(path)

    @property
    def facts(self) -> dict[str, Any]:
        """With what its directory's run was made, and the processor's time it took so far."""
        with suppress(OSError, ValueError, TypeError):
            return dict(json.loads(read_text(self.out / MADE_BY)))
        return {}

    @property
    def done_work(self) -> int:
        """How much of the work was recorded so far."""
        with suppress(OSError, ValueError, IndexError):
            return RunFolder(self.out).records()[-1].step * self.settings.communication.size
        return 0


def run_side_by_side(
    jobs: Sequence[RunJob],
    at_once: int,
    progress: Callable[[Sequence[RunJob]], object] = lambda _: None,
    made_by: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Run what is not finished, at most `at_once` at a time, in this order; return what failed.

    What failed are reasons by names. A run that has diverged would do so again: it is not run.

    `progress` is called with the running ones twice a second. On Ctrl-C and SIGTERM the running
    ones save their states, and KeyboardInterrupt is raised; the next call resumes them.
    """
    for job in jobs:
        check_same(job)
    waiting = [job for job in jobs if not job.done and not job.diverged]
    running: dict[SpawnProcess, RunJob] = {}
    failed = {job.name: job.diverged for job in jobs if job.diverged}
    context = multiprocessing.get_context("spawn")
    with _leaving(running):
        while waiting or running:
            while waiting and len(running) < at_once:
                process = context.Process(target=_run, args=(waiting[0], os.getpid(), made_by))
                running[process] = waiting.pop(0)  # before it starts, so that it is ended with all
                with safe_children():
                    process.start()
            time.sleep(_POLL)
            for process in [each for each in running if each.exitcode is not None]:
                job = running.pop(process)
                if process.exitcode or not job.done:
                    failed[job.name] = _reason(job, process.exitcode)
            progress(list(running.values()))
    return failed


def check_same(job: RunJob) -> None:
    """Raise if the finished run in the directory has other settings than this job."""
    if not job.here:
        return
    folder = RunFolder(job.out)
    # trusted as far as this: what is there is compared, and never run
    there = RunSettings.from_dict(folder.config(), str(folder.path), trust=True)
    for name in _COMPARED:
        wanted, found = map(attrgetter(name), (job.settings, there))
        if found not in (wanted, None):
            raise ValueError(
                f"{folder.path} holds a run with {name} {found!r}, not {wanted!r}: remove it, or "
                "choose another directory."
            )


_RECIPE = ("name", "lr", "steps", "stages", "factor", "batch_size", "gamma", "average", "start")
_COMPARED = (
    *("seed", "data.keep_negatives", "data.watch", "data.test_fraction"),
    *("model.name", "model.pretrained", *(f"recipe.{name}" for name in _RECIPE)),
    *("communication.workers", "communication.sync_every", "communication.averages"),
)


def _run(job: RunJob, parent: int, made_by: Mapping[str, Any] | None) -> None:
    """In a process of its own, which the terminal's Ctrl-C does not reach."""
    as_started()
    os.setsid()
    end_with_parent(parent)
    job.out.mkdir(parents=True, exist_ok=True)
    if (job.out / LOG).exists():
        regular_file(job.out / LOG)
    log = (job.out / LOG).open("a", encoding="utf-8", buffering=1)
    sys.stdout = sys.stderr = log
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    import torch

    from codauc.algorithm.rounds import NotFiniteError

    torch.set_num_threads(1)
    began = time.process_time()
    try:
        finished = _train(job)
    except NotFiniteError as error:
        (job.out / _DIVERGED).write_text(str(error), encoding="utf-8")
        sys.exit(1)
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        print(f"{type(error).__name__}: {error}", file=log)
        sys.exit(1)
    spent = time.process_time() - began + float(job.facts.get("cpu_seconds", 0.0))
    facts = {**(made_by or {}), "cpu_seconds": spent, "lockstep": job.lockstep}
    (job.out / MADE_BY).write_text(json.dumps(facts), encoding="utf-8")
    sys.exit(0 if finished else _LEFT)


def _train(job: RunJob) -> bool:
    """Begin or resume a run; whether it is finished."""
    if not job.lockstep:
        from codauc.training.train_call import train

        return bool(train(job.settings, job.out, resume=True).get("finished"))
    from codauc.reproduce.lockstep_runs import perform

    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    return perform(job.settings, job.out, lambda: bool(asked))


def _reason(job: RunJob, code: int | None) -> str:
    if job.diverged:
        return job.diverged
    if code == _LEFT:
        return "it was asked to stop"
    if code is not None and code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    with suppress(OSError, IndexError):
        return read_text(job.out / LOG).strip().splitlines()[-1]
    return f"it ended with code {code}"


@contextmanager
def _leaving(running: Mapping[SpawnProcess, RunJob]) -> Iterator[None]:
    """However this ends, no process is left, and each that can has saved its state."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if main else None
    try:
        yield
    finally:
        begun = [process for process in running if process.pid is not None]
        for process in begun:
            process.terminate()
        deadline = time.monotonic() + _PATIENCE
        for process in begun:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()
        if main:
            signal.signal(signal.SIGTERM, before)
