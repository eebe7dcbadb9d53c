"""The estimate of alpha between two stages, and BatchNorm statistics for the averaged weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from codauc.checks import warn
from codauc.group import Group
from codauc.loss import MinMaxAUCLoss
from codauc.objective import positives
from codauc.optim import PPDSG

DUALS = ("mean", "pooled")
_DRAWS = 100  # how often a worker draws again for a class it has met before

Forward = Callable[[Any], tuple[Tensor, Tensor]]


@torch.no_grad()
def estimate_dual(
    opt: PPDSG, group: Group, batches: Iterator[Any], samples: int, dual: str, forward: Forward
) -> None:
    """Set alpha to its maximiser at the current weights, from `samples` of every worker's own data.

        mean:    alpha = (1/K) sum_k [ mean h over negatives - mean h over positives ]_k
        pooled:  alpha = [ sum of h / count of negatives ] - [ the same of positives ], all workers

    The same forward passes, in the model's own mode, give BatchNorm the statistics of the new
    weights, averaged over the workers: where all draw equally often, what torch's `update_bn` gives
    on all batches together. One collective carries both. A worker without a class takes no part in
    that class's mean.
    """
    with _new_statistics(opt.model):
        sums, counts = _class_sums(opt.loss, batches, samples, forward)
    if dual == "mean":
        sums, counts = sums / counts.clamp(min=1), counts.clamp(max=1)
    statistics = [b.of(opt.flat.vectors) for b in opt.flat.blocks if b.role == "buffer"]
    parts = [sums.flatten(), counts.flatten(), *(s.to(sums.dtype) for s in statistics)]
    message = torch.cat(parts)
    group.sum_(message, "dual")
    sums, counts, *means = torch.split(message, [len(part) for part in parts])
    for target, mean in zip(statistics, means, strict=True):
        target.copy_(mean / group.size)
    negative, positive = (sums / counts).view(2, -1)
    found = (counts.view(2, -1) > 0).all(0)
    opt.loss.alpha.copy_(torch.where(found, negative - positive, opt.loss.alpha))
    if not found.all():
        warn("no worker has drawn both classes: alpha stays as it was; check the labels.")


def _class_sums(
    loss: MinMaxAUCLoss, batches: Iterator[Any], samples: int, forward: Forward
) -> tuple[Tensor, Tensor]:
    """Sums of h and counts over `samples` samples; rows: negatives, positives; a column a task.

    A draw that lacks a class is followed by others, of whole batches, that are added to it, unless
    the worker never met that class.
    """
    sums = torch.zeros(2, loss.tasks, dtype=loss.a.dtype, device=loss.a.device)
    counts = torch.zeros_like(sums)
    met = loss.seen.flip(0) > 0
    for draw in range(_DRAWS):
        left = samples
        while left > 0:
            logits, labels = loss.aligned(*forward(next(batches)))
            used = len(labels) if draw else left
            h, positive = loss.scores(logits[:used]), positives(labels[:used])
            for row, mask in enumerate((~positive, positive)):
                sums[row] += (h * mask).sum(0)
                counts[row] += mask.sum(0)
            left -= len(h)
        missing = counts == 0
        if not (missing & met).any():
            break
    if missing.any():
        _warn_once(loss, missing)
    return sums, counts


def _warn_once(loss: MinMaxAUCLoss, missing: Tensor) -> None:
    if loss.one_class_told:
        return
    loss.one_class_told = True
    classes = zip(("negatives", "positives"), missing, strict=True)
    names = " and no ".join(name for name, row in classes if row.any())
    warn(
        f"this worker drew no {names} to estimate alpha: it takes no part in that class's mean; "
        "dual='pooled' suits shards that differ in labels."
    )


@contextlib.contextmanager
def _new_statistics(model: nn.Module) -> Iterator[None]:
    """Let layers in training mode collect statistics from nothing, as plain means over batches."""
    layers = [
        layer
        for layer in model.modules()
        if isinstance(layer, _BatchNorm) and layer.training and layer.running_mean is not None
    ]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
