"""Tables that say what their columns are: Parquet, Arrow and frames, read block by block."""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from codauc._internal.checks import listed
from codauc._internal.files import regular_file
from codauc.data.tables.locale import PLAIN

Batch = Any  # pyarrow.RecordBatch; pyarrow has no types

_CELLS = 1 << 19  # how many values are read at a time: 4 MB of numbers


def arrow(module: str = "pyarrow") -> Any:
    """A module of pyarrow, or an error that says how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(
            "tables need pyarrow, which is not installed: pip install 'codauc[tables]'."
        ) from error


class TableSource(ABC):
    """A table that is read in batches of rows.

    `kinds` are the columns' names with "number", "time", "duration", "category", "null" where all
    values are missing and the type is open, or else the type.
    `blocks` are the numbers of rows of the parts that can be read alone, None if unknown; `bytes`
    is about the size of the whole. By name of a column, `how` its values are written where that is
    not the plain way, `notes` on what is unusual, and `examples` of its values as they are written.
    """

    def __init__(self, path: str, kinds: dict[str, str], blocks: list[int] | None, size: int):
        self.path, self.kinds, self.blocks, self.bytes = path, kinds, blocks, size
        self.locale = PLAIN
        self.how: dict[str, str] = {}
        self.notes: dict[str, list[str]] = {}
        self.examples: dict[str, tuple[str, ...]] = {}
        if blocks is not None and not sum(blocks):
            raise ValueError(f"{path} has 0 rows: expected some; its columns are {listed(kinds)}.")

    def lines(self, rows: Collection[int]) -> dict[int, str]:
        """Where rows are, for messages."""
        return {row: f"row {row}" for row in rows}

    def place(self, name: str, row: int) -> str:
        """Where the value of a column is, for a message."""
        return f"{self.path}, column {name!r}, {self.lines([row])[row]}"

    @abstractmethod
    def read(self, columns: Sequence[str], block: int) -> Iterator[Batch]:
        """The rows of a block, or all if there are none, in batches of a moderate size."""

    def copied(self, columns: Sequence[str], block: int) -> Iterator[Batch]:
        """The same, with every value as it is written."""
        return self.read(columns, block)


class ParquetTable(TableSource):
    """One Parquet file, or a folder of them; its blocks are row groups."""

    def __init__(self, path: Path) -> None:
        files = _parquet_files(path) if path.is_dir() else [path]
        self._places: list[tuple[Path, int]] = []
        blocks, size, schema = list[int](), 0, None
        for file in files:
            with self._open(file) as parquet:
                schema = _same(schema, parquet.schema_arrow, files[0], file)
                for i in range(parquet.num_row_groups):
                    group = parquet.metadata.row_group(i)
                    self._places.append((file, i))
                    blocks.append(group.num_rows)
                    size += group.total_byte_size
        super().__init__(str(path), _kinds(schema, path), blocks, size)

    @contextmanager
    def _open(self, file: Path) -> Iterator[Any]:
        parquet = arrow("pyarrow.parquet")
        with (
            readable(file, "Parquet"),
            parquet.ParquetFile(regular_file(file), memory_map=True) as opened,
        ):
            yield opened

    def read(self, columns: Sequence[str], block: int) -> Iterator[Batch]:
        """The rows of a row group."""
        file, group = self._places[block]
        with self._open(file) as parquet:
            yield from parquet.iter_batches(
                rows_at_a_time(len(columns)), [group], columns=list(columns), use_threads=False
            )


class ArrowTable(TableSource):
    """An Arrow (Feather) file, memory-mapped; its blocks are record batches.

    The streaming form has no list of its batches, and is read from the beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with readable(path, "Arrow"):
            file = self._open()
            blocks = None
            if hasattr(file, "num_record_batches"):
                blocks = [file.get_batch(i).num_rows for i in range(file.num_record_batches)]
        super().__init__(str(path), _kinds(file.schema, path), blocks, path.stat().st_size)

    def _open(self) -> Any:
        pa = arrow()
        source = pa.memory_map(str(self._path))
        try:
            return pa.ipc.open_file(source)
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_stream(source)

    def read(self, columns: Sequence[str], block: int) -> Iterator[Batch]:
        """The rows of a record batch, or of a stream."""
        step = rows_at_a_time(len(columns))
        with readable(self._path, "Arrow"):
            file = self._open()
            for batch in file if self.blocks is None else [file.get_batch(block)]:
                part = batch.select(list(columns))
                part.validate(full=True)  # what is damaged would end the process
                for start in range(0, part.num_rows, step):
                    yield part.slice(start, step)


