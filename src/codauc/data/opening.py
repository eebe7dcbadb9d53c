"""Any source, opened: a worker's samples for training, for validation and for testing."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from codauc.agreement import compare, together
from codauc.checks import listed
from codauc.config import DataSettings
from codauc.data.binary import thin_negatives
from codauc.data.cifar import CIFAR10, CIFAR100, Cifar
from codauc.data.image_files import ImageFiles
from codauc.data.image_folders import SUFFIXES, Scaling, image_folder, image_table
from codauc.data.shards import ShardCount, even_shards, skewed_shards
from codauc.data.sources import cifar10, cifar100, fashion_tiny, mnist
from codauc.data.splits import PARTS, Split
from codauc.data.tables import Encoder, Table, read_table
from codauc.group import Group

SAMPLE = "fashion-tiny"  # comes with the package
_TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq", ".arrow", ".feather", ".ipc", ".npy", ".npz")
_TESTS = ("test", "val", "validation", "valid")
_IMAGE_SIZE = 64

Told = Callable[[int], object]


@dataclass(frozen=True)
class Part:
    """A worker's samples of one part; `rows` are their numbers in the source."""

    x: Any
    y: Tensor | None
    rows: Tensor = field(repr=False)
    counts: list[ShardCount]  # every worker's

    @property
    def samples(self) -> int:
        """How many samples all workers have."""
        return sum(count.samples for count in self.counts)

    @property
    def positives(self) -> int:
        """How many of them are positive."""
        return sum(count.positives for count in self.counts)


@dataclass(frozen=True)
class Opened:
    """The parts of a source, and what is known of it."""

    train: Part
    validation: Part | None
    test: Part | None
    positive: tuple[str, ...]
    negative: tuple[str, ...]
    encoder: Encoder | None = None  # of a table or an array
    shape: tuple[int, ...] = ()  # of an image: channels, height, width

    def network(self) -> tuple[str, dict[str, Any]]:
        """The name of a network that fits, and the arguments it cannot do without."""
        if self.shape:
            return "convnet", {"in_channels": self.shape[0]}
        assert self.encoder is not None
        return "tabular", self.encoder.network()


@dataclass(frozen=True)
class _Images:
    """Images with the names of their classes, by number."""

    x: Any
    y: Tensor
    classes: list[Any]
    test_x: Any = None
    test_y: Tensor | None = None


def open_data(
    settings: DataSettings, group: Group, seed: int = 0, progress: Told | None = None
) -> Opened:
    """A worker's part of what `settings` name: a table, arrays, images in folders or archives.

    Which samples are for training, validation and testing is decided by `seed` and the labels, not
    by the number of workers. What is learnt of a table's columns comes from the training part.
    """
    settings = replace(settings, source=_own(settings, group))
    if together(group, lambda: _is_table(settings), "start"):
        return _open_table(settings, group, seed, progress)
    for name in ("silo", "own"):
        if getattr(settings, name):
            raise ValueError(f"{name} with images: expected a table; leave it out.")
    return _open_images(settings, group, seed)


def _own(settings: DataSettings, group: Group) -> str:
    return settings.source.replace("{rank}", str(group.rank)) if settings.own else settings.source


def open_whole(
    settings: DataSettings, group: Group, encoder: Encoder | None, progress: Told | None = None
) -> Part:
    """All samples of a source as one part, read as in training; archives give their test images."""
    if _is_table(settings):
        table = read_table(
            settings.source,
            _target(settings),
            positive=None,
            group=group,
            encoder=_known(encoder, settings),
            nan=settings.nan,
            own=settings.own,
            drop=settings.drop,
            progress=progress,
        )
        return _part(table)
    images = together(group, lambda: _images(settings, labelled=False), "start")
    x, y = (images.x, images.y) if images.test_x is None else (images.test_x, images.test_y)
    labels = _known_labels(settings, y, images.classes)
    return _share(x, labels, torch.arange(len(x)), group, settings, seed=0)


def _known_labels(settings: DataSettings, y: Tensor | None, classes: list[Any]) -> Tensor | None:
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


def _known(encoder: Encoder | None, settings: DataSettings) -> Encoder:
    if encoder is None:
        raise ValueError(f"{settings.source} is a table: expected images, as in training.")
    return encoder


def _target(settings: DataSettings) -> Any:
    return settings.target


