"""Sources of labelled data, as tensors in memory."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Images(NamedTuple):
    """Images [N, channels, height, width] and class labels [N], for training and for testing."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def fashion_tiny() -> Images:
    """2000 training and 500 test images of Fashion-MNIST, ten classes, equally many of each.

    Pixels are scaled as `(pixel - mean) / std` with the mean and the standard deviation of all
    pixels of the training images, so the training images have mean 0 and variance 1.

    The images are a sample of Fashion-MNIST, https://github.com/zalandoresearch/fashion-mnist,
    Copyright (c) 2017 Zalando SE, MIT licence. The file is part of this package.

    >>> images = fashion_tiny()
    >>> images.train_x.shape, images.test_y.bincount().tolist()
    (torch.Size([2000, 1, 28, 28]), [50, 50, 50, 50, 50, 50, 50, 50, 50, 50])
    """
    packaged = resources.files("codauc.data").joinpath("fashion_tiny.npz")
    with packaged.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        train, test = (torch.from_numpy(arrays[key]).double() for key in ("x_train", "x_test"))
        train_y, test_y = (torch.from_numpy(arrays[key]).long() for key in ("y_train", "y_test"))
    std, mean = torch.std_mean(train, correction=0)
    train_x, test_x = (((x - mean) / std).float().unsqueeze(1) for x in (train, test))
    return Images(train_x, train_y, test_x, test_y)
