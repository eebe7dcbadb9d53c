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
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from codauc.checks import known_arguments, real
from codauc.group import Call, Group, GroupError, Ledger, Pending
from codauc.group.patience import Patience
from codauc.group.rendezvous import (
    Notes,
    Place,
    gist,
    hosts_of,
    interface,
    open_store,
    record_of_this_worker,
    share_cores,
    told,
    unlike,
)

# newer torch has a public name for it and warns about the old one
_set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout

TIMEOUT = 300.0  # seconds; torch's own half an hour is too long to wait for a worker that is gone
_LONGEST = 1e7
_RECORD = 512  # bytes in which a worker introduces itself to a group that others made


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
        notes: Notes | None = None,
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
        self._patience: Patience | None = None
        self._limit = timeout  # of torch's, at this moment
        if self._owned:
            atexit.register(self._at_exit)

    def start(self, call: Call) -> Pending:
        """Hand the collective to torch."""
        if self._root._broken is not None:
            raise GroupError(f"this group is broken: {self._root._broken}")
        return _Work(self, call)

    def limit_waiting(self, least: float, most: float) -> None:
        """Wait for others by how long it took so far."""
        if self._owned:
            self._patience = Patience(least, most)

    def times(self) -> dict[str, float]:
        """How long calls took at most."""
        return {} if self._patience is None else self._patience.longest

    def be_patient(self, kind: str) -> None:
        """Let the collective that begins wait as long as one of its kind may."""
        if self._patience is None:
            return
        limit = self._patience.limit(kind)
        if limit != self._limit:
            self._limit = limit
            _set_timeout(timedelta(seconds=limit), self.process_group)

    def took(self, kind: str) -> None:
        """A collective is over."""
        if self._patience is not None:
            self._patience.took(kind)

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
            with interface(os.environ.get("MASTER_ADDR", "")):
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
        text = gist(error)
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
        self.close("returned" if error is None else told(error))

    def _at_exit(self) -> None:
        error = getattr(sys, "last_value", None)
        self.close("returned" if error is None else told(error))


class _Work:
    """A collective in torch's hands."""

    def __init__(self, group: DistributedGroup, call: Call) -> None:
        self.group, self.call, self.end = group, call, 0.0
        group.ledger.stand_still()
        self.start = time.perf_counter()
        with self._watched():
            group.be_patient(call.kind)
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
        self.group.took(self.call.kind)
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
    return _made_for(place, timeout)


def seconds(timeout: float) -> float:
    """A timeout that torch can keep."""
    remedy = "give seconds, such as 300"
    timeout = real("timeout", timeout, above=0, infinite=True, remedy=remedy)
    if timeout > _LONGEST:
        raise ValueError(f"timeout={timeout:g}: expected at most {_LONGEST:g} seconds; {remedy}.")
    return timeout


def _made_for(place: Place, timeout: float) -> DistributedGroup:
    share_cores(place.local_size)
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
    job = PrefixStore("codauc", open_store(place, timeout))
    notes = Notes(job, place.rank, place.size, timeout)
    # Keys of an earlier try or group must not be met again: torch would connect to the dead.
    store = PrefixStore(notes.introduce(), job)
    # This captures torch's default group while there is none; later it would hold ours, and its
    # connections would stay open when this worker leaves.
    importlib.import_module("torch._dynamo")
    try:
        with interface(os.environ["MASTER_ADDR"]):
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if gpu else "gloo",
                store=store,
                rank=place.rank,
                world_size=place.size,
                timeout=timedelta(seconds=timeout),
            )
    except RuntimeError as error:
        notes.leave(told(error))
        raise GroupError(
            f"worker {place.rank} of {place.size}: no connection to all workers within "
            f"{timeout:g} s ({gist(str(error))}). They met at MASTER_ADDR="
            f"{os.environ['MASTER_ADDR']}, so see whether a firewall lets them reach each other, "
            "and name the interface to use in GLOO_SOCKET_IFNAME."
        ) from None
    group = dist.group.WORLD
    assert group is not None
    return DistributedGroup(group, notes.hosts, timeout, notes)


def _joined(process_group: dist.ProcessGroup, timeout: float) -> DistributedGroup:
    """A group that the program made itself: the workers introduce themselves by a collective."""
    group = DistributedGroup(process_group, [""] * process_group.size(), timeout)
    text = json.dumps(record_of_this_worker()).encode()[:_RECORD].ljust(_RECORD)
    device = "cpu" if dist.get_backend(process_group) != "nccl" else "cuda"
    mine = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
    records = [json.loads(bytes(row.tolist())) for row in group.gather(mine, "start")]
    if error := unlike(records):
        raise GroupError(f"worker {group.rank} of {group.size}: {error}")
    group.hosts = hosts_of(records)
    return group
