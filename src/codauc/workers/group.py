"""Workers that act together: their collectives, and a ledger of what these cost."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor


class GroupError(RuntimeError):
    """The workers can no longer act together: one is gone, or does not answer."""


@dataclass
class Tally:
    """What one kind of communication cost one worker: calls, bytes, seconds.

    `seconds` is from the start of each call to its end; `waiting` the part of it in which others
    had yet to come, `hidden` the part in which this worker computed.
    """

    calls: int = 0
    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    waiting: float = 0.0
    hidden: float = 0.0


@dataclass
class Ledger:
    """Calls, bytes and seconds of a worker by kind, and its seconds of computing in between.

    Kinds: "start", "round" (averaging), "reply" (the second half of a compressed round), "inner"
    (averaging inside a machine), "dual" (estimates of alpha), "evaluate", "checkpoint".

    >>> ledger = Ledger()
    >>> ledger.add("round", sent=6, received=6, seconds=0.5)
    >>> ledger.rounds, ledger.bytes_sent
    (1, 6)
    """

    tallies: dict[str, Tally] = field(default_factory=dict)
    computing: float = 0.0
    _since: float | None = field(default=None, repr=False, compare=False)
    _observers: list[tuple[Callable[[], None], Callable[[], None]]] = field(
        default_factory=list, repr=False, compare=False
    )

    @contextmanager
    def observing(self, stopped: Callable[[], None], resumed: Callable[[], None]) -> Iterator[None]:
        """Inside this block they are called when the worker stops computing, and resumes."""
        self._observers.append((stopped, resumed))
        try:
            yield
        finally:
            self._observers.remove((stopped, resumed))

    def add(self, kind: str, sent: int, received: int, seconds: float) -> None:
        """Enter one call."""
        tally = self.of(kind)
        tally.calls += 1
        tally.sent += sent
        tally.received += received
        tally.seconds += seconds

    def of(self, kind: str) -> Tally:
        """The entries of one kind."""
        return self.tallies.setdefault(kind, Tally())

    def seconds(self, *kinds: str) -> float:
        """How long communication of these kinds took."""
        return sum(self.tallies[kind].seconds for kind in kinds if kind in self.tallies)

    def stop_computing(self) -> None:
        """The worker stops computing, to communicate."""
        if self._since is not None:
            self.computing += time.perf_counter() - self._since
        self._since = None
        for stopped, _ in self._observers:
            stopped()

    def resume_computing(self) -> None:
        """The worker computes again."""
        for _, resumed in self._observers:
            resumed()
        self._since = time.perf_counter()

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

    def record(self) -> dict[str, float]:
        """The totals, for a history: rounds, bytes, and where the seconds went.

        `computing` lies between communications; `communicating` is what moving data took, `hidden`
        the part of it that ran beside computing; `waiting` is for workers who came later.
        """
        tallies = self.tallies.values()
        waiting = sum(tally.waiting for tally in tallies)
        return {
            "rounds": self.rounds,
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
            "computing": self.computing,
            "communicating": sum(tally.seconds for tally in tallies) - waiting,
            "waiting": waiting,
            "hidden": sum(tally.hidden for tally in tallies),
        }

    def state_dict(self) -> dict[str, Any]:
        """The entries as plain numbers."""
        tallies = {kind: asdict(tally) for kind, tally in self.tallies.items()}
        return {"tallies": tallies, "computing": self.computing}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved entries."""
        self.tallies = {kind: Tally(**tally) for kind, tally in state["tallies"].items()}
        self.computing, self._since = float(state["computing"]), None


class Call(NamedTuple):
    """One collective: what is given (`tensor`) and where the answer goes (`out`)."""

    name: str
    kind: str
    tensor: Tensor
    out: Tensor

    def __str__(self) -> str:
        """All that must be equal on all workers."""
        return f"{self.name}({list(self.tensor.shape)} {self.tensor.dtype}) for {self.kind!r}"

    def traffic(self, rank: int, size: int) -> tuple[int, int]:
        """Bytes sent and received by one worker, as gloo's algorithms move them.

        `sum_` is a ring of two halves, `gather` a ring, `exchange` goes straight to each worker,
        `broadcast_` down a binomial tree.
        """
        n, others = self.tensor.nbytes, size - 1
        if self.name == "broadcast_":
            steps = (1 << i for i in range(size.bit_length()))
            children = sum(rank < step and rank + step < size for step in steps)
            return children * n, n if rank else 0
        whole = {"sum_": 2 * others * n, "gather": others * n * size, "exchange": others * n}
        return whole[self.name] // size, whole[self.name] // size


