"""K workers in one process, one at a time, handing over only where they communicate."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

import torch

from codauc._internal.random_streams import random_state, set_random_state
from codauc.workers.group import Call, Done, Group, Ledger, Pending, different, numbered

R = TypeVar("R")


class _Aborted(BaseException):
    """Ends a worker because another one failed."""


class SimulatedGroup(Group):
    """A worker's view of a simulation; made by `run`."""

    def __init__(
        self, simulation: _Simulation, worker: int, members: range, ledger: Ledger
    ) -> None:
        self.rank, self.size, self.ledger = members.index(worker), len(members), ledger
        self._simulation, self._worker, self._members = simulation, worker, members

    def start(self, call: Call) -> Pending:
        """Meet the other workers; all is over when they part."""
        self.ledger.stop_computing()
        self._simulation.meet(self._worker, _Waiting(call, self._members))
        seconds = self._simulation.seconds / self.size
        self.ledger.add(call.kind, *call.traffic(self.rank, self.size), seconds)
        self.ledger.resume_computing()
        return Done()

    def machine(self) -> Group:
        """The workers that `launch(..., machines=M)` put on one machine: neighbours by rank."""
        size = self._simulation.machine
        first = self._worker // size * size
        return SimulatedGroup(
            self._simulation, self._worker, range(first, first + size), self.ledger
        )


class _Waiting(NamedTuple):
    """A call of one worker, and who takes part in it."""

    call: Call
    members: range


class _Simulation:
    """Threads, of which one runs at a time: `schedule` gives them turns, in the order of ranks."""

    def __init__(self, function: Callable[[Group], Any], size: int, machine: int) -> None:
        self.function, self.machine = function, machine
        self.results: list[Any] = [None] * size
        self.failure: tuple[int, BaseException] | None = None
        self.seconds = 0.0  # that the last calls took
        self._waiting: dict[int, _Waiting] = {}
        self._running: int | None = None
        self._turns: list[SimpleQueue[None]] = [SimpleQueue() for _ in range(size)]
        self._parked: SimpleQueue[None] = SimpleQueue()  # the running one has stopped
        settings = _thread_settings()
        self._threads = {
            rank: threading.Thread(
                target=contextvars.copy_context().run,
                args=(self._work, rank, settings),
                name=f"codauc-worker-{rank}",
                daemon=True,
            )
            for rank in range(size)
        }
        self._living = set(self._threads)
        for thread in self._threads.values():
            thread.start()

    def _work(self, rank: int, settings: list[_Setting]) -> None:
        """The body of a worker's thread."""
        try:
            with contextlib.ExitStack() as stack:
                for setting in settings:
                    stack.enter_context(setting())
                self._wait_for_turn(rank)
                members = range(len(self.results))
                self.results[rank] = self.function(SimulatedGroup(self, rank, members, Ledger()))
        except _Aborted:
            pass
        except BaseException as error:
            if self.failure is None:
                self.failure = (rank, error)
        finally:
            self._living.discard(rank)
            self._park(rank)

    def meet(self, worker: int, waiting: _Waiting) -> None:
        """Wait until the call is carried out."""
        self._waiting[worker] = waiting
        state = random_state()
        self._park(worker)
        self._wait_for_turn(worker)
        set_random_state(state)

    def _park(self, worker: int) -> None:
        while not self._turns[worker].empty():  # an interrupt may have given it a second one
            self._turns[worker].get()
        self._running = None
        self._parked.put(None)

    def _wait_for_turn(self, worker: int) -> None:
        self._turns[worker].get()
        if self.failure is not None:
            rank, error = self.failure
            raise error if rank == worker else _Aborted

    def schedule(self) -> None:
        """Let the workers run until all have ended; call it again after `stop`."""
        interrupted = self._running
        if interrupted is not None:
            self._run(interrupted)
        while self._living:
            able = [k for k in sorted(self._living) if self.failure or k not in self._waiting]
            if not able:
                self._perform_all()
            for worker in able:
                self._run(worker)
        for thread in self._threads.values():
            thread.join()

    def _run(self, worker: int) -> None:
        self._running = worker
        self._turns[worker].put(None)
        while self._running is not None and self._threads[worker].is_alive():
            with contextlib.suppress(Empty):
                self._parked.get(timeout=0.1)  # in slices, so that an outer simulation can end it
        if self._running is not None:  # ended by an interrupt before it could say so
            self._living.discard(worker)
            self._running = None

    def stop(self, error: BaseException) -> None:
        """End all workers, one after the other: the running one now, the others at their turn."""
        if self.failure is None:
            self.failure = (-1, error)
        if self._running is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._threads[self._running].ident or 0), ctypes.py_object(_Aborted)
            )

    def _perform_all(self) -> None:
        """Carry out every call whose members are all there, or fail where there is none."""
        waiting = self._waiting
        complete = {
            w.members
            for w in waiting.values()
            if all(k in waiting and waiting[k].members == w.members for k in w.members)
        }
        start = time.perf_counter()
        try:
            if not complete:
                raise RuntimeError(self._stuck())
            for members in complete:
                _perform(members, [waiting.pop(k).call for k in members])
        except Exception as error:  # raised where a worker made the call
            self.failure = (max(self._living), error)
        self.seconds = time.perf_counter() - start

    def _stuck(self) -> str:
        waiting = self._waiting
        first = min(waiting)
        members = waiting[first].members
        k = next(k for k in members if k not in waiting or waiting[k].members != members)
        does = "has returned" if k not in waiting else f"waits in {waiting[k].call} with others"
        return (
            f"worker {k} {does} while worker {first} waits in {waiting[first].call}: "
            "every worker must take the same steps."
        )


def run(function: Callable[[Group], R], workers: int, machines: int = 1) -> list[R]:
    """Call `function(group)` once for each of `workers`, and return the results by rank.

    Runs are deterministic. The first error of a worker ends all of them and is raised here with the
    worker's number; so does whatever interrupts the waiting for them (Ctrl-C).

    >>> def total(group):
    ...     x = torch.tensor([float(group.rank)])
    ...     group.sum_(x, "round")
    ...     return x.item()
    >>> run(total, workers=3)
    [3.0, 3.0, 3.0]
    """
    outside = random_state()
    simulation = _Simulation(function, workers, workers // machines)
    while True:
        try:
            simulation.schedule()
            break
        except BaseException as error:
            simulation.stop(error)
    set_random_state(outside)
    if simulation.failure is not None:
        rank, cause = simulation.failure
        raise cause if rank < 0 else numbered(cause, rank, workers)
    return simulation.results


_Setting = Callable[[], contextlib.AbstractContextManager[Any]]


def _thread_settings() -> list[_Setting]:
    """What torch keeps for each thread, as the caller has it: gradients, device, autocast."""
    settings: list[_Setting] = [partial(torch.set_grad_enabled, torch.is_grad_enabled())]
    if (device := torch.empty(0).device).type != "cpu":
        settings.append(lambda: device)
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            settings.append(partial(torch.autocast, kind, dtype=torch.get_autocast_dtype(kind)))
    return settings


@torch.no_grad()
def _perform(members: range, calls: list[Call]) -> None:
    if error := different([str(call) for call in calls], members):
        raise RuntimeError(error)
    given = [call.tensor for call in calls]
    if calls[0].name == "sum_":
        for tensor in given[1:]:
            given[0].add_(tensor)
    for k, call in enumerate(calls):
        if call.name == "gather":
            torch.stack(given, out=call.out.view(len(given), *call.tensor.shape))
        elif call.name == "exchange":
            torch.stack([tensor[k] for tensor in given], out=call.out)
        elif k:
            call.out.copy_(given[0])
