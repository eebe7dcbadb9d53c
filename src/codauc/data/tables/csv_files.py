"""Tables in CSV files, of which nothing says what the columns are."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

from codauc._internal.checks import listed
from codauc.data.tables.columnar_files import (
    Batch,
    TableSource,
    arrow,
    check_names,
    kind_of,
    readable,
)

_TRUE, _FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]
_EMPTY = ["", "NA", "N/A", "#N/A", "null", "NULL"]  # texts of a CSV that are missing values
_SAMPLE = 1 << 20  # bytes of a CSV that show which columns are numbers
_MOSTLY = 0.9  # the share of numbers from which on a text among them is a mistake


class CSVTable(TableSource):
    """A CSV file, plain or compressed, with a line of names; comma, semicolon or tab between."""

    def __init__(self, path: Path, known: dict[str, str]) -> None:
        self._path, self._one_column = path, False
        with readable(path, "CSV"):
            head = _head(path)
            self._delimiter = _delimiter(path, head, known)
            names = self._stream([], head=head).schema.names
            check_names(names, path)
            self._one_column = len(names) == 1
            first = next(iter(self._stream(names, head=head)), None)
        if first is None or not first.num_rows:
            raise ValueError(f"{path} has 0 rows: expected some; its columns are {listed(names)}.")
        self._types = {
            name: _type(first.column(i), known.get(name)) for i, name in enumerate(names)
        }
        kinds = {name: kind_of(kind) for name, kind in self._types.items()}
        super().__init__(str(path), kinds, None, path.stat().st_size)

    def read(self, columns: Sequence[str], block: int) -> Iterator[Batch]:
        """All rows."""
        del block  # there is one
        pa = arrow()
        with readable(self._path, "CSV"):
            try:
                yield from self._stream(columns)
            except pa.ArrowInvalid as error:
                if "straddling object" in str(error):
                    raise ValueError(
                        f"{self.path} has a row of more than {_SAMPLE >> 20} MB: expected shorter "
                        "ones; leave long texts out, or look for a quote that is not closed."
                    ) from error
                self._find_text(columns)
                raise

    def copied(self, columns: Sequence[str], block: int) -> Iterator[Batch]:
        """All rows as texts, none of which is taken for a missing value."""
        del block
        with readable(self._path, "CSV"):
            yield from self._stream(columns, text=True, missing=[])

    def _stream(
        self,
        columns: Sequence[str],
        *,
        text: bool = False,
        head: bytes | None = None,
        missing: Sequence[str] = _EMPTY,
    ) -> Any:
        """Some columns of the file, or of its `head`, where all are texts."""
        text = text or head is not None
        pa, reader = arrow(), arrow("pyarrow.csv")
        types = {name: pa.string() if text else self._types[name] for name in columns}
        return reader.open_csv(
            self._path if head is None else io.BytesIO(head),
            reader.ReadOptions(use_threads=False, block_size=_SAMPLE),
            reader.ParseOptions(
                delimiter=self._delimiter,
                newlines_in_values=True,
                ignore_empty_lines=not self._one_column,  # there an empty line is a missing value
            ),
            reader.ConvertOptions(
                column_types=types,
                include_columns=list(columns),
                null_values=list(missing),
                true_values=_TRUE,
                false_values=_FALSE,
                strings_can_be_null=bool(missing),
            ),
        )

    def _find_text(self, columns: Sequence[str]) -> None:
        """Raise with the place of the first text in a column of numbers or times."""
        pa = arrow()
        typed = [name for name in columns if self._types[name] != pa.string()]
        start = 0
        for batch in self._stream(typed, text=True) if typed else []:
            found = [
                (row, name, value)
                for name, column in zip(typed, batch.columns, strict=True)
                for row, value in enumerate(column.to_pylist())
                if value is not None and not _fits(value, self._types[name])
            ]
            if found:
                row, name, value = min(found, key=lambda place: place[0])
                others = "numbers" if self._types[name] == pa.float64() else "others"
                raise ValueError(
                    f"{self.path}, column {name!r}, row {start + row}: got the text {value!r} "
                    f"among {others}; correct it, leave the cell empty if it is missing, or say "
                    f"categories=[{name!r}]."
                )
            start += batch.num_rows


def _type(column: Any, known: str | None) -> Any:
    """What the texts of a column are; `known` is what is said of it."""
    pa = arrow()
    if known == "category":
        return pa.string()
    values = [value for value in column.to_pylist() if value is not None]
    if known == "time" and not values:
        return pa.timestamp("us")
    if sum(map(_is_number, values)) >= _MOSTLY * len(values):
        return pa.float64()
    if all(value in (*_TRUE, *_FALSE) for value in values):
        return pa.bool_()
    for unit, zone in product(("us", "ns"), (None, "UTC")):
        kind = pa.timestamp(unit, zone)
        if sum(_fits(value, kind) for value in values[:200]) >= _MOSTLY * len(values[:200]):
            return kind
    # of a column that was numbers the text is found and reported when it is read
    return pa.string() if known is None else pa.float64()


def _fits(text: str, kind: Any) -> bool:
    pa = arrow()
    if kind == pa.float64():
        return _is_number(text)
    if kind == pa.bool_():
        return text in (*_TRUE, *_FALSE)
    with suppress(pa.ArrowInvalid):
        pa.scalar(text).cast(kind)
        return True
    return False


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text and text.isascii()


def _head(path: Path) -> bytes:
    """The first block, and more than a row of the next: whole files would be read ahead."""
    if path.suffix.lower() not in (".csv", ".tsv", ".txt", ".gz"):
        raise ValueError(f"{path}: expected a CSV file, plain or with .gz; unpack it first.")
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        return file.read(2 * _SAMPLE)


def _delimiter(path: Path, head: bytes, known: Collection[str]) -> str:
    """What stands between the names in the first line: it gives most known names, then most."""
    line = re.split(rb"[\r\n]", head[:_SAMPLE], maxsplit=1)[0]
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(line)  # it may be cut off
        rows = {mark: next(csv.reader([text], delimiter=mark), []) for mark in ",;\t"}
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not UTF-8 text: save it as UTF-8 ({error}).") from error
    # of equals the first, commas
    return max(rows, key=lambda mark: (len(set(known) & set(rows[mark])), len(rows[mark])))
