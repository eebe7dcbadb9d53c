"""What a run is made of: settings with everything decided, and the parts one worker trains with."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from codauc.algorithm.engine import CoDA
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.outer_step import Nesterov
from codauc.algorithm.ppdadam import PPDAdam
from codauc.algorithm.ppdsg import PPDSG
from codauc.data import Batches
from codauc.data.dataset import DataSet, Part
from codauc.data.rows import as_rows
from codauc.models import TabularNet, build
from codauc.models.pretrained import load_pretrained
from codauc.models.registry import IN_CHANNELS
from codauc.runs.settings import ModelSettings, Recipe, RunSettings, outer_step
from codauc.training.recipe import SYNC_EVERY, Facts, resolve
from codauc.workers.agreement import together
from codauc.workers.group import Group

_EDGE_ROWS = 20_000  # of all workers, to set a table's ranges
_EDGE_CELLS = 1 << 25  # values of a worker in them: 128 MB
_TABULAR = {"widths": [256, 256], "dropout": 0.2, "pieces": 8}  # the default network of a table
_WIDE = 2000  # numbers from which on it has no pieces, which would be most of its weights


def resolve_settings(settings: RunSettings, opened: DataSet, workers: int) -> RunSettings:
    """The settings with everything decided that was left open."""
    facts = Facts(opened.train.samples, opened.train.positives, bool(opened.shape))
    recipe = resolve(settings.recipe, workers, facts)
    if settings.data.watch == "test" and recipe.select != "last":
        raise ValueError(
            f"watch=test with select={recipe.select}: expected select=last, as a test set must "
            "not choose the model that it tests."
        )
    if settings.threshold is not None and opened.validation is None:
        raise ValueError(
            f"threshold={settings.threshold!r} without a validation set: expected one to choose it "
            "on; hold rows out for it, or leave it out."
        )
    data = settings.data
    if opened.encoder is None:  # by name, as other images may have other classes
        data = replace(data, positive=opened.positive, negative=opened.negative)
    every = settings.communication.sync_every or (SYNC_EVERY if workers > 1 else None)
    communication = replace(settings.communication, workers=workers, sync_every=every)
    device = resolve_device(settings.device, processes=workers > 1 and not communication.simulate)
    model = _network(settings.model, opened)
    settings = replace(settings, data=data, model=model, device=device)
    return replace(settings, recipe=recipe, communication=communication)


def _network(asked: ModelSettings, opened: DataSet) -> ModelSettings:
    """The network by name, with the arguments that the data decide where they are not given."""
    usual, arguments = opened.network()
    name = usual if asked.name == "auto" else asked.name
    if asked.name == "auto" and name == "tabular":
        wide = {"pieces": 0} if arguments["numbers"] > _WIDE else {}
        arguments = {**arguments, **_TABULAR, **wide}
    elif name == "mlp":
        encoder = opened.encoder
        inputs = math.prod(opened.shape) if opened.shape or encoder is None else encoder.inputs
        arguments = {"inputs": inputs}
    elif name != usual:
        images = opened.shape and name in IN_CHANNELS
        arguments = {"in_channels": opened.shape[0]} if images else {}
    return replace(asked, name=name, arguments={**arguments, **asked.arguments})


def resolve_device(name: str, *, processes: bool) -> str:
    """`name`, or for "auto" cuda, mps or cpu: the first on which training works.

    With worker `processes`, each needs a GPU of its own for NCCL, and mps has no collectives.

    >>> resolve_device("cuda:1", processes=False)
    'cuda:1'
    """
    if name != "auto":
        return name
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if processes else 1
    if torch.cuda.is_available() and torch.cuda.device_count() >= here:
        return "cuda"
    if torch.backends.mps.is_available() and not processes and trains(torch.device("mps")):
        return "mps"
    return "cpu"


def trains(device: torch.device) -> bool:
    """Whether one float32 training step runs on the device; some lack operations it needs."""
    try:
        with torch.random.fork_rng(devices=[]):
            model = torch.nn.Linear(2, 1).to(device)
        loss = MinMaxAUCLoss(pos_ratio=0.5).to(device)
        optimizer = PPDSG(model, loss, lr=0.1, gamma=500.0)
        x = torch.ones(2, 2, device=device)
        loss(model(x).squeeze(1), torch.tensor([0, 1], device=device)).backward()
        optimizer.step()
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    return True


def make_model(settings: RunSettings, rows: Tensor, ratio: float) -> nn.Module:
    """The network of resolved settings; `rows` are some inputs, `ratio` the share of positives."""
    chosen = settings.model
    model = build(chosen.name, **chosen.arguments)
    if isinstance(model, TabularNet):
        model.fit_pieces(rows)
    head = getattr(model, "head", None)
    if settings.recipe.initial_bias and isinstance(head, nn.Linear) and head.bias is not None:
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


def make_batches(settings: RunSettings, part: Part, group: Group, notes: list[str]) -> Batches:
    """A worker's batches, with the least share of either class; `notes` are for the summary."""
    least, ratio, share = settings.recipe.balance, part.pos_ratio, None
    if least > min(ratio, 1 - ratio):
        if any(count.positives in (0, count.samples) for count in part.counts):
            notes.append("A worker lacks a class: batches are not balanced.")
        else:
            share = least if ratio < least else 1 - least
    size, seed = settings.recipe.batch_size, settings.seed
    weights = _relative_weights(part, balanced=share is not None)
    options: dict[str, Any] = {"seed": seed, "worker": group.rank, "balanced": share}
    return Batches(part.x, part.y, size, weights=weights, **options)


