"""What one pass over a worker's rows tells of them, and how workers put it together."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from codauc.data.shards import scattered
from codauc.workers.agreement import gather_bytes
from codauc.workers.group import Group

Floats = NDArray[np.float64]
Value = str | float | None  # of a category or a target; None is a missing one


class Moments:
    """Count, mean and sum of squared deviations of columns, from one pass in any pieces.

    >>> moments = Moments(1)
    >>> moments.add(np.array([[1.0], [np.nan]])); moments.add(np.array([[3.0]]))
    >>> moments.count.tolist(), moments.mean.tolist(), moments.std().tolist()
    ([2.0], [2.0], [1.0])
    """

    def __init__(self, columns: int) -> None:
        self.count, self.mean, self.squares = (np.zeros(columns) for _ in range(3))

    def add(self, rows: Floats) -> None:
        """Take in rows [m, columns]; NaN is a missing value."""
        if not len(rows):
            return
        part = Moments(rows.shape[1])
        there = ~np.isnan(rows)
        part.count = there.sum(0).astype(np.float64)
        # Differences from a value of the column are exact where all are equal; a plain mean of
        # large equal values is off by its rounding, which would be all there is to standardise.
        first = np.nan_to_num(rows[there.argmax(0), np.arange(rows.shape[1])])
        apart = rows - first
        if not there.all():
            apart[~there] = 0.0
        shift = apart.sum(0) / np.maximum(part.count, 1)
        part.mean = first + shift
        apart -= shift
        if not there.all():
            apart[~there] = 0.0
        part.squares = np.einsum("ij,ij->j", apart, apart)
        self.merge(part)

    def merge(self, other: Moments) -> None:
        """Take in another's rows (Chan, Golub and LeVeque's update)."""
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        apart = other.mean - self.mean
        self.mean = self.mean + apart * share
        self.squares = self.squares + other.squares + apart**2 * self.count * share
        self.count = count

    def std(self) -> Floats:
        """Standard deviations; where all values are nearly equal one that makes them nearly 0."""
        std = np.sqrt(self.squares / np.maximum(self.count, 1))
        # beyond, what float64 keeps of a value says nothing of its deviation
        tiny = 1e-12 * np.abs(self.mean)
        return np.where((std <= tiny) | (std == 0), np.maximum(tiny, 1.0), std)


class Traits:
    """Of columns of numbers: the least and the largest, which hold 0 and 1 alone, and which hold
    whole numbers of which none comes twice.

    The last is decided by the values with the smallest hashes, so that it takes little memory and
    is the same however the rows are shared out.
    """

    _SMALLEST = 1024

    def __init__(self, columns: int) -> None:
        self.low, self.high = np.full(columns, np.inf), np.full(columns, -np.inf)
        self.flag = np.ones(columns, bool)
        self.hashes = {column: np.empty(0, np.uint64) for column in range(columns)}

    def add(self, rows: Floats) -> None:
        """Take in rows [m, columns]; NaN is a missing value."""
        if not len(rows):
            return
        self.low = np.fmin(self.low, np.fmin.reduce(rows))
        self.high = np.fmax(self.high, np.fmax.reduce(rows))
        open_ = np.flatnonzero(self.flag & (self.low >= 0) & (self.high <= 1))
        values = rows[:, open_]
        self.flag[:] = False
        self.flag[open_] = ((values == 0) | (values == 1) | np.isnan(values)).all(0)
        for column in list(self.hashes):
            self._add_hashes(column, rows[:, column])

    def _add_hashes(self, column: int, values: Floats) -> None:
        few = values[:64]
        if len(np.unique(few)) < len(few) or not (np.floor(values) == values).all():
            del self.hashes[column]
            return
        words = np.ascontiguousarray(values).view(np.uint64)
        self._keep(column, scattered(words, 17))

    def _keep(self, column: int, hashes: NDArray[np.uint64]) -> None:
        found = np.sort(np.concatenate([self.hashes[column], hashes]))[: self._SMALLEST]
        self.hashes[column] = found
        if (found[1:] == found[:-1]).any():
            del self.hashes[column]

    def merge(self, other: Traits) -> None:
        """Take in another's rows."""
        self.low, self.high = np.fmin(self.low, other.low), np.fmax(self.high, other.high)
        self.flag &= other.flag
        for column in list(self.hashes):
            if column in other.hashes:
                self._keep(column, other.hashes[column])
            else:
                del self.hashes[column]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        lists = {name: getattr(self, name).tolist() for name in ("low", "high", "flag")}
        return lists | {"hashes": [[c, h.tolist()] for c, h in self.hashes.items()]}

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> Traits:
        """What `plain` gave."""
        found = Traits(0)
        found.low, found.high = np.array(plain["low"]), np.array(plain["high"])
        found.flag = np.array(plain["flag"], bool)
        found.hashes = {c: np.array(h, np.uint64) for c, h in plain["hashes"]}
        return found


@dataclass
class Summary:
    """Of some rows: how many, the numbers' moments, and how often which text or label occurs.

    `full` are the categories with so many texts that they are not counted any more.
    """

    rows: int
    moments: Moments
    categories: list[dict[Value, int]] = field(default_factory=list)
    targets: dict[Value, int] = field(default_factory=dict)
    traits: Traits = field(default_factory=lambda: Traits(0))
    full: set[int] = field(default_factory=set)
    hidden: int = 0  # columns of which something is not told

    def merge(self, other: Summary) -> None:
        """Take in another worker's rows."""
        self.rows += other.rows
        self.moments.merge(other.moments)
        self.traits.merge(other.traits)
        self.full |= other.full
        self.hidden = max(self.hidden, other.hidden)
        pairs = zip(self.categories, other.categories, strict=True)
        for mine, theirs in [*pairs, (self.targets, other.targets)]:
            for value, count in theirs.items():
                mine[value] = mine.get(value, 0) + count

    def to_bytes(self) -> bytes:
        """As JSON, which keeps every number exactly."""
        moments = self.moments
        return json.dumps(
            {
                "rows": self.rows,
                "moments": [m.tolist() for m in (moments.count, moments.mean, moments.squares)],
                "categories": [list(counts.items()) for counts in self.categories],
                "targets": list(self.targets.items()),
                "traits": self.traits.plain(),
                "full": sorted(self.full),
                "hidden": self.hidden,
            }
        ).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Summary:
        """What `to_bytes` gave."""
        plain = json.loads(data)
        moments = Moments(0)
        moments.count, moments.mean, moments.squares = map(np.array, plain["moments"])
        categories = [dict(map(tuple, counts)) for counts in plain["categories"]]
        targets = dict(map(tuple, plain["targets"]))
        traits = Traits.from_plain(plain["traits"])
        counts = (plain["rows"], moments, categories, targets)
        return Summary(*counts, traits, set(plain["full"]), plain["hidden"])


def of_all(mine: Summary, group: Group) -> list[Summary]:
    """Every worker's summary, in the order of ranks."""
    texts = gather_bytes(group, mine.to_bytes(), "start", torch.device("cpu"))
    return [Summary.from_bytes(text) for text in texts]
