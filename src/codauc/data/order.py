"""In which order samples come: endless plans that can be entered at any position."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from codauc._internal.random_streams import generator


class Position(NamedTuple):
    """How many epochs are over, and how many samples of the next were given."""

    epoch: int = 0
    at: int = 0


def check_identity(state: Mapping[str, Any], identity: Mapping[str, int]) -> None:
    """Raise where a saved position depends on other numbers than the position here."""
    for name, value in identity.items():
        if name not in state:
            raise ValueError(
                f"state has {', '.join(state) or 'no entries'}: expected {name!r} too; "
                "use what state_dict() returned."
            )
        if state[name] != value:
            raise ValueError(
                f"{name}={value} here, but {name}={state[name]!r} in the saved position: "
                "expected them equal; make the batches as they were when it was saved."
            )


_WINDOW = 256  # blocks, of about a megabyte each

Plan = Iterator[tuple[Tensor, Position]]  # the numbers of a batch, and where it leads


def is_windowed(count: int, block: int | None) -> bool:
    """Whether samples are too many to be shuffled as a whole."""
    return block is not None and count > block * _WINDOW


class Shuffled:
    """Every epoch gives each of `count` samples once, in an order of its own.

    With a `block`, samples lie on a disk, which reads that many neighbours at once. The blocks are
    then shuffled, and their samples within a window of 256 blocks, so that a window fits in memory
    however large the whole is. What fits in one window is shuffled as a whole.
    """

    def __init__(
        self, count: int, batch_size: int, seed: int, worker: int, block: int | None = None
    ) -> None:
        self.count, self.batch_size, self.seed, self.worker = count, batch_size, seed, worker
        self.block = block
        self.rest: tuple[int, Tensor] | None = None  # an epoch that gives these samples alone

    def length(self, epoch: int) -> int:
        """How many samples an epoch gives."""
        return self.count if self.rest is None or self.rest[0] != epoch else len(self.rest[1])

    def plan(self, position: Position) -> Plan:
        """The batches that follow a position."""
        epoch, index = position
        while True:
            order = self.order(epoch)
            epoch += 1
            count = len(order)
            while index < count:
                stop = index + self.batch_size
                if count - stop == 1 and self.batch_size > 1:
                    stop = count  # BatchNorm refuses a leftover single sample
                over = stop >= count
                yield order[index:stop], Position(epoch) if over else Position(epoch - 1, stop)
                index = stop
            index = 0

    def order(self, epoch: int) -> Tensor:
        """The numbers of an epoch's samples."""
        source = generator(np.random.SeedSequence(self.seed, spawn_key=(3, self.worker, epoch)))
        if self.rest is not None and self.rest[0] == epoch:
            return self.rest[1][torch.randperm(len(self.rest[1]), generator=source)]
        if self.block is None or not is_windowed(self.count, self.block):
            return torch.randperm(self.count, generator=source)
        blocks = torch.randperm(-(-self.count // self.block), generator=source)
        windows = []
        for start in range(0, len(blocks), _WINDOW):
            firsts = blocks[start : start + _WINDOW, None] * self.block
            numbers = (firsts + torch.arange(self.block)).flatten()
            numbers = numbers[numbers < self.count]
            windows.append(numbers[torch.randperm(len(numbers), generator=source)])
        return torch.cat(windows)


class Balanced:
    """Every batch has the same number of positives; each class is a deck of its own.

    A class's deck is dealt through in random order, then shuffled again, so that all its samples
    come equally often, give or take one. An epoch is over when the deck that lasts longest is.
    """

    def __init__(
        self, positive: Tensor, positives: int, batch_size: int, seed: int, worker: int
    ) -> None:
        self.decks = [positive.nonzero().flatten(), (~positive).nonzero().flatten()]
        self.hands = [positives, batch_size - positives]
        self.batch_size, self.seed, self.worker = batch_size, seed, worker
        lengths = [-(-len(deck) // hand) for deck, hand in zip(self.decks, self.hands, strict=True)]
        self.epoch_length = max(lengths) * batch_size
        self.rest = None  # a class's samples come again and again: no epoch is a part
        self.checksum = zlib.crc32(positive.numpy().tobytes())

    def length(self, epoch: int) -> int:
        """How many samples an epoch gives."""
        del epoch
        return self.epoch_length

    def plan(self, position: Position) -> Plan:
        """The batches that follow a position."""
        done = (position.epoch * self.epoch_length + position.at) // self.batch_size
        hands = [self._dealt(deck, done * self.hands[deck]) for deck in (0, 1)]
        while True:
            done += 1
            numbers = torch.cat([next(hand) for hand in hands])
            yield numbers, Position(*divmod(done * self.batch_size, self.epoch_length))

    def _dealt(self, deck: int, start: int) -> Iterator[Tensor]:
        cards, hand = self.decks[deck], self.hands[deck]
        turn, at = divmod(start, len(cards))
        order = self._order(deck, turn)
        while True:
            parts, missing = [], hand
            while missing:
                part = order[at : at + missing]
                parts.append(part)
                missing, at = missing - len(part), at + len(part)
                if at == len(cards):
                    turn, at = turn + 1, 0
                    order = self._order(deck, turn)
            yield cards[torch.cat(parts)]

    def _order(self, deck: int, turn: int) -> Tensor:
        seeds = np.random.SeedSequence(self.seed, spawn_key=(6, self.worker, deck, turn))
        return torch.randperm(len(self.decks[deck]), generator=generator(seeds))
