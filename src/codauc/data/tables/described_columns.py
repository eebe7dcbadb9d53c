"""From what a pass over the rows told: which columns are no inputs, and a record of each column."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from codauc._internal.formats import shortened
from codauc.data.column_record import ColumnRecord
from codauc.data.tables.column_statistics import Summary, Value
from codauc.data.tables.columnar_files import arrow
from codauc.data.tables.encoder import Columns, Encoder, frequent, least_count

RARE = 5  # texts that occur less often are as good as unseen

_FEW = 20  # rows below which nothing is said of how often values come
_MANY = 100  # rows from which on nearly consecutive integers number them
_MOSTLY = 0.9  # the share of different texts from which on they are no category
_ID = re.compile(r"(^|[\W_])(id|ids|uuid|guid|key|index|idx|nr|no|row)$|[a-z](Id|ID)$|^(id|Id|ID)_")
_EXAMPLES, _LONGEST = 3, 24
_LEVELS = 12  # texts with digits, from which on they may be meant as numbers or dates


@dataclass(frozen=True)
class Written:
    """What a file says of its columns beside their values, by name.

    `how` is the way in which values are written where it is not the plain one; `examples` are
    values as they were written; `notes` say what is unusual.
    """

    how: Mapping[str, str] = field(default_factory=dict)
    examples: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: Mapping[str, list[str]] = field(default_factory=dict)


def left_out(columns: Columns, summary: Summary) -> dict[str, str]:
    """The columns that are no inputs, with the kind that says why: "text", "id" or "empty"."""
    found: dict[str, str] = {}
    for i, name in enumerate(columns.numbers):
        if not summary.moments.count[i]:
            found[name] = "empty"
        elif name not in columns.times and _is_id(name, i, summary):
            found[name] = "id"
    for i, name in enumerate(columns.categories):
        counts = summary.categories[i]
        if not any(value is not None for value in counts):
            found[name] = "empty"
        elif i in summary.full or _is_text(counts, summary.rows):
            found[name] = "text"
    if len(found) == len(columns.numbers) + len(columns.categories):
        found = {name: kind for name, kind in found.items() if kind != "id"}  # better than none
        if len(found) == len(columns.numbers) + len(columns.categories):
            raise ValueError(_nothing(found))
    return found


def check_values(columns: Columns, summary: Summary) -> None:
    """Raise where a column of an array, of which none is left out, has no value."""
    for name, count in zip(columns.numbers, summary.moments.count, strict=True):
        if not count:
            raise ValueError(
                f"column {name!r} has no value in any row: expected some to learn from; take it "
                "out of the array."
            )


def _nothing(found: Mapping[str, str]) -> str:
    counts = Counter(found.values())
    names = {"text": "texts that hardly come twice", "id": "integers of which none comes twice",
             "empty": "columns without a value"}  # fmt: skip
    kinds = " and ".join(f"{count} of {names[kind]}" for kind, count in counts.items())
    return (
        f"no column is left to learn from: there are {kinds}, such as {next(iter(found))!r}; "
        "expected numbers, dates or texts that come again."
    )


def _is_text(counts: Mapping[Value, int], rows: int) -> bool:
    there: dict[Value, int] = {value: count for value, count in counts.items() if value is not None}
    known = sum(there.values())
    if not frequent(there, least_count(rows, RARE)):
        return True
    return known >= _FEW and len(there) > _MOSTLY * known


def _is_id(name: str, column: int, summary: Summary) -> bool:
    """Whether no integer comes twice, and either the name or their order says that they number."""
    traits = summary.traits
    if column not in traits.hashes or summary.rows < _FEW:
        return False
    dense = traits.high[column] - traits.low[column] < 2 * summary.rows
    return (dense and summary.rows >= _MANY) or bool(_ID.search(name))


def examples_of(batch: Any) -> dict[str, tuple[str, ...]]:
    """The first few different values of each column."""
    pa = arrow()
    found = {}
    for name, column in zip(batch.schema.names, batch.slice(0, 20).columns, strict=True):
        values = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        texts = [str(value) for value in values.to_pylist() if value is not None]
        found[name] = few_examples(texts)
    return found


def few_examples(texts: list[str]) -> tuple[str, ...]:
    """The first few different texts, none of them long."""
    return tuple(dict.fromkeys(shortened(text, _LONGEST) for text in texts))[:_EXAMPLES]


def described(
    columns: Columns, encoder: Encoder, summary: Summary, out: Mapping[str, str], written: Written
) -> tuple[ColumnRecord, ...]:
    """A record of each column: the inputs and what was left out, the target, then the dropped."""

    def record(name: str, kind: str, missing: float | None, **more: Any) -> ColumnRecord:
        notes = (*written.notes.get(name, ()), *more.pop("notes", ()))
        used = kind in ("number", "date", "flag", "category")
        examples, how = written.examples.get(name, ()), written.how.get(name, "")
        return ColumnRecord(
            name, kind, used, missing, examples=examples, written=how, notes=notes, **more
        )

    found, rows = [], max(summary.rows, 1)
    for i, name in enumerate(columns.numbers):
        parts = tuple(part.part for part in encoder.parts if part.name == name)
        kind = out.get(name) or _number_kind(name, i, columns, summary)
        missing = float(1 - summary.moments.count[i] / rows)
        notes = _number_notes(name, i, summary) if kind in ("number", "date", "flag") else []
        found.append(record(name, kind, missing, parts=parts, notes=notes))
    for i, name in enumerate(columns.categories):
        counts, kind = summary.categories[i], out.get(name, "category")
        missing = counts.get(None, 0) / rows
        levels = len(counts) - (None in counts)
        notes = _text_notes(counts) if kind == "category" else []
        if i in summary.full:
            notes = [f"more than {levels - 1:,} different texts"]
        found.append(record(name, kind, missing, levels=levels, notes=notes))
    if columns.target is not None:
        found.append(record(columns.target, "target", 0.0, levels=len(summary.targets)))
    return (*found, *(record(name, "dropped", None) for name in columns.dropped))


def _number_kind(name: str, column: int, columns: Columns, summary: Summary) -> str:
    if name in columns.times:
        return "date"
    return "flag" if summary.traits.flag[column] else "number"


def _number_notes(name: str, column: int, summary: Summary) -> list[str]:
    traits = summary.traits
    if summary.rows < 2:
        return []
    if traits.low[column] == traits.high[column]:
        return ["all values are equal"]
    if column in traits.hashes and summary.rows >= _FEW:
        return [f"every value is another integer: if it is an id, drop=[{name!r}]"]
    return []


def _text_notes(counts: Mapping[Value, int]) -> list[str]:
    """What is unusual in the texts of a category."""
    texts = [str(value) for value in counts if value is not None]
    notes = ["all values are equal"] if len(texts) == 1 and None not in counts else []
    plain = Counter(" ".join(text.split()).casefold() for text in texts)
    with_digits = [text for text in texts if any(map(str.isdigit, text))]
    if len(texts) > _LEVELS and len(with_digits) > _MOSTLY * len(texts):
        notes.append(
            f"{len(texts):,} texts with numbers, such as {with_digits[0]!r}, are taken for a "
            "category: write dates as 2024-12-31, and numbers as 1234.5 in one unit"
        )
    alike = [text for text, count in plain.items() if count > 1]
    if alike:
        notes.append(f"texts that differ in case or spaces alone, such as {alike[0]!r}")
    return notes
