"""CIFAR-10 and CIFAR-100 in their binary and their python form, as stored."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codauc.data.archives import File, Form, read_archive
from codauc.data.labelled_images import Pixels
from codauc.data.pickle_reader import unpickled

_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_WHERE = "of https://www.cs.toronto.edu/~kriz/cifar.html"


class Cifar(NamedTuple):
    """How a CIFAR is stored: the last file of a form is for testing, the others for training.

    `highest` are the highest values of the bytes before a record's pixels; the last of these bytes
    is the label. `key` names the labels in the python form.
    """

    name: str
    other: str
    highest: tuple[int, ...]
    key: str
    binary: Form
    python: Form


_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")

CIFAR10 = Cifar(
    name="CIFAR-10",
    other="CIFAR-100",
    highest=(9,),
    key="labels",
    binary=Form(
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        tuple(f"{batch}.bin" for batch in _BATCHES),
    ),
    python=Form("cifar-10-python.tar.gz", "cifar-10-batches-py", _BATCHES),
)

CIFAR100 = Cifar(
    name="CIFAR-100",
    other="CIFAR-10",
    highest=(19, 99),
    key="fine_labels",
    binary=Form("cifar-100-binary.tar.gz", "cifar-100-binary", ("train.bin", "test.bin")),
    python=Form("cifar-100-python.tar.gz", "cifar-100-python", ("train", "test")),
)


def read_cifar(path: str | os.PathLike[str], kind: Cifar) -> tuple[Pixels, Pixels]:
    """The images for training, in the order of the files, and those for testing."""
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
    for key in (kind.key, "data"):
        if key not in batch:
            raise ValueError(
                f"{file.where} has {', '.join(batch)[:200] or 'no entries'}: expected {key!r} too, "
                f"as in {kind.name}; it is another data set's (as {kind.other}): {again}."
            )
    labels, values = batch[kind.key], batch["data"]
    if not isinstance(values, np.ndarray):
        raise ValueError(f"{file.where} has no array of bytes as 'data': expected one; {again}.")
    # Before the labels are looked at, of which a small file may have very many.
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
            f"another data set's (as {kind.other}, whose records have another size) or damaged: "
            f"{again}."
        )
