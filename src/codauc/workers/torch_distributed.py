"""Workers in processes of their own, on one machine or many, over torch.distributed."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore, PrefixStore, Store  # type: ignore[attr-defined]

from codauc._internal.checks import known_arguments, real
from codauc.workers.agreement import gather_bytes
from codauc.workers.group import Call, Group, GroupError, Ledger, Pending, different
from codauc.workers.rendezvous import (
    Meeting,
    Place,
    choose_interface,
    gist,
    hosts_of,
    one_line,
    open_store,
    record_of_this_worker,
    share_cores,
    unlike,
)
from codauc.workers.timeouts import Patience

# newer torch has a public name for it and warns about the old one
_set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout

TIMEOUT = 300.0  # seconds; torch's own half an hour is too long to wait for a worker that is gone
_LONGEST = 1e7
_CALL = 160  # bytes in which a worker says which call it makes
_OTHER = "something else"  # of a worker that repeats a call, which is not what is expected here


class DistributedGroup(Group):
    """A worker's view of a torch process group; made by `distributed`.

    Leaving its `with` block, `close()` or the end of the process takes down what it set up.
    """

    apart = True

    def __init__(
        self,
        process_group: dist.ProcessGroup,
        hosts: list[str],
        timeout: float,
        meeting: Meeting | None = None,
        parent: DistributedGroup | None = None,
    ) -> None:
        self.process_group: Any = process_group  # None when it is over
        self.hosts, self.timeout = hosts, timeout
        self.rank, self.size = process_group.rank(), process_group.size()
        self._meeting, self._root = meeting, parent or self
        self.ledger = Ledger() if parent is None else parent.ledger
        self._owned = meeting is not None and parent is None
        self._broken = ""  # why no call can be made any more
        self._machine: DistributedGroup | None = None
        self.patience = Patience(timeout, timeout)
        self._limit = timeout  # of torch's, at this moment
        self._agreed: dict[str, str] = {}  # the last call of each kind, which all workers made
        everywhere = dist.get_process_group_ranks(self._root.process_group)
        members = dist.get_process_group_ranks(process_group)
        self._numbers = [everywhere.index(rank) for rank in members]  # among all workers
        if self._owned:
            atexit.register(self._at_exit)

    def start(self, call: Call) -> Pending:
        """Hand the collective to torch."""
        if self._root._broken:
            raise GroupError(f"this group is broken: {self._root._broken}")
        return _Work(self, call)

    def agree(self, call: Call) -> None:
        """See that all workers are about to make this call, unless it repeats the last of its kind.

        gloo does not: it takes a message that is too short as it is, and ends the process at one
        that is too long. What a run does again and again, its rounds, is compared once; so a round
        stays one collective.
        """
        mine = str(call)
        if self._agreed.get(call.kind) == mine or self.size == 1:
            return
        if error := different(self._calls(mine, call), self._numbers):
            self.break_up("its workers made different calls")
            raise GroupError(f"worker {self._root.rank} of {self._root.size}: {error}")
        self._agreed[call.kind] = mine

    def _calls(self, mine: str, call: Call) -> list[str]:
        """What each worker is about to call, as far as it says so.

        The texts travel by the collective that is about to be made: a worker who repeats a call,
        and so does not take part in this, meets it at once instead of waiting for ever.
        """
        text = mine.encode()[:_CALL].ljust(_CALL)
        record = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(call.tensor.device)
        rows = record.new_zeros((self.size, _CALL))
        rows[self.rank] = record
        name = call.name
        if name == "broadcast_":
            first = record if self.rank == 0 else torch.zeros_like(record)
            _begin(Call(name, call.kind, first, first), self.process_group).wait()
            if not _readable(first):
                return [_OTHER, *[mine] * (self.size - 1)]
            name = "gather"
        given = {"sum_": rows, "exchange": record.repeat(self.size, 1)}.get(name, record)
        _begin(Call(name, call.kind, given, rows), self.process_group).wait()
        return [_readable(row) or _OTHER for row in rows]

    def limit_waiting(self, least: float, most: float) -> None:
        """Wait for others by how long it took so far."""
        if self._owned:
            self.patience = Patience(least, most)

    def times(self) -> dict[str, float]:
        """How long calls took at most."""
        return self.patience.longest

    def be_patient(self, kind: str) -> None:
        """Let the collective that begins wait as long as one of its kind may."""
        before, self._limit = self._limit, self.patience.limit(kind)
        if self._limit != before:
            _set_timeout(timedelta(seconds=self._limit), self.process_group)

    def machine(self) -> Group:
        """The workers on the same host; when first called, a collective of theirs."""
        if self._machine is None:
            self.wait_for_flight()
            here = [k for k, host in enumerate(self.hosts) if host == self.hosts[self.rank]]
            everywhere = dist.get_process_group_ranks(self.process_group)
            group = dist.new_group(
                [everywhere[k] for k in here],
                timeout=timedelta(seconds=self.timeout),
                use_local_synchronization=True,
            )
            assert isinstance(group, dist.ProcessGroup)
            hosts = [self.hosts[k] for k in here]
            self._machine = DistributedGroup(group, hosts, self.timeout, self._meeting, self._root)
        return self._machine

    def close(self, reason: str = "returned") -> None:
        """Leave the group; workers that still wait for this one get the reason."""
        if self._owned and self._meeting is not None:
            self._owned = False
            atexit.unregister(self._at_exit)
            self._meeting.leave(reason)
            self.break_up("it was closed")

    def break_up(self, reason: str) -> None:
        """No call can be made any more; the connections close, so that others notice."""
        root = self._root
        root._broken = root._broken or reason
        if root._meeting is not None and dist.is_initialized():
            dist.destroy_process_group()
            # torch closes the connections when nobody holds the group any more
            root.process_group = root._machine = None

    def fail(self, error: str, call: Call) -> GroupError:
        """The error to raise for a collective that failed."""
        text = gist(error)
        self.break_up(f"{call} failed")
        cause = self._meeting.cause(str(call), self._numbers) if self._meeting is not None else ""
        reason = f"{cause} ({text})" if cause else text
        return GroupError(
            f"worker {self._root.rank} of {self._root.size} was left alone in {call}: {reason}. "
            "Every worker must take the same steps and stay to the end."
        )

    def __enter__(self) -> DistributedGroup:
        return self

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        self.close("returned" if error is None else one_line(error))

    def _at_exit(self) -> None:
        self.__exit__(None, getattr(sys, "last_value", None), None)


class _Work:
    """A collective in torch's hands."""

    def __init__(self, group: DistributedGroup, call: Call) -> None:
        self.group, self.call, self.end = group, call, 0.0
        group.ledger.stop_computing()
        self.start = time.perf_counter()
        with self._watched():
            group.be_patient(call.kind)
            group.agree(call)
            self.work = _begin(call, group.process_group)
        self.free = time.perf_counter()  # from now on this worker can compute
        group.ledger.resume_computing()

    def done(self) -> bool:
        """Whether torch says so; an error shows in `wait`."""
        if not self.end and self.work.is_completed():
            self.end = time.perf_counter()
        return self.end > 0

    def wait(self) -> None:
        """Wait for the end, and enter the call in the ledger."""
        ledger, stopped = self.group.ledger, time.perf_counter()
        ledger.stop_computing()
        with self._watched():
            self.work.wait()
        self.group.patience.took(self.call.kind)
        end = self.end or time.perf_counter()
        traffic = self.call.traffic(self.group.rank, self.group.size)
        ledger.add(self.call.kind, *traffic, end - self.start)
        ledger.of(self.call.kind).hidden += max(0.0, min(stopped, end) - self.free)
        ledger.resume_computing()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
            return
        except GroupError:  # of a call that the others do not make
            raise
        except RuntimeError as error:
            text = str(error)
            self.work = None
        except BaseException as error:  # Ctrl-C: the collective is interrupted in the middle
            self.work = None
            self.group.break_up(f"{type(error).__name__} in {self.call}")
            raise
        raise self.group.fail(text, self.call)


