"""Who gets which samples."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from codauc.checks import known_arguments, whole
from codauc.data.seeds import generator


@known_arguments
def even_shards(count: int, workers: int, seed: int) -> list[Tensor]:
    """The indices 0..count-1, shuffled by `seed` and dealt out to `workers` shards.

    Shards are disjoint, together complete, and their sizes differ by at most one.

    >>> shards = even_shards(count=10, workers=3, seed=0)
    >>> [len(shard) for shard in shards], sorted(torch.cat(shards).tolist())
    ([4, 3, 3], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    workers = whole("workers", workers, least=1, remedy="use 1 for all data in one shard")
    seed = whole("seed", seed, least=0, remedy="use 0 if any seed will do")
    count = whole("count", count, least=1, remedy="it is the number of samples to share out")
    if count < workers:
        raise ValueError(
            f"count={count} with workers={workers}: expected at least one sample per worker; "
            f"use at most {count} workers."
        )
    source = generator(np.random.SeedSequence(seed, spawn_key=(2,)))
    parts = torch.randperm(count, generator=source).tensor_split(workers)
    # A view would carry every worker's indices along when a shard is saved or sent.
    return [part.clone() for part in parts]