def _relative_weights(part: Part, *, balanced: bool) -> Tensor | None:
    """Weights with a mean of 1 over all workers' samples; if balanced, over those of each class.

    So what is drawn is in expectation what repeated rows would give, and p is the share drawn.
    """
    if part.weights is None or part.y is None:
        return part.weights
    up, both = part.weight_sums
    if not balanced:
        return (part.weights * (part.samples / both)).float()
    means = torch.tensor(
        [(both - up) / (part.samples - part.positives), up / part.positives], dtype=torch.float64
    )
    return (part.weights / means[part.y.long()]).float()


def make_engine(
    settings: RunSettings, part: Part, group: Group, ratio: float, model: nn.Module | None
) -> CoDA:
    """The network with its loss, optimizer and engine; `model` replaces that of the settings.

    `part` is this worker's training data, `ratio` the share of positives in what is drawn.
    """
    recipe, ways, device = settings.recipe, settings.communication, usable_device(settings.device)

    def network() -> nn.Module:
        if model is not None:
            return model
        return make_model(settings, _some_rows(part, group.size), ratio)

    trained = together(group, network, "start").to(device)
    # rounds find out whether numbers are finite, so the loss does not
    loss = MinMaxAUCLoss(pos_ratio=ratio, mix=recipe.mix, validate=False).to(device)
    loss.mean_weight = None if part.weights is None else 1.0
    loss.ratio_told = True  # it is the share in all data, whatever the workers draw
    opt = make_optimizer(trained, loss, recipe)
    outer = None if ways.outer is None else Nesterov(*outer_step(ways.outer))
    coda = CoDA(opt, group, compress=ways.compress, delay=ways.delay, outer=outer)
    if group.size > 1:
        coda.watch_drift()
    return coda


def _some_rows(part: Part, workers: int) -> Tensor:
    """Rows from the whole of a worker's part, as many as are needed and take little memory."""
    x = as_rows(part.x)
    most = max(1, _EDGE_CELLS // x.gather(torch.tensor([0])).numel())
    count = min(len(x), max(1, _EDGE_ROWS // workers), most)
    return x.gather(torch.linspace(0, len(x) - 1, count).long())


def usable_device(name: str) -> torch.device:
    """The device of this name; raise if it cannot be used."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        text = str(error).splitlines()[0]
        raise ValueError(f"device={name!r} cannot be used here ({text}): use cpu.") from error
    return device
