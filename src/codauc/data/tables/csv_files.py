"""Tables in CSV files, of which nothing says what the columns are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
from codauc.data.tables.csv_text import SAMPLE, CSVText
from codauc.data.tables.described_columns import few_examples
from codauc.data.tables.locale import Locale
from codauc.data.tables.notation import (
    MISSING,
    NO_NUMBER,
    DoubtError,
    Notation,
    NumberNotation,
    notations,
    tidied,
    tidied_array,
)

_TRUE, _FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]
_MOSTLY = 0.9  # the share of numbers from which on a text among them is a mistake
_PLAIN = Locale()


class CSVTable(TableSource):
    """A CSV file, plain or compressed, with a line of names; comma, semicolon, tab or | between.

    `known` says of some columns what they are, `locale` what was asked for, and `trained` how the
    file of training was written, for what this one does not show.
    """

    def __init__(
        self,
        path: Path,
        known: Mapping[str, str],
        locale: Locale = _PLAIN,
        trained: Locale = _PLAIN,
    ) -> None:
        self._path, self._one_column = path, False
        with readable(path, "CSV"):
            self._text = CSVText(path, locale.encoding, known)
            head = self._text.head
            names = self._stream([], head=head).schema.names
            check_names(names, path)
            self._one_column = len(names) == 1
            first = next(iter(self._stream(names, head=head)), None)
        if first is None or not first.num_rows:
            raise ValueError(f"{path} has 0 rows: expected some; its columns are {listed(names)}.")
        self._missing = frozenset((*MISSING, *locale.na_values))
        texts = {name: first.column(i).to_pylist() for i, name in enumerate(names)}
        self._notations, said = self._found(texts, known, locale, trained)
        self._types = {name: self._type(name, texts[name], known.get(name)) for name in names}
        kinds = {name: kind_of(kind) for name, kind in self._types.items()}
        super().__init__(str(path), kinds, None, path.stat().st_size)
        self.locale = said
        self._describe(texts)

    def _found(
        self,
        texts: Mapping[str, list[str]],
        known: Mapping[str, str],
        locale: Locale,
        trained: Locale,
    ) -> tuple[dict[str, Notation], Locale]:
        """How columns are written that are no plain numbers or dates, and the whole file."""
        skipped = {*self._missing, *NO_NUMBER}
        columns = {
            name: found
            for name, values in texts.items()
            if known.get(name) != "category"
            and (found := [tidied(value) for value in values if value not in skipped])
        }
        try:
            written, said = notations(columns, locale, trained)
        except DoubtError as doubt:
            values = texts[doubt.names[0]]
            row = next(row for row, value in enumerate(values) if value not in skipped)
            raise ValueError(f"{self._path}, {self.lines([row])[row]}: {doubt.text}.") from doubt
        return written, said

    def _type(self, name: str, texts: list[str], known: str | None) -> Any:
        """What the texts of a column are; `known` is what is said of it."""
        pa = arrow()
        if known == "category":
            return pa.string()
        values = [text for text in texts if text not in self._missing and text not in NO_NUMBER]
        if not values:
            return pa.timestamp("us") if known == "time" else pa.float64()
        notation = self._notations.get(name)
        if not isinstance(notation, NumberNotation) or notation == NumberNotation("."):
            plain = _plain_type(values)
            if plain is not None:
                self._notations.pop(name, None)
                return plain
        if notation is not None:
            return pa.float64() if isinstance(notation, NumberNotation) else pa.timestamp("us")
        # of a column that was numbers the text is found and reported when it is read
        return pa.string() if known is None else pa.float64()

    def _describe(self, texts: Mapping[str, list[str]]) -> None:
        """What a record says of the columns: how they are written, and what is unusual."""
        pa = arrow()
        for name, values in texts.items():
            there = [value for value in values if value not in self._missing]
            self.examples[name] = few_examples(there)
            if name in self._notations and not all(map(str.isdigit, there)):
                self.how[name] = self._notations[name].text
            if self._types[name] != pa.string():
                odd = dict.fromkeys(value for value in there if value in NO_NUMBER)
                if odd:
                    self.notes[name] = [f"read as missing: {listed(list(odd), most=5)}"]
            elif 0.2 < (share := _share_of_numbers(there)) < 1:
                self.notes[name] = [f"{share:.0%} of the texts are numbers, the others are not"]

    def read(self, columns: Sequence[str], block: int) -> Iterator[Batch]:
        """All rows."""
        del block  # there is one
        pa = arrow()
        with readable(self._path, "CSV"):
            try:
                for batch in self._stream(columns):
                    yield self._converted(batch)
            except pa.ArrowInvalid as error:
                if "straddling object" in str(error):
                    raise ValueError(
                        f"{self.path} has a row of more than {SAMPLE >> 20} MB: expected shorter "
                        "ones; leave long texts out, or look for a quote that is not closed."
                    ) from error
                if "invalid UTF8" in str(error):
                    raise ValueError(self._text.not_text(error)) from error
                self._find_texts(columns)
                raise

    def _converted(self, batch: Batch) -> Batch:
        """The batch with texts that are missing, and values as they are written."""
        pa, pc = arrow(), arrow("pyarrow.compute")
        columns = []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if pa.types.is_string(column.type):
                typed = self._types[name] != pa.string()
                missing = (*self._missing, *NO_NUMBER) if typed else self._missing
                null = pc.is_in(column, value_set=pa.array(missing, pa.string()))
                column = pc.if_else(null, pa.scalar(None, pa.string()), column)
                if typed:
                    column = self._values(name, column)
            columns.append(column)
        return pa.record_batch(columns, names=batch.schema.names)

    def _values(self, name: str, column: Any) -> Any:
        pa, pc = arrow(), arrow("pyarrow.compute")
        notation, texts = self._notations[name], tidied_array(column)
        fits = pc.match_substring_regex(texts, notation.pattern)
        if not pc.all(pc.fill_null(fits, True)).as_py():
            raise pa.ArrowInvalid(f"a text in column {name!r} that does not fit")
        return notation.values(texts)

    def copied(self, columns: Sequence[str], block: int) -> Iterator[Batch]:
        """All rows as texts, none of which is taken for a missing value."""
        del block
        with readable(self._path, "CSV"):
            yield from self._stream(columns, text=True)

    def _stream(
        self, columns: Sequence[str], *, text: bool = False, head: bytes | None = None
    ) -> Any:
        """Some columns of the file, or of its `head`, where all are texts."""
        text = text or head is not None
        pa, reader = arrow(), arrow("pyarrow.csv")
        types = {
            name: pa.string() if text or name in self._notations else self._types[name]
            for name in columns
        }
        return reader.open_csv(
            self._path if head is None else _in_memory(head),
            reader.ReadOptions(
                use_threads=False,
                block_size=SAMPLE,
                skip_rows=0 if head is not None else self._text.skipped,
                encoding="utf8" if head is not None or self._text.is_utf8 else self._text.encoding,
            ),
            reader.ParseOptions(
                delimiter=self._text.delimiter,
                newlines_in_values=True,
                ignore_empty_lines=not self._one_column,  # there an empty line is a missing value
            ),
            reader.ConvertOptions(
                column_types=types,
                include_columns=list(columns),
                null_values=[] if text else [*self._missing, *NO_NUMBER],
                true_values=_TRUE,
                false_values=_FALSE,
                strings_can_be_null=False,  # which texts are missing differs between columns
            ),
        )

    def _find_texts(self, columns: Sequence[str]) -> None:
        """Raise with the places of texts in columns of numbers or times, all columns at once."""
        pa = arrow()
        typed = [name for name in columns if self._types[name] != pa.string()]
        start, found = 0, dict[str, list[tuple[int, str]]]()
        for batch in self._stream(typed, text=True) if typed else []:
            for name, column in zip(typed, batch.columns, strict=True):
                for row, value in enumerate(column.to_pylist(), start):
                    if not self._fits(name, value):
                        found.setdefault(name, []).append((row, value))
            start += batch.num_rows
        if found:
            raise ValueError(self._strange(found))

    def _strange(self, found: Mapping[str, list[tuple[int, str]]]) -> str:
        """The message for texts where numbers or times are."""
        pa = arrow()
        lines = self.lines([places[0][0] for places in found.values()])
        parts = []
        for name, places in list(found.items())[:5]:
            row, value = places[0]
            others = "numbers" if self._types[name] == pa.float64() else "others"
            more = f" ({len(places)} such texts)" if len(places) > 1 else ""
            parts.append(
                f"column {name!r}, {lines[row]}: got the text {value!r} among {others}{more}"
            )
        parts += [f"{len(found) - 5} columns more"] if len(found) > 5 else []
        texts = list(dict.fromkeys(place[1] for places in found.values() for place in places[:3]))
        return (
            f"{self.path}, {'; '.join(parts)}; correct it, or if it is missing leave the cell "
            f"empty or say na_values={texts[:5]!r}; or say categories={list(found)[:5]!r}."
        )

    def _fits(self, name: str, value: str) -> bool:
        pa = arrow()
        if value in self._missing or value in NO_NUMBER:
            return True
        notation = self._notations.get(name)
        if notation is None:
            return _fits(value, self._types[name])
        with suppress(pa.ArrowInvalid):
            self._values(name, pa.array([value]))
            return True
        return False

    def lines(self, rows: Collection[int]) -> dict[int, str]:
        """Where rows are in the file, for messages."""
        found = self._text.lines_of(set(rows), empty_lines=self._one_column)
        return {row: f"line {found[row]}" if row in found else f"row {row}" for row in rows}


def _in_memory(data: bytes) -> Any:
    """The bytes as a file of pyarrow's own.

    A stream that is left reads on in a thread; one that held Python's bytes could not let go of
    them while the program ends, and would abort it.
    """
    pa = arrow()
    copy = pa.BufferOutputStream()
    copy.write(data)
    return pa.BufferReader(copy.getvalue())


def _plain_type(values: list[str]) -> Any:
    """The type of values that need no notation; None for texts."""
    pa = arrow()
    if sum(map(_is_number, values)) >= _MOSTLY * len(values):
        return pa.float64()
    if all(value in (*_TRUE, *_FALSE) for value in values):
        return pa.bool_()
    for unit, zone in product(("us", "ns"), (None, "UTC")):
        kind = pa.timestamp(unit, zone)
        if sum(_fits(value, kind) for value in values[:200]) >= _MOSTLY * len(values[:200]):
            return kind
    return None


def _share_of_numbers(texts: list[str]) -> float:
    return sum(map(_is_number, texts)) / max(len(texts), 1)


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
