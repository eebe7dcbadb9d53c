"""The runs of a study: where they are, and what the finished ones show."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from codauc._internal.files import read_text, whole_file
from codauc.reproduce import tuning
from codauc.reproduce.figure_definitions import points
from codauc.reproduce.jobs import MADE_BY, RunJob
from codauc.reproduce.study import Study, StudyPoint, Tuned
from codauc.reproduce.study_results import Link, Results, StudyEvaluation, evaluated
from codauc.runs.directory import Record, RunFolder

SEEDS = {71: 3, 50: 1}
_TIMED = (256, 1280)  # steps of two runs, to measure the time of a step


class Reproduction:
    """A study's runs in a directory; figures of one study share their runs."""

    def __init__(
        self, study: Study, wanted: Sequence[str], out: Path, *, seeds: int | None = None
    ) -> None:
        self.study = study
        self.seeds = range(seeds or SEEDS[study.percent])
        self.all_seeds = seeds is not None
        self.folder = out / study.folder
        self.points = points(study, wanted)

    @property
    def objectives(self) -> list[str]:
        """What is tuned: each objective has a step size of its own."""
        return list(dict.fromkeys(["auc", *(point.objective for point in self.points)]))

    def jobs(self, chosen: Mapping[str, Tuned]) -> list[RunJob]:
        """The runs of all points, with what was chosen."""
        return [
            self.job(point, chosen[point.objective], seed)
            for point, needed in self.points.items()
            for seed in (self.seeds if needed or self.all_seeds else self.seeds[:1])
        ]

    def job(self, point: StudyPoint, tuned: Tuned, seed: int, *, tuning: bool = False) -> RunJob:
        """One run, and where it is."""
        name = f"{'tuning-' * tuning}{point.name}-eta{tuned.lr:g}-t{tuned.steps}-seed{seed}"
        settings = self.study.settings(point, tuned, seed, tuning=tuning)
        return RunJob(
            name, settings, self.folder / "runs" / name, self.study.iterations(tuned.steps)
        )

    def tuned(self, objective: str) -> dict[Tuned, float]:
        """The AUC of each (T_0, eta_0) that was tried, with seed 0, on what is held out."""
        tried = dict.fromkeys(tuning.grid(self.study))
        found: dict[Tuned, float] = {}
        while tried:
            for each in tried:
                auc = _final(self.tuning([each], objective)[0])
                if auc is not None:
                    found[each] = auc
            if any(each not in found for each in tried):
                return found
            tried = dict.fromkeys(t for t in tuning.extension(self.study, found) if t not in found)
        return found

    def tuning_jobs(self) -> list[RunJob]:
        """The runs of the grid, and of what it is to be extended by as far as that is known."""
        jobs, grid = [], tuning.grid(self.study)
        for name in self.objectives:
            tried = self.tuned(name)
            whole = all(each in tried for each in grid)
            more = tuning.extension(self.study, tried) if whole else []
            jobs += self.tuning([*dict.fromkeys([*grid, *tried, *more])], name)
        return jobs

    def likely(self) -> dict[str, Tuned]:
        """What will be chosen for each objective, as far as it is known."""
        first = {tuning.grid(self.study)[0]: 0.0}
        return {name: tuning.best(self.tuned(name) or first) for name in self.objectives}

    def tuning(self, tried: Sequence[Tuned], objective: str) -> list[RunJob]:
        """The run of each (T_0, eta_0): one worker, seed 0."""
        point = StudyPoint(1, objective=objective)
        return [self.job(point, each, 0, tuning=True) for each in tried]

    def results(self, chosen: Mapping[str, Tuned], link: Link) -> Results:
        """What the finished runs show."""
        found: dict[StudyPoint, dict[int, list[StudyEvaluation]]] = {}
        cost = self.step_seconds(chosen)
        for point in self.points:
            for seed in self.seeds if point.objective in chosen else ():
                folder = RunFolder(self.job(point, chosen[point.objective], seed).out)
                if folder.finished:
                    found.setdefault(point, {})[seed] = [
                        evaluated(record, point.workers, cost, link) for record in _whole(folder)
                    ]
        return Results(found)

    def commits(self, chosen: Mapping[str, Tuned]) -> list[str]:
        """Those at which the finished runs were made."""
        found = {str(_made(job).get("commit", "")) for job in self.jobs(chosen) if job.done}
        return sorted(found - {""})

    def step_seconds(self, chosen: Mapping[str, Tuned]) -> float:
        """How long a step of one worker takes: what a longer run took more than a shorter one."""
        short, long = self.timing(chosen)
        if not (short.done and long.done):
            return math.nan
        return max(0.0, self._seconds(long) - self._seconds(short)) / (long.steps - short.steps)

    def _seconds(self, job: RunJob) -> float:
        """What a run took: on a CPU the processor's time, which others do not lengthen."""
        facts = _made(job)
        if self.study.device == "cpu" and "cpu_seconds" in facts:
            return float(facts["cpu_seconds"])
        return float(RunFolder(job.out).result("seconds")["seconds"])

    def timing(self, chosen: Mapping[str, Tuned]) -> list[RunJob]:
        """Two runs of one worker whose difference is the time of a step."""
        lr = min(chosen["auc"].lr, *self.study.size.lrs)
        jobs = []
        for steps in _TIMED:
            job = self.job(StudyPoint(1), Tuned(steps, lr), 0)
            settings = job.settings.with_changes("recipe", stages=1, evaluations=1)
            name = f"timing-t{steps}"
            jobs.append(RunJob(name, settings, job.out.with_name(name), steps))
        return jobs

    def claim(self) -> None:
        """Refuse a directory with runs on other data, or that began with other weights."""
        mine = {"data": self.study.source, "pretrained": self.study.pretrained or ""}
        path = self.folder / "study.json"
        try:
            theirs = dict(json.loads(read_text(path))) if path.exists() else mine
            self.folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(
                f"{path} cannot be used ({error}): choose another directory."
            ) from error
        for name, value in mine.items():
            if theirs.get(name) != value:
                raise ValueError(
                    f"{self.folder} holds runs with {name} {theirs.get(name) or 'none'!r}: "
                    f"expected the same, not {value or 'none'!r}; choose another directory."
                )
        with whole_file(path) as partial:
            partial.write_text(json.dumps(mine), encoding="utf-8")


def _final(job: RunJob) -> float | None:
    """The AUC at a run's end, 0 if it diverged; None if it is not finished."""
    folder = RunFolder(job.out)
    if job.diverged:
        return 0.0
    if not folder.finished:
        return None
    auc = folder.result("validation_auc")["validation_auc"]
    if auc is None:
        raise ValueError(f"{folder.path} has no validation AUC: remove the run to repeat it.")
    return float(auc)


def _whole(folder: RunFolder) -> list[Record]:
    """The history of a finished run; raise if its end is missing."""
    records, steps = folder.records(), folder.summary().get("steps")
    if not records or not records[-1].stage_end or records[-1].step != steps:
        raise ValueError(
            f"{folder.path} has a history that does not end with step {steps}: it was changed; "
            "remove the run to repeat it."
        )
    return records


def _made(job: RunJob) -> dict[str, Any]:
    with suppress(OSError, ValueError, TypeError):
        return dict(json.loads(read_text(job.out / MADE_BY)))
    return {}
