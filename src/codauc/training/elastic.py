"""What torch's elastic launcher says in the environment, and how long workers wait under it."""

from __future__ import annotations

import multiprocessing
import os

import torch

from codauc.runs.directory import RunFolder
from codauc.workers.group import Group

_LEAST_WAIT, _MOST_WAIT = 10.0, 300.0  # seconds for another worker, once training has begun
_PATIENT_WAIT = 100.0  # where nobody would start the workers again


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else 0


def restarts() -> int:
    """How often the elastic launcher has started the workers again."""
    return _number("TORCHELASTIC_RESTART_COUNT")


def may_restart() -> bool:
    """Whether the workers would be started again if this one failed."""
    return _number("TORCHELASTIC_MAX_RESTARTS") > restarts()


def under_elastic() -> bool:
    """Whether torch's elastic launcher has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def launched_here() -> bool:
    """Whether `codauc.launch` has started it, as a process of this program."""
    return multiprocessing.parent_process() is not None


def limit_waiting(folder: RunFolder, group: Group, step: int) -> None:
    """Limit waiting for others by how long calls take; longer where a run made no progress."""
    stuck = torch.tensor([_without_progress(folder, step)])
    group.broadcast_(stuck, "checkpoint")  # worker 0's directory knows
    more = 2 ** min(int(stuck), 4)
    least = _LEAST_WAIT if may_restart() else _PATIENT_WAIT
    group.limit_waiting(more * least, more * _MOST_WAIT)


def _without_progress(folder: RunFolder, step: int) -> int:
    """How often in succession a run was already resumed at this step: its workers may be slow."""
    steps = [fault.get("step") for fault in folder.faults() if fault.get("event") == "resumed"]
    return next((i for i, earlier in enumerate(reversed(steps)) if earlier != step), len(steps))
