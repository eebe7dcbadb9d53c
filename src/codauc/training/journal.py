"""What a run knows of its own past: records, notes, seconds, and what communication cost."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from codauc.runs.directory import Record
from codauc.workers.group import Group

_NOT_TRAINING = ("evaluate", "checkpoint")


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


class Journal:
    """Records and notes of a run, and its time and communication since training began."""

    def __init__(self, group: Group, notes: list[str]) -> None:
        self.group, self.notes = group, notes
        self.records: list[Record] = []
        self.began = time.perf_counter()
        self._before = group.ledger.record()  # reading the data is not training

    @property
    def seconds(self) -> float:
        """Seconds of training, those before it was resumed included."""
        return time.perf_counter() - self.began

    def spent(self) -> dict[str, float]:
        """The ledger's totals, with the seconds since training began."""
        spent = self.group.ledger.record()
        for name in ("computing", "communicating", "waiting"):
            spent[name] -= self._before[name]
        if self.group.size == 1:
            spent["computing"] = self.seconds
        return spent | {"bytes_sent": self._training_bytes()}

    def _training_bytes(self) -> int:
        """Bytes that this worker sent in order to train, without evaluations and checkpoints."""
        tallies = self.group.ledger.tallies
        return sum(tally.sent for kind, tally in tallies.items() if kind not in _NOT_TRAINING)

    def state(self) -> JournalState:
        """The journal as copies."""
        return JournalState(
            [asdict(record) for record in self.records],
            list(self.notes),
            self.seconds,
            dict(self._before),
            dict(self.group.times()),
        )

    def load(self, state: JournalState) -> None:
        """Continue a journal that was saved."""
        self.records[:] = state.typed_records()
        self.notes[:] = state.notes
        self.began = time.perf_counter() - state.seconds
        self._before = dict(state.before)
        self.group.times().update(state.times)
