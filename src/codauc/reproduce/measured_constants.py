"""The constants behind Table 1, as measured on a study's own network and data."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from codauc._internal.files import read_text, whole_file
from codauc.algorithm import theory
from codauc.data.opening import open_data
from codauc.reproduce.study import Study, StudyPoint, Tuned
from codauc.runs.settings import RunSettings
from codauc.training.build import resolve_settings
from codauc.training.run_progress import RunProgress
from codauc.workers.group import Group
from codauc.workers.launcher import launch

POINTS = tuple(StudyPoint(k, i) for k in (4, 16) for i in (8, 64))
SHARE = 4  # the runs that measure have a quarter of the steps
_ROUNDS = 16  # of a stage, that are measured
_SINGLE = 8  # samples whose scores' gradients are measured, each time


@dataclass(frozen=True)
class StageConstants:
    """What was measured in a stage; see `docs/notation.md` for the letters.

    `drift` is the root mean square of |v_bar - v^k| after I-1 steps apart. `variance` and
    `dual_variance` are those of the batches' gradients in the weights and in alpha, at the same
    point for all workers; `gradient` is the largest norm of the former. `score` is the largest norm
    of the gradient of a single sample's score, which bounds G_h from below.
    """

    workers: int
    sync_every: int
    stage: int
    lr: float
    drift: float
    variance: float
    dual_variance: float
    gradient: float
    score: float
    pos_ratio: float

    @property
    def bound(self) -> float:
        """Lemma 6's 2 eta I B_v, with the largest gradient in the place of B_v."""
        return 2 * self.lr * (self.sync_every - 1) * self.gradient

    @property
    def printed_bound(self) -> float:
        """The same with the theory's B_v, of G_h."""
        found = theory.constants(self.pos_ratio, max(self.score, 1e-12), 0.0)
        return 2 * self.lr * (self.sync_every - 1) * found.B_v

    @property
    def theorem(self) -> float:
        """Theorem 1's I: max(1, 1/sqrt(K eta))."""
        return max(1.0, 1 / math.sqrt(self.workers * self.lr))

    @property
    def balance(self) -> float:
        """The I at which the square of the drift is eta sigma^2/K, with what was measured.

        Theorem 1 chooses I so that the two terms of its bound are of one order.
        """
        each_step = self.drift / max(1, self.sync_every - 1)
        noise = math.sqrt(self.lr * self.variance / self.workers)
        return max(1.0, noise / each_step) if each_step else math.inf


def measure_once(study: Study, tuned: Tuned, point: StudyPoint, path: Path) -> None:
    """Measure, and write what was found to `path`, unless it is there."""
    if path.exists():
        return
    short = tuned._replace(steps=max(2 * point.sync_every, tuned.steps // SHARE))
    found = measured(study.settings(point, short, 0))
    with whole_file(path) as partial:
        partial.write_text(json.dumps([asdict(each) for each in found]), encoding="utf-8")


def read_constants(path: Path) -> list[StageConstants]:
    """What `measure_once` wrote; nothing where it did not."""
    if not path.exists():
        return []
    return [StageConstants(**each) for each in json.loads(read_text(path))]


def measured(settings: RunSettings) -> list[StageConstants]:
    """Train as the settings say, without evaluations, and measure in every stage."""

    def work(group: Group) -> list[StageConstants]:
        opened = open_data(settings.data, group, settings.seed)
        resolved = resolve_settings(settings, opened, group.size)
        watched = replace(opened, validation=None, test=None)
        progress = RunProgress(resolved, watched, group, {})
        if progress.recipe.start == "estimate":
            progress.coda.estimate(progress.batches, progress.recipe.dual_samples)
        return [_Stage(progress, number).run() for number in range(len(progress.plan.stages))]

    workers, simulate = settings.communication.size, True
    return launch(work, workers=workers, simulate=simulate, seed=settings.seed)[0]


class _Stage:
    """One worker's part of a stage."""

    def __init__(self, progress: RunProgress, number: int) -> None:
        self.progress, self.number, self.group = progress, number, progress.group
        self.stage = progress.plan.stages[number]
        self.every = int(self.stage.sync_every)
        self.skip = max(1, self.stage.steps // self.every // _ROUNDS)
        self.sums: dict[str, list[float]] = {}

    def run(self) -> StageConstants:
        opt, loss, model = self.progress.opt, self.progress.loss, self.progress.model
        for x, y in self.progress.coda.stage(self.stage, self.progress.batches):
            round_, at = divmod(opt.steps, self.every)
            opt.zero_grad()
            loss(model(x), y).backward()
            shown = round_ % self.skip == 0
            if shown and at == self.every - 1:
                self._note("drift", self._spread(self._weights()))
            before = loss.alpha.clone() if shown and at == 0 else None
            if before is not None:
                gradient = torch.cat([p.grad.flatten() for p in model.parameters()])  # type: ignore[union-attr]
                self._note("variance", self._spread(gradient, less=1))
                self._note("gradient", float(gradient.norm()))
                self._note("score", self._score(x[:_SINGLE]))
            opt.step()
            if before is not None and self.every > 1:
                change = (loss.alpha - before).flatten() / self.stage.lr
                self._note("dual_variance", self._spread(change, less=1))
        return self._found()

    def _found(self) -> StageConstants:
        def mean(name: str) -> float:
            values = self.sums.get(name, [0.0])
            return sum(values) / len(values)

        largest = torch.tensor([max(self.sums[name]) for name in ("gradient", "score")])
        gradient, score = self.group.gather(largest, "constants").reshape(-1, 2).amax(0).tolist()
        return StageConstants(
            workers=self.group.size,
            sync_every=self.every,
            stage=self.number + 1,
            lr=float(self.stage.lr),
            drift=math.sqrt(mean("drift")),
            variance=mean("variance"),
            dual_variance=mean("dual_variance"),
            gradient=gradient,
            score=score,
            pos_ratio=self.progress.opened.train.pos_ratio,
        )

    def _note(self, name: str, value: float) -> None:
        self.sums.setdefault(name, []).append(value)

    def _weights(self) -> Tensor:
        own = (self.progress.loss.a, self.progress.loss.b)
        parts = [*self.progress.model.parameters(), *own]
        return torch.cat([part.detach().flatten() for part in parts])

    def _spread(self, vector: Tensor, less: int = 0) -> float:
        """The mean over workers of the squared distance from their mean; over K - `less`."""
        mean = vector.clone()
        self.group.sum_(mean, "constants")
        mean /= self.group.size
        squared = (vector - mean).square().sum().reshape(1)
        self.group.sum_(squared, "constants")
        return float(squared) / (self.group.size - less)

    def _score(self, x: Tensor) -> float:
        """The largest norm of the gradient of a sample's score."""
        model, largest = self.progress.model, 0.0
        was: Any = model.training
        model.eval()  # BatchNorm has no statistics of one sample
        for sample in x:
            score = torch.sigmoid(model(sample.unsqueeze(0))).sum()
            parts = torch.autograd.grad(score, list(model.parameters()))
            largest = max(largest, float(torch.cat([p.flatten() for p in parts]).norm()))
        model.train(was)
        return largest
