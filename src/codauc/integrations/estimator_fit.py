"""An estimator's parameters as the settings of a run, and one worker's part of fitting it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from codauc._internal.checks import known_arguments, listed
from codauc.data import Encoder
from codauc.data.data_settings import DataSettings
from codauc.data.dataset import DataSet, Part
from codauc.data.splits import Split
from codauc.integrations.estimator_inputs import Array, as_names, read_rows
from codauc.metrics.calibration import Calibration, calibrate
from codauc.metrics.evaluation import logits_of
from codauc.runs.settings import (
    CommunicationSettings,
    ModelSettings,
    RecipeSettings,
    RunSettings,
)
from codauc.training.build import resolve_settings
from codauc.training.callbacks import Callback, ProgressBar
from codauc.training.loop import fit
from codauc.training.validation import gathered
from codauc.workers.group import Group
from codauc.workers.launcher import launch

ModuleMaker = Callable[[], nn.Module]

_LEAST = 2  # validation samples of a class, with fewer there is no validation
_RECIPE = (  # parameters that are settings of the recipe
    *("optimizer", "lr", "gamma", "weight_decay", "batch_size", "steps", "stages", "balance"),
    "select",
)


def run_settings(estimator: Any, seed: int) -> RunSettings:
    """The settings that an estimator's parameters stand for."""
    e = estimator
    model = ModelSettings()
    if isinstance(e.model, str):
        model = ModelSettings(e.model, dict(e.model_arguments or {}))
    return RunSettings(
        DataSettings(
            validation_fraction=e.validation_fraction,
            test_fraction=0.0,
            categories=as_names(e.categories),
            nan="missing",
        ),
        model,
        known_arguments(RecipeSettings)(
            name=e.recipe,
            # scikit-learn's own warm_start is a bool, and its tools may set it to False
            warm_start=0.0 if e.warm_start is False else e.warm_start,
            **{name: getattr(e, name) for name in _RECIPE},
            **_further(e),
        ),
        CommunicationSettings(e.workers, e.simulate, e.sync_every),
        seed=seed,
        device="cpu",
    )


def _further(estimator: Any) -> dict[str, Any]:
    """`recipe_arguments`, none of which may be a parameter of its own."""
    given = estimator.recipe_arguments or {}
    if not isinstance(given, dict):
        raise ValueError(f"recipe_arguments={given!r}: expected a dict of names and values.")
    twice = sorted(set(given) & set(estimator.get_params(deep=False)))
    if twice:
        raise ValueError(
            f"recipe_arguments has {listed(twice)}: expected names that are no parameters of "
            "AUCClassifier; give these directly."
        )
    return dict(given)


def module_maker(estimator: Any) -> ModuleMaker | None:
    """What makes the network, unless it goes by a name."""
    if isinstance(estimator.model, str):
        return None
    if isinstance(estimator.model, nn.Module):
        if estimator.model_arguments:
            raise ValueError(
                "model_arguments with a model that is already made: expected none; give its "
                "class as model, or leave them out."
            )
        return partial(copy.deepcopy, estimator.model)
    return partial(_made, estimator.model, estimator.model_arguments or {})


def _made(maker: Any, arguments: dict[str, Any]) -> nn.Module:
    if not callable(maker):
        raise ValueError(
            f"model={maker!r}: expected a name, an import path, an nn.Module, or a class or "
            'function that makes one; use "auto" if in doubt.'
        )
    model = maker(**arguments)
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model={maker!r} returned {type(model).__name__}: expected a torch.nn.Module; give a "
            "class or function that makes one."
        )
    return model


def validation_split(estimator: Any, labels: Array, seed: int) -> Split | None:
    """How validation rows are set aside; None where there are too few."""
    if not estimator.validation_fraction:
        return None
    split, positive = Split(0.0, estimator.validation_fraction, seed), torch.from_numpy(labels == 1)
    try:
        rows = split.rows(positive, "validation")
    except ValueError:  # a class of one sample
        return None
    ups = int(positive[rows].sum())
    enough = min(ups, len(rows) - ups) >= _LEAST and len(rows) >= estimator.workers
    return split if enough else None


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


def fit_worker(
    group: Group, job: FitJob
) -> tuple[dict[str, Tensor], ModelSettings, dict[str, Any]]:
    """One worker's part of `fit`: the weights, the network, and the estimator's attributes."""
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
    weights = {name: t.detach().cpu().clone() for name, t in trained.model.state_dict().items()}
    attributes = {
        "encoder_": encoder,
        "calibration_": calibration,
        "history_": [asdict(record) for record in trained.records],
        "n_iter_": trained.steps,
        "best_step_": trained.step,
        "validation_auc_": trained.validation_auc,
    }
    return weights, settings.model, attributes


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
