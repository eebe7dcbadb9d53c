"""What is odd about data that are read as training data were."""

from __future__ import annotations

from collections.abc import Iterator

from codauc._internal.checks import listed, shown
from codauc.data.tables.column_statistics import Summary, Value
from codauc.data.tables.encoder import MISSING, UNSEEN, Category, Columns, Encoder

_IGNORED = "columns that training did not have are ignored: "
_MOST = 10  # columns that are mentioned by name


def reading_notes(encoder: Encoder, columns: Columns, summary: Summary) -> list[str]:
    """What to say of rows that were read with the encoder of a training set.

    Columns that are ignored, columns without a value, and texts that training did not have, or that
    were too rare there, with how often they come.
    """
    notes = [_IGNORED + listed(columns.extra)] if columns.extra else []
    odd = [*_empty(columns, summary), *_unseen(encoder, columns, summary)]
    if len(odd) > _MOST:
        odd = [*odd[:_MOST], f"{len(odd) - _MOST} further columns have missing or unseen values."]
    return [*notes, *odd]


def extra_columns(note: str) -> bool:
    """Whether a note is of columns that are ignored."""
    return note.startswith(_IGNORED)


def _empty(columns: Columns, summary: Summary) -> Iterator[str]:
    counts = summary.moments.count.tolist()  # of the numbers first, then of what is made of them
    for name, count in zip(columns.numbers, counts, strict=False):
        if summary.rows and not count:
            yield (
                f"column {name!r}: every value is missing; scores are as for the mean of training."
            )


def _unseen(encoder: Encoder, columns: Columns, summary: Summary) -> Iterator[str]:
    known = {category.name: category for category in encoder.categories}
    for name, counts in zip(columns.categories, summary.categories, strict=True):
        note = _about(known[name], counts)
        if note:
            yield f"column {name!r}: {note}"


def _about(category: Category, counts: dict[Value, int]) -> str:
    values, rows = list(counts), sum(counts.values())
    codes = dict(zip(values, category.codes(values), strict=True))
    new = [value for value in values if codes[value] == UNSEEN]
    unseen = sum(counts[value] for value in new)
    missing = sum(counts[value] for value in values if codes[value] == MISSING)
    if rows and missing == rows:
        return "every value is missing."
    if not new:
        return ""
    such = f"such as {shown(max(new, key=counts.__getitem__), 60)}"
    if unseen + missing == rows:
        return f"no value was seen in training ({len(new)} different, {such}): is it another code?"
    return (
        f"{unseen} of {rows} values ({len(new)} different, {such}) were not seen in training, or "
        "were rare there."
    )
