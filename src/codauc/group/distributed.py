"""Workers in processes of their own, on one machine or many, over torch.distributed."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from codauc.checks import known_arguments, real
from codauc.group import Call, Group, GroupError, Ledger, Pending
from codauc.group.links import interface_towards
from codauc.version import __version__

TIMEOUT = 300.0  # seconds; torch's own half an hour is too long to wait for a worker that is gone
_GRACE = 3.0  # seconds in which survivors look for the reason of a failure
_RECORD = 512  # bytes in which a worker introduces itself to a group that others made

# What launchers call a worker's rank, the number of workers, and its rank on its machine.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", ""),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
)
_made = 0  # groups this process made: each has its own keys in the store
_stores: dict[tuple[str, int], Store] = {}  # kept to the end: others may still read them


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
                return cls(numbers[0], numbers[1], own, many)
        return None


class DistributedGroup(Group):
    """A worker's view of a torch process group; made by `distributed`.

    Leaving its `with` block, `close()` or the end of the process takes down what it set up.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup,
        hosts: list[str],
        timeout: float,
        notes: _Notes | None = None,
        parent: DistributedGroup | None = None,
    ) -> None:
        self.process_group: dist.ProcessGroup | None = process_group
        self.hosts, self.timeout = hosts, timeout
        self.rank, self.size = process_group.rank(), process_group.size()
        self.ledger = Ledger() if parent is None else parent.ledger
        self._notes, self._root = notes, parent or self
        self._owned = notes is not None and parent is None
        self._broken: str | None = None  # why no call can be made any more
        self._machine: DistributedGroup | None = None
        if self._owned:
            atexit.register(self._at_exit)

    def start(self, call: Call) -> Pending:
        """Hand the collective to torch."""
        if self._root._broken is not None:
            raise GroupError(f"this group is broken: {self._root._broken}")
        return _Work(self, call)

    def machine(self) -> Group:
        """The workers on the same host; when first called, a collective of theirs."""
        if self._machine is None:
            self.settle()
            assert self.process_group is not None
            mine = self.hosts[self.rank]
            everywhere = dist.get_process_group_ranks(self.process_group)
            ranks = [
                rank for rank, host in zip(everywhere, self.hosts, strict=True) if host == mine
            ]
            with _interface(os.environ.get("MASTER_ADDR", "")):
                group = dist.new_group(
                    ranks,
                    timeout=timedelta(seconds=self.timeout),
                    use_local_synchronization=True,
                )
            assert isinstance(group, dist.ProcessGroup)
            self._machine = DistributedGroup(
                group, [mine] * len(ranks), self.timeout, self._notes, parent=self._root
            )
        return self._machine

    def close(self, reason: str = "returned") -> None:
        """Leave the group; workers who still wait for this one are told the reason."""
        if not self._owned:
            return
        self._owned = False
        atexit.unregister(self._at_exit)
        if self._notes is not None:
            self._notes.leave(reason)
        self.break_up("it was closed")

    def break_up(self, reason: str) -> None:
        """No call can be made any more; the connections close, so that others notice."""
        root = self._root
        root._broken = root._broken or reason
        if root._notes is not None and dist.is_initialized():
            dist.destroy_process_group()
            # torch closes the connections when nobody holds the group any more
            root.process_group = root._machine = None

    def fail(self, error: str, call: Call) -> GroupError:
        """The error to raise for a collective that failed."""
        text = _gist(error)
        self.break_up(f"{call} failed")
        cause = self._notes.cause() if self._notes is not None else ""
        reason = f"{cause} ({text})" if cause else text
        return GroupError(
            f"worker {self._root.rank} of {self._root.size} was left alone in {call}: {reason}. "
            "Every worker must take the same steps and stay to the end."
        )

    def __enter__(self) -> DistributedGroup:
        return self

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        self.close("returned" if error is None else _told(error))

    def _at_exit(self) -> None:
        error = getattr(sys, "last_value", None)
        self.close("returned" if error is None else _told(error))


class _Work:
    """A collective in torch's hands."""

    def __init__(self, group: DistributedGroup, call: Call) -> None:
        self.group, self.call, self.end = group, call, 0.0
        group.ledger.stand_still()
        self.start = time.perf_counter()
        with self._watched():
            self.work = _begin(call, group.process_group)
        self.free = time.perf_counter()  # from now on this worker can compute
        group.ledger.go_on()

    def done(self) -> bool:
        """Whether torch says so; an error shows in `wait`."""
        if not self.end and self.work.is_completed():
            self.end = time.perf_counter()
        return self.end > 0

    def wait(self) -> None:
        """Stand still until the end, and enter the call in the ledger."""
        ledger, stopped = self.group.ledger, time.perf_counter()
        ledger.stand_still()
        with self._watched():
            self.work.wait()
        end = self.end or time.perf_counter()
        sent, received = self.call.traffic(self.group.rank, self.group.size)
        ledger.add(self.call.kind, sent=sent, received=received, seconds=end - self.start)
        ledger.of(self.call.kind).hidden += max(0.0, min(stopped, end) - self.free)
        ledger.go_on()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            text = str(error)
            self.work = None
        except BaseException as error:  # Ctrl-C: the collective is cut off in the middle
            self.work = None
            self.group.break_up(f"{type(error).__name__} in {self.call}")
            raise
        else:
            return
        raise self.group.fail(text, self.call)


