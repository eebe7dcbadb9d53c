"""One worker's part of fitting an estimator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from codauc.data import Encoder
from codauc.data.dataset import DataSet, Part
from codauc.data.splits import Split
from codauc.integrations.estimator_inputs import Array, read_rows
from codauc.integrations.estimator_settings import ModuleMaker
from codauc.metrics.calibration import Calibration, calibrate
from codauc.metrics.evaluation import logits_of
from codauc.runs.settings import ModelSettings, RunSettings
from codauc.training.build import resolve_settings
from codauc.training.callbacks import Callback, ProgressBar
from codauc.training.loop import fit
from codauc.training.validation import gathered
from codauc.workers.group import Group
from codauc.workers.launcher import launch


def with_own_randomness(function: Callable[[], Any], seed: int) -> Any:
    """Call it with random streams of its own."""
    return launch(lambda group: function(), simulate=True, seed=seed)[0]  # noqa: ARG005


@dataclass(frozen=True)
class FitJob:
    """What each worker of `fit` is given."""

    settings: RunSettings
    x: Any = field(repr=False)
    labels: Array = field(repr=False)
    split: Split | None
    maker: ModuleMaker | None
    verbose: bool


@dataclass(frozen=True)
class FitResult:
    """What comes back from a worker; it can be sent between processes."""

    weights: dict[str, Tensor]
    model: ModelSettings
    encoder: Encoder
    calibration: Calibration
    history: list[dict[str, Any]]
    step: int
    steps: int
    validation_auc: float | None


def fit_worker(group: Group, job: FitJob) -> FitResult:
    """One worker's part of `fit`."""
    data, options = job.settings.data, {"group": group, "seed": job.settings.seed}
    if job.split is not None:
        options["split"] = job.split
    table = read_rows(job.x, job.labels, **options, categories=data.categories)
    encoder, validation = table.encoder, None
    assert encoder is not None
    if job.split is not None:
        validation = read_rows(job.x, job.labels, **options, part="validation", encoder=encoder)
    opened = DataSet.of_table(table, validation)
    settings = resolve_settings(job.settings, opened, group.size)
    callbacks: list[Callback] = [ProgressBar()] if job.verbose and group.rank == 0 else []
    model = None if job.maker is None else job.maker()
    trained = fit(settings, opened, group, callbacks, model=model)
    for callback in callbacks:
        callback.on_end({})
    calibration = trained.calibration
    if validation is None:
        calibration = _own_calibration(trained.model, opened.train, group)
    return FitResult(
        {name: t.detach().cpu().clone() for name, t in trained.model.state_dict().items()},
        settings.model,
        encoder,
        calibration,
        [asdict(record) for record in trained.records],
        trained.step,
        trained.steps,
        trained.validation_auc,
    )


def _own_calibration(model: nn.Module, part: Part, group: Group) -> Calibration:
    """From the training data, for want of others."""
    assert part.y is not None
    scores = gathered(logits_of(model, part.x), group)
    return calibrate(scores, gathered(part.y.numpy().astype(np.bool_), group))


def first_encoder(x: Any, labels: Array, categories: tuple[str, ...]) -> Encoder:
    """What the columns hold, by the first rows of a stream; also if they are of one class."""
    if not 0 < labels.sum() < len(labels):
        twice = np.tile(np.arange(len(labels)), 2)
        labels = np.repeat([0, 1], len(labels))
        x = x[twice] if isinstance(x, np.ndarray) else x.iloc[twice]
    encoder = read_rows(x, labels, categories=categories).encoder
    assert encoder is not None
    return encoder
