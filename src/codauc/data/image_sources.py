"""Images of any source, with the names of their classes."""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from codauc._internal.checks import listed
from codauc.data.data_settings import DataSettings
from codauc.data.decoded_images import TESTS, is_class_folders, is_decoded, read_decoded
from codauc.data.fingerprint import Marks, row_marks
from codauc.data.image_files import ImageFiles
from codauc.data.image_folders import SUFFIXES, ImageFolder, Scaling, image_folder, image_table
from codauc.data.standard_images import (
    CIFAR10,
    CIFAR100,
    Cifar,
    Images,
    Pixels,
    fashion_tiny,
    read_cifar,
    read_mnist,
    scaled,
)
from codauc.data.tables.encoder import Target
from codauc.data.tables.labels import choice_note, label, positives_of, resolve
from codauc.data.tables.table_sources import TABLES

SAMPLE = "fashion-tiny"  # comes with the package
_CIFARS = {"cifar10": CIFAR10, "cifar100": CIFAR100}
_IMAGE_SIZE = 64


@dataclass(frozen=True)
class Samples:
    """Images and the numbers of their classes; `marks` are of the images as they were stored."""

    x: Any
    y: Tensor
    marks: Marks | None = None


@dataclass(frozen=True)
class NamedImages:
    """Images with the names of their classes, by number."""

    train: Samples
    classes: list[str]
    test: Samples | None = None


def known_labels(settings: DataSettings, y: Tensor, classes: list[str]) -> Tensor | None:
    """By the classes of training; None where there are none."""
    known = [tuple(map(label, names)) for names in (settings.positive, settings.negative)]
    positive = None if settings.negative else settings.positive
    where, names = f"{settings.source}, the classes", [label(name) for name in classes]
    flags = positives_of(where, Target("class", *known), names, positive)
    return torch.tensor(flags)[y] if classes else None


def positive_classes(
    settings: DataSettings, y: Tensor, classes: list[str]
) -> tuple[Tensor, tuple[str, ...]]:
    """Which classes are positive, and a note where that was decided for the person."""
    if settings.positive == ("half",):
        return torch.arange(len(classes)) < len(classes) // 2, ()
    where, names = f"{settings.source}, the classes", [label(name) for name in classes]
    counts = dict(zip(names, y.bincount(minlength=len(names)).tolist(), strict=True))
    target = resolve(where, "class", counts, settings.positive or None)
    note = choice_note(target, counts, settings.positive or None)
    flags = torch.tensor([name in target.positive for name in names])
    return flags, (f"{note}.",) if note else ()


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
    if is_pattern(settings.source) or _is_image(path):
        files = _matching(settings.source)
        if labelled:
            raise ValueError(
                f"{settings.source}: expected a directory with a folder of images for each class, "
                "to train on; single images can be scored alone."
            )
        size, scaling = _scaling(settings)
        return _unlabelled(ImageFiles(files, size, **scaling))
    if not path.is_dir():
        raise ValueError(
            f"{path}: expected a name that ends in {', '.join(TABLES)}, an archive of CIFAR, or a "
            "directory of images; rename it to what it is."
        )
    return _folders(settings, path, labelled=labelled)


def is_pattern(source: str) -> bool:
    """Whether it stands for files by their names, as in scans/*.png."""
    return glob.has_magic(source) and not Path(source).exists()


def _is_image(path: Path) -> bool:
    return path.name.lower().endswith(SUFFIXES) and path.is_file()


def _matching(source: str) -> list[str]:
    """The image files that a pattern stands for, in the order of their names; or the file itself.

    In a pattern ** stands for folders of any depth.
    """
    found = sorted(glob.glob(source, recursive=True)) if is_pattern(source) else [source]
    images = [name for name in found if _is_image(Path(name))]
    if not images:
        got = f"{len(found)} names that are no images" if found else "no file"
        raise ValueError(
            f"{source!r} stands for {got}: expected images ({', '.join(SUFFIXES)}); correct the "
            "pattern."
        )
    return images


def holds(path: Path, name: str) -> bool:
    """Whether `path` is, or holds, what a data set of the paper is known by."""
    if name in _CIFARS:
        return _holds(path, _CIFARS[name])
    return is_class_folders(path)