def different(calls: list[str], workers: Sequence[int]) -> str:
    """The message for calls of these workers that are not all the same, or nothing.

    >>> different(["sum_([5]) for 'round'", "sum_([3]) for 'round'"], [0, 1])[:62]
    "worker 1 calls sum_([3]) for 'round' while worker 0 calls sum_"
    """
    for worker, call in zip(workers, calls, strict=True):
        if call != calls[0]:
            return (
                f"worker {worker} calls {call} while worker {workers[0]} calls {calls[0]}: every "
                "worker must have the same model and take the same steps."
            )
    return ""


def numbered(error: BaseException, rank: int, workers: int) -> BaseException:
    """The error with the number of its worker in its message, or else in a note.

    >>> numbered(ValueError("the file is empty"), 1, 2)
    ValueError('worker 1 of 2: the file is empty')
    """
    number = f"worker {rank} of {workers}"
    if error.args and isinstance(error.args[0], str) and not error.args[0].startswith(number):
        error.args = (f"{number}: {error.args[0]}", *error.args[1:])
    if number not in str(error):
        error.add_note(f"raised by {number}")
    return error


class Pending(Protocol):
    """A collective under way."""

    def done(self) -> bool:
        """Whether the answer is there."""

    def wait(self) -> None:
        """Wait for the answer; raise if it never comes."""


class Flight:
    """Collectives with local work in between, under way while this worker computes."""

    def __init__(self, group: Group, steps: Iterator[Pending]) -> None:
        self._group, self._steps = group, steps
        self._pending: Pending | None = None
        self._pass()

    def advance(self) -> None:
        """Take every step that is possible without waiting."""
        while self._pending is not None and self._pending.done():
            self._pass()

    def land(self) -> None:
        """Wait for the end."""
        while self._pending is not None:
            self._pass()

    def _pass(self) -> None:
        # Until the next collective is under way, whatever fails here ends the flight.
        pending, self._pending, self._group.flight = self._pending, None, None
        if pending is not None:
            pending.wait()
        self._pending = next(self._steps, None)
        if self._pending is not None:
            self._group.flight = self


class Group(ABC):
    """One worker's view of K workers. Every worker makes the same calls in the same order.

    A kind of group says how a `Call` is carried out, and which workers share a machine.
    """

    rank: int
    size: int
    ledger: Ledger
    flight: Flight | None = None  # collectives that continue while this worker computes
    apart = False  # whether each worker is a process of its own, which may leave by itself

    @abstractmethod
    def start(self, call: Call) -> Pending:
        """Begin a collective; enter it in the ledger when it is over."""

    @abstractmethod
    def machine(self) -> Group:
        """The workers on this worker's machine, as a group of their own, with the same ledger."""

    def limit_waiting(self, least: float, most: float) -> None:
        """From now on wait for others by how long it took so far, within these limits.

        Only for workers that take the same time from call to call; nothing where none can be lost.
        """
        del least, most

    def times(self) -> dict[str, float]:
        """How long calls took at most, where waiting is limited by it; to be handed on."""
        return {}

    def sum_(self, tensor: Tensor, kind: str) -> None:
        """Replace `tensor` by its sum over the workers, in place."""
        self._in_place("sum_", kind, tensor)

    def broadcast_(self, tensor: Tensor, kind: str) -> None:
        """Replace `tensor` by worker 0's, in place."""
        self._in_place("broadcast_", kind, tensor)

    def gather(self, tensor: Tensor, kind: str) -> Tensor:
        """Every worker's tensor, stacked in the order of ranks; all are of one shape."""
        self.wait_for_flight()
        mine = tensor.detach().contiguous()
        out = mine.new_empty((self.size, *mine.shape))
        self.start(Call("gather", kind, mine, out)).wait()
        return out

    def fly(self, steps: Iterator[Pending]) -> Flight:
        """Begin collectives that continue while this worker computes; other calls wait for them."""
        self.wait_for_flight()
        flight = Flight(self, steps)
        flight.advance()
        return flight

    def wait_for_flight(self) -> None:
        """Wait for what is under way, so that all workers' calls keep one order."""
        if self.flight is not None:
            self.flight.land()

    def _in_place(self, name: str, kind: str, tensor: Tensor) -> None:
        self.wait_for_flight()
        given = tensor.detach()
        dense = given.contiguous()
        self.start(Call(name, kind, dense, dense)).wait()
        if dense.data_ptr() != given.data_ptr():
            given.copy_(dense)


class Done:
    """A collective that is already over."""

    def done(self) -> bool:
        """Always."""
        return True

    def wait(self) -> None:
        """Nothing to wait for."""


class LocalGroup(Group):
    """A single worker: nothing is sent, and only its seconds of computing enter the ledger."""

    def __init__(self) -> None:
        self.rank, self.size, self.ledger = 0, 1, Ledger()

    def start(self, call: Call) -> Pending:
        """Copy what was given to where the answer goes."""
        self.ledger.stop_computing()
        if call.out is not call.tensor:
            call.out.copy_(call.tensor.view_as(call.out))
        self.ledger.resume_computing()
        return Done()

    def machine(self) -> Group:
        """Itself."""
        return self
