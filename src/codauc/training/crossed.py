"""Crossed validation: no row is held out of the training, each is held out of one member's.

Where positives are few, a held-out part has too few of them to tell a good model from a lucky one,
and the training misses them. So all rows are dealt into folds, one per member of an ensemble;
member j trains on all rows but those of fold j, and scores these. The scores of all rows by members
that never saw them choose the model, its log-odds and its threshold.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codauc._internal.random_streams import generator
from codauc.data.dataset import DataSet, Part
from codauc.data.row_sites import RowSites
from codauc.data.shards import ShardCount, mixed
from codauc.runs.settings import ModelSettings, RunSettings
from codauc.workers.agreement import gather_bytes
from codauc.workers.group import Group

_CPU = torch.device("cpu")
_OF_ROWS = ("x", "y", "rows", "groups", "weights", "sites")  # what a part has for each row


def can_cross(opened: DataSet, settings: RunSettings, model: ModelSettings) -> bool:
    """Whether the validation set can be given up for folds of all rows.

    It cannot be where it has a meaning of its own (the newest rows), where rows are not held in
    memory, or where no row alone may be told of: workers deal the positives out together.
    """
    held = opened.validation
    return (
        model.name == "tabular-ensemble"
        and model.arguments.get("members", 0) > 1
        and held is not None
        and held.y is not None
        and settings.data.watch == "validation"
        and settings.data.time is None
        and settings.data.least_samples is None
        and isinstance(opened.train.x, Tensor)
        and isinstance(held.x, Tensor)
    )


def crossed(opened: DataSet, settings: RunSettings, group: Group) -> DataSet:
    """The data with the validation rows among those of training, and a fold for each row.

    The folds depend on the rows' numbers and labels alone, not on which worker has which.
    """
    assert opened.validation is not None
    members = settings.model.arguments["members"]
    joined = _joined(opened.train, opened.validation)
    folds = _folds(joined, members, settings.seed, group)
    part = replace(joined, folds=torch.from_numpy(folds))
    return replace(opened, train=part, validation=part)


def _joined(one: Part, other: Part) -> Part:
    """Two parts of a source as one."""
    pairs = zip(one.counts, other.counts, strict=True)
    (up, both), (more_up, more_both) = one.weight_sums, other.weight_sums
    return replace(
        one,
        **{name: _both(one, other, name) for name in _OF_ROWS},
        counts=[ShardCount(*map(sum, zip(*pair, strict=True))) for pair in pairs],
        fingerprint=(one.fingerprint + other.fingerprint) % 2**64,
        weight_sums=(up + more_up, both + more_both),
    )


def _both(one: Part, other: Part, name: str) -> Any:
    first, second = getattr(one, name), getattr(other, name)
    if first is None:
        return None
    return first.joined(second) if isinstance(first, RowSites) else torch.cat([first, second])


def _folds(part: Part, members: int, seed: int, group: Group) -> NDArray[np.int64]:
    """The fold of each row of this worker. Rows of a group are in one fold.

    Those with positives are dealt in turn, so that each fold has as many; the others at random.
    """
    assert part.y is not None
    units = (part.rows if part.groups is None else part.groups).numpy().astype(np.int64)
    positive = np.unique(units[part.y.numpy().astype(np.bool_)])
    parts = gather_bytes(group, positive.tobytes(), "start", _CPU)
    dealt = np.unique(np.concatenate([np.frombuffer(text, np.int64) for text in parts]))
    source = generator(np.random.SeedSequence(seed, spawn_key=(17,)))
    turns = torch.randperm(len(dealt), generator=source).numpy() % members
    salt = np.uint64(seed % 2**32 * 2**32)
    folds = (mixed(units.astype(np.uint64) ^ salt) % np.uint64(members)).astype(np.int64)
    places = np.searchsorted(dealt, units).clip(max=max(0, len(dealt) - 1))
    known = dealt[places] == units
    return np.where(known, turns[places], folds)


def member_weights(part: Part, members: int) -> Tensor:
    """How much each row counts for each member, [N, members]: 0 in its own fold, 1 in the mean."""
    assert part.folds is not None
    others = part.folds.unsqueeze(1) != torch.arange(members)
    return others.float() * (members / (members - 1))
