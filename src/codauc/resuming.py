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

from codauc.agreement import gather_bytes
from codauc.checkpoints import Found
from codauc.config import RunSettings
from codauc.data.opening import Opened, Part
from codauc.data.rows import as_rows
from codauc.data.shards import scattered
from codauc.group import Group, GroupError

_CPU = torch.device("cpu")
_SAMPLE = 256  # rows whose inputs are compared
_CLOSE = 1e-3  # inputs may differ so much: machines round differently
_FREE = {  # settings that a run may go on without
    "data": ("source", "test", "images"),
    "communication": ("workers", "simulate", "timeout"),
}
_FREE_TABLES = ("device", "safety")
_OPEN = ("tallies", "times", "records", "notes", "selection", "encoding", "under_way", "stage")
_MEANS = ("anchor", "averages", "momenta", "seconds", "loss")  # of the optimizer's state


def identity(opened: Opened, group: Group) -> dict[str, Any]:
    """What tells data from other data, whoever has which part of them."""
    found: dict[str, Any] = {
        "positive classes": list(opened.positive),
        "shape of an image": list(opened.shape),
        "columns": []
        if opened.encoder is None
        else list(map(list, opened.encoder.kinds().items())),
    }
    for title, part in (("training", opened.train), ("validation", opened.validation)):
        if part is not None:
            found[f"{title} samples"] = part.samples
            found[f"{title} positives"] = part.positives
    held = opened.validation or opened.train
    mine = [_labels(opened.train), _labels(held), *_inputs(opened.train)]
    texts = gather_bytes(group, json.dumps(mine).encode(), "start", _CPU)
    train, validation, signed, size = (
        sum(parts) for parts in zip(*map(json.loads, texts), strict=True)
    )
    found["training labels"], found["validation labels"] = train % 2**64, validation % 2**64
    found["training inputs"] = [signed, size]
    return found


def _labels(part: Part) -> int:
    """A number that any other label, or sample, would change; the same in any order."""
    if part.y is None or not len(part.rows):
        return 0
    marks = part.rows.numpy().astype(np.uint64) * np.uint64(2) + part.y.numpy().astype(np.uint64)
    return sum(int(number) for number in scattered(marks, 0)) % 2**64


def _inputs(part: Part) -> tuple[float, float]:
    """A sum over some samples' inputs, each with a weight of its own, and the sum of the sizes."""
    if not len(part.rows):
        return 0.0, 0.0
    chance = scattered(part.rows.numpy().astype(np.uint64), 1).astype(np.float64) / 2.0**64
    share = min(1.0, _SAMPLE / max(part.samples, 1))
    chosen = torch.from_numpy(np.flatnonzero(chance < share))
    if not len(chosen):
        return 0.0, 0.0
    x = as_rows(part.x).gather(chosen).double().flatten(1).nan_to_num()
    columns = torch.arange(x.shape[1], dtype=torch.float64).add_(1).cos_()
    x *= columns * (1 + torch.from_numpy(chance)[chosen, None] / share)
    return float(x.sum()), float(x.abs().sum())


def check_data(saved: dict[str, Any], here: dict[str, Any]) -> None:
    """Raise if a state was saved on other data, and say what differs."""
    for name in {**saved, **here}:
        there, mine = saved.get(name), here.get(name)
        if name == "training inputs":
            (one, size), (other, _) = there or (0.0, 0.0), mine or (0.0, 0.0)
            same = abs(one - other) <= _CLOSE * size
        else:
            same = there == mine
        if not same:
            raise ValueError(
                f"other data: {name} {_short(there)} in the run that was saved, {_short(mine)} "
                "here: expected the same data; go on with those, or begin anew with --overwrite."
            )


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
            "the same to go on; give the command as it was, or only --resume and --out, or begin "
            "anew with --overwrite."
        )


