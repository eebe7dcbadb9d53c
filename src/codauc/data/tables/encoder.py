"""From a table's columns to a network's inputs, the same in training and ever after."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from codauc._internal.checks import choice, real, shown
from codauc.data.tables.column_statistics import Floats, Moments, Summary, Value
from codauc.data.tables.date_parts import PARTS, WAVES
from codauc.data.tables.locale import PLAIN, Locale

UNSEEN, MISSING, FIRST = 0, 1, 2  # codes of a category's values


@dataclass(frozen=True)
class DatePart:
    """A cycle of a date: one of `date_parts.PARTS` of the column `name`, as sine and cosine."""

    name: str
    part: str

    def __post_init__(self) -> None:
        choice("part", self.part, PARTS)


@dataclass(frozen=True)
class Columns:
    """What the columns of a source are for.

    `numeric` are categories that are numbers, `times` numbers that are dates, `open` columns of
    which nothing is known, since all values are missing, `parts` the cycles of dates, and
    `extra` columns that the training data did not have, which are not read.
    """

    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    target: str | None
    dropped: tuple[str, ...] = ()
    numeric: frozenset[str] = frozenset()
    times: frozenset[str] = frozenset()
    open: frozenset[str] = frozenset()
    extra: tuple[str, ...] = ()
    parts: tuple[DatePart, ...] = ()

    @property
    def inputs_and_target(self) -> list[str]:
        """The columns to be read."""
        return [*self.numbers, *self.categories, *([] if self.target is None else [self.target])]


@dataclass(frozen=True)
class Number:
    """A column of numbers: standardised, missing values filled by the mean, and if `flagged`
    marked by a column of zeros and ones.
    """

    name: str
    mean: float
    std: float
    flagged: bool
    time: bool = False  # in microseconds

    def __post_init__(self) -> None:
        real("mean", self.mean, remedy="it comes from the training set")
        real("std", self.std, above=0, remedy="it comes from the training set")


@dataclass(frozen=True)
class Category:
    """A column of texts: the codes 2, 3, ... of its values, 1 for a missing, 0 for any other.

    With `numeric` they are numbers, taken for texts.
    """

    name: str
    values: tuple[str, ...]
    numeric: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _texts("values", self.values))

    @property
    def size(self) -> int:
        """How many codes there are."""
        return len(self.values) + FIRST

    def codes(self, values: Sequence[Value]) -> list[int]:
        """The codes of values."""
        known = {value: code for code, value in enumerate(self.values, FIRST)}
        return [MISSING if v is None else known.get(str(v), UNSEEN) for v in values]


@dataclass(frozen=True)
class Target:
    """The column of labels, the values that are positive, and the others met in training."""

    name: str
    positive: tuple[str, ...]
    negative: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in ("positive", "negative"):
            object.__setattr__(self, name, _texts(name, getattr(self, name)))


@dataclass(frozen=True)
class Encoder:
    """How rows of a table become inputs; made from the whole training set, saved with the model.

    Inputs are one float32 row per sample: the numbers as (x - mean)/std, one flag for each number
    that was ever missing in training, sine and cosine of each of the dates' `parts`, and a code for
    each category, in this order. An array of images [N, channels, H, W] has one number per channel
    and keeps its `shape`. `dropped` are columns that are no inputs, and `locale` is how values were
    written, for what another file does not show.
    """

    numbers: tuple[Number, ...]
    categories: tuple[Category, ...]
    target: Target
    dropped: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    parts: tuple[DatePart, ...] = ()
    locale: Locale = PLAIN

    def kinds(self) -> dict[str, str]:
        """What each column is: "number", "time" or "category"."""
        numbers = {number.name: "time" if number.time else "number" for number in self.numbers}
        return numbers | dict.fromkeys((c.name for c in self.categories), "category")

    def chosen(self, columns: Columns) -> Columns:
        """The columns without those that were left out, in the order of training."""
        numbers = tuple(number.name for number in self.numbers)
        categories = tuple(category.name for category in self.categories)
        return replace(columns, numbers=numbers, categories=categories, parts=self.parts)

    def scaled_by(self, moments: Moments, columns: Columns) -> Encoder:
        """The same with the means and deviations of some rows, where they have such.

        A column without a value there keeps those it has, one of equal values its deviation.
        """
        own, std = {name: i for i, name in enumerate(columns.numbers)}, moments.std()
        numbers = []
        for number in self.numbers:
            i = own[number.name]
            known, varies = moments.count[i] > 0, moments.squares[i] > 0
            mean = float(moments.mean[i]) if known else number.mean
            numbers.append(replace(number, mean=mean, std=float(std[i]) if varies else number.std))
        return replace(self, numbers=tuple(numbers))

    def means(self) -> Floats:
        """The numbers' means."""
        return np.array([number.mean for number in self.numbers])

    def stds(self) -> Floats:
        """The numbers' standard deviations."""
        return np.array([number.std for number in self.numbers])

    @property
    def flagged(self) -> list[int]:
        """Which of the numbers have a flag."""
        return [i for i, number in enumerate(self.numbers) if number.flagged]

    @property
    def inputs(self) -> int:
        """How many columns the inputs have."""
        return self.reals + len(self.flagged) + len(self.categories)

    @property
    def reals(self) -> int:
        """How many of them are numbers, or sine or cosine of a date's part."""
        return len(self.numbers) + len(WAVES) * len(self.parts)

    @property
    def names(self) -> list[str]:
        """The names of the inputs' columns."""
        parts = [f"{part.name}, {part.part} ({wave})" for part in self.parts for wave in WAVES]
        flags = [f"{self.numbers[i].name} is missing" for i in self.flagged]
        numbers = [number.name for number in self.numbers]
        return [*numbers, *flags, *parts, *(c.name for c in self.categories)]

    @property
    def sources(self) -> list[str]:
        """The table's column that each of the inputs' columns was made from."""
        parts = [part.name for part in self.parts for _ in WAVES]
        flags = [self.numbers[i].name for i in self.flagged]
        numbers = [number.name for number in self.numbers]
        return [*numbers, *flags, *parts, *(c.name for c in self.categories)]

    def inputs_of_columns(self) -> dict[str, list[int]]:
        """The places of the inputs' columns that come from each column of the table."""
        found: dict[str, list[int]] = {}
        for place, name in enumerate(self.sources):
            found.setdefault(name, []).append(place)
        return found

    def network(self) -> dict[str, Any]:
        """The arguments of a `TabularNet` that fits: `TabularNet(**encoder.network())`."""
        sizes = [category.size for category in self.categories]
        return {"numbers": self.reals + len(self.flagged), "categories": sizes}

    def to_dict(self) -> dict[str, Any]:
        """As plain lists, texts and numbers, for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(plain: Any) -> Encoder:
        """What `to_dict` gave, also after a way through JSON."""
        try:
            numbers = tuple(Number(**number) for number in plain["numbers"])
            categories = tuple(Category(**category) for category in plain["categories"])
            target = Target(**plain["target"])
            dropped, shape = _texts("dropped", plain["dropped"]), tuple(plain["shape"])
            # which files of earlier versions do not have
            parts = tuple(DatePart(**part) for part in plain.get("parts", ()))
            locale = Locale(**plain.get("locale", {"decimal": "."}))
            if not all(type(side) is int and side > 0 for side in shape):
                raise TypeError(f"shape {shown(shape)}")
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"an encoder that cannot be read ({error}): expected what Encoder.to_dict() gave; "
                "it is of another version, or was changed."
            ) from error
        return Encoder(numbers, categories, target, dropped, shape, parts, locale)


def _texts(name: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values, list | tuple) or not all(isinstance(v, str) for v in values):
        raise ValueError(f"{name}={values!r}: expected a list of texts; it was changed.")
    return tuple(values)


def fit(
    columns: Columns,
    target: Target,
    summary: Summary,
    *,
    rare: int,
    left_out: Collection[str] = (),
    shape: Sequence[int] = (),
) -> Encoder:
    """The encoder of a training set, from the summary of all its rows, without those `left_out`.

    Values that occur less than `rare` times count as unseen, so that the network learns what to
    make of those it has never met; in a table of under 400 rows less often is enough.
    """
    moments, std = summary.moments, summary.moments.std()
    numbers = tuple(
        Number(
            name,
            float(moments.mean[i]),
            float(std[i]),
            bool(moments.count[i] < summary.rows),
            name in columns.times,
        )
        for i, name in enumerate(columns.numbers)
        if name not in left_out
    )
    least = least_count(summary.rows, rare)
    categories = tuple(
        Category(name, frequent(counts, least), name in columns.numeric)
        for name, counts in zip(columns.categories, summary.categories, strict=True)
        if name not in left_out
    )
    dropped = tuple(dict.fromkeys((*columns.dropped, *left_out)))
    parts = _varying(columns, summary)
    return Encoder(numbers, categories, target, dropped, tuple(shape), parts)


def _varying(columns: Columns, summary: Summary) -> tuple[DatePart, ...]:
    """The cycles of which some rows have another place than others."""
    first, squares = len(columns.numbers), summary.moments.squares
    apart = squares > 1e-12 * np.maximum(summary.moments.count, 1)
    waves = len(WAVES)
    places = [slice(first + waves * i, first + waves * (i + 1)) for i in range(len(columns.parts))]
    pairs = zip(columns.parts, places, strict=True)
    return tuple(part for part, place in pairs if apart[place].any())


def least_count(rows: int, rare: int) -> int:
    """How often a text must come to be a value of a category."""
    return min(rare, 1 + rows // 100)


def frequent(counts: Mapping[Value, int], least: int) -> tuple[str, ...]:
    """The texts that come at least so often, in order."""
    there = {str(value): count for value, count in counts.items() if value is not None}
    return tuple(sorted(value for value, count in there.items() if count >= least))
