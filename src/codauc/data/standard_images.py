"""Sources of labelled images, as tensors in memory: from files on the disk, never downloaded."""

from __future__ import annotations

import os
from importlib import resources

import numpy as np
import torch

from codauc._internal.checks import known_arguments
from codauc.data.cifar import CIFAR10, CIFAR100, read_cifar
from codauc.data.idx import read_idx
from codauc.data.labelled_images import Images, Pixels, scaled

__all__ = ["Images", "cifar10", "cifar100", "fashion_mnist", "fashion_tiny", "mnist"]


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


@known_arguments
def cifar10(path: str | os.PathLike[str]) -> Images:
    """CIFAR-10 from its archive: 50,000 training and 10,000 test images of 3 x 32 x 32.

    `path` is `cifar-10-binary.tar.gz` or `cifar-10-python.tar.gz`, or a directory with one of
    them, with the folder that it unpacks to (`cifar-10-batches-bin`, `cifar-10-batches-py`), or
    with the six files of that folder. Both forms give the same tensors; nothing is unpacked to the
    disk, and the pickles of the python form are read without running them.

    A record of the binary form is a byte with the label and 3072 bytes with the red, green and
    blue pixels, row by row; a file may hold any number of them. Each colour is scaled as
    `(pixel - mean) / std` with the mean and the standard deviation of its pixels in the training
    images, so that these have mean 0 and variance 1 in each.
    """
    return scaled(*read_cifar(path, CIFAR10))


@known_arguments
def cifar100(path: str | os.PathLike[str]) -> Images:
    """CIFAR-100 with its 100 fine labels: 50,000 training and 10,000 test images of 3 x 32 x 32.

    `path` is as for `cifar10`: `cifar-100-binary.tar.gz` or `cifar-100-python.tar.gz`, or a
    directory with one of them, with the folder that it unpacks to (`cifar-100-binary`,
    `cifar-100-python`), or with the two files of that folder. A record of the binary form begins
    with two bytes, the coarse and the fine label. Pixels are scaled as in `cifar10`.
    """
    return scaled(*read_cifar(path, CIFAR100))


@known_arguments
def mnist(path: str | os.PathLike[str]) -> Images:
    """MNIST from its four IDX files: 60,000 training and 10,000 test images of 1 x 28 x 28.

    The directory `path`, or a folder `raw` or `MNIST/raw` in it, holds `train-images-idx3-ubyte`,
    `train-labels-idx1-ubyte`, `t10k-images-idx3-ubyte` and `t10k-labels-idx1-ubyte`, each plain or
    with `.gz` after it, and also in the spelling `train-images.idx3-ubyte`. Pixels are scaled
    as `(pixel - mean) / std` with the mean and the standard deviation of all training pixels.
    """
    return scaled(*read_mnist(path))


def read_mnist(path: str | os.PathLike[str]) -> tuple[Pixels, Pixels]:
    """MNIST's images for training and for testing, as stored."""
    remedy = "get the four files of https://ossci-datasets.s3.amazonaws.com/mnist"
    return read_idx(path, ("raw", "MNIST/raw"), remedy)


@known_arguments
def fashion_mnist(path: str | os.PathLike[str]) -> Images:
    """Fashion-MNIST from its four IDX files: 60,000 training and 10,000 test images of 1 x 28 x 28.

    The files have the names of MNIST's, so the two sets cannot be told apart: see `mnist`, with
    `FashionMNIST/raw` for `MNIST/raw`.
    """
    remedy = "get the four files of https://github.com/zalandoresearch/fashion-mnist"
    return scaled(*read_idx(path, ("raw", "FashionMNIST/raw"), remedy))
