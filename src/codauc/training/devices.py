"""The device that "auto" stands for."""

from __future__ import annotations

import os

import torch

from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.ppdsg import PPDSG


def resolve_device(name: str, *, processes: bool) -> str:
    """`name`, or for "auto" cuda, mps or cpu: the first on which training works.

    With worker `processes`, each needs a GPU of its own for NCCL, and mps has no collectives.

    >>> resolve_device("cuda:1", processes=False)
    'cuda:1'
    """
    if name != "auto":
        return name
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if processes else 1
    if torch.cuda.is_available() and torch.cuda.device_count() >= here:
        return "cuda"
    if torch.backends.mps.is_available() and not processes and trains(torch.device("mps")):
        return "mps"
    return "cpu"


def trains(device: torch.device) -> bool:
    """Whether one float32 training step runs on the device; some lack operations it needs."""
    try:
        with torch.random.fork_rng(devices=[]):
            model = torch.nn.Linear(2, 1).to(device)
        loss = MinMaxAUCLoss(pos_ratio=0.5).to(device)
        optimizer = PPDSG(model, loss, lr=0.1, gamma=500.0)
        x = torch.ones(2, 2, device=device)
        loss(model(x).squeeze(1), torch.tensor([0, 1], device=device)).backward()
        optimizer.step()
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    return True
