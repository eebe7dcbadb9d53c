"""Whether a saved state is of this run: the same settings, the same data, nothing missing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from codauc.data.dataset import DataSet, Part
from codauc.data.fingerprint import combined, total
from codauc.runs.checkpoints import Found
from codauc.runs.settings import RunSettings
from codauc.training.run_state import SavedRun
from codauc.workers.agreement import gather_bytes
from codauc.workers.group import Group, GroupError

_CPU = torch.device("cpu")
_FREE_TABLES = ("device", "safety")  # settings that may differ when a run is resumed
_FREE = (
    *("data.source", "data.test", "data.images"),
    *("communication.workers", "communication.simulate", "communication.timeout"),
)
_ANY_SHAPE = (  # parts of a state that differ from step to step
    *("tallies", "encoding", "under_way", "stage", "choice", "records", "notes", "times"),
)


def identity(opened: DataSet, group: Group) -> dict[str, Any]:
    """What identifies the data, whichever worker has which part of them.

    All inputs and labels of all parts count, each with its row's number in the source.
    """
    found: dict[str, Any] = {
        "positive classes": list(opened.positive),
        "shape of an image": list(opened.shape),
        "columns": []
        if opened.encoder is None
        else list(map(list, opened.encoder.kinds().items())),
    }
    parts = {"training": opened.train, "validation": opened.validation, "test": opened.test}
    mine: dict[str, int] = {}
    for title, part in parts.items():
        if part is not None:
            found[f"{title} samples"] = part.samples
            found[f"{title} positives"] = part.positives
            mine[f"{title} labels"] = _labels(part)
            mine[f"{title} inputs"] = part.fingerprint
    texts = gather_bytes(group, json.dumps(mine).encode(), "start", _CPU)
    return found | combined([json.loads(text) for text in texts])


def _labels(part: Part) -> int:
    """A number that any other label, or sample, would change; the same in any order."""
    if part.y is None or not len(part.rows):
        return 0
    return total(part.rows.numpy(), part.y.numpy().astype(np.uint64))


def check_same(saved: SavedRun, settings: RunSettings, data: Mapping[str, Any]) -> None:
    """Raise if a run was begun with other settings or on other data, and say what differs."""
    there, here = _fixed(saved.settings), _fixed(asdict(settings))
    _compare("", {"seed": there.get("seed")}, {"seed": settings.seed})  # which parts the data
    _compare("other data: ", saved.data, data)
    _compare("", there, here)


def _fixed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that must stay as they are when a run is resumed, by their full names."""
    found: dict[str, Any] = {}
    for table, values in json.loads(json.dumps(settings)).items():
        if table in _FREE_TABLES:
            continue
        if isinstance(values, dict):
            found |= {f"{table}.{name}": value for name, value in values.items()}
        else:
            found[table] = values
    return {name: value for name, value in found.items() if name not in _FREE}


def _compare(what: str, saved: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    for name in {**saved, **here}:
        if saved.get(name) != here.get(name):
            raise ValueError(
                f"{what}{name} is {_short(saved.get(name))} in the run that was saved, "
                f"{_short(here.get(name))} here: expected the same to resume it; use what that run "
                "had, or begin anew with overwrite=True."
            )


@contextmanager
def usable(found: Found) -> Iterator[None]:
    """Let whatever a state lacks, or has too much of, be one error that says what to do."""
    try:
        yield
    except (KeyError, TypeError, IndexError, AttributeError, AssertionError, RuntimeError) as error:
        if isinstance(error, GroupError):
            raise
        reason = f"{type(error).__name__}: {error}".split("\n")[0]
        raise ValueError(
            f"the checkpoint of step {found.number} cannot be used ({reason}): it was changed; "
            "remove it to resume from the one before it, or begin anew with overwrite=True."
        ) from error


def check_like(saved: Any, mine: Any, where: str) -> None:
    """Raise if a saved state lacks what a state of this run has, name by name."""
    if isinstance(mine, dict):
        if not isinstance(saved, dict):
            raise TypeError(f"{where} is no dict")
        for name in mine:
            if name not in saved:
                raise KeyError(f"{where}/{name}")
            if name not in _ANY_SHAPE:
                check_like(saved[name], mine[name], f"{where}/{name}")
        more = saved.keys() - mine.keys() - {"rest"}
        if more:
            raise KeyError(f"{where}/{min(more)} is too much")
    elif isinstance(mine, list | tuple) and mine:
        if not isinstance(saved, list | tuple) or len(saved) != len(mine):
            raise TypeError(f"{where} has another length")
        for index, (there, here) in enumerate(zip(saved, mine, strict=True)):
            check_like(there, here, f"{where}/{index}")
    elif isinstance(mine, Tensor) and (
        not isinstance(saved, Tensor) or (saved.shape, saved.dtype) != (mine.shape, mine.dtype)
    ):
        raise TypeError(f"{where} is of another kind")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
