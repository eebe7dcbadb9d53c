"""How workers find each other: where a launcher put them, and what each publishes of itself."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from codauc.version import __version__
from codauc.workers.group import GroupError, different

_GRACE = 3.0  # seconds in which survivors search for the reason of a failure
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface
_PAUSE = 0.02  # seconds between two reads of the store
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
                many = _number(local_size) if local_size in os.environ else None
                place = cls(_number(rank), _number(size), _number(local, "0"), many)
                if not 0 <= place.rank < place.size:
                    raise ValueError(
                        f"{rank}={place.rank} and {size}={place.size} in the environment: expected "
                        "a rank from 0 to one less than the number of workers."
                    )
                return place
        return None


class Meeting:
    """What workers leave in a store for each other: who they are, and why they left.

    A store may outlive workers: torchrun keeps one over restarts. So every meeting has a new name,
    which worker 0 announces, and a worker enters it with a new number, which worker 0 reads back.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: float) -> None:
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self.name = uuid.uuid4().hex
        self.hosts: list[str] = []  # by rank

    def gather(self) -> str:
        """Wait for all workers, learn their hosts, return the meeting's name.

        Or raise the same error on every worker: one is missing, or has another version.
        """
        mine = {**record_of_this_worker(), "number": self.name}
        found = self._open(mine) if self.rank == 0 else self._enter(mine)
        if found["error"]:
            raise GroupError(f"worker {self.rank} of {self.size}: {found['error']}.")
        self.hosts = list(found["hosts"])
        return self.name

    def _open(self, mine: dict[str, Any]) -> dict[str, Any]:
        """Worker 0 announces the meeting and opens it when all have entered, or time is over."""
        self.store.set("meeting", self.name)
        keys = {k: f"{self.name}/{k}" for k in range(1, self.size)}
        deadline = time.monotonic() + self.timeout
        while missing := [k for k, key in keys.items() if not self.store.check([key])]:
            if time.monotonic() > deadline:
                break
            time.sleep(_PAUSE)
        there = [k for k in keys if k not in missing]
        records = [mine, *(json.loads(self.store.get(keys[k])) for k in there)]
        found = {
            "numbers": [record["number"] for record in records],
            "hosts": hosts_of(records),
            "error": self._absent(missing) if missing else unlike(records),
        }
        self.store.set(f"{self.name}/open", json.dumps(found))
        if found["error"] and there:  # this process may keep the store: the others read it first
            with contextlib.suppress(RuntimeError):
                self.store.wait([f"{self.name}/read/{k}" for k in there], timedelta(seconds=_GRACE))
        return found

    def _enter(self, mine: dict[str, Any]) -> dict[str, Any]:
        """Another worker enters the meeting that worker 0 announces, and waits until it is open."""
        entered, deadline = "", time.monotonic() + self.timeout + _GRACE
        while time.monotonic() < deadline:
            if self.store.check(["meeting"]):
                self.name = self.store.get("meeting").decode()
                if self.name != entered:
                    entered = self.name
                    self.store.set(f"{entered}/{self.rank}", json.dumps(mine))
                if self.store.check([f"{entered}/open"]):
                    found = dict(json.loads(self.store.get(f"{entered}/open")))
                    if mine["number"] in found["numbers"]:  # else it is one of an earlier try
                        self.store.set(f"{entered}/read/{self.rank}", "")
                        return found
            time.sleep(_PAUSE)
        return {"error": self._absent([0])}

    def _absent(self, ranks: list[int]) -> str:
        them = "it was started, and whether it" if len(ranks) == 1 else "they were started and"
        return (
            f"{_workers(ranks)} did not arrive within {self.timeout:g} s; see whether {them} can "
            "reach MASTER_ADDR"
        )

    def leave(self, reason: str) -> None:
        """Say why this worker leaves."""
        with contextlib.suppress(RuntimeError):  # nobody may be there to read it
            self.store.set(f"{self.name}/left/{self.rank}", reason)

    def cause(self, call: str, members: list[int]) -> str:
        """After a call of `members` failed: who left and why, is silent, or made another call."""
        try:
            self.store.set(f"{self.name}/stuck/{self.rank}", call)
            silent = others = [k for k in range(self.size) if k != self.rank]
            deadline = time.monotonic() + _GRACE
            while silent and time.monotonic() < deadline and not self._left(others):
                silent = [k for k in silent if not self.store.check([f"{self.name}/stuck/{k}"])]
                time.sleep(_PAUSE)
            if left := self._left(others):
                return "; ".join(f"worker {k} had left ({reason})" for k, reason in left.items())
            if silent:
                where = ", ".join(sorted({self.hosts[k] for k in silent}))
                return f"{_workers(silent)} ({where}) gave no answer"
            calls = [self.store.get(f"{self.name}/stuck/{k}").decode() for k in members]
            return different(calls, members).removesuffix(".")
        except RuntimeError:
            keeper = "the launcher" if _agent_has_store() else "worker 0"
            return f"{keeper}, which keeps the store, is gone"

    def _left(self, others: list[int]) -> dict[int, str]:
        """Why workers left; only those who did not leave because of another, if there are any."""
        keys = {k: f"{self.name}/left/{k}" for k in others}
        reasons = {
            k: self.store.get(key).decode() for k, key in keys.items() if self.store.check([key])
        }
        own = {k: text for k, text in reasons.items() if not text.startswith(GroupError.__name__)}
        return own or reasons


