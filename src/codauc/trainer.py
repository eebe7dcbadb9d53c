"""The thin loop: opened data, a network and a recipe to a trained model, on every worker."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from codauc.adaptive import PPDAdam
from codauc.agreement import gather_bytes, together
from codauc.callbacks import Callback
from codauc.coda import CoDA
from codauc.config import Recipe, RunSettings
from codauc.data import Batches
from codauc.data.opening import Opened, Part
from codauc.data.rows import as_rows
from codauc.evaluation import logits_of
from codauc.group import Group
from codauc.loss import MinMaxAUCLoss
from codauc.metrics import auc_interval
from codauc.models import TabularNet, build
from codauc.models.pretrained import load_pretrained
from codauc.objective import pairwise_loss
from codauc.optim import PPDSG
from codauc.ranking import Calibration, calibrate
from codauc.recipes import SYNC_EVERY, Facts, factor_of, model_arguments, plan, resolve
from codauc.runs import Record
from codauc.schedules import Stage
from codauc.selection import Selection

_EDGE_ROWS = 20_000  # of all workers, to set a table's ranges
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Trained:
    """A run's model, on every worker the same, and what became of it."""

    model: nn.Module
    settings: RunSettings
    calibration: Calibration
    step: int  # at which the model was what it is
    steps: int
    validation_auc: float | None
    records: list[Record]
    seconds: float
    interrupted: bool
    ledger: dict[str, float]
    notes: list[str]


def settle(settings: RunSettings, opened: Opened, workers: int) -> RunSettings:
    """The settings with everything decided that was left open."""
    facts = Facts(opened.train.samples, opened.train.positives, bool(opened.shape))
    recipe = resolve(settings.recipe, workers, facts)
    name, needed = opened.network()
    arguments = settings.model.arguments
    if settings.model.name == "auto":
        arguments = {**needed, **model_arguments(name, facts), **arguments}
    else:
        name = settings.model.name
        if name == opened.network()[0]:
            arguments = {**needed, **arguments}
        elif name == "mlp" and "inputs" not in arguments:
            arguments = {"inputs": _inputs(opened), **arguments}
        elif opened.shape and "in_channels" not in arguments and name.startswith("resnet"):
            arguments = {"in_channels": opened.shape[0], **arguments}
    model = replace(settings.model, name=name, arguments=arguments)
    data = settings.data
    if opened.encoder is None:  # by name, as other images may have other classes
        data = replace(data, positive=opened.positive, negative=opened.negative)
    every = settings.communication.sync_every or (SYNC_EVERY if workers > 1 else None)
    communication = replace(settings.communication, workers=workers, sync_every=every)
    return replace(settings, data=data, recipe=recipe, model=model, communication=communication)


def _inputs(opened: Opened) -> int:
    if opened.shape:
        return math.prod(opened.shape)
    assert opened.encoder is not None
    return opened.encoder.inputs