@contextmanager
def usable(found: Found) -> Iterator[None]:
    """Let whatever a state lacks, or has too much of, be one error that says what to do."""
    try:
        yield
    except (KeyError, TypeError, IndexError, AttributeError, AssertionError, RuntimeError) as error:
        if isinstance(error, GroupError):
            raise
        told = f"{type(error).__name__}: {error}".split("\n")[0]
        raise ValueError(
            f"the checkpoint of step {found.number} cannot be used ({told}): it was changed; "
            "remove it to go on from the one before it, or begin anew with --overwrite."
        ) from error


def check_shape(saved: Any, mine: Any, where: str = "state") -> None:
    """Raise if a saved state has not what a state of this run has, name by name."""
    if isinstance(mine, dict):
        if not isinstance(saved, dict):
            raise TypeError(f"{where} is no dict")
        for name in mine:
            if name not in saved:
                raise KeyError(f"{where}/{name}")
            if name not in _OPEN:
                check_shape(saved[name], mine[name], f"{where}/{name}")
        more = saved.keys() - mine.keys() - {"rest"}
        if more:
            raise KeyError(f"{where}/{min(more)} is too much")
    elif isinstance(mine, list | tuple) and mine:
        if not isinstance(saved, list | tuple) or len(saved) != len(mine):
            raise TypeError(f"{where} has another length")
        for index, (there, here) in enumerate(zip(saved, mine, strict=True)):
            check_shape(there, here, f"{where}/{index}")
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
    return RunSettings.from_dict(values)


def merged(found: Found, group: Group) -> dict[str, Any]:
    """One state of all workers' states: what each has of its own is replaced by the mean.

    As a round would do it. The mean of the running averages is what a stage's closing round makes
    of them. What compression lost, and a round that was under way, are dropped.
    """
    state: dict[str, Any] = found.base
    count = found.size - len(found.missing)
    targets = list(_averaged(state))
    total = torch.zeros(sum(t.numel() for t in targets))
    for own in found.states.values():
        total += torch.cat([t.float().flatten() for t in _averaged(own)])
    group.sum_(total, "checkpoint")
    parts = torch.split(total.div_(count), [t.numel() for t in targets])
    for target, mean in zip(targets, parts, strict=True):
        target.copy_(mean.view_as(target))
    loss = state["coda"]["optimizer"]["state"]["ppdsg"]["loss"]
    loss["seen"] = loss["reported"].clone()  # labels that no round told of are forgotten
    averager: dict[str, Any] = {"encoding": {}, "under_way": None, "workers": group.size}
    state["coda"]["averager"].update(averager)
    return state


def _averaged(state: dict[str, Any]) -> Iterator[Tensor]:
    optimizer = state["coda"]["optimizer"]["state"]["ppdsg"]
    trees = [state["coda"]["model"], *(optimizer.get(name) for name in _MEANS), state["window"]]
    for tree in trees:
        yield from _floats(tree)


def _floats(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        if tree.is_floating_point():
            yield tree
    elif isinstance(tree, dict | list | tuple):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _floats(part)


def as_bits(rows: Tensor) -> Tensor:
    """Numbers of samples, as a bit for each.

    >>> from_bits(as_bits(torch.tensor([9, 2]))).tolist()
    [2, 9]
    """
    mask = np.zeros(int(rows.max()) + 1 if len(rows) else 0, np.bool_)
    mask[rows.numpy()] = True
    return torch.from_numpy(np.packbits(mask))


def from_bits(bits: Tensor) -> Tensor:
    """What `as_bits` was given, in order."""
    return torch.from_numpy(np.flatnonzero(np.unpackbits(bits.numpy())))


def rest_of_all(found: Found, group: Group) -> Tensor | None:
    """The numbers of the samples that the epoch had yet to give; None if batches are balanced."""
    if found.base["rest"] is None:
        return None
    mine = [state["rest"] for state in found.states.values()]
    longest = group.gather(torch.tensor([max([0, *map(len, mine)])]), "checkpoint").max()
    mask = torch.zeros(8 * int(longest), dtype=torch.uint8)
    for bits in mine:
        mask[from_bits(bits)] = 1
    group.sum_(mask, "checkpoint")
    return mask.nonzero().flatten()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