def _archive_in(source: str) -> NamedImages | None:
    """The images of a known archive."""
    path = Path(source)
    if source == SAMPLE:
        return _archive(fashion_tiny())
    for kind in _CIFARS.values():
        if _holds(path, kind):
            return _scaled(*read_cifar(path, kind))
    if is_decoded(path):
        return _decoded(path)
    folders = ("", "raw", "MNIST/raw", "FashionMNIST/raw")
    idx = any(any((path / folder).glob("train-images*idx3*")) for folder in folders)
    return _scaled(*read_mnist(path)) if idx else None


def _decoded(path: Path) -> NamedImages:
    classes, parts = read_decoded(path)
    samples = {name: Samples(*part) for name, part in parts.items()}
    return NamedImages(samples["train"], classes, samples.get("test"))


def _scaled(train: Pixels, test: Pixels) -> NamedImages:
    return _archive(scaled(train, test), row_marks(train.values), row_marks(test.values))


def _archive(
    images: Images, marks: Marks | None = None, test_marks: Marks | None = None
) -> NamedImages:
    train = Samples(images.train_x, images.train_y, marks)
    test = Samples(images.test_x, images.test_y, test_marks)
    return NamedImages(train, [str(i) for i in range(int(images.train_y.max()) + 1)], test)


def _holds(path: Path, kind: Cifar) -> bool:
    forms = (kind.binary, kind.python)
    names = [name for form in forms for name in (form.tarball, form.folder)]
    if not path.is_dir():
        return path.name in names
    if any((path / name).exists() for name in names):
        return True
    return any((path / form.files[0]).is_file() for form in forms)


def _scaling(settings: DataSettings) -> tuple[int, Scaling]:
    scaling: Scaling = {} if settings.channels is None else {"channels": settings.channels}
    return settings.image_size or _IMAGE_SIZE, scaling


def _unlabelled(x: ImageFiles) -> NamedImages:
    return NamedImages(Samples(x, torch.zeros(len(x)).long()), [])


def _named(
    found: ImageFolder, source: str, test: ImageFolder | None, test_source: str
) -> NamedImages:
    """Images of files; the classes of the test set are numbered as those of training."""
    train = Samples(found.x, found.y)
    if test is None:
        return NamedImages(train, found.classes)
    strange = sorted(set(test.classes) - set(found.classes))
    if strange:
        raise ValueError(f"{test_source} has the classes {listed(strange)}, which {source} lacks.")
    places = torch.tensor([found.classes.index(name) for name in test.classes])
    return NamedImages(train, found.classes, Samples(test.x, places[test.y]))


def _folders(settings: DataSettings, path: Path, *, labelled: bool) -> NamedImages:
    size, scaling = _scaling(settings)
    folders = [entry for entry in path.iterdir() if entry.is_dir() and entry.name[0] != "."]
    if not labelled and not folders:
        files = sorted(f for f in path.iterdir() if f.name.lower().endswith(SUFFIXES))
        return _unlabelled(ImageFiles(files, size, **scaling))
    root, tests = path, [Path(settings.test)] if settings.test else []
    if (path / "train").is_dir():
        root = path / "train"
        tests += [path / name for name in TESTS if (path / name).is_dir()]
    found = image_folder(root, size, **scaling)
    test = image_folder(tests[0], size, **scaling) if tests else None
    return _named(found, str(root), test, str(tests[0]) if tests else "")


def _image_table(settings: DataSettings, *, labelled: bool) -> NamedImages:
    size, scaling = _scaling(settings)
    directory, column, target = str(settings.images), settings.file_column, settings.target
    if column is None or target is None:
        raise ValueError(
            "images with a table: expected file_column=COLUMN, of file names, and target=COLUMN."
        )

    def read(source: str) -> ImageFolder:
        x, labels = image_table(source, directory, column, target, size=size, **scaling)
        names, which = np.unique(labels, return_inverse=True)
        return ImageFolder(x, names.tolist(), torch.from_numpy(which))

    try:
        found = read(settings.source)
    except ValueError:
        if labelled:
            raise
        x, _ = image_table(settings.source, directory, column, column, size=size, **scaling)
        return _unlabelled(x)
    test = None if settings.test is None else read(settings.test)
    return _named(found, settings.source, test, str(settings.test))
