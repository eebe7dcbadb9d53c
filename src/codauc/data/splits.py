"""Which samples are for training, for validation and for testing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from codauc._internal.checks import choice, real, whole
from codauc._internal.random_streams import generator

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """Each class is shuffled by `seed` and cut: a part `test`, then a part `validation`.

    Both are shares of all samples of the class, rounded. A part that is asked for has at least one
    sample of each class. What is where depends on the labels and the seed alone, never on the
    number of workers.

    >>> labels = torch.arange(100) % 10 == 0
    >>> split = Split(test=0.2, validation=0.1)
    >>> found = [split.rows(labels, part) for part in PARTS]
    >>> [(len(rows), int(labels[rows].sum())) for rows in found]
    [(70, 7), (10, 1), (20, 2)]
    """

    test: float = 0.0
    validation: float = 0.0
    seed: int = 0

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

    def rows(self, labels: Tensor, part: str) -> Tensor:
        """The numbers of one part's samples, in ascending order."""
        place = PARTS.index(choice("part", part, PARTS))
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
