"""The estimate of alpha between two stages, and BatchNorm statistics for the averaged weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from codauc._internal.checks import warn
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.loss_checks import check_values
from codauc.algorithm.objective import positives
from codauc.algorithm.ppdsg import PPDSG
from codauc.algorithm.sites import Sites
from codauc.workers.group import Group

DUALS = ("mean", "pooled", "auto")
_DRAWS = 100  # how often a worker draws for a class it has met before
_FIRST_DRAWS = 3  # and for a class that it never met
_TIMES = 64  # that each row of a small shard is drawn at most

Forward = Callable[[Any], tuple[Tensor, ...]]


class DualEstimate:
    """Sets alpha to its maximiser at the current weights, from samples of every worker's own data.

        mean:    alpha = (1/K) sum_k [ mean h over negatives - mean h over positives ]_k
        pooled:  alpha = [ sum of h / count of negatives ] - [ the same of positives ], all workers

    The same forward passes give BatchNorm the statistics of the new weights, averaged over the
    workers: where all draw equally often, what torch's `update_bn` gives on all batches together.
    One collective carries both. A worker without a class takes no part in that class's mean, and
    one that is away in none. Where `sites` do not count alike, all means are weighted.
    """

    def __init__(self, opt: PPDSG, group: Group, dual: str, forward: Forward, sites: Sites) -> None:
        self.opt, self.group, self.dual, self.forward = opt, group, dual, forward
        self.sites = sites

    @torch.no_grad()
    def run(
        self,
        batches: Iterator[Any],
        samples: int,
        modes: list[bool] | None = None,
        *,
        estimate_ab: bool = False,
    ) -> None:
        """Draw `samples` and set alpha; with `estimate_ab` a and b become the two means.

        `modes` tells which submodules are in training mode, as they were in the last step,
        whatever was evaluated since.
        """
        opt, shards = self.opt, self.sites.shards
        if shards is not None:  # batches of a single row are no faster than others
            samples = min(samples, max(1, _TIMES * shards[self.sites.rank][0]))
        if self.sites.away:
            sums, counts = torch.zeros(2, 2, opt.loss.tasks).to(opt.loss.a)
        else:
            with in_modes(opt.model, modes), _new_statistics(opt.model):
                sums, counts = _class_sums(opt.loss, batches, samples, self.forward, self.group)
        negative, positive, found = self._averaged(sums, counts)
        new = [(opt.loss.alpha, negative - positive)]
        if estimate_ab:
            new += [(opt.loss.a, positive), (opt.loss.b, negative)]
        for tensor, value in new:
            tensor.copy_(torch.where(found, value, tensor))
        if not found.all():
            warn("no worker has drawn both classes: alpha stays as it was; check the labels.")

    def _averaged(self, sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The class means over the workers, and which tasks have both; statistics are averaged."""
        trained = self.opt.trained
        if self.dual == "mean":
            there = (counts > 0).to(counts.dtype)
            sums, counts = sums / torch.where(counts > 0, counts, 1), there
        else:  # every worker counts as much, however often it drew for a rare class
            total = counts.sum(0)
            total = torch.where(total > 0, total, 1)
            sums, counts = sums / total, counts / total
        statistics = trained.statistics
        counting, size = self.sites.mean(), self.group.size
        parts = [sums.flatten(), counts.flatten(), *(tensor.flatten() for tensor in statistics)]
        if counting.shares is not None:  # as if all counted alike, and this one more or less often
            parts = [part * (size / counting.divisor) for part in parts]
        message = torch.cat([part.to(trained.dtype) for part in parts])
        self.group.sum_(message, "dual")
        sums, counts, *means = torch.split(message, [len(part) for part in parts])
        for target, mean in zip(statistics, means, strict=True):
            target.copy_((mean / size).view_as(target))
        negative, positive = (sums / counts).to(self.opt.loss.alpha.dtype).view(2, -1)
        return negative, positive, (counts.view(2, -1) > 0).all(0)


def _class_sums(
    loss: MinMaxAUCLoss, batches: Iterator[Any], samples: int, forward: Forward, group: Group
) -> tuple[Tensor, Tensor]:
    """Sums of h and counts over `samples` samples; rows: negatives, positives; a column per task.

    With weights they are weighted sums, and sums of weights.

    A draw that lacks a class is followed by others, of whole batches, that are added to it; by few
    if the worker never met that class.
    """
    sums = torch.zeros(2, loss.tasks, dtype=loss.a.dtype, device=loss.a.device)
    counts = torch.zeros_like(sums)
    met = loss.seen.flip(0) > 0
    for draw in range(_DRAWS):
        left = samples
        while left > 0:
            logits, labels, *weights = forward(next(batches))
            logits, labels = loss.aligned(logits, labels)
            _check_batch(logits, labels)
            used = len(labels) if draw else left
            h, positive = loss.scores(logits[:used]), positives(labels[:used])
            for row, mask in enumerate((~positive, positive)):
                if weights:
                    sizes = weights[0][:used].to(h)
                    mask = mask * (sizes if sizes.dim() == h.dim() else sizes.unsqueeze(1))
                sums[row] += (h * mask).sum(0)
                counts[row] += mask.sum(0)
            left -= len(h)
        missing = counts == 0
        if not ((missing & met).any() or (missing.any() and draw + 1 < _FIRST_DRAWS)):
            break
    if missing.any():
        _warn_once(loss, missing, group)
    return sums, counts


def _check_batch(logits: Tensor, labels: Tensor) -> None:
    try:
        check_values(logits, labels)
    except ValueError as error:
        raise ValueError(
            f"{error} This batch was drawn to estimate alpha: where the loop changes what the "
            "batches give, pass forward=... to CoDA that does the same."
        ) from None


def _warn_once(loss: MinMaxAUCLoss, missing: Tensor, group: Group) -> None:
    if loss.one_class_told:
        return
    loss.one_class_told = True
    classes = zip(("negatives", "positives"), missing, strict=True)
    names = " and no ".join(name for name, row in classes if row.any())
    warn(
        f"worker {group.rank} drew no {names} to estimate alpha: it takes no part in that class's "
        "mean. Where shards differ in labels, dual='pooled' is the better estimate."
    )


@contextlib.contextmanager
def in_modes(model: nn.Module, modes: list[bool] | bool | None) -> Iterator[None]:
    """Give every submodule its mode of training or evaluation, and then back what it had."""
    modules = list(model.modules())
    now = [module.training for module in modules]
    if isinstance(modes, bool):
        modes = [modes] * len(now)
    wanted = now if modes is None or len(modes) != len(now) else modes
    try:
        for module, mode in zip(modules, wanted, strict=True):
            module.training = mode
        yield
    finally:
        for module, mode in zip(modules, now, strict=True):
            module.training = mode


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
