"""From a table's columns to a network's inputs, the same in training and ever after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from codauc.data.tables.summary import Summary, Value

UNSEEN, MISSING, FIRST = 0, 1, 2  # codes of a category's values


@dataclass(frozen=True)
class Columns:
    """What the columns of a source are for; `numeric` are categories that are numbers there."""

    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    target: str | None
    dropped: tuple[str, ...] = ()
    numeric: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Number:
    """A column of numbers: standardised, missing values filled by the mean, and if `flagged` told
    apart by a column of zeros and ones.
    """

    name: str
    mean: float
    std: float
    flagged: bool


@dataclass(frozen=True)
class Category:
    """A column of texts: the codes 2, 3, ... of its values, 1 for a missing, 0 for any other.

    With `numeric` they are numbers, taken for texts.
    """

    name: str
    values: tuple[str, ...]
    numeric: bool = False

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
    positive: tuple[Value, ...]
    negative: tuple[Value, ...]


@dataclass(frozen=True)
class Encoder:
    """How rows of a table become inputs; made from the whole training set, saved with the model.

    Inputs are one float32 row a sample: the numbers as (x - mean)/std, one flag for each number
    that was ever missing in training, and a code for each category, in this order. An array of
    images [N, channels, H, W] has one number a channel and keeps its `shape`.
    """

    numbers: tuple[Number, ...]
    categories: tuple[Category, ...]
    target: Target
    dropped: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()

    @property
    def flagged(self) -> list[int]:
        """Which of the numbers have a flag."""
        return [i for i, number in enumerate(self.numbers) if number.flagged]

    @property
    def inputs(self) -> int:
        """How many columns the inputs have."""
        return len(self.numbers) + len(self.flagged) + len(self.categories)

    @property
    def names(self) -> list[str]:
        """The names of the inputs' columns."""
        flags = [f"{self.numbers[i].name} is missing" for i in self.flagged]
        return [*(n.name for n in self.numbers), *flags, *(c.name for c in self.categories)]

    def network(self) -> dict[str, Any]:
        """The arguments of a `TabularNet` that fits: `TabularNet(**encoder.network())`."""
        sizes = [category.size for category in self.categories]
        return {"numbers": len(self.numbers) + len(self.flagged), "categories": sizes}

    def to_dict(self) -> dict[str, Any]:
        """As plain lists, texts and numbers, for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(plain: dict[str, Any]) -> Encoder:
        """What `to_dict` gave, also after a way through JSON."""
        try:
            numbers = tuple(Number(**number) for number in plain["numbers"])
            categories = tuple(
                Category(c["name"], tuple(c["values"]), c["numeric"]) for c in plain["categories"]
            )
            target = plain["target"]
            return Encoder(
                numbers,
                categories,
                Target(target["name"], tuple(target["positive"]), tuple(target["negative"])),
                tuple(plain["dropped"]),
                tuple(plain["shape"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"an encoder without {error}: expected what Encoder.to_dict() gave; it is of "
                "another version, or was changed."
            ) from error


def fit(
    columns: Columns, target: Target, summary: Summary, *, rare: int, shape: Sequence[int] = ()
) -> Encoder:
    """The encoder of a training set, from the summary of all its rows.

    Values that occur less than `rare` times count as unseen, so that the network learns what to
    make of those it has never met.
    """
    moments, std = summary.moments, summary.moments.std()
    numbers = tuple(
        Number(name, float(moments.mean[i]), float(std[i]), bool(moments.count[i] < summary.rows))
        for i, name in enumerate(columns.numbers)
    )
    categories = tuple(
        Category(name, _frequent(counts, rare), name in columns.numeric)
        for name, counts in zip(columns.categories, summary.categories, strict=True)
    )
    return Encoder(numbers, categories, target, columns.dropped, tuple(shape))


def _frequent(counts: dict[Value, int], rare: int) -> tuple[str, ...]:
    texts = (str(value) for value, n in counts.items() if value is not None and n >= rare)
    return tuple(sorted(texts))
