"""Tables and arrays as one kind of source: columns, labels, a worker's share, and the pass."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from codauc._internal.files import regular_file
from codauc.data.rows import rows_in_block
from codauc.data.shards import Piece, block_shards, dealt, even_shards
from codauc.data.tables.arrays import Array, open_array, open_arrays
from codauc.data.tables.column_roles import LARGE, TableRequest, columns_of, no_column, same_columns
from codauc.data.tables.column_statistics import Moments, Summary
from codauc.data.tables.column_values import Integers, targets_of, texts_of
from codauc.data.tables.columnar_files import ArrowTable, MemoryTable, ParquetTable, TableSource
from codauc.data.tables.csv_files import CSVTable
from codauc.data.tables.encoder import Columns, Encoder
from codauc.data.tables.labels import Labels
from codauc.data.tables.packed_rows import Packer, Vocabulary
from codauc.data.tables.row_selection import Batches, KeptRows, Mask, RowSelection
from codauc.data.tables.scan import ArrayPass, Pass, TablePass

_PARQUET, _ARROW, _CSV = (
    (".parquet", ".pq"),
    (".arrow", ".feather", ".ipc"),
    (".csv", ".tsv", ".txt"),
)
TABLES = (*_CSV, *_PARQUET, *_ARROW, ".npy", ".npz")


class RowSource(ABC):
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
    def even(self, rank: int, workers: int, encoder: Encoder | None) -> Pass:
        """The pass over an even share."""

    @abstractmethod
    def some(
        self, rows: Tensor | None, encoder: Encoder | None, later: Tensor | None = None
    ) -> Pass:
        """The pass over the rows of these numbers, or over all.

        It also reads the rows `later`, and keeps them for passes to come.
        """


# Workers of one process read a file once.
_whole_files: WeakValueDictionary[tuple[Any, ...], KeptRows] = WeakValueDictionary()


class FromTable(RowSource):
    """A file or frame with named columns."""

    def __init__(self, table: TableSource, options: TableRequest) -> None:
        self.table, self.path, self.options = table, table.path, options
        self.columns = columns = columns_of(table, options)
        named = [*columns.numbers, *columns.categories, columns.target, options.silo]
        self._used = list(dict.fromkeys(name for name in named if name is not None))
        self._whole: KeptRows | None = None  # all rows of the file
        self._later: KeptRows | None = None  # those of the parts that are read next

    def targets(self) -> tuple[Labels, Tensor]:
        """From the column of the target alone."""
        name, codes = str(self.columns.target), []
        labels = Labels(self.path, name)
        for rows, batch in self._column(name):
            found = targets_of(self.path, name, self.table.kinds[name], batch.column(0), rows)
            codes.append(torch.from_numpy(labels.add(*found)))
        return labels, torch.cat(codes)

    def size(self) -> Any:
        """Rows of the blocks, or bytes."""
        return self.table.blocks or self.table.bytes

    def silos(self, name: str) -> Integers:
        """From the column of the silos alone."""
        found, codes = Vocabulary(), []
        for rows, batch in self._column(name):
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

    def _column(self, name: str) -> Batches:
        """All rows of one column.

        A file without blocks is read as a whole, and kept for the passes to come if it fits.
        """
        memory = self.options.memory
        if self.table.blocks is not None or self.table.bytes > memory:
            yield from RowSelection(self.table).read([name])
            return
        self._whole = self._whole or _whole_files.get(self._key())
        if self._whole is not None:
            yield from self._whole.read([name])
            return
        kept: KeptRows | None = KeptRows(memory)
        for rows, batch in RowSelection(self.table).read(self._used):
            if kept is not None and kept.bytes + batch.nbytes > memory:
                kept = None  # values take more than their text
            if kept is not None:
                kept.add(rows, batch)
            yield rows, batch.select([name])
        if kept is not None:
            self._whole = _whole_files[self._key()] = kept

    def _key(self) -> tuple[Any, ...]:
        status = os.stat(self.path)
        kinds = tuple(self.table.kinds[name] for name in self._used)
        return self.path, status.st_mtime_ns, status.st_size, tuple(self._used), kinds

    def even(self, rank: int, workers: int, encoder: Encoder | None) -> Pass:
        """Blocks of its own if the file is large and has enough, else a row of each `workers`."""
        blocks, seed = self.table.blocks, self.options.seed
        if blocks is not None:
            _enough(self.path, sum(blocks), workers)
        if blocks is not None and self.table.bytes > LARGE and len(blocks) >= workers:
            return self._pass(
                RowSelection(self.table, block_shards(blocks, workers, seed)[rank]), encoder
            )

        def mask(rows: Integers) -> Any:
            return dealt(int(rows[0]), len(rows), workers, seed) == rank

        return self._pass(RowSelection(self.table, mask=mask if workers > 1 else None), encoder)

    def some(
        self, rows: Tensor | None, encoder: Encoder | None, later: Tensor | None = None
    ) -> Pass:
        """Whatever blocks they are in."""
        mask = None if rows is None else _one_of(rows)
        kept, aside = self._whole or self._later, None
        if kept is None and later is not None:
            self._later = KeptRows(self.options.memory, self.options.folder)
            aside = _one_of(later), self._later
        return self._pass(RowSelection(self.table, None, mask, kept, aside), encoder)

    def _pass(self, selection: RowSelection, encoder: Encoder | None) -> Pass:
        options, columns = self.options, self.columns
        packer = Packer(
            len(columns.numbers),
            len(columns.categories),
            options.memory,
            options.folder,
            encoder,
        )
        return TablePass(selection, columns, packer, options)


def _one_of(rows: Tensor) -> Mask:
    """Whether a row is one of these."""
    chosen = np.zeros(int(rows.max()) + 2 if len(rows) else 1, bool)
    chosen[rows.numpy()] = True
    return lambda numbers: chosen[np.minimum(numbers, len(chosen) - 1)]


class FromArray(RowSource):
    """An array of features or images, and one of labels with its name."""

    def __init__(
        self, path: str, array: Array, labels: tuple[str, Array] | None, options: TableRequest
    ):
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

    def even(self, rank: int, workers: int, encoder: Encoder | None) -> Pass:
        """Blocks of its own if the array is large, else any rows."""
        count, seed = len(self.array), self.options.seed
        _enough(self.path, count, workers)
        if workers == 1:
            return self.some(None, encoder)
        if self.array.nbytes <= LARGE:
            return self.some(even_shards(count, workers, seed)[rank].sort().values, encoder)
        rows = rows_in_block(self.array)
        blocks = [min(rows, count - start) for start in range(0, count, rows)]
        pieces = block_shards(blocks, workers, seed)[rank]
        return self.some(torch.cat([_numbers(piece, rows) for piece in pieces]), encoder)

    def some(
        self, rows: Tensor | None, encoder: Encoder | None, later: Tensor | None = None
    ) -> Pass:
        """The array stays where it is, and is not read again; `rows` are kept as numbers."""
        del later
        done = ArrayPass(self.path, self.array, rows, self.options, encoder)
        if self.labels is not None:
            done.label(Labels(self.path, self.labels[0]), self.labels[1])
        return done


def open_table(path: Path, known: dict[str, str]) -> TableSource:
    """The table in a file (by its suffix), or in a folder of Parquet files.

    `known` tells of some columns of a CSV whether they are a "number" or a "category".
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist: expected a CSV, Parquet or Arrow file.")
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]] or [""]
    if path.is_dir() or suffixes[-1] in _PARQUET:
        return ParquetTable(path)
    if suffixes[-1] in _ARROW:
        return ArrowTable(path)
    if set(_CSV) & set(suffixes):
        return CSVTable(path, known)
    raise ValueError(
        f"{path}: expected a name that ends in {', '.join(TABLES)}, or in .csv.gz; rename it to "
        "what it is."
    )


