"""As many steps as fit into a time, measured before the run: the run itself can be repeated."""

from __future__ import annotations

import math
import time

import torch

from codauc.data.dataset import DataSet
from codauc.metrics.evaluation import logits_of
from codauc.runs.settings import RunSettings
from codauc.training.build import make_batches, make_trained
from codauc.training.recipe import plan
from codauc.workers.group import Group, LocalGroup

_STEPS = 12  # to be measured, after a third as many
_ROWS = 2048  # of the validation set, to be scored
_RESERVE = 0.85  # of the budget, for steps and evaluations


def within_budget(settings: RunSettings, opened: DataSet, group: Group) -> RunSettings:
    """The settings with fewer steps, where those planned would take longer than `time_budget`.

    All workers get the steps of the slowest. Steps that were asked for stay as they are.
    """
    recipe = settings.recipe
    if math.isinf(recipe.time_budget):
        return settings
    with torch.random.fork_rng([]):
        step, evaluation = _measured(settings, opened)
    slowest = group.gather(torch.tensor([step, evaluation], dtype=torch.float64), "start").amax(0)
    step, evaluation = slowest.tolist()
    left = _RESERVE * recipe.time_budget - recipe.evaluations * evaluation
    planned = plan(recipe, settings.communication).steps
    share = max(0.0, left) / (step * planned)
    if share >= 1:
        return settings
    return settings.with_changes("recipe", steps=max(1, round(share * recipe.steps)))


def _measured(settings: RunSettings, opened: DataSet) -> tuple[float, float]:
    """Seconds of a step, and of an evaluation, on this worker's data with a network of its own."""
    alone, train, times = LocalGroup(), opened.train, list[float]()
    settings = settings.with_changes("recipe", linear_start=False)
    batches = make_batches(settings, train, alone, [])
    opt = make_trained(settings, train, alone, train.pos_ratio, None)
    for _ in range(_STEPS + _STEPS // 3):
        begin = time.perf_counter()
        x, *rest = (part.to(opt.loss.a.device) for part in next(batches))
        opt.zero_grad()
        opt.loss(opt.model(x), *rest).backward()
        opt.step()
        times.append(time.perf_counter() - begin)
    return sorted(times[-_STEPS:])[_STEPS // 2], _evaluation(opt.model, opened)


def _evaluation(model: torch.nn.Module, opened: DataSet) -> float:
    """Seconds of an evaluation, from some rows of the validation set."""
    part = opened.watched
    if part is None or not len(part.x):
        return 0.0
    rows, begin = part.x[:_ROWS], time.perf_counter()
    logits_of(model, rows)
    return (time.perf_counter() - begin) * len(part.x) / len(rows)
