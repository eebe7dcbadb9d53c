"""The runs of a study: where they are, how they are run, and what the finished ones show."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from codauc._internal.files import read_text, whole_file
from codauc._internal.progress import Progress, note
from codauc.reproduce.figure_definitions import points
from codauc.reproduce.jobs import RunJob, run_side_by_side
from codauc.reproduce.kept_runs import KeptRun
from codauc.reproduce.kept_study import KeptStudy
from codauc.reproduce.measured_constants import (
    POINTS,
    StageConstants,
    measure_once,
    read_constants,
)
from codauc.reproduce.study import Study, StudyPoint, Tuned, best
from codauc.reproduce.study_costs import estimated, measured_costs
from codauc.reproduce.study_results import Link, Results, modelled
from codauc.runs.directory import Record, RunFolder
from codauc.version import __version__

SEEDS = {71: 3, 50: 1}
TUNING = "tuning-"  # the names of runs that tune begin with it
_TIMED = (256, 1280)  # steps of two runs, to measure the time of a step


class Reproduction:
    """A study's runs in a directory; figures of one study share their runs."""

    def __init__(
        self, study: Study, wanted: Sequence[str], out: Path, *, seeds: int | None = None
    ) -> None:
        self.study = study
        self.seeds = range(seeds or SEEDS[study.percent])
        self.all_seeds = seeds is not None
        self.folder, self.wanted = out / study.folder, tuple(wanted)
        self.points = points(study, wanted)
        self.kept = KeptStudy(self.folder)

    @property
    def objectives(self) -> list[str]:
        """What is tuned: each objective has a step size of its own."""
        return list(dict.fromkeys(["auc", *(point.objective for point in self.points)]))

    def jobs(self) -> list[RunJob]:
        """The runs of all points, with what is chosen; seed by seed, so that panels are whole."""
        chosen = self.chosen()
        return [
            self.job(point, chosen[point.objective], seed)
            for seed in self.seeds
            for point, needed in self.points.items()
            if needed or self.all_seeds or seed == self.seeds[0]
        ]

    def job(self, point: StudyPoint, tuned: Tuned, seed: int, *, tuning: bool = False) -> RunJob:
        """One run, and where it is."""
        name = f"{TUNING * tuning}{point.name}-eta{tuned.lr:g}-t{tuned.steps}-seed{seed}"
        settings = self.study.settings(point, tuned, seed, tuning=tuning)
        return RunJob(name, settings, self.folder / "runs" / name, self.kept.runs.get(name))

    def tuning_job(self, objective: str, tuned: Tuned, seed: int = 0) -> RunJob:
        """The run that tries a (T_0, eta_0) with a seed: one worker."""
        return self.job(StudyPoint(1, objective=objective), tuned, seed, tuning=True)

    def tuned(self, objective: str) -> dict[Tuned, float | None]:
        """The AUC of each (T_0, eta_0) on what is held out; None where it is not yet known.

        It is the mean over the seeds: a step size that is best with one may fail with another. They
        are the grid, and when all of it is known, what it is extended by.
        """
        found: dict[Tuned, float | None] = {}
        more = self.study.grid
        while more:
            found |= {each: self._held_out(objective, each) for each in more}
            if None in found.values():
                break
            known = {each: auc or 0.0 for each, auc in found.items()}
            more = [each for each in self.study.extension(known) if each not in found]
        return found

    def _held_out(self, objective: str, tuned: Tuned) -> float | None:
        aucs = [_final(self.tuning_job(objective, tuned, seed)) for seed in self.seeds]
        known = [auc for auc in aucs if auc is not None]
        return sum(known) / len(known) if len(known) == len(aucs) else None

    def tried(self, objective: str) -> dict[Tuned, float]:
        """Those that are known."""
        return {t: auc for t, auc in self.tuned(objective).items() if auc is not None}

    def tuning_jobs(self) -> list[RunJob]:
        """The runs that try them; none if there is but one, and it was given."""
        if self.study.lr is not None and len(self.study.grid) == 1:
            return []
        return [
            self.tuning_job(name, each, seed)
            for name in self.objectives
            for each in self.tuned(name)
            for seed in self.seeds
        ]

    def chosen(self) -> dict[str, Tuned]:
        """What is chosen for each objective, as far as it is known."""
        first = {self.study.grid[0]: 0.0}
        return {name: best(self.tried(name) or first) for name in self.objectives}

    def results(self, link: Link) -> Results:
        """What the finished runs show."""
        found: dict[StudyPoint, dict[int, list[Record]]] = {}
        chosen, cost = self.chosen(), self.step_seconds()
        for point in self.points:
            for seed in self._known_seeds():
                job = self.job(point, chosen[point.objective], seed)
                if job.done:
                    found.setdefault(point, {})[seed] = [
                        replace(record, seconds=modelled(record, point.workers, cost, link))
                        for record in (_whole(job) if job.here else self.kept.curve(point, seed))
                    ]
        return Results(found)

    def _known_seeds(self) -> list[int]:
        """Those that are asked for, and those that the tables have: nothing of them is lost."""
        return sorted({*self.seeds, *self.kept.seeds})

    def runs(self) -> list[KeptRun]:
        """All that is finished, for the study's tables."""
        others = [*self.tuning_jobs(), *self.timing()]
        found = {job.name: _kept(job) for job in others if job.done or job.diverged}
        found |= {path.stem: KeptRun(path.stem) for path in self._measured()}
        found |= {n: run for n, run in self.kept.runs.items() if n not in found and _no_curve(n)}
        return [*found.values(), *self._shown_runs()]

    def _shown_runs(self) -> list[KeptRun]:
        chosen = self.chosen()
        jobs = [
            self.job(point, chosen[point.objective], seed)
            for seed in self._known_seeds()
            for point in self.points
        ]
        return [_kept(job) for job in jobs if job.done or job.diverged]

    def commits(self) -> list[str]:
        """Those at which the finished runs were made."""
        return sorted({run.commit for run in self._shown_runs()} - {""})

    def cpu_seconds(self) -> float:
        """What all runs of the study took of a processor."""
        return sum(run.cpu_seconds for run in self.runs())

    def step_seconds(self) -> float:
        """How long a step of one worker takes: what a longer run took more than a shorter one."""
        short, long = self.timing()
        if not (short.done and long.done):
            return math.nan
        return max(0.0, self._seconds(long) - self._seconds(short)) / (long.steps - short.steps)

    def _seconds(self, job: RunJob) -> float:
        """What a run took: on a CPU the processor's time, which others do not lengthen."""
        kept = _kept(job)
        return (self.study.device == "cpu" and kept.cpu_seconds) or kept.seconds

    def timing(self) -> list[RunJob]:
        """Two runs of one worker whose difference is the time of a step."""
        lr = min(self.chosen()["auc"].lr, *self.study.size.lrs)
        jobs = []
        for steps in _TIMED:
            settings = self.study.settings(StudyPoint(1), Tuned(steps, lr), 0)
            settings = settings.with_changes("recipe", stages=1, evaluations=1)
            name = f"timing-t{steps}"
            out = self.folder / "runs" / name
            jobs.append(RunJob(name, settings, out, self.kept.runs.get(name)))
        return jobs

    def constants(self) -> list[StageConstants]:
        """The constants of Table 1 that were measured so far."""
        places = self._measured().items()
        return [c for path, at in places for c in read_constants(path) or self.kept.constants(at)]

    def _measured(self) -> dict[Path, StudyPoint]:
        """Where constants are that were measured, here or before."""
        places = {path: point for point, path in self._constants().items()}
        return {p: point for p, point in places.items() if p.exists() or p.stem in self.kept.runs}

    def measure_constants(self, *, quiet: bool = True) -> None:
        """Measure the constants of Table 1, if it is wanted, where that was not done."""
        tuned = self.chosen()["auc"]
        measured = self._measured()
        left = {p: path for p, path in self._constants().items() if path not in measured}
        for point, path in left.items() if "table1" in self.wanted else ():
            if not quiet:
                note(f"Measuring the constants of Table 1: {point.label}.")
            measure_once(self.study, tuned, point, path)

    def _constants(self) -> dict[StudyPoint, Path]:
        tuned, folder = self.chosen()["auc"], self.folder / "runs"
        return {
            point: folder / f"constants-{point.name}-eta{tuned.lr:g}-t{tuned.steps}.json"
            for point in POINTS
            if point.sync_every in self.study.periods
        }

    def said(self, at_once: int | None) -> str:
        """How many runs there are, how they are run, and what they will take."""
        jobs = [*self.tuning_jobs(), *self.timing(), *self.jobs()]
        costs = measured_costs(self.study)
        return estimated(self.study, jobs, self._at_once(at_once), costs)

    def _at_once(self, given: int | None) -> int:
        usable = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
        return given or (1 if self.study.processes else len(usable))

    def run(self, at_once: int | None = None, label: str | None = None) -> dict[str, str]:
        """Run what is not finished, `at_once` runs at a time; return the reasons of failures.

        First the step size is tuned, then a step is timed, then every point runs with every seed.
        `label` stands before the progress; without one there is none.
        """
        self.claim()
        at_once = self._at_once(at_once)
        with nullcontext() if label is None else Progress(0, label=label) as progress:
            tuning: list[RunJob] = []
            while len(tuning) < len(more := self.tuning_jobs()):
                tuning = more
                failed = self._work(tuning, at_once, progress)
                if failed.keys() - {job.name for job in tuning if job.diverged}:
                    return failed  # what diverged is just not chosen
            failed = self._work(self.timing(), 1, progress)  # nothing beside them
            return failed or self._work(self.jobs(), at_once, progress)

    def _work(
        self, jobs: Sequence[RunJob], at_once: int, progress: Progress | None
    ) -> dict[str, str]:
        known = [*self.tuning_jobs(), *self.timing(), *self.jobs()]

        def update(running: Sequence[RunJob]) -> None:
            if progress is None:
                return
            ended = [job for job in known if job.done]
            progress.total = sum(job.work for job in known)
            done = sum(job.work for job in ended) + sum(job.done_work for job in running)
            names = ", ".join(sorted(job.name for job in running))
            count = f"{len(ended)} of {len(known)} runs"
            progress.update(done, f"{count}; {names}" if names else count)

        update([])
        return run_side_by_side(jobs, at_once, update, made_by())

    def claim(self) -> None:
        """Refuse a directory with runs on other data, or that began with other weights."""
        weights = self.study.pretraining or self.study.pretrained or ""
        mine = {"data": self.study.source, "pretrained": weights}
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
    if job.diverged:
        return 0.0
    if not job.done:
        return None
    auc = _kept(job).auc
    if auc is None:
        raise ValueError(f"{job.out} has no validation AUC: remove the run to repeat it.")
    return auc


