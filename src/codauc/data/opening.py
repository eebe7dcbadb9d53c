"""Any source, opened: a worker's samples for training, for validation and for testing."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from codauc.agreement import compare, together
from codauc.config import DataSettings
from codauc.data.any_images import (
    SAMPLE,
    TABLES,
    NamedImages,
    binary_labels,
    known_labels,
    read_images,
)
from codauc.data.binary import thin_negatives
from codauc.data.rows import as_rows
from codauc.data.shards import ShardCount, even_shards, skewed_shards
from codauc.data.splits import PARTS, Split
from codauc.data.tables import Encoder, Table, read_table
from codauc.group import Group

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


def open_data(
    settings: DataSettings, group: Group, seed: int = 0, progress: Told | None = None
) -> Opened:
    """A worker's part of what `settings` name: a table, arrays, images in folders or archives.

    Which samples are for training, validation and testing is decided by `seed` and the labels, not
    by the number of workers. What is learnt of a table's columns comes from the training part.
    """
    settings = replace(settings, source=_own(settings, group))
    if together(group, lambda: _is_table(settings), "start"):
        return _watched(settings, _open_table(settings, group, seed, progress))
    for name in ("silo", "own"):
        if getattr(settings, name):
            raise ValueError(f"{name} with images: expected a table; leave it out.")
    return _watched(settings, _openread_images(settings, group, seed))


def _watched(settings: DataSettings, opened: Opened) -> Opened:
    """With the test set in the place of the validation set, if that is to be watched."""
    if settings.watch != "test":
        return opened
    if opened.test is None:
        raise ValueError(
            f"watch=test: {settings.source} has no test set; expected --test or --test-fraction."
        )
    return replace(opened, validation=opened.test)


def _own(settings: DataSettings, group: Group) -> str:
    return settings.source.replace("{rank}", str(group.rank)) if settings.own else settings.source


def open_whole(
    settings: DataSettings, group: Group, encoder: Encoder | None, progress: Told | None = None
) -> Part:
    """All samples of a source as one part, read as in training; archives give their test images."""
    if _is_table(settings):
        table = read_table(
            settings.source,
            settings.target,
            positive=None,
            group=group,
            encoder=_known(encoder, settings),
            nan=settings.nan,
            own=settings.own,
            drop=settings.drop,
            progress=progress,
        )
        return _part(table)
    images = together(group, lambda: read_images(settings, labelled=False), "start")
    x, y = (images.x, images.y) if images.test_x is None else (images.test_x, images.test_y)
    labels = known_labels(settings, y, images.classes)
    return _share(x, labels, torch.arange(len(x)), group, settings, seed=0)


def _known(encoder: Encoder | None, settings: DataSettings) -> Encoder:
    if encoder is None:
        raise ValueError(f"{settings.source} is a table: expected images, as in training.")
    return encoder


def _is_table(settings: DataSettings) -> bool:
    """Whether the source is a table or an array, not images; raise if there is no such source."""
    path = Path(settings.source)
    if settings.images is not None or settings.source == SAMPLE:
        return False
    if not path.exists():
        raise ValueError(_no_such(path))
    if path.is_dir():
        return any(path.glob("*.parquet")) or any(path.glob("*.pq"))
    return bool(set(TABLES) & {suffix.lower() for suffix in path.suffixes[-2:]})


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
    if not test and not settings.validation:
        return None
    return Split(test, settings.validation, seed)


def _open_table(settings: DataSettings, group: Group, seed: int, progress: Told | None) -> Opened:
    if settings.target is None:
        raise ValueError(
            f"{settings.source} is a table: expected the name of its column of labels; give "
            "--target COLUMN."
        )
    split = _split(settings, seed, own_test=settings.test is not None)
    encoder: Encoder | None = None

    def read(source: str, part: str, split: Split | None = None, *, own: bool) -> Table:
        # an array's labels are a file or an array of its own
        target = settings.target if encoder is None or source.endswith(".npy") else None
        train = part == "train"
        return read_table(
            source,
            target,
            positive=settings.positive or None,
            group=group,
            seed=seed,
            encoder=encoder,
            categories=settings.categories if encoder is None else (),
            drop=settings.drop if encoder is None else (),
            keep_negatives=settings.keep_negatives if train else 1.0,
            silo=settings.silo if train or split is not None else None,
            skew=settings.skew if train else None,
            own=own,
            split=split,
            part=part if split is not None else "train",
            nan=settings.nan,
            progress=progress,
        )

    train = read(settings.source, "train", split, own=settings.own)
    encoder = train.encoder
    parts: dict[str, Part] = {}
    for part in PARTS[1:]:
        if split is not None and getattr(split, part):
            parts[part] = _part(read(settings.source, part, split, own=settings.own))
    if settings.test is not None:
        own = settings.own and "{rank}" in settings.test
        source = settings.test.replace("{rank}", str(group.rank)) if own else settings.test
        parts["test"] = _part(read(source, "test", own=own))
        if parts["test"].y is None:
            raise ValueError(
                f"{settings.test} has no column {settings.target!r}: expected labels, to test."
            )
    return Opened(
        _part(train),
        parts.get("validation"),
        parts.get("test"),
        encoder.target.positive,
        encoder.target.negative,
        encoder,
        (len(encoder.numbers), *encoder.shape) if encoder.shape else (),
    )


def _part(table: Table) -> Part:
    return Part(table.x, table.y, table.rows, table.counts)


def _openread_images(settings: DataSettings, group: Group, seed: int) -> Opened:
    images = together(group, lambda: _read_once(settings, group), "start")
    labels = together(group, lambda: binary_labels(settings, images.y, images.classes), "start")
    compare(group, {"labels": labels, "source": len(images.x)}, torch.device("cpu"))
    split = _split(settings, seed, own_test=images.test_x is not None)
    everything = torch.arange(len(labels))
    rows = {part: split.rows(labels, part) if split else everything for part in PARTS}
    kept = thin_negatives(labels[rows["train"]], settings.keep_negatives, seed)
    train = _share(images.x, labels, rows["train"][kept], group, settings, seed, train=True)
    validation = test = None
    if settings.validation:
        validation = _share(images.x, labels, rows["validation"], group, settings, seed)
    if images.test_x is not None and images.test_y is not None:
        test_y = binary_labels(settings, images.test_y, images.classes)
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
        shape=tuple(as_rows(train.x).gather(torch.tensor([0])).shape[1:]),
    )


_being_read: WeakValueDictionary[DataSettings, NamedImages] = WeakValueDictionary()


def _read_once(settings: DataSettings, group: Group) -> NamedImages:
    """The images; workers of one process, which all wait for each other here, read them once."""
    if group.apart or group.size == 1:
        return read_images(settings)
    found = _being_read.get(settings)
    if found is None:
        found = _being_read[settings] = read_images(settings)
    return found


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
