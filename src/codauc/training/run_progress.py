"""The state of a run on one worker while it trains: taken, saved, and loaded again."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from codauc._internal.random_streams import seed_everything
from codauc.algorithm.objective import pairwise_loss
from codauc.algorithm.rounds import NotFiniteError
from codauc.data.dataset import DataSet
from codauc.runs.checkpoints import Found
from codauc.runs.directory import Record
from codauc.runs.settings import RunSettings
from codauc.training.build import make_batches, make_engine
from codauc.training.crossed import crossed
from codauc.training.recipe import factor_of, plan
from codauc.training.run_state import (
    JournalState,
    RoundCount,
    RunPosition,
    RunState,
    SavedRun,
    as_bits,
    check_like,
    packed,
    unpacked,
    usable,
)
from codauc.training.validation import Validation, ValidationResult
from codauc.workers.agreement import together
from codauc.workers.group import Group

TIMES = ("computing", "communicating", "waiting")  # of the ledger
_NOT_TRAINING = ("evaluate", "checkpoint")  # kinds of communication
_REDUCTIONS = 8  # of the step size, after which a run is given up


class Journal:
    """Records and notes of a run, and its time and communication since training began."""

    def __init__(self, group: Group, notes: list[str]) -> None:
        self.group, self.notes = group, notes
        self.records: list[Record] = []
        self.drifts: list[float] = []  # of this worker, at the evaluations
        self.began = time.perf_counter()
        self._before = group.ledger.record()  # reading the data is not training

    @property
    def seconds(self) -> float:
        """Seconds of training, those before it was resumed included."""
        return time.perf_counter() - self.began

    def spent(self) -> dict[str, float]:
        """The ledger's totals since training began, with the bytes sent in order to train."""
        spent = self.group.ledger.record()
        for name in TIMES:
            spent[name] -= self._before[name]
        if self.group.size == 1:
            spent["computing"] = self.seconds
        tallies = self.group.ledger.tallies.items()
        sent = sum(tally.sent for kind, tally in tallies if kind not in _NOT_TRAINING)
        return spent | {"bytes_sent": sent}

    def state(self) -> JournalState:
        """The journal as copies."""
        return JournalState(
            list(self.records),
            list(self.notes),
            self.seconds,
            dict(self._before),
            dict(self.group.times()),
            list(self.drifts),
        )

    def load(self, state: JournalState) -> None:
        """Continue a journal that was saved."""
        self.records[:] = state.records
        self.notes[:] = state.notes
        self.began = time.perf_counter() - state.seconds
        self._before = dict(state.before)
        self.group.times().update(state.times)
        self.drifts[:] = state.drifts


