"""Any source, opened: a worker's samples for training, for validation and for testing."""

from __future__ import annotations

import difflib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codauc._internal.checks import warn
from codauc.data.binary_labels import thin_negatives
from codauc.data.column_record import target_notes, texts_to_convert
from codauc.data.data_settings import DataSettings
from codauc.data.dataset import DataSet, Part
from codauc.data.fingerprint import Marks, file_marks, row_marks, total
from codauc.data.image_folders import SUFFIXES, image_groups
from codauc.data.image_sources import (
    SAMPLE,
    NamedImages,
    Samples,
    is_pattern,
    known_labels,
    positive_classes,
    read_images,
)
from codauc.data.in_memory import IN_MEMORY, InMemory, cannot_be_found_again
from codauc.data.repeated_values import split_hints
from codauc.data.row_sites import SiteCount
from codauc.data.rows import as_rows
from codauc.data.shards import ShardCount, even_shards, skewed_shards
from codauc.data.splits import PARTS, Split
from codauc.data.tables import Encoder
from codauc.data.tables.column_roles import Progress, TableRequest
from codauc.data.tables.reader import count_sites, has_column, read_parts
from codauc.data.tables.table_sources import TABLES
from codauc.workers.agreement import compare, together
from codauc.workers.group import Group


def open_data(
    settings: DataSettings,
    group: Group,
    seed: int = 0,
    progress: Progress | None = None,
    memory: InMemory | None = None,
) -> DataSet:
    """A worker's part of what `settings` name: a table, arrays, images in folders or archives.

    What is in memory is given as `memory`.

    Which samples are for training, validation and testing is decided by `seed` and the labels, not
    by the number of workers. What is learnt of a table's columns comes from the training part.
    """
    if settings.own:
        settings = replace(settings, source=settings.source.replace("{rank}", str(group.rank)))
    if memory is not None or together(group, lambda: is_table(settings), "start"):
        found = _open_table(settings, group, seed, progress, memory)
    elif refused := _only_of_tables(settings):
        raise ValueError(f"{refused} with images: expected a table; leave it out.")
    else:
        found = _open_images(settings, group, seed)
    if settings.watch == "test" and found.test is None:
        raise ValueError(
            f"watch=test: {settings.source} has no test set; expected test or test_fraction."
        )
    return found


def _only_of_tables(settings: DataSettings) -> str | None:
    """A setting that images do not have; a group they have if a table names them."""
    group = settings.group if settings.images is None else None
    asked = {"silo": settings.silo, "own": settings.own, "group": group}
    asked |= {"time": settings.time, "weight": settings.weight}
    return next((name for name, value in asked.items() if value), None)


def open_whole(
    settings: DataSettings, group: Group, encoder: Encoder | None, progress: Progress | None = None
) -> Part:
    """All samples of a source as one part, read as in training; archives give their test images."""
    if is_table(settings):
        if encoder is None:
            raise ValueError(f"{settings.source} is a table: expected images, as in training.")
        request = TableRequest(
            encoder=encoder,
            nan=settings.nan,
            **{name: getattr(settings, name) for name in _WRITTEN},
            own=settings.own,
            drop=settings.drop,
            target=settings.target,
            positive=settings.positive or None,
            progress=progress,
        )
        return read_parts(settings.source, request, ["train"], group)["train"]
    images = together(group, lambda: read_images(settings, labelled=False), "start")
    samples = images.test or images.train
    labels = known_labels(settings, samples.y, images.classes)
    everything = torch.arange(len(samples.x))
    return _share(samples, labels, everything, even_shards(len(everything), group.size, 0), group)


def is_table(settings: DataSettings) -> bool:
    """Whether the source is a table or an array, not images; raise if there is no such source."""
    path = Path(settings.source)
    if settings.source == IN_MEMORY:
        raise cannot_be_found_again()
    if settings.images is not None or settings.source == SAMPLE or is_pattern(settings.source):
        return False
    if not path.exists():
        raise ValueError(_no_such(path))
    if path.is_dir():
        return _holds_parquet(path)
    return bool(set(TABLES) & {suffix.lower() for suffix in path.suffixes[-2:]})


