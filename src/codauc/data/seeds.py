"""Random generators that share nothing with torch's global one."""

from __future__ import annotations

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
