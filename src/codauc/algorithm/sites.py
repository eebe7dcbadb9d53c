"""Workers as sites: how much each one counts, who is there, and whether their labels differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from codauc._internal.checks import known_arguments, real, whole

WEIGHTS = ("equal", "samples")
_SURELY = 4.0  # standard deviations by which counts of labels differ more than by chance


@dataclass(frozen=True)
class Present:
    """Which workers take part in each period between two rounds, drawn anew for each one.

    Of those that are not `gone`, `share` are there, at least one; which ones depends on `seed` and
    the number of rounds before, so that all workers know it. `gone` are workers that leave for
    good, each with the number of rounds after which it does: `((3, 10),)` is worker 3 after ten.

    >>> Present(share=0.7, seed=1)
    Present(share=0.7, seed=1, gone=())
    """

    share: float = 1.0
    seed: int = 0
    gone: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        share = real("share", self.share, above=0, remedy="use 1 for all workers")
        if share > 1:
            raise ValueError(f"share={share:g}: expected at most 1, which is all workers.")
        object.__setattr__(self, "share", share)
        object.__setattr__(self, "seed", whole("seed", self.seed, least=0, remedy="use 0"))
        try:
            gone = tuple((int(worker), int(rounds)) for worker, rounds in self.gone)
        except (TypeError, ValueError):
            raise ValueError(
                f"gone={self.gone!r}: expected pairs of a worker and the number of rounds after "
                "which it is gone, such as ((3, 10),)."
            ) from None
        object.__setattr__(self, "gone", gone)

    def draw(self, period: int, workers: Sequence[int]) -> set[int]:
        """Which of these workers are there in the period after so many rounds.

        >>> [sorted(Present(0.5, seed=0).draw(period, range(4))) for period in range(3)]
        [[1, 2], [2, 3], [0, 2]]
        """
        gone = {worker for worker, rounds in self.gone if period >= rounds}
        left = [worker for worker in workers if worker not in gone]
        if not left:
            raise ValueError(
                f"after {period} rounds all workers with samples are gone: expected one that stays."
            )
        if self.share == 1:
            return set(left)
        seeds = np.random.SeedSequence(self.seed, spawn_key=(12, period))
        chosen = np.random.default_rng(seeds).permutation(len(left))
        return {left[i] for i in chosen[: max(1, round(self.share * len(left)))].tolist()}


Present.__init__ = known_arguments(Present.__init__)  # type: ignore[method-assign]


Shards = list[tuple[int, int]]  # samples and positives of each worker


class Mean(NamedTuple):
    """How a mean over workers is taken: sum_k lambda_k x_k, where the lambda_k add up to 1.

    `shares` are the lambda_k of all workers, None if they are equal, and `divisor` is 1/lambda_k of
    this worker: infinite where it takes no part.
    """

    divisor: float
    shares: tuple[float, ...] | None = None


class Sites:
    """Which workers take part in the period that is under way, and how much each of them counts.

        mean = sum_k lambda_k x_k / sum_k lambda_k   over the workers that are there,
        lambda_k = 1 (`weight="equal"`, the paper's f) or the samples of worker k ("samples")

    `shards` are the samples and positives of each worker, None if not known. A worker without
    samples is never there. `period` counts the rounds.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        weight: str = "equal",
        present: Present | None = None,
        shards: Shards | None = None,
    ) -> None:
        self.rank, self.size, self.weight, self.shards = rank, size, weight, shards
        self.present = None if size == 1 else present
        self.period = 0
        samples = [1] * size if shards is None else [n for n, _ in shards]
        self.able = {k for k in range(size) if samples[k]}  # that have samples
        if not self.able:
            raise ValueError("shards: no worker has a sample; expected data on one of them.")
        self._sizes = samples if weight == "samples" else [int(n > 0) for n in samples]

    @property
    def all_alike(self) -> bool:
        """Whether all workers are always there and count as much."""
        return self.present is None and len(set(self._sizes)) == 1

    def settings(self) -> dict[str, Any]:
        """What all workers must have alike."""
        present = None if self.present is None else asdict(self.present)
        return {"weight": self.weight, "present": present, "shards": self.shards}

    def there(self) -> set[int]:
        """The workers that take part in this period."""
        if self.present is None:
            return self.able
        return self.present.draw(self.period, sorted(self.able))

    @property
    def away(self) -> bool:
        """Whether this worker takes no part in this period."""
        return not self.all_alike and self.rank not in self.there()

    def mean(self, workers: set[int] | None = None) -> Mean:
        """The mean over those that take part in this period, or over these workers."""
        if workers is None and self.all_alike:
            return Mean(self.size)
        there = self.there() if workers is None else workers
        sizes = [n if k in there else 0 for k, n in enumerate(self._sizes)]
        total = sum(sizes)
        shares = tuple(n / total if total else 0.0 for n in sizes)
        own = sizes[self.rank]
        return Mean(total / own if own else math.inf, shares)


def labels_differ(shards: Sequence[tuple[int, int]]) -> bool:
    """Whether shares of positives differ between workers by more than dealing out by chance does.

    Pearson's chi-square over the workers that have samples, four standard deviations over its mean.

    >>> labels_differ([(1000, 100), (1000, 112), (10, 0)])
    False
    >>> labels_differ([(1000, 100), (1000, 200)])
    True
    """
    samples, free = sum(n for n, _ in shards), sum(n > 0 for n, _ in shards) - 1
    return samples * contingency(shards) > free + _SURELY * math.sqrt(2 * max(0, free))


def contingency(shards: Sequence[tuple[int, int]]) -> float:
    """How far labels differ between workers, whatever their number: Pearson's mean square.

        phi^2 = sum_k n_k (p_k - p)^2 / (n p (1 - p)),   0: all alike, 1: each has one class alone

    >>> contingency([(100, 50), (100, 50)]), contingency([(100, 100), (300, 0)])
    (0.0, 1.0)
    """
    known = [(n, up) for n, up in shards if n]
    samples, positives = sum(n for n, _ in known), sum(up for _, up in known)
    if positives in (0, samples):
        return 0.0
    p = positives / samples
    distance = sum((up - n * p) ** 2 / (n * p * (1 - p)) for n, up in known)
    return distance / samples


def chosen_dual(shards: Sequence[tuple[int, int]]) -> str:
    """The estimate of alpha that suits: "pooled" where labels differ between workers, else "mean".

    >>> chosen_dual([(100, 50), (100, 51)]), chosen_dual([(100, 5), (100, 90)])
    ('mean', 'pooled')
    """
    return "pooled" if labels_differ(shards) else "mean"
