"""Start workers: now in this process, simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from codauc.checks import known_arguments, whole
from codauc.group import Group, LocalGroup
from codauc.group.simulated import run
from codauc.streams import random_state, seed_everything, set_random_state

R = TypeVar("R")


@known_arguments
def launch(
    function: Callable[[Group], R], *, workers: int = 1, simulate: bool = False, seed: int = 0
) -> list[R]:
    """Call `function(group)` once in every worker; return the results in the order of ranks.

    `simulate=True` runs the K workers in this process, one at a time, handing over only where they
    communicate: each has its own model, data and random streams (seeded by `seed` and its rank),
    the run is deterministic, and an error is raised with the worker's number. One worker needs no
    simulation.

    >>> launch(lambda group: (group.rank, group.size), workers=2, simulate=True)
    [(0, 2), (1, 2)]
    """
    workers = whole("workers", workers, least=1, remedy="it is the number K of workers")
    seed = whole("seed", seed, least=0, remedy="any whole number gives a run of its own")
    if workers == 1:
        return [_alone(function, seed)]
    if not simulate:
        raise ValueError(
            f"workers={workers}, simulate=False: expected simulate=True for more than one worker; "
            "this version runs them in one process."
        )
    return run(function, workers, seed)


def _alone(function: Callable[[Group], R], seed: int) -> R:
    outside = random_state()
    try:
        seed_everything(seed, rank=0)
        return function(LocalGroup())
    finally:
        set_random_state(outside)
