"""Class folders of images decoded once, into bytes that are mapped from the disk."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codauc._internal.files import read_text, whole_file
from codauc._internal.formats import size as size_text
from codauc.data.archives import tar_files
from codauc.data.fingerprint import Marks, row_marks
from codauc.data.image_files import SCALES, decoded
from codauc.data.image_folders import SUFFIXES
from codauc.data.rows import Rows

ABOUT = "decoded.json"  # written last: without it a directory is not whole
TARS = (".tar", ".tar.gz", ".tgz")
TESTS = ("test", "val", "validation", "valid")
_CLASS = re.compile(r"n\d{8}")  # as ImageNet's folders are named
_LOOK = 50  # entries of a tar file that show what it is

Read = Callable[[], bytes]


class DecodedImages(Rows):
    """Images as bytes, as rows: `(pixel / 255 - mean) / std` with ImageNet's mean and std.

    >>> DecodedImages(np.zeros((2, 3, 8, 8), np.uint8)).gather(torch.tensor([1])).shape
    torch.Size([1, 3, 8, 8])
    """

    # Rows stay in the system's cache, and neighbours are of one class: so `block` is None.

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        self.pixels, self._numbers = pixels.view(np.ndarray), np.arange(len(pixels))
        mean, std = (torch.tensor(part).view(-1, 1, 1) for part in SCALES[pixels.shape[1]])
        self._factor, self._shift = 1 / (255 * std), -mean / std

    def __len__(self) -> int:
        return len(self._numbers)

    def take(self, indices: Tensor) -> DecodedImages:
        """The samples of these numbers, in this order; the bytes stay where they are."""
        taken = copy.copy(self)
        taken._numbers = self._numbers[indices.numpy()]
        return taken

    def gather(self, indices: Tensor) -> Tensor:
        """The images of these numbers [n, channels, size, size], in this order."""
        pixels = torch.from_numpy(self.pixels[self._numbers[indices.numpy()]])
        return pixels.float().mul_(self._factor).add_(self._shift)


class DecodedPart(NamedTuple):
    """The images of a part, their classes' places, and the marks of their bytes."""

    x: DecodedImages
    y: Tensor
    marks: Marks


class _ImageFile(NamedTuple):
    part: str
    label: str
    name: str


def is_class_folders(path: Path) -> bool:
    """Whether a directory or a tar file holds folders named as ImageNet's, with images."""
    if path.is_dir():
        inner = path / "train"
        return any((inner if inner.is_dir() else path).glob("n[0-9]*"))
    if not path.name.endswith(TARS) or not path.is_file():
        return False
    names = (name for _, (name, _) in zip(range(_LOOK), tar_files(path), strict=False))
    return any(_place(name) for name in names)


def is_decoded(path: Path) -> bool:
    """Whether `decode` wrote this directory."""
    return (path / ABOUT).is_file()


def decode(
    source: Path, size: int, folder: Path, progress: Callable[[int, int], object] | None = None
) -> None:
    """Decode the images of class folders, or of a tar file of them, into `folder`.

    An image is resized to a shorter side of `size`, and its middle square kept, as by `ImageFiles`.
    What lies in a folder test, val, valid or validation is the test set. Classes and images are in
    the order of their names. What is interrupted begins again. After each image
    `progress(images done, images in all)` is called.
    """
    names = sorted(place for name, _ in _files(source) if (place := _place(name)))
    if not names:
        raise ValueError(
            f"{source} holds no images in folders such as n01440764: expected ImageNet's, or a tar "
            "file of them."
        )
    folder.mkdir(parents=True, exist_ok=True)
    _check_room(folder, len(names) * 3 * size**2)
    classes = sorted({name.label for name in names})
    parts = {part: [n for n in names if n.part == part] for part in ("train", "test")}
    for part in [part for part, some in parts.items() if not some]:
        del parts[part]
    pixels = {part: _mapped(folder / f"{part}.npy", len(n), size) for part, n in parts.items()}
    places = {name: i for some in parts.values() for i, name in enumerate(some)}
    done = 0
    for name, read in _files(source):
        place = _place(name)
        if place is not None:
            pixels[place.part][places[place]] = decoded(read(), f"{source}: {name}", size)
            done += 1
            if progress is not None:
                progress(done, len(names))
    for part, some in parts.items():
        labels = np.array([classes.index(name.label) for name in some])
        pixels[part].flush()
        np.savez(folder / f"{part}.npz", labels=labels, marks=row_marks(pixels[part]))
    about = {"source": source.name, "size": size, "classes": classes, "parts": list(parts)}
    with whole_file(folder / ABOUT) as partial:
        partial.write_text(json.dumps(about), encoding="utf-8")


def read_decoded(folder: Path) -> tuple[list[str], dict[str, DecodedPart]]:
    """The classes, and the parts "train" and, if there is one, "test"."""
    try:
        about = json.loads(read_text(folder / ABOUT))
        parts = {part: _part(folder, part) for part in about["parts"]}
        return [str(name) for name in about["classes"]], parts
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder} is damaged ({type(error).__name__}: {error}): expected what was decoded; "
            "remove it, and the images are decoded again."
        ) from error


def _part(folder: Path, part: str) -> DecodedPart:
    pixels = np.load(folder / f"{part}.npy", mmap_mode="r", allow_pickle=False)
    with np.load(folder / f"{part}.npz", allow_pickle=False) as arrays:
        labels, marks = arrays["labels"], arrays["marks"]
    if not len(pixels) == len(labels) == len(marks):
        raise ValueError(f"{part} has {len(pixels)} images and {len(labels)} labels")
    return DecodedPart(DecodedImages(pixels), torch.from_numpy(labels), marks)


def _mapped(path: Path, count: int, size: int) -> Any:
    return np.lib.format.open_memmap(path, "w+", np.uint8, (count, 3, size, size))


def _check_room(folder: Path, needed: int) -> None:
    spare = shutil.disk_usage(folder).free
    if spare < needed:
        with suppress(OSError):
            folder.rmdir()
        raise ValueError(
            f"{folder}: {size_text(spare)} are free where {size_text(needed)} of decoded images "
            "are to be written; choose another directory."
        )


def _files(source: Path) -> Iterator[tuple[str, Read]]:
    """The name of every file below a directory or in a tar file, and how it is read."""
    if not source.is_dir():
        yield from tar_files(source)
        return
    for path in source.rglob("*"):
        yield path.relative_to(source).as_posix(), path.read_bytes


def _place(name: str) -> _ImageFile | None:
    """The part and the class that a path stands for; None if it is no image of a class."""
    parts = PurePosixPath(name).parts
    labels = [part for part in parts[:-1] if _CLASS.fullmatch(part)]
    if not labels or not name.lower().endswith(SUFFIXES) or parts[-1].startswith("."):
        return None
    before = parts[: parts.index(labels[0])]
    test = bool(before) and before[-1] in TESTS
    return _ImageFile("test" if test else "train", labels[0], name)