def fit(
    settings: RunSettings,
    opened: Opened,
    group: Group,
    callbacks: Sequence[Callback] = (),
    *,
    model: nn.Module | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train as `settings` (settled) say; all workers return the same model.

    `stop()` is asked after each step; once it is true on a worker, all end at the next round with
    what they have. `model` takes the place of the one that the settings name.
    """
    run = _Run(settings, opened, group, callbacks if group.rank == 0 else (), model)
    with _threads(settings, opened):
        return run.go(stop)


def make_model(settings: RunSettings, rows: Tensor, ratio: float) -> nn.Module:
    """The network of settled settings; `rows` are some inputs, `ratio` the share of positives."""
    chosen, recipe = settings.model, settings.recipe
    model = build(chosen.name, **chosen.arguments)
    if isinstance(model, TabularNet):
        model.fit_pieces(rows)
    head = getattr(model, "head", None)
    if recipe.initial_bias and isinstance(head, nn.Linear) and head.bias is not None:
        nn.init.constant_(head.bias, math.log(ratio / (1 - ratio)))
    if chosen.pretrained is not None:
        load_pretrained(model, chosen.pretrained)
    return model


def make_optimizer(model: nn.Module, loss: MinMaxAUCLoss, recipe: Recipe) -> PPDSG:
    """Adaptive or plain steps, as the recipe says."""
    shared: dict[str, Any] = {
        "lr": recipe.lr,
        "gamma": recipe.gamma,
        "weight_decay": recipe.weight_decay,
        "average": recipe.average == "stage",
    }
    if recipe.optimizer == "adam":
        betas = (recipe.momentum, 0.999)
        return PPDAdam(model, loss, dual_lr=recipe.dual_lr, betas=betas, **shared)
    return PPDSG(model, loss, momentum=recipe.momentum, **shared)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        text = str(error).splitlines()[0]
        raise ValueError(f"device={name!r} cannot be used here ({text}): use cpu.") from error
    return device


class _Run:
    """One worker's part of one run."""

    def __init__(
        self,
        settings: RunSettings,
        opened: Opened,
        group: Group,
        callbacks: Sequence[Callback],
        model: nn.Module | None,
    ) -> None:
        self.settings, self.opened, self.group = settings, opened, group
        assert isinstance(settings.recipe, Recipe), "settle(...) decides what is open"
        self.recipe, self.callbacks = settings.recipe, callbacks
        self.plan = plan(settings.recipe, settings.communication)
        self.notes: list[str] = []
        self.device = _device(settings.device)
        self.batches = self._batches(opened.train)
        self.model = together(group, lambda: self._model(model), "start").to(self.device)
        self.loss = MinMaxAUCLoss(pos_ratio=self._ratio(), mix=self.recipe.mix).to(self.device)
        self.opt = make_optimizer(self.model, self.loss, self.recipe)
        self.coda = CoDA(
            self.opt,
            group,
            compress=settings.communication.compress,
            delay=settings.communication.delay,
        )
        if group.size > 1:
            self.coda.watch_drift()
        scale = factor_of(self.recipe, self.plan.steps)
        still: Callable[[int], float] = lambda step: 1.0  # noqa: E731, ARG005
        groups = len(self.opt.param_groups)
        adam = self.recipe.optimizer == "adam"
        factors = [scale] * (groups - 2) + ([still] * 2 if adam else [scale] * 2)
        self.scheduler = LambdaLR(self.opt, factors)
        self.watch = _Watch(self.model, opened.validation, group)
        self.window = _Window(self.opt) if self.recipe.average == "window" else None
        self.selection = Selection(self.model, self.recipe.select)
        self.records: list[Record] = []
        self.step, self.began = 0, time.perf_counter()
        self.before = group.ledger.record()  # reading is not training
        self.same_steps = settings.communication.averages == "gradients"

    def _model(self, given: nn.Module | None) -> nn.Module:
        if given is not None:
            return given
        return make_model(self.settings, self._some_rows(), self._ratio())

    def _some_rows(self) -> Tensor:
        x, most = self.opened.train.x, max(1, _EDGE_ROWS // self.group.size)
        return as_rows(x).gather(torch.linspace(0, len(x) - 1, min(len(x), most)).long())

    def _batches(self, part: Part) -> Batches:
        share = self._balanced(part)
        return Batches(
            part.x,
            part.y,
            self.recipe.batch_size,
            seed=self.settings.seed,
            worker=self.group.rank,
            balanced=share,
        )

    def _balanced(self, part: Part) -> float | None:
        """The share of positives to draw, if either class is rarer than the recipe wants."""
        least, p = self.recipe.balance, part.positives / part.samples
        if least <= min(p, 1 - p):
            return None
        if any(count.positives in (0, count.samples) for count in part.counts):
            self.notes.append("A worker lacks a class: batches are not balanced.")
            return None
        return least if p < least else 1 - least

    def _ratio(self) -> float:
        train = self.opened.train
        return self.batches.sampled_ratio or train.positives / train.samples

    def go(self, stop: Callable[[], bool]) -> Trained:
        """All stages; then the model that is kept."""
        for callback in self.callbacks:
            callback.on_start(self.settings, self.plan.steps)
        interrupted = False
        for number in range(len(self.plan.stages)):
            self._stage(number, stop)
            interrupted = self.coda.asked_to_stop
            if interrupted:
                self.coda.finish(self.batches)
            self._look(number, stage_end=True)
            if interrupted:
                break
        self.selection.restore()
        return Trained(
            model=self.model,
            settings=self.settings,
            calibration=self._calibration(),
            step=self.selection.step or self.step,
            steps=self.step,
            validation_auc=self.selection.auc,
            records=self.records,
            seconds=time.perf_counter() - self.began,
            interrupted=interrupted,
            ledger=self._spent(),
            notes=self.notes,
        )

    def _stage(self, number: int, stop: Callable[[], bool]) -> None:
        stage, warm = self.plan.stages[number], number < self.plan.warm
        objective = self.loss.cross_entropy if warm else self.loss
        every, last = self._period(1 if self.same_steps else stage.sync_every), self.step
        for x, y in self.coda.stage(stage, self.batches):
            self.opt.zero_grad()
            objective(self.model(x.to(self.device)), y.to(self.device)).backward()
            if self.same_steps:
                self.coda.average_gradients()
            self.opt.step()
            self.scheduler.step()
            self.step += 1
            for callback in self.callbacks:
                callback.on_step(self.step, self._label(number), self.group.ledger.rounds)
            if stop():
                self.coda.ask_to_stop()
            alike, inside = self._alike(stage), self.opt.steps < stage.steps
            if alike and self.window is not None:
                self.window.add()
            if self.coda.asked_to_stop:
                break
            if self.step - last >= every and alike and inside:
                last = self.step
                self._look(number)

    def _label(self, number: int) -> int:
        """The number of a stage for people: 0 is the warm start."""
        return max(0, number + 1 - self.plan.warm)

    def _alike(self, stage: Stage) -> bool:
        """Whether all workers have the same model now: right after a round that took effect."""
        done = self.opt.steps
        after = done % stage.sync_every == 0 and done < stage.steps and not self.coda.delay
        return self.group.size == 1 or self.same_steps or after

    def _period(self, sync_every: int) -> int:
        """Steps between two looks: a multiple of the steps between two rounds."""
        return math.ceil(self.plan.steps / self.recipe.evaluations / sync_every) * sync_every

    def _look(self, number: int, *, stage_end: bool = False) -> None:
        """Evaluate on the validation set, tell the callbacks, and offer the model."""
        if self.watch.part is None:
            return
        with nullcontext() if self.window is None else self.window.as_weights():
            scores, drift = self.watch.look(self.coda.drift)
            labels = self.watch.labels
            auc = auc_interval(scores, labels)
            if self.selection.offer(self.step, auc.value, scores, labels):
                for callback in self.callbacks:
                    callback.on_keep(self.model, self.step)
        h, y = torch.from_numpy(scores).sigmoid(), torch.from_numpy(labels)
        ledger = self._spent()
        a, b, alpha = (float(t.detach()) for t in (self.loss.a, self.loss.b, self.loss.alpha))
        record = Record(
            step=self.step,
            stage=self._label(number),
            rounds=int(ledger["rounds"]),
            bytes=training_bytes(self.group),
            seconds=time.perf_counter() - self.began,
            lr=self.opt.stage_lr * self.opt.param_groups[0]["lr"] / self.opt.base_lr,
            loss=float(pairwise_loss(h.double(), y)),
            auc=auc.value,
            auc_low=auc.low,
            auc_high=auc.high,
            positive_mean=float(h[y].mean()),
            negative_mean=float(h[~y].mean()),
            a=a,
            b=b,
            alpha=alpha,
            drift=drift,
            computing=ledger["computing"],
            communicating=ledger["communicating"],
            waiting=ledger["waiting"],
            stage_end=stage_end,
        )
        self.records.append(record)
        for callback in self.callbacks:
            callback.on_record(record)

    def _spent(self) -> dict[str, float]:
        """The ledger's totals, with the seconds since training began."""
        spent = self.group.ledger.record()
        for name in ("computing", "communicating", "waiting"):
            spent[name] -= self.before[name]
        if self.group.size == 1:
            spent["computing"] = time.perf_counter() - self.began
        return spent | {"bytes_sent": training_bytes(self.group)}

    def _calibration(self) -> Calibration:
        if self.selection.scores is None:
            return Calibration()
        found = calibrate(self.selection.scores, self.watch.labels)
        if found == Calibration():
            self.notes.append(
                "Scores do not rise with the share of positives on the validation set."
            )
        return found


class _Window:
    """The mean of the models that all workers shared since it was last used; nothing is sent."""

    def __init__(self, opt: PPDSG) -> None:
        self.opt, self.count = opt, 0
        self.means = [torch.zeros_like(weights) for weights in self._weights()]

    def _weights(self) -> list[Tensor]:
        flat = self.opt.flat
        return [block.of(flat.vectors) for block in flat.blocks if block.role == "weight"]

    @torch.no_grad()
    def add(self) -> None:
        """Count the weights as they are now."""
        self.count += 1
        for mean, weights in zip(self.means, self._weights(), strict=True):
            mean.lerp_(weights, 1 / self.count)

    @contextmanager
    def as_weights(self) -> Iterator[None]:
        """The model has the mean for weights while this lasts; then a new mean begins."""
        own = [weights.clone() for weights in self._weights()]
        if self.count:
            self._set(self.means)
        try:
            yield
        finally:
            self._set(own)
            self.count = 0

    @torch.no_grad()
    def _set(self, values: list[Tensor]) -> None:
        for weights, value in zip(self._weights(), values, strict=True):
            weights.copy_(value)
        self.opt.flat.mark_changed()


class _Watch:
    """The validation set: every worker scores its part, all know the scores of all."""

    def __init__(self, model: nn.Module, part: Part | None, group: Group) -> None:
        self.model, self.part, self.group = model, part, group
        self.labels: NDArray[np.bool_] = np.empty(0, bool)
        if part is not None:
            assert part.y is not None
            self.labels = gathered(part.y.numpy().astype(np.bool_), group)

    def look(self, drift: float | None) -> tuple[NDArray[Any], float | None]:
        """All scores, in the order of the labels, and the root mean square of the drifts."""
        assert self.part is not None
        scores = scores_of(self.model, self.part)
        if self.group.size == 1:
            return scores, None
        drifts = gathered(np.array([np.nan if drift is None else drift]), self.group)
        mean = None if np.isnan(drifts).any() else float(np.sqrt((drifts**2).mean()))
        return gathered(scores, self.group), mean


def scores_of(model: nn.Module, part: Part) -> NDArray[Any]:
    """The logits of a worker's samples, as float32."""
    if not len(part.x):
        return np.empty(0, np.float32)
    return logits_of(model, part.x).astype(np.float32, copy=False)


def gathered(values: NDArray[Any], group: Group) -> NDArray[Any]:
    """The workers' arrays, end to end in the order of ranks, on each of them."""
    if group.size == 1:
        return values
    parts = gather_bytes(group, values.tobytes(), "evaluate", _CPU)
    return np.concatenate([np.frombuffer(part, values.dtype) for part in parts])


def training_bytes(group: Group) -> int:
    """Bytes that a worker sent in order to train; looks at the validation set are not counted."""
    tallies = group.ledger.tallies
    return sum(tally.sent for kind, tally in tallies.items() if kind != "evaluate")


@contextmanager
def _threads(settings: RunSettings, opened: Opened) -> Iterator[None]:
    """As many threads as the workers leave each other; one for tables, whose steps are small."""
    before, cores = torch.get_num_threads(), os.cpu_count() or 1
    workers = 1 if settings.communication.simulate else settings.communication.workers
    torch.set_num_threads(max(1, min(before, cores // workers)) if opened.shape else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