def _holds_parquet(folder: Path) -> bool:
    """Whether the first folder with files of either kind has Parquet files, not images."""
    for _, _, files in os.walk(folder):
        suffixes = {os.path.splitext(file)[1].lower() for file in files}
        if suffixes & {".parquet", ".pq"}:
            return True
        if suffixes & set(SUFFIXES):
            return False
    return False


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
    by = settings.group or settings.time
    if by and settings.test is not None:
        raise ValueError(
            f"{'group' if settings.group else 'time'}={by} with a test set of its own: expected "
            "one data set, whose rows are all split by this column; leave out the test set "
            "(test=FILE), or leave out the column."
        )
    if not test and not settings.validation:
        if by and settings.test_site is None:
            raise ValueError(
                f"{'group' if settings.group else 'time'}={by} and nothing to hold out: expected "
                "test_fraction or validation_fraction above 0; or leave it out."
            )
        return None
    return Split(test, settings.validation, seed, settings.group, settings.time)


_WRITTEN = ("decimal", "dayfirst", "na_values", "encoding")
# What the settings of data and the request to read a table have in common.
_SHARED = (
    "target",
    "categories",
    "drop",
    "keep_negatives",
    "silo",
    "test_site",
    "least_samples",
    "skew",
    "own",
    "scale",
    "weight",
    "nan",
    "unlabelled",
    *_WRITTEN,
)


def _open_table(
    settings: DataSettings,
    group: Group,
    seed: int,
    progress: Progress | None,
    memory: InMemory | None,
) -> DataSet:
    no_rows = settings.test is not None or settings.test_site is not None  # of others, to test
    split = _split(settings, seed, own_test=no_rows)
    request = replace(
        _request(settings, memory),
        split=split,
        seed=seed,
        progress=progress,
        examine=split is not None and split.by is None,
    )
    held = [part for part in PARTS[1:] if split is not None and getattr(split, part)]
    names = ["train", *held, *(["test"] if settings.test_site is not None else [])]
    source = settings.source if memory is None else memory.source
    parts = read_parts(source, request, names, group)
    hints = _hints(parts)
    parts = {name: replace(part, examined=None) for name, part in parts.items()}
    if settings.test is not None:
        own = None if memory is None else memory.test
        parts["test"] = _own_test(settings, request, parts["train"], group, own)
        if parts["train"].sites is not None and parts["test"].sites is None:
            hints = (*hints, _no_sites(settings))
    opened = DataSet.of_table(
        parts["train"], parts.get("validation"), parts.get("test"), settings.watch
    )
    columns = parts["train"].columns
    notes = (*target_notes(columns), *texts_to_convert(columns), *parts["train"].notes)
    return replace(opened, hints=(*hints, *notes))


def _request(settings: DataSettings, memory: InMemory | None) -> TableRequest:
    """How the settings want a table to be read, before it is split."""
    if settings.target is None:
        if memory is not None:
            raise memory.no_target()
        raise ValueError(
            f"{settings.source} is a table: name its column of labels with target=COLUMN."
        )
    shared: dict[str, Any] = {name: getattr(settings, name) for name in _SHARED}
    if memory is not None and memory.labels is not None:
        shared["target"] = memory.labels
    return TableRequest(**shared, positive=settings.positive or None)


def sites_of(settings: DataSettings, memory: InMemory | None = None) -> list[SiteCount]:
    """The rows and positives of each site that the column `silo` names."""
    if memory is None and not is_table(settings):
        raise ValueError("silo with images: expected a table; leave it out.")
    source = settings.source if memory is None else memory.source
    return count_sites(source, _request(settings, memory))


def _hints(parts: dict[str, Part]) -> tuple[str, ...]:
    """What is doubtful of the split, as far as this worker's rows tell."""
    title = "test" if "test" in parts else "validation"
    other = parts[title].examined if title in parts else None
    train = parts["train"].examined
    return () if train is None or other is None else tuple(split_hints(train, other, title))


