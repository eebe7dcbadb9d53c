"""Where image files and their labels are found: folders of classes, tables, ImageNet."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from codauc._internal.checks import real, whole
from codauc._internal.random_streams import generator
from codauc.data.image_files import ImageFiles
from codauc.data.tables.column_roles import no_column
from codauc.data.tables.row_selection import all_rows
from codauc.data.tables.table_sources import open_table

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


class Scaling(TypedDict, total=False):
    """The arguments of `ImageFiles` beside the files and the size."""

    channels: int
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None


class ImageFolder(NamedTuple):
    """Images, the names of the classes, and each image's label [N]: its class's place in them."""

    x: ImageFiles
    classes: list[str]
    y: Tensor


class ImageSplit(NamedTuple):
    """Image files and class labels [N], for training and for testing."""

    train_x: ImageFiles
    train_y: Tensor
    test_x: ImageFiles
    test_y: Tensor


def image_folder(
    directory: str | os.PathLike[str], size: int = 224, **scaling: Unpack[Scaling]
) -> ImageFolder:
    """The images of `directory/<class>/`, at any depth; each folder there is a class.

    Classes and files are in the order of their names, whatever the file system's order. Names
    that begin with a dot are passed over, and so are files without an image's suffix: .png, .jpg,
    .jpeg, .bmp, .gif, .tif, .tiff or .webp, in small or capital letters. Links are followed.
    `size` and `scaling` are those of `ImageFiles`.

    >>> import tempfile, PIL.Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("dog", "cat"):
    ...         os.mkdir(f"{folder}/{name}")
    ...         PIL.Image.new("L", (9, 9)).save(f"{folder}/{name}/1.png")
    ...     image_folder(folder, size=8)[1:]
    (['cat', 'dog'], tensor([0, 1]))
    """
    root = _directory(directory)
    classes, names, counts = _classes(root), list[str](), list[int]()
    for label in classes:
        found = list(_images(root, label))
        if not found:
            raise ValueError(
                f"{os.path.join(root, label)} has no images: expected some, as each folder is a "
                "class; add them or remove the folder."
            )
        names += found
        counts.append(len(found))
    labels = torch.arange(len(classes)).repeat_interleave(torch.tensor(counts))
    return ImageFolder(ImageFiles(names, size, root=root, **scaling), classes, labels)


def imagenet(
    directory: str | os.PathLike[str],
    seed: int,
    size: int = 224,
    *,
    held_out: float = 0.01,
    **scaling: Unpack[Scaling],
) -> ImageSplit:
    """ImageNet's training images, of which a random part `held_out` is for testing.

    `directory` holds the class folders (`n01440764/*.JPEG`, ...), or a folder `train` with them.
    A label is the place of its folder in the order of their names. Of n images `held_out * n`
    rounded to an integer, at least one, are held out, and all others are for training. The `seed`
    decides which, from all images alike and not class by class, so that classes differ in the
    part held out.
    """
    seed = whole("seed", seed, least=0, remedy="use 0 if any seed will do")
    part = real("held_out", held_out, above=0, below=1, remedy="use 0.01 for 1% of the images")
    root = _directory(directory)
    inner = os.path.join(root, "train")
    root = inner if os.path.isdir(inner) else root
    strange = [name for name in _classes(root) if not re.fullmatch(r"n\d{8}", name)]
    if strange:
        raise ValueError(
            f"{root} has the folder {strange[0]!r}: expected ImageNet's alone, such as n01440764; "
            "give the directory that holds them, or use image_folder."
        )
    x, _, y = image_folder(root, size, **scaling)
    test, train = _split(len(x), part, seed)
    return ImageSplit(x.take(train), y[train], x.take(test), y[test])


def image_table(
    csv_path: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    file_column: str,
    target: str,
    *,
    size: int = 224,
    suffix: str = "",
    **scaling: Unpack[Scaling],
) -> tuple[ImageFiles, list[str]]:
    """The images that a CSV file names, and their labels: the texts in the column `target`.

    The file is read as by `read_table`, which also knows Parquet and Arrow. Each row is a sample,
    so a file named twice is two samples. Names in `file_column` are relative to `directory` and may
    not lead out of it; `suffix`, such as ".png", is added to each.
    """
    root, names, labels = _directory(directory), list[str](), list[str]()
    path = _path("csv_path", csv_path)
    if not isinstance(suffix, str):
        raise ValueError(f"suffix={suffix!r}: expected a text such as '.png'; use '' for none.")
    for where, name, label in _table(path, file_column, target):
        _inside(root, name + suffix, where)
        if not label:
            raise ValueError(f"{where} has no text in {target!r}: expected a label; give it one.")
        names.append(name + suffix)
        labels.append(label)
    return ImageFiles(names, size, root=root, **scaling), labels


def _path(name: str, value: str | os.PathLike[str]) -> str:
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"{name}={value!r}: expected a path; give it as str or pathlib.Path.")
    return os.fspath(value)


def _directory(directory: str | os.PathLike[str]) -> str:
    path = _path("directory", directory)
    if not os.path.isdir(path):
        raise ValueError(
            f"directory={path!r} is not a directory: expected the one that holds the images; "
            "correct the path."
        )
    return os.path.abspath(path)


def _visible(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        seen = (entry for entry in entries if not entry.name.startswith("."))
        return sorted(seen, key=lambda entry: entry.name)


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(SUFFIXES)


def _classes(root: str) -> list[str]:
    """The names of the folders in `root`, beside which there may be no images."""
    entries = _visible(root)
    classes = [entry.name for entry in entries if entry.is_dir()]
    if not classes:
        raise ValueError(
            f"{root} has no folders: expected one for each class, with its images; give the "
            "directory that holds them, or use image_table."
        )
    stray = [entry.path for entry in entries if _is_image(entry) and not entry.is_dir()]
    if stray:
        raise ValueError(
            f"{stray[0]} is in no folder: expected each image in that of its class; move it there."
        )
    return classes


def _images(root: str, inside: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """The images in `root/inside` and its folders, as paths relative to `root`."""
    folder = os.path.join(root, inside)
    here = os.path.realpath(folder)
    if here in above:
        raise ValueError(
            f"{folder} is a link to a folder that holds it: expected an end; remove the link."
        )
    for entry in _visible(folder):
        name = os.path.join(inside, entry.name)
        if entry.is_dir():
            yield from _images(root, name, (*above, here))
        elif _is_image(entry):
            if not entry.is_file():
                raise ValueError(f"{entry.path} is not a file: is it a broken link? Remove it.")
            yield name


def _split(count: int, part: float, seed: int) -> tuple[Tensor, Tensor]:
    """The numbers below `count` in two parts, each in order; the first is drawn by `seed`."""
    first = max(1, round(part * count))
    if first >= count:
        raise ValueError(
            f"held_out={part:g} of {count} images is {first}: expected some for training too; "
            "hold out less."
        )
    source = generator(np.random.SeedSequence(seed, spawn_key=(4,)))
    shuffled = torch.randperm(count, generator=source)
    return shuffled[:first].sort().values, shuffled[first:].sort().values


def _table(path: str, file_column: str, target: str) -> Iterator[tuple[str, str, str]]:
    """For each row where it is, for messages, the name of a file and its label."""
    columns = list(dict.fromkeys((file_column, target)))
    table, row = open_table(Path(path), dict.fromkeys(columns, "category")), 0
    for column in columns:
        if column not in table.kinds:
            raise ValueError(no_column(path, column, list(table.kinds)))
    for _, batch in all_rows(table, columns):
        texts = (batch.column(name).to_pylist() for name in (file_column, target))
        for name, label in zip(*texts, strict=True):
            yield f"{path}, row {row},", str(name or ""), "" if label is None else str(label)
            row += 1


def image_groups(csv_path: str, file_column: str, group: str) -> list[str]:
    """The group of each image that a table names: the texts in its column `group`."""
    found = list[str]()
    for where, _, text in _table(csv_path, file_column, group):
        if not text:
            raise ValueError(
                f"{where} has no text in {group!r}: expected a group in every row; fill it in, or "
                "leave the row out."
            )
        found.append(text)
    return found


def _inside(root: str, name: str, where: str) -> None:
    """Refuse a name that leads out of `root` or to no file."""
    if PurePath(name).anchor or ".." in PurePath(name).parts:
        raise ValueError(
            f"{where} names {name!r}: expected a path relative to {root}, without '..'; give the "
            "directory above all images."
        )
    if not os.path.isfile(os.path.join(root, name)):
        raise ValueError(
            f"{where} names {name!r}: expected a file in {root}, where there is none; correct the "
            "name or the directory, or add a suffix, such as suffix='.png'."
        )
