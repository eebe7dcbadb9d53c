"""Batches from samples that come one after another, of which nobody knows how many."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from codauc._internal.checks import known_arguments, whole
from codauc.data.order import check_identity

Samples = Iterator[tuple[Any, Any]]


class Stream(Iterator[tuple[Tensor, Tensor]]):
    """Batches `(x, y)` of a stream of samples: for data that has no length and no known p.

    `source` is an `IterableDataset` or any iterable of pairs (inputs, label), a generator, or a
    function that returns one. When it ends it is iterated again; a generator, which cannot be, ends
    the batches. A loss without `pos_ratio` follows the labels seen, by all workers together.

    The stream is the worker's own. If all workers read the same one, `workers=K` lets each take
    every K-th sample, `worker` being its rank; no sample then reaches two of them. `shuffle=n`
    draws each sample from n that wait, by `seed`: for sources that come in some order.

    The position is the number of samples given: resuming reads and skips as many of a new source.

    >>> samples = [(torch.tensor([float(i)]), i % 2) for i in range(5)]
    >>> stream = Stream(samples, batch_size=2, worker=1, workers=2)
    >>> [next(stream)[0].flatten().tolist() for _ in range(2)]
    [[1.0, 3.0], [1.0, 3.0]]
    """

    @known_arguments
    def __init__(
        self,
        source: Iterable[Any] | Callable[[], Iterable[Any]],
        batch_size: int = 32,
        *,
        worker: int = 0,
        workers: int = 1,
        shuffle: int = 0,
        seed: int = 0,
    ) -> None:
        if not isinstance(source, Iterable) and not callable(source):
            raise ValueError(
                f"source: got {type(source).__name__}, expected something to iterate over, or a "
                "function that returns it."
            )
        self.source = source
        self.batch_size = whole("batch_size", batch_size, least=1, remedy="use for example 32")
        self.workers = whole("workers", workers, least=1, remedy="use 1 for a stream of its own")
        self.worker = whole("worker", worker, least=0, remedy="use the worker's rank")
        self.shuffle = whole("shuffle", shuffle, least=0, remedy="use 0 to keep the order")
        self.seed = whole("seed", seed, least=0, remedy="use 0 if any seed will do")
        if workers > 1 and worker >= workers:
            raise ValueError(f"worker={worker} of {workers}: expected at most {workers - 1}.")
        self.given = 0
        self._samples = self._shuffled(self._endless())

    def __next__(self) -> tuple[Tensor, Tensor]:
        pairs = list(islice(self._samples, self.batch_size))
        if not pairs:
            raise StopIteration
        self.given += len(pairs)
        x = torch.stack([torch.as_tensor(inputs) for inputs, _ in pairs])
        return x, torch.stack([torch.as_tensor(label) for _, label in pairs])

    def state_dict(self) -> dict[str, int]:
        """How many samples were given, and what their order depends on."""
        return {"given": self.given, **self._identity()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go to a saved position, by skipping what was given; only before the first batch."""
        if self.given:
            raise ValueError(
                f"{self.given} samples were given already: expected a new Stream to resume with."
            )
        check_identity(state, self._identity())
        given = whole("given", state.get("given"), least=0, remedy="use what state_dict() returned")
        skipped = sum(1 for _ in islice(self._samples, given))
        if skipped < given:
            raise ValueError(
                f"the stream ended after {skipped} samples, expected {given} to skip; give the "
                "source it was saved with."
            )
        self.given = given

    def _identity(self) -> dict[str, int]:
        names = ("batch_size", "worker", "workers", "shuffle", "seed")
        return {name: getattr(self, name) for name in names}

    def _endless(self) -> Samples:
        once = isinstance(self.source, Iterator)
        while True:
            source = self.source if isinstance(self.source, Iterable) else self.source()
            empty = True
            for item in islice(source, self.worker % self.workers, None, self.workers):
                empty = False
                yield _pair(item)
            if once:
                return
            if empty:
                raise ValueError("the stream has no samples for this worker: expected some.")

    def _shuffled(self, samples: Samples) -> Samples:
        waiting = list(islice(samples, self.shuffle)) if self.shuffle > 1 else []
        key = np.random.SeedSequence(self.seed, spawn_key=(10, self.worker)).generate_state(4)
        chance = random.Random(key.tobytes())
        for sample in samples:
            if waiting:
                i = chance.randrange(len(waiting))
                sample, waiting[i] = waiting[i], sample
            yield sample
        chance.shuffle(waiting)
        yield from waiting


def _pair(item: Any) -> tuple[Any, Any]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ValueError(
            f"a sample of the stream is {type(item).__name__}: expected a pair (inputs, label)."
        )
    return item[0], item[1]
