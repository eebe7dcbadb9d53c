"""Who takes part, and how they talk: workers as threads, processes or machines.

`launch` starts them or joins those that torchrun started, and `distributed` only joins them; each
gets a `Group`, by which it communicates and whose `Ledger` says what that cost.
"""

from __future__ import annotations

from codauc.workers.group import Group, GroupError, Ledger, LocalGroup
from codauc.workers.launcher import launch
from codauc.workers.torch_distributed import distributed

__all__ = ["Group", "GroupError", "Ledger", "LocalGroup", "distributed", "launch"]