class RunProgress:
    """The parts that a worker trains with, and everything of a run that changes meanwhile.

    `data` identifies the data; `model` replaces the network of the settings.
    """

    def __init__(
        self,
        settings: RunSettings,
        opened: DataSet,
        group: Group,
        data: Mapping[str, Any],
        model: nn.Module | None = None,
    ) -> None:
        if settings.recipe.crossed:
            opened = crossed(opened, settings, group)
        self.settings, self.opened, self.group, self.data = settings, opened, group, data
        self.recipe, train, notes = settings.recipe, opened.train, list(opened.hints)
        if settings.data.weight is not None:
            notes.append(
                "AUC, its interval and average precision are weighted by "
                f"{settings.data.weight!r}; the curves of the report count each row once."
            )
        self.plan = plan(self.recipe, settings.communication)
        self.batches = make_batches(settings, train, group, notes)
        ratio = self.batches.sampled_ratio or train.pos_ratio
        self.coda = make_engine(settings, train, group, ratio, model)
        if self.coda.dual == "pooled" != settings.communication.dual:
            notes.append("Labels differ between workers: alpha is estimated from the pooled means.")
        self.opt, self.model, self.loss = self.coda.opt, self.coda.opt.model, self.coda.opt.loss
        self.position, self.rounds = RunPosition(), RoundCount()
        self.heard = 0  # rounds that carried requests, up to the last one that was noticed
        self.reduced = 1.0  # the step size's factor after numbers that were not finite
        self._factor = factor_of(self.recipe, self.plan.steps)
        self._base_lr = [group["lr"] for group in self.opt.param_groups]
        self.set_step_size()
        self.good: RunState | None = None
        self.validation = Validation(self.opt, opened.watched, group, settings)
        self.journal = Journal(group, notes)

    def set_step_size(self) -> None:
        """Give the optimizer the step size of the step at which the run is."""
        factor = self.reduced * self._factor(self.position.step)
        for group, lr in zip(self.opt.param_groups, self._base_lr, strict=True):
            group["lr"] = lr * factor

    def record(self, result: ValidationResult, stage: int, *, stage_end: bool) -> Record:
        """The record of an evaluation; `stage` 0 is the warm start."""
        h = torch.from_numpy(result.scores).sigmoid()
        y = torch.from_numpy(self.validation.labels)
        ledger, loss, opt = self.journal.spent(), self.loss, self.opt
        record = Record(
            step=self.position.step,
            stage=stage,
            rounds=int(ledger["rounds"]),
            bytes=int(ledger["bytes_sent"]),
            seconds=self.journal.seconds,
            lr=opt.stage_lr * opt.param_groups[0]["lr"] / opt.base_lr,
            loss=float(pairwise_loss(h.double(), y)),
            auc=result.auc.value,
            auc_low=result.auc.low,
            auc_high=result.auc.high,
            positive_mean=float(h[y].mean()),
            negative_mean=float(h[~y].mean()),
            **{name: float(getattr(loss, name).mean()) for name in ("a", "b", "alpha")},
            drift=result.drift,
            **{name: ledger[name] for name in TIMES},
            stage_end=stage_end,
            workers=self.group.size,
        )
        self.journal.records.append(record)
        return record

    def state(self) -> RunState:
        """Everything this worker needs to continue, as copies."""
        window = self.validation.window
        return RunState(
            position=replace(self.position),
            coda=self.coda.state_dict(),
            batches=self.batches.state_dict(),
            window=None if window is None else window.state(),
            choice=self.validation.choice.state,
            journal=self.journal.state(),
            rounds=replace(self.rounds),
            reduced=self.reduced,
        )

    def pack(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        rest = self.batches.remaining()
        saved = SavedRun(
            settings=json.loads(json.dumps(asdict(self.settings))),
            data=dict(self.data),
            rest=None if rest is None else as_bits(self.opened.train.rows[rest]),
            run=self.state(),
        )
        return dict(packed(saved))

    def load(self, state: RunState) -> None:
        """Continue as the worker did that gave this state."""
        self.coda.load_state_dict(state.coda)
        self._load_position(state)
        self.batches.load_state_dict(state.batches)

    def _load_position(self, state: RunState) -> None:
        """Take over everything but the engine and the batches."""
        if self.validation.window is not None:
            assert state.window is not None
            self.validation.window.load(state.window)
        self.validation.choice.load(state.choice)
        self.journal.load(state.journal)
        self.rounds, self.heard = replace(state.rounds), self.coda.requests_heard
        self.position, self.reduced = replace(state.position), state.reduced
        self.set_step_size()

    def remember(self) -> None:
        """The state as it is now is good, and is kept in memory if the settings say so."""
        if self.settings.safety.not_finite == "reduce":
            self.good = self.state()

    def go_back(self, error: NotFiniteError) -> None:
        """Return to the last good state with half the step size.

        Raise if there is none, or after too many attempts.
        """
        step, reduced, journal = self.position.step, self.reduced, self.journal
        if self.good is None or reduced < 0.5**_REDUCTIONS:
            times = round(-math.log2(reduced))
            after = f", after the step size was halved {times} times" if times else ""
            raise NotFiniteError(f"step {step}{after}: {error}") from None
        began, notes = journal.began, list(journal.notes)
        self.load(self.good)
        journal.began, self.reduced = began, reduced / 2
        self.set_step_size()
        journal.notes[:] = [
            *notes,
            f"Step {step}: numbers were not finite; resumed from step {self.position.step} with 1/"
            f"{round(2 / reduced)} of the step size.",
        ]
        self.remember()

    def resume(self, found: Found) -> None:
        """Continue from what was found, if it is of this run; an error on one worker is on all."""
        group, rest = self.group, None
        base, *others = together(group, lambda: _saved(found), "checkpoint")
        if not found.exact:
            with usable(found):
                count = found.size - len(found.missing)
                base.run.merge([other.run for other in others], count, group)
                rest = base.rest_of_all(others, group)
        together(group, lambda: self._begin_with(found, base.run, rest), "checkpoint")
        if not found.exact:
            self._after_merging(found)

    def _after_merging(self, found: Found) -> None:
        """The states of other workers have become one, which is given to each."""
        group = self.group
        self.coda.same_everywhere()
        seed_everything(self.settings.seed, group.rank, self.position.step)
        self.journal.drifts.clear()  # of a worker that held other sites
        workers = f"{group.size} worker{'s' * (group.size != 1)}"
        text = f"Step {self.position.step}: resumed with {workers} in place of {found.size}"
        if found.missing:
            text += f", without the state of {len(found.missing)} of them"
        self.journal.notes.append(f"{text}.")

    def _begin_with(self, found: Found, state: RunState, rest: Tensor | None) -> None:
        """Load a state, if nothing is missing; the rows in `rest` are what is left of its epoch."""
        with usable(found):
            check_like(packed(state), packed(self.state()), "run")
            if state.coda["stage"] is not None:
                check_like(state.coda["stage"], asdict(self.plan.stages[0]), "stage")
            if found.exact:
                self.load(state)
                return
            if state.coda["stage"] is not None:  # as it is planned for this number of workers
                state.coda["stage"] = asdict(self.plan.stages[state.coda["stages_done"]])
            self.coda.load_state_dict(state.coda)
            self._load_position(state)
            if rest is not None:
                mine = torch.isin(self.opened.train.rows, rest).nonzero().flatten()
                self.batches.begin_with(state.batches["epoch"], mine)


def _saved(found: Found) -> list[SavedRun]:
    """The state that all workers have, and then those that this one has read."""
    with usable(found):
        return [unpacked(SavedRun, plain) for plain in (found.base, *found.states.values())]
