"""Labelled images, and the scaling of their pixels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Images(NamedTuple):
    """Images [N, channels, height, width] and class labels [N], for training and for testing."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


class Pixels(NamedTuple):
    """Images as stored: uint8 [N, channels, height, width], and their labels [N]."""

    values: NDArray[np.uint8]
    labels: NDArray[np.int64]


def scaled(train: Pixels, test: Pixels) -> Images:
    """Each colour as `(pixel - mean) / std`, so that the training images have mean 0, variance 1.

    The mean and the standard deviation are those of the colour in the training images. A colour
    that is the same in all of them becomes 0.

    >>> values = np.array([0, 255, 255, 0], np.uint8).reshape(4, 1, 1, 1)
    >>> pixels = Pixels(values, np.arange(4))
    >>> scaled(pixels, pixels).train_x.flatten()
    tensor([-1.,  1.,  1., -1.])
    """
    mean, std = _by_colour(train.values)
    return Images(*_tensors(train, mean, std), *_tensors(test, mean, std))


def _by_colour(values: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation of each colour, exact: from counts of the 256 values."""
    counts, levels = np.zeros((values.shape[1], 256)), np.arange(256.0)
    # In parts, as counting makes a copy eight times as large.
    for start in range(0, len(values), 1000):
        for count, colour in zip(counts, values[start : start + 1000].swapaxes(0, 1), strict=True):
            count += np.bincount(colour.ravel(), minlength=256)
    shares = counts / counts.sum(1, keepdims=True)
    mean = shares @ levels
    std = np.sqrt((shares * (levels - mean[:, None]) ** 2).sum(1))
    std[std == 0] = 1.0  # one colour everywhere: it becomes 0
    return torch.from_numpy(mean), torch.from_numpy(std)


def _tensors(pixels: Pixels, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    x = torch.from_numpy(pixels.values.astype(np.float32, order="C"))
    x.sub_(mean.float().view(-1, 1, 1)).div_(std.float().view(-1, 1, 1))
    return x, torch.from_numpy(pixels.labels)
