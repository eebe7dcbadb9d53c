"""The first look at labels where the share of positives is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.objective import positives
from codauc.workers.group import Group

SAMPLES = 1024  # of each worker: p is then off by 0.016 at most, as a standard deviation


@torch.no_grad()
def first_look(
    loss: MinMaxAUCLoss,
    group: Group,
    batches: Iterator[Any],
    labels_of: Callable[[Any], Tensor],
) -> None:
    """Count the labels of some batches before the first step, over all workers, if p is unknown.

    A p that is off by d pushes all scores alike, up or down, by 2 (1 + alpha) d a step; a worker
    alone with its first batches may be off by 0.1 for ten steps, until the scores are saturated.
    The batches are used up, as those of the estimate of alpha are.
    """
    if not loss.ratio_is_unseen:
        return
    left, mine = SAMPLES, torch.zeros_like(loss.seen)
    while left > 0:
        labels = labels_of(next(batches))
        positive = positives(labels).reshape(len(labels), -1).sum(0)
        if len(positive) != loss.tasks:
            break  # the loss itself will say what is wrong, at the first step
        mine += torch.stack((positive, len(labels) - positive))
        left -= len(labels)
    total = mine.clone()
    group.sum_(total, "start")
    loss.seen.add_(mine)
    loss.agree(total, loss.reported + mine)
