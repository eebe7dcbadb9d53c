"""Start workers: in this process (simulated), as processes, or where torchrun put this one."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import TypeVar

from codauc._internal.checks import known_arguments, warn, whole
from codauc._internal.random_streams import random_state, seed_everything, set_random_state
from codauc.workers.group import Group, LocalGroup
from codauc.workers.processes import check_can_be_sent, run_processes
from codauc.workers.signals import Requests
from codauc.workers.simulated import run
from codauc.workers.torch_distributed import TIMEOUT, distributed, seconds

R = TypeVar("R")

_PROCESSES = 64  # of one launch, on a machine of few cores; each takes 200 MB or more
_is_worker: ContextVar[bool] = ContextVar("is_worker", default=False)


@known_arguments
def launch(
    function: Callable[[Group], R],
    *,
    workers: int | None = None,
    simulate: bool = False,
    machines: int = 1,
    seed: int = 0,
    timeout: float = TIMEOUT,
    requests: Requests | None = None,
    max_restarts: int = 0,
) -> list[R]:
    """Call `function(group)` once in every worker; return the results in the order of ranks.

    Workers are processes of this machine, which share its cores, unless `simulate` is set. Under
    torchrun they are those that torchrun started, on all its machines. Inside a worker only
    `simulate=True` is possible.

    Args:
        function: what each worker does. Processes need one that is defined at the top of a module,
            and the call of `launch` under `if __name__ == "__main__":`.
        workers: their number K, 1 by default; under torchrun it is torchrun's.
        simulate: run all workers in this process, one at a time, handing over only where they
            communicate. Such runs are deterministic.
        machines: the number of machines on which simulated workers seem to be.
        seed: each worker has its own random streams, seeded by this and its rank.
        timeout: the seconds after which a worker no longer waits for another.
        requests: what handles signals here and in the workers; `function` polls it.
        max_restarts: how often all processes are started again after an error of one, so that
            `function` resumes from what it has saved.

    Returns:
        The results by rank; under torchrun only the process's own.

    Raises:
        Exception: the first error of a worker, with its number. It ends all of them.

    >>> launch(lambda group: (group.rank, group.size), workers=2, simulate=True)
    [(0, 2), (1, 2)]
    """
    asked = 1 if workers is None else workers
    asked = whole("workers", asked, least=1, remedy="it is the number K of workers")
    seed = whole("seed", seed, least=0, remedy="any whole number gives a run of its own")
    timeout = seconds(timeout)
    if not callable(function):
        raise ValueError(f"function={function!r}: expected a function of a group; see the example.")
    if not isinstance(simulate, bool):
        raise ValueError(f"simulate={simulate!r}: expected True or False.")
    machines = whole("machines", machines, least=1, remedy="use 1 for a single machine")
    if simulate and asked % machines:
        raise ValueError(
            f"machines={machines} with workers={asked}: expected equally many workers on each."
        )
    if not simulate and machines != 1:
        raise ValueError(
            f"machines={machines} without simulate=True: real machines are started by torchrun "
            "--nnodes."
        )
    restarts = whole("max_restarts", max_restarts, least=0, remedy="use 0 to end at the first one")
    work = partial(_work, function, seed)
    if simulate:
        return _alone(work) if asked == 1 else run(work, asked, machines)
    if _is_worker.get():
        raise RuntimeError(
            "launch() was called inside a worker of another launch(): expected one launch at a "
            "time; work with the group that the function was given, or use simulate=True, whose "
            "workers are this process's own."
        )
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return [_under_torchrun(work, workers, timeout)]
    if asked == 1 and not restarts:
        return _alone(work)
    _check_room(asked)
    check_can_be_sent(function)
    return run_processes(work, asked, timeout, requests=requests, max_restarts=restarts)


def _work(function: Callable[[Group], R], seed: int, group: Group) -> R:
    """What each worker does, wherever it runs."""
    token = _is_worker.set(group.size > 1)
    try:
        seed_everything(seed, group.rank)
        return function(group)
    finally:
        _is_worker.reset(token)


def _alone(work: Callable[[Group], R]) -> list[R]:
    outside = random_state()
    try:
        return [work(LocalGroup())]
    finally:
        set_random_state(outside)


def _check_room(workers: int) -> None:
    cores = os.cpu_count() or 1
    if workers > (most := max(_PROCESSES, 4 * cores)):
        raise ValueError(
            f"workers={workers}: expected at most {most} processes on this machine of {cores} "
            "cores; use simulate=True for many workers in one process."
        )


def _under_torchrun(work: Callable[[Group], R], workers: int | None, timeout: float) -> R:
    with distributed(timeout=timeout) as group:
        local = os.environ.get("LOCAL_WORLD_SIZE")
        if workers is not None and str(workers) not in (str(group.size), local) and not group.rank:
            warn(f"workers={workers}, but torchrun has started {group.size}: these are used.")
        return work(group)
