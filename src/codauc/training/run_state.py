"""Everything one worker needs to resume a run, as typed records, and whether it is of this run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from codauc.algorithm.coda_state import CoDAState
from codauc.data.dataset import DataSet, Part
from codauc.data.fingerprint import combined, total
from codauc.data.tables import Encoder
from codauc.runs.checkpoints import Found
from codauc.runs.directory import Record
from codauc.runs.settings import RunSettings
from codauc.training.validation import ChoiceState, WindowState
from codauc.workers.agreement import gather_bytes
from codauc.workers.group import Group, GroupError

T = TypeVar("T")

_CPU = torch.device("cpu")
_FREE_TABLES = ("device", "safety")  # settings that may differ when a run is resumed
_FREE = (
    *("data.source", "data.test", "data.images"),
    *("communication.workers", "communication.simulate", "communication.timeout"),
)
_ANY_SHAPE = (  # parts of a state that differ from step to step
    *("tallies", "encoding", "outer", "under_way", "stage", "choice", "records", "notes", "times"),
    *("periods", "base", "variates", "drifts"),
    *("kept", "own"),  # of an optimizer, which checks them
)


@dataclass
class RunPosition:
    """Where a run is."""

    step: int = 0  # steps taken
    evaluated: int = 0  # the step of the last evaluation, or the first one of the stage
    owed: bool = False  # whether a round that failed, and what follows it, must still be done
    rejected: int = 0  # evaluations in succession whose model was not kept


@dataclass
class RoundCount:
    """The step of the last round, and the number of rounds since the last checkpoint."""

    step: int = 0
    since_saved: int = 0


@dataclass(frozen=True)
class JournalState:
    """A journal in a checkpoint."""

    records: list[Record]
    notes: list[str]
    seconds: float
    before: dict[str, float]
    times: dict[str, float]
    drifts: list[float]


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
            CoDAState.unpack(other.coda).take_back_round()
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

    def rest_of_all(self, others: list[SavedRun], group: Group) -> Tensor | None:
        """The rows that the epoch has yet to give on all workers; None if batches are balanced."""
        if self.rest is None:
            return None
        mine = [other.rest for other in others if other.rest is not None]
        longest = group.gather(torch.tensor([max([0, *map(len, mine)])]), "checkpoint").max()
        mask = torch.zeros(8 * int(longest), dtype=torch.uint8)
        for bits in mine:
            rows = torch.from_numpy(np.unpackbits(bits.numpy()))
            mask[: len(rows)] |= rows
        group.sum_(mask, "checkpoint")
        return mask.nonzero().flatten()


def packed(value: Any) -> Any:
    """Records as dicts; unlike `dataclasses.asdict` it does not copy tensors."""
    if is_dataclass(value):
        return {f.name: packed(getattr(value, f.name)) for f in fields(value)}
    return [packed(each) for each in value] if isinstance(value, list) else value


def unpacked(kind: type[T], plain: dict[str, Any]) -> T:
    """The record that `packed` was given, with those in it; no name may be missing or unknown."""
    hints, records = get_type_hints(kind), dict[str, Any]()
    for name, hint in hints.items():
        value, kinds = plain[name], [hint, *get_args(hint)]
        inner = next((k for k in kinds if isinstance(k, type) and is_dataclass(k)), None)
        if inner is not None and isinstance(value, list):
            records[name] = [unpacked(inner, each) for each in value]
        elif inner is not None and value is not None:
            records[name] = unpacked(inner, value)
    return kind(**plain | records)


def as_bits(rows: Tensor) -> Tensor:
    """Numbers of samples, as a bit for each.

    >>> as_bits(torch.tensor([9, 2])).tolist() == [0b00100000, 0b01000000]
    True
    """
    mask = np.zeros(int(rows.max()) + 1 if len(rows) else 0, np.bool_)
    mask[rows.numpy()] = True
    return torch.from_numpy(np.packbits(mask))


def identity(opened: DataSet, group: Group) -> dict[str, Any]:
    """What identifies the data, whichever worker has which part of them.

    All inputs and labels of all parts count, each with its row's number in the source.
    """
    found: dict[str, Any] = {
        "positive classes": list(opened.positive),
        "shape of an image": list(opened.shape),
        "columns": [] if opened.encoder is None else _columns(opened.encoder),
    }
    parts = {"training": opened.train, "validation": opened.validation, "test": opened.test}
    mine: dict[str, int] = {}
    for title, part in parts.items():
        if part is not None:
            found[f"{title} samples"] = part.samples
            found[f"{title} positives"] = part.positives
            mine[f"{title} labels"] = _labels(part)
            mine[f"{title} inputs"] = part.fingerprint
    texts = gather_bytes(group, json.dumps(mine).encode(), "start", _CPU)
    return found | combined([json.loads(text) for text in texts])


def _columns(encoder: Encoder) -> list[list[str]]:
    """What each input is made from: a column with its kind, or a cycle of a date."""
    cycles = [[part.name, part.part] for part in encoder.parts]
    return [*map(list, encoder.kinds().items()), *cycles]


def _labels(part: Part) -> int:
    """A number that any other label, or sample, would change; the same in any order."""
    if part.y is None or not len(part.rows):
        return 0
    return total(part.rows.numpy(), part.y.numpy().astype(np.uint64))


def check_same(saved: SavedRun, settings: RunSettings, data: Mapping[str, Any]) -> None:
    """Raise if a run was begun with other settings or on other data, and say what differs."""
    there, here = _fixed(saved.settings), _fixed(asdict(settings))
    _compare("", {"seed": there.get("seed")}, {"seed": settings.seed})  # which parts the data
    _compare("other data: ", saved.data, data)
    _compare("", there, here)


def check_settings(saved: RunSettings, settings: RunSettings) -> None:
    """Raise if settings differ that must stay as they are when a run is resumed."""
    _compare("", _fixed(asdict(saved)), _fixed(asdict(settings)))


def _fixed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that must stay as they are when a run is resumed, by their full names."""
    found: dict[str, Any] = {}
    for table, values in json.loads(json.dumps(settings)).items():
        if table in _FREE_TABLES:
            continue
        if isinstance(values, dict):
            found |= {f"{table}.{name}": value for name, value in values.items()}
        else:
            found[table] = values
    return {name: value for name, value in found.items() if name not in _FREE}


