"""Tables and arrays as one kind of source: columns, labels, a worker's share, and the pass."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from codauc.data.rows import rows_in_block
from codauc.data.shards import Piece, block_shards, dealt, even_shards
from codauc.data.tables.arrays import Array, open_array, open_arrays
from codauc.data.tables.columns import Integers, targets_of, texts_of
from codauc.data.tables.csv_files import CSVTable
from codauc.data.tables.encoder import Columns
from codauc.data.tables.files import ArrowTable, MemoryTable, ParquetTable, TableSource
from codauc.data.tables.packed import Packer, Vocabulary
from codauc.data.tables.passes import ArrayPass, Pass, TablePass
from codauc.data.tables.roles import LARGE, Options, columns_of, no_column, same_columns
from codauc.data.tables.selection import Selection
from codauc.data.tables.summary import Moments, Summary
from codauc.data.tables.target import Labels


class Source(ABC):
    """People's data, of which a worker reads a share."""

    path: str
    columns: Columns
    shape: tuple[int, ...] = ()  # of an image

    @abstractmethod
    def targets(self) -> tuple[Labels, Tensor]:
        """The labels of all rows: what they are, and which each row has."""

    @abstractmethod
    def size(self) -> Any:
        """Something that differs where workers have different data."""

    def silos(self, name: str) -> Integers:
        """To which silo each row belongs, in the order of the silos' names."""
        raise ValueError(f"silo={name!r} with {self.path}: expected a table, with such a column.")

    @abstractmethod
    def even(self, rank: int, workers: int, seed: int) -> Pass:
        """The pass over an even share."""

    @abstractmethod
    def some(self, rows: Tensor | None) -> Pass:
        """The pass over the rows of these numbers, or over all."""


class FromTable(Source):
    """A file or frame with named columns."""

    def __init__(self, table: TableSource, options: Options) -> None:
        self.table, self.path, self.options = table, table.path, options
        self.columns = columns_of(table, options)

    def targets(self) -> tuple[Labels, Tensor]:
        """From the column of the target alone."""
        name, codes = str(self.columns.target), []
        labels = Labels(self.path, name)
        for rows, batch in Selection(self.table).read([name]):
            found = targets_of(self.path, name, self.table.kinds[name], batch.column(0), rows)
            codes.append(torch.from_numpy(labels.add(*found)))
        return labels, torch.cat(codes)

    def size(self) -> Any:
        """Rows of the blocks, or bytes."""
        return self.table.blocks or self.table.bytes

    def silos(self, name: str) -> Integers:
        """From the column of the silos alone."""
        found, codes = Vocabulary(), []
        for rows, batch in Selection(self.table).read([name]):
            values, which = texts_of(batch.column(0))
            if None in [values[i] for i in np.unique(which)]:
                at = int((which == len(values) - 1).argmax())
                raise ValueError(
                    f"{self.path}, column {name!r}, row {int(rows[at])}: the silo is missing; "
                    "expected one in every row."
                )
            codes.append(found.encode(values, which))
        names = np.array([str(value) for value in found.codes])
        return names.argsort().argsort()[np.concatenate(codes)]

    def even(self, rank: int, workers: int, seed: int) -> Pass:
        """Blocks of its own if the file is large and has enough, else a row of each `workers`."""
        blocks = self.table.blocks
        if blocks is not None:
            _enough(self.path, sum(blocks), workers)
        if blocks is not None and self.table.bytes > LARGE and len(blocks) >= workers:
            return self._pass(Selection(self.table, block_shards(blocks, workers, seed)[rank]))

        def mask(start: int, count: int) -> Any:
            return dealt(start, count, workers, seed) == rank

        return self._pass(Selection(self.table, mask=mask if workers > 1 else None))

    def some(self, rows: Tensor | None) -> Pass:
        """Whatever blocks they are in."""
        if rows is None:
            return self._pass(Selection(self.table))
        chosen = np.zeros(int(rows.max()) + 1 if len(rows) else 0, bool)
        chosen[rows.numpy()] = True

        def mask(start: int, count: int) -> Any:
            part = chosen[start : start + count]
            return np.pad(part, (0, count - len(part)))

        return self._pass(Selection(self.table, mask=mask))

    def _pass(self, selection: Selection) -> Pass:
        options, columns = self.options, self.columns
        packer = Packer(
            len(columns.numbers),
            len(columns.categories),
            options.memory,
            options.folder,
            options.encoder,
        )
        return TablePass(selection, columns, packer, nan=options.nan, progress=options.progress)


