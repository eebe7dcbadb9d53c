"""How many threads a worker's arithmetic may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from codauc.data.dataset import DataSet
from codauc.runs.settings import RunSettings

_LARGE_BATCH = 512  # samples of a table from which on a step pays for several threads


@contextmanager
def own_threads(settings: RunSettings, opened: DataSet) -> Iterator[None]:
    """As many threads as the workers leave each other; one where steps are small, as of tables."""
    before, cores = torch.get_num_threads(), os.cpu_count() or 1
    workers = 1 if settings.communication.simulate else settings.communication.size
    large = bool(opened.shape) or settings.recipe.batch_size >= _LARGE_BATCH
    torch.set_num_threads(max(1, min(before, cores // workers)) if large else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
