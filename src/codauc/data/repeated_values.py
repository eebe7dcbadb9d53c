"""Whether rows that belong together are on both sides of a split, as far as values tell.

Of the first rows of a file a worker keeps one number per row, of all its inputs, and one per value
of the columns that may be ids: texts and whole numbers. That is at most 32 MB. A column is
reported if values of it are in training and in the held-out rows, and the label of a held-out row
follows from the training rows with the same value. That alone is also true of a good input such as
the age; but the age of 41 and of 43 tell of 42, and neighbours of an id tell nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Marks = NDArray[np.uint64]
Labels = NDArray[np.bool_]

_ROWS = 200_000  # of the file, that are examined
_VALUES = 4_000_000  # that are kept of all columns together
_FIRST = 1000  # rows that decide whether a column holds whole numbers
_DIFFERENT = 20  # values that an id has at least
_REPEATED = 1.5  # rows per value that an id has at least
_SHARED_IDS, _SHARED_ROWS = 0.5, 0.1  # of the held-out rows whose value, or copy, is in training
_TELLS, _MORE_THAN_NEIGHBOURS = 0.8, 0.1  # AUCs
_DEVIATIONS = 4.0  # of the AUC of chance


class Examined(NamedTuple):
    """What is kept of a part's first rows: their labels, marks, and values of columns by name."""

    labels: Labels
    marks: Marks
    numbers: Mapping[str, NDArray[np.float64]]
    texts: Mapping[str, Marks]


