"""Runs whose workers compute in lockstep, with the directory that any run leaves behind.

The numbers are those of `codauc.train` with simulated workers, to rounding; it takes less time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from codauc._internal.archive import pack, unpack
from codauc._internal.files import whole_file
from codauc.algorithm.inner_steps import InnerVariables
from codauc.algorithm.objective import pairwise_loss
from codauc.algorithm.rounds import NotFiniteError
from codauc.algorithm.schedules import Stage
from codauc.data.opening import open_data
from codauc.data.rows import as_rows
from codauc.metrics.weighted_auc import weighted_auc_interval
from codauc.models.model_file import save_model
from codauc.models.small_networks import PatchNet
from codauc.reproduce._lockstep import Batches, Lockstep, LockstepProgress, patches
from codauc.runs.directory import CHECKPOINTS, MODEL, SUMMARY, Record, RunFolder
from codauc.runs.history import History
from codauc.runs.settings import CONFIG, RunSettings
from codauc.training.build import make_batches, resolve_settings
from codauc.training.recipe import plan
from codauc.training.run_progress import RunProgress
from codauc.training.run_state import identity
from codauc.workers.agreement import together
from codauc.workers.group import Group
from codauc.workers.launcher import launch

STATE = "lockstep.state"
_BETWEEN_SAVES = 60.0  # seconds
_OUTLIVED = 15.0  # seconds in which a killed run ends
_AGREEMENTS = 4  # that `codauc.train` asks all workers for; their bytes are part of its ledger
_AT_ONCE = 500  # test images to prepare
_KEPT = 1 << 29  # bytes of test images that are prepared once
_IMAGES = 4  # dimensions of a batch that is not cut into patches


def possible(settings: RunSettings) -> bool:
    """Whether these workers can compute in lockstep."""
    parts, recipe = settings.communication, settings.recipe
    together = parts.simulate and parts.size > 1 and settings.device == "cpu"
    plain = parts.averages == "weights" and not (parts.compress or parts.outer or parts.delay)
    paper = recipe.name == "paper" and settings.data.watch == "test"
    return settings.model.name == "patchnet" and together and plain and paper


def begun_otherwise(out: Path) -> bool:
    """Whether a directory holds a run that computes one worker after the other."""
    return (out / CHECKPOINTS).exists() and not (out / STATE).exists()


def perform(settings: RunSettings, out: Path, stop: Callable[[], bool] = lambda: False) -> bool:
    """Begin or resume a run; returns whether it is finished, which it is not if it was stopped.

    `stop` is asked after each step. What is done is saved then, and every minute. No other run may
    use the directory meanwhile.
    """
    folder = RunFolder(out)
    folder.path.mkdir(parents=True, exist_ok=True)
    with folder.locked(0, _OUTLIVED):
        return folder.finished or _Run(settings, out, stop).run()


class TrialSteps(Lockstep):
    """Steps to be timed."""

    @torch.no_grad()
    def step_on(self, x: Tensor, y: Tensor) -> None:
        """A step of all workers on one batch of images."""
        rows = patches(x, math.isqrt(self.shapes[0][1] // x.shape[1]))
        anchors = self.weights, *self.own[:2]
        self._step(0, 1e-4, anchors, [repeat((rows, y))] * self.workers)


class _Worker(NamedTuple):
    """What one worker brings: batches, its share of the test set, and what it has sent so far."""

    settings: RunSettings
    model: PatchNet
    own: tuple[float, float, float]
    pos_ratio: float
    batches: Any
    test: Any
    start_bytes: list[int]


def _worker(settings: RunSettings, group: Group) -> _Worker:
    """As the training loop begins, up to the first step."""
    opened = open_data(settings.data, group, settings.seed)
    identity(opened, group)
    for _ in range(_AGREEMENTS):
        together(group, lambda: None, "start")
    resolved = resolve_settings(settings, opened, group.size)
    progress = RunProgress(resolved, opened, group, {})
    coda, loss, sent = progress.coda, progress.loss, list[int]()
    if progress.recipe.start == "estimate":
        coda.estimate(progress.batches, progress.recipe.dual_samples)
    for stage in progress.plan.stages:
        position = progress.batches.state_dict()
        next(coda.stage(stage, progress.batches))  # which compares the workers, at some bytes
        progress.batches.load_state_dict(position)
        coda.current = None
        sent.append(int(progress.journal.spent()["bytes_sent"]))
    assert isinstance(progress.model, PatchNet)
    own = (float(loss.a), float(loss.b), float(loss.alpha))
    ratio, side = opened.train.pos_ratio, progress.model.patch
    batches = _of_patches(progress, group, side)
    return _Worker(resolved, progress.model, own, ratio, batches, opened.test, sent)


def _of_patches(progress: RunProgress, group: Group, side: int) -> Any:
    """The same batches, cut into patches once where they are in memory."""
    train = progress.opened.train
    if not isinstance(train.x, Tensor):
        return progress.batches
    cut = replace(train, x=patches(train.x, side))
    batches = make_batches(progress.settings, cut, group, [])
    batches.load_state_dict(progress.batches.state_dict())
    return batches


class _Run(Lockstep):
    """The stages of a run, which may begin within one."""

    def __init__(self, settings: RunSettings, out: Path, stop: Callable[[], bool]) -> None:
        workers = settings.communication.size
        made = launch(
            lambda group: _worker(settings, group),
            workers=workers,
            simulate=True,
            seed=settings.seed,
        )
        first = made[0]
        self.settings, self.model, self.stop = first.settings, first.model, stop
        recipe = self.settings.recipe
        super().__init__(first.model, first.pos_ratio, workers, gamma=recipe.gamma)
        self.own = InnerVariables(*(torch.full((workers,), value) for value in first.own))
        self.plan = plan(recipe, self.settings.communication)
        self.sources = [worker.batches for worker in made]
        self.start_bytes, self.side = first.start_bytes, first.model.patch
        self.tests, self.labels = _test_set(made, self.side)
        self.folder, self.records = RunFolder(out), list[Record]()
        self.at_stage = self.at_step = self.evaluated = 0
        self.anchors: tuple[Tensor, ...] = ()
        self.seconds, self.began, self.saved = 0.0, time.perf_counter(), time.perf_counter()
        self._load()
        self.history = History(self.folder, self.records)

    def run(self) -> bool:
        """What is left of the stages; whether all was done."""
        self.folder.write(CONFIG, self.settings.to_toml())
        stages = self.plan.stages
        while self.at_stage < len(stages):
            if not self._rest_of(stages[self.at_stage], [*map(self._rows, self.sources)]):
                self._save()
                return False
            self.at_stage, self.at_step = self.at_stage + 1, 0
        self._finish()
        return True

    @torch.no_grad()
    def _rest_of(self, stage: Stage, batches: list[Batches]) -> bool:
        """The steps that a stage still has, its result and alpha; False if it was stopped."""
        every = stage.sync_every
        assert isinstance(every, int)
        if not self.at_step:
            self.anchors = self.weights.clone(), *(value.clone() for value in self.own[:2])
        while self.at_step < stage.steps:
            self._step(self.at_step, stage.lr, self.anchors, batches)
            self.at_step += 1
            inside = self.at_step < stage.steps
            if inside and self.at_step % every == 0:
                self._round(self.weights, *self.own[:2], closing=False)
                if self.progress.steps - self.evaluated >= self._evaluate_every(every):
                    self._evaluate(stage.lr)
            if inside and self._leaves():
                return False
        self._round(self.average, *self.own_average, closing=True)
        self._estimate(stage.dual_samples, batches)
        self._evaluate(stage.lr, stage_end=True)
        return True

    def _evaluate_every(self, every: int) -> int:
        """As the training loop has it: a multiple of the steps between two rounds."""
        return math.ceil(self.plan.steps / self.settings.recipe.evaluations / every) * every

    def _leaves(self) -> bool:
        if self.stop():
            return True
        if time.perf_counter() - self.saved > _BETWEEN_SAVES:
            self._save()
        return False

    def _rows(self, source: Iterator[tuple[Tensor, Tensor]]) -> Batches:
        return ((patches(x, self.side) if x.dim() == _IMAGES else x, y) for x, y in source)

    def _evaluate(self, lr: float, *, stage_end: bool = False) -> None:
        """Add a record of the test set."""
        scores = torch.cat([self.scores(self.weights[0], part) for part in self.tests()])
        if not bool(torch.isfinite(scores).all() and torch.isfinite(self.weights[0]).all()):
            raise NotFiniteError(f"step {self.progress.steps}: numbers are not finite.")
        auc = weighted_auc_interval(scores.numpy(), self.labels.numpy(), None, None)
        h, y = scores.sigmoid(), self.labels
        a, b, alpha = (float(value[0]) for value in self.own)
        record = Record(
            step=self.progress.steps,
            stage=self.at_stage + 1,
            rounds=self.progress.rounds,
            bytes=self.progress.bytes + self.start_bytes[self.at_stage],
            seconds=self._seconds(),
            lr=lr,
            loss=float(pairwise_loss(h.double(), y)),
            auc=auc.value,
            auc_low=auc.low,
            auc_high=auc.high,
            positive_mean=float(h[y].mean()),
            negative_mean=float(h[~y].mean()),
            a=a,
            b=b,
            alpha=alpha,
            drift=None,
            computing=self._seconds(),
            communicating=0.0,
            waiting=0.0,
            stage_end=stage_end,
            workers=self.workers,
        )
        self.evaluated = self.progress.steps
        self.records.append(record)
        self.history.write(record)

    def _seconds(self) -> float:
        return self.seconds + time.perf_counter() - self.began

    def _save(self) -> None:
        state = {
            "weights": self.weights,
            "average": self.average,
            "own": tuple(self.own),
            "own_average": tuple(self.own_average),
            "anchors": self.anchors,
            "progress": tuple(self.progress),
            "at": (self.at_stage, self.at_step, self.evaluated),
            "batches": [source.state_dict() for source in self.sources],
            "records": [asdict(record) for record in self.records],
            "seconds": self._seconds(),
        }
        with whole_file(self.folder / STATE) as partial:
            partial.write_bytes(pack(state))
        self.saved = time.perf_counter()

    def _load(self) -> None:
        path = self.folder / STATE
        if not path.exists():
            return
        state = unpack(path.read_bytes())
        self.weights, self.average, self.anchors = (
            state[name] for name in ("weights", "average", "anchors")
        )
        self.own, self.own_average = InnerVariables(*state["own"]), state["own_average"]
        self.progress = LockstepProgress(*state["progress"])
        self.at_stage, self.at_step, self.evaluated = state["at"]
        for source, position in zip(self.sources, state["batches"], strict=True):
            source.load_state_dict(position)
        self.records, self.seconds = [Record(**each) for each in state["records"]], state["seconds"]

    @torch.no_grad()
    def _finish(self) -> None:
        """Write the model and the summary; the state is of no more use."""
        row = iter(torch.split(self.weights[0], [shape.numel() for shape in self.shapes]))
        for weight in self.model.parameters():
            weight.copy_(next(row).view_as(weight))
        save_model(self.folder / MODEL, self.model, None)
        last = self.records[-1]
        summary = {
            "test_auc": last.auc,
            "auc_low": last.auc_low,
            "auc_high": last.auc_high,
            "validation_auc": last.auc,
            "steps": last.step,
            "rounds": last.rounds,
            "bytes_per_worker": last.bytes,
            "seconds": self._seconds(),
            "data": self.settings.data.source,
            "test_samples": len(self.labels),
            "notes": ["Workers computed in lockstep."],
            "finished": True,
            "interrupted": False,
        }
        self.folder.write_json(SUMMARY, summary)
        (self.folder / STATE).unlink(missing_ok=True)


def _test_set(made: list[_Worker], side: int) -> tuple[Callable[[], Iterable[Tensor]], Tensor]:
    """The patches of all workers' test images, in parts, and their labels."""

    def parts(worker: _Worker) -> Iterator[Tensor]:
        x = as_rows(worker.test.x)
        for rows in torch.split(torch.arange(len(x)), _AT_ONCE):
            yield patches(x.gather(rows), side)

    def everything() -> Iterator[Tensor]:
        return chain.from_iterable(map(parts, made))

    labels = torch.cat([worker.test.y for worker in made]).bool()
    first = next(everything())
    if first[0].nbytes * len(labels) > _KEPT:
        return everything, labels
    kept = list(everything())
    return lambda: kept, labels