def _own_test(
    settings: DataSettings,
    request: TableRequest,
    train: Part,
    group: Group,
    memory: InMemory | None,
) -> Part:
    """The test set that is a file of its own, or in memory.

    Where it has the column of sites, a site's rows are with the worker that trains on the others.
    """
    source = str(settings.test)
    if memory is None and source == IN_MEMORY:
        raise cannot_be_found_again()
    own = settings.own and "{rank}" in source
    request = TableRequest(
        # an array's labels are a file or an array of its own
        target=settings.target if source.endswith(".npy") else getattr(memory, "labels", None),
        positive=request.positive,
        encoder=train.encoder,
        own=own,
        silo=request.silo,
        trained=train.sites,
        seed=request.seed,
        least_samples=request.least_samples,
        weight=request.weight,
        nan=request.nan,
        **{name: getattr(request, name) for name in _WRITTEN},
        progress=request.progress,
    )
    source = source.replace("{rank}", str(group.rank)) if own else source
    found = source if memory is None else memory.source
    if not together(group, lambda: has_column(found, request, request.silo), "start"):
        request = replace(request, silo=None, trained=None)
    part = read_parts(found, request, ["train"], group)["train"]
    for note in part.notes if group.rank == 0 else ():
        warn(f"{settings.test}: {note}")
    if part.y is None:
        raise ValueError(
            f"{settings.test} has no column {settings.target!r}: expected labels, to test."
        )
    return part


def _no_sites(settings: DataSettings) -> str:
    return (
        f"{settings.test} has no column {settings.silo!r}: its rows are of no site, so no site has "
        "a test AUC of its own."
    )


def _open_images(settings: DataSettings, group: Group, seed: int) -> DataSet:
    images = together(group, lambda: _read_once(settings, group), "start")
    classes, train, test = images.classes, images.train, images.test
    flags, hints = together(group, lambda: positive_classes(settings, train.y, classes), "start")
    labels = flags[train.y]
    compare(group, {"labels": labels, "source": len(train.x)}, torch.device("cpu"))
    split = _split(settings, seed, own_test=test is not None)
    by = _image_groups(settings, group) if split else None
    rows = split.parts(labels, by) if split else {}
    if not split:
        rows["train"] = torch.arange(len(labels))
    kept = rows["train"][thin_negatives(labels[rows["train"]], settings.keep_negatives, seed)]

    def part(samples: Samples, labels: Tensor, rows: Tensor, skew: float | None = None) -> Part:
        if skew is None:
            shards = even_shards(len(rows), group.size, seed)
        else:
            shards = skewed_shards(labels[rows], group.size, skew, seed)
        mine = _marked(_share(samples, labels, rows, shards, group), samples.marks)
        return mine if by is None else replace(mine, groups=torch.from_numpy(by[mine.rows.numpy()]))

    parts = {"train": part(train, labels, kept, settings.skew)}
    if split:
        held_out = [name for name in PARTS[1:] if getattr(split, name)]
        parts |= {name: part(train, labels, rows[name]) for name in held_out}
    if test is not None:
        test_labels = flags[test.y]
        parts["test"] = part(test, test_labels, torch.arange(len(test_labels)))
    positive = {classes[i] for i in torch.unique(train.y[labels]).tolist()}
    return DataSet(
        parts["train"],
        parts.get("validation"),
        parts.get("test"),
        tuple(name for name in classes if name in positive),
        tuple(name for name in classes if name not in positive),
        tuple(as_rows(parts["train"].x).gather(torch.tensor([0])).shape[1:]),
        settings.watch,
        hints,
    )


def _image_groups(settings: DataSettings, group: Group) -> NDArray[np.int64] | None:
    """The number of each image's group, if a split keeps groups together."""
    name, table, column = settings.group, settings.source, str(settings.file_column)
    if name is None:
        return None
    found = together(group, lambda: image_groups(table, column, name), "start")
    return np.unique(found, return_inverse=True)[1].ravel()


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
    samples: Samples, labels: Tensor | None, rows: Tensor, shards: list[Tensor], group: Group
) -> Part:
    """A worker's share of the samples numbered in `rows`, of which `shards` are places."""
    mine, x, counts = rows[shards[group.rank]].sort().values, samples.x, list[ShardCount]()
    if labels is not None:
        counts = [ShardCount(len(s), int(labels[rows[s]].sum())) for s in shards]
    if len(mine) < len(x):
        x = x[mine] if isinstance(x, Tensor) else x.take(mine)
    return Part(x, None if labels is None else labels[mine], mine, counts)


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
