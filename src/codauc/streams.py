"""The global random streams of torch, numpy and Python: each worker has its own."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int, rank: int, *step: int) -> None:
    """Seed torch's, numpy's and Python's global streams for one worker, and a step."""
    streams = np.random.SeedSequence(seed, spawn_key=(rank, *step)).generate_state(3)
    torch.manual_seed(int(streams[0]))
    np.random.seed(int(streams[1]))
    random.seed(int(streams[2]))


def random_state() -> dict[str, Any]:
    """The position of the global random streams, as tensors and plain numbers."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), *rest],
        "python": random.getstate(),
    }


def set_random_state(state: dict[str, Any]) -> None:
    """Put the global random streams back to a saved position."""
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])