def _compare(what: str, saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    for name in {**saved, **here}:
        if saved.get(name) != here.get(name):
            raise ValueError(
                f"{what}{name} is {_short(saved.get(name))} in the run that was saved, "
                f"{_short(here.get(name))} here: expected the same to resume it; use what that run "
                "had, or begin anew with overwrite=True."
            )


@contextmanager
def usable(found: Found) -> Iterator[None]:
    """Let whatever a state lacks, or has too much of, be one error that says what to do."""
    try:
        yield
    except (KeyError, TypeError, IndexError, AttributeError, AssertionError, RuntimeError) as error:
        if isinstance(error, GroupError):
            raise
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise ValueError(
            f"the checkpoint of step {found.number} cannot be used ({reason}): it was changed; "
            "remove it to resume from the one before it, or begin anew with overwrite=True."
        ) from error


def check_like(saved: Any, mine: Any, where: str) -> None:
    """Raise if a saved state lacks what a state of this run has, name by name."""
    if isinstance(mine, dict):
        if not isinstance(saved, dict):
            raise TypeError(f"{where} is no dict")
        for name in mine:
            if name not in saved:
                raise KeyError(f"{where}/{name}")
            if name not in _ANY_SHAPE:
                check_like(saved[name], mine[name], f"{where}/{name}")
        more = saved.keys() - mine.keys() - {"rest"}
        if more:
            raise KeyError(f"{where}/{min(more)} is too much")
    elif isinstance(mine, list | tuple) and mine:
        if not isinstance(saved, list | tuple) or len(saved) != len(mine):
            raise TypeError(f"{where} has another length")
        for index, (there, here) in enumerate(zip(saved, mine, strict=True)):
            check_like(there, here, f"{where}/{index}")
    elif isinstance(mine, Tensor) and (
        not isinstance(saved, Tensor) or (saved.shape, saved.dtype) != (mine.shape, mine.dtype)
    ):
        raise TypeError(f"{where} is of another kind")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
