"""What a run is made of: settings with everything decided, and the parts one worker trains with."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from codauc._internal.sync_periods import outer_step
from codauc.algorithm.engine import CoDA
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.outer_step import Nesterov
from codauc.algorithm.ppdadam import PPDAdam
from codauc.algorithm.ppdsg import PPDSG
from codauc.algorithm.sites import Present
from codauc.data import Batches
from codauc.data.augment import Augment, Crop, Flip
from codauc.data.batches import Augmentation
from codauc.data.dataset import DataSet, Part
from codauc.data.rows import Rows, as_rows
from codauc.models import TabularEnsemble, build
from codauc.models.pretrained import load_pretrained
from codauc.models.registry import IN_CHANNELS
from codauc.models.tabular import TableModel
from codauc.runs.settings import ModelSettings, Recipe, RunSettings
from codauc.training.crossed import can_cross, member_weights
from codauc.training.linear_start import start_linear_models
from codauc.training.recipe import (
    Facts,
    communication_for,
    image_network,
    plain_network,
    resolve,
    shift_of,
    table_network,
)
from codauc.training.shared_ranges import rows_of_all
from codauc.workers.agreement import together
from codauc.workers.group import Group

_EDGE_ROWS = 20_000  # of all workers, to set a table's ranges
_CELLS = 1 << 25  # values of a worker in some rows: 128 MB
_LINEAR_ROWS = 100_000  # of all workers, to fit linear models
_TABLES = ("tabular-ensemble", "tabular")  # networks of tables
_LINEAR_DECAY = 0.1  # of the networks' weight decay, for the linear models beside them


def resolve_settings(
    settings: RunSettings,
    opened: DataSet,
    workers: int,
    unlike: float = 0.0,
    *,
    own_model: bool = False,
) -> RunSettings:
    """The settings with everything decided that was left open.

    With `own_model` a network that the settings do not know is trained in place of theirs. `unlike`
    says how far labels differ between sites, from 0 to 1.
    """
    model = _network(settings.model, opened, settings.recipe.name)
    crossable = can_cross(opened, settings, model) and not own_model
    train = opened.train
    linear = model.name == "tabular-ensemble" and not own_model and model.pretrained is None
    settings = settings if linear else settings.with_changes("recipe", linear_start=False)
    facts = Facts(train.samples, train.positives, bool(opened.shape), linear, crossable)
    recipe = resolve(settings.recipe, workers, facts)
    if recipe.augment != "none" and not opened.shape:
        raise ValueError(
            f"augment={recipe.augment} for a table: expected images, which can be shifted; leave "
            "it out."
        )
    recipe = replace(recipe, crossed=recipe.crossed and crossable)
    if recipe.select == "blend" and not (linear and recipe.linear_start):
        raise ValueError(
            "select=blend with a network that does not begin as logistic regression: expected "
            "tabular-ensemble without weights of its own; use select=steady."
        )
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
    communication = communication_for(settings, workers, unlike)
    device = resolve_device(settings.device, processes=workers > 1 and not communication.simulate)
    settings = replace(settings, data=data, model=model, device=device)
    return replace(settings, recipe=recipe, communication=communication)


def _network(asked: ModelSettings, opened: DataSet, recipe: str) -> ModelSettings:
    """The network by name, with the arguments that the data decide where they are not given."""
    usual, arguments = opened.network()
    name = usual if asked.name == "auto" else asked.name
    if asked.name == "auto" and name in _TABLES:
        train, numbers = opened.train, arguments["numbers"]
        if recipe == "paper":  # which trains one network
            name, chosen = "tabular", plain_network(numbers)
        else:
            chosen = table_network(train.samples, train.positives, numbers)
        arguments = {**arguments, **chosen}
    elif asked.name == "auto":
        arguments = {**arguments, **image_network(min(opened.shape[1:]))}
    elif name in _TABLES and usual in _TABLES:
        pass  # the columns, and the network's own defaults
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
    if isinstance(model, TableModel):
        model.fit_pieces(rows)
    bias = getattr(getattr(model, "head", None), "bias", None)
    if settings.recipe.initial_bias and isinstance(bias, nn.Parameter):
        nn.init.constant_(bias, math.log(ratio / (1 - ratio)))
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
    if isinstance(model, TabularEnsemble):
        linear = list(model.linear.parameters())
        known = {id(parameter) for parameter in linear}
        others = [parameter for parameter in model.parameters() if id(parameter) not in known]
        decay = _LINEAR_DECAY * recipe.weight_decay
        shared["params"] = [{"params": others}, {"params": linear, "weight_decay": decay}]
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
    if part.folds is not None:
        each = member_weights(part, settings.model.arguments["members"])
        weights = each if weights is None else each * weights.unsqueeze(1)
    options: dict[str, Any] = {"seed": seed, "worker": group.rank, "balanced": share}
    options["augment"] = augmentation(settings.recipe.augment)
    return Batches(part.x, part.y, size, weights=weights, **options)


def augmentation(name: str) -> Augmentation | None:
    """How a recipe changes the images of a batch; edges are repeated, as black may mean anything.

    >>> augmentation("flip")(torch.zeros(5, 1, 28, 28), torch.Generator()).shape
    torch.Size([5, 1, 28, 28])
    """
    if name == "none":
        return None
    more = (Flip(),) if name == "flip" else ()

    def changed(x: Tensor, generator: torch.Generator) -> Tensor:
        crop = Crop(padding=shift_of(x.shape[2:]), fill="edge")
        return Augment(crop, *more)(x, generator)

    return changed


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
    ways = settings.communication
    opt = make_trained(settings, part, group, ratio, model)
    outer = None if ways.outer is None else Nesterov(*outer_step(ways.outer))
    present = None if ways.present is None else Present(ways.present, settings.seed)
    coda = CoDA(
        opt,
        group,
        dual="mean" if ways.dual == "auto" and settings.recipe.name == "paper" else ways.dual,
        compress=ways.compress,
        delay=ways.delay,
        outer=outer,
        correct="scaffold" if ways.correct == "scaffold" else None,
        weight="samples" if ways.worker_weight == "samples" else "equal",
        present=present,
        norm=ways.norm,
        shards=part.counts,
    )
    if coda.dual == "pooled":  # in which a worker of one class takes part
        opt.loss.one_class_told = True
    if group.size > 1:
        coda.watch_drift()
    return coda


def make_trained(
    settings: RunSettings, part: Part, group: Group, ratio: float, model: nn.Module | None
) -> PPDSG:
    """The network with its loss and optimizer; the arguments are those of `make_engine`."""
    device, x = usable_device(settings.device), as_rows(part.x)
    shared = None if model is not None else _shared_rows(settings, x, group)

    def network() -> nn.Module:
        if model is not None:
            return model
        if shared is not None:
            return make_model(settings, shared, ratio)
        if settings.data.least_samples is not None:  # edges are values of single rows
            return make_model(settings, _normal_rows(x.gather(torch.tensor([0]))), ratio)
        return make_model(settings, x.gather(_some(x, _EDGE_ROWS, group)), ratio)

    trained = together(group, network, "start")
    if settings.recipe.linear_start and model is None and isinstance(trained, TabularEnsemble):
        _start_linear(trained, part, group)
    trained = trained.to(device)
    # rounds find out whether numbers are finite, so the loss does not
    loss = make_loss(trained, ratio, settings.recipe.mix, validate=False).to(device)
    loss.mean_weight = None if part.weights is None and part.folds is None else 1.0
    loss.ratio_told = True  # it is the share in all data, whatever the workers draw
    return make_optimizer(trained, loss, settings.recipe)


def _shared_rows(settings: RunSettings, x: Rows, group: Group) -> Tensor | None:
    """Rows by which ranges are set, where those of worker 0 alone do not stand for all."""
    data, chosen = settings.data, settings.model
    dealt = not (data.own or data.silo is not None or data.skew is not None)
    if group.size == 1 or dealt or data.least_samples is not None:
        return None
    if settings.recipe.name == "paper":  # which stays as it was
        return None
    numbers = chosen.arguments.get("numbers", 0) if chosen.name in _TABLES else 0
    if not numbers or not chosen.arguments.get("pieces"):
        return None
    return rows_of_all(x, numbers, group)


def _normal_rows(like: Tensor) -> Tensor:
    """Rows of nobody, whose standardised columns are as the normal distribution has them."""
    shares = torch.linspace(0.002, 0.998, 999)
    values: Tensor = torch.special.ndtri(shares)
    return values.view(-1, *[1] * (like.dim() - 1)).expand(-1, *like.shape[1:])


def make_loss(
    model: nn.Module, ratio: float | None, mix: float, *, validate: bool | None = None
) -> MinMaxAUCLoss:
    """The loss of a network: of each member, where it has several. None: p is estimated."""
    members = model.arguments["members"] if isinstance(model, TabularEnsemble) else 1
    ratios = None if ratio is None else [ratio] * members
    loss = MinMaxAUCLoss(ratios, tasks=members, mix=mix, validate=validate)
    loss.one_label = members > 1
    return loss


def _some(x: Rows, count: int, group: Group) -> Tensor:
    """The numbers of rows from the whole of a worker's part, as many as take little memory."""
    most = max(1, _CELLS // x.gather(torch.tensor([0])).numel())
    count = min(len(x), max(1, count // group.size), most)
    return torch.linspace(0, len(x) - 1, count).long()


def _start_linear(model: TabularEnsemble, part: Part, group: Group) -> None:
    """Give an ensemble's linear models the weights of logistic regression."""
    assert part.y is not None
    x, members = as_rows(part.x), model.arguments["members"]
    numbers = torch.cat([_some(x, _LINEAR_ROWS, group), part.y.bool().nonzero().flatten()])
    numbers = torch.from_numpy(np.unique(numbers[: 2 * _LINEAR_ROWS].numpy()))  # all rare ones
    y = part.y[numbers].bool()
    negatives = len(part.y) - int(part.y.bool().sum())
    weights = torch.where(y, 1.0, negatives / max(1, int((~y).sum()))).unsqueeze(1)
    if part.folds is not None:
        weights = weights * member_weights(part, members)[numbers]
    if part.weights is not None:
        weights = weights * part.weights[numbers].float().unsqueeze(1)
    weights = weights.expand(-1, members).contiguous()
    start_linear_models(model, x.gather(numbers), y, weights, group)


def usable_device(name: str) -> torch.device:
    """The device of this name; raise if it cannot be used."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        text = str(error).splitlines()[0]
        raise ValueError(f"device={name!r} cannot be used here ({text}): use cpu.") from error
    return device
