"""How workers find each other: where a launcher put them, and what they say of themselves."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from codauc.group import GroupError
from codauc.group.links import interface_towards
from codauc.version import __version__

_GRACE = 3.0  # seconds in which survivors look for the reason of a failure
_PAUSE = 0.02  # seconds between two looks at the store
_stores: dict[tuple[str, int], Store] = {}  # kept to the end: others may still read them

# What launchers call a worker's rank, the number of workers, and its rank on its machine.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", ""),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
)


class Place(NamedTuple):
    """Where a launcher put this process."""

    rank: int
    size: int
    local_rank: int
    local_size: int | None

    @classmethod
    def from_environment(cls) -> Place | None:
        """What torchrun, mpirun or srun says, if one of them started this process."""
        for rank, size, local, local_size in _LAUNCHERS:
            if rank in os.environ and size in os.environ:
                numbers = [_number(name) for name in (rank, size)]
                own = _number(local) if local in os.environ else 0
                many = _number(local_size) if local_size in os.environ else None
                place = cls(numbers[0], numbers[1], own, many)
                if not 0 <= place.rank < place.size:
                    raise ValueError(
                        f"{rank}={place.rank} and {size}={place.size} in the environment: expected "
                        "a rank from 0 to one less than the number of workers."
                    )
                return place
        return None


class Notes:
    """What workers leave in the store for each other: who they are, and why they left."""

    def __init__(self, store: Store, rank: int, size: int, timeout: float) -> None:
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self.hosts: list[str] = []  # by rank
        self.name = ""  # of the meeting

    def introduce(self) -> str:
        """Meet all workers, learn their hosts, return a name for this meeting that is new.

        Or raise the same error on every worker. What earlier workers left in the store, before
        the job was restarted, is recognised: each worker knocks with a number of its own, and only
        those who are there can confirm it. Worker 0 opens the meeting when all have.
        """
        number = uuid.uuid4().hex
        self.store.set(f"knock/{self.rank}", json.dumps({**record_of_this_worker(), "is": number}))
        deadline = time.monotonic() + self.timeout
        host = _Door(self) if self.rank == 0 else None
        while time.monotonic() < deadline + (0 if host else _GRACE):
            if host is not None:
                host.look(late=time.monotonic() > deadline - _GRACE / 3)
            if (opened := self._opened(number)) is not None:
                return opened
            time.sleep(_PAUSE)
        missing = [0] if host is None else host.missing()
        raise GroupError(f"worker {self.rank} of {self.size}: {self.absent(missing)}.")

    def _opened(self, number: str) -> str | None:
        """The meeting's name once all have confirmed that they are there."""
        if not self.store.check(["meeting"]):
            return None
        meeting = json.loads(self.store.get("meeting"))
        if number not in meeting["numbers"]:
            return None
        name = str(meeting["name"])
        self.store.set(f"{name}/here/{self.rank}", "")
        if meeting["error"]:
            self._stay(name, meeting["numbers"])
            raise GroupError(f"worker {self.rank} of {self.size}: {meeting['error']}.")
        if not self.store.check([f"{name}/open"]):
            return None
        self.hosts, self.name = list(meeting["hosts"]), name
        return name

    def _stay(self, name: str, numbers: list[str]) -> None:
        """Worker 0 may keep the store: it stays until the others have read the error."""
        keys = [f"{name}/here/{k}" for k, number in enumerate(numbers) if number]
        with contextlib.suppress(RuntimeError):
            self.store.wait(keys, timedelta(seconds=_GRACE if self.rank == 0 else 0.001))

    def absent(self, ranks: list[int]) -> str:
        """What to say of workers who did not come."""
        them = "it was started, and whether it" if len(ranks) == 1 else "they were started and"
        return (
            f"{_workers(ranks)} did not arrive within {self.timeout:g} s; see whether {them} can "
            "reach MASTER_ADDR"
        )

    def leave(self, reason: str) -> None:
        """Say why this worker leaves."""
        with contextlib.suppress(RuntimeError):  # nobody may be there to read it
            self.store.set(f"{self.name}/left/{self.rank}", reason)

    def cause(self) -> str:
        """After a failure: who left and why, and who gives no sign of life."""
        try:
            self.store.set(f"{self.name}/stuck/{self.rank}", "")
            others = [k for k in range(self.size) if k != self.rank]
            deadline = time.monotonic() + _GRACE
            silent = others
            while silent and time.monotonic() < deadline and not self._left(others):
                silent = [k for k in silent if not self.store.check([f"{self.name}/stuck/{k}"])]
                time.sleep(0.05)
            if left := _first(self._left(others)):
                return "; ".join(f"worker {k} had left ({reason})" for k, reason in left.items())
            if silent:
                where = ", ".join(sorted({self.hosts[k] for k in silent}))
                return f"{_workers(silent)} ({where}) gave no answer"
        except RuntimeError:
            keeper = "the launcher" if _agent_has_store() else "worker 0"
            return f"{keeper}, which keeps what workers say of themselves, is gone"
        return ""

    def _left(self, others: list[int]) -> dict[int, str]:
        keys = {k: f"{self.name}/left/{k}" for k in others}
        return {
            k: self.store.get(key).decode() for k, key in keys.items() if self.store.check([key])
        }


