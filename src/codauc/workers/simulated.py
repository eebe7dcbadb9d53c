"""K workers in one process, one at a time, handing over only where they communicate."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from codauc._internal.random_streams import random_state, seed_everything, set_random_state
from codauc.workers.group import Call, Done, Group, Ledger, Pending, different

R = TypeVar("R")


class _Aborted(BaseException):
    """Ends a worker because another one failed."""


class SimulatedGroup(Group):
    """A worker's view of a simulation; made by `run`."""

    def __init__(self, simulation: _Simulation, worker: int, members: range, machine: int) -> None:
        self.rank, self.size = members.index(worker), len(members)
        self.ledger = simulation.ledgers[worker]
        self._simulation, self._worker = simulation, worker
        self._members, self._machine = members, machine

    def start(self, call: Call) -> Pending:
        """Meet the other workers; all is over when they part."""
        self.ledger.stop_computing()
        self._simulation.meet(self._worker, _Waiting(call, self._members))
        sent, received = call.traffic(self.rank, self.size)
        seconds = self._simulation.seconds / self.size
        self.ledger.add(call.kind, sent=sent, received=received, seconds=seconds)
        self.ledger.resume_computing()
        return Done()

    def machine(self) -> Group:
        """The workers that `launch(..., machines=M)` put on one machine: neighbours by rank."""
        first = self._worker // self._machine * self._machine
        members = range(first, first + self._machine)
        return SimulatedGroup(self._simulation, self._worker, members, self._machine)


class _Waiting(NamedTuple):
    """A call of one worker, and who takes part in it."""

    call: Call
    members: range


class _Simulation:
    """Threads that pass a baton: exactly one worker runs at any time, in the order of ranks."""

    def __init__(self, size: int, machine: int) -> None:
        self.size, self.machine = size, machine
        self.batons = [threading.Semaphore(0) for _ in range(size)]
        self.ledgers = [Ledger() for _ in range(size)]
        self.waiting: list[_Waiting | None] = [None] * size
        self.ended = [False] * size
        self.failure: tuple[int, BaseException] | None = None
        self.seconds = 0.0
        self.running: int | None = None
        # Python 3.11 takes a thread whose join() was interrupted for dead, so events tell instead.
        self.over = [threading.Event() for _ in range(size)]

    def meet(self, worker: int, waiting: _Waiting) -> None:
        """Wait for every member; when nobody can continue, complete calls are carried out."""
        self.waiting[worker] = waiting
        state = random_state()
        self._pass_on(worker)
        self._wait(worker)
        set_random_state(state)

    def _pass_on(self, worker: int) -> None:
        """Hand the baton to the next worker that can continue."""
        if self.failure is None and not any(self._can_continue(k) for k in range(self.size)):
            self._perform_all()
            worker = -1  # all begin anew, in order
        order = [(worker + step) % self.size for step in range(1, self.size + 1)]
        able = self._can_continue if self.failure is None else lambda k: not self.ended[k]
        following = next((k for k in order if able(k)), None)
        if following is not None:
            self.batons[following].release()

    def _can_continue(self, worker: int) -> bool:
        return not self.ended[worker] and self.waiting[worker] is None

    def _perform_all(self) -> None:
        """Carry out every collective whose members are all there; raise if there is none."""
        waiting = {k: w for k, w in enumerate(self.waiting) if w is not None}
        complete = {
            w.members
            for w in waiting.values()
            if all(k in waiting and waiting[k].members == w.members for k in w.members)
        }
        if waiting and not complete:
            raise RuntimeError(self._stuck(waiting))
        start = time.perf_counter()
        for members in complete:
            _perform(members, [waiting[k].call for k in members])
            for k in members:
                self.waiting[k] = None
        self.seconds = time.perf_counter() - start

    def _stuck(self, waiting: dict[int, _Waiting]) -> str:
        first = min(waiting)
        members = waiting[first].members
        k = next(k for k in members if k not in waiting or waiting[k].members != members)
        does = "has returned" if k not in waiting else f"waits in {waiting[k].call} with others"
        return (
            f"worker {k} {does} while worker {first} waits in {waiting[first].call}: "
            "every worker must take the same steps."
        )

    def _wait(self, rank: int) -> None:
        self.batons[rank].acquire()
        self.running = rank
        if self.failure is not None:
            raise _Aborted

    def work(self, rank: int, function: Callable[[Group], Any], seed: int) -> Any:
        """The body of a worker's thread."""
        try:
            self._wait(rank)
            seed_everything(seed, rank)
            result = function(SimulatedGroup(self, rank, range(self.size), self.machine))
        except _Aborted:
            result = None
        except BaseException as error:
            result = None
            if self.failure is None:
                self.failure = (rank, error)
        self.ended[rank] = True
        try:
            self._pass_on(rank)
        except RuntimeError as error:
            self.failure = (rank, error)
            self._pass_on(rank)
        return result

    def stop(self, error: BaseException, threads: list[threading.Thread]) -> None:
        """End all workers, one after the other: the running one now, the others at their turn."""
        if self.failure is None:
            self.failure = (-1, error)
        if self.running is not None and not self.over[self.running].is_set():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(threads[self.running].ident or 0), ctypes.py_object(_Aborted)
            )


