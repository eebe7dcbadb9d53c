"""Runs side by side, each a process of its own; what is finished is not run again."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from codauc.config import RunSettings
from codauc.runs import METRICS, RunFolder
from codauc.stopped import end_with_parent

LOG = "log.txt"
MADE_BY = "made-by.json"
_POLL = 0.5  # seconds
_PATIENCE = 60.0  # seconds in which a run that is asked to leave saves its state
_TAIL = 4096  # bytes, in which the last record begins
_LEFT = 3  # the exit code of a run that was asked to leave
_DIVERGED = "diverged.txt"


class Task(NamedTuple):
    """A run: its name, its settings, its directory, and its iterations."""

    name: str
    settings: RunSettings
    out: Path
    steps: int

    @property
    def work(self) -> int:
        """Steps of all workers."""
        return self.steps * self.settings.communication.workers

    @property
    def done(self) -> bool:
        """Whether it is finished."""
        return RunFolder(self.out).finished

    @property
    def diverged(self) -> str:
        """Why it came to no end and never will: its numbers are not finite; "" if they are."""
        path = self.out / _DIVERGED
        return path.read_text(encoding="utf-8") if path.exists() else ""

    @property
    def done_work(self) -> int:
        """How much of the work was seen to be done."""
        return last_step(self.out) * self.settings.communication.workers


class Failure(NamedTuple):
    """A run that did not come to its end, and why."""

    name: str
    reason: str


def run_side_by_side(
    tasks: Sequence[Task],
    jobs: int,
    told: Callable[[Sequence[Task]], object] = lambda _: None,
    made_by: dict[str, Any] | None = None,
) -> list[Failure]:
    """Run what is not finished, at most `jobs` at a time, in this order; return what failed.

    A run that has diverged would do so again: it fails without being run.

    `told` is called with the running ones twice a second. On Ctrl-C and SIGTERM the running ones
    save their states, and KeyboardInterrupt is raised; called again, they go on from there.
    """
    for task in tasks:
        check_same(task)
    waiting = [task for task in tasks if not task.done and not task.diverged]
    running: dict[BaseProcess, Task] = {}
    failed = [Failure(task.name, task.diverged) for task in tasks if task.diverged]
    with _leaving(running):
        while waiting or running:
            while waiting and len(running) < jobs:
                process = _process(waiting[0], made_by or {})
                running[process] = waiting.pop(0)  # before it starts, so that it is ended with all
                process.start()
            time.sleep(_POLL)
            for process in [each for each in running if each.exitcode is not None]:
                task = running.pop(process)
                if process.exitcode or not task.done:
                    failed.append(Failure(task.name, _reason(task, process.exitcode)))
            told(list(running.values()))
    return failed


def last_step(out: Path) -> int:
    """The iteration of a run's last look; 0 if there was none."""
    with suppress(OSError, ValueError, KeyError, IndexError), (out / METRICS).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        return int(json.loads(file.read().splitlines()[-1])["step"])
    return 0


def check_same(task: Task) -> None:
    """Raise if the run that is finished there is another one: what is asked for decides."""
    if not task.done:
        return
    folder = RunFolder(task.out)
    here, there = task.settings, RunSettings.from_dict(folder.config(), str(folder.path))
    pairs: dict[str, tuple[Any, ...]] = {"seed": (here.seed, there.seed)}
    for table, names in _COMPARED.items():
        for name in names:
            pairs[f"{table}.{name}"] = tuple(
                getattr(getattr(each, table), name) for each in (here, there)
            )
    for name, (wanted, found) in pairs.items():
        if found not in (wanted, None):
            raise ValueError(
                f"{folder.path} holds a run with {name} {found!r}, not {wanted!r}: remove it, or "
                "choose another --out."
            )


_COMPARED = {
    "data": ("keep_negatives", "watch", "test_fraction"),
    "model": ("name", "pretrained"),
    "recipe": (
        "name",
        "lr",
        "steps",
        "stages",
        "factor",
        "batch_size",
        "gamma",
        "average",
        "start",
    ),
    "communication": ("workers", "sync_every", "averages"),
}


def _process(task: Task, made_by: dict[str, Any]) -> BaseProcess:
    context = multiprocessing.get_context("spawn")
    return context.Process(target=_run, args=(task, os.getpid(), made_by))


def _run(task: Task, parent: int, made_by: dict[str, Any]) -> None:
    """In a process of its own, which the terminal's Ctrl-C does not reach."""
    os.setsid()
    end_with_parent(parent)
    task.out.mkdir(parents=True, exist_ok=True)
    log = (task.out / LOG).open("a", encoding="utf-8", buffering=1)
    sys.stdout = sys.stderr = log
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    import torch

    from codauc.averaging import NotFiniteError
    from codauc.running import train

    torch.set_num_threads(1)
    began = time.process_time()
    try:
        summary = train(task.settings, task.out, resume=True)
    except NotFiniteError as error:
        (task.out / _DIVERGED).write_text(str(error), encoding="utf-8")
        sys.exit(1)
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        print(f"{type(error).__name__}: {error}", file=log)
        sys.exit(1)
    facts = made_by | {"cpu_seconds": time.process_time() - began}
    (task.out / MADE_BY).write_text(json.dumps(facts), encoding="utf-8")
    sys.exit(0 if summary.get("finished") else _LEFT)


def _reason(task: Task, code: int | None) -> str:
    if task.diverged:
        return task.diverged
    if code == _LEFT:
        return "it was asked to leave"
    if code is not None and code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    with suppress(OSError, IndexError):
        return (task.out / LOG).read_text(encoding="utf-8").strip().splitlines()[-1]
    return f"it ended with code {code}"


@contextmanager
def _leaving(running: dict[BaseProcess, Task]) -> Iterator[None]:
    """Whatever ends this, no process is left, and each that can has saved its state."""

    def leave(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, leave) if main else None
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
