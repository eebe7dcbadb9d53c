"""An estimator's parameters, X and y as the settings and the data of a run; a worker's part."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import (  # type: ignore[import-untyped]
    assert_all_finite,
    check_consistent_length,
)
from sklearn.utils.multiclass import check_classification_targets  # type: ignore[import-untyped]
from sklearn.utils.validation import column_or_1d  # type: ignore[import-untyped]
from torch import Tensor, nn

from codauc._internal.checks import known_arguments, listed, warn
from codauc.data.data_settings import DataSettings
from codauc.data.dataset import DataSet
from codauc.data.row_weights import checked_weights
from codauc.data.splits import Split
from codauc.integrations.estimator_rows import as_names, read_rows
from codauc.metrics.calibration import calibrate
from codauc.metrics.evaluation import logits_of
from codauc.runs.settings import (
    CommunicationSettings,
    ModelSettings,
    RecipeSettings,
    RunSettings,
)
from codauc.training.build import resolve_settings
from codauc.training.callbacks import Callback, ProgressBar
from codauc.training.checkpoint_policy import RunControl
from codauc.training.loop import NO_THRESHOLD, fit
from codauc.training.shared_scores import gathered
from codauc.training.time_budget import within_budget
from codauc.workers.group import Group
from codauc.workers.launcher import launch
from codauc.workers.signals import Requests

Array = NDArray[Any]
R = TypeVar("R")
ModuleMaker = Callable[[], nn.Module]

_LEAST = 2  # validation samples of a class, with fewer there is no validation


def run_settings(estimator: Any, seed: int) -> RunSettings:
    """The settings that an estimator's parameters stand for."""
    e = estimator
    own = {each.name for each in fields(RecipeSettings)} - {"warm_start"}
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
            **{name: value for name, value in e.get_params(deep=False).items() if name in own},
            **_further(e),
        ),
        CommunicationSettings(e.workers, e.simulate, e.sync_every),
        seed=seed,
        threshold=e.threshold,
        device=str(e.device) if isinstance(e.device, torch.device) else e.device,
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


class PerRow(NamedTuple):
    """What rows may have beside inputs and labels."""

    weights: Array | None
    groups: Array | None

    def of(self, numbers: Array, *, repeated: bool) -> PerRow:
        """The same of the rows of these numbers, without weights if these are `repeated`."""
        weights = None if self.weights is None or repeated else self.weights[numbers]
        return PerRow(weights, None if self.groups is None else self.groups[numbers])


def per_row(sample_weight: Any, groups: Any, labels: Array) -> PerRow:
    """Weights and groups, one per row; with weights both classes must keep some."""
    weights = None
    if sample_weight is not None:
        weights = checked_weights("sample_weight", sample_weight, len(labels))
        if len(np.unique(labels[weights > 0])) < 2:
            raise ValueError(
                "sample_weight leaves one class alone, the other has weight 0: expected two "
                "classes; AUC needs both."
            )
    if groups is not None:
        groups = column_or_1d(groups)
        check_consistent_length(labels, groups)
    return PerRow(weights, groups)


def validation_split(estimator: Any, labels: Array, sample: PerRow, seed: int) -> Split | None:
    """How validation rows are set aside; None where there are too few."""
    if not estimator.validation_fraction:
        return None
    split = Split(0.0, estimator.validation_fraction, seed, group=sample.groups)
    used = np.ones(len(labels), bool) if sample.weights is None else sample.weights > 0
    positive = torch.from_numpy(labels[used] == 1)
    if sample.groups is not None:
        rows = split.rows(positive, "validation", split.by[used])
        return split if len(rows) >= estimator.workers else None
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


_AGAIN = 2.0  # seconds in which a second Ctrl-C ends what calls fit, too: a search goes on to fit
_interrupted = -math.inf  # when Ctrl-C was last pressed during a fit


def _on_interrupt() -> None:
    """Ctrl-C ends one fit; a second one soon after it, perhaps in the next fit, ends everything."""
    global _interrupted
    now, before = time.monotonic(), _interrupted
    _interrupted = now
    if now - before < _AGAIN:
        raise KeyboardInterrupt


class Person(NamedTuple):
    """Who called `fit`: whether the progress is watched, and what was asked for by Ctrl-C."""

    watches: bool
    requests: Requests


