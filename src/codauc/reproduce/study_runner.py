"""Runs a study: tunes the step size, times a step, then runs every point with every seed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from codauc._internal.progress import Progress
from codauc.reproduce import tuning
from codauc.reproduce.jobs import Failure, RunJob, run_side_by_side
from codauc.reproduce.reproduction import Reproduction
from codauc.reproduce.study import Tuned
from codauc.version import __version__


def run_study(
    made: Reproduction, at_once: int | None = None, label: str | None = None
) -> tuple[dict[str, Tuned], list[Failure]]:
    """Run what is not finished, `at_once` runs at a time; return what was chosen and what failed.

    `label` stands before the progress; without one there is none.
    """
    made.claim()
    progress = None if label is None else Progress(0, label=label)
    at_once = at_once or (1 if made.study.processes else cores())
    try:
        return _Runner(made, at_once, progress).run()
    finally:
        if progress is not None:
            progress.close()


class _Runner:
    """A reproduction, and how many of its runs are known and ended."""

    def __init__(self, made: Reproduction, at_once: int, progress: Progress | None) -> None:
        self._made, self._at_once, self._progress = made, at_once, progress
        self._known: dict[str, RunJob] = {}
        self._ended: set[str] = set()

    def run(self) -> tuple[dict[str, Tuned], list[Failure]]:
        self._expect(self._made.likely())
        chosen, failed = self._tune()
        if not failed:
            self._expect(chosen)
            failed = self._work(self._made.timing(chosen), at_once=1)  # nothing beside them
        if not failed:
            failed = self._work(self._made.jobs(chosen))
        return chosen, failed

    def _tune(self) -> tuple[dict[str, Tuned], list[Failure]]:
        """Try the grid, and more where the best is at its edge."""
        made, study = self._made, self._made.study
        tried = dict.fromkeys(made.objectives, tuning.grid(study))
        if all(len(grid) == 1 and study.lr is not None for grid in tried.values()):
            return {name: grid[0] for name, grid in tried.items()}, []
        found: dict[str, dict[Tuned, float]] = {}
        while any(tried.values()):
            jobs = [job for name, some in tried.items() for job in made.tuning(some, name)]
            failed = self._work(jobs)
            diverged = {job.name for job in jobs if job.diverged}  # and so are not chosen
            if {failure.name for failure in failed} - diverged:
                return {}, failed
            found = {name: made.tuned(name) for name in tried}
            tried = {
                name: [t for t in tuning.extension(study, found[name]) if t not in found[name]]
                for name in tried
            }
        return {name: tuning.best(aucs) for name, aucs in found.items()}, []

    def _expect(self, chosen: Mapping[str, Tuned]) -> None:
        """Count all runs from the beginning: their length does not depend on what is chosen."""
        made = self._made
        self._known = {n: j for n, j in self._known.items() if j.name.startswith("tuning")}
        self._add([*made.tuning_jobs(), *made.timing(chosen), *made.jobs(chosen)])

    def _add(self, jobs: Sequence[RunJob]) -> None:
        self._known |= {job.name: job for job in jobs}

    def _work(self, jobs: Sequence[RunJob], at_once: int | None = None) -> list[Failure]:
        self._add(jobs)
        self._update([])
        return run_side_by_side(jobs, at_once or self._at_once, self._update, made_by())

    def _update(self, running: Sequence[RunJob]) -> None:
        """Show how many runs have ended, and how much of the running ones."""
        if self._progress is None:
            return
        names = {job.name for job in running}
        for name, job in self._known.items():
            if name not in names and name not in self._ended and job.done:
                self._ended.add(name)
        ended = [job for job in self._known.values() if job.name in self._ended]
        self._progress.total = sum(job.work for job in self._known.values())
        done = sum(job.work for job in ended) + sum(job.done_work for job in running)
        count = f"{len(ended)} of {len(self._known)} runs"
        self._progress.update(done, f"{count}; {', '.join(sorted(names))}" if names else count)


def cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def made_by() -> dict[str, Any]:
    """What the runs are made with: the version, and the commit if this file is under git."""
    import torch

    here = Path(__file__)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip()

    commit = ""
    with suppress(OSError, subprocess.SubprocessError):
        git("ls-files", "--error-unmatch", here.name)  # not any repository around an environment
        commit = git("describe", "--always", "--dirty", "--abbrev=7")
    return {"codauc": __version__, "torch": torch.__version__, "commit": commit}
