"""A run from its settings to its directory: workers, files, the test set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from codauc import interrupts
from codauc.agreement import together
from codauc.callbacks import Callback
from codauc.config import RunSettings
from codauc.data.opening import Opened, open_data
from codauc.group import Group
from codauc.launching import launch
from codauc.metrics import auc_interval
from codauc.models import build
from codauc.progress import Progress, note
from codauc.ranking import average_precision
from codauc.report.page import page
from codauc.runs import CONFIG, METRICS, MODEL, REPORT, SCORES, SUMMARY, History, Record, RunFolder
from codauc.saved import save_model
from codauc.tensorboard import TensorBoard
from codauc.trainer import Trained, fit, gathered, scores_of, settle
from codauc.version import __version__


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
    """Writes the run's directory as the run goes, so that a killed one is of use."""

    def __init__(self, folder: RunFolder, opened: Opened) -> None:
        self.folder, self.opened = folder, opened
        self.history = History(folder)

    def on_start(self, settings: RunSettings, steps: int) -> None:
        """What is needed to run it again."""
        del steps
        self.folder.write(CONFIG, settings.to_toml())

    def on_record(self, record: Record) -> None:
        """One line more."""
        self.history.add(record)

    def on_keep(self, model: nn.Module, step: int) -> None:
        """The best so far."""
        del step
        save_model(self.folder / MODEL, model, self.opened.encoder)

    def on_end(self, summary: dict[str, Any]) -> None:
        """What came of it."""
        self.folder.write_summary(summary)


def train(
    settings: RunSettings,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    quiet: bool = True,
    tensorboard: bool = False,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Train as `settings` say, into the directory `out`; return what summary.json holds.

    Without `out` the directory is the first of runs/NAME-1, runs/NAME-2, ... that is free; the
    summary's "run" is its path. Under torchrun only worker 0 returns a summary, the others {}.
    """
    parts, under_torchrun = settings.communication, "RANK" in os.environ
    if out is not None:
        check_free(RunFolder(out), overwrite=overwrite)
    if settings.data.own and parts.workers > 1 and "{rank}" not in settings.data.source:
        raise ValueError(
            f"own with {settings.data.source} for {parts.workers} workers: expected a file for "
            "each of them; write {rank} for the worker's number in its name."
        )
    work = partial(
        _work,
        settings=settings,
        out=None if out is None else str(out),
        overwrite=overwrite,
        quiet=quiet,
        tensorboard=tensorboard,
        callbacks=tuple(callbacks),
    )
    with interrupts.listening(partial(_told, quiet)):
        results = launch(
            work,
            workers=None if under_torchrun else parts.workers,
            simulate=parts.simulate,
            seed=settings.seed,
            timeout=parts.timeout,
            patient=True,
        )
    return results[0] or {}


def _told(quiet: bool) -> None:
    if not quiet:
        note("\nEnding with what there is, at the next round; Ctrl-C again to leave at once.")


def check_free(folder: RunFolder, *, overwrite: bool) -> None:
    """Refuse a directory with a run in it, unless told to lose it."""
    if folder.path.exists() and not folder.path.is_dir():
        raise ValueError(f"{folder.path} is a file: expected a directory for the run.")
    if folder.finished and not overwrite:
        raise ValueError(
            f"{folder.path} already holds a run: expected another directory; choose one with "
            "--out, or say --overwrite to lose it."
        )


@contextmanager
def claimed(
    out: str | None, source: str, group: Group, *, overwrite: bool
) -> Iterator[RunFolder | None]:
    """Worker 0's directory, made and emptied, which no other run may use meanwhile."""
    stack = ExitStack()

    def claim() -> RunFolder | None:
        if group.rank:
            return None
        folder = RunFolder(made_free(source) if out is None else out)
        folder.path.mkdir(parents=True, exist_ok=True)
        stack.enter_context(folder.locked())
        check_free(folder, overwrite=overwrite)
        for name in (CONFIG, METRICS, SUMMARY, MODEL, SCORES, REPORT):
            with suppress(FileNotFoundError):
                (folder / name).unlink()
        return folder

    with stack:
        yield together(group, claim, "start")


def _work(
    group: Group,
    settings: RunSettings,
    out: str | None,
    overwrite: bool,
    quiet: bool,
    tensorboard: bool,
    callbacks: tuple[Callback, ...],
) -> dict[str, Any] | None:
    """One worker's part; worker 0 writes the files and returns the summary."""
    if not quiet and group.rank == 0:
        note(f"Reading {settings.data.source} ...")
    opened = open_data(settings.data, group, settings.seed)
    settled = settle(settings, opened, group.size)
    together(group, lambda: _try_model(settled), "start")  # before an old run is lost
    with claimed(out, settings.data.source, group, overwrite=overwrite) as folder:
        watching: list[Callback] = []
        if folder is not None:
            watching = [Files(folder, opened), *callbacks]
            watching += [TensorBoard(folder.path)] if tensorboard else []
            watching += [] if quiet else [Bar()]
        trained = fit(settled, opened, group, watching, stop=interrupts.asked)
        test = _test(trained, opened, group)
        return None if folder is None else _finished(folder, trained, opened, test, watching)


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
) -> dict[str, Any]:
    """The end's files; returns the summary."""
    summary = {"run": str(folder.path), **summarise(trained, opened, test)}
    save_model(folder / MODEL, trained.model, opened.encoder, trained.calibration)
    if test is not None:
        folder.write_scores(*test)
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
    train_part, validation = opened.train, opened.validation
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