class _Door:
    """Worker 0's part of a meeting: it proposes one to those who knocked until all confirm."""

    def __init__(self, notes: Notes) -> None:
        self.notes, self.numbers, self.name = notes, list[str](), ""

    def look(self, *, late: bool) -> None:
        """Propose a meeting when somebody new has knocked; open it when all are there."""
        store, size = self.notes.store, self.notes.size
        records = [self._knock(rank) for rank in range(size)]
        numbers = [record["is"] if record else "" for record in records]
        if numbers != self.numbers:
            self.numbers, self.name = numbers, uuid.uuid4().hex
            self._propose([record for record in records if record], all(numbers))
        if all(numbers) and store.check([f"{self.name}/here/{k}" for k in range(size)]):
            store.set(f"{self.name}/open", "")
        elif late:
            self._propose([], False, self.notes.absent(self.missing()))

    def _knock(self, rank: int) -> dict[str, Any] | None:
        key = f"knock/{rank}"
        there = self.notes.store.check([key])
        return dict(json.loads(self.notes.store.get(key))) if there else None

    def _propose(self, records: list[dict[str, Any]], all_there: bool, error: str = "") -> None:
        meeting = {"name": self.name, "numbers": self.numbers, "error": error, "hosts": []}
        if all_there:
            meeting |= {"error": unlike(records), "hosts": hosts_of(records)}
        self.notes.store.set("meeting", json.dumps(meeting))

    def missing(self) -> list[int]:
        """Who has not confirmed."""
        keys = {k: f"{self.name}/here/{k}" for k in range(self.notes.size)}
        return [k for k, key in keys.items() if k and not self.notes.store.check([key])]


def _first(reasons: dict[int, str]) -> dict[int, str]:
    """Those who left by themselves, not because another one had left; or else all."""
    own = {k: text for k, text in reasons.items() if not text.startswith(GroupError.__name__)}
    return own or reasons


def open_store(place: Place, timeout: float) -> Store:
    """The job's store: the launcher's own, or else worker 0's at MASTER_ADDR and MASTER_PORT."""
    host, port = os.environ["MASTER_ADDR"], _number("MASTER_PORT")
    if (host, port) in _stores:
        return _stores[host, port]
    _check_address(host, port)
    first = place.rank == 0 and not _agent_has_store()
    try:
        store = _within(
            timeout + _GRACE,
            partial(
                TCPStore,
                host,
                port,
                is_master=first,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout),
            ),
        )
    except RuntimeError as error:
        problem = (
            f"port {port} of {host} cannot be opened; another program may use it: set MASTER_PORT "
            "to a free one"
            if first
            else f"no answer from worker 0 at {host}:{port} within {timeout:g} s; see whether it "
            "was started, and whether MASTER_ADDR and MASTER_PORT are right and its port is free"
        )
        raise GroupError(
            f"worker {place.rank} of {place.size}: {problem} ({gist(str(error))})."
        ) from None
    _stores[host, port] = store
    return store


def _check_address(host: str, port: int) -> None:
    if not 0 < port < 65536:
        raise ValueError(f"MASTER_PORT={port}: expected a port, 1 to 65535.")
    try:
        socket.getaddrinfo(host or "?", port)
    except OSError as error:
        raise ValueError(
            f"MASTER_ADDR={host!r}: expected the name or address of worker 0's machine, and this "
            f"machine does not know it ({error})."
        ) from None


def _agent_has_store() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _within(seconds: float, make: Callable[[], Store]) -> Store:
    """Give up after so long: torch waits for ever where another program answers at the port."""
    made: list[Store] = []
    errors: list[RuntimeError] = []

    def body() -> None:
        try:
            made.append(make())
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(seconds)
    if made:
        return made[0]
    raise errors[0] if errors else RuntimeError("what answers there is not a worker")


def share_cores(local_size: int | None) -> None:
    """Give each of a machine's workers its part of the cores, unless the user chose otherwise."""
    if "OMP_NUM_THREADS" in os.environ or local_size is None:
        return
    usable: Callable[[int], Any] = getattr(
        os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1)
    )
    torch.set_num_threads(max(1, len(usable(0)) // local_size))


@contextlib.contextmanager
def interface(master: str) -> Iterator[None]:
    """Let gloo use the interface that leads to the other workers, unless the user named one."""
    name = None if "GLOO_SOCKET_IFNAME" in os.environ else interface_towards(master)
    if name is None:
        yield
        return
    os.environ["GLOO_SOCKET_IFNAME"] = name
    try:
        yield
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]


def record_of_this_worker() -> dict[str, Any]:
    """What a worker says of itself."""
    return {"codauc": __version__, "host": socket.gethostname(), "boot": _boot()}


def _boot() -> str:
    """What tells two machines of one name apart: containers often share a name."""
    try:
        network = os.readlink("/proc/self/ns/net")
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()[:13] + network
    except OSError:
        return ""


def hosts_of(records: list[dict[str, Any]]) -> list[str]:
    """A name for each worker's machine; equal names mean one machine."""
    machines = [(record["host"], record["boot"]) for record in records]
    names = [host for host, _ in dict.fromkeys(machines)]
    if len(set(names)) == len(names):
        return [host for host, _ in machines]
    order = list(dict.fromkeys(machines))
    return [f"{machine[0]}#{order.index(machine)}" for machine in machines]


def unlike(records: list[dict[str, Any]]) -> str:
    """What is wrong with a group of these workers."""
    first = records[0]["codauc"]
    for rank, record in enumerate(records):
        if record["codauc"] != first:
            return (
                f"worker {rank} ({record['host']}) runs codauc {record['codauc']}, worker 0 "
                f"({records[0]['host']}) {first}: expected one version; install the same on all"
            )
    return ""


def told(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}".strip().split("\n")[0][:300]


def gist(error: str) -> str:
    """The first sentence of torch's message, without the place in its source."""
    return re.sub(r"^\[[^]]*\]\s*", "", error.strip()).split("\n")[0].split(". ")[0]


def _workers(ranks: list[int]) -> str:
    return f"worker{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _number(name: str) -> int:
    text = os.environ[name]
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} in the environment: expected a whole number.") from None
