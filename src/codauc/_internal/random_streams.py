"""Random numbers: generators of their own, and the global streams of torch, numpy and Python."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def generator(seeds: np.random.SeedSequence) -> torch.Generator:
    """A torch generator that depends on `seeds` alone.

    `SeedSequence` mixes its numbers, so neighbouring seeds give unrelated streams.

    >>> first, second = (generator(np.random.SeedSequence([0, 1])) for _ in range(2))
    >>> bool((torch.randperm(9, generator=first) == torch.randperm(9, generator=second)).all())
    True
    """
    return torch.Generator().manual_seed(int(seeds.generate_state(1, np.uint64)[0]))


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
