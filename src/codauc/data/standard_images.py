"""The paper's data: standard sets of images, from the disk alone, and two classes of many."""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codauc._internal.checks import known_arguments, whole
from codauc.data.archives import File, Form, find_file, read_archive, read_files
from codauc.data.binary_labels import binarise, thin_negatives
from codauc.data.image_folders import ImageSplit
from codauc.data.pickle_reader import unpickled
from codauc.data.shards import even_shards


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


@known_arguments
def fashion_mnist(path: str | os.PathLike[str]) -> Images:
    """Fashion-MNIST from its four IDX files: 60,000 training and 10,000 test images of 1 x 28 x 28.

    The files have the names of MNIST's, so the two sets cannot be told apart: see `mnist`, with
    `FashionMNIST/raw` for `MNIST/raw`.
    """
    return scaled(*_read_idx(path, "FashionMNIST/raw", "github.com/zalandoresearch/fashion-mnist"))


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

    >>> task = binary_task(fashion_tiny(), "half", keep_negatives=0.4)
    >>> len(task.rows), round(task.pos_ratio, 3), len(task.test_y)
    (1400, 0.714, 500)
    """
    y = binarise(images.train_y, positive)
    # a small test set may lack some of the classes, so it is not asked which there are
    test_y = torch.isin(images.test_y, torch.unique(images.train_y[y]))
    rows = thin_negatives(y, keep_negatives, seed)
    return Task(images.train_x, y, rows, images.test_x, test_y)


def scaled(train: Pixels, test: Pixels) -> Images:
    """Each colour as `(pixel - mean) / std`, so that the training images have mean 0, variance 1.

    A colour that is the same in all of them becomes 0.

    >>> values = np.array([0, 255, 255, 0], np.uint8).reshape(4, 1, 1, 1)
    >>> pixels = Pixels(values, np.arange(4))
    >>> scaled(pixels, pixels).train_x.flatten()
    tensor([-1.,  1.,  1., -1.])
    """
    # Exact, from counts of the 256 values; in parts, as counting makes a copy eight times as large.
    counts, levels = np.zeros((train.values.shape[1], 256)), np.arange(256.0)
    for start in range(0, len(train.values), 1000):
        part = train.values[start : start + 1000].swapaxes(0, 1)
        for count, colour in zip(counts, part, strict=True):
            count += np.bincount(colour.ravel(), minlength=256)
    shares = counts / counts.sum(1, keepdims=True)
    mean = shares @ levels
    std = np.sqrt((shares * (levels - mean[:, None]) ** 2).sum(1))
    std[std == 0] = 1.0
    centre, spread = (torch.from_numpy(part).float().view(-1, 1, 1) for part in (mean, std))
    train_x, test_x = (
        torch.from_numpy(pixels.values.astype(np.float32, order="C")).sub_(centre).div_(spread)
        for pixels in (train, test)
    )
    train_y, test_y = (torch.from_numpy(pixels.labels) for pixels in (train, test))
    return Images(train_x, train_y, test_x, test_y)


class Cifar(NamedTuple):
    """How a CIFAR is stored: the last file of a form is for testing, the others for training.

    `highest` are the highest values of the bytes before a record's pixels; the last of these bytes
    is the label. `key` names the labels in the python form.
    """

    name: str
    highest: tuple[int, ...]
    key: str
    binary: Form
    python: Form


_SHAPE, _PIXELS = (3, 32, 32), 3 * 32 * 32
_WHERE = "of https://www.cs.toronto.edu/~kriz/cifar.html"
_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_RECORDS = tuple(f"{batch}.bin" for batch in _BATCHES)

CIFAR10 = Cifar(
    name="CIFAR-10",
    highest=(9,),
    key="labels",
    binary=Form("cifar-10-binary.tar.gz", "cifar-10-batches-bin", _RECORDS),
    python=Form("cifar-10-python.tar.gz", "cifar-10-batches-py", _BATCHES),
)
CIFAR100 = Cifar(
    name="CIFAR-100",
    highest=(19, 99),
    key="fine_labels",
    binary=Form("cifar-100-binary.tar.gz", "cifar-100-binary", ("train.bin", "test.bin")),
    python=Form("cifar-100-python.tar.gz", "cifar-100-python", ("train", "test")),
)


def read_cifar(path: str | os.PathLike[str], kind: Cifar) -> tuple[Pixels, Pixels]:
    """The images for training, in the order of the files, and those for testing, as stored."""
    remedy = f"unpack {kind.binary.tarball} {_WHERE}"
    form, files = read_archive(path, (kind.binary, kind.python), remedy)
    read = _from_records if form is kind.binary else _from_pickle
    *train, test = (read(file, kind) for file in files)
    values, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return Pixels(values, labels), test


def _from_records(file: File, kind: Cifar) -> Pixels:
    size = len(kind.highest) + _PIXELS
    again = f"unpack {kind.binary.tarball} {_WHERE} again"
    if not file.data or len(file.data) % size:
        raise ValueError(
            f"{file.where} has {len(file.data)} bytes: expected a multiple of {size}, the size of "
            f"a record of {kind.name}; it was cut off or is another file: {again}."
        )
    records = np.frombuffer(file.data, np.uint8).reshape(-1, size)
    for found, highest in zip(records.T, kind.highest, strict=False):
        _check_labels(file.where, found, highest, kind, again)
    values = records[:, -_PIXELS:].reshape(-1, *_SHAPE)
    return Pixels(values, records[:, len(kind.highest) - 1].astype(np.int64))


def _from_pickle(file: File, kind: Cifar) -> Pixels:
    again = f"get the original {kind.python.tarball} {_WHERE} again"
    batch = unpickled(file.where, file.data, again)
    if not {kind.key, "data"} <= set(batch):
        raise ValueError(
            f"{file.where} has {', '.join(batch)[:200] or 'no entries'}: expected {kind.key!r} and "
            f"'data', as in {kind.name}; it is another data set's: {again}."
        )
    labels, values = batch[kind.key], batch["data"]
    if not isinstance(values, np.ndarray):
        raise ValueError(f"{file.where} has no array of bytes as 'data': expected one; {again}.")
    # Before the labels are checked, of which a small file may have very many.
    if type(labels) is not list or not labels or values.shape != (len(labels), _PIXELS):
        count = len(labels) if type(labels) is list else "no list of"
        raise ValueError(
            f"{file.where} has {count} labels and data of shape {list(values.shape)}: "
            f"expected at least one image, and {_PIXELS} values for each label; {again}."
        )
    if set(map(type, labels)) != {int}:
        raise ValueError(f"{file.where} has labels that are no integers: expected some; {again}.")
    _check_labels(file.where, np.array(labels), kind.highest[-1], kind, again)
    return Pixels(values.reshape(-1, *_SHAPE), np.array(labels))


def _check_labels(where: str, labels: NDArray[Any], highest: int, kind: Cifar, again: str) -> None:
    wrong = labels[(labels < 0) | (labels > highest)]
    if len(wrong):
        raise ValueError(
            f"{where} has the label {wrong[0]}: expected 0 to {highest} in {kind.name}; it is "
            f"another data set's or damaged: {again}."
        )


_SIDE = 28
_FILES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)


def read_mnist(path: str | os.PathLike[str]) -> tuple[Pixels, Pixels]:
    """MNIST's images for training and for testing, as stored."""
    return _read_idx(path, "MNIST/raw", "ossci-datasets.s3.amazonaws.com/mnist")