def _begin(call: Call, group: dist.ProcessGroup | None) -> Any:
    assert group is not None
    if call.name == "sum_":
        return dist.all_reduce(call.tensor, group=group, async_op=True)
    if call.name == "broadcast_":
        first = dist.get_global_rank(group, 0)
        return dist.broadcast(call.tensor, src=first, group=group, async_op=True)
    if call.name == "exchange":
        return dist.all_to_all_single(call.out, call.tensor, group=group, async_op=True)
    # newer torch has another name for it and warns about the old one
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    out, mine = call.out.view(-1), call.tensor.reshape(-1)
    return gather(out, mine, group=group, async_op=True)


class _Notes:
    """What workers leave in the store for each other: who they are, and why they left."""

    def __init__(self, store: Store, rank: int, size: int, timeout: float) -> None:
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self.hosts: list[str] = []  # by rank

    def introduce(self) -> None:
        """Meet all workers and learn their hosts, or raise the same error on every worker."""
        self.store.set(f"here/{self.rank}", json.dumps(_record()))
        if self.rank == 0:
            self.store.set("verdict", json.dumps(self._verdict()))
        try:
            self.store.wait(["verdict"], timedelta(seconds=self.timeout + _GRACE))
        except RuntimeError:
            raise GroupError(
                f"worker {self.rank} of {self.size}: worker 0 did not arrive within "
                f"{self.timeout:g} s; see whether it was started, and whether it can reach "
                "MASTER_ADDR."
            ) from None
        verdict = json.loads(self.store.get("verdict"))
        if verdict["error"]:
            raise GroupError(f"worker {self.rank} of {self.size}: {verdict['error']}")
        self.hosts = list(verdict["hosts"])

    def _verdict(self) -> dict[str, Any]:
        deadline = time.monotonic() + self.timeout
        records: dict[int, dict[str, Any]] = {}
        for rank in range(self.size):
            left = max(0.001, deadline - time.monotonic())
            with contextlib.suppress(RuntimeError):
                self.store.wait([f"here/{rank}"], timedelta(seconds=left))
            if self.store.check([f"here/{rank}"]):
                records[rank] = json.loads(self.store.get(f"here/{rank}"))
        missing = [rank for rank in range(self.size) if rank not in records]
        if missing:
            return {
                "error": f"{_workers(missing)} did not arrive within {self.timeout:g} s; see "
                "whether they were started, and whether they can reach MASTER_ADDR"
            }
        return {"error": _unlike(list(records.values())), "hosts": _hosts(list(records.values()))}

    def leave(self, reason: str) -> None:
        """Say why this worker leaves."""
        with contextlib.suppress(RuntimeError):  # nobody may be there to read it
            self.store.set(f"left/{self.rank}", reason)

    def cause(self) -> str:
        """After a failure: who left and why, and who gives no sign of life."""
        try:
            self.store.set(f"stuck/{self.rank}", "")
            others = [k for k in range(self.size) if k != self.rank]
            deadline = time.monotonic() + _GRACE
            silent = others
            while silent and time.monotonic() < deadline and not self._left(others):
                silent = [k for k in silent if not self.store.check([f"stuck/{k}"])]
                time.sleep(0.05)
            if left := self._left(others):
                return "; ".join(f"worker {k} had left ({reason})" for k, reason in left.items())
            if silent:
                where = ", ".join(sorted({self.hosts[k] for k in silent}))
                return f"{_workers(silent)} ({where}) gave no answer"
        except RuntimeError:
            keeper = "the launcher" if _agent_has_store() else "worker 0"
            return f"{keeper}, which keeps what workers say of themselves, is gone"
        return ""

    def _left(self, others: list[int]) -> dict[int, str]:
        keys = {k: f"left/{k}" for k in others}
        return {
            k: self.store.get(key).decode() for k, key in keys.items() if self.store.check([key])
        }