def open_source(source: Any, options: TableRequest) -> RowSource:
    """The source of a path, a frame, or an array with `target` as its labels."""
    if isinstance(source, list | tuple | Tensor):
        source = np.asarray(source)
    if isinstance(source, np.ndarray):
        return _from_array(source, options)
    if not isinstance(source, str | os.PathLike):
        return _from_frame(source, options)
    path = _file(source)
    if path.suffix.lower() not in (".npy", ".npz"):
        table = open_table(path, _known_kinds(options))
        return FromTable(table, _with_target(path, options))
    array, labels = _npz(path, options) if path.suffix.lower() == ".npz" else _npy(path, options)
    return FromArray(str(path), array, labels, options)


def _file(source: str | os.PathLike[str]) -> Path:
    """The path, which is read several times: a pipe would be empty, or waited for."""
    path = Path(source)
    return regular_file(path) if path.exists() and not path.is_dir() else path


def _known_kinds(options: TableRequest) -> dict[str, str]:
    """What columns are, where that need not be told from their values."""
    kinds = dict.fromkeys(options.categories, "category")
    encoder = options.encoder
    if encoder is not None:
        kinds |= encoder.kinds()
        kinds[encoder.target.name] = "category"
    if isinstance(options.target, str):  # labels are texts: 01 and 1 are two
        kinds[options.target] = "category"
    return kinds


def _with_target(path: Path | str, options: TableRequest) -> TableRequest:
    """The target's name as it was in training, where no other is said."""
    target = options.target
    if target is None and options.encoder is not None:
        return replace(options, target=options.encoder.target.name)
    if target is not None and not isinstance(target, str):
        raise ValueError(
            f"target of type {type(target).__name__} for {path}: expected the name of a column."
        )
    return options


def _from_array(array: Array, options: TableRequest) -> RowSource:
    target = options.target
    if isinstance(array, np.ma.MaskedArray):
        raise ValueError("the array is masked: expected NaN for what is missing; use filled(nan).")
    if isinstance(target, str):
        raise ValueError(f"target={target!r} for an array: expected the labels themselves.")
    labels = None if target is None else ("labels", np.asarray(target))
    return FromArray("the array", array, labels, options)


def _from_frame(frame: Any, options: TableRequest) -> RowSource:
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


def _npy(path: Path, options: TableRequest) -> tuple[Array, tuple[str, Array] | None]:
    target = options.target
    if target is not None and not isinstance(target, str | os.PathLike):
        return open_array(path), ("labels", np.asarray(target))
    return open_array(path), None if target is None else ("labels", open_array(_file(target)))


def _npz(path: Path, options: TableRequest) -> tuple[Array, tuple[str, Array] | None]:
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
