"""Everything one worker needs to resume a run, as typed records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from codauc.algorithm.coda_state import CoDAState
from codauc.runs.directory import Record
from codauc.training.validation import ChoiceState, WindowState
from codauc.workers.group import Group


@dataclass
class RunPosition:
    """Where a run is."""

    step: int = 0  # steps taken
    evaluated: int = 0  # the step of the last evaluation, or the first one of the stage
    owed: bool = False  # whether a round that failed, and what follows it, must still be done


@dataclass
class RoundCount:
    """The step of the last round, and the number of rounds since the last checkpoint."""

    step: int = 0
    since_saved: int = 0


@dataclass(frozen=True)
class JournalState:
    """A journal in a checkpoint."""

    records: list[dict[str, Any]]
    notes: list[str]
    seconds: float
    before: dict[str, float]
    times: dict[str, float]

    def typed_records(self) -> list[Record]:
        """The records; a TypeError where one of them lacks a field."""
        return [Record(**plain) for plain in self.records]


@dataclass(frozen=True)
class RunState:
    """The state of one worker, made by its owners: each field is that of one of them."""

    position: RunPosition
    coda: dict[str, Any]
    batches: dict[str, Any]
    window: WindowState | None
    choice: ChoiceState
    journal: JournalState
    rounds: RoundCount
    reduced: float  # of the step size

    @classmethod
    def unpack(cls, plain: dict[str, Any]) -> Self:
        """The state of names and values; a TypeError where one is missing or unknown."""
        records = {
            "position": RunPosition,
            "choice": ChoiceState,
            "journal": JournalState,
            "rounds": RoundCount,
        }
        if plain["window"] is not None:
            records["window"] = WindowState
        typed = {name: _record(kind, plain[name]) for name, kind in records.items()}
        return cls(**plain | typed)

    def averaged(self) -> Iterator[Tensor]:
        """What a round would replace by its mean over the workers."""
        yield from CoDAState.unpack(self.coda).tensors_to_average()
        yield from [] if self.window is None else self.window.means

    def merge(self, others: list[RunState], count: int, group: Group) -> None:
        """Become the mean of `count` workers' states, of which this worker has `others`.

        As a round would do it. The mean of the running averages is what a stage's closing round
        makes of them. What compression lost, and a round that was under way, are dropped.
        """
        targets = list(self.averaged())
        total = torch.zeros(sum(t.numel() for t in targets))
        for other in others:
            total += torch.cat([t.float().flatten() for t in other.averaged()])
        group.sum_(total, "checkpoint")
        parts = torch.split(total.div_(count), [t.numel() for t in targets])
        for target, mean in zip(targets, parts, strict=True):
            target.copy_(mean.view_as(target))
        self.coda.update(CoDAState.unpack(self.coda).for_workers(group.size).pack())


@dataclass(frozen=True)
class SavedRun:
    """What a checkpoint holds: a worker's state, and what others need to know of it."""

    settings: dict[str, Any]  # of the run, as JSON
    data: dict[str, Any]  # identifies the data
    rest: Tensor | None  # rows that the epoch has yet to give, a bit for each; None if balanced
    run: RunState

    @classmethod
    def unpack(cls, plain: dict[str, Any]) -> Self:
        """What `pack` was made of; a TypeError where a name is missing or unknown."""
        return cls(**plain | {"run": RunState.unpack(plain["run"])})

    def rest_of_all(self, others: list[SavedRun], group: Group) -> Tensor | None:
        """The rows that the epoch has yet to give on all workers; None if batches are balanced."""
        if self.rest is None:
            return None
        mine = [other.rest for other in others if other.rest is not None]
        longest = group.gather(torch.tensor([max([0, *map(len, mine)])]), "checkpoint").max()
        mask = torch.zeros(8 * int(longest), dtype=torch.uint8)
        for bits in mine:
            mask[from_bits(bits)] = 1
        group.sum_(mask, "checkpoint")
        return mask.nonzero().flatten()


def packed(value: Any) -> Any:
    """Records as dicts; unlike `dataclasses.asdict` it does not copy tensors."""
    if is_dataclass(value):
        return {f.name: packed(getattr(value, f.name)) for f in fields(value)}
    return value


def _record(kind: type, plain: dict[str, Any]) -> Any:
    """A record of names and values; none may be missing, although it has defaults."""
    return kind(**{f.name: plain[f.name] for f in fields(kind)} | plain)


def as_bits(rows: Tensor) -> Tensor:
    """Numbers of samples, as a bit for each.

    >>> from_bits(as_bits(torch.tensor([9, 2]))).tolist()
    [2, 9]
    """
    mask = np.zeros(int(rows.max()) + 1 if len(rows) else 0, np.bool_)
    mask[rows.numpy()] = True
    return torch.from_numpy(np.packbits(mask))


def from_bits(bits: Tensor) -> Tensor:
    """What `as_bits` was given, in order."""
    return torch.from_numpy(np.flatnonzero(np.unpackbits(bits.numpy())))
