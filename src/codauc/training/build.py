"""What a run is made of: its settings with everything decided, its network, its optimizer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.ppdadam import PPDAdam
from codauc.algorithm.ppdsg import PPDSG
from codauc.data.dataset import DataSet
from codauc.models import TabularNet, build
from codauc.models.pretrained import load_pretrained
from codauc.models.registry import IN_CHANNELS
from codauc.runs.settings import Recipe, RunSettings
from codauc.training.devices import resolve_device
from codauc.training.recipe import SYNC_EVERY, Facts, model_arguments, resolve


def resolve_settings(settings: RunSettings, opened: DataSet, workers: int) -> RunSettings:
    """The settings with everything decided that was left open."""
    facts = Facts(opened.train.samples, opened.train.positives, bool(opened.shape))
    recipe = resolve(settings.recipe, workers, facts)
    if settings.data.watch == "test" and recipe.select != "last":
        raise ValueError(
            f"watch=test with select={recipe.select}: expected select=last, as a test set must "
            "not choose the model that it tests."
        )
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
        elif opened.shape and "in_channels" not in arguments and name in IN_CHANNELS:
            arguments = {"in_channels": opened.shape[0], **arguments}
    model = replace(settings.model, name=name, arguments=arguments)
    data = settings.data
    if opened.encoder is None:  # by name, as other images may have other classes
        data = replace(data, positive=opened.positive, negative=opened.negative)
    every = settings.communication.sync_every or (SYNC_EVERY if workers > 1 else None)
    communication = replace(settings.communication, workers=workers, sync_every=every)
    device = resolve_device(settings.device, processes=workers > 1 and not communication.simulate)
    settings = replace(settings, data=data, model=model, device=device)
    return replace(settings, recipe=recipe, communication=communication)


def _inputs(opened: DataSet) -> int:
    if opened.shape:
        return math.prod(opened.shape)
    assert opened.encoder is not None
    return opened.encoder.inputs


def make_model(settings: RunSettings, rows: Tensor, ratio: float) -> nn.Module:
    """The network of resolved settings; `rows` are some inputs, `ratio` the share of positives."""
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
