"""The global random streams of torch, numpy and Python: each worker has its own."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int, rank: int) -> None:
    """Seed torch's, numpy's and Python's global streams for one worker."""
    streams = np.random.SeedSequence(seed, spawn_key=(rank,)).generate_state(3)
    torch.manual_seed(int(streams[0]))
    np.random.seed(int(streams[1]))
    random.seed(int(streams[2]))


def random_state() -> tuple[Any, ...]:
    """The position of the global random streams."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return torch.get_rng_state(), np.random.get_state(), random.getstate(), cuda


def set_random_state(state: tuple[Any, ...]) -> None:
    """Put the global random streams back to a saved position."""
    torch.set_rng_state(state[0])
    np.random.set_state(state[1])
    random.setstate(state[2])
    if state[3]:
        torch.cuda.set_rng_state_all(state[3])
