"""What the engine and its rounds put into a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from codauc.algorithm.optimizer_state import OptimizerState
from codauc.algorithm.round_periods import PeriodState
from codauc.algorithm.schedules import Stage
from codauc.algorithm.trained_state import view_like


@dataclass
class RoundState:
    """What rounds keep from one to the next."""

    compress: str | None
    workers: int
    encoding: dict[str, Tensor]  # what was lost by compression
    drift: float | None
    under_way: dict[str, Tensor] | None  # a round that has begun and not yet taken effect
    outer: dict[str, Tensor] = field(default_factory=dict)  # theta and momentum of outer steps
    measuring: bool = False  # whether messages carry measured times and drift
    seconds: float = 0.0  # of the last round, if they do
    base: Tensor | None = None  # from where steps count, where rounds are delayed
    variates: dict[str, Tensor] = field(default_factory=dict)  # of gradients, if corrected
    period: int = 0  # how many rounds there were

    def check(self, compress: str | None, workers: int, *, outer: bool, correcting: bool) -> None:
        """Raise if it is of other rounds."""
        if self.outer and workers > 1 and not outer:
            raise ValueError("state saved with outer steps, here none: make CoDA as it was.")
        if self.variates and workers > 1 and not correcting:
            raise ValueError("state saved with correct='scaffold', here None: make CoDA as it was.")
        here = {"compress": compress, "workers": workers}
        if not self.encoding and not self.variates and self.under_way is None:
            del here["workers"]  # nothing in it depends on their number
        for name, value in here.items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"state saved with {name}={getattr(self, name)!r}, here {value!r}: make CoDA "
                    "as it was when it was saved."
                )


@dataclass
class CoDAState:
    """Everything that one worker's `CoDA` needs to continue; `pack` gives a plain dict."""

    model: dict[str, Tensor]
    optimizer: OptimizerState
    averager: RoundState
    ledger: dict[str, Any]
    streams: dict[str, Any]  # of random numbers
    stage: Stage | None  # begun and not yet finished
    stages_done: int
    closed: bool  # whether the stage's iterates are averaged, so that only alpha is missing
    synced_at: int  # the step of its last round
    inner_at: int  # the step of its last round inside the machine
    periods: PeriodState = field(default_factory=PeriodState)

    def pack(self) -> dict[str, Any]:
        """Texts and values; the tensors are shared."""
        plain = _plain(self)
        stage = None if self.stage is None else asdict(self.stage)
        optimizer = self.optimizer.pack()
        optimizer["kept"] = {str(i): kept for i, kept in optimizer.pop("state").items()}
        records = {"optimizer": optimizer, "averager": _plain(self.averager)}
        records["periods"] = self.periods.pack()
        return plain | records | {"stage": stage}

    @classmethod
    def unpack(cls, packed: dict[str, Any]) -> CoDAState:
        """What `pack` gave; the tensors are shared."""
        missing = [f.name for f in fields(cls) if f.name not in (*packed, "periods")]
        if missing:
            raise ValueError(f"state without {missing}: expected what CoDA.state_dict() gave.")
        stage = packed["stage"]
        records = {
            "optimizer": OptimizerState.unpack(
                {**packed["optimizer"], "state": packed["optimizer"].get("kept", {})}
            ),
            "averager": RoundState(**packed["averager"]),
            "stage": None if stage is None else Stage(**stage),
            "periods": PeriodState.unpack(packed.get("periods", {})),
        }
        return cls(**packed | records)

    def tensors_to_average(self) -> Iterator[Tensor]:
        """What each worker has of its own, and a state for other workers has as a mean."""
        yield from (tensor for tensor in self.model.values() if tensor.is_floating_point())
        yield from self.optimizer.tensors_to_average()

    def for_workers(self, workers: int) -> CoDAState:
        """The state for another number of workers, once its tensors are the mean of all.

        What compression lost, a round that was under way, the momentum of outer steps, control
        variates (the gradients of data that are dealt out anew), and label counts that no round has
        summed are dropped.
        """
        self.optimizer.forget_unreported_labels()
        none: dict[str, Any] = {"encoding": {}, "under_way": None, "outer": {}, "base": None}
        none["variates"] = {}
        return replace(self, averager=replace(self.averager, workers=workers, **none))

    def take_back_round(self) -> None:
        """Give w, a, b and alpha the values they would have without the round under way."""
        rounds, start = self.averager, 0
        if rounds.under_way is None or rounds.base is None:
            return
        change = rounds.under_way["sent"] - rounds.base
        for name, role, shape, _, strides in self.optimizer.layout:
            if role == "buffer":
                return
            like = torch.empty_strided(json.loads(shape), json.loads(strides), device="meta")
            tensor = self.model[name] if role == "weight" else self.optimizer.loss[role]
            tensor.add_(view_like(like, change, start))
            start += like.numel()


def _plain(record: Any) -> dict[str, Any]:
    """Unlike `dataclasses.asdict` it does not copy tensors."""
    return {f.name: getattr(record, f.name) for f in fields(record)}
