"""The training loop of one worker: opened data and resolved settings to a trained model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from codauc.algorithm.rounds import NotFiniteError
from codauc.data.dataset import DataSet
from codauc.metrics.calibration import Calibration, average_precision, calibrate
from codauc.metrics.thresholds import Threshold, UnreachableError, choose_threshold
from codauc.metrics.weighted_auc import weighted_auc_interval
from codauc.runs.directory import Record
from codauc.runs.settings import RecipeSettings, RunSettings
from codauc.training.callbacks import Callback
from codauc.training.checkpoint_policy import CheckpointPolicy, RunControl
from codauc.training.confident_mistakes import ScoredRows
from codauc.training.run_progress import TIMES, RunProgress
from codauc.training.run_state import RunPosition
from codauc.training.shared_scores import shared_scores
from codauc.training.site_results import sites_at_end
from codauc.training.threads import own_threads
from codauc.training.validation import scores_of
from codauc.version import __version__
from codauc.workers.group import Group, GroupError

Objective = Callable[..., Tensor]

NO_THRESHOLD = "No threshold"  # how a note about it begins
_ENDING = ("steady", "blend")  # choices of a model with which a run ends early
_CHECK_EVERY = 16  # steps between two checks for NaN, of a worker that has no rounds


@dataclass(frozen=True)
class Trained:
    """A run's model, the same on every worker, and how it was trained."""

    model: nn.Module
    settings: RunSettings
    opened: DataSet  # as it was trained on
    calibration: Calibration
    threshold: Threshold | None
    validation: tuple[Any, Any] | None  # log-odds and labels of the validation set
    step: int  # at which the model was what it is
    steps: int
    planned: int  # steps, if it had not been interrupted
    validation_auc: float | None
    records: list[Record]
    seconds: float
    interrupted: bool
    ledger: dict[str, float]
    notes: list[str]
    periods: list[dict[str, float]]  # where they set themselves: each change
    drifts: list[float]  # of this worker, at the evaluations

    def scores_of_test_set(self, opened: DataSet, group: Group) -> ScoredRows | None:
        """The test set's log-odds, labels and rows, in the order of the source, on every worker.

        Where a sample has no finite score there is a note in place of test results.
        """
        part = opened.test
        if part is None:
            return None
        assert part.y is not None
        own = scores_of(self.model, part)
        shared = shared_scores(part, group, self.settings.data)
        scores = shared.shown(shared.kept(own))
        bad = ~np.isfinite(scores)
        if bad.any():
            first = f", the first is row {int(shared.rows[bad].min())}" if len(shared.rows) else ""
            self.notes.append(
                f"No test AUC: {int(bad.sum())} of {len(bad)} test samples have no finite score"
                f"{first}."
            )
            return None
        more = (shared.groups, shared.weights, own, shared.bound)
        return ScoredRows(self.calibration.log_odds(scores), shared.labels, shared.rows, *more)

    def sites(self, opened: DataSet, test: ScoredRows | None, group: Group) -> list[dict[str, Any]]:
        """What each site brought, and how well the model does on its test rows."""
        drift = float(np.sqrt(np.mean(np.square(self.drifts)))) if self.drifts else None
        scores = None if test is None else test.own
        least = self.settings.data.least_samples or 0
        return [asdict(site) for site in sites_at_end(opened, scores, drift, group, least)]

    def summary(self, test: ScoredRows | None) -> dict[str, Any]:
        """What summary.json holds; `test` is what `scores_of_test_set` gave."""
        opened, settings = self.opened, self.settings
        train = opened.train
        held = None if train.folds is not None else opened.validation
        auc = None
        if test is not None:
            auc = weighted_auc_interval(test.scores, test.labels, test.weights, test.groups)
        off = 0.0 if test is None or test.bound is None else test.bound  # either way
        return {
            "test_auc": None if auc is None else auc.value,
            "auc_low": None if auc is None else max(0.0, auc.low - off),
            "auc_high": None if auc is None else min(1.0, auc.high + off),
            **({} if test is None or test.bound is None else {"auc_bound": test.bound}),
            "average_precision": None
            if test is None
            else average_precision(test.scores, test.labels, test.weights),
            "validation_auc": self.validation_auc,
            "steps": self.steps,
            "best_step": self.step,
            "rounds": int(self.ledger["rounds"]),
            "bytes_per_worker": int(self.ledger["bytes_sent"]),
            "seconds": self.seconds,
            **{name: self.ledger[name] for name in TIMES},
            "pos_ratio": train.pos_ratio,
            "train_samples": train.samples,
            "validation_samples": 0 if held is None else held.samples,
            "crossed": train.folds is not None,
            "test_samples": 0 if opened.test is None else opened.test.samples,
            "test_positives": 0 if opened.test is None else opened.test.positives,
            "workers": [count._asdict() for count in train.counts],
            "data": settings.data.source,
            "target": settings.data.target,
            "positive": list(opened.positive),
            "negative": list(opened.negative[:20]),
            "model": {
                "name": settings.model.name,
                "parameters": sum(p.numel() for p in self.model.parameters()),
            },
            "shape": list(opened.shape),
            "calibration": self.calibration._asdict(),
            "threshold": None if self.threshold is None else self.threshold.to_dict(),
            "recipe": settings.recipe.name,
            "sync_every": settings.communication.sync_every,
            **({"periods": self.periods} if self.periods else {}),
            "notes": self.notes,
            "finished": not self.interrupted,
            "interrupted": self.interrupted,
            "version": __version__,
        }