def _is_table(settings: DataSettings) -> bool:
    """Whether the source is a table or an array, not images; raise if there is no such source."""
    path = Path(settings.source)
    if settings.images is not None or settings.source == SAMPLE:
        return False
    if not path.exists():
        raise ValueError(_no_such(path))
    if path.is_dir():
        return any(path.glob("*.parquet")) or any(path.glob("*.pq"))
    return bool(set(_TABLES) & {suffix.lower() for suffix in path.suffixes[-2:]})


def _no_such(path: Path) -> str:
    there = os.listdir(path.parent) if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, there, n=1)
    hint = f"did you mean {str(path.parent / near[0])!r}?" if near else "correct the path."
    if not path.parent.is_dir():
        hint = f"there is no directory {str(path.parent)!r} either; correct the path."
    return (
        f"{str(path)!r} does not exist: expected a table (.csv, .parquet, .arrow, .npy, .npz), a "
        f"directory of images or an archive's, or {SAMPLE!r}; {hint}"
    )


def _split(settings: DataSettings, seed: int, *, own_test: bool) -> Split | None:
    test = 0.0 if own_test else settings.test_fraction
    if not test and not settings.validation_fraction:
        return None
    return Split(test, settings.validation_fraction, seed)


def _open_table(settings: DataSettings, group: Group, seed: int, progress: Told | None) -> Opened:
    if settings.target is None:
        raise ValueError(
            f"{settings.source} is a table: expected the name of its column of labels; give "
            "--target COLUMN."
        )
    split = _split(settings, seed, own_test=settings.test is not None)
    encoder: Encoder | None = None

    def read(source: str, part: str | None) -> Table:
        # an array's labels are a file or an array of its own
        target = settings.target if encoder is None or source.endswith(".npy") else None
        return read_table(
            source,
            target,
            positive=settings.positive or None,
            group=group,
            seed=seed,
            encoder=encoder,
            categories=settings.categories if encoder is None else (),
            drop=settings.drop if encoder is None else (),
            keep_negatives=settings.keep_negatives if part == "train" else 1.0,
            silo=settings.silo if part is not None else None,
            skew=settings.skew if part == "train" else None,
            own=settings.own,
            split=split if part is not None else None,
            part=part or "train",
            nan=settings.nan,
            progress=progress,
        )

    train = read(settings.source, "train" if split else None)
    encoder = train.encoder
    parts = {
        "validation": settings.validation_fraction,
        "test": 0 if settings.test else split and split.test,
    }
    read_parts = {
        part: _part(read(settings.source, part)) for part, share in parts.items() if share
    }
    if settings.test is not None:
        read_parts["test"] = _part(read(settings.test, None))
        if read_parts["test"].y is None:
            raise ValueError(
                f"{settings.test} has no column {settings.target!r}: expected labels, to test."
            )
    return Opened(
        _part(train),
        read_parts.get("validation"),
        read_parts.get("test"),
        encoder.target.positive,
        encoder.target.negative,
        encoder,
        (len(encoder.numbers), *encoder.shape) if encoder.shape else (),
    )


def _part(table: Table) -> Part:
    return Part(table.x, table.y, table.rows, table.counts)


def _open_images(settings: DataSettings, group: Group, seed: int) -> Opened:
    images = together(group, lambda: _images(settings), "start")
    labels = together(group, lambda: _binary(settings, images.y, images.classes), "start")
    compare(group, {"labels": labels, "source": len(images.x)}, torch.device("cpu"))
    split = _split(settings, seed, own_test=images.test_x is not None)
    everything = torch.arange(len(labels))
    rows = {part: split.rows(labels, part) if split else everything for part in PARTS}
    kept = thin_negatives(labels[rows["train"]], settings.keep_negatives, seed)
    train = _share(images.x, labels, rows["train"][kept], group, settings, seed, train=True)
    validation = test = None
    if settings.validation_fraction:
        validation = _share(images.x, labels, rows["validation"], group, settings, seed)
    if images.test_x is not None and images.test_y is not None:
        test_y = _binary(settings, images.test_y, images.classes)
        test = _share(images.test_x, test_y, torch.arange(len(test_y)), group, settings, seed)
    elif split and split.test:
        test = _share(images.x, labels, rows["test"], group, settings, seed)
    positive = {str(images.classes[i]) for i in torch.unique(images.y[labels]).tolist()}
    return Opened(
        train,
        validation,
        test,
        tuple(str(c) for c in images.classes if str(c) in positive),
        tuple(str(c) for c in images.classes if str(c) not in positive),
        shape=tuple(_first(train.x).shape),
    )


def _first(x: Any) -> Tensor:
    return x[0] if isinstance(x, Tensor) else x.gather(torch.tensor([0]))[0]