def run(function: Callable[[Group], R], workers: int, seed: int = 0, machines: int = 1) -> list[R]:
    """Call `function(group)` once for each of `workers`, and return the results by rank.

    Each worker has its own random streams, seeded by (seed, rank). Runs are deterministic. The
    first error of a worker ends all of them and is raised here with the worker's number.

    >>> def total(group):
    ...     x = torch.tensor([float(group.rank)])
    ...     group.sum_(x, "round")
    ...     return x.item()
    >>> run(total, workers=3)
    [3.0, 3.0, 3.0]
    """
    simulation = _Simulation(workers, workers // machines)
    results: list[Any] = [None] * workers

    settings = _thread_settings()

    def body(rank: int) -> None:
        try:
            with contextlib.ExitStack() as stack:
                for setting in settings:
                    stack.enter_context(setting())
                results[rank] = simulation.work(rank, function, seed)
        finally:
            simulation.over[rank].set()

    threads = [
        threading.Thread(
            target=contextvars.copy_context().run,
            args=(body, rank),
            name=f"codauc-worker-{rank}",
            daemon=True,
        )
        for rank in range(workers)
    ]
    outside = random_state()
    try:
        for thread in threads:
            thread.start()
        simulation.batons[0].release()
        _join(simulation, threads)
    finally:
        set_random_state(outside)
    if simulation.failure is not None:
        raise _numbered(simulation.failure, workers)
    return results


def _thread_settings() -> list[Callable[[], contextlib.AbstractContextManager[Any]]]:
    """What torch keeps for each thread, as the caller has it: gradients, device, autocast."""
    settings: list[Callable[[], contextlib.AbstractContextManager[Any]]] = [
        partial(torch.set_grad_enabled, torch.is_grad_enabled())
    ]
    if (device := torch.empty(0).device).type != "cpu":
        settings.append(lambda: device)
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            settings.append(partial(torch.autocast, kind, dtype=torch.get_autocast_dtype(kind)))
    return settings


def _join(simulation: _Simulation, threads: list[threading.Thread]) -> None:
    """Wait for all workers; whatever ends the waiting (Ctrl-C) ends the workers first."""
    while not all(over.is_set() for over in simulation.over):
        try:
            for over in simulation.over:
                while not over.wait(timeout=0.1):
                    pass  # in slices, so that an outer simulation can end it
        except BaseException as error:
            simulation.stop(error, threads)


def _numbered(failure: tuple[int, BaseException], workers: int) -> BaseException:
    """The error with the worker's number in its message, or else in a note."""
    rank, error = failure
    if rank < 0:
        return error
    number = f"worker {rank} of {workers}"
    if error.args and isinstance(error.args[0], str):
        error.args = (f"{number}: {error.args[0]}", *error.args[1:])
    if number not in str(error):
        error.add_note(f"raised by {number}")
    return error


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
