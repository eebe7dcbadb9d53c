"""Labels as values of a column, and which of them are positive."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codauc._internal.checks import listed, warn
from codauc._internal.formats import share
from codauc.data.tables.encoder import Target
from codauc.data.tables.packed_rows import Vocabulary

BETWEEN = "|"  # between several labels of one row
MANY = 1000  # values from which on a target is taken for a measurement

Integers = NDArray[np.int64]


def label(value: Any) -> str:
    """A label as a text that is the same in every kind of file.

    >>> [label(value) for value in (1, 1.0, "1.0", "01", 2.5, True, "TRUE", b"yes")]
    ['1', '1', '1', '01', '2.5', 'true', 'true', 'yes']
    """
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return str(tidy(value))
    if isinstance(value, int | float):
        return str(int(value)) if float(value).is_integer() else repr(float(value))
    raise ValueError(
        f"a label of type {type(value).__name__}: expected a number, a text or true/false."
    )


def tidy(text: str | None) -> str | None:
    """A number's text as whole numbers have it.

    >>> tidy("1067.0"), tidy("True"), tidy("007")
    ('1067', 'true', '007')
    """
    if text is None or text.lower() in ("true", "false"):
        return None if text is None else text.lower()
    return re.sub(r"^([-+]?\d+)\.0+$", r"\1", text)


class Labels:
    """The labels of some rows: which there are, and how often each comes."""

    def __init__(self, path: str, name: str) -> None:
        self.path, self.name, self.values = path, name, Vocabulary()

    def add(self, values: Collection[Any], which: Integers) -> Integers:
        """Take in the labels `values[which]`; returns their codes."""
        codes = self.values.encode([label(value) for value in values], which)
        if len(self.values.codes) > MANY:
            raise ValueError(
                f"{self.path}, column {self.name!r} has more than {MANY:,} different values: "
                "expected a few classes; is it the target?"
            )
        return codes

    def add_array(self, array: NDArray[Any], rows: Integers) -> Integers:
        """Take in an array of labels; `rows` are for errors."""
        if array.dtype.kind not in "biufSUO":
            raise ValueError(
                f"{self.path}: labels of {array.dtype}, expected numbers, texts or true/false."
            )
        missing = _missing(array)
        if missing.any():
            raise ValueError(
                f"{self.path}, row {int(rows[missing.argmax()])}: the label is missing; expected "
                "one in every row."
            )
        if array.dtype.kind == "O":  # texts and numbers in one array have no order
            array = np.array([label(value) for value in array.tolist()])
        values, which = np.unique(array, return_inverse=True)
        return self.add(values.tolist(), which)

    def texts(self) -> list[str]:
        """The labels that occur, by their codes."""
        return [str(value) for value in self.values.codes]


def resolve(where: str, name: str, counts: Mapping[Any, int], positive: Any) -> Target:
    """The target with its positive and negative values; `where` it is, for messages.

    0 and 1, -1 and 1, true and false, yes and no need no word. Of two other values the rarer is
    positive; of more the positive ones are named.
    """
    values = sorted(counts)
    if len(values) < 2:
        raise ValueError(
            f"{where}: got the value {_shown(counts)} alone, expected two classes; AUC needs both "
            "positives and negatives."
        )
    if positive is not None:
        chosen: set[str] | None = _named(where, values, positive)
    else:
        chosen = _known(values) or _rarer(counts)
    if chosen is None:
        rarest = str(min(counts.items(), key=lambda item: item[1])[0])
        alike = [value for value in values if _spelling(value) == _spelling(rarest)]
        raise ValueError(
            f"{where}: got {len(values)} values, {_shown(counts)}, expected 0 and 1, or the "
            f"positive ones by name: say for example positive={alike if alike[1:] else rarest!r}."
        )
    negative = tuple(value for value in values if value not in chosen)
    spellings = {_spelling(value) for value in chosen}
    alike = [value for value in negative if _spelling(value) in spellings]
    if alike and len(values) > 2:
        warn(
            f"{where}: {listed(alike, most=5)} counts as negative, though a positive value differs "
            "only in upper and lower case or spaces; name it too if it is positive."
        )
    if not negative:
        raise ValueError(
            f"positive={positive!r} names every value of {where}: expected some to be negative; "
            "AUC needs both."
        )
    return Target(name, tuple(sorted(chosen)), negative)


def positives_of(where: str, target: Target, values: Collection[str], positive: Any) -> list[bool]:
    """Which labels are positive: by `positive` if it is said, else by what training knew."""
    known = (*target.positive, *target.negative)
    if positive is not None:
        wanted = _wanted(positive)
        for value in sorted(wanted.difference(values, known)):
            raise ValueError(
                f"positive={value!r} is no value of {where}, nor was it in training; there are "
                f"{listed(values)}."
            )
        return [_names(value, wanted) for value in values]
    labels = {part for value in known for part in value.split(BETWEEN)}
    for value in values:
        if value not in known and (BETWEEN not in value or not labels >= {*value.split(BETWEEN)}):
            raise ValueError(
                f"{where}: got the value {value!r}, expected one of those in training, "
                f"{listed(known)}; say positive={list(target.positive)!r} to take all others for "
                "negative."
            )
    single = {value for value in target.positive if BETWEEN not in value}
    return [
        value in target.positive or (value not in known and _names(value, single))
        for value in values
    ]


def _names(value: str, wanted: set[str]) -> bool:
    """Whether a value is one of those wanted, or one of its labels with | between is."""
    return value in wanted or (BETWEEN in value and not wanted.isdisjoint(value.split(BETWEEN)))


# Which of two values says yes, whatever its share; upper and lower case are the same.
_YES = {
    *(("0", "1"), ("-1", "1"), ("false", "true"), ("f", "t"), ("no", "yes"), ("n", "y")),
    *(("negative", "positive"), ("neg", "pos"), ("absent", "present"), ("-", "+")),
}


def _known(values: list[str]) -> set[str] | None:
    """The positive one of two values whose meaning is plain."""
    by_meaning = {value.casefold().strip(): value for value in values}
    if len(values) != 2 or len(by_meaning) != 2:
        return None
    yes = next((pair[1] for pair in _YES if set(pair) == set(by_meaning)), None)
    return None if yes is None else {by_meaning[yes]}


def _rarer(counts: Mapping[Any, int]) -> set[str] | None:
    """The rarer of two values."""
    if len(counts) != 2:
        return None
    (few, least), (_, most) = sorted(counts.items(), key=lambda item: item[1])
    return {str(few)} if least < most else None


def choice_note(target: Target, counts: Mapping[Any, int], positive: Any) -> str:
    """What a person should know of how the positive values were chosen; "" where that is plain."""
    several = [value for value in target.positive if BETWEEN in value]
    if positive is not None and several:
        return (
            f"{len(several)} values such as {several[0]!r} are positive too, as they name one of "
            f"several labels with {BETWEEN} between"
        )
    if positive is not None or _known(sorted(map(str, counts))) is not None:
        return ""
    value, other = target.positive[0], target.negative[0]
    part = share(counts.get(value, 0) / max(sum(counts.values()), 1))
    return (
        f"POSITIVE is {value!r}, the rarer of two values ({part}); if it is the other, say "
        f"positive={other!r}"
    )


def _wanted(positive: Any) -> set[str]:
    if hasattr(positive, "tolist"):  # an array or a tensor, perhaps of one number
        positive = positive.tolist()
    listed = isinstance(positive, Collection) and not isinstance(positive, str | bytes)
    wanted = {label(value) for value in (positive if listed else [positive])}
    if not wanted:
        raise ValueError("positive=[]: expected at least one value of the target.")
    return wanted


def _named(where: str, values: list[str], positive: Any) -> set[str]:
    wanted = _wanted(positive)
    labels = {part for value in values for part in value.split(BETWEEN)}
    for value in sorted(wanted - set(values) - labels):
        near = difflib.get_close_matches(value, values, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "name one of these."
        raise ValueError(
            f"positive={value!r} is no value of {where}, which has {listed(values)}; {hint}"
        )
    return wanted | {value for value in values if _names(value, wanted)}


def _missing(array: NDArray[Any]) -> NDArray[np.bool_]:
    if array.dtype.kind == "f":
        missing: NDArray[np.bool_] = np.isnan(array)
        return missing
    if array.dtype.kind == "O":
        return np.array([value is None or value != value for value in array.tolist()], bool)
    return np.zeros(len(array), bool)


def _shown(counts: Mapping[Any, int]) -> str:
    often = sorted(counts.items(), key=lambda item: -item[1])
    texts = [f"{value!r} ({count} times)" for value, count in often[:5]]
    return ", ".join(texts) + (", ..." if len(often) > 5 else "")


def _spelling(value: Any) -> str:
    return str(value).strip().casefold()
