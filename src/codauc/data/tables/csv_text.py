"""The text of a CSV file: its encoding, the mark between values, its lines."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

SAMPLE = 1 << 20  # bytes of a CSV that show what its columns are

_SEP = re.compile(r"\ufeff?\"?sep=(.)\"?\r?\n?", re.IGNORECASE)  # the first line of some exports
_BOMS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


class CSVText:
    """A file as text; `names` are columns that it should have, which tell the mark between."""

    def __init__(self, path: Path, encoding: str | None, names: Collection[str]) -> None:
        self.path = path
        raw = self._raw_head()
        self.encoding = encoding or next(
            (name for mark, name in _BOMS.items() if raw.startswith(mark)), "utf-8"
        )
        text = self._decoded(raw)
        sep = _SEP.match(text)
        self.skipped = 0 if sep is None else 1  # lines before the names
        if sep is not None:
            text = text[sep.end() :]
        self.head = text.encode()
        self.delimiter = _delimiter(path, text, names) if sep is None else sep[1]

    @property
    def is_utf8(self) -> bool:
        """Whether it needs no translation."""
        return codecs.lookup(self.encoding).name in ("utf-8", "ascii")

    def _raw_head(self) -> bytes:
        """The first block, and more than a row of the next: whole files would be read ahead."""
        if self.path.suffix.lower() not in (".csv", ".tsv", ".txt", ".gz"):
            raise ValueError(
                f"{self.path}: expected a CSV file, plain or with .gz; unpack it first."
            )
        with self._open() as file:
            return bytes(file.read(2 * SAMPLE))

    def _open(self) -> Any:
        if self.path.suffix.lower() == ".gz":
            return gzip.open(self.path)
        return self.path.open("rb")

    def _decoded(self, raw: bytes) -> str:
        try:
            decoder = codecs.getincrementaldecoder(self.encoding)()
        except LookupError as error:
            raise ValueError(
                f"encoding={self.encoding!r} is not known: expected a name such as 'utf-8', "
                "'latin-1' or 'utf-16'."
            ) from error
        try:
            return decoder.decode(raw).removeprefix("\ufeff")  # it may be cut off
        except UnicodeDecodeError as error:
            raise ValueError(self.not_text(error)) from error

    def not_text(self, error: Exception) -> str:
        """The message for bytes that are no text of the encoding."""
        return (
            f"{self.path} is not {self.encoding.upper()} text ({error}): save it as UTF-8, or say "
            "how it was saved: encoding='latin-1' (Western Europe), 'cp1250' (Central Europe), "
            "'cp1251' (Cyrillic), 'shift_jis', 'gb18030'."
        )

    def lines_of(self, rows: Collection[int], *, empty_lines: bool = False) -> dict[int, int]:
        """The lines of the file, from 1, on which these rows, from 0, begin.

        The file is read again up to the last of them, which is only done for messages.
        """
        found, row, last = dict[int, int](), -1, max(rows, default=-1)
        for line, values in self._rows():
            if not values and not empty_lines:
                continue
            if row in rows:
                found[row] = line
            row += 1
            if row > last:
                break
        return found

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """The first line and the values of each row, the names first."""
        csv.field_size_limit(1 << 30)
        with self._open() as file:
            text = io.TextIOWrapper(file, self.encoding, errors="replace", newline="")
            for _ in range(self.skipped):
                text.readline()
            reader = csv.reader(text, delimiter=self.delimiter)
            before = self.skipped
            for values in reader:
                yield before + 1, values
                before = self.skipped + reader.line_num


def _delimiter(path: Path, text: str, known: Collection[str]) -> str:
    """What stands between the names in the first line: it gives most known names, then most."""
    line = re.split(r"[\r\n]", text[:SAMPLE], maxsplit=1)[0]
    try:
        rows = {mark: next(csv.reader([line], delimiter=mark), []) for mark in ",;\t|"}
    except csv.Error as error:
        raise ValueError(f"{path} is no CSV text ({error}): save it as CSV.") from error
    # of equals the first, commas
    return max(rows, key=lambda mark: (len(set(known) & set(rows[mark])), len(rows[mark])))
