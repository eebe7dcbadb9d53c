"""Arrays as sources of rows; NPY and NPZ are mapped into memory and never read as a whole."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codauc.data.fingerprint import row_marks, total
from codauc.data.repeated_values import Examined, Examiner
from codauc.data.rows import Rows, rows_in_block
from codauc.data.shards import block_shards, even_shards
from codauc.data.tables.column_roles import LARGE, TableRequest, same_columns
from codauc.data.tables.column_statistics import Floats, Moments, Summary, Traits
from codauc.data.tables.columnar_files import rows_at_a_time
from codauc.data.tables.described_columns import Written
from codauc.data.tables.encoder import Columns, Encoder
from codauc.data.tables.labels import Integers, Labels
from codauc.data.tables.locale import PLAIN
from codauc.data.tables.packed_rows import Coder, EncodedRows
from codauc.data.tables.scan import (
    Pass,
    check_count,
    check_far,
    check_numbers,
    doubtful,
    short,
)
from codauc.data.tables.sparse_arrays import SparseArray

Array = NDArray[Any]

# What numpy and zipfile raise for damaged files.
_BROKEN = (
    *(ValueError, OSError, EOFError, KeyError, SyntaxError, NotImplementedError, RuntimeError),
    *(
        MemoryError,
        OverflowError,
        struct.error,
        tokenize.TokenError,
        zipfile.BadZipFile,
        zlib.error,
    ),
)


class FromArray:
    """An array of features or images, and one of labels with its name."""

    selects = False  # an array is taken whole
    locale = PLAIN

    def __init__(
        self,
        path: str,
        array: Array | SparseArray,
        labels: tuple[str, Array] | None,
        options: TableRequest,
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
        self.size: Any = list(array.shape)
        self.shape = tuple(array.shape[2:])
        names = tuple(str(i) for i in range(array.shape[1]))
        self.columns = Columns(names, (), None if labels is None else labels[0])
        if options.encoder is not None:
            same_columns(path, options.encoder, self.columns, self.shape)

    def written(self, examples: dict[str, tuple[str, ...]]) -> Written:
        """An array has nothing but its values."""
        return Written(examples=examples)

    def place(self, name: str, row: int) -> str:
        """Where a value is, for a message."""
        return f"{self.path}, column {name!r}, row {row}"

    def targets(self) -> tuple[Labels, Tensor]:
        """From the array of labels."""
        assert self.labels is not None
        labels = Labels(self.path, self.labels[0])
        codes = labels.add_array(np.asarray(self.labels[1]), np.arange(len(self.array)))
        return labels, torch.from_numpy(codes)

    def with_dropped(self, examined: Examined, rows: Tensor) -> Examined:
        """An array has no columns to drop."""
        del rows
        return examined

    def codes(self, name: str, what: str) -> Integers:
        """An array has no columns with names."""
        raise ValueError(f"{what}={name!r} with {self.path}: expected a table, with such a column.")

    def names_and_codes(self, name: str, what: str) -> tuple[list[str], Integers]:
        """An array has no columns with names."""
        return [], self.codes(name, what)

    def numbers(self, name: str, what: str) -> Floats:
        """An array has no columns with names."""
        raise ValueError(f"{what}={name!r} with {self.path}: expected a table, with such a column.")

    def even(self, rank: int, workers: int, encoder: Encoder | None) -> Pass:
        """Blocks of its own if the array is large, else any rows."""
        count, seed = len(self.array), self.options.seed
        check_count(self.path, count, workers)
        if workers == 1:
            return self.some(None, encoder)
        if self.array.nbytes <= LARGE:
            return self.some(even_shards(count, workers, seed)[rank].sort().values, encoder)
        rows = rows_in_block(self.array)
        blocks = [min(rows, count - start) for start in range(0, count, rows)]
        ranges = block_shards(blocks, workers, seed)[rank]
        return self.some(torch.cat([torch.arange(*ends) for ends in ranges]), encoder)

    def some(
        self, rows: Tensor | None, encoder: Encoder | None, later: Tensor | None = None
    ) -> Pass:
        """The array stays where it is, and is not read again; `rows` are kept as numbers."""
        del later
        array, path, options = self.array, self.path, self.options
        numbers = torch.arange(len(array)) if rows is None else rows
        moments, done, fingerprint = Moments(array.shape[1]), 0, 0
        examiner = Examiner(()) if options.examine else None
        for places, part in self._parts(numbers):
            flat = np.moveaxis(part, 1, -1).reshape(-1, part.shape[1]).astype(np.float64)
            each = np.repeat(places, len(flat) // len(places))
            if doubtful(flat):
                for i in range(flat.shape[1]):
                    check_numbers(self, str(i), flat[:, i], each, options.nan)
            if encoder is not None:
                check_far(self, encoder, flat, each)
            moments.add(flat)
            marks = row_marks(part)
            fingerprint += total(places, marks)
            if examiner is not None:
                first = examiner.wanted(places)
                examiner.add(marks[:first], np.empty((first, 0)), ())
            done += len(part)
            if options.progress is not None:
                options.progress(done)
        if isinstance(array, SparseArray):
            moments.squares /= array.share_not_zero(numbers.numpy())
        summary = Summary(len(numbers), moments, traits=Traits(array.shape[1]))
        found = Pass(numbers, summary, fingerprint, partial(self._encoded, rows, numbers))
        found.examiner = examiner
        if self.labels is not None:
            name, values = self.labels
            found.labels, places = Labels(path, name), numbers.numpy()
            chosen = np.asarray(values if rows is None else values[places])
            found.codes = short(found.labels.add_array(chosen, places))
            summary.targets = found.labels.values.as_counts()
        return found

    def _parts(self, rows: Tensor) -> Iterator[tuple[Integers, Any]]:
        """Rows in the file's order, which is how a disk likes to be read."""
        step = rows_at_a_time(int(np.prod(self.array.shape[1:])))
        if isinstance(self.array, SparseArray):
            step = self.array.rows_at_a_time
        for start in range(0, len(rows), step):
            numbers = rows[start : start + step].numpy()
            yield numbers, self.array[numbers]

    def _encoded(self, chosen: Tensor | None, rows: Tensor, encoder: Encoder) -> Rows | Tensor:
        """Encoded at once if they are small, when asked for otherwise."""
        coder = Coder(encoder, self.array.dtype)
        if len(rows) * int(np.prod(self.array.shape[1:])) * 4 > self.options.memory:
            return EncodedRows(self.array, coder, chosen)
        return coder.encode_all((part for _, part in self._parts(rows)), len(rows))