def _no_curve(name: str) -> bool:
    """Whether it is the name of what tunes or measures, of which `curves.csv` has nothing."""
    return name.startswith((TUNING, "timing-", "constants-"))


def _kept(job: RunJob) -> KeptRun:
    """What the tables keep of a run; of one that is not finished, the time it took so far."""
    facts = job.facts
    spent, commit = float(facts.get("cpu_seconds", 0.0)), str(facts.get("commit", ""))
    if job.kept and not job.here:
        return job.kept
    if job.diverged or not job.here:
        unknown = KeptRun(job.name, cpu_seconds=spent, commit=commit)
        return unknown._replace(diverged=bool(job.diverged))
    folder = RunFolder(job.out)
    auc = folder.result("validation_auc")["validation_auc"]
    seconds = float(folder.summary().get("seconds", 0.0))
    return KeptRun(job.name, None if auc is None else float(auc), seconds, spent, commit)


def _whole(job: RunJob) -> list[Record]:
    """The history of a finished run; raise if its end is missing."""
    folder = RunFolder(job.out)
    records, steps = folder.records(), folder.summary().get("steps")
    if not records or not records[-1].stage_end or records[-1].step != steps:
        raise ValueError(
            f"{folder.path} has a history that does not end with step {steps}: it was changed; "
            "remove the run to repeat it."
        )
    return records


def made_by() -> dict[str, Any]:
    """What the runs are made with: the version, and the commit if this file is under git."""
    here = Path(__file__)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip()

    commit = ""
    with suppress(OSError, subprocess.SubprocessError):
        git("ls-files", "--error-unmatch", here.name)  # not any repository around an environment
        commit = git("describe", "--always", "--dirty", "--abbrev=7")
    return {"codauc": __version__, "torch": version("torch"), "commit": commit}
