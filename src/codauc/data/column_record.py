"""How each column of a table was read, as frozen data; known without torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from codauc._internal.checks import listed
from codauc._internal.formats import auc_text, share

KINDS = {  # of columns, and what the terminal calls several of them
    "number": "numbers",
    "date": "dates",
    "flag": "flags",
    "category": "categories",
    "target": "targets",
    "text": "texts",
    "id": "ids",
    "empty": "empty columns",
    "dropped": "dropped columns",
}
LEFT_OUT = {  # kinds that the program leaves out by itself, and why
    "text": "hardly a text comes twice",
    "id": "every value is another integer",
    "empty": "no value in any row",
}

_DATE = re.compile(r"\d{4}-\d\d?-\d\d?|\d\d?[./]\d\d?[./](\d\d){1,2}\b")
_AMOUNT = re.compile(r"[($€£¥-]*\s*\d[\d.,]*\s*[%$€£¥)]*")


@dataclass(frozen=True)
class ColumnRecord:
    """How one column of a table was read; a run writes one for each column to columns.json.

    `kind` is one of `KINDS`: "number", "date" (a number with its cycles beside it), "flag" (a
    number that is 0 or 1), "category" (texts that come again), "target" (the labels), or of a
    column that is no input "text" (texts that hardly come twice), "id" (integers of which none
    comes twice), "empty" (no value in any training row) or "dropped" (as the person asked).
    `used` says whether it is an input. `missing` is the share of the training rows without a value,
    None where it was not read. `levels` counts the different values of a category or a target,
    None for others. `examples` are at most three values as they were written. `written` says how
    values are written where that is not as plain numbers or ISO dates, such as "decimal comma" or
    "day first". `parts` are the cycles of a date that are inputs beside the number, such as "hour".
    `notes` are sentences on what is unusual, with arguments in Python's words. `auc` is the AUC of
    this column alone on the training rows, where it is over 0.99; else None.
    """

    name: str
    kind: str
    used: bool
    missing: float | None = None
    levels: int | None = None
    examples: tuple[str, ...] = ()
    written: str = ""
    parts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    auc: float | None = None

    @property
    def leak(self) -> str:
        """What to say of a column that decides alone; "" of others."""
        if self.auc is None:
            return ""
        return (
            f"column {self.name!r} alone gives AUC {auc_text(self.auc)} on the training rows: it "
            "may be made from the labels. If it is not known when the model is used, leave it out: "
            f"drop=[{self.name!r}]."
        )

    @staticmethod
    def from_dict(plain: Any) -> ColumnRecord:
        """What `dataclasses.asdict` gave, also after a way through JSON."""
        try:
            known = {each.name: plain[each.name] for each in fields(ColumnRecord)}
            lists = {name: tuple(map(str, known[name])) for name in ("examples", "parts", "notes")}
            record = ColumnRecord(**known | lists)
            if record.kind not in KINDS or not isinstance(record.name, str):
                raise TypeError(f"kind {record.kind!r}")
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"a record of a column that cannot be read ({error}): expected what a run writes; "
                "it was changed, or is of another version."
            ) from error
        return record


def to_json(records: Iterable[ColumnRecord]) -> dict[str, Any]:
    """The records as plain values, for columns.json."""
    return {"columns": [asdict(record) for record in records]}


def summary_lines(records: Sequence[ColumnRecord]) -> list[str]:
    """The records in a few lines for a terminal, however many columns there are."""
    used = Counter(record.kind for record in records if record.used)
    counts = ", ".join(_count(kind, used[kind]) for kind in KINDS if used[kind])
    lines = [f"Columns: {counts or 'none'}."] if records else []
    written = dict.fromkeys(record.written for record in records if record.written)
    for how in written:
        names = [record.name for record in records if record.written == how]
        lines.append(f"Read as {how}: {listed(names, most=5)}.")
    for kind, why in LEFT_OUT.items():
        names = [record.name for record in records if record.kind == kind]
        if names:
            lines.append(f"Left out, as {why}: {listed(names, most=5)}.")
    return lines + _notes(records)


def _count(kind: str, count: int) -> str:
    return f"{count} {kind if count == 1 else KINDS[kind]}"


def _notes(records: Sequence[ColumnRecord], most: int = 5) -> list[str]:
    """What is unusual: first what decides alone, then the rest up to a few lines."""
    leaks = [record for record in records if record.auc is not None]
    lines = [f"Warning: {record.leak}" for record in leaks[:most]]
    if len(leaks) > most:
        lines.append(f"... and {len(leaks) - most} columns more that decide alone.")
    notes = [(r.name, text) for r in records if r.kind != "dropped" for text in r.notes]
    shown = [f"Note: column {name!r}: {text}." for name, text in notes[:most]]
    if len(notes) > most:
        shown.append(f"... and {len(notes) - most} notes more: codauc inspect shows all.")
    return lines + shown


def target_notes(records: Iterable[ColumnRecord]) -> list[str]:
    """What a person should know of the labels."""
    targets = [record for record in records if record.kind == "target"]
    return [f"Column {record.name!r}: {text}." for record in targets for text in record.notes]


def record_rows(records: Sequence[ColumnRecord]) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a table of all columns."""
    header = ["column", "kind", "missing", "levels", "examples", "notes"]
    return header, [
        [
            record.name,
            record.kind if record.used or record.kind == "target" else f"{record.kind}, left out",
            "-" if record.missing is None else share(record.missing),
            "-" if record.levels is None else f"{record.levels:,}",
            ", ".join(record.examples),
            "; ".join(_remarks(record)),
        ]
        for record in records
    ]


def _remarks(record: ColumnRecord) -> list[str]:
    found = [record.written] if record.written else []
    if record.parts:
        found.append(f"cycles: {', '.join(record.parts)}")
    if record.auc is not None:
        found.append(f"AUC alone {auc_text(record.auc)}")
    return [*found, *record.notes]


def texts_to_convert(columns: Iterable[ColumnRecord]) -> list[str]:
    """What to say of columns whose texts are dates or numbers to a person.

    Those of a CSV file are read as such; the texts of a frame or of Parquet are taken as they are.

    >>> record = ColumnRecord("when", "text", False, examples=("2024-12-31 10:00",))
    >>> texts_to_convert([record])[0][:50]
    "column 'when' holds texts, such as '2024-12-31 10:"
    """
    found = []
    for record in columns:
        kind = _looks_like(record.examples) if record.kind in ("text", "category") else ""
        if kind:
            became = "was taken for categories" if record.used else "was left out"
            found.append(
                f"column {record.name!r} holds texts, such as {record.examples[0]!r}, that look "
                f"like {kind}, and {became}: convert it before (pandas.to_datetime, or to_numeric "
                "without its signs), or save the table as CSV, where such texts are read."
            )
    return found


def _looks_like(examples: Sequence[str]) -> str:
    if examples and all(_DATE.match(example) for example in examples):
        return "dates"
    signs = any(sign in example for example in examples for sign in "$€£¥%,.")
    if examples and signs and all(_AMOUNT.fullmatch(example) for example in examples):
        return "numbers"
    return ""
