"""Which values of the target are positive."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from codauc.data.tables.encoder import Target
from codauc.data.tables.summary import Value

MANY = 1000  # values from which on a target is taken for a measurement


def resolve(path: str, name: str, counts: dict[Value, int], positive: Any) -> Target:
    """The target with its positive and negative values.

    0 and 1, -1 and 1, and true and false need no word; of other values the positive ones are named.
    """
    values = sorted(counts, key=lambda value: (isinstance(value, str), value))
    if len(values) < 2:
        raise ValueError(
            f"{path}, column {name!r}: got the value {_shown(counts)} alone, expected two classes; "
            "AUC needs both positives and negatives."
        )
    chosen = _named(path, name, values, positive) if positive is not None else _known(values)
    if chosen is None:
        raise ValueError(
            f"{path}, column {name!r}: got {len(values)} values, {_shown(counts)}, expected 0 and "
            f"1, or to be told which are positive: say positive={_example(counts)!r}."
        )
    negative = tuple(value for value in values if value not in chosen)
    if not negative:
        raise ValueError(
            f"positive={positive!r} names every value of {name!r} in {path}: expected some to be "
            "negative; AUC needs both."
        )
    return Target(name, tuple(value for value in values if value in chosen), negative)


def labels_of(path: str, target: Target, values: list[Value]) -> list[bool]:
    """Which of the values are positive, by what training knew."""
    for value in values:
        two = len(target.positive) == len(target.negative) == 1
        if two and value not in (*target.positive, *target.negative):
            raise ValueError(
                f"{path}, column {target.name!r}: got the value {value!r}, expected "
                f"{target.positive[0]!r} or {target.negative[0]!r} as in training."
            )
    return [value in target.positive for value in values]


def _known(values: list[Value]) -> set[Value] | None:
    if values in ([0, 1], [-1, 1]):
        return {1.0}
    if sorted(str(value).lower() for value in values) == ["false", "true"]:
        return {value for value in values if str(value).lower() == "true"}
    return None


def _named(path: str, name: str, values: list[Value], positive: Any) -> set[Value]:
    listed = isinstance(positive, Collection) and not isinstance(positive, str)
    wanted = list(positive) if listed else [positive]
    if not wanted:
        raise ValueError(f"positive={positive!r}: expected at least one value of {name!r}.")
    known = {_plain(value): value for value in values}
    for value in wanted:
        if _plain(value) not in known:
            raise ValueError(
                f"positive={value!r} is no value of {name!r} in {path}, which has "
                f"{', '.join(map(repr, values[:10]))}; name one of these."
            )
    return {known[_plain(value)] for value in wanted}


def _plain(value: Any) -> Value:
    """Numbers are equal however they are written; so are true and 1."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def _shown(counts: dict[Value, int]) -> str:
    often = sorted(counts.items(), key=lambda item: -item[1])
    texts = [f"{_tidy(value)!r} ({count} times)" for value, count in often[:5]]
    return ", ".join(texts) + (", ..." if len(often) > 5 else "")


def _example(counts: dict[Value, int]) -> Any:
    return _tidy(min(counts.items(), key=lambda item: item[1])[0])


def _tidy(value: Value) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