def _share(
    x: Any,
    labels: Tensor | None,
    rows: Tensor,
    group: Group,
    settings: DataSettings,
    seed: int,
    *,
    train: bool = False,
) -> Part:
    """A worker's share of the samples numbered in `rows`."""
    if train and settings.skew is not None and labels is not None:
        shards = skewed_shards(labels[rows], group.size, settings.skew, seed)
    else:
        shards = even_shards(len(rows), group.size, seed)
    mine = rows[shards[group.rank]].sort().values
    counts = [
        ShardCount(len(s), -1 if labels is None else int(labels[rows[s]].sum())) for s in shards
    ]
    whole = len(mine) == len(x)
    taken = x if whole else x[mine].clone() if isinstance(x, Tensor) else x.take(mine)
    return Part(
        taken, None if labels is None else labels[mine], mine, counts if labels is not None else []
    )


def _binary(settings: DataSettings, y: Tensor, classes: list[Any]) -> Tensor:
    """Which labels are positive."""
    names = [str(name) for name in classes]
    if settings.positive == ("half",):
        return y < len(classes) // 2
    if not settings.positive:
        raise ValueError(
            f"{settings.source} has the classes {listed(names)}: expected to be told which are "
            "positive; give --positive NAME[,NAME...], or half for the first half of them."
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


def _images(settings: DataSettings, *, labelled: bool = True) -> _Images:
    path = Path(settings.source)
    if settings.images is not None:
        return _image_table(settings, labelled=labelled)
    archive = _archive_in(settings.source)
    if archive is not None and settings.test is not None:
        raise ValueError(
            f"--test {settings.test} with {settings.source}, which has a test set of its own: "
            "leave it out."
        )
    if archive is not None:
        return archive
    if not path.is_dir():
        raise ValueError(
            f"{path}: expected a name that ends in {', '.join(_TABLES)}, an archive of CIFAR, or a "
            "directory of images; rename it to what it is."
        )
    return _folders(settings, path, labelled=labelled)


def _archive_in(source: str) -> _Images | None:
    """The images of a known archive."""
    path = Path(source)
    if source == SAMPLE:
        return _archive(fashion_tiny())
    for kind, read in ((CIFAR10, cifar10), (CIFAR100, cifar100)):
        if _holds(path, kind):
            return _archive(read(path))
    return _archive(mnist(path)) if path.is_dir() and _holds_idx(path) else None


def _archive(images: Any) -> _Images:
    classes = list(range(int(images.train_y.max()) + 1))
    return _Images(images.train_x, images.train_y, classes, images.test_x, images.test_y)


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


def _folders(settings: DataSettings, path: Path, *, labelled: bool) -> _Images:
    size, scaling = _scaling(settings)
    train = path / "train"
    folders = [entry for entry in path.iterdir() if entry.is_dir() and entry.name[0] != "."]
    if not labelled and not folders:
        files = sorted(f for f in path.iterdir() if f.name.lower().endswith(SUFFIXES))
        return _Images(ImageFiles(files, size, **scaling), torch.zeros(len(files)).long(), [])
    laid_out = train.is_dir()
    found = image_folder(train if laid_out else path, size, **scaling)
    tests = [path / name for name in _TESTS if laid_out and (path / name).is_dir()]
    directory = Path(settings.test) if settings.test else tests[0] if tests else None
    if directory is None:
        return _Images(found.x, found.y, found.classes)
    other = image_folder(directory, size, **scaling)
    if not set(other.classes) <= set(found.classes):
        strange = sorted(set(other.classes) - set(found.classes))
        raise ValueError(f"{directory} has the classes {listed(strange)}, which {train} lacks.")
    places = torch.tensor([found.classes.index(name) for name in other.classes])
    return _Images(found.x, found.y, found.classes, other.x, places[other.y])


def _image_table(settings: DataSettings, *, labelled: bool) -> _Images:
    size, scaling = _scaling(settings)
    if settings.file_column is None or settings.target is None:
        raise ValueError(
            "images with a table: expected --file-column, the column of file names, and --target."
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
        return _Images(x, torch.zeros(len(x)).long(), [])
    names, which = np.unique(labels, return_inverse=True)
    whole = _Images(x, torch.from_numpy(which), names.tolist())
    if settings.test is None:
        return whole
    test_x, test_labels = read(settings.test)
    strange = sorted(set(test_labels) - set(names.tolist()))
    if strange:
        raise ValueError(f"{settings.test} has the labels {listed(strange)}: not in training.")
    return replace(
        whole, test_x=test_x, test_y=torch.from_numpy(np.searchsorted(names, test_labels))
    )
