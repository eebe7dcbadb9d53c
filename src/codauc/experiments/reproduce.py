"""From the name of a figure to its runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codauc.experiments import growing, headline, table1, tuning, vary_period, vary_workers
from codauc.experiments.jobs import Failure, Task, run_side_by_side
from codauc.experiments.panels import Panel
from codauc.experiments.study import DATA, FACTOR, KEEP, Point, Study, Tuned
from codauc.progress import Progress
from codauc.runs import RunFolder
from codauc.version import __version__

SEEDS = {71: 3, 50: 1}
TABLES = ("headline", "table1", "tuning")


def figures(percent: int) -> tuple[str, ...]:
    """The names of what the paper shows at this share of positives, in the order of running."""
    curves = ("workers", "period", *(("period-k4",) if percent == 71 else ()))
    return (*curves, *TABLES, *(("growing",) if percent == 71 else ()))


def catalogue() -> dict[str, tuple[str, int, tuple[str, ...]]]:
    """Every name that can be typed: its data set, its per cent of positives, its figures."""
    found = {}
    for data in DATA:
        for percent in KEEP:
            everything = figures(percent)
            found[f"{data}-{percent}"] = (data, percent, everything)
            for figure in everything:
                found[f"{data}-{percent}-{figure}"] = (data, percent, (figure,))
    return found


def panels(wanted: Sequence[str]) -> list[Panel]:
    """The pictures of curves among the figures."""
    makers = {
        "workers": vary_workers.panel,
        "period": vary_period.panel,
        "period-k4": lambda: vary_period.panel(4),
        "growing": growing.panel,
    }
    return [makers[name]() for name in wanted if name in makers]


def points(wanted: Sequence[str]) -> list[Point]:
    """What is to be run for the figures, each once; the single worker sets the target of all."""
    found: list[Point] = []
    for name in wanted:
        if name == "table1":
            found += table1.points(with_k4="period-k4" in wanted or len(wanted) == 1)
        elif name == "headline":
            found += headline.points()
        elif name != "tuning":
            found += panels([name])[0].points
    return list(dict.fromkeys([*([Point(1)] if found else []), *found]))


class Reproduction:
    """A study's runs in a directory; figures of one study share their runs."""

    def __init__(
        self,
        study: Study,
        wanted: Sequence[str],
        out: Path,
        *,
        seeds: int | None = None,
        jobs: int | None = None,
        quiet: bool = False,
    ) -> None:
        self.study, self.wanted = study, tuple(wanted)
        self.seeds = range(seeds or SEEDS[study.percent])
        self.jobs = jobs or len(os.sched_getaffinity(0))
        self.folder = out / f"{study.name}-{study.scale}"
        self.points = points(wanted)
        self.quiet = quiet
        self._tasks: dict[str, Task] = {}  # all that are known by now
        self._progress: Progress | None = None

    @property
    def objectives(self) -> list[str]:
        """What is tuned: each objective has a step size of its own."""
        return list(dict.fromkeys(["auc", *(point.objective for point in self.points)]))

    def tasks(self, chosen: Mapping[str, Tuned]) -> list[Task]:
        """The runs of all points, with what was chosen."""
        pairs = [(p, seed) for p in self.points for seed in self.seeds]
        return [self.task(p, chosen[p.objective], seed) for p, seed in pairs]

    def task(self, point: Point, tuned: Tuned, seed: int, *, tuning: bool = False) -> Task:
        """One run, and where it is."""
        name = f"{'tuning-' * tuning}{point.name}-eta{tuned.lr:g}-t{tuned.steps}-seed{seed}"
        steps = sum(tuned.steps * FACTOR**s for s in range(self.study.size.stages))
        settings = self.study.settings(point, tuned, seed, tuning=tuning)
        return Task(name, settings, self.folder / "runs" / name, steps)

    def run(self) -> tuple[dict[str, Tuned], list[Failure]]:
        """Tune, then run every point with every seed; return what was chosen and what failed."""
        self._progress = None if self.quiet else Progress(0, label=self.study.name)
        first = tuning.grid(self.study)[0]
        self._know(self.tasks(dict.fromkeys(self.objectives, first)))  # as many, as long
        try:
            chosen, failed = self._tune()
            if not failed:
                self._tasks = {name: t for name, t in self._tasks.items() if t.done}
                failed = self._work(self.tasks(chosen))
        finally:
            if self._progress is not None:
                self._progress.close()
        return chosen, failed

    def tuned(self, objective: str) -> dict[Tuned, float]:
        """The mean AUC over the seeds of each (T_0, eta_0) that was tried, on what is held out."""
        tried = dict.fromkeys(tuning.grid(self.study))
        found: dict[Tuned, float] = {}
        while tried:
            for each in tried:
                aucs = [_final(task) for task in self._tuning([each], objective)]
                if None not in aucs:
                    found[each] = sum(auc for auc in aucs if auc is not None) / len(aucs)
            if any(each not in found for each in tried):
                return found
            tried = dict.fromkeys(t for t in tuning.extension(self.study, found) if t not in found)
        return found

    def _tuning(self, tried: Sequence[Tuned], objective: str) -> list[Task]:
        point = Point(1, objective=objective)
        return [self.task(point, each, s, tuning=True) for each in tried for s in self.seeds]

    def _tune(self) -> tuple[dict[str, Tuned], list[Failure]]:
        """Try the grid, and more where the best is at its edge."""
        tried = dict.fromkeys(self.objectives, tuning.grid(self.study))
        found: dict[str, dict[Tuned, float]] = {}
        while any(tried.values()):
            tasks = [t for name, some in tried.items() for t in self._tuning(some, name)]
            failed = self._work(tasks)
            if failed:
                return {}, failed
            found = {name: self.tuned(name) for name in tried}
            tried = {
                name: [t for t in tuning.extension(self.study, found[name]) if t not in found[name]]
                for name in tried
            }
        return {name: tuning.best(aucs) for name, aucs in found.items()}, []

    def _know(self, tasks: Sequence[Task]) -> None:
        self._tasks |= {task.name: task for task in tasks}

    def _work(self, tasks: Sequence[Task]) -> list[Failure]:
        self._know(tasks)
        self._tell([])
        return run_side_by_side(tasks, self.jobs, self._tell, made_by())

    def _tell(self, running: Sequence[Task]) -> None:
        if self._progress is None:
            return
        names = {task.name for task in running}
        ended = [task for task in self._tasks.values() if task.name not in names and task.done]
        self._progress.total = sum(task.work for task in self._tasks.values())
        done = sum(task.work for task in ended) + sum(task.done_work for task in running)
        count = f"{len(ended)} of {len(self._tasks)} runs"
        self._progress.update(done, f"{count}; {', '.join(sorted(names))}" if names else count)


def _final(task: Task) -> float | None:
    """The AUC at a run's end; None if it has not come to it."""
    folder = RunFolder(task.out)
    return float(folder.summary()["validation_auc"]) if folder.finished else None


def made_by() -> dict[str, Any]:
    """What the runs are made with: the version, and the commit if this is a work tree."""
    import torch

    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=7"]
    try:
        found = subprocess.run(git, capture_output=True, text=True, timeout=20, check=True)
        commit = found.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = ""
    return {"codauc": __version__, "torch": torch.__version__, "commit": commit}
