"""What one worker trains with: its batches, the model, the loss, the optimizer and the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from codauc.algorithm.engine import CoDA
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.ppdsg import PPDSG
from codauc.data import Batches
from codauc.data.dataset import DataSet, Part
from codauc.data.rows import as_rows
from codauc.runs.settings import Recipe, RunSettings
from codauc.training.build import make_model, make_optimizer
from codauc.workers.agreement import together
from codauc.workers.group import Group

_EDGE_ROWS = 20_000  # of all workers, to set a table's ranges


@dataclass(frozen=True)
class Components:
    """The parts of one worker, made by `make_components`; `notes` are for the summary."""

    group: Group
    device: torch.device
    batches: Batches
    model: nn.Module
    loss: MinMaxAUCLoss
    opt: PPDSG
    coda: CoDA
    notes: list[str] = field(default_factory=list)


def make_components(
    settings: RunSettings, opened: DataSet, group: Group, model: nn.Module | None = None
) -> Components:
    """The parts as resolved `settings` say; `model` replaces the network that they name."""
    recipe, notes = settings.recipe, list[str]()
    assert isinstance(recipe, Recipe), "resolve_settings(...) decides what is open"
    device, train = usable_device(settings.device), opened.train
    share = _share_of_positives(train, recipe.balance, notes)
    batches = Batches(
        train.x,
        train.y,
        recipe.batch_size,
        seed=settings.seed,
        worker=group.rank,
        balanced=share,
    )
    ratio = batches.sampled_ratio or train.positives / train.samples

    def network() -> nn.Module:
        if model is not None:
            return model
        return make_model(settings, _some_rows(train, group), ratio)

    trained = together(group, network, "start").to(device)
    # rounds find out whether numbers are finite, so the loss does not
    loss = MinMaxAUCLoss(pos_ratio=ratio, mix=recipe.mix, validate=False).to(device)
    loss.ratio_told = True  # it is the share in all data, whatever the workers draw
    opt = make_optimizer(trained, loss, recipe)
    ways = settings.communication
    coda = CoDA(opt, group, compress=ways.compress, delay=ways.delay)
    if group.size > 1:
        coda.watch_drift()
    return Components(group, device, batches, trained, loss, opt, coda, notes)


def usable_device(name: str) -> torch.device:
    """The device of this name; raise if it cannot be used."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        text = str(error).splitlines()[0]
        raise ValueError(f"device={name!r} cannot be used here ({text}): use cpu.") from error
    return device


def _share_of_positives(part: Part, least: float, notes: list[str]) -> float | None:
    """The share of positives to draw, if either class is rarer than `least`."""
    p = part.positives / part.samples
    if least <= min(p, 1 - p):
        return None
    if any(count.positives in (0, count.samples) for count in part.counts):
        notes.append("A worker lacks a class: batches are not balanced.")
        return None
    return least if p < least else 1 - least


def _some_rows(part: Part, group: Group) -> Tensor:
    """Inputs from the whole of a worker's part."""
    count = min(len(part.x), max(1, _EDGE_ROWS // group.size))
    return as_rows(part.x).gather(torch.linspace(0, len(part.x) - 1, count).long())
