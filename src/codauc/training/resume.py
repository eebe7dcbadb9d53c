"""Whether a saved state fits, and one state of several where the number of workers has changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
from codauc.workers.agreement import gather_bytes
from codauc.workers.group import Group, GroupError

_CPU = torch.device("cpu")
_FREE = {  # settings that may differ when a run is resumed
    "data": ("source", "test", "images"),
    "communication": ("workers", "simulate", "timeout"),
}
_FREE_TABLES = ("device", "safety")
_ANY_SHAPE = ("tallies", "encoding", "under_way", "stage")  # of the engine's state


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


def check_data(saved: dict[str, Any], here: dict[str, Any]) -> None:
    """Raise if a state was saved on other data, and say what differs."""
    for name in {**saved, **here}:
        there, mine = saved.get(name), here.get(name)
        if there != mine:
            raise ValueError(
                f"other data: {name} {_short(there)} in the run that was saved, {_short(mine)} "
                "here: expected the same data; use those, or begin anew with overwrite=True."
            )


def check_seed(saved: dict[str, Any], here: RunSettings) -> None:
    """Raise if a run was begun with another seed, which would part the same data in another way."""
    _compare("seed", saved.get("seed"), here.seed)


def check_settings(saved: dict[str, Any], here: RunSettings) -> None:
    """Raise if a run was begun with other settings, and say which."""
    mine = json.loads(json.dumps(asdict(here)))
    for table in mine:
        if table in _FREE_TABLES:
            continue
        there = saved.get(table)
        if not isinstance(mine[table], dict) or not isinstance(there, dict):
            _compare(table, there, mine[table])
            continue
        for name in {**there, **mine[table]}:
            if name not in _FREE.get(table, ()):
                _compare(f"{table}.{name}", there.get(name), mine[table].get(name))


def _compare(name: str, there: Any, here: Any) -> None:
    if there != here:
        raise ValueError(
            f"{name} is {_short(there)} in the run that was saved, {_short(here)} here: expected "
            "the same to resume it; use the settings of that run, or begin anew with "
            "overwrite=True."
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


def as_saved(settings: RunSettings, saved: dict[str, Any]) -> RunSettings:
    """The settings that were saved, where they decide; those of now where they may differ."""
    values = asdict(settings)
    for table, there in saved.items():
        if table not in _FREE_TABLES and isinstance(there, dict):
            free = _FREE.get(table, ())
            values[table].update({k: v for k, v in there.items() if k not in free})
        elif table not in _FREE_TABLES:
            values[table] = there
    # what was saved is what is here, name by name: see check_settings
    return RunSettings.from_dict(values, trust=True)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