def open_store(place: Place, timeout: float) -> Store:
    """The job's store: the launcher's own, or else worker 0's at MASTER_ADDR and MASTER_PORT."""
    host, port = os.environ["MASTER_ADDR"], _number("MASTER_PORT")
    if (host, port) in _stores:
        return _stores[host, port]
    _check_address(host, port)
    first = place.rank == 0 and not _agent_has_store()
    wait = timedelta(seconds=timeout)
    try:
        store = _within(
            timeout + 3 * _GRACE,  # torch may be late, and aborts if the process ends meanwhile
            lambda: TCPStore(host, port, is_master=first, wait_for_workers=False, timeout=wait),
        )
    except (RuntimeError, TimeoutError) as error:
        problem = (
            f"port {port} of {host} cannot be opened; another program may use it: set MASTER_PORT "
            "to a free one"
            if first
            else f"no answer from worker 0 at {host}:{port} within {timeout:g} s; see whether it "
            "was started, and whether MASTER_ADDR and MASTER_PORT are right and its port is free"
        )
        reason = gist(str(error)) or "what answers there is not a worker"
        raise GroupError(f"worker {place.rank} of {place.size}: {problem} ({reason}).") from None
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
    made: Future[Store] = Future()

    def body() -> None:
        try:
            made.set_result(make())
        except Exception as error:
            made.set_exception(error)

    threading.Thread(target=body, daemon=True).start()
    return made.result(seconds)


def share_cores(local_size: int | None) -> None:
    """Give each of a machine's workers its part of the cores, unless the user chose otherwise."""
    if "OMP_NUM_THREADS" not in os.environ and local_size is not None:
        affinity = getattr(os, "sched_getaffinity", None)
        cores = len(affinity(0)) if affinity else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // local_size))


def choose_interface(master: str) -> None:
    """Let gloo use the interface that leads to the other workers, unless the user named one."""
    if (name := interface_towards(master)) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def interface_towards(host: str) -> str | None:
    """The interface with the address from which this machine reaches `host`, or None if unknown.

    >>> interface_towards("no.such.host.invalid") is None
    True
    """
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing: it only asks for the route
        mine = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # one without an address
                request = struct.pack("256s", name.encode())
                if fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24] == mine:
                    return name
    return None


def loopback() -> str:
    """The interface whose addresses no other machine can reach.

    >>> loopback().startswith("lo")
    True
    """
    for _, name in socket.if_nameindex():
        if name in ("lo", "lo0"):
            return name
    raise GroupError(
        "no loopback interface: expected one, over which the workers of this machine can reach "
        "each other and nobody else; bring it up (ip link set lo up), or use simulate=True."
    )


def record_of_this_worker() -> dict[str, Any]:
    """What a worker publishes of itself."""
    return {"codauc": __version__, "host": socket.gethostname(), "boot": _boot()}


def _boot() -> str:
    """What differs between two machines of one name: containers often share a name."""
    try:
        network = os.readlink("/proc/self/ns/net")
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()[:13] + network
    except OSError:
        return ""


def hosts_of(records: list[dict[str, Any]]) -> list[str]:
    """A name for each worker's machine; equal names mean one machine."""
    machines = [(record["host"], record["boot"]) for record in records]
    order = list(dict.fromkeys(machines))
    unique = len({host for host, _ in order}) == len(order)
    return [each[0] if unique else f"{each[0]}#{order.index(each)}" for each in machines]


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


def one_line(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}".strip().split("\n")[0][:300]


def gist(error: str) -> str:
    """The first sentence of torch's message, without the place in its source."""
    return re.sub(r"^\[[^]]*\]\s*", "", error.strip()).split("\n")[0].split(". ")[0]


def _workers(ranks: list[int]) -> str:
    return f"worker{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _number(name: str, default: str = "") -> int:
    text = os.environ.get(name, default)
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} in the environment: expected a whole number.") from None
