"""Tables and arrays as one kind of source: columns, labels, a worker's share, and the pass."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from codauc._internal.files import regular_file
from codauc.data.repeated_values import Examined
from codauc.data.shards import block_shards, dealt
from codauc.data.splits import Split
from codauc.data.tables.arrays import Array, FromArray, open_array, open_arrays
from codauc.data.tables.column_roles import LARGE, TableRequest, columns_of, no_column
from codauc.data.tables.column_statistics import Floats
from codauc.data.tables.columnar_files import (
    ArrowTable,
    MemoryTable,
    ParquetTable,
    TableSource,
    arrow,
)
from codauc.data.tables.csv_files import CSVTable
from codauc.data.tables.described_columns import Written
from codauc.data.tables.encoder import Encoder
from codauc.data.tables.frames import as_arrow, frame_names, is_frame
from codauc.data.tables.labelled_rows import LabelledRows
from codauc.data.tables.labels import Integers, Labels
from codauc.data.tables.locale import Locale
from codauc.data.tables.packed_rows import Vocabulary
from codauc.data.tables.row_selection import (
    KeptRows,
    Mask,
    NumberedBatches,
    all_rows,
    chosen_rows,
    one_of,
    within,
)
from codauc.data.tables.scan import (
    Pass,
    check_count,
    filled_numbers,
    scan_table,
    targets_of,
    texts_of,
)
from codauc.data.tables.sparse_arrays import SparseArray, is_sparse

_PARQUET, _ARROW, _CSV = (
    (".parquet", ".pq"),
    (".arrow", ".feather", ".ipc"),
    (".csv", ".tsv", ".txt"),
)
TABLES = (*_CSV, *_PARQUET, *_ARROW, ".npy", ".npz")


_KEPT = 8  # times the memory: the size of a CSV up to which its rows are kept, partly on disk

# Workers of one process read a file once.
_whole_files: WeakValueDictionary[tuple[Any, ...], KeptRows] = WeakValueDictionary()


class FromTable:
    """A file or frame with named columns."""

    selects = True  # what is no input may be left out

    def __init__(self, table: TableSource, options: TableRequest) -> None:
        if options.unlabelled == "drop" and options.target in table.kinds:
            table = LabelledRows(table, options.target)
        self.table, self.path, self.options = table, table.path, options
        self.columns = columns = columns_of(table, options)
        named = [*columns.inputs_and_target, *options.row_columns]
        self.size: Any = table.blocks or table.bytes  # differs where workers have other data
        self.shape: tuple[int, ...] = ()  # of an image
        self.locale = table.locale
        self._used = list(dict.fromkeys(named))
        self._whole: KeptRows | None = None  # all rows of the file
        self._later: KeptRows | None = None  # those of the parts that are read next

    def written(self, examples: dict[str, tuple[str, ...]]) -> Written:
        """How values are written; `examples` are those of the rows that were read."""
        table = self.table
        return Written(table.how, examples | table.examples, table.notes)

    def targets(self) -> tuple[Labels, Tensor]:
        """The labels of all rows: what they are, and which each row has."""
        name, codes = str(self.columns.target), []
        labels = Labels(self.path, name)
        for _, batch in self._column(name):
            found = targets_of(self.table, name, batch.column(0))
            codes.append(torch.from_numpy(labels.add(*found)))
        return labels, torch.cat(codes)

    def codes(self, name: str, what: str) -> Integers:
        """To which value of a column each row belongs, in the order of the values' texts."""
        return self.names_and_codes(name, what)[1]

    def names_and_codes(self, name: str, what: str) -> tuple[list[str], Integers]:
        """The values of a column as texts, in order, and to which of them each row belongs."""
        found, codes = Vocabulary(), []
        for rows, batch in self._column(name):
            values, which = texts_of(batch.column(0))
            if None in [values[i] for i in np.unique(which)]:
                at = int((which == len(values) - 1).argmax())
                raise ValueError(
                    f"{self.table.place(name, int(rows[at]))}: the {what} is missing; "
                    "expected one in every row: fill it in, or leave the row out."
                )
            codes.append(found.encode(values, which))
        names = np.array([str(value) for value in found.codes])
        order = names.argsort()
        return names[order].tolist(), order.argsort()[np.concatenate(codes)]

    def with_dropped(self, examined: Examined, rows: Tensor) -> Examined:
        """Examine also the columns that were dropped by name: mostly they are ids."""
        first = rows.numpy()[: len(examined.marks)]
        texts, end = dict(examined.texts), int(first.max(initial=-1)) + 1
        for name in self.options.drop:
            if self.table.kinds[name] in ("number", "category") and end:
                texts[name] = self._first_values(name, end)[first].astype(np.uint64)
        return examined._replace(texts=texts)

    def _first_values(self, name: str, rows: int) -> Integers:
        """A number for each value of a column, in the first `rows` rows; the rest is not read."""
        found, codes, done = Vocabulary(), list[Integers](), 0
        for numbers, batch in all_rows(self.table, [name]):
            codes.append(found.encode(*texts_of(batch.column(0))))
            done += len(numbers)
            if done >= rows:
                break
        return np.concatenate(codes)[:rows]

    def numbers(self, name: str, what: str) -> Floats:
        """The numbers, or dates as numbers, in a column of all rows; none may be missing."""
        kinds = ("number", "time", "duration") if what == "time" else ("number",)
        if self.table.kinds[name] not in kinds:
            raise ValueError(
                f"{self.path}, column {name!r} holds texts: expected numbers"
                f"{' or dates' if what == 'time' else ''} for the {what}; name another column."
            )
        found = [
            filled_numbers(self.table, name, what, batch.column(0), rows)
            for rows, batch in self._column(name)
        ]
        return np.concatenate(found)

    def _column(self, name: str) -> NumberedBatches:
        """All rows of one column; a file without blocks is kept for the passes to come, unless it
        is so large that the disk might not have room.
        """
        if self.table.blocks is not None or self.table.bytes > _KEPT * self.options.memory:
            return all_rows(self.table, [name])
        self._whole = self._whole or _whole_files.get(self._key())
        if self._whole is None:
            whole = KeptRows(self.options.memory, self.options.folder)
            for rows, batch in all_rows(self.table, self._used):
                whole.add(rows, batch)
            self._whole = _whole_files[self._key()] = whole
        return self._whole.read([name])

    def _key(self) -> tuple[Any, ...]:
        status = os.stat(self.path)
        kinds = tuple(self.table.kinds[name] for name in self._used)
        used = tuple(self._used)
        how = (kinds, self.locale, self.options.unlabelled)
        return self.path, status.st_mtime_ns, status.st_size, used, how

    def even(self, rank: int, workers: int, encoder: Encoder | None) -> Pass:
        """The pass over an even share.

        It is blocks of its own if the file is large and has enough, else one of `workers` rows.
        """
        blocks, seed = self.table.blocks, self.options.seed
        if blocks is not None:
            check_count(self.path, sum(blocks), workers)
        if blocks is not None and self.table.bytes > LARGE and len(blocks) >= workers:
            return self._pass(within(block_shards(blocks, workers, seed)[rank]), encoder)
        return self._pass(
            lambda rows: dealt(int(rows[0]), len(rows), workers, seed) == rank, encoder
        )

    def some(
        self, rows: Tensor | None, encoder: Encoder | None, later: Tensor | None = None
    ) -> Pass:
        """The pass over the rows of these numbers, or over all.

        It also reads the rows `later`, and keeps them for passes to come.
        """
        return self._pass(None if rows is None else one_of(rows), encoder, later)

    def _pass(
        self, mask: Mask | None, encoder: Encoder | None, later: Tensor | None = None
    ) -> Pass:
        kept, aside = self._whole or self._later, None
        if kept is None and later is not None:
            self._later = KeptRows(self.options.memory, self.options.folder)
            aside = one_of(later), self._later
        masks = [] if mask is None else [mask, *([] if aside is None else [aside[0]])]
        used = self.columns if encoder is None else encoder.chosen(self.columns)
        columns = used.inputs_and_target
        batches = kept.read(columns) if kept else all_rows(self.table, columns, masks)
        chosen = chosen_rows(batches, mask, aside)
        return scan_table(self.table, chosen, used, self.options, encoder)


