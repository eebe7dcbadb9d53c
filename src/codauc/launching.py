"""Start workers: in this process (simulated), as processes, or where torchrun put this one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from codauc.checks import known_arguments, warn, whole
from codauc.group import Group, LocalGroup
from codauc.group.distributed import TIMEOUT, distributed, seconds
from codauc.group.simulated import run
from codauc.processes import run_processes
from codauc.streams import random_state, seed_everything, set_random_state

R = TypeVar("R")


@known_arguments
def launch(
    function: Callable[[Group], R],
    *,
    workers: int | None = None,
    simulate: bool = False,
    machines: int = 1,
    seed: int = 0,
    timeout: float = TIMEOUT,
    patient: bool = False,
    max_restarts: int = 0,
) -> list[R]:
    """Call `function(group)` once in every worker; return the results in the order of ranks.

    The K `workers` (default: 1) are processes of this machine, which share its cores; `function` is
    then defined at the top of a module, and the call stands under `if __name__ == "__main__":`.
    No worker waits for another longer than `timeout` seconds. Under torchrun the workers are those
    that torchrun started, on all its machines, and each gets a list with its own result alone; so
    it is with a `launch` inside a worker.

    `simulate=True` runs the K workers in this process, one at a time, handing over only where they
    communicate, as if on `machines` machines. Each worker, simulated or not, has its own random
    streams (seeded by `seed` and its rank); simulated runs are deterministic. The first error of a
    worker ends all of them and is raised with the worker's number; but up to `max_restarts` times
    all processes are started again first, and `function` goes on from what it has saved.
    `patient=True` leaves signals to `codauc.interrupts`, for functions that end when asked to.

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
    if simulate:
        if asked % machines:
            raise ValueError(
                f"machines={machines} with workers={asked}: expected equally many workers on each."
            )
        return run(function, asked, seed, machines) if asked > 1 else [_alone(function, seed)]
    if machines != 1:
        raise ValueError(
            f"machines={machines} without simulate=True: real machines are started by torchrun "
            "--nnodes."
        )
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return [_under_torchrun(function, workers, seed, timeout)]
    restarts = whole(
        "max_restarts", max_restarts, least=0, remedy="use 0 to end at the first error"
    )
    if asked == 1 and not restarts:
        return [_alone(function, seed)]
    return run_processes(function, asked, seed, timeout, patient=patient, max_restarts=restarts)


def _alone(function: Callable[[Group], R], seed: int) -> R:
    outside = random_state()
    try:
        seed_everything(seed, rank=0)
        return function(LocalGroup())
    finally:
        set_random_state(outside)


def _under_torchrun(
    function: Callable[[Group], R], workers: int | None, seed: int, timeout: float
) -> R:
    with distributed(timeout=timeout) as group:
        local = os.environ.get("LOCAL_WORLD_SIZE")
        if workers is not None and str(workers) not in (str(group.size), local) and not group.rank:
            warn(f"workers={workers}, but torchrun has started {group.size}: these are used.")
        seed_everything(seed, group.rank)
        return function(group)
