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
from torch import Tensor

from codauc.group import Ledger
from codauc.streams import random_state, seed_everything, set_random_state

R = TypeVar("R")


class _Aborted(BaseException):
    """Ends a worker because another one failed."""


class _Call(NamedTuple):
    name: str
    kind: str
    tensor: Tensor

    def shape(self) -> tuple[str, str, torch.Size, torch.dtype]:
        return self.name, self.kind, self.tensor.shape, self.tensor.dtype

    def __str__(self) -> str:
        return f"{self.name}({list(self.tensor.shape)} {self.tensor.dtype}) for {self.kind!r}"


class SimulatedGroup:
    """A worker's view of a simulation; made by `run`."""

    def __init__(self, simulation: _Simulation, rank: int) -> None:
        self.rank, self.size, self.ledger = rank, simulation.size, Ledger()
        self._simulation = simulation

    def sum_(self, tensor: Tensor, kind: str) -> None:
        """Sum in the order of ranks; accounted as a ring all-reduce: 2 (K-1)/K of the tensor."""
        self._simulation.meet(self.rank, _Call("sum_", kind, tensor))
        share = 2 * (self.size - 1) * tensor.nbytes // self.size
        self._account(kind, sent=share, received=share)

    def broadcast_(self, tensor: Tensor, kind: str) -> None:
        """Copy from worker 0, which sends the tensor to each of the others."""
        self._simulation.meet(self.rank, _Call("broadcast_", kind, tensor))
        first = self.rank == 0
        self._account(
            kind,
            sent=(self.size - 1) * tensor.nbytes if first else 0,
            received=0 if first else tensor.nbytes,
        )

    def gather(self, tensor: Tensor, kind: str) -> list[Tensor]:
        """All workers' tensors; accounted as a ring all-gather."""
        gathered = self._simulation.meet(self.rank, _Call("gather", kind, tensor))
        share = (self.size - 1) * tensor.nbytes
        self._account(kind, sent=share, received=share)
        return gathered

    def _account(self, kind: str, sent: int, received: int) -> None:
        self.ledger.add(
            kind, sent=sent, received=received, seconds=self._simulation.seconds / self.size
        )


class _Simulation:
    """Threads that pass a baton: exactly one worker runs at any time, in the order of ranks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.batons = [threading.Semaphore(0) for _ in range(size)]
        self.calls: list[_Call | None] = [None] * size
        self.ended = [False] * size
        self.failure: tuple[int, BaseException] | None = None
        self.gathered: list[list[Tensor]] = []
        self.seconds = 0.0
        self.running: int | None = None
        # Python 3.11 takes a thread whose join() was interrupted for dead, so events tell instead.
        self.over = [threading.Event() for _ in range(size)]

    def meet(self, rank: int, call: _Call) -> list[Tensor]:
        """Wait until every worker is here; the last one does the work for all."""
        self.calls[rank] = call
        if self._is_last(rank):
            self._perform()
        state = random_state()
        self._pass_on(rank)
        self._wait(rank)
        set_random_state(state)
        return self.gathered[rank]

    def _is_last(self, rank: int) -> bool:
        return all(self.ended[rank + 1 :])

    def _perform(self) -> None:
        calls = [call for call in self.calls if call is not None]
        first = next(k for k, call in enumerate(self.calls) if call is not None)
        for k, call in enumerate(self.calls):
            if call is None:
                raise RuntimeError(
                    f"worker {k} has returned while worker {first} waits in {calls[0]}: "
                    "every worker must take the same steps."
                )
            if call.shape() != calls[0].shape():
                raise RuntimeError(
                    f"worker {k} calls {call} while worker {first} calls {calls[0]}: every worker "
                    "must have the same model and take the same steps."
                )
        start = time.perf_counter()
        self.gathered = _collective(calls)
        self.seconds = time.perf_counter() - start
        self.calls = [None] * self.size

    def _pass_on(self, rank: int) -> None:
        """Hand the baton to the next worker that has not returned."""
        order = [(rank + step) % self.size for step in range(1, self.size + 1)]
        following = next((k for k in order if not self.ended[k]), None)
        if following is not None:
            self.batons[following].release()

    def _wait(self, rank: int) -> None:
        self.batons[rank].acquire()
        self.running = rank
        if self.failure is not None:
            raise _Aborted

    def work(self, rank: int, function: Callable[[SimulatedGroup], Any], seed: int) -> Any:
        """The body of a worker's thread."""
        try:
            self._wait(rank)
            seed_everything(seed, rank)
            result = function(SimulatedGroup(self, rank))
        except _Aborted:
            result = None
        except BaseException as error:
            result = None
            if self.failure is None:
                self.failure = (rank, error)
        self.ended[rank] = True
        if self.failure is None and self._is_last(rank) and any(self.calls):
            try:
                self._perform()
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


def run(function: Callable[[SimulatedGroup], R], workers: int, seed: int = 0) -> list[R]:
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
    simulation = _Simulation(workers)
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
                while not over.wait(
                    timeout=0.1
                ):  # in slices, so that an outer simulation can end it
                    pass
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
def _collective(calls: list[_Call]) -> list[list[Tensor]]:
    tensors = [call.tensor for call in calls]
    if calls[0].name == "gather":
        return [[tensor.clone() for tensor in tensors] for _ in tensors]
    if calls[0].name == "sum_":
        for tensor in tensors[1:]:
            tensors[0].add_(tensor)
    for tensor in tensors[1:]:
        tensor.copy_(tensors[0])
    return [[] for _ in tensors]
