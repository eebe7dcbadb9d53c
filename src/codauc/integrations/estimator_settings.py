"""An estimator's parameters as the settings of a run, and what makes its network."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from codauc._internal.checks import known_arguments, listed
from codauc.data.data_settings import DataSettings
from codauc.data.splits import Split
from codauc.integrations.estimator_inputs import Array, as_names
from codauc.runs.settings import (
    CommunicationSettings,
    ModelSettings,
    RecipeSettings,
    RunSettings,
)

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
