"""Endless batches with a position that can be saved."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from codauc._internal.checks import known_arguments, real, whole
from codauc._internal.random_streams import generator
from codauc.data.binary_labels import known_positives
from codauc.data.order import Balanced, Position, Shuffled, check_identity, is_windowed
from codauc.data.rows import DatasetRows, Rows, as_rows

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
Fetched = tuple[tuple[Tensor, ...], Position]


class Batches(Iterator[tuple[Tensor, ...]]):
    """Batches `(x, y)` without end; each epoch gives every sample exactly once.

    `x` is a tensor, a numpy array (memory-mapped or not), a map-style data set or `Rows`; `y` are
    the labels, which a data set of pairs need not be given. Of these only the samples numbered in
    `rows` are used, for example a worker's shard; nothing is copied.

    The order of an epoch depends on (seed, worker, epoch) alone, never on torch's global
    generator. A batch does not cross epochs, so the last of an epoch may be smaller. Were it a
    single sample, which BatchNorm refuses in training, it joins the batch before it, which then
    has `batch_size + 1` samples. Batches of one sample come only from `batch_size=1` or from data
    of one sample. A `batch_size` above the number of samples gives all of them at each step.
    Samples on disk beyond 256 MB are shuffled in windows of that size, each of random megabytes.

    With `balanced=q` a share q of every batch are positives (rounded, at least one of each class):
    each class is shuffled and dealt out by itself, the scarcer one more often. The AUC does not
    depend on the share of positives, and F keeps its saddle point up to a factor if p is the share
    that is drawn: give the loss `pos_ratio=batches.sampled_ratio`, or let it estimate p.

    With `weights`, one per sample, or one for each task of it, batches are `(x, y, weights)`.

    `augment(x, generator)` changes each whole batch; its generator depends on the position alone.
    With `loaders=n` samples are read ahead by n processes, which pays for images to be decoded.

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

    position: Position
    _feed: Iterator[Fetched]

    @known_arguments
    def __init__(
        self,
        x: Any,
        y: Tensor | None = None,
        batch_size: int = 32,
        *,
        seed: int = 0,
        worker: int = 0,
        rows: Tensor | None = None,
        weights: Tensor | None = None,
        balanced: float | None = None,
        augment: Augmentation | None = None,
        loaders: int = 0,
    ) -> None:
        self.x, self.y = _checked(as_rows(x), y)
        self.weights = None if weights is None else torch.as_tensor(weights)
        if self.weights is not None and self.weights.shape[:1] != (len(self.x),):
            raise ValueError(
                f"weights of shape {list(self.weights.shape)} for {len(self.x)} samples: expected "
                "one per sample."
            )
        self.batch_size = whole("batch_size", batch_size, least=1, remedy="use for example 32")
        self.seed = whole("seed", seed, least=0, remedy="use 0 if any seed will do")
        self.worker = whole("worker", worker, least=0, remedy="use the worker's rank")
        self.loaders = whole("loaders", loaders, least=0, remedy="use 0 to read in this process")
        self.rows = None if rows is None else _numbers(rows, len(self.x))
        if self.rows is not None and is_windowed(len(self.rows), self.x.block):
            self.rows = self.rows.sort().values  # neighbours on the disk
        if augment is not None and (not callable(augment) or isinstance(augment, type)):
            raise ValueError(
                f"augment={augment!r}: expected a function of a batch and a generator, such as "
                "Flip()."
            )
        self.augment = augment
        self.sampled_ratio: float | None = None
        self._order = self._planned(balanced)
        self._move(Position())

    def _planned(self, balanced: float | None) -> Shuffled | Balanced:
        count = len(self.x) if self.rows is None else len(self.rows)
        if balanced is None:
            return Shuffled(count, self.batch_size, self.seed, self.worker, self.x.block)
        hand = _hand(balanced, self.batch_size)
        if self.y is None:
            raise ValueError("balanced without y: expected the labels; give them as y.")
        positive = known_positives(self.y if self.rows is None else self.y[self.rows]).cpu()
        if not 0 < int(positive.sum()) < count:
            raise ValueError(
                f"balanced={balanced!r} with {int(positive.sum())} positives of {count} samples: "
                "expected both classes; leave balanced out for this worker's data."
            )
        self.sampled_ratio = hand / self.batch_size
        return Balanced(positive, hand, self.batch_size, self.seed, self.worker)

    @property
    def epoch(self) -> int:
        """How many epochs are over."""
        return self.position.epoch

    @property
    def index(self) -> int:
        """How many samples of the epoch were given."""
        return self.position.at

    def __next__(self) -> tuple[Tensor, ...]:
        try:
            (x, *rest), after = next(self._feed)
        except BaseException:  # a sample that cannot be read does not end the batches
            self._move(self.position)
            raise
        if self.augment is not None:
            x = self.augment(x, self._generator(5, self.position))
        self.position = after
        return x, *rest

    def state_dict(self) -> dict[str, Any]:
        """The position: the epoch, how many of its samples were given, and what it depends on."""
        state: dict[str, Any] = {"epoch": self.epoch, "index": self.index, **self._identity()}
        rest = self._order.rest
        return {**state, "rest": rest[1].clone()} if rest and rest[0] == self.epoch else state

    def remaining(self) -> Tensor | None:
        """The numbers of the samples that this epoch has yet to give; None if balanced."""
        if isinstance(self._order, Balanced):
            return None
        return self._order.order(self.epoch)[self.index :]

    def begin_with(self, epoch: int, rest: Tensor) -> None:
        """Let an epoch give these samples alone, each once, and go there; whole epochs follow.

        So workers whose number has changed share what the epoch had yet to give. Balanced batches
        begin anew.
        """
        if isinstance(self._order, Balanced):
            self._move(Position())
            return
        self._order.rest = (epoch, torch.as_tensor(rest, dtype=torch.int64).sort().values)
        self._move(Position(epoch))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; the next batches are those that followed it.

        The data must have the same length, and the seed, the worker and the batch size must be
        the same, or other batches would follow.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"state: got {type(state).__name__}, expected what state_dict() gave.")
        check_identity(state, self._identity())
        remedy = "use what state_dict() returned"
        epoch, index = (
            whole(name, state.get(name), least=0, remedy=remedy) for name in ("epoch", "index")
        )
        if isinstance(self._order, Shuffled):
            rest = state.get("rest")
            self._order.rest = None if rest is None else (epoch, torch.as_tensor(rest).clone())
        length = self._order.length(epoch)
        if index >= max(1, length):
            raise ValueError(f"index={index}: expected less than {length} samples; {remedy}.")
        self._move(Position(epoch, index))

    def _identity(self) -> dict[str, int]:
        drawn = self._order.hands[0] if isinstance(self._order, Balanced) else 0
        return {
            "samples": len(self.x) if self.rows is None else len(self.rows),
            "rows": 0 if self.rows is None else zlib.crc32(self.rows.numpy().tobytes()),
            "batch_size": self.batch_size,
            "positives": drawn,
            "decks": self._order.checksum if isinstance(self._order, Balanced) else 0,
            "seed": self.seed,
            "worker": self.worker,
        }

    def _move(self, position: Position) -> None:
        self.position = position
        self._feed = self._read_ahead(position) if self.loaders else self._read(position)

    def _generator(self, purpose: int, position: Position) -> torch.Generator:
        """Chance that depends on (seed, worker, position) alone."""
        key = (purpose, self.worker, *position)
        return generator(np.random.SeedSequence(self.seed, spawn_key=key))

    def _read(self, position: Position) -> Iterator[Fetched]:
        fetch = _Fetch(self.x, self.y, self.rows, self.weights)
        for numbers, after in self._order.plan(position):
            yield fetch[numbers, after]

    def _read_ahead(self, position: Position) -> Iterator[Fetched]:
        loader = DataLoader(
            _Fetch(self.x, self.y, self.rows, self.weights),
            batch_size=None,
            sampler=self._order.plan(position),
            num_workers=self.loaders,
            # it seeds the processes, for data sets with chance of their own; never the global one
            generator=self._generator(11, position),
        )
        return iter(loader)