def launch_until_interrupted(
    work: Callable[..., R], ways: CommunicationSettings, seed: int, *, verbose: bool
) -> list[R]:
    """`launch`, in which the first Ctrl-C ends the training with the best model so far.

    `work` is a worker's part, whose argument `person` says when to end.
    """
    requests = Requests(_on_interrupt)
    work = partial(work, person=Person(verbose, requests))
    with requests.stoppable() as ours:
        return launch(
            work,
            workers=ways.workers,
            simulate=ways.simulate,
            seed=seed,
            requests=requests if ours else None,
        )


def with_warnings(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes for the estimator; warns of an early end, and of a threshold not reached."""
    planned, unreached = attributes.pop("interrupted_of"), attributes.pop("no_threshold")
    if unreached is not None:
        warn(f"{unreached} predict gives the more probable class.")
    if planned is not None:
        auc = attributes["validation_auc_"]
        how = "no validation AUC" if auc is None else f"validation AUC {auc:.4f}"
        warn(
            f"fit was interrupted after {attributes['n_iter_']} of {planned} steps: the estimator "
            f"is fitted with the best model so far, of step {attributes['best_step_']} ({how}); "
            "call fit again to train anew, partial_fit to continue."
        )
    return attributes


def fit_worker(
    group: Group,
    *,
    settings: RunSettings,
    rows: tuple[Any, Array, Array | None],
    split: Split | None,
    maker: ModuleMaker | None,
    person: Person,
) -> tuple[dict[str, Tensor], ModelSettings, dict[str, Any]]:
    """One worker's part of `fit`: the weights, the network, and the estimator's attributes."""
    x, targets, weights = rows
    options: dict[str, Any] = {"group": group, "seed": settings.seed, "weight": weights}
    if split is not None:
        options["split"] = split
    table = read_rows(x, targets, **options, categories=settings.data.categories)
    encoder, validation = table.encoder, None
    assert encoder is not None
    assert table.y is not None
    if split is not None:
        validation = read_rows(x, targets, **options, part="validation", encoder=encoder)
    opened = DataSet.of_table(table, validation)
    settings = resolve_settings(settings, opened, group.size, own_model=maker is not None)
    callbacks: list[Callback] = [ProgressBar()] if person.watches and group.rank == 0 else []
    model = None if maker is None else maker()
    if model is None:
        settings = within_budget(settings, opened, group)
    control = RunControl(person.requests.pending)
    trained = fit(settings, opened, group, callbacks, model=model, control=control)
    for callback in callbacks:
        callback.on_end({"finished": not trained.interrupted})
    calibration = trained.calibration
    if validation is None:  # from the training data, for want of others
        scores = gathered(logits_of(trained.model, table.x), group)
        labels = gathered(table.y.numpy().astype(np.bool_), group)
        sizes = None if table.weights is None else gathered(table.weights.numpy(), group)
        calibration = calibrate(scores, labels, sizes)
    state = {name: t.detach().cpu().clone() for name, t in trained.model.state_dict().items()}
    attributes = {
        "encoder_": encoder,
        "calibration_": calibration,
        "history_": [asdict(record) for record in trained.records],
        "n_iter_": trained.steps,
        "best_step_": trained.step,
        "validation_auc_": trained.validation_auc,
        "threshold_": trained.threshold,
        "interrupted_of": trained.planned if trained.interrupted else None,
        "no_threshold": next((n for n in trained.notes if n.startswith(NO_THRESHOLD)), None),
    }
    return state, settings.model, attributes


def checked_targets(x: Any, y: Any) -> Array:
    """`y` as one label for each row of `x`."""
    if y is None:
        raise ValueError("AUCClassifier requires y to be passed, but the target y is None.")
    y = column_or_1d(y, warn=True)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    check_consistent_length(x, y)
    return np.asarray(y)


def two_classes(classes: Array) -> Array:
    """The classes, if they are two."""
    if len(classes) > 2:
        raise ValueError(
            "Only binary classification is supported. The type of the target is multiclass: got "
            f"the classes {listed(classes.tolist())}; use OneVsRestClassifier for more than two."
        )
    if len(classes) < 2:
        raise ValueError(
            f"y has one class alone, {listed(classes.tolist())}: expected two classes; AUC needs "
            "both."
        )
    return classes


def positives(y: Array, classes: Array) -> Array:
    """1 where `y` is the second class, 0 where it is the first."""
    unknown = np.setdiff1d(y, classes)
    if len(unknown):
        raise ValueError(
            f"y has {listed(unknown.tolist())}: expected the classes of training, "
            f"{listed(classes.tolist())}."
        )
    return np.asarray(y == classes[1], np.int64)