def _read_idx(path: str | os.PathLike[str], inner: str, site: str) -> tuple[Pixels, Pixels]:
    """The images in the directory, or in one of the folders that unpacking may give."""
    remedy = f"get the four files of https://{site}"
    paths = []
    for name in _FILES:
        spellings = (name, name.replace("-idx", ".idx"))
        names = [str(Path(at, spelt)) for at in ("", "raw", inner) for spelt in spellings]
        paths.append(find_file(Path(path), names, _FILES, remedy))
    files = read_files(paths, remedy)
    return _pixels(files[0], files[1], remedy), _pixels(files[2], files[3], remedy)


def _pixels(images: File, labels: File, remedy: str) -> Pixels:
    values, classes = _array(images, 3, remedy), _array(labels, 1, remedy)
    if values.shape[1:] != (_SIDE, _SIDE) or not len(values):
        raise ValueError(
            f"{images.where} has the shape {list(values.shape)}: expected at least one image of "
            f"{_SIDE} x {_SIDE}; it is another data set's: {remedy} again."
        )
    if len(classes) != len(values):
        raise ValueError(
            f"{labels.where} has {len(classes)} labels and {images.where} {len(values)} images: "
            f"expected equally many; they are of different sets: {remedy} again."
        )
    if classes.max() > 9:
        raise ValueError(
            f"{labels.where} has the label {classes.max()}: expected 0 to 9; it is another data "
            f"set's: {remedy} again."
        )
    return Pixels(values[:, None], classes.astype(np.int64))


def _array(file: File, dimensions: int, remedy: str) -> NDArray[np.uint8]:
    """The bytes after the header: 0, 0, 8 for bytes, the number of dimensions, and each of them."""
    start = 4 + 4 * dimensions
    magic = bytes((0, 0, 8, dimensions))
    if file.data[:4] != magic or len(file.data) < start:
        raise ValueError(
            f"{file.where} begins with {file.data[:4].hex(' ') or 'nothing'} and has "
            f"{len(file.data)} bytes: expected {magic.hex(' ')}, an IDX file of bytes in "
            f"{dimensions} dimensions, and its sizes; it is another file: {remedy} again."
        )
    shape = [int(size) for size in np.frombuffer(file.data[4:start], ">u4")]
    if len(file.data) - start != math.prod(shape):
        raise ValueError(
            f"{file.where} has {len(file.data) - start} bytes after its header: expected "
            f"{math.prod(shape)} for the shape {shape}; it was cut off or damaged: {remedy} again."
        )
    return np.frombuffer(file.data, np.uint8, offset=start).reshape(shape)