def fit(
    settings: RunSettings,
    opened: DataSet,
    group: Group,
    callbacks: Sequence[Callback] = (),
    *,
    model: nn.Module | None = None,
    control: RunControl | None = None,
) -> Trained:
    """Train as resolved `settings` say; all workers return the same model.

    Args:
        settings: with everything decided, see `codauc.training.build.resolve_settings`.
        opened: this worker's data.
        group: the workers.
        callbacks: called on worker 0.
        model: replaces the network that the settings name.
        control: requests, checkpoints and what to resume from.
    """
    assert not isinstance(settings.recipe, RecipeSettings), "resolve_settings(...) comes first"
    control = control or RunControl()
    progress = RunProgress(settings, opened, group, control.data, model)
    if control.found is not None:
        progress.resume(control.found)
    loop = TrainingLoop(progress, callbacks if group.rank == 0 else (), control)
    clock = control.clock
    with own_threads(settings, opened), clock.measuring(progress.coda) if clock else nullcontext():
        return loop.run()


class TrainingLoop:
    """One worker's part of one run: Algorithm 1 of the paper, stage by stage."""

    def __init__(
        self, progress: RunProgress, callbacks: Sequence[Callback], control: RunControl
    ) -> None:
        self.progress, self.callbacks, self.clock = progress, callbacks, control.clock
        self.settings, self.recipe, self.plan = progress.settings, progress.recipe, progress.plan
        self.coda, self.opt, self.device = progress.coda, progress.opt, progress.loss.a.device
        self.validation, self.section = progress.validation, control.section
        self.policy = CheckpointPolicy(progress, control)
        self.alone = self.progress.group.size == 1
        self.same_steps = self.settings.communication.averages == "gradients"

    @property
    def at(self) -> RunPosition:
        """Where the run is."""
        return self.progress.position

    def run(self) -> Trained:
        """All stages; then the model that is kept."""
        self._call(Callback.on_start, self.settings, self.plan.steps)
        if self.recipe.start == "estimate" and self.coda.current is None and not self.at.step:
            self.coda.estimate(self.progress.batches, self.recipe.dual_samples)
        if self.recipe.linear_start and not self.at.step and not self.progress.journal.records:
            self._evaluate(0)  # logistic regression
        self._remember()
        interrupted = False
        while self.coda.stages_done < len(self.plan.stages) and not interrupted:
            number = self.coda.stages_done
            try:
                interrupted = self._stage(number)
                self._evaluate(number, stage_end=True)
            except NotFiniteError as error:
                self.progress.go_back(error)
                continue
            except GroupError:
                self.policy.leave_after_failed_round(self.at.step, resumable=self._round_missing())
                raise
            self.at.evaluated = self.at.step
            self._remember()
            whole = self.opt.steps == self.plan.stages[number].steps
            if whole and self.policy.notice_round(self.at.step):
                self.policy.after_step(self.at.step, fresh=True)
        return self._trained(interrupted=interrupted)

    def _stage(self, number: int) -> bool:
        """The steps that a stage still has; returns whether the run was asked to stop in it."""
        stage, loss = self.plan.stages[number], self.progress.loss
        objective = loss.cross_entropy if number < self.plan.warm else loss
        with self.section("stage"):
            source = self.progress.batches
            batches = self.coda.stage(stage, self.clock.reading(source) if self.clock else source)
            if self.at.owed:
                self.coda.make_up()
                self.at.owed = False
                self._after_step(number)
        while self.opt.steps < stage.steps and not self._ends_here(number):
            if self.coda.away:  # a site that stands still until the next round
                self._count_step(self.coda.skip)
            else:
                batch = next(batches)
                self._local_step(objective, *(part.to(self.device) for part in batch))
            self._after_step(number)
            if self.clock is not None:
                self.clock.on_step()
        with self.section("stage"):
            if self.opt.steps < stage.steps:
                self.coda.end(self.progress.batches)
            else:
                next(batches, None)  # the stage ends: the mean of its iterates, and a new alpha
        return self.coda.asked("stop")

    def _ends_here(self, number: int) -> bool:
        """Whether a stage ends before its last step: on request, or since models get no better."""
        last = number + 1 == len(self.plan.stages)
        flat = self.recipe.select in _ENDING and self.at.rejected >= self.recipe.patience
        return self.coda.asked("stop") or (last and flat)

    def _local_step(self, objective: Objective, x: Tensor, *labels_and_weights: Tensor) -> None:
        """One step on a batch; every `sync_every`-th includes a communication round."""
        self.opt.zero_grad()
        with self.section("forward"):
            scores = self.progress.model(x)
        with self.section("loss"):
            loss = objective(scores, *labels_and_weights)
        with self.section("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        self.coda.count_loss(loss)
        if self.same_steps:
            self.coda.average_gradients()
        self._count_step(self.opt.step)

    def _count_step(self, step: Callable[[], Any]) -> None:
        before = self.opt.steps
        try:
            with self.section("step"):
                step()
        finally:  # the step counts, even if the round in it fails
            self.at.owed = self.opt.steps > before
            self.at.step += self.opt.steps - before
        self.at.owed = False
        self.progress.set_step_size()

    def _after_step(self, number: int) -> None:
        """What follows a step: callbacks, requests, an evaluation, a checkpoint."""
        stage, step = self.plan.stages[number], self.at.step
        self._call(Callback.on_step, step, self._label(number), self.progress.group.ledger.rounds)
        self.policy.forward_requests()
        fresh = self.policy.notice_round(step)
        inside, alike = self.opt.steps < stage.steps, self._alike(number)
        if self.alone and step % _CHECK_EVERY == 0:
            self.coda.check_finite()
        if alike and self.validation.window is not None:
            with self.section("window"):
                self.validation.window.add()
        if alike and inside and step - self.at.evaluated >= self._evaluate_every(number):
            self.at.evaluated = step
            if self.alone:
                self.coda.check_finite()
            self._evaluate(number)
            self._remember()
        if inside:
            self.policy.after_step(step, fresh=fresh)

    def _label(self, number: int) -> int:
        """The number of a stage for people: 0 is the warm start."""
        return max(0, number + 1 - self.plan.warm)

    def _alike(self, number: int) -> bool:
        """Whether all workers have the same model now: right after a round that took effect."""
        inside = self.opt.steps < self.plan.stages[number].steps
        return self.alone or self.same_steps or (inside and self.coda.alike)

    def _evaluate_every(self, number: int) -> int:
        """Steps between two evaluations: a multiple of the steps between two rounds."""
        every = self.plan.stages[number].sync_every
        period = 1 if self.same_steps or isinstance(every, str) else every
        return math.ceil(self.plan.steps / self.recipe.evaluations / period) * period

    def _evaluate(self, number: int, *, stage_end: bool = False) -> None:
        """Evaluate on the validation set, and call the callbacks."""
        if self.validation.part is None:
            return
        with self.section("evaluation"):
            drift = self.coda.drift if self.at.step else 0.0
            self.progress.journal.drifts += [drift] if drift and self.at.step else []
            with self.validation.evaluated(self.at.step, drift) as result:
                self.at.rejected = 0 if result.kept else self.at.rejected + 1
                if result.kept:
                    self._call(Callback.on_keep, self.progress.model, self.at.step)
            record = self.progress.record(result, self._label(number), stage_end=stage_end)
            self._call(Callback.on_record, record)

    def _call(self, method: Callable[..., None], *arguments: Any) -> None:
        """Call `method`, one of `Callback`, of each callback."""
        with self.section("files"):
            for callback in self.callbacks:
                getattr(callback, method.__name__)(*arguments)

    def _remember(self) -> None:
        with self.section("checkpoint"):
            self.progress.remember()

    def _round_missing(self) -> bool:
        """Whether a round is due at this step, and can be repeated from the state as it is."""
        current = self.coda.current
        at_end = current is not None and self.opt.steps == current.steps and not self.coda.closed
        return (self.at.owed or at_end) and not (self.coda.delay or self.same_steps)

    def _trained(self, *, interrupted: bool) -> Trained:
        choice = self.validation.choice
        self.validation.restore_choice()
        scores, validation = self.validation.chosen_scores(), None
        calibration = self._calibration(scores)
        if scores is not None and self.settings.data.watch != "test":
            validation = calibration.log_odds(scores), self.validation.labels
        return Trained(
            model=self.progress.model,
            settings=self.settings,
            opened=self.progress.opened,
            calibration=calibration,
            threshold=self._threshold(validation),
            validation=validation,
            step=self.at.step if choice.state.weights is None else choice.state.step,
            steps=self.at.step,
            planned=self.plan.steps,
            validation_auc=choice.state.auc,
            records=self.progress.journal.records,
            seconds=self.progress.journal.seconds,
            interrupted=interrupted,
            ledger=self.progress.journal.spent(),
            notes=self.progress.journal.notes,
            periods=self.coda.period_changes(),
            drifts=list(self.progress.journal.drifts),
        )

    def _threshold(self, validation: tuple[Any, Any] | None) -> Threshold | None:
        """The threshold that was asked for; a note where none reaches it."""
        rule = self.settings.threshold
        if rule is None or validation is None:
            return None
        try:
            return choose_threshold(*validation, rule)
        except UnreachableError as error:
            self.progress.journal.notes.append(f"{NO_THRESHOLD}: {error}")
            return None

    def _calibration(self, scores: NDArray[Any] | None) -> Calibration:
        if self.settings.data.watch == "test" or scores is None:
            return Calibration()
        found = calibrate(scores, self.validation.labels, self.validation.weights)
        if found == Calibration():
            self.progress.journal.notes.append(
                "Scores do not rise with the share of positives on the validation set."
            )
        return found
