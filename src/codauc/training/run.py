"""A run from its settings to its directory, and the work of each worker."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from codauc._internal.progress import note, status
from codauc.data.column_record import summary_lines, to_json
from codauc.data.dataset import DataSet
from codauc.data.in_memory import IN_MEMORY, InMemory, cannot_be_found_again
from codauc.data.opening import open_data
from codauc.metrics.single_columns import with_deciding_columns
from codauc.models import build
from codauc.models.model_file import save_model
from codauc.report.run_page import page
from codauc.runs.checkpoints import Checkpoints, Found
from codauc.runs.directory import (
    CHECKPOINTS,
    COLUMNS,
    IMPORTANCE,
    MISTAKES,
    MODEL,
    OF_WORKER,
    PROFILE,
    REPORT,
    TRACE,
    VALIDATION,
    Record,
    RunFolder,
)
from codauc.runs.settings import CONFIG, RunSettings
from codauc.training.build import resolve_settings
from codauc.training.callbacks import Callback, DirectoryWriter, ProgressBar, TensorBoard
from codauc.training.checkpoint_policy import RunControl
from codauc.training.column_importance import NOT_COUNTED, column_importance
from codauc.training.confident_mistakes import ScoredRows, confident_mistakes
from codauc.training.directory_claim import claimed, complete_end
from codauc.training.loop import Trained, fit
from codauc.training.profiler import Clock
from codauc.training.run_state import SavedRun, check_same, identity, unpacked, usable
from codauc.training.site_choice import (
    OWN_MODELS,
    check_least_samples,
    check_norm,
    models_differ,
    shard_lines,
    unlikeness,
    with_choices,
)
from codauc.training.site_results import sites_at_start
from codauc.training.threads import own_threads
from codauc.training.time_budget import within_budget
from codauc.workers.agreement import together
from codauc.workers.group import Group, GroupError, LocalGroup
from codauc.workers.launcher import launch
from codauc.workers.signals import LEAVE, STOP, AskedToLeave, Requests
from codauc.workers.watchdog import end_with_parent, guarded

_LEAST_WAIT, _MOST_WAIT = 10.0, 300.0  # seconds for another worker, once training has begun
_PATIENT_WAIT = 100.0  # where nobody would start the workers again
_LONGEST_WAIT = 1800.0  # while data are read
_SHORT, _LONG = 2.0, 30.0  # seconds for the importance of columns, at least and at most
_SIGNALS_SPREAD = 2.0  # seconds from the first worker to the last that is asked to leave


def start(job: Job) -> dict[str, Any]:
    """Start the workers; what summary.json holds, or {"stopped": True, ...} after SIGTERM."""
    settings, requests, under_torchrun = job.settings, job.requests, "RANK" in os.environ
    parts = settings.communication
    try:
        with requests.listening():
            results = launch(
                job.work,
                workers=None if under_torchrun else parts.size,
                simulate=parts.simulate,
                seed=settings.seed,
                timeout=parts.timeout or _LONGEST_WAIT,
                requests=requests,
                max_restarts=0 if under_torchrun else settings.safety.max_restarts,
            )
    except AskedToLeave:
        results = [None]
    if results[0] is None and requests.pending(LEAVE):
        return {"run": job.out, "stopped": True, "steps": None, "saved": True}
    return results[0] or {}


@dataclass(frozen=True)
class Job:
    """What every worker is given; `work` is called in each."""

    settings: RunSettings
    requests: Requests
    out: str | None
    resume: bool
    overwrite: bool
    quiet: bool
    tensorboard: bool
    profile: bool
    callbacks: tuple[Callback, ...]
    words: Callable[[str], str] = str  # of messages that name arguments
    memory: InMemory | None = None  # the data, unless the settings name them
    unlike: float = 0.0  # how far labels differ between sites, or skewed shards

    def work(self, group: Group) -> dict[str, Any] | None:
        """One worker's part; worker 0 writes the files and returns the summary."""
        elastic = "TORCHELASTIC_RUN_ID" in os.environ  # torch's launcher has started this process
        launched_here = multiprocessing.parent_process() is not None  # codauc.launch has
        if elastic:
            end_with_parent(os.getppid())
        group = LocalGroup() if group.size == 1 else group  # whatever has started it
        with guarded() if elastic and not launched_here else nullcontext():
            return self._work(group)

    @property
    def resuming(self) -> bool:
        """Whether an existing run is continued: also when the workers were started again."""
        return self.resume or restarts() > 0

    def _work(self, group: Group) -> dict[str, Any] | None:
        if self.resuming and (summary := self._finished_before(group)) is not None:
            return summary  # without reading the data
        if self.memory is None and self.settings.data.source == IN_MEMORY:
            raise cannot_be_found_again()
        if group.rank == 0:
            what = self.settings.data.source if self.memory is None else "the data in memory"
            self.say(f"Reading {what} ...")
        opened = open_data(self.settings.data, group, self.settings.seed, memory=self.memory)
        if group.rank == 0:
            opened = with_deciding_columns(opened)
            for line in summary_lines(opened.train.columns):
                self.say(self.words(line))
        data = identity(opened, group)
        sites = sites_at_start(opened, group, self.settings.data.least_samples or 0)
        unlike = unlikeness(self.settings, sites)
        job = replace(self, settings=with_choices(self.settings, sites), unlike=unlike)
        settings = resolve_settings(job.settings, opened, group.size, unlike)
        check_least_samples(settings)
        for line in shard_lines(sites, settings) if group.rank == 0 else ():
            self.say(self.words(line))
        together(group, lambda: _try_model(settings), "start")  # before an existing run is lost
        options = {"resuming": self.resuming, "overwrite": self.overwrite}
        claim = claimed(group, settings.data.source, self.out, **options)
        with claim as folder, self.requests.polled():
            if self.resuming and (summary := self._finished_before(group, held=True)) is not None:
                return summary  # another process has ended it meanwhile
            return WorkerRun(job, group, folder, opened, data).train(settings)

    def say(self, text: str) -> None:
        """Show a message, unless quiet."""
        if not self.quiet:
            status(text)

    def _finished_before(self, group: Group, *, held: bool = False) -> dict[str, Any] | None:
        """The summary of a run that is finished; {} on the workers that do not have it.

        What it had left to do when it was killed is done; `held`: its directory is locked already.
        """
        if self.out is None:
            raise ValueError(
                "the workers were started again without out=DIRECTORY: expected the directory of "
                "the run, to resume it."
            )
        folder = RunFolder(self.out)
        done = group.rank == 0 and folder.finished
        if not bool(group.gather(torch.tensor([int(done)]), "checkpoint").any()):
            return None
        summary = {**folder.result(), "run": str(folder.path)} if done else {}  # it may have moved
        did = together(group, lambda: complete_end(folder, group.rank, held=held), "checkpoint")
        if done:
            self.say(f"{folder.path} holds a finished run: {did or 'nothing was done'}.")
        return summary