class Examiner:
    """Takes in rows of one part; those beyond the first of the file are left out.

    `numbers` and `texts` are names of columns, of which `no_ids` are not examined.
    """

    def __init__(
        self, numbers: Sequence[str], texts: Sequence[str] = (), no_ids: Collection[str] = ()
    ) -> None:
        self.no_ids = no_ids
        self.limit = max(_FIRST, min(_ROWS, _VALUES // (len(numbers) + len(texts) + 1)))
        self._number_names, self._text_names = list(numbers), list(texts)
        self._whole: list[int] | None = None  # the columns of whole numbers
        self._marks: list[Marks] = []
        self._numbers: list[list[Any]] = []
        self._texts: list[list[Marks]] = [[] for _ in texts]

    def wanted(self, rows: NDArray[np.int64]) -> int:
        """How many of the next rows of these numbers, in the file's order, are examined."""
        return int(np.searchsorted(rows, self.limit))

    def add(self, marks: Marks, numbers: NDArray[np.float64], texts: Sequence[Marks]) -> None:
        """Take in examined rows."""
        if not len(marks):
            return
        if self._whole is None:
            whole = _whole_numbers(numbers[:_FIRST])
            self._whole = [place for place in whole if self._number_names[place] not in self.no_ids]
            self._numbers = [[] for _ in self._whole]
        self._marks.append(marks.copy())
        for kept, column in zip(self._numbers, self._whole, strict=True):
            kept.append(numbers[:, column].copy())
        for kept, values in zip(self._texts, texts, strict=True):
            kept.append(values)

    def examined(self, labels: Labels) -> Examined:
        """What was kept; `labels` are those of all rows of the part."""
        marks = np.concatenate(self._marks) if self._marks else np.empty(0, np.uint64)
        places = self._whole or []
        numbers = {
            self._number_names[place]: np.concatenate(kept)
            for place, kept in zip(places, self._numbers, strict=True)
        }
        texts = dict(zip(self._text_names, map(np.concatenate, self._texts), strict=True))
        return Examined(labels[: len(marks)], marks, numbers, texts if len(marks) else {})


def _whole_numbers(values: NDArray[np.float64]) -> list[int]:
    """The columns that hold whole numbers, of which some are there."""
    missing = np.isnan(values)
    whole = (missing | (np.floor(values) == values)).all(0) & ~missing.all(0)
    return [int(column) for column in np.flatnonzero(whole)]


def split_hints(train: Examined, other: Examined, title: str) -> Iterator[str]:
    """What is doubtful of a split whose held-out part `title` is `other`."""
    labels = np.concatenate([train.labels, other.labels])
    places = len(train.labels)
    kinds: list[Mapping[str, NDArray[Any]]] = [train.numbers, train.texts]
    there: list[Mapping[str, NDArray[Any]]] = [other.numbers, other.texts]
    ids: list[tuple[_Repeats, str]] = []
    for own, new, ordered in zip(kinds, there, (True, False), strict=True):
        for name in [name for name in own if name in new]:
            values = np.concatenate([own[name], new[name]])
            found = _repeats(values, labels, places, ordered=ordered, least=_SHARED_IDS)
            ids += [] if found is None else [(found, name)]
    if ids:  # one alone: of a patient, the age and the town repeat too
        yield _of_column(
            *max(ids, key=lambda each: (round(each[0].auc, 2), each[0].different)), title
        )
    marks = np.concatenate([train.marks, other.marks])
    copies = _repeats(marks, labels, places, ordered=False, least=_SHARED_ROWS)
    if copies is not None:
        yield _of_copies(copies, title)


class _Repeats(NamedTuple):
    different: int
    shared: float
    auc: float


def _repeats(
    values: NDArray[Any], labels: Labels, places: int, *, ordered: bool, least: float
) -> _Repeats | None:
    """How values of held-out rows, from `places` on, tell their labels; None if not as ids do."""
    there = ~np.isnan(values) if ordered else np.ones(len(values), bool)
    places, values, labels = int(there[:places].sum()), values[there], labels[there]
    different, which = np.unique(values, return_inverse=True)
    count = len(different)
    if count < _DIFFERENT or count * count < len(values) or len(values) < _REPEATED * count:
        return None
    mine, theirs = which[:places], which[places:]
    rows = np.bincount(mine, minlength=count).astype(np.float64)
    ups = np.bincount(mine, labels[:places], minlength=count).astype(np.float64)
    seen = rows[theirs] > 0
    shared = float(seen.mean()) if len(seen) else 0.0
    if shared < least:
        return None
    truth, ratio = labels[places:][seen], labels[:places].mean()
    found = _auc(((ups + ratio) / (rows + 1))[theirs[seen]], truth)
    if found is None or found < _TELLS:
        return None
    if ordered:
        near, all_near = _neighbours(ups), _neighbours(rows)
        other = _auc(((near + ratio) / (all_near + 1))[theirs[seen]], truth, certain=False)
        if other is None or found - other < _MORE_THAN_NEIGHBOURS:
            return None
    return _Repeats(count, shared, found)


def _neighbours(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum over the two values before and the two after each."""
    padded = np.pad(values, 2)
    result: NDArray[np.float64] = padded[:-4] + padded[1:-3] + padded[3:-1] + padded[4:]
    return result


def _auc(scores: NDArray[np.float64], labels: Labels, *, certain: bool = True) -> float | None:
    """The AUC; None without both classes, or, if it must be `certain`, if it may be chance."""
    ups, downs = np.sort(scores[labels]), np.sort(scores[~labels])
    if not len(ups) or not len(downs):
        return None
    below = np.searchsorted(downs, ups, "left") + np.searchsorted(downs, ups, "right")
    auc = float(below.sum() / (2 * len(ups) * len(downs)))
    chance = np.sqrt((len(ups) + len(downs) + 1) / (12 * len(ups) * len(downs)))
    return None if certain and auc - 0.5 < _DEVIATIONS * chance else auc


def _of_column(found: _Repeats, name: str, title: str) -> str:
    return (
        f"Column {name!r} has {found.different} values that repeat, also across the split: "
        f"{found.shared:.0%} of the {title} rows share one with training rows, whose labels alone "
        f"predict theirs with an AUC of {found.auc:.2f}. If it names what rows belong to, such as "
        f"a patient or a customer, the AUC is too high: keep its rows together with group={name!r}."
    )


def _of_copies(found: _Repeats, title: str) -> str:
    return (
        f"{found.shared:.0%} of the {title} rows are copies of training rows in every column, "
        f"whose labels predict theirs with an AUC of {found.auc:.2f}: the AUC is too high for new "
        "data. Remove the copies, or keep rows that belong together in one part with group=COLUMN."
    )