RowSource = FromTable | FromArray  # of which a worker reads a share


def split_values(opened: RowSource, split: Split) -> Any:
    """What rows are split by beside the labels: numbers of groups, times, or None."""
    if not isinstance(split.by, str):
        return split.by
    return (
        opened.codes(split.by, "group") if split.time is None else opened.numbers(split.by, "time")
    )


def open_table(
    path: Path, known: dict[str, str], locale: Locale | None = None, trained: Locale | None = None
) -> TableSource:
    """The table in a file (by its suffix), or in a folder of Parquet files.

    `known` tells of some columns of a CSV whether they are a "number" or a "category", `locale` how
    it is written, as far as it is asked for, and `trained` how the file of training was.
    """
    if not path.exists():
        raise ValueError(f"{path} does not exist: expected a CSV, Parquet or Arrow file.")
    if not path.is_dir():
        regular_file(path)
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]] or [""]
    if path.is_dir() or suffixes[-1] in _PARQUET:
        return ParquetTable(path)
    if suffixes[-1] in _ARROW:
        return ArrowTable(path)
    if set(_CSV) & set(suffixes):
        return CSVTable(path, known, locale or Locale(), trained or Locale())
    raise ValueError(
        f"{path}: expected a name that ends in {', '.join(TABLES)}, or in .csv.gz; rename it to "
        "what it is."
    )