class FromArray(Source):
    """An array of features or images, and one of labels with its name."""

    def __init__(self, path: str, array: Array, labels: tuple[str, Array] | None, options: Options):
        self.path, self.array, self.labels, self.options = path, array, labels, options
        _check_array(path, array, labels)
        ignored = {"drop": options.drop, "categories": options.categories}
        for name, value in ignored.items():
            if value:
                raise ValueError(
                    f"{name}={value!r} with the array {path}: expected a table, whose columns have "
                    "names; give a frame or a file of one."
                )
        self.shape = tuple(array.shape[2:])
        names = tuple(str(i) for i in range(array.shape[1]))
        self.columns = Columns(names, (), None if labels is None else labels[0])
        if options.encoder is not None:
            same_columns(path, options.encoder, self.columns, self.shape)

    def targets(self) -> tuple[Labels, Tensor]:
        """From the array of labels."""
        assert self.labels is not None
        labels = Labels(self.path, self.labels[0])
        codes = labels.add_array(np.asarray(self.labels[1]), np.arange(len(self.array)))
        return labels, torch.from_numpy(codes)

    def size(self) -> Any:
        """The array's shape."""
        return list(self.array.shape)

    def even(self, rank: int, workers: int, seed: int) -> Pass:
        """Blocks of its own if the array is large, else any rows."""
        count = len(self.array)
        _enough(self.path, count, workers)
        if workers == 1:
            return self.some(None)
        if self.array.nbytes <= LARGE:
            return self.some(even_shards(count, workers, seed)[rank].sort().values)
        rows = rows_in_block(self.array)
        blocks = [min(rows, count - start) for start in range(0, count, rows)]
        pieces = block_shards(blocks, workers, seed)[rank]
        return self.some(torch.cat([_numbers(piece, rows) for piece in pieces]))

    def some(self, rows: Tensor | None) -> Pass:
        """The array stays where it is; `rows` are kept as numbers."""
        options, names = self.options, self.columns.numbers
        done = ArrayPass(
            self.path,
            self.array,
            names,
            rows,
            nan=options.nan,
            memory=options.memory,
            encoder=options.encoder,
            progress=options.progress,
        )
        if self.labels is not None:
            done.label(Labels(self.path, self.labels[0]), self.labels[1])
        return done


def open_table(path: Path, known: dict[str, str]) -> TableSource:
    """The table in a file (by its suffix), or in a folder of Parquet files.

    `known` tells of some columns of a CSV whether they are a "number" or a "category".
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist: expected a CSV, Parquet or Arrow file.")
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if path.is_dir() or suffixes[-1:] in ([".parquet"], [".pq"]):
        return ParquetTable(path)
    if suffixes and suffixes[-1] in (".arrow", ".feather", ".ipc"):
        return ArrowTable(path)
    if {".csv", ".tsv", ".txt"} & set(suffixes):
        return CSVTable(path, known)
    raise ValueError(
        f"{path}: expected a name that ends in .csv, .tsv, .csv.gz, .parquet, .arrow, .feather, "
        ".npy or .npz; rename it to what it is."
    )


def open_source(source: Any, options: Options) -> Source:
    """The source of a path, a frame, or an array with `target` as its labels."""
    if isinstance(source, list | tuple | Tensor):
        source = np.asarray(source)
    if isinstance(source, np.ndarray):
        return _from_array(source, options)
    if not isinstance(source, str | os.PathLike):
        return _from_frame(source, options)
    path = Path(source)
    if path.suffix not in (".npy", ".npz"):
        table = open_table(path, _known_kinds(options))
        return FromTable(table, _with_target(path, options))
    array, labels = _npz(path, options) if path.suffix == ".npz" else _npy(path, options)
    return FromArray(str(path), array, labels, options)


def _known_kinds(options: Options) -> dict[str, str]:
    """What columns are, where that need not be told from their values."""
    kinds = dict.fromkeys(options.categories, "category")
    encoder = options.encoder
    if encoder is not None:
        kinds |= encoder.kinds()
        kinds[encoder.target.name] = "category"
    if isinstance(options.target, str):  # labels are texts: 01 and 1 are two
        kinds[options.target] = "category"
    return kinds


def _with_target(path: Path | str, options: Options) -> Options:
    """The target's name as it was in training, where no other is said."""
    target = options.target
    if target is None and options.encoder is not None:
        return replace(options, target=options.encoder.target.name)
    if target is not None and not isinstance(target, str):
        raise ValueError(
            f"target of type {type(target).__name__} for {path}: expected the name of a column."
        )
    return options


