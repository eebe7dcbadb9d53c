"""Who gets which samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codauc._internal.checks import known_arguments, real, whole
from codauc._internal.random_streams import generator
from codauc.data.binary_labels import known_positives, one_kind
from codauc.data.row_sites import site_homes
from codauc.workers.group import Group, LocalGroup


@known_arguments
def even_shards(count: int, workers: int, seed: int) -> list[Tensor]:
    """The indices 0..count-1, shuffled by `seed` and dealt out to `workers` shards.

    Shards are disjoint, together complete, and their sizes differ by at most one.

    >>> shards = even_shards(count=10, workers=3, seed=0)
    >>> [len(shard) for shard in shards], sorted(torch.cat(shards).tolist())
    ([4, 3, 3], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    count, workers, seed = _sizes(count, workers, seed)
    source = generator(np.random.SeedSequence(seed, spawn_key=(2,)))
    parts = torch.randperm(count, generator=source).tensor_split(workers)
    # A view would carry every worker's indices along when a shard is saved or sent.
    return [part.clone() for part in parts]


@known_arguments
def skewed_shards(labels: Tensor, workers: int, concentration: float, seed: int) -> list[Tensor]:
    """Shards that differ in their labels and sizes, as data of different places do.

    Each class is shared out by proportions drawn from a Dirichlet distribution: the smaller the
    `concentration`, the more a class belongs to few workers; at 100 shards are nearly alike. Shards
    are disjoint, together complete, and each has at least one sample.

    >>> labels = torch.arange(1000) % 10 == 0
    >>> shards = skewed_shards(labels, workers=3, concentration=0.5, seed=0)
    >>> len(torch.cat(shards).unique()), min(len(shard) for shard in shards) > 0
    (1000, True)
    """
    labels = _labels(labels)
    count, workers, seed = _sizes(len(labels), workers, seed)
    remedy = "use 0.1 for very different shards, 100 for nearly equal ones"
    spread = real("concentration", concentration, above=0, remedy=remedy)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(7,)))
    owner = np.empty(count, np.int64)
    for value in torch.unique(labels):
        members = rng.permutation((labels == value).nonzero().flatten().cpu().numpy())
        # the proportions of tiny concentrations can all be 0: then one worker has the class
        shares = np.nan_to_num(rng.dirichlet(np.full(workers, spread)))
        shares = shares if shares.sum() > 0 else np.eye(workers)[rng.integers(workers)]
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for worker, part in enumerate(np.split(members, cuts)):
            owner[part] = worker
    return _owned(_without_empty(owner, workers), workers)


@known_arguments
def silo_shards(silos: Sequence[object] | NDArray[np.generic], workers: int) -> list[Tensor]:
    """Shards by what a sample belongs to, such as its hospital: no silo is ever divided.

    `silos` names each sample's silo. With as many silos as workers each has one, in the order of
    their names; with more, the largest goes first, each to the worker that has the fewest samples.

    >>> silo_shards(["Ulm", "Bonn", "Ulm", "Bonn", "Ulm"], workers=2)
    [tensor([1, 3]), tensor([0, 2, 4])]
    """
    which = np.unique(one_kind("silos", silos), return_inverse=True)[1]
    _, workers, _ = _sizes(len(which), workers, 0)
    return _owned(site_homes(np.bincount(which).tolist(), workers)[which], workers)


