"""A run from its settings to its directory: workers, files, the test set."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from codauc import interrupts
from codauc.agreement import together
from codauc.callbacks import Callback
from codauc.checkpoints import Checkpoints, Found, from_one
from codauc.config import CONFIG, RunSettings
from codauc.data.opening import Opened, open_data
from codauc.group import Group, GroupError, LocalGroup
from codauc.launching import launch
from codauc.making import settle
from codauc.metrics import auc_interval
from codauc.models import build
from codauc.profiling import Clock, prepare
from codauc.progress import Progress, note
from codauc.ranking import average_precision
from codauc.report.page import page
from codauc.resuming import as_saved, check_data, check_settings, identity, usable
from codauc.runs import CHECKPOINTS, MODEL, REPORT, TRACE, History, Record, RunFolder
from codauc.saved import save_model
from codauc.stopped import end_with_parent, guarded
from codauc.tensorboard import TensorBoard
from codauc.trainer import Departed, Trained, fit
from codauc.version import __version__
from codauc.watching import gathered, scores_of

_LONGEST_WAIT = 1800.0  # seconds for another worker, while data are read
_LEAST_WAIT, _MOST_WAIT = 10.0, 300.0  # once training has begun
_PATIENT_WAIT = 100.0  # where nobody would start the workers again
_OUTLIVED = 15.0  # seconds in which a killed run's workers end
_SIGNALS_SPREAD = 2.0  # seconds from the first worker to the last that is asked to leave


class Bar(Callback):
    """The progress bar: stage, rounds, validation AUC, time left."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.auc = ""

    def on_start(self, settings: RunSettings, steps: int) -> None:
        """Begin the line."""
        del settings
        self.progress = Progress(steps, label="train")

    def on_step(self, step: int, stage: int, rounds: int) -> None:
        """Draw, if it is time to."""
        assert self.progress is not None
        name = f"stage {stage}" if stage else "warm start"
        told = f" round {rounds}" if rounds else ""
        self.progress.update(step, f"{name} step {step}{told}{self.auc}")

    def on_record(self, record: Record) -> None:
        """Show the AUC from now on."""
        self.auc = f" AUC {record.auc:.4f}"

    def on_end(self, summary: dict[str, Any]) -> None:
        """End the line."""
        del summary
        if self.progress is not None:
            self.progress.close()