def _from_array(array: Array, options: Options) -> Source:
    target = options.target
    if isinstance(array, np.ma.MaskedArray):
        raise ValueError("the array is masked: expected NaN for what is missing; use filled(nan).")
    if isinstance(target, str):
        raise ValueError(f"target={target!r} for an array: expected the labels themselves.")
    labels = None if target is None else ("labels", np.asarray(target))
    return FromArray("the array", array, labels, options)


def _from_frame(frame: Any, options: Options) -> Source:
    """A frame whose target is one of its columns, or labels beside it as scikit-learn has them."""
    target = options.target
    if target is None or isinstance(target, str):
        return FromTable(MemoryTable(frame), _with_target("the table", options))
    if not hasattr(target, "__len__"):
        raise ValueError(
            f"target={target!r}: expected the name of a column, a text, or one label a row."
        )
    name = str(getattr(target, "name", None) or "target")
    table = MemoryTable(frame, labels=(name, target))
    return FromTable(table, replace(options, target=name))


def _npy(path: Path, options: Options) -> tuple[Array, tuple[str, Array] | None]:
    target = options.target
    if target is not None and not isinstance(target, str | os.PathLike):
        return open_array(path), ("labels", np.asarray(target))
    return open_array(path), None if target is None else ("labels", open_array(Path(target)))


def _npz(path: Path, options: Options) -> tuple[Array, tuple[str, Array] | None]:
    arrays, target = open_arrays(path), options.target
    if target is None and options.encoder is not None and options.encoder.target.name in arrays:
        target = options.encoder.target.name
    if target is not None and not isinstance(target, str):
        raise ValueError(f"target for {path}: expected the name of one of its arrays, a text.")
    if target is not None and target not in arrays:
        raise ValueError(no_column(str(path), target, list(arrays)))
    labels = None if target is None else (target, arrays.pop(target))
    if len(arrays) != 1:
        raise ValueError(
            f"{path} holds {', '.join(arrays) or 'nothing'} beside the target: expected one array "
            "of features."
        )
    return next(iter(arrays.values())), labels


def _check_array(path: str, array: Array, labels: tuple[str, Array] | None) -> None:
    numbers = array.dtype.kind in "biuf" and array.dtype.itemsize <= 8
    if array.ndim not in (2, 4) or not numbers or 0 in array.shape[1:]:
        raise ValueError(
            f"{path} is an array of {array.dtype} and shape {list(array.shape)}: expected "
            "numbers [N, features], or images [N, channels, H, W]."
        )
    if not len(array):
        raise ValueError(f"{path} has 0 rows: expected some.")
    if labels is not None and labels[1].shape != (len(array),):
        raise ValueError(
            f"{path} has {len(array)} rows and the labels the shape {list(labels[1].shape)}: "
            "expected one label a row."
        )


def _enough(path: str, count: int, workers: int) -> None:
    if count < workers:
        raise ValueError(
            f"{path} has {count} rows for {workers} workers: expected at least one each; use at "
            f"most {count} workers."
        )


def _numbers(piece: Piece, rows: int) -> Tensor:
    start = piece.block * rows
    return torch.arange(start + piece.start, start + piece.stop)


def label_summary(labels: Labels) -> Summary:
    """What labels alone tell."""
    counts = labels.values.as_counts()
    return Summary(sum(counts.values()), Moments(0), [], counts)
