"""The batches of a stage: without end, and watched for loops that do not train."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from codauc.algorithm.loop_checks import BatchForward
from codauc.algorithm.ppdsg import PPDSG

Batch = TypeVar("Batch")

_PATIENCE = 1000  # batches without a step after which the loop is taken to be broken


class Engine(Protocol):
    """What a loop needs of `CoDA`."""

    opt: PPDSG
    forward: BatchForward
    loop: object | None

    @property
    def away(self) -> bool:
        """Whether this worker takes no part until the next round."""

    def skip(self) -> None:
        """Pass one step of such a period."""


def local_steps(engine: Engine, steps: int, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batches until the optimizer has taken so many steps; one loop at a time."""
    idle, engine.loop = 0, (loop := object())
    try:
        while (before := engine.opt.steps) < steps:
            if engine.away:
                engine.skip()
                continue
            batch = next(batches)
            if engine.forward.watched:
                yield batch
            else:
                yield from engine.forward.watch(batch)
            if engine.loop is not loop:
                raise RuntimeError("two loops over one stage: leave the first before a second.")
            idle = idle + 1 if engine.opt.steps == before else 0
            if idle == _PATIENCE:
                raise RuntimeError(
                    f"{_PATIENCE} batches without opt.step(): call it once for each batch (or "
                    "for a few, to accumulate gradients)."
                )
    finally:
        if engine.loop is loop:
            engine.loop = None


def endless(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches without end: an iterable is started again, an iterator must not end.

    >>> from itertools import islice
    >>> list(islice(endless([1, 2]), 5))
    [1, 2, 1, 2, 1]
    """
    if not isinstance(batches, Iterable):
        raise ValueError(
            f"batches: got {type(batches).__name__}, expected something to iterate over, such as "
            "a DataLoader or codauc.data.Batches."
        )
    return _again(batches)


def _again(batches: Iterable[Batch]) -> Iterator[Batch]:
    again = not isinstance(batches, Iterator)
    while True:
        count = 0
        for count, batch in enumerate(batches, 1):  # noqa: B007
            yield batch
        if count == 0:
            raise ValueError(
                "batches: got none, expected at least one; this worker's shard has no data (or "
                "less than a batch, with drop_last), or the iterator was used up: use fewer "
                "workers, or a fresh iterator."
            )
        if not again:
            raise ValueError(
                f"batches ended after {count}: expected an endless iterator, or something that can "
                "be iterated again, such as a DataLoader or a list."
            )
