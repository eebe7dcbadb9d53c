"""What one pass over a worker's rows tells of them, and how workers put it together."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

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


@dataclass
class Summary:
    """Of some rows: how many, the numbers' moments, and how often which text or label occurs."""

    rows: int
    moments: Moments
    categories: list[dict[Value, int]] = field(default_factory=list)
    targets: dict[Value, int] = field(default_factory=dict)

    def merge(self, other: Summary) -> None:
        """Take in another worker's rows."""
        self.rows += other.rows
        self.moments.merge(other.moments)
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
            }
        ).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Summary:
        """What `to_bytes` gave."""
        plain = json.loads(data)
        moments = Moments(0)
        moments.count, moments.mean, moments.squares = map(np.array, plain["moments"])
        categories = [dict(map(tuple, counts)) for counts in plain["categories"]]
        return Summary(plain["rows"], moments, categories, dict(map(tuple, plain["targets"])))


def of_all(mine: Summary, group: Group) -> list[Summary]:
    """Every worker's summary, in the order of ranks."""
    texts = gather_bytes(group, mine.to_bytes(), "start", torch.device("cpu"))
    return [Summary.from_bytes(text) for text in texts]
