"""Endless batches with a position that can be saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from codauc.checks import known_arguments, whole
from codauc.data.seeds import generator


class Batches(Iterator[tuple[Tensor, Tensor]]):
    """Batches `(x, y)` without end; each epoch gives every sample exactly once.

    The order of an epoch depends on (seed, worker, epoch) alone, never on torch's global
    generator. A batch does not cross epochs, so the last of an epoch may be smaller. Were it a
    single sample, which BatchNorm refuses in training, it joins the batch before it, which then
    has `batch_size + 1` samples. Batches of one sample come only from `batch_size=1` or from data
    of one sample. A `batch_size` above the number of samples gives all of them at each step.

    >>> x = torch.arange(7)
    >>> batches = Batches(x, x % 2 == 0, batch_size=3)
    >>> [len(next(batches)[0]) for _ in range(4)]
    [3, 4, 3, 4]
    >>> position = batches.state_dict()
    >>> first = next(batches)
    >>> batches.load_state_dict(position)
    >>> bool((next(batches)[0] == first[0]).all())
    True
    """

    epoch: int
    index: int
    _order: Tensor

    @known_arguments
    def __init__(
        self, x: Tensor, y: Tensor, batch_size: int, *, seed: int = 0, worker: int = 0
    ) -> None:
        if len(x) != len(y):
            raise ValueError(
                f"x has {len(x)} samples and y {len(y)}: expected equally many; "
                "give one label per sample."
            )
        if not len(x):
            raise ValueError("x has 0 samples: expected at least 1; give this worker a shard.")
        self.x, self.y = x, y
        self.batch_size = whole("batch_size", batch_size, least=1, remedy="use for example 32")
        self.seed = whole("seed", seed, least=0, remedy="use 0 if any seed will do")
        self.worker = whole("worker", worker, least=0, remedy="use the worker's rank")
        self._move(epoch=0, index=0)

    def __next__(self) -> tuple[Tensor, Tensor]:
        stop, end = self.index + self.batch_size, len(self.x)
        if end - stop == 1 and self.batch_size > 1:
            stop = end
        chosen = self._order[self.index : stop]
        if stop < end:
            self.index = stop
        else:
            self._move(self.epoch + 1, 0)
        x, y = (data.index_select(0, chosen.to(data.device)) for data in (self.x, self.y))
        return x, y

    def state_dict(self) -> dict[str, int]:
        """The position: the epoch, how many of its samples were given, and what it depends on."""
        return {"epoch": self.epoch, "index": self.index, **self._identity()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a saved position; the next batches are those that followed it.

        The data must have the same length, and the seed, the worker and the batch size must be
        the same, or other batches would follow.
        """
        for name, value in {"epoch": 0, "index": 0, **self._identity()}.items():
            if name not in state:
                raise ValueError(
                    f"state has {', '.join(state) or 'no entries'}: expected {name!r} too; "
                    "use what state_dict() returned."
                )
            if name not in ("epoch", "index") and state[name] != value:
                raise ValueError(
                    f"{name}={value} here, but {name}={state[name]!r} in the saved position: "
                    "expected them equal; make the batches as they were when it was saved."
                )
        remedy = "use what state_dict() returned"
        epoch = whole("epoch", state["epoch"], least=0, remedy=remedy)
        index = whole("index", state["index"], least=0, remedy=remedy)
        if index >= len(self.x):
            raise ValueError(f"index={index}: expected less than {len(self.x)} samples; {remedy}.")
        self._move(epoch, index)

    def _identity(self) -> dict[str, int]:
        return {
            "samples": len(self.x),
            "batch_size": self.batch_size,
            "seed": self.seed,
            "worker": self.worker,
        }

    def _move(self, epoch: int, index: int) -> None:
        source = generator(np.random.SeedSequence(self.seed, spawn_key=(3, self.worker, epoch)))
        self.epoch, self.index = epoch, index
        self._order = torch.randperm(len(self.x), generator=source)
