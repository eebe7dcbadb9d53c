"""Workers that act together: what they can say to each other, and a ledger of what it cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Protocol

from torch import Tensor


@dataclass
class Tally:
    """What one kind of communication cost one worker."""

    calls: int = 0
    sent: int = 0
    received: int = 0
    seconds: float = 0.0


@dataclass
class Ledger:
    """Calls, bytes and seconds by kind: "start", "round" (averaging), "dual" (estimates of alpha).

    >>> ledger = Ledger()
    >>> ledger.add("round", sent=6, received=6, seconds=0.5)
    >>> ledger.rounds, ledger.bytes_sent
    (1, 6)
    """

    tallies: dict[str, Tally] = field(default_factory=dict)

    def add(self, kind: str, *, sent: int, received: int, seconds: float) -> None:
        """Enter one call."""
        tally = self.tallies.setdefault(kind, Tally())
        tally.calls += 1
        tally.sent += sent
        tally.received += received
        tally.seconds += seconds

    def calls(self, kind: str) -> int:
        """How often this kind of communication took place."""
        return self.tallies.get(kind, Tally()).calls

    @property
    def rounds(self) -> int:
        """Communication rounds: averagings of the state, a stage's closing one included."""
        return self.calls("round")

    @property
    def bytes_sent(self) -> int:
        """Bytes this worker sent, of all kinds."""
        return sum(tally.sent for tally in self.tallies.values())

    @property
    def bytes_received(self) -> int:
        """Bytes this worker received, of all kinds."""
        return sum(tally.received for tally in self.tallies.values())

    def state_dict(self) -> dict[str, dict[str, float]]:
        """The entries as plain numbers."""
        return {kind: asdict(tally) for kind, tally in self.tallies.items()}

    def load_state_dict(self, state: dict[str, dict[str, float]]) -> None:
        """Take over saved entries."""
        self.tallies = {
            kind: Tally(int(t["calls"]), int(t["sent"]), int(t["received"]), float(t["seconds"]))
            for kind, t in state.items()
        }


class Group(Protocol):
    """One worker's view of K workers. Every worker makes the same calls in the same order."""

    rank: int
    size: int
    ledger: Ledger

    def sum_(self, tensor: Tensor, kind: str) -> None:
        """Replace `tensor` by its sum over the workers, in place."""

    def broadcast_(self, tensor: Tensor, kind: str) -> None:
        """Replace `tensor` by worker 0's, in place."""

    def gather(self, tensor: Tensor, kind: str) -> list[Tensor]:
        """Every worker's tensor, in the order of ranks; all of one shape."""


class LocalGroup:
    """A single worker: nothing is sent and nothing enters the ledger."""

    def __init__(self) -> None:
        self.rank, self.size, self.ledger = 0, 1, Ledger()

    def sum_(self, tensor: Tensor, kind: str) -> None:
        """Leave the tensor: it is its own sum."""

    def broadcast_(self, tensor: Tensor, kind: str) -> None:
        """Leave the tensor: it is worker 0's."""

    def gather(self, tensor: Tensor, kind: str) -> list[Tensor]:  # noqa: ARG002
        """Just the one."""
        return [tensor.clone()]
