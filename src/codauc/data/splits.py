"""Which samples are for training, for validation and for testing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codauc._internal.checks import choice, real, whole
from codauc._internal.random_streams import generator
from codauc.data.group_splits import group_parts, time_parts
from codauc.data.row_sites import site_parts

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """Each class is shuffled by `seed` and cut: a part `test`, then a part `validation`.

    Both are shares of all samples of the class, rounded. A part that is asked for has at least one
    sample of each class. What is where depends on the labels and the seed alone, never on the
    number of workers.

    `group` is the name of a column, such as the patient, or one value per sample: all samples of a
    group are in one part, and parts are as near to their shares, of positives and of negatives, as
    groups allow. `time` is likewise a column of dates or numbers, or one value per sample: the
    oldest samples are for training, the newest for testing, and samples of one time stay together.

    >>> labels = torch.arange(100) % 10 == 0
    >>> split = Split(test=0.2, validation=0.1)
    >>> found = [split.rows(labels, part) for part in PARTS]
    >>> [(len(rows), int(labels[rows].sum())) for rows in found]
    [(70, 7), (10, 1), (20, 2)]
    """

    test: float = 0.0
    validation: float = 0.0
    seed: int = 0
    group: Any = None
    time: Any = None

    def __post_init__(self) -> None:
        for name in ("test", "validation"):
            remedy = "it is the share of samples, such as 0.2"
            value = real(f"{name} share", getattr(self, name), least=0, below=1, remedy=remedy)
            object.__setattr__(self, name, value)
        if self.test + self.validation >= 1:
            raise ValueError(
                f"{self.test:g} for testing and {self.validation:g} for validation: expected some "
                "left for training; use less than 1 together."
            )
        whole("seed", self.seed, least=0, remedy="use 0 if any seed will do")
        if self.group is not None and self.time is not None:
            raise ValueError("group and time: expected at most one way to split; leave one out.")
        for name in ("group", "time"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                object.__setattr__(self, name, _per_sample(name, value))

    @property
    def by(self) -> Any:
        """What decides beside the labels: the name of a column, one value per sample, or None."""
        return self.group if self.time is None else self.time

    def parts(
        self,
        labels: Tensor,
        by: NDArray[Any] | None = None,
        sites: NDArray[Any] | None = None,
        least: int = 0,
    ) -> dict[str, Tensor]:
        """The numbers of each part's samples, in ascending order.

        `by` are the values of the column that `group` or `time` names. With `sites`, a number for
        each sample, every site gives its share of each part, where neither is named; of a class
        `least` samples to what is held out, or none.
        """
        by = self.by if by is None and not isinstance(self.by, str) else by
        shares, flags = self._shares(), labels.numpy().astype(np.bool_)
        if by is None and sites is not None:
            return _by_part(site_parts(flags, sites, shares, self.seed, least))
        if by is None:
            return {part: self._of_classes(labels, place) for place, part in enumerate(PARTS)}
        if len(by) != len(flags):
            raise ValueError(
                f"{len(by)} values to split by for {len(flags)} samples: expected one per sample."
            )
        name = self.by if isinstance(self.by, str) else "..."
        if self.time is None:
            home = group_parts(flags, by, shares, self.seed, name)
        else:
            home = time_parts(flags, np.asarray(by, np.float64), shares, name)
        return _by_part(home)

    def _shares(self) -> tuple[float, float, float]:
        return 1 - self.test - self.validation, self.validation, self.test

    def rows(self, labels: Tensor, part: str, by: NDArray[Any] | None = None) -> Tensor:
        """The numbers of one part's samples, in ascending order; see `parts`."""
        place = PARTS.index(choice("part", part, PARTS))
        if self.by is not None:
            return self.parts(labels, by)[part]
        return self._of_classes(labels, place)

    def _of_classes(self, labels: Tensor, place: int) -> Tensor:
        """The samples of one part, each class by itself."""
        found = []
        for positive in (False, True):
            members = (labels == positive).nonzero().flatten()
            test, validation = (
                max(1, round(share * len(members))) if share else 0
                for share in (self.test, self.validation)
            )
            train = len(members) - test - validation
            if train < 1:
                raise ValueError(
                    f"{len(members)} {'positives' if positive else 'negatives'}: expected at least "
                    f"{test + validation + 1}, one in each part of a split; use more data, a test "
                    "file of its own, or no validation."
                )
            source = generator(np.random.SeedSequence(self.seed, spawn_key=(13, int(positive))))
            shuffled = members[torch.randperm(len(members), generator=source)]
            found.append(torch.split(shuffled, [train, validation, test])[place])
        return torch.cat(found).sort().values


def _by_part(home: NDArray[np.int64]) -> dict[str, Tensor]:
    """The numbers of each part's samples, from the part of each sample."""
    return {
        part: torch.from_numpy(np.flatnonzero(home == place)) for place, part in enumerate(PARTS)
    }


def _per_sample(name: str, values: Any) -> NDArray[Any]:
    """One value per sample: numbers of groups, or times as float64."""
    if not hasattr(values, "__len__"):
        raise ValueError(
            f"{name}={values!r}: expected the name of a column, a text, or one value per sample."
        )
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} of shape {list(array.shape)}: expected one value per sample.")
    if array.dtype.kind in "Mm":
        array = np.where(np.isnat(array), np.nan, array.astype("int64").astype(np.float64))
    objects = array.dtype.kind == "O"
    missing = [v is None or v != v for v in array.tolist()] if objects else array != array
    if np.any(missing):
        raise ValueError(
            f"{name}, sample {int(np.argmax(missing))}: the value is missing; expected one for "
            "each sample: fill it in, or leave the sample out."
        )
    if name == "time":
        return np.asarray(array, np.float64)
    array = np.array([str(v) for v in array.tolist()]) if objects else array
    found: NDArray[Any] = np.unique(array, return_inverse=True)[1].ravel()
    return found