def open_source(source: Any, options: TableRequest) -> RowSource:
    """The source of a path, a frame, or an array with `target` as its labels."""
    if isinstance(source, list | tuple | Tensor):
        source = np.asarray(source)
    if is_sparse(source):
        source = SparseArray(source)
    if isinstance(source, np.ndarray | SparseArray):
        return _from_array(source, options)
    if not isinstance(source, str | os.PathLike):
        return _from_frame(source, options)
    path = _file(source)
    if path.suffix.lower() not in (".npy", ".npz"):
        trained = Locale() if options.encoder is None else options.encoder.locale
        table = open_table(path, _known_kinds(options), options.locale, trained)
        return FromTable(table, _with_target(path, options))
    array, labels = _npz(path, options) if path.suffix.lower() == ".npz" else _npy(path, options)
    return FromArray(str(path), array, labels, options)


def _file(source: str | os.PathLike[str]) -> Path:
    """The path, which is read several times: a pipe would be empty, or waited for."""
    path = Path(source)
    return regular_file(path) if path.exists() and not path.is_dir() else path


def _known_kinds(options: TableRequest) -> dict[str, str]:
    """What columns are, where that need not be found from their values."""
    encoder = options.encoder
    unread = {*options.drop, *(() if encoder is None else encoder.dropped)}
    kinds = dict.fromkeys(unread - {*options.row_columns}, "category")
    kinds |= dict.fromkeys(options.categories, "category")
    if encoder is not None:
        kinds |= encoder.kinds()
        kinds[encoder.target.name] = "category"
    if options.split is not None and isinstance(options.split.group, str):
        kinds[options.split.group] = "category"
    if options.silo is not None:
        kinds[options.silo] = "category"
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


def _from_array(array: Array | SparseArray, options: TableRequest) -> RowSource:
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
        table = MemoryTable(_without(frame, options.drop))
        return FromTable(table, _with_target("the table", options))
    if not hasattr(target, "__len__"):
        raise ValueError(
            f"target={target!r}: expected the name of a column, a text, or one label per row."
        )
    name = str(getattr(target, "name", None) or "target")
    table = MemoryTable(_without(frame, options.drop), labels=(name, target))
    return FromTable(table, replace(options, target=name))


def _without(frame: Any, drop: tuple[str, ...]) -> Any:
    """The frame as an Arrow table in which columns to leave out are empty, whatever they hold."""
    names = frame_names(frame) if drop and is_frame(frame) else []
    if not names:
        return as_arrow(frame)
    table = as_arrow(frame, [name for name in names if name not in drop])
    for name in dict.fromkeys(name for name in names if name in drop):
        table = table.append_column(name, arrow().nulls(table.num_rows))
    return table


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
