"""The paper's setting: many classes made two, some negatives left out, an even share for each."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from codauc._internal.checks import known_arguments, whole
from codauc.data.binary_labels import binarise, thin_negatives
from codauc.data.image_folders import ImageSplit
from codauc.data.shards import even_shards
from codauc.data.standard_images import Images


class Task(NamedTuple):
    """Images with binary labels; of the training images only those numbered in `rows` are meant."""

    x: Any
    y: Tensor
    rows: Tensor
    test_x: Any
    test_y: Tensor

    @property
    def pos_ratio(self) -> float:
        """The share of positives in the training set."""
        return int(self.y[self.rows].sum()) / len(self.rows)

    def shard(self, rank: int, workers: int, seed: int) -> Tensor:
        """The numbers of one worker's training images: shuffled by `seed`, evenly split."""
        shards = even_shards(len(self.rows), workers, seed)
        rank = whole("rank", rank, least=0, remedy="use group.rank")
        if rank >= workers:
            raise ValueError(f"rank={rank} of {workers} workers: expected at most {workers - 1}.")
        return self.rows[shards[rank]]


@known_arguments
def binary_task(
    images: Images | ImageSplit,
    positive: Collection[int] | Literal["half"] = "half",
    keep_negatives: float = 1.0,
    seed: int = 0,
) -> Task:
    """Two classes from many; of the negatives a part is kept for training, by `seed`.

    `positive` are the positive classes; "half" is the first half of them, as in the paper, and one
    class is set against the rest. The test set is whole.

    >>> from codauc.data.standard_images import fashion_tiny
    >>> task = binary_task(fashion_tiny(), "half", keep_negatives=0.4)
    >>> len(task.rows), round(task.pos_ratio, 3), len(task.test_y)
    (1400, 0.714, 500)
    """
    y = binarise(images.train_y, positive)
    # a small test set may lack some of the classes, so it is not asked which there are
    test_y = torch.isin(images.test_y, torch.unique(images.train_y[y]))
    rows = thin_negatives(y, keep_negatives, seed)
    return Task(images.train_x, y, rows, images.test_x, test_y)