def _check_array(path: str, array: Array | SparseArray, labels: tuple[str, Array] | None) -> None:
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
            "expected one label per row."
        )


def open_array(path: Path) -> Array:
    """The array of an NPY file, as a memory map."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it is an archive of arrays; name it .npz")
    except _BROKEN as error:
        raise _unreadable(path, error) from error
    return _numbers(path, array)


def open_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an NPZ file; those that are not compressed as memory maps."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {
                info.filename.removesuffix(".npy"): _member(path, archive, info)
                for info in archive.infolist()
            }
    except _BROKEN as error:
        raise _unreadable(path, error) from error
    return {name: _numbers(path, array) for name, array in members.items()}


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    with archive.open(info) as stream:
        if info.compress_type != zipfile.ZIP_STORED:
            return np.lib.format.read_array(stream, allow_pickle=False)
        version = np.lib.format.read_magic(stream)
        read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = read[version[0]](stream)
        header = stream.tell()
    if dtype.hasobject:
        raise ValueError(f"{info.filename} holds Python objects, which are not loaded")
    size = int(np.prod(shape)) * dtype.itemsize
    if info.file_size - header != size:
        raise ValueError(f"{info.filename} has {info.file_size - header} bytes, not {size}")
    if not size:
        return np.empty(shape, dtype)
    offset = _data_start(path, info) + header
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")


def _data_start(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin: behind its local header, whose length is its own."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        name, extra = struct.unpack("<26x2H", file.read(30))
    return int(info.header_offset + 30 + name + extra)


def _numbers(path: Path, array: Array) -> Array:
    if array.dtype.kind not in "biufUS":
        raise ValueError(f"{path} holds {array.dtype}: expected numbers, or texts for labels.")
    return array


def _unreadable(path: Path, error: Exception) -> ValueError:
    if isinstance(error, FileNotFoundError):
        return ValueError(f"{path} does not exist: expected an .npy or .npz file.")
    kind = "NPZ" if path.suffix.lower() == ".npz" else "NPY"
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return ValueError(
        f"{path} cannot be read as {kind}: {text}; it was cut off, is damaged or is another kind "
        "of file: make it again."
    )
