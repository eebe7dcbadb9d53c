"""Any source, opened: a worker's samples for training, for validation and for testing."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from codauc.data.binary_labels import thin_negatives
from codauc.data.data_settings import DataSettings
from codauc.data.dataset import DataSet, Part
from codauc.data.fingerprint import Marks, file_marks, row_marks, total
from codauc.data.image_sources import (
    SAMPLE,
    TABLES,
    NamedImages,
    binary_labels,
    known_labels,
    read_images,
)
from codauc.data.rows import as_rows
from codauc.data.shards import ShardCount, even_shards, skewed_shards
from codauc.data.splits import PARTS, Split
from codauc.data.tables import Encoder, read_table
from codauc.data.tables.column_roles import Progress, TableRequest
from codauc.data.tables.reader import read_parts
from codauc.workers.agreement import compare, together
from codauc.workers.group import Group


def open_data(
    settings: DataSettings, group: Group, seed: int = 0, progress: Progress | None = None
) -> DataSet:
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


def _with_watched(settings: DataSettings, found: DataSet) -> DataSet:
    """The data set, if it has the part that is to be evaluated during training."""
    if settings.watch == "test" and found.test is None:
        raise ValueError(
            f"watch=test: {settings.source} has no test set; expected test or test_fraction."
        )
    return found


def _own(settings: DataSettings, group: Group) -> str:
    return settings.source.replace("{rank}", str(group.rank)) if settings.own else settings.source


def open_whole(
    settings: DataSettings, group: Group, encoder: Encoder | None, progress: Progress | None = None
) -> Part:
    """All samples of a source as one part, read as in training; archives give their test images."""
    if _is_table(settings):
        return read_table(
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
    images = together(group, lambda: read_images(settings, labelled=False), "start")
    x, y = (images.x, images.y) if images.test_x is None else (images.test_x, images.test_y)
    labels = known_labels(settings, y, images.classes)
    return _share(x, labels, torch.arange(len(x)), _Deal(group))


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


def _open_table(
    settings: DataSettings, group: Group, seed: int, progress: Progress | None
) -> DataSet:
    if settings.target is None:
        raise ValueError(
            f"{settings.source} is a table: name its column of labels with target=COLUMN."
        )
    split = _split(settings, seed, own_test=settings.test is not None)
    request = TableRequest(
        target=settings.target,
        positive=settings.positive or None,
        categories=settings.categories,
        drop=settings.drop,
        keep_negatives=settings.keep_negatives,
        silo=settings.silo,
        skew=settings.skew,
        own=settings.own,
        split=split,
        seed=seed,
        nan=settings.nan,
        progress=progress,
    )
    names = [
        part for part in PARTS if part == "train" or (split is not None and getattr(split, part))
    ]
    parts = read_parts(settings.source, request, names, group)
    if settings.test is not None:
        parts["test"] = _own_test(settings, request, parts["train"].encoder, group)
    found = DataSet.of_table(
        parts["train"], parts.get("validation"), parts.get("test"), settings.watch
    )
    return _with_watched(settings, found)


def _own_test(
    settings: DataSettings, request: TableRequest, encoder: Encoder | None, group: Group
) -> Part:
    """The test set that is a file of its own."""
    source = str(settings.test)
    own = settings.own and "{rank}" in source
    request = TableRequest(
        # an array's labels are a file or an array of its own
        target=settings.target if source.endswith(".npy") else None,
        positive=request.positive,
        encoder=encoder,
        own=own,
        seed=request.seed,
        nan=request.nan,
        progress=request.progress,
    )
    source = source.replace("{rank}", str(group.rank)) if own else source
    part = read_parts(source, request, ["train"], group)["train"]
    if part.y is None:
        raise ValueError(
            f"{settings.test} has no column {settings.target!r}: expected labels, to test."
        )
    return part


def _open_images(settings: DataSettings, group: Group, seed: int) -> DataSet:
    images = together(group, lambda: _read_once(settings, group), "start")
    labels = together(group, lambda: binary_labels(settings, images.y, images.classes), "start")
    compare(group, {"labels": labels, "source": len(images.x)}, torch.device("cpu"))
    split = _split(settings, seed, own_test=images.test_x is not None)
    everything = torch.arange(len(labels))
    rows = {part: split.rows(labels, part) if split else everything for part in PARTS}
    kept = thin_negatives(labels[rows["train"]], settings.keep_negatives, seed)
    deal = _Deal(group, seed)
    skewed = _Deal(group, seed, settings.skew)
    train = _marked(_share(images.x, labels, rows["train"][kept], skewed), images.marks)
    validation = test = None
    if settings.validation:
        validation = _marked(_share(images.x, labels, rows["validation"], deal), images.marks)
    if images.test_x is not None and images.test_y is not None:
        test_y = binary_labels(settings, images.test_y, images.classes)
        test = _share(images.test_x, test_y, torch.arange(len(test_y)), deal)
        test = _marked(test, images.test_marks)
    elif split and split.test:
        test = _marked(_share(images.x, labels, rows["test"], deal), images.marks)
    positive = {str(images.classes[i]) for i in torch.unique(images.y[labels]).tolist()}
    found = DataSet(
        train,
        validation,
        test,
        tuple(str(c) for c in images.classes if str(c) in positive),
        tuple(str(c) for c in images.classes if str(c) not in positive),
        tuple(as_rows(train.x).gather(torch.tensor([0])).shape[1:]),
        settings.watch,
    )
    return _with_watched(settings, found)


_being_read: WeakValueDictionary[DataSettings, NamedImages] = WeakValueDictionary()


def _read_once(settings: DataSettings, group: Group) -> NamedImages:
    """The images; workers of one process, which all wait for each other here, read them once."""
    if group.apart or group.size == 1:
        return read_images(settings)
    found = _being_read.get(settings)
    if found is None:
        found = _being_read[settings] = read_images(settings)
    return found


@dataclass(frozen=True)
class _Deal:
    """How samples are dealt out to workers: evenly, or with labels skewed."""

    group: Group
    seed: int = 0
    skew: float | None = None

    def shards(self, labels: Tensor | None, rows: Tensor) -> list[Tensor]:
        """Every worker's places in `rows`."""
        if self.skew is not None and labels is not None:
            return skewed_shards(labels[rows], self.group.size, self.skew, self.seed)
        return even_shards(len(rows), self.group.size, self.seed)


def _share(x: Any, labels: Tensor | None, rows: Tensor, deal: _Deal) -> Part:
    """A worker's share of the samples numbered in `rows`."""
    shards = deal.shards(labels, rows)
    mine = rows[shards[deal.group.rank]].sort().values
    counts = [
        ShardCount(len(s), -1 if labels is None else int(labels[rows[s]].sum())) for s in shards
    ]
    whole = len(mine) == len(x)
    taken = x if whole else x[mine].clone() if isinstance(x, Tensor) else x.take(mine)
    return Part(
        taken, None if labels is None else labels[mine], mine, counts if labels is not None else []
    )


def _marked(part: Part, marks: Marks | None) -> Part:
    """The part with its fingerprint; `marks` are those of all images as they were stored."""
    rows = part.rows.numpy()
    if marks is not None:
        own = marks[rows]
    elif isinstance(part.x, Tensor):
        own = row_marks(part.x.numpy())
    else:
        own = file_marks(part.x, rows, part.samples)
    return replace(part, fingerprint=total(rows, own))