class Files(Callback):
    """Writes the run's directory as the run goes, so that a killed one is of use.

    A disk that is full costs what could not be written then, not the run.
    """

    def __init__(self, folder: RunFolder, opened: Opened, records: Sequence[Record] = ()) -> None:
        self.folder, self.opened = folder, opened
        self.history = History(folder, records)

    def on_start(self, settings: RunSettings, steps: int) -> None:
        """What is needed to run it again."""
        del steps
        self.folder.write(CONFIG, settings.to_toml())

    def on_record(self, record: Record) -> None:
        """One line more."""
        with self._going_on(record.step):
            self.history.add(record)

    def on_keep(self, model: nn.Module, step: int) -> None:
        """The best so far."""
        with self._going_on(step):
            save_model(self.folder / MODEL, model, self.opened.encoder)

    def on_end(self, summary: dict[str, Any]) -> None:
        """What came of it."""
        self.history.write()
        self.folder.write_summary(summary)

    @contextmanager
    def _going_on(self, step: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            note(f"\nStep {step}: {error.strerror or error}; the run goes on.")
            self.folder.note_fault("not written", step=step, reason=str(error))


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
    """Train as `settings` say, into the directory `out`; return what summary.json holds.

    Without `out` the directory is the first of runs/NAME-1, runs/NAME-2, ... that is free; the
    summary's "run" is its path. Under torchrun only worker 0 returns a summary, the others {}.

    With `resume` the run that is in `out` goes on as if it had never stopped, or begins if there is
    none; of one that is finished the summary is returned. A run that was asked to leave (SIGTERM)
    saves its state and returns {"stopped": True, ...}. With `profile` the directory also gets
    profile.json and trace.json, which say where the time went; the model is the same.
    """
    parts, under_torchrun = settings.communication, "RANK" in os.environ
    if resume and (overwrite or out is None):
        raise ValueError("resume: expected out, the run's directory, and no overwrite.")
    if out is not None and not resume and not restarts():
        check_free(RunFolder(out), overwrite=overwrite)
    if settings.data.own and parts.workers > 1 and "{rank}" not in settings.data.source:
        raise ValueError(
            f"own with {settings.data.source} for {parts.workers} workers: expected a file for "
            "each of them; write {rank} for the worker's number in its name."
        )
    if out is None and settings.safety.max_restarts and not under_torchrun:
        out = made_free(settings.data.source)  # all tries write to one directory
    job = Job(
        settings=settings,
        out=None if out is None else str(out),
        resume=resume,
        overwrite=overwrite,
        quiet=quiet,
        tensorboard=tensorboard,
        profile=profile,
        callbacks=tuple(callbacks),
    )
    if profile and parts.simulate:
        prepare()
    try:
        with interrupts.listening(partial(_told, quiet)):
            results = launch(
                job.work,
                workers=None if under_torchrun else parts.workers,
                simulate=parts.simulate,
                seed=settings.seed,
                timeout=parts.timeout or _LONGEST_WAIT,
                patient=True,
                max_restarts=0 if under_torchrun else settings.safety.max_restarts,
            )
    except interrupts.Left:
        results = [None]
    if results[0] is None and interrupts.asked(interrupts.LEAVE):
        return {"run": job.out, "stopped": True, "steps": None, "saved": True}
    return results[0] or {}


def _told(quiet: bool) -> None:
    if not quiet:
        note("\nEnding with what there is, at the next round; Ctrl-C again to leave at once.")


def check_free(folder: RunFolder, *, overwrite: bool) -> None:
    """Refuse a directory with a run in it, unless told to lose it."""
    if folder.path.exists() and not folder.path.is_dir():
        raise ValueError(f"{folder.path} is a file: expected a directory for the run.")
    if folder.begun and not overwrite:
        raise ValueError(
            f"{folder.path} already holds a run: expected another directory; choose one with "
            "--out, say --resume to go on with it, or --overwrite to lose it."
        )


@dataclass(frozen=True)
class Job:
    """What every worker is told."""

    settings: RunSettings
    out: str | None
    resume: bool
    overwrite: bool
    quiet: bool
    tensorboard: bool
    profile: bool
    callbacks: tuple[Callback, ...]

    def work(self, group: Group) -> dict[str, Any] | None:
        """One worker's part; worker 0 writes the files and returns the summary."""
        if under_elastic():
            end_with_parent(os.getppid())
        alone = LocalGroup() if group.size == 1 else group  # whatever has started it
        with guarded() if under_elastic() and not ours() else nullcontext():
            return self._work(alone)

    @property
    def resuming(self) -> bool:
        """Whether to go on with what is in the directory: also when started again."""
        return self.resume or restarts() > 0

    def _work(self, group: Group) -> dict[str, Any] | None:
        if self.resuming and (summary := self._already(group)) is not None:
            return summary  # without reading the data
        if not self.quiet and group.rank == 0:
            note(f"Reading {self.settings.data.source} ...")
        opened = open_data(self.settings.data, group, self.settings.seed)
        data = identity(opened, group)
        settled = settle(self.settings, opened, group.size)
        together(group, lambda: _try_model(settled), "start")  # before an old run is lost
        with self.claimed(group) as folder, interrupts.looked_at():
            if self.resuming and (summary := self._already(group)) is not None:
                return summary  # another process has ended it meanwhile
            return self._train(group, folder, opened, settled, data)

    def _already(self, group: Group) -> dict[str, Any] | None:
        """The summary of a run that is finished; {} on the workers that do not have it."""
        if self.out is None:
            raise ValueError(
                "started again without --out: expected the directory of the run, to go on with it."
            )
        folder = RunFolder(self.out)
        done = group.rank == 0 and folder.finished
        if not bool(group.gather(torch.tensor([int(done)]), "checkpoint").any()):
            return None
        if done and not self.quiet:
            note(f"{folder.path} holds a finished run: nothing was done.")
        return folder.summary() if done else {}

    @contextmanager
    def claimed(self, group: Group) -> Iterator[RunFolder]:
        """The run's directory; on worker 0, emptied of another run. No other run may use it."""
        stack, patience = ExitStack(), _OUTLIVED if self.resuming else 0.0

        def claim() -> str:
            if group.rank:
                return ""
            made = self.out is None
            folder = RunFolder(made_free(self.settings.data.source) if made else self.out or "")
            folder.path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(folder.locked(patience=patience))
            if not self.resuming:
                check_free(folder, overwrite=self.overwrite)
                folder.empty()
            return str(folder.path)

        def join() -> None:
            if group.rank:
                folder.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(folder.locked(group.rank, patience))
                if not self.resuming:
                    folder.empty_checkpoints()

        with stack:
            path = together(group, claim, "start")
            path = from_one(group, path.encode()).decode()
            folder = RunFolder(self.out or path)  # each host may have its own
            together(group, join, "start")
            yield folder

    def _train(
        self,
        group: Group,
        folder: RunFolder,
        opened: Opened,
        settled: RunSettings,
        data: dict[str, Any],
    ) -> dict[str, Any] | None:
        first = group.rank == 0

        def told(text: str) -> None:
            note(f"\nWorker {group.rank}: {text}; the run goes on.")
            folder.note_fault("not written", worker=group.rank, reason=text)

        checkpoints = Checkpoints(folder / CHECKPOINTS, group, settled.safety.keep, told)
        found = checkpoints.newest() if self.resuming else None
        if found is not None:
            settled = together(
                group, lambda: self._as_saved(found, opened, data, group), "checkpoint"
            )
        if settled.communication.timeout is None:
            _limit_waiting(folder, group, 0 if found is None else found.number)
        watching: list[Callback] = []
        if first:
            self._tell(folder, found, group)
            watching = self._watching(folder, opened, found)
        clock = Clock(folder / TRACE if first else None) if self.profile else None
        try:
            trained = fit(
                settled,
                opened,
                group,
                watching,
                wish=interrupts.asked,
                checkpoints=checkpoints,
                found=found,
                data=data,
                profile=clock,
            )
        except Departed as left:
            return self._left(folder, left, group)
        except GroupError as error:
            if may_restart():
                raise
            raise GroupError(
                f"{error} Go on from the last checkpoint with: codauc train --resume --out "
                f"{folder.path}; --timeout SECONDS lets workers wait longer for each other."
            ) from error
        finally:
            checkpoints.wait()
        if trained.interrupted and first:
            folder.note_fault("interrupted", step=trained.steps)
        profile = None if clock is None else clock.result(group, trained.steps)
        test = _test(trained, opened, group)

        def finish() -> dict[str, Any] | None:
            return _finished(folder, trained, opened, test, watching, profile) if first else None

        summary = together(group, finish, "checkpoint")  # now nobody needs the checkpoints
        if not trained.interrupted:
            checkpoints.clear()
        return summary

    def _as_saved(
        self, found: Found, opened: Opened, data: dict[str, Any], group: Group
    ) -> RunSettings:
        """The settings of the run that goes on; raise where what is here does not fit."""
        with usable(found):
            saved, records = found.base["settings"], found.base["records"]
            check_data(found.base["data"], data)
            check_settings(saved, settle(self.settings, opened, found.size))
            [Record(**record) for record in records]
        if self.settings.data.own and found.size != group.size:
            raise ValueError(
                f"{group.size} workers in place of {found.size}, each with data of its own: "
                "expected the same workers, as their data cannot be shared out anew."
            )
        return settle(as_saved(self.settings, saved), opened, group.size)

    def _watching(self, folder: RunFolder, opened: Opened, found: Found | None) -> list[Callback]:
        """Who looks on in worker 0."""
        records = [] if found is None else [Record(**r) for r in found.base["records"]]
        watching: list[Callback] = [Files(folder, opened, records), *self.callbacks]
        watching += [TensorBoard(folder.path, records)] if self.tensorboard else []
        return watching + ([] if self.quiet else [Bar()])

    def _tell(self, folder: RunFolder, found: Found | None, group: Group) -> None:
        """How the run begins; the results of an earlier end go, as it goes on."""
        folder.remove_results()
        if found is None:
            if self.resuming and (folder / CONFIG).exists():
                folder.note_fault("resumed", step=0, workers=group.size, restart=restarts())
                folder.remove_results(MODEL)
                if not self.quiet:
                    note("No checkpoint that all workers have written: beginning anew.")
            return
        for text in found.told:
            note(f"Not used: {text}")
            folder.note_fault("unreadable", reason=text)
        facts = {"workers": group.size, "exact": found.exact, "restart": restarts()}
        folder.note_fault("resumed", step=found.number, **facts)
        if not self.quiet:
            change = "" if found.exact else f", workers: {group.size} in place of {found.size}"
            note(f"Going on from step {found.base['step']}{change}.")

    def _left(self, folder: RunFolder, left: Departed, group: Group) -> dict[str, Any]:
        """After the state was saved: this process was asked to leave, or only another one was."""
        deadline = time.monotonic() + _SIGNALS_SPREAD
        while may_restart() and not interrupts.asked(interrupts.LEAVE):
            if time.monotonic() > deadline:
                raise GroupError(f"worker {group.rank}: another worker was asked to leave.")
            time.sleep(0.05)
        if group.rank == 0:
            folder.note_fault("left", step=left.step, saved=left.saved)
        return {"run": str(folder.path), "stopped": True, "steps": left.step, "saved": left.saved}


def _limit_waiting(folder: RunFolder, group: Group, step: int) -> None:
    """Wait for others by how long it takes; longer where the run did not get any further."""
    stuck = torch.tensor([_without_progress(folder, step)])
    group.broadcast_(stuck, "checkpoint")  # worker 0's directory knows
    more = 2 ** min(int(stuck), 4)
    least = _LEAST_WAIT if may_restart() else _PATIENT_WAIT
    group.limit_waiting(more * least, more * _MOST_WAIT)


def _without_progress(folder: RunFolder, step: int) -> int:
    """How often in succession a run was already resumed at this step: its workers may be slow."""
    steps = [fault.get("step") for fault in folder.faults() if fault.get("event") == "resumed"]
    return next((i for i, earlier in enumerate(reversed(steps)) if earlier != step), len(steps))


def _environment(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else 0


def restarts() -> int:
    """How often the elastic launcher has started the workers again."""
    return _environment("TORCHELASTIC_RESTART_COUNT")


def may_restart() -> bool:
    """Whether the workers would be started again if this one failed."""
    return _environment("TORCHELASTIC_MAX_RESTARTS") > restarts()


def under_elastic() -> bool:
    """Whether torch's elastic launcher has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def ours() -> bool:
    """Whether it is `codauc.launch` that uses it, as a process of this program."""
    return multiprocessing.parent_process() is not None


def _try_model(settings: RunSettings) -> None:
    """Raise if the network cannot be made."""
    with torch.random.fork_rng([]):
        build(settings.model.name, **settings.model.arguments)


def _finished(
    folder: RunFolder,
    trained: Trained,
    opened: Opened,
    test: tuple[Any, Any] | None,
    watching: list[Callback],
    profile: dict[str, Any] | None,
) -> dict[str, Any]:
    """The end's files; returns the summary."""
    summary = {"run": str(folder.path), **summarise(trained, opened, test)}
    save_model(folder / MODEL, trained.model, opened.encoder, trained.calibration)
    if test is not None:
        folder.write_scores(*test)
    if profile is not None:
        folder.write_profile(profile)
    for callback in watching:
        callback.on_end(summary)
    folder.write(REPORT, page(folder))
    return summary


def _test(trained: Trained, opened: Opened, group: Group) -> tuple[Any, Any] | None:
    """The test set's log-odds and labels, in the order of the source, on every worker."""
    part = opened.test
    if part is None:
        return None
    assert part.y is not None
    scores = gathered(scores_of(trained.model, part), group)
    labels = gathered(part.y.numpy().astype(np.bool_), group)
    order = np.argsort(gathered(part.rows.numpy(), group), kind="stable")
    return trained.calibration.log_odds(scores)[order], labels[order]


def summarise(trained: Trained, opened: Opened, test: tuple[Any, Any] | None) -> dict[str, Any]:
    """What summary.json holds."""
    train_part = opened.train
    validation = None if opened.validation is opened.test else opened.validation
    auc = None if test is None else auc_interval(*test)
    return {
        "test_auc": None if auc is None else auc.value,
        "auc_low": None if auc is None else auc.low,
        "auc_high": None if auc is None else auc.high,
        "average_precision": None if test is None else average_precision(*test),
        "validation_auc": trained.validation_auc,
        "steps": trained.steps,
        "best_step": trained.step,
        "rounds": int(trained.ledger["rounds"]),
        "bytes_per_worker": int(trained.ledger["bytes_sent"]),
        "seconds": trained.seconds,
        "computing": trained.ledger["computing"],
        "communicating": trained.ledger["communicating"],
        "waiting": trained.ledger["waiting"],
        "pos_ratio": train_part.positives / train_part.samples,
        "train_samples": train_part.samples,
        "validation_samples": 0 if validation is None else validation.samples,
        "test_samples": 0 if opened.test is None else opened.test.samples,
        "test_positives": 0 if opened.test is None else opened.test.positives,
        "workers": [count._asdict() for count in train_part.counts],
        "data": trained.settings.data.source,
        "target": trained.settings.data.target,
        "positive": list(opened.positive),
        "negative": list(opened.negative[:20]),
        "model": {
            "name": trained.settings.model.name,
            "parameters": sum(p.numel() for p in trained.model.parameters()),
        },
        "shape": list(opened.shape),
        "calibration": trained.calibration._asdict(),
        "recipe": trained.settings.recipe.name,
        "sync_every": trained.settings.communication.sync_every,
        "notes": trained.notes,
        "finished": not trained.interrupted,
        "interrupted": trained.interrupted,
        "version": __version__,
    }


def made_free(source: str, root: Path = Path("runs")) -> Path:
    """The first of runs/NAME-1, runs/NAME-2, ... that does not exist, made."""
    name = Path(source).name.split(".")[0] or "run"
    root.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        try:
            (path := root / f"{name}-{number}").mkdir()
        except FileExistsError:
            number += 1
        else:
            return path