def block_shards(blocks: Sequence[int], workers: int, seed: int) -> list[list[tuple[int, int]]]:
    """Even shards of a file that is read block by block; `blocks` are their numbers of rows.

    The blocks are shuffled by `seed`, laid end to end and cut into equal parts, so that a worker
    reads its own blocks alone. A shard is the first and the end of its ranges of rows, in the
    order of the file. Shards are disjoint, together complete, and their sizes differ by at most
    one row.

    >>> block_shards([4, 4, 4], workers=2, seed=0)
    [[(0, 2), (8, 12)], [(2, 4), (4, 8)]]
    """
    count, workers, seed = _sizes(sum(blocks), workers, seed)
    source = generator(np.random.SeedSequence(seed, spawn_key=(8,)))
    order = torch.randperm(len(blocks), generator=source).tolist()
    places = np.cumsum([0, *(blocks[block] for block in order)]).tolist()
    starts = np.cumsum([0, *blocks]).tolist()
    shards = []
    for worker in range(workers):
        extra = count % workers
        low = worker * (count // workers) + min(worker, extra)
        high = low + count // workers + (worker < extra)
        first, last = np.searchsorted(places, [low, high], side="right")
        ranges = [
            (start + max(low - place, 0), start + min(high - place, blocks[block]))
            for block, place in zip(order[first - 1 : last], places[first - 1 : last], strict=False)
            for start in [starts[block]]
        ]
        shards.append(sorted(ends for ends in ranges if ends[0] < ends[1]))
    return shards


def dealt(start: int, count: int, workers: int, seed: int) -> NDArray[np.int64]:
    """The owner of each of the rows `start` to `start + count` of a file of unknown length.

    Of every `workers` rows that follow each other each worker gets one, by a chance that depends on
    (seed, row) alone, so that shards are even, disjoint and complete wherever the file ends.

    >>> dealt(0, 9, workers=3, seed=0).reshape(3, 3).tolist()
    [[1, 0, 2], [2, 1, 0], [0, 1, 2]]
    """
    first = start // workers * workers
    rows = np.arange(first, -(-(start + count) // workers) * workers, dtype=np.uint64)
    ranks = scattered(rows, seed).reshape(-1, workers).argsort(axis=1, kind="stable")
    return ranks.argsort(axis=1).reshape(-1)[start - first : start - first + count]


def scattered(rows: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """A pseudo-random number for each row, from (seed, row) alone (splitmix64)."""
    key = np.random.SeedSequence(seed, spawn_key=(9,)).generate_state(1, np.uint64)[0]
    return mixed(rows + key)


def mixed(rows: NDArray[np.uint64], marks: NDArray[np.uint64] | int = 0) -> NDArray[np.uint64]:
    """The numbers of splitmix64 at these places of its sequence, each moved on by `marks`."""
    z = rows * np.uint64(0x9E3779B97F4A7C15) + np.asarray(marks, np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class ShardCount(NamedTuple):
    """How much data a worker has."""

    samples: int
    positives: int


@known_arguments
def shard_counts(labels: Tensor, group: Group | None = None) -> list[ShardCount]:
    """The samples and positives of every worker, in the order of ranks, from each one's labels.

    >>> shard_counts(torch.tensor([0, 0, 1]))
    [ShardCount(samples=3, positives=1)]
    """
    group = LocalGroup() if group is None else group
    mine = torch.tensor([len(labels), int(known_positives(labels).sum())])
    return [ShardCount(*row) for row in group.gather(mine, "start").tolist()]


def _labels(labels: Tensor) -> Tensor:
    values = torch.as_tensor(labels)
    if values.dim() != 1 or bool(values.isnan().any()):
        raise ValueError(
            f"labels of shape {list(values.shape)}{' with NaN' if values.dim() == 1 else ''}: "
            "expected one label a sample, of shape [N]."
        )
    return values


def _sizes(count: int, workers: int, seed: int) -> tuple[int, int, int]:
    workers = whole("workers", workers, least=1, remedy="use 1 for all data in one shard")
    seed = whole("seed", seed, least=0, remedy="use 0 if any seed will do")
    count = whole("count", count, least=1, remedy="it is the number of samples to share out")
    if count < workers:
        raise ValueError(
            f"count={count} with workers={workers}: expected at least one sample per worker; "
            f"use at most {count} workers."
        )
    return count, workers, seed


def _without_empty(owner: NDArray[np.int64], workers: int) -> NDArray[np.int64]:
    sizes = np.bincount(owner, minlength=workers)
    for worker in np.flatnonzero(sizes == 0):
        richest = sizes.argmax()
        owner[np.flatnonzero(owner == richest)[0]] = worker
        sizes[[richest, worker]] += [-1, 1]
    return owner


def _owned(owner: NDArray[np.int64], workers: int) -> list[Tensor]:
    return [torch.from_numpy(np.flatnonzero(owner == worker)) for worker in range(workers)]
