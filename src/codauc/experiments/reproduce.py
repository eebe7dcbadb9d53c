"""From the name of a figure to its runs."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from codauc.experiments import growing, headline, table1, tuning, vary_period, vary_workers
from codauc.experiments.jobs import MADE_BY, Failure, Task, run_side_by_side
from codauc.experiments.panels import Panel
from codauc.experiments.results import Link, Results, Seen, seen
from codauc.experiments.study import DATA, KEEP, Point, Study, Tuned
from codauc.progress import Progress
from codauc.runs import Record, RunFolder
from codauc.version import __version__
from codauc.writing import whole_file

SEEDS = {71: 3, 50: 1}
_TIMED = (256, 1280)  # steps of two runs, to tell what a step takes


def figures(percent: int) -> tuple[str, ...]:
    """The names of what the paper shows at this share of positives, in the order of running."""
    if percent == 71:
        return ("workers", "period", "period-k4", "headline", "table1", "tuning", "growing")
    return ("workers", "period", "table1", "tuning")


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


_PANELS: dict[str, Callable[[Study], Panel]] = {
    "workers": vary_workers.panel,
    "period": vary_period.panel,
    "period-k4": partial(vary_period.panel, workers=4),
    "growing": growing.panel,
}
_TABLES: dict[str, Callable[[Study], tuple[Point, ...]]] = {
    "headline": headline.points,
    "table1": table1.points,
}


def panels(study: Study, wanted: Sequence[str]) -> list[Panel]:
    """The pictures of curves among the figures."""
    return [_PANELS[name](study) for name in wanted if name in _PANELS]


def points(study: Study, wanted: Sequence[str]) -> dict[Point, bool]:
    """What is to be run for the figures, each once, and whether a finding rests on it.

    The single worker is among them: its final AUC sets the target of all.
    """
    found: dict[Point, bool] = {}
    for name in wanted:
        some = _PANELS[name](study).points if name in _PANELS else ()
        for point in (*some, *(_TABLES[name](study) if name in _TABLES else ())):
            found.setdefault(Point(1), True)
            rests = name != "growing" and point.objective == "auc"
            found[point] = found.get(point, False) or rests
    return found


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
        name: str = "",
    ) -> None:
        self.name = name or study.name
        self.study, self.wanted = study, tuple(wanted)
        self.seeds = range(seeds or SEEDS[study.percent])
        self.all_seeds = seeds is not None
        self.jobs = jobs or (1 if study.processes else cores())
        self.folder = out / study.folder
        self.points = points(study, wanted)
        self.quiet = quiet
        self._tasks: dict[str, Task] = {}  # all that are known by now
        self._ended: set[str] = set()
        self._progress: Progress | None = None

    @property
    def objectives(self) -> list[str]:
        """What is tuned: each objective has a step size of its own."""
        return list(dict.fromkeys(["auc", *(point.objective for point in self.points)]))

    def tasks(self, chosen: Mapping[str, Tuned]) -> list[Task]:
        """The runs of all points, with what was chosen."""
        return [
            self.task(point, chosen[point.objective], seed)
            for point, needed in self.points.items()
            for seed in (self.seeds if needed or self.all_seeds else self.seeds[:1])
        ]

    def task(self, point: Point, tuned: Tuned, seed: int, *, tuning: bool = False) -> Task:
        """One run, and where it is."""
        name = f"{'tuning-' * tuning}{point.name}-eta{tuned.lr:g}-t{tuned.steps}-seed{seed}"
        settings = self.study.settings(point, tuned, seed, tuning=tuning)
        return Task(name, settings, self.folder / "runs" / name, self.study.iterations(tuned.steps))

    def run(self) -> tuple[dict[str, Tuned], list[Failure]]:
        """Tune, then run every point with every seed; return what was chosen and what failed."""
        self.claim()
        self._progress = None if self.quiet else Progress(0, label=self.name)
        self._guess()
        try:
            chosen, failed = self._tune()
            if not failed:
                self._guess(chosen)
                failed = self._work(self._timing(chosen), jobs=1)  # nothing beside them
            if not failed:
                failed = self._work(self.tasks(chosen))
        finally:
            if self._progress is not None:
                self._progress.close()
        return chosen, failed

    def tuned(self, objective: str) -> dict[Tuned, float]:
        """The AUC of each (T_0, eta_0) that was tried, with seed 0, on what is held out."""
        tried = dict.fromkeys(tuning.grid(self.study))
        found: dict[Tuned, float] = {}
        while tried:
            for each in tried:
                auc = _final(self._tuning([each], objective)[0])
                if auc is not None:
                    found[each] = auc
            if any(each not in found for each in tried):
                return found
            tried = dict.fromkeys(t for t in tuning.extension(self.study, found) if t not in found)
        return found

    def tuning_tasks(self) -> list[Task]:
        """The runs of the grid, and of what it is to be extended by as far as that is known."""
        tasks = []
        for name in self.objectives:
            tried = self.tuned(name)
            more = tuning.extension(self.study, tried) if self._whole_grid(tried) else []
            tasks += self._tuning([*dict.fromkeys([*self._grid(), *tried, *more])], name)
        return tasks

    def _grid(self) -> list[Tuned]:
        return tuning.grid(self.study)

    def _whole_grid(self, tried: Mapping[Tuned, float]) -> bool:
        return all(each in tried for each in self._grid())

    def likely(self, objective: str) -> Tuned:
        """What will be chosen, as far as it is known."""
        return tuning.best(self.tuned(objective) or {tuning.grid(self.study)[0]: 0.0})

    def _tuning(self, tried: Sequence[Tuned], objective: str) -> list[Task]:
        point = Point(1, objective=objective)
        return [self.task(point, each, 0, tuning=True) for each in tried]

    def results(self, chosen: Mapping[str, Tuned], link: Link) -> Results:
        """What the finished runs show."""
        looks: dict[Point, dict[int, list[Seen]]] = {}
        cost = self.step_seconds(chosen)
        for point in self.points:
            for seed in self.seeds if point.objective in chosen else ():
                folder = RunFolder(self.task(point, chosen[point.objective], seed).out)
                if folder.finished:
                    records = _whole(folder)
                    found = [seen(record, point.workers, cost, link) for record in records]
                    looks.setdefault(point, {})[seed] = found
        return Results(looks)

    def commits(self, chosen: Mapping[str, Tuned]) -> list[str]:
        """Those at which the finished runs were made."""
        found = {str(_made(task).get("commit", "")) for task in self.tasks(chosen) if task.done}
        return sorted(found - {""})

    def step_seconds(self, chosen: Mapping[str, Tuned]) -> float:
        """How long a step of one worker takes: what a longer run took more than a shorter one."""
        short, long = self._timing(chosen)
        if not (short.done and long.done):
            return math.nan
        return max(0.0, self._seconds(long) - self._seconds(short)) / (long.steps - short.steps)

    def _seconds(self, task: Task) -> float:
        """What a run took: on a CPU the processor's time, which others do not lengthen."""
        facts = _made(task)
        if self.study.device == "cpu" and "cpu_seconds" in facts:
            return float(facts["cpu_seconds"])
        return float(RunFolder(task.out).summary()["seconds"])

    def _timing(self, chosen: Mapping[str, Tuned]) -> list[Task]:
        lr = min(chosen["auc"].lr, *self.study.size.lrs)
        tasks = []
        for steps in _TIMED:
            task = self.task(Point(1), Tuned(steps, lr), 0)
            settings = task.settings.with_changes("recipe", stages=1, evaluations=1)
            name = f"timing-t{steps}"
            tasks.append(Task(name, settings, task.out.with_name(name), steps))
        return tasks

    def _tune(self) -> tuple[dict[str, Tuned], list[Failure]]:
        """Try the grid, and more where the best is at its edge."""
        tried = dict.fromkeys(self.objectives, tuning.grid(self.study))
        if all(len(grid) == 1 and self.study.lr is not None for grid in tried.values()):
            return {name: grid[0] for name, grid in tried.items()}, []
        found: dict[str, dict[Tuned, float]] = {}
        while any(tried.values()):
            tasks = [t for name, some in tried.items() for t in self._tuning(some, name)]
            failed = self._work(tasks)
            diverged = {task.name for task in tasks if task.diverged}  # and so are not chosen
            if {failure.name for failure in failed} - diverged:
                return {}, failed
            found = {name: self.tuned(name) for name in tried}
            tried = {
                name: [t for t in tuning.extension(self.study, found[name]) if t not in found[name]]
                for name in tried
            }
        return {name: tuning.best(aucs) for name, aucs in found.items()}, []

    def claim(self) -> None:
        """Refuse a directory with runs on other data, or that began with other weights."""
        mine = {"data": self.study.source, "pretrained": self.study.pretrained or ""}
        path = self.folder / "study.json"
        try:
            theirs = dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else mine
            self.folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(f"{path} cannot be used ({error}): choose another --out.") from error
        for name, value in mine.items():
            if theirs.get(name) != value:
                raise ValueError(
                    f"{self.folder} holds runs with {name} {theirs.get(name) or 'none'!r}: "
                    f"expected the same, not {value or 'none'!r}; choose another --out."
                )
        with whole_file(path) as partial:
            partial.write_text(json.dumps(mine), encoding="utf-8")

    def _guess(self, chosen: Mapping[str, Tuned] | None = None) -> None:
        """Count all runs from the beginning, whatever will be chosen: they are as long."""
        chosen = chosen or {name: self.likely(name) for name in self.objectives}
        self._tasks = {name: t for name, t in self._tasks.items() if t.name.startswith("tuning")}
        self._know([*self.tuning_tasks(), *self._timing(chosen), *self.tasks(chosen)])

    def _know(self, tasks: Sequence[Task]) -> None:
        self._tasks |= {task.name: task for task in tasks}

    def _work(self, tasks: Sequence[Task], jobs: int | None = None) -> list[Failure]:
        self._know(tasks)
        self._tell([])
        return run_side_by_side(tasks, jobs or self.jobs, self._tell, made_by())

    def _tell(self, running: Sequence[Task]) -> None:
        if self._progress is None:
            return
        names = {task.name for task in running}
        for task in self._tasks.values():
            if task.name not in names and task.name not in self._ended and task.done:
                self._ended.add(task.name)
        ended = [task for task in self._tasks.values() if task.name in self._ended]
        self._progress.total = sum(task.work for task in self._tasks.values())
        done = sum(task.work for task in ended) + sum(task.done_work for task in running)
        count = f"{len(ended)} of {len(self._tasks)} runs"
        self._progress.update(done, f"{count}; {', '.join(sorted(names))}" if names else count)


def _final(task: Task) -> float | None:
    """The AUC at a run's end, 0 if it diverged; None if it has not come to it."""
    folder = RunFolder(task.out)
    if task.diverged:
        return 0.0
    return float(folder.summary()["validation_auc"]) if folder.finished else None


def _whole(folder: RunFolder) -> list[Record]:
    """The history of a finished run; raise if its end is missing."""
    records, steps = folder.records(), folder.summary().get("steps")
    if not records or not records[-1].stage_end or records[-1].step != steps:
        raise ValueError(
            f"{folder.path} has a history that does not end with step {steps}: it was changed; "
            "remove the run, to have it again."
        )
    return records


def _made(task: Task) -> dict[str, Any]:
    with suppress(OSError, ValueError, TypeError):
        return dict(json.loads((task.out / MADE_BY).read_text(encoding="utf-8")))
    return {}


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