class _Fetch(Dataset[Fetched]):
    """A batch by the numbers of its samples, here or in a process that reads ahead."""

    def __init__(
        self, x: Rows, y: Tensor | None, rows: Tensor | None, weights: Tensor | None
    ) -> None:
        self.x, self.y, self.rows, self.weights = x, y, rows, weights

    def __getitem__(self, item: tuple[Tensor, Position]) -> Fetched:
        numbers, after = item
        if self.rows is not None:
            numbers = self.rows.index_select(0, numbers)
        more = () if self.weights is None else (self.weights.index_select(0, numbers),)
        if self.y is None:
            assert isinstance(self.x, DatasetRows)
            return (*self.x.pairs(numbers), *more), after
        y = self.y.index_select(0, numbers.to(self.y.device))
        return (self.x.gather(numbers), y, *more), after


def _checked(x: Rows, y: Tensor | None) -> tuple[Rows, Tensor | None]:
    if not len(x):
        raise ValueError("x has 0 samples: expected at least 1; give this worker a shard.")
    if y is None and not isinstance(x, DatasetRows):
        raise ValueError("y is missing: expected one label per sample; give y.")
    if y is None:
        return x, None
    y = torch.as_tensor(y)
    if not y.dim() or len(x) != len(y):
        raise ValueError(
            f"x has {len(x)} samples and y {len(y) if y.dim() else 1}: expected equally many; "
            "give one label per sample."
        )
    return x, y


def _numbers(rows: Tensor, count: int) -> Tensor:
    numbers = torch.as_tensor(rows)
    if not numbers.numel():
        raise ValueError("rows has 0 numbers: expected at least 1; give this worker a shard.")
    if numbers.dim() != 1 or numbers.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"rows of {numbers.dtype} and shape {list(numbers.shape)}: expected the numbers of "
            "this worker's samples, such as even_shards(...)[rank]."
        )
    low, high = (int(limit) for limit in torch.aminmax(numbers))
    if low < 0 or high >= count:
        raise ValueError(
            f"rows has {low if low < 0 else high}: expected numbers from 0 to {count - 1}; "
            "make the shards for this data."
        )
    return numbers.to("cpu", torch.int64).contiguous()


def _hand(balanced: float, batch_size: int) -> int:
    """How many positives a balanced batch has."""
    remedy = "it is the share of positives in a batch, for example 0.5"
    share = real("balanced", balanced, above=0, below=1, remedy=remedy)
    if batch_size < 2:
        raise ValueError("balanced with batch_size=1: expected at least 2, one of each class.")
    return min(max(round(share * batch_size), 1), batch_size - 1)