@known_arguments
def distributed(
    process_group: dist.ProcessGroup | None = None,
    *,
    timeout: float = TIMEOUT,
    backend: str | None = None,
) -> DistributedGroup:
    """The group of all workers that torchrun (or a cluster) started, this process being one.

    Joins what the launcher set up; gloo carries the tensors of the CPU, and nccl those of the GPU
    `cuda:LOCAL_RANK`, where there is one. No call waits longer than `timeout` seconds for another
    worker. Workers of different versions of codauc, or who do not arrive, are an error on every
    worker. Use it as a context manager, or call `close()`, to leave the group when the work is
    done; the end of the process does it too.

    An existing `process_group` (or torch's default one, where the program has made it) is used as
    it is, with its own timeout, and left as it is.

        with codauc.distributed() as group:
            train(group)

    Threads for each process are set so that the workers of a machine share its cores, unless
    OMP_NUM_THREADS (torchrun sets it) says otherwise.
    """
    timeout = real("timeout", timeout, above=0, remedy="give seconds, such as 300")
    if process_group is None and dist.is_initialized():
        process_group = dist.group.WORLD
    if process_group is not None:
        return _joined(process_group, timeout)
    place = Place.from_environment()
    if place is None or "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
        raise ValueError(
            "distributed() found no launcher: expected RANK, WORLD_SIZE, MASTER_ADDR and "
            "MASTER_PORT in the environment; start the program with torchrun, or use "
            "codauc.launch(function, workers=K)."
        )
    return _made_for(place, timeout, backend)


def _made_for(place: Place, timeout: float, backend: str | None) -> DistributedGroup:
    global _made
    _made += 1
    share_cores(place.local_size)
    gpu = torch.cuda.is_available() and backend != "gloo"
    if gpu:
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    # Keys of an earlier try or group must not be met again: torch would connect to the dead.
    prefix = f"codauc/{again}/{_made}"
    store = PrefixStore(prefix, _store(place, timeout))
    notes = _Notes(store, place.rank, place.size, timeout)
    notes.introduce()
    try:
        with _interface(os.environ["MASTER_ADDR"]):
            dist.init_process_group(
                backend or ("cpu:gloo,cuda:nccl" if gpu else "gloo"),
                store=store,
                rank=place.rank,
                world_size=place.size,
                timeout=timedelta(seconds=timeout),
            )
    except RuntimeError as error:
        notes.leave(_told(error))
        raise GroupError(
            f"worker {place.rank} of {place.size}: no connection to all workers within "
            f"{timeout:g} s ({_gist(str(error))}). They met at MASTER_ADDR="
            f"{os.environ['MASTER_ADDR']}, so see whether a firewall lets them reach each other, "
            "and name the interface to use in GLOO_SOCKET_IFNAME."
        ) from None
    group = dist.group.WORLD
    assert group is not None
    return DistributedGroup(group, notes.hosts, timeout, notes)


def _store(place: Place, timeout: float) -> Store:
    host, port = os.environ["MASTER_ADDR"], _number("MASTER_PORT")
    if (host, port) in _stores:
        return _stores[host, port]
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
            f"worker {place.rank} of {place.size}: {problem} ({_gist(str(error))})."
        ) from None
    _stores[host, port] = store
    return store


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


def _joined(process_group: dist.ProcessGroup, timeout: float) -> DistributedGroup:
    """A group that the program made itself: the workers introduce themselves by a collective."""
    if process_group.rank() < 0:
        raise ValueError("process_group: expected one that this process belongs to.")
    group = DistributedGroup(process_group, [""] * process_group.size(), timeout)
    text = json.dumps(_record()).encode()[:_RECORD].ljust(_RECORD)
    device = "cpu" if dist.get_backend(process_group) != "nccl" else "cuda"
    mine = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
    records = [json.loads(bytes(row.tolist())) for row in group.gather(mine, "start")]
    if error := _unlike(records):
        raise GroupError(f"worker {group.rank} of {group.size}: {error}")
    group.hosts = _hosts(records)
    return group


def share_cores(local_size: int | None) -> None:
    """Give each of a machine's workers its part of the cores, unless the user chose otherwise."""
    if "OMP_NUM_THREADS" in os.environ or local_size is None:
        return
    usable: Callable[[int], Any] = getattr(
        os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1)
    )
    torch.set_num_threads(max(1, len(usable(0)) // local_size))


@contextlib.contextmanager
def _interface(master: str) -> Iterator[None]:
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


def _record() -> dict[str, Any]:
    return {"codauc": __version__, "host": socket.gethostname(), "boot": _boot()}


def _boot() -> str:
    """What tells two machines of one name apart: containers often share a name."""
    try:
        network = os.readlink("/proc/self/ns/net")
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()[:13] + network
    except OSError:
        return ""


def _hosts(records: list[dict[str, Any]]) -> list[str]:
    """A name for each worker's machine; equal names mean one machine."""
    machines = [(record["host"], record["boot"]) for record in records]
    names = [host for host, _ in dict.fromkeys(machines)]
    if len(set(names)) == len(names):
        return [host for host, _ in machines]
    order = list(dict.fromkeys(machines))
    return [f"{machine[0]}#{order.index(machine)}" for machine in machines]


def _unlike(records: list[dict[str, Any]]) -> str | None:
    """What is wrong with a group of these workers."""
    first = records[0]["codauc"]
    for rank, record in enumerate(records):
        if record["codauc"] != first:
            return (
                f"worker {rank} ({record['host']}) runs codauc {record['codauc']}, worker 0 "
                f"({records[0]['host']}) {first}: expected one version; install the same on all"
            )
    return None


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().split("\n")[0][:300]


def _gist(error: str) -> str:
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