def _begin(call: Call, group: Any) -> Any:
    if call.name == "sum_":
        return dist.all_reduce(call.tensor, group=group, async_op=True)
    if call.name == "broadcast_":
        first = dist.get_global_rank(group, 0)
        return dist.broadcast(call.tensor, src=first, group=group, async_op=True)
    if call.name == "exchange":
        return dist.all_to_all_single(call.out, call.tensor, group=group, async_op=True)
    # newer torch has another name for it and warns about the old one
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return gather(call.out.view(-1), call.tensor.reshape(-1), group=group, async_op=True)


def _readable(record: Tensor) -> str:
    """The text in it, or nothing if it is something else."""
    text = bytes(record.tolist()).decode(errors="replace").strip()
    return text if text.isprintable() else ""


@known_arguments
def distributed(
    process_group: dist.ProcessGroup | None = None,
    *,
    timeout: float = TIMEOUT,
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
    timeout = seconds(timeout)
    if process_group is not None and not isinstance(process_group, dist.ProcessGroup):
        raise ValueError(
            f"process_group: got {type(process_group).__name__}, expected one that this process "
            "belongs to, of torch.distributed; leave it out to join what a launcher set up."
        )
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
    return _made_for(place, timeout, open_store(place, timeout), os.environ["MASTER_ADDR"])


def seconds(timeout: float) -> float:
    """A timeout that torch can keep."""
    return real("timeout", timeout, above=0, below=_LONGEST, remedy="give seconds, such as 300")


def on_this_machine(file: Path, timeout: float) -> DistributedGroup:
    """The group of all workers that `launch` started here; they meet in a file of the launch's own.

    A store in a file needs no port, and who may not enter its directory cannot change it.
    """
    place = Place.from_environment()
    assert place is not None
    store = FileStore(str(file))
    store.set_timeout(timedelta(seconds=timeout))
    return _made_for(place, timeout, store, "127.0.0.1")


def _made_for(place: Place, timeout: float, store: Store, master: str) -> DistributedGroup:
    share_cores(place.local_size)
    choose_interface(master)
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
    job = PrefixStore("codauc", store)
    meeting = Meeting(job, place.rank, place.size, timeout)
    # Keys of an earlier try or group must not be met again: torch would connect to the dead.
    fresh = PrefixStore(meeting.gather(), job)
    # This captures torch's default group while there is none; later it would hold ours, and its
    # connections might stay open when this worker leaves.
    importlib.import_module("torch.distributed.nn.functional")
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpu else "gloo",
            store=fresh,
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=timeout),
        )
    except RuntimeError as error:
        meeting.leave(one_line(error))
        raise GroupError(
            f"worker {place.rank} of {place.size}: no connection to all workers within "
            f"{timeout:g} s ({gist(str(error))}). They met at {master}, so see whether a firewall "
            "lets them reach each other, and name the interface to use in GLOO_SOCKET_IFNAME."
        ) from None
    group = dist.group.WORLD
    assert group is not None
    return DistributedGroup(group, meeting.hosts, timeout, meeting)


def _joined(process_group: dist.ProcessGroup, timeout: float) -> DistributedGroup:
    """A group that the program made itself: the workers introduce themselves by a collective."""
    group = DistributedGroup(process_group, [""] * process_group.size(), timeout)
    mine = json.dumps(record_of_this_worker()).encode()
    device = torch.device("cuda" if dist.get_backend(process_group) == "nccl" else "cpu")
    records = [json.loads(text) for text in gather_bytes(group, mine, "start", device)]
    if error := unlike(records):
        raise GroupError(f"worker {group.rank} of {group.size}: {error}")
    group.hosts = hosts_of(records)
    return group