class MemoryTable(TableSource):
    """A pyarrow table in memory, perhaps with labels beside it."""

    def __init__(self, data: Any, labels: tuple[str, Any] | None = None) -> None:
        pa = arrow()
        try:
            if labels is not None:
                data = _with_labels(data, *labels)
        except (pa.ArrowException, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(
                f"the labels cannot be read: {_line(error)}; expected numbers or texts, of shape "
                "[N]."
            ) from error
        self._table = data
        kinds = _kinds(data.schema, "the table")
        for name in kinds:  # pandas makes a column of nothing one of numbers
            if data.column(name).null_count == data.num_rows:
                kinds[name] = "null"
        super().__init__("the table", kinds, [data.num_rows], data.nbytes)

    def read(self, columns: Sequence[str], block: int) -> Iterator[Batch]:
        """All rows."""
        del block  # there is one
        yield from self._table.select(list(columns)).to_batches(rows_at_a_time(len(columns)))


def _with_labels(table: Any, name: str, labels: Any) -> Any:
    pa = arrow()
    if len(labels) != table.num_rows:
        raise ValueError(
            f"the table has {table.num_rows} rows and the target {len(labels)} labels: expected "
            "one label per row."
        )
    plain = labels if hasattr(labels, "name") else np.asarray(labels)
    return table.append_column(name, pa.array(plain))


def rows_at_a_time(columns: int) -> int:
    """How many rows make a batch of a moderate size."""
    return max(_CELLS // max(columns, 1), 1024)


@contextmanager
def readable(path: Path | str, kind: str) -> Iterator[None]:
    """Turn what pyarrow says of a broken file into an error that names it."""
    pa = arrow()
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        if isinstance(error, PermissionError):
            raise
        raise ValueError(
            f"{path} cannot be read as {kind}: {_line(error)}; it was cut off, is damaged or is "
            "another kind of file: get it again."
        ) from error


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _kinds(schema: Any, path: Path | str) -> dict[str, str]:
    """What the columns are; the index of a frame that was saved is none of them."""
    check_names(schema.names, path)
    index = []
    with suppress(ValueError, TypeError, AttributeError, RecursionError):  # pandas' own, or odd
        about = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
        index = [name for name in about.get("index_columns", []) if isinstance(name, str)]
    return {field.name: kind_of(field.type) for field in schema if field.name not in index}


def kind_of(kind: Any) -> str:
    """What an Arrow type is to us; see `TableSource`."""
    types = arrow("pyarrow.types")
    if types.is_dictionary(kind):
        return kind_of(kind.value_type)
    texts = ("is_string", "is_large_string", "is_string_view")
    if any(getattr(types, name, lambda _: False)(kind) for name in texts):
        return "category"
    if types.is_null(kind):
        return "null"
    if types.is_duration(kind):
        return "duration"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "time"
    known = ("integer", "floating", "boolean", "decimal")
    return "number" if any(getattr(types, f"is_{name}")(kind) for name in known) else str(kind)


def check_names(names: Sequence[str], path: Path | str) -> None:
    """Raise where a name comes twice."""
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise ValueError(f"{path} has two columns {twice!r}: expected names that differ.")


def _parquet_files(folder: Path) -> list[Path]:
    files = sorted(file for suffix in ("parquet", "pq") for file in folder.rglob(f"*.{suffix}"))
    if not files:
        raise ValueError(f"{folder} holds no .parquet file: expected at least one.")
    for file in files:
        if "=" in str(file.parent.relative_to(folder)):
            raise ValueError(
                f"{file} lies in a folder that stands for a column: expected all columns in the "
                "files; write them without partitions."
            )
    return files


def _same(schema: Any, other: Any, first: Path, file: Path) -> Any:
    if schema is None or schema.equals(other):
        return other
    here, there = ({field.name: str(field.type) for field in s} for s in (other, schema))
    odd = [name for name in {**there, **here} if here.get(name) != there.get(name)]
    what = (
        f"column {odd[0]!r}: {here.get(odd[0])} and {there.get(odd[0])}" if odd else "their order"
    )
    raise ValueError(
        f"{file} and {first} differ in columns ({what}): expected the same in every file."
    )
