"""Sources of labelled data, as tensors in memory."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
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


def cifar10(directory: str | os.PathLike[str]) -> Images:
    """CIFAR-10 from its binary archive: 50,000 training and 10,000 test images of 3 x 32 x 32.

    `directory` holds `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`, or a folder
    `cifar-10-batches-bin` with them, as `cifar-10-binary.tar.gz` unpacks to. A record is a byte
    with the label and 3072 bytes with the red, green and blue pixels, row by row; a file may hold
    any number of them. Each colour is scaled as `(pixel - mean) / std` with the mean and the
    standard deviation of its pixels in the training images, so that these have mean 0 and
    variance 1 in each.
    """
    folder = _cifar_folder(Path(directory))
    train = np.concatenate([_records(folder / f"data_batch_{i}.bin") for i in range(1, 6)])
    test = _records(folder / "test_batch.bin")
    mean, std = _by_colour(train)
    return Images(*_scaled(train, mean, std), *_scaled(test, mean, std))


_SIDE = 32
_RECORD = 1 + 3 * _SIDE * _SIDE
_WHERE = "unpack cifar-10-binary.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html"


def _cifar_folder(directory: Path) -> Path:
    for folder in (directory, directory / "cifar-10-batches-bin"):
        if (folder / "data_batch_1.bin").is_file():
            return folder
    found = "has no data_batch_1.bin" if directory.is_dir() else "is not a directory"
    raise ValueError(
        f"directory={str(directory)!r} {found}: expected data_batch_1.bin to data_batch_5.bin and "
        f"test_batch.bin, there or in cifar-10-batches-bin; {_WHERE}."
    )


def _records(path: Path) -> NDArray[np.uint8]:
    """The file's records, one in each row."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: expected all six files; {_WHERE} again.")
    data = np.fromfile(path, np.uint8)
    if not len(data) or len(data) % _RECORD:
        raise ValueError(
            f"{path} has {len(data)} bytes: expected a multiple of {_RECORD}, the size of a record "
            f"(the original has 10,000); it was cut off or is another file: {_WHERE} again."
        )
    records = data.reshape(-1, _RECORD)
    if records[:, 0].max() > 9:
        raise ValueError(
            f"{path} has the label {records[:, 0].max()}: expected 0 to 9; it is another data "
            f"set's (CIFAR-100 has records of two labels): {_WHERE} again."
        )
    return records


def _by_colour(records: NDArray[np.uint8]) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation of each colour, exact: from counts of the 256 values."""
    pixels, values = records[:, 1:].reshape(len(records), 3, -1), np.arange(256.0)
    shares = np.stack([np.bincount(pixels[:, c].ravel(), minlength=256) for c in range(3)])
    shares = shares / shares.sum(1, keepdims=True)
    mean = shares @ values
    std = np.sqrt((shares * (values - mean[:, None]) ** 2).sum(1))
    std[std == 0] = 1.0  # one colour everywhere: it becomes 0
    return torch.from_numpy(mean), torch.from_numpy(std)


def _scaled(records: NDArray[np.uint8], mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    x = torch.from_numpy(records[:, 1:].astype(np.float32)).view(-1, 3, _SIDE, _SIDE)
    x.sub_(mean.float().view(3, 1, 1)).div_(std.float().view(3, 1, 1))
    return x, torch.from_numpy(records[:, 0].astype(np.int64))
