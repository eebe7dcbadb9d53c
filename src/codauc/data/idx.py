"""Images and labels in IDX files, the form of MNIST and Fashion-MNIST, as stored."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from codauc.data.archives import File, find_file, read_files
from codauc.data.labelled_images import Pixels

_SIDE = 28
_FILES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)


def read_idx(
    path: str | os.PathLike[str], folders: tuple[str, ...], remedy: str
) -> tuple[Pixels, Pixels]:
    """The images for training and those for testing, from the directory or one of its `folders`.

    Each of the four files is plain or ends in `.gz`, and its name may have a dot for the second
    dash, as in `train-images.idx3-ubyte`.
    """
    paths = [_place(Path(path), name, folders, remedy) for name in _FILES]
    files = read_files(paths, _FILES, remedy)
    return _pixels(files[0], files[1], remedy), _pixels(files[2], files[3], remedy)


def _place(root: Path, name: str, folders: tuple[str, ...], remedy: str) -> Path:
    spellings = (name, name.replace("-idx", ".idx"))
    names = [str(Path(folder) / spelt) for folder in ("", *folders) for spelt in spellings]
    return find_file(root, names, _FILES, remedy)


def _pixels(images: File, labels: File, remedy: str) -> Pixels:
    values = _array(images, 3, remedy)
    classes = _array(labels, 1, remedy)
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
