"""Images of any source, with the names of their classes."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from codauc._internal.checks import listed
from codauc.data.cifar import CIFAR10, CIFAR100, Cifar, read_cifar
from codauc.data.data_settings import DataSettings
from codauc.data.fingerprint import Marks, row_marks
from codauc.data.image_files import ImageFiles
from codauc.data.image_folders import SUFFIXES, Scaling, image_folder, image_table
from codauc.data.labelled_images import Images, Pixels, scaled
from codauc.data.standard_images import fashion_tiny, read_mnist

SAMPLE = "fashion-tiny"  # comes with the package
TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq", ".arrow", ".feather", ".ipc", ".npy", ".npz")
_TESTS = ("test", "val", "validation", "valid")
_IMAGE_SIZE = 64


@dataclass(frozen=True)
class NamedImages:
    """Images with the names of their classes, by number."""

    x: Any
    y: Tensor
    classes: list[Any]
    test_x: Any = None
    test_y: Tensor | None = None
    marks: Marks | None = None  # of each image as it was stored, before it was scaled
    test_marks: Marks | None = None


def known_labels(settings: DataSettings, y: Tensor | None, classes: list[Any]) -> Tensor | None:
    """By the classes of training; None where there are none, or not all are known."""
    names = [str(name) for name in classes]
    if y is None or not names:
        return None
    strange = sorted(set(names) - {*settings.positive, *settings.negative})
    if strange and settings.negative:
        raise ValueError(
            f"{settings.source} has the classes {listed(strange)}: expected those of training, "
            f"{listed((*settings.positive, *settings.negative))}."
        )
    chosen = [i for i, name in enumerate(names) if name in settings.positive]
    return torch.isin(y, torch.tensor(chosen, dtype=y.dtype))


def binary_labels(settings: DataSettings, y: Tensor, classes: list[Any]) -> Tensor:
    """Which labels are positive."""
    names = [str(name) for name in classes]
    if settings.positive == ("half",):
        return y < len(classes) // 2
    if not settings.positive:
        raise ValueError(
            f"{settings.source} has the classes {listed(names)}: expected to be told which are "
            "positive; give positive=NAME[,NAME...], or half for the first half of them."
        )
    for name in settings.positive:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "choose from them."
            raise ValueError(
                f"positive={name!r}: {settings.source} has the classes {listed(names)}; {hint}"
            )
    chosen = [i for i, name in enumerate(names) if name in settings.positive]
    if len(chosen) == len(names):
        raise ValueError(
            f"positive names every class of {settings.source}: expected some negative."
        )
    return torch.isin(y, torch.tensor(chosen))


def read_images(settings: DataSettings, *, labelled: bool = True) -> NamedImages:
    """The images of an archive, of folders or of a table; those to be scored need no labels."""
    path = Path(settings.source)
    if settings.images is not None:
        return _image_table(settings, labelled=labelled)
    archive = _archive_in(settings.source)
    if archive is not None and settings.test is not None:
        raise ValueError(
            f"test={settings.test} with {settings.source}, which has a test set of its own: "
            "leave it out."
        )
    if archive is not None:
        return archive
    if not path.is_dir():
        raise ValueError(
            f"{path}: expected a name that ends in {', '.join(TABLES)}, an archive of CIFAR, or a "
            "directory of images; rename it to what it is."
        )
    return _folders(settings, path, labelled=labelled)


def holds(path: Path, name: str) -> bool:
    """Whether `path` is, or holds, what a data set of the paper is known by."""
    if name in _CIFARS:
        return _holds(path, _CIFARS[name])
    inner = path / "train"
    root = inner if inner.is_dir() else path
    return root.is_dir() and any(root.glob("n[0-9]*"))


_CIFARS = {"cifar10": CIFAR10, "cifar100": CIFAR100}


def _archive_in(source: str) -> NamedImages | None:
    """The images of a known archive."""
    path = Path(source)
    if source == SAMPLE:
        return _archive(fashion_tiny())
    for kind in (CIFAR10, CIFAR100):
        if _holds(path, kind):
            return _scaled(*read_cifar(path, kind))
    return _scaled(*read_mnist(path)) if path.is_dir() and _holds_idx(path) else None


def _scaled(train: Pixels, test: Pixels) -> NamedImages:
    images = _archive(scaled(train, test))
    return replace(images, marks=row_marks(train.values), test_marks=row_marks(test.values))


def _archive(images: Images) -> NamedImages:
    classes = list(range(int(images.train_y.max()) + 1))
    return NamedImages(images.train_x, images.train_y, classes, images.test_x, images.test_y)


def _holds(path: Path, kind: Cifar) -> bool:
    names = [name for form in (kind.binary, kind.python) for name in (form[0], form[1])]
    files = [*kind.binary[2][:1], *kind.python[2][:1]]
    if not path.is_dir():
        return path.name in names
    if kind is CIFAR100 and (path / "train").is_dir():
        files.remove("train")
    return any((path / name).exists() for name in [*names, *files])


def _holds_idx(path: Path) -> bool:
    folders = ("", "raw", "MNIST/raw", "FashionMNIST/raw")
    return any(any((path / folder).glob("train-images*idx3*")) for folder in folders)


def _scaling(settings: DataSettings) -> tuple[int, Scaling]:
    scaling: Scaling = {} if settings.channels is None else {"channels": settings.channels}
    return settings.image_size or _IMAGE_SIZE, scaling


def _folders(settings: DataSettings, path: Path, *, labelled: bool) -> NamedImages:
    size, scaling = _scaling(settings)
    train = path / "train"
    folders = [entry for entry in path.iterdir() if entry.is_dir() and entry.name[0] != "."]
    if not labelled and not folders:
        files = sorted(f for f in path.iterdir() if f.name.lower().endswith(SUFFIXES))
        return NamedImages(ImageFiles(files, size, **scaling), torch.zeros(len(files)).long(), [])
    laid_out = train.is_dir()
    found = image_folder(train if laid_out else path, size, **scaling)
    tests = [path / name for name in _TESTS if laid_out and (path / name).is_dir()]
    directory = Path(settings.test) if settings.test else tests[0] if tests else None
    if directory is None:
        return NamedImages(found.x, found.y, found.classes)
    other = image_folder(directory, size, **scaling)
    if not set(other.classes) <= set(found.classes):
        strange = sorted(set(other.classes) - set(found.classes))
        raise ValueError(f"{directory} has the classes {listed(strange)}, which {train} lacks.")
    places = torch.tensor([found.classes.index(name) for name in other.classes])
    return NamedImages(found.x, found.y, found.classes, other.x, places[other.y])


def _image_table(settings: DataSettings, *, labelled: bool) -> NamedImages:
    size, scaling = _scaling(settings)
    if settings.file_column is None or settings.target is None:
        raise ValueError(
            "images with a table: expected file_column=COLUMN, of file names, and target=COLUMN."
        )

    def read(source: str, target: str | None = settings.target) -> tuple[ImageFiles, list[str]]:
        column = str(settings.file_column)
        directory = str(settings.images)
        return image_table(source, directory, column, str(target), size=size, **scaling)

    try:
        x, labels = read(settings.source)
    except ValueError:
        if labelled:
            raise
        x, _ = read(settings.source, settings.file_column)  # without labels
        return NamedImages(x, torch.zeros(len(x)).long(), [])
    names, which = np.unique(labels, return_inverse=True)
    whole = NamedImages(x, torch.from_numpy(which), names.tolist())
    if settings.test is None:
        return whole
    test_x, test_labels = read(settings.test)
    strange = sorted(set(test_labels) - set(names.tolist()))
    if strange:
        raise ValueError(f"{settings.test} has the labels {listed(strange)}: not in training.")
    return replace(
        whole, test_x=test_x, test_y=torch.from_numpy(np.searchsorted(names, test_labels))
    )