@dataclass(frozen=True)
class WorkerRun:
    """One worker's run in a directory that it holds."""

    job: Job
    group: Group
    folder: RunFolder
    opened: DataSet
    data: dict[str, Any]  # identifies the data

    def train(self, settings: RunSettings) -> dict[str, Any] | None:
        """Train with resolved settings, from a checkpoint if there is one; write the results."""
        group, folder = self.group, self.folder
        checkpoints = Checkpoints(
            folder / CHECKPOINTS, group, settings.safety.keep, self._not_written
        )
        found = checkpoints.newest() if self.job.resuming else None
        if found is not None:
            settings = together(group, lambda: self._settings_of(found), "checkpoint")
        else:
            settings = within_budget(settings, self.opened, group)
        if settings.communication.timeout is None:
            _limit_waiting(folder, group, 0 if found is None else found.number)
        callbacks = self._callbacks(found) if group.rank == 0 else []
        trace = folder / TRACE if group.rank == 0 else None
        clock = Clock(trace) if self.job.profile else None
        control = RunControl(self.job.requests.pending, checkpoints, found, self.data, clock)
        try:
            trained = fit(settings, self.opened, group, callbacks, control=control)
        except AskedToLeave as left:
            return self._left(left)
        except GroupError as error:
            if _may_restart():
                raise
            raise GroupError(
                f"{error} Resume from the last checkpoint with resume=True and out={folder.path}; "
                "a larger timeout=SECONDS lets workers wait longer for each other."
            ) from error
        finally:
            checkpoints.wait()
        profile = None if clock is None else clock.result(group, trained.steps)
        summary = self._finish(trained, callbacks, profile)
        if not trained.interrupted:
            checkpoints.clear()
        return summary

    def _not_written(self, text: str) -> None:
        note(f"\nWorker {self.group.rank}: {text}; the run continues.")
        self.folder.note_fault("not written", worker=self.group.rank, reason=text)

    def _settings_of(self, found: Found) -> RunSettings:
        """The settings of the run that is resumed; raise where what is here does not fit."""
        given, workers = self.job.settings, self.group.size
        with usable(found):
            saved = unpacked(SavedRun, found.base)
            if given.recipe.time_budget is not None:  # which has decided the steps
                given = given.with_changes("recipe", steps=saved.settings["recipe"]["steps"])
            resolved = resolve_settings(given, self.opened, found.size, self.job.unlike)
            check_same(saved, resolved, self.data)
        if given.data.own and found.size != workers:
            raise ValueError(
                f"{workers} workers in place of {found.size}, each with data of its own: expected "
                "the same workers, as their data cannot be shared out anew."
            )
        if given.data.counted_scores and found.size != workers:
            raise ValueError(
                f"{workers} workers in place of {found.size}, whose scores stay with them: "
                "expected the same workers, as another one has no scores of earlier models."
            )
        if models_differ(given) and found.size != workers:
            raise ValueError(
                f"{workers} workers in place of {found.size}, each with a scaling or statistics of "
                "its own: expected the same workers, as others have none."
            )
        return resolve_settings(replace(resolved, device=given.device), self.opened, workers)

    def _callbacks(self, found: Found | None) -> list[Callback]:
        """Those of worker 0; the results of an earlier end are removed, as the run continues."""
        job, folder, records = self.job, self.folder, list[Record]()
        folder.remove_results(COLUMNS)
        if self.opened.train.columns:
            folder.write_json(COLUMNS, to_json(self.opened.train.columns))
        if found is not None:
            saved = unpacked(SavedRun, found.base).run
            records = saved.journal.records
            self._announce_resume(found, saved.position.step)
        elif job.resuming and (folder / CONFIG).exists():
            folder.note_fault("resumed", step=0, workers=self.group.size, restart=restarts())
            folder.remove_results(MODEL)
            job.say("No checkpoint that all workers have written: beginning anew.")
        callbacks = [DirectoryWriter(folder, self.opened, records), *job.callbacks]
        callbacks += [TensorBoard(folder.path, records)] if job.tensorboard else []
        return callbacks + ([] if job.quiet else [ProgressBar()])

    def _announce_resume(self, found: Found, step: int) -> None:
        for text in found.unreadable:
            note(f"Not used: {text}")
            self.folder.note_fault("unreadable", reason=text)
        workers = self.group.size
        facts = {"workers": workers, "exact": found.exact, "restart": restarts()}
        self.folder.note_fault("resumed", step=found.number, **facts)
        change = "" if found.exact else f", workers: {workers} in place of {found.size}"
        self.job.say(f"Resuming from step {step}{change}.")

    def _left(self, left: AskedToLeave) -> dict[str, Any]:
        """After the state was saved: this process was asked to leave, or only another one was."""
        deadline = time.monotonic() + _SIGNALS_SPREAD
        while _may_restart() and not self.job.requests.pending(LEAVE):
            if time.monotonic() > deadline:
                raise GroupError(f"worker {self.group.rank}: another worker was asked to leave.")
            time.sleep(0.05)
        if self.group.rank == 0:
            self.folder.note_fault("left", step=left.step, saved=left.saved)
        path = str(self.folder.path)
        return {"run": path, "stopped": True, "steps": left.step, "saved": left.saved}

    def _finish(
        self, trained: Trained, callbacks: list[Callback], profile: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """Test the model and write the results; the summary on worker 0.

        When this returns on one worker, no worker needs its checkpoints any more.
        """
        if trained.interrupted and self.group.rank == 0:
            self.folder.note_fault("interrupted", step=trained.steps)
        test = trained.scores_of_test_set(self.opened, self.group)
        explained = {} if test is None else self._explained(trained, test)
        sites = trained.sites(self.opened, test, self.group)

        def write() -> dict[str, Any] | None:
            folder, rank = self.folder, self.group.rank
            if not rank or models_differ(trained.settings):
                save_model(
                    folder / (OF_WORKER.format(rank) if rank else MODEL),
                    trained.model,
                    self.opened.encoder,
                    trained.calibration,
                    trained.threshold,
                )
            if rank:
                return None
            if models_differ(trained.settings):
                trained.notes.append(OWN_MODELS)
            summary = {"run": str(folder.path), **trained.summary(test)}
            summary |= {"sites": sites} if sites else {}
            if trained.validation is not None:
                folder.write_scores(*trained.validation, VALIDATION)
            if test is not None:
                rows = test.rows if sites else None  # to compare runs on the rows of a site
                folder.write_scores(test.scores, test.labels, rows=rows)
            for name, found in explained.items():
                folder.write_json(name, found)
            if profile is not None:
                folder.write_json(PROFILE, profile)
            for callback in callbacks:
                callback.on_end(summary)
            folder.write(REPORT, page(folder))
            return summary

        return together(self.group, write, "checkpoint")

    def _explained(self, trained: Trained, test: ScoredRows) -> dict[str, dict[str, Any]]:
        """What the report shows beside the scores, by the names of files."""
        opened, group = self.opened, self.group
        assert opened.test is not None
        limit, seed = max(_SHORT, 0.1 * trained.seconds), trained.settings.seed
        limit = _SHORT if trained.interrupted else min(_LONG, limit)
        pending = self.job.requests.pending

        def asked() -> bool:
            return pending(LEAVE) or (pending(STOP) and not trained.interrupted)

        with own_threads(trained.settings, opened):
            importance: dict[str, Any] | None = {"columns": [], "reason": NOT_COUNTED}
            if test.bound is None:
                importance = column_importance(trained.model, opened, group, seed, limit, asked)
        mistakes = confident_mistakes(test, opened.test, group)
        found = {IMPORTANCE: importance, MISTAKES: {"samples": mistakes}}
        return {name: values for name, values in found.items() if values is not None}


def _try_model(settings: RunSettings) -> None:
    """Raise if the network cannot be made, or does not have what the settings are about."""
    with torch.random.fork_rng([]):
        model = build(settings.model.name, **settings.model.arguments)
    check_norm(settings, model)


def _launcher_says(name: str) -> int:
    """A number in the environment that torch's elastic launcher has set."""
    text = os.environ.get(f"TORCHELASTIC_{name}", "")
    return int(text) if text.isdigit() else 0


def restarts() -> int:
    """How often the elastic launcher has started the workers again."""
    return _launcher_says("RESTART_COUNT")


def _may_restart() -> bool:
    """Whether the workers would be started again if this one failed."""
    return _launcher_says("MAX_RESTARTS") > restarts()


def _limit_waiting(folder: RunFolder, group: Group, step: int) -> None:
    """Limit waiting for others by how long calls take; longer where a run made no progress."""
    steps = [fault.get("step") for fault in folder.faults() if fault.get("event") == "resumed"]
    # how often in succession it was already resumed at this step: its workers may be slow
    times = next((i for i, earlier in enumerate(reversed(steps)) if earlier != step), len(steps))
    stuck = torch.tensor([times])
    group.broadcast_(stuck, "checkpoint")  # worker 0's directory knows
    more = 2 ** min(int(stuck), 4)
    least = _LEAST_WAIT if _may_restart() else _PATIENT_WAIT
    group.limit_waiting(more * least, more * _MOST_WAIT)
