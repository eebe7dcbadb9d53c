"""The thin loop: opened data, a network and a recipe to a trained model, on every worker."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, fields
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from codauc.agreement import together
from codauc.averaging import NotFiniteError
from codauc.callbacks import Callback
from codauc.checkpoints import Checkpoints, Found
from codauc.coda import CoDA
from codauc.config import Recipe, RunSettings
from codauc.data import Batches
from codauc.data.opening import Opened, Part
from codauc.data.rows import as_rows
from codauc.group import Group, GroupError
from codauc.loss import MinMaxAUCLoss
from codauc.making import make_model, make_optimizer
from codauc.metrics import auc_interval
from codauc.objective import pairwise_loss
from codauc.profiling import Profile
from codauc.ranking import Calibration, calibrate
from codauc.recipes import factor_of, plan
from codauc.resuming import as_bits, check_shape, merged, rest_of_all, usable
from codauc.runs import Record
from codauc.schedules import Stage
from codauc.selection import Selection
from codauc.streams import seed_everything
from codauc.watching import Watch, Window

Wish = Callable[[str], bool]

_EDGE_ROWS = 20_000  # of all workers, to set a table's ranges
_GRACE = 3.0  # seconds in which a worker that was asked to leave waits for a round
_LOOK_FOR_NAN = 16  # steps, of a worker that has no rounds
_NOT_TRAINING = ("evaluate", "checkpoint")
_STATE = ("step", "looked", "owed", "agreed", "reduced", "saved_rounds")  # of a run
_REDUCTIONS = 8  # of the step size, after which a run is given up


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


def fit(
    settings: RunSettings,
    opened: Opened,
    group: Group,
    callbacks: Sequence[Callback] = (),
    *,
    model: nn.Module | None = None,
    wish: Wish = lambda _: False,
    checkpoints: Checkpoints | None = None,
    found: Found | None = None,
    data: dict[str, Any] | None = None,
    profile: Profile | None = None,
) -> Trained:
    """Train as `settings` (settled) say; all workers return the same model.

    `wish(name)` is asked after each step. Once it is true on a worker for "stop", all end at the
    next round with what they have; for "leave", all save their states and raise `Departed`; for
    "save", they save them and go on. `found` is what to go on with, and `data` what tells the data
    from others, to be saved with each state. `model` takes the place of the one that the settings
    name. `profile` is a `Clock`, if it is to be known where the time goes.
    """
    run = _Run(settings, opened, group, callbacks if group.rank == 0 else (), model)
    run.wish, run.checkpoints, run.data = wish, checkpoints, data or {}
    if found is not None:
        run.go_on_with(found)
    run.profile = profile or run.profile
    measuring = run.profile.measuring(group, run.coda.averager, run.device)
    with _threads(settings, opened), measuring:
        return run.go()


class Departed(Exception):  # noqa: N818
    """The run was asked to leave, and its state is saved, if that was possible; not an error."""

    def __init__(self, step: int, *, saved: bool) -> None:
        super().__init__(f"left at step {step}")
        self.step, self.saved = step, saved


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        text = str(error).splitlines()[0]
        raise ValueError(f"device={name!r} cannot be used here ({text}): use cpu.") from error
    return device


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count != 1)}"


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
        loss = MinMaxAUCLoss(pos_ratio=self._ratio(), mix=self.recipe.mix, validate=False)
        self.loss = loss.to(self.device)  # rounds tell whether numbers are finite
        self.opt = make_optimizer(self.model, self.loss, self.recipe)
        self.coda = CoDA(
            self.opt,
            group,
            compress=settings.communication.compress,
            delay=settings.communication.delay,
        )
        if group.size > 1:
            self.coda.watch_drift()
        self.reduced = 1.0  # what is left of the step size after numbers that were not finite
        self.scheduler = self._scheduler()
        self.watch = Watch(self.model, opened.validation, group)
        self.window = Window(self.opt) if self.recipe.average == "window" else None
        self.selection = Selection(self.model, self.recipe.select)
        self.records: list[Record] = []
        self.step, self.began = 0, time.perf_counter()
        self.looked = 0  # the step of the last look, or the stage's first
        self.owed = False  # whether a round that was cut off, and what follows it, is to be made up
        self.before = group.ledger.record()  # reading is not training
        self.same_steps = settings.communication.averages == "gradients"
        self.wish: Wish = lambda _: False
        self.checkpoints: Checkpoints | None = None
        self.data: dict[str, Any] = {}
        self.profile = Profile()
        self.good: dict[str, Any] | None = None  # the state to go back to
        self.agreed, self.grants = 0, 0  # the step of the last round, and how many there were
        self.saved_at, self.saved_rounds = time.monotonic(), 0
        self.leaving: float | None = None  # since when

    def _scheduler(self) -> LambdaLR:
        shape = factor_of(self.recipe, self.plan.steps)

        def scale(step: int) -> float:
            return self.reduced * shape(step)

        still: Callable[[int], float] = lambda step: 1.0  # noqa: E731, ARG005
        groups, adam = len(self.opt.param_groups), self.recipe.optimizer == "adam"
        return LambdaLR(self.opt, [scale] * (groups - 2) + ([still] * 2 if adam else [scale] * 2))

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

    def go(self) -> Trained:
        """All stages; then the model that is kept."""
        for callback in self.callbacks:
            callback.on_start(self.settings, self.plan.steps)
        if self.recipe.start == "estimate" and self.coda.current is None and not self.step:
            self.coda.estimate(self.batches, self.recipe.dual_samples)
        self._remember()
        interrupted = False
        while self.coda.stages_done < len(self.plan.stages) and not interrupted:
            number = self.coda.stages_done
            try:
                self._stage(number)
                interrupted = self.coda.asked("stop")
                if interrupted:
                    with self.profile.section("stage"):
                        self.coda.finish(self.batches)
                with self.profile.section("look"):
                    self._look(number, stage_end=True)
            except NotFiniteError as error:
                self._go_back(error)
                continue
            except GroupError:
                self._leave_as_it_is()
                raise
            self.looked = self.step
            self._remember()
            whole = self.opt.steps == self.plan.stages[number].steps
            if whole and self._agreed() and self.checkpoints is not None:
                self._save(fresh=True)
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

    def _stage(self, number: int) -> None:
        mark = self.profile.mark
        mark("stage")
        stage, warm = self.plan.stages[number], number < self.plan.warm
        objective = self.loss.cross_entropy if warm else self.loss
        first = self.step - (self.opt.steps if self.coda.current is not None else 0)
        batches = self.coda.stage(stage, self.profile.reading(self.batches))
        if self.owed:
            self.coda.make_up()
            self.owed = False
            self._after_step(number, stage)
        for x, y in () if self.coda.asked("stop") else batches:
            mark("reading")
            x, y = x.to(self.device), y.to(self.device)
            mark("step")
            self.opt.zero_grad()
            mark("forward")
            scores = self.model(x)
            mark("loss")
            loss = objective(scores, y)
            mark("backward")
            loss.backward()
            mark("step")
            self.coda.count_loss(loss)
            if self.same_steps:
                self.coda.average_gradients()
            try:
                self.opt.step()
            finally:
                self.owed = self.step < first + self.opt.steps
                self.step = first + self.opt.steps
            self.owed = False
            mark("rest")
            self.scheduler.step()
            self._after_step(number, stage)
            self.profile.step()
            if self.coda.asked("stop"):
                break
            if self.opt.steps == stage.steps:
                mark("stage")  # it is the batches that end it
        mark("rest")

    def _after_step(self, number: int, stage: Stage) -> None:
        """What follows a step: a look, a checkpoint, a wish."""
        self.profile.mark("files")
        for callback in self.callbacks:
            callback.on_step(self.step, self._label(number), self.group.ledger.rounds)
        self.profile.mark("rest")
        for name in ("stop", "leave", "save"):
            if self.wish(name):
                self.coda.ask(name)
        fresh = self._agreed()
        alike, inside = self._alike(stage), self.opt.steps < stage.steps
        if self.group.size == 1 and self.step % _LOOK_FOR_NAN == 0:
            self.coda.check_finite()
        if alike and self.window is not None:
            self.profile.mark("window")
            self.window.add()
            self.profile.mark("rest")
        every = self._period(1 if self.same_steps else stage.sync_every)
        if self.step - self.looked >= every and alike and inside:
            self.looked = self.step
            if self.group.size == 1:
                self.coda.check_finite()
            with self.profile.section("look"):
                self._look(number)
            self._remember()
        if inside and self.checkpoints is not None:
            self._save(fresh=fresh)

    def _agreed(self) -> bool:
        """Whether a round took effect at this step, so that all know the wishes of all."""
        grants = self.coda.averager.grants
        fresh = self.group.size == 1 or grants != self.grants
        if fresh:
            self.agreed, self.grants = self.step, grants
        return fresh

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
            if np.isnan(scores).any():
                raise NotFiniteError("scores are not numbers: lower the step size.")
            auc = auc_interval(scores, labels)
            if self.selection.offer(self.step, auc.value, scores, labels):
                with self.profile.section("files"):
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
            workers=self.group.size,
        )
        self.records.append(record)
        with self.profile.section("files"):
            for callback in self.callbacks:
                callback.on_record(record)

    def _save(self, *, fresh: bool) -> None:
        """A checkpoint, if it is time for one; or leave, if that was asked for."""
        assert self.checkpoints is not None
        safety, checkpoints = self.settings.safety, self.checkpoints
        age = time.monotonic() - self.saved_at
        seconds = 60 * safety.checkpoint_minutes or math.inf
        if fresh:
            self.saved_rounds += 1
            due = self.saved_rounds >= (safety.checkpoint_rounds or math.inf)
            if self.group.rank == 0 and age > seconds:
                self.coda.ask("save")
            leave = self.coda.asked("leave")
            wanted = due or leave or self.coda.asked("save") or self.coda.asked("stop")
            if wanted and self.group.size == 1:
                self.coda.check_finite()
            if leave:
                self._leave(all_of_them=True)
            if wanted:
                self.coda.withdraw("save")
                self.saved_at, self.saved_rounds = time.monotonic(), 0
                with self.profile.section("checkpoint"):
                    checkpoints.save(self.agreed, self.state_dict())
        elif not self.coda.averager.under_way:  # nobody else is needed: all are after one round
            if self.group.apart and self.wish("leave"):
                self.leaving = self.leaving or time.monotonic()
                if time.monotonic() - self.leaving > _GRACE:
                    self._leave()
            if age > 1.5 * seconds:
                self.saved_at = time.monotonic()
                self._save_alone()

    def _leave(self, *, all_of_them: bool = False) -> NoReturn:
        assert self.checkpoints is not None
        self._save_alone()
        self.checkpoints.confirm() if all_of_them else self.checkpoints.wait()
        raise Departed(self.step, saved=self.checkpoints.written == self.agreed)

    def _save_alone(self) -> None:
        """Save the state as it is, unless its numbers are good for nothing."""
        assert self.checkpoints is not None
        with suppress(NotFiniteError), self.profile.section("checkpoint"):
            self.coda.check_finite()
            self.checkpoints.save_alone(self.agreed, self.state_dict())

    def _leave_as_it_is(self) -> None:
        """Another worker has left first: the round that failed is made up for later."""
        if self.checkpoints is None or not self.wish("leave"):
            return
        at_end = self.coda.current is not None and self.opt.steps == self.coda.current.steps
        due = self.owed or (at_end and not self.coda.closed)
        if due and not (self.coda.delay or self.same_steps):
            self._leave()
        raise Departed(self.step, saved=False)

    def _remember(self) -> None:
        """Keep the state as it is, to go back to it."""
        if self.settings.safety.not_finite == "reduce":
            with self.profile.section("checkpoint"):
                self.good = self._state()

    def _go_back(self, error: NotFiniteError) -> None:
        if self.good is None or self.reduced < 0.5**_REDUCTIONS:
            tries = round(-math.log2(self.reduced))
            told = f", after the step size was halved {tries} times" if tries else ""
            raise NotFiniteError(f"step {self.step}{told}: {error}") from None
        when, began, half = self.step, self.began, self.reduced / 2
        notes = list(self.notes)
        self.load_state_dict(self.good)
        self.began, self.reduced = began, half
        self._schedule()
        text = f"Step {when}: numbers were not finite; went on from step {self.step} with 1/"
        self.notes[:] = [*notes, f"{text}{round(1 / half)} of the step size."]
        self.good["reduced"], self.good["notes"] = half, list(self.notes)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds: the state, and what others need to know of it."""
        rest = self.batches.remaining()
        return {
            "settings": json.loads(json.dumps(asdict(self.settings))),
            "data": self.data,
            "rest": None if rest is None else as_bits(self.opened.train.rows[rest]),
            **self._state(),
        }

    def _state(self) -> dict[str, Any]:
        """Everything this worker needs to go on, as copies."""
        return {
            "coda": self.coda.state_dict(),
            "batches": self.batches.state_dict(),
            "window": None if self.window is None else self.window.state_dict(),
            "selection": self.selection.state_dict(),
            "records": [asdict(record) for record in self.records],
            "notes": list(self.notes),
            "seconds": time.perf_counter() - self.began,
            "before": dict(self.before),
            "times": dict(self.group.times()),
            **{name: getattr(self, name) for name in _STATE},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the worker did that gave this state."""
        self.coda.load_state_dict(state["coda"])
        self._load_common(state)
        self.batches.load_state_dict(state["batches"])

    def _load_common(self, state: dict[str, Any]) -> None:
        if self.window is not None:
            self.window.load_state_dict(state["window"])
        self.selection.load_state_dict(state["selection"])
        self.records[:] = [Record(**plain) for plain in state["records"]]
        self.notes[:] = state["notes"]
        self.began = time.perf_counter() - state["seconds"]
        self.before = dict(state["before"])
        self.group.times().update(state["times"])
        for name in _STATE:
            setattr(self, name, state[name])
        self.grants = self.coda.averager.grants
        self._schedule()

    def _schedule(self) -> None:
        """Give the step size the value of this step."""
        scheduler = self.scheduler
        scheduler.last_epoch, scheduler._step_count = self.step, self.step + 1
        factors = zip(self.opt.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        for group, lr, factor in factors:
            group["lr"] = lr * factor(self.step)

    def go_on_with(self, found: Found) -> None:
        """Take over what was found, if it is of this run; an error on one worker is one on all."""
        if found.exact:
            together(self.group, lambda: self._load(found), "checkpoint")
            return
        with usable(found):
            state, rest = merged(found, self.group), rest_of_all(found, self.group)
        together(self.group, lambda: self._begin_with(found, state, rest), "checkpoint")
        self.coda.averager.same_everywhere()
        seed_everything(self.settings.seed, self.group.rank, self.step)
        text = (
            f"Step {self.step}: went on with {_workers(self.group.size)} in place of {found.size}"
        )
        if found.missing:
            text += f", without the state of {len(found.missing)} of them"
        self.notes.append(f"{text}.")

    def _load(self, found: Found) -> None:
        with usable(found):
            self._check(found.base)
            self.load_state_dict(found.base)

    def _check(self, state: dict[str, Any]) -> None:
        """Raise if something is missing, rather than go on with a default."""
        mine = self._state()
        check_shape({name: state[name] for name in mine}, mine)
        if state["coda"]["stage"] is not None:
            check_shape(state["coda"]["stage"], asdict(self.plan.stages[0]))
        for record in state["records"]:
            check_shape(record, dict.fromkeys(f.name for f in fields(Record)))

    def _begin_with(self, found: Found, state: dict[str, Any], rest: Tensor | None) -> None:
        with usable(found):
            self._check(state)
            if state["coda"]["stage"] is not None:  # as it is planned for so many workers
                stage = self.plan.stages[state["coda"]["stages_done"]]
                state["coda"]["stage"] = asdict(stage)
            self.coda.load_state_dict(state["coda"])
            self._load_common(state)
            if rest is not None:
                mine = torch.isin(self.opened.train.rows, rest).nonzero().flatten()
                self.batches.begin_with(state["batches"]["epoch"], mine)

    def _spent(self) -> dict[str, float]:
        """The ledger's totals, with the seconds since training began."""
        spent = self.group.ledger.record()
        for name in ("computing", "communicating", "waiting"):
            spent[name] -= self.before[name]
        if self.group.size == 1:
            spent["computing"] = time.perf_counter() - self.began
        return spent | {"bytes_sent": training_bytes(self.group)}

    def _calibration(self) -> Calibration:
        if self.selection.scores is None or self.settings.data.watch == "test":
            return Calibration()
        found = calibrate(self.selection.scores, self.watch.labels)
        if found == Calibration():
            self.notes.append(
                "Scores do not rise with the share of positives on the validation set."
            )
        return found


def training_bytes(group: Group) -> int:
    """Bytes that a worker sent in order to train, without looks and checkpoints."""
    tallies = group.ledger.tallies
    return sum(tally.sent for kind, tally in tallies.items() if kind not in _NOT_TRAINING)


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
