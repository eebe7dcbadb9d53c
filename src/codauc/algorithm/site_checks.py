"""What `CoDA` is told of its workers as sites, checked, and what does not go together."""

from __future__ import annotations

from typing import Any

from codauc._internal.checks import choice, real, whole
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.schedules import Stage
from codauc.algorithm.sites import WEIGHTS, Present, Shards, Sites, chosen_dual

NORMS = ("mean", "local")  # of BatchNorm's statistics


def checked_shards(shards: Any, size: int) -> Shards | None:
    """The samples and positives of each of `size` workers."""
    if shards is None:
        return None
    try:
        found = [(int(samples), int(positives)) for samples, positives in shards]
    except (TypeError, ValueError):
        found = []
    if len(found) != size or any(not 0 <= up <= n for n, up in found):
        raise ValueError(
            f"shards={shards!r}: expected the samples and the positives of each of the {size} "
            "workers, in the order of ranks, such as codauc.data.shard_counts(labels, group) gives."
        )
    return found


def checked_sites(rank: int, size: int, weight: str, present: Any, shards: Any) -> Sites:
    """The sites of these arguments of `CoDA`."""
    known = checked_shards(shards, size)
    if choice("weight", weight, WEIGHTS) == "samples" and known is None:
        raise ValueError(
            "weight='samples' without shards: expected shards=..., the samples and positives of "
            "each worker, such as codauc.data.shard_counts(labels, group) gives."
        )
    if present is not None and not isinstance(present, Present):
        remedy = "use None for all workers, 0.7 for 70% of them, or codauc.Present(...)"
        present = Present(real("present", present, above=0, remedy=remedy))
    for worker, _ in () if present is None else present.gone:
        whole("gone", worker, least=0, most=size - 1, remedy="it is the number of a worker")
    return Sites(rank, size, weight, present, known)


def decided_dual(dual: str, shards: Shards | None) -> str:
    """The estimate of alpha; "auto" decides it by the labels of the shards."""
    if dual != "auto":
        return dual
    if shards is None:
        raise ValueError(
            "dual='auto' without shards: expected shards=..., the samples and positives of each "
            "worker, such as codauc.data.shard_counts(labels, group) gives."
        )
    return chosen_dual(shards)


def check_ways(loss: MinMaxAUCLoss, sites: Sites, *, correct: str | None, delay: int) -> None:
    """Raise where ways to train do not go together."""
    absent = sites.size > 1 and (sites.present is not None or len(sites.able) < sites.size)
    if delay and (absent or correct is not None):
        what = "correct='scaffold'" if correct is not None else "workers that are away"
        raise ValueError(
            f"delay={delay} with {what}: expected delay=0, as the next period needs the answer of "
            "the round before it; leave one of them out."
        )
    if not sites.all_alike and loss.known_ratio is None:
        raise ValueError(
            "workers that do not count alike, and a pos_ratio that is not known: expected "
            "pos_ratio=..., the share of positives in all data, such as that of the shards."
        )


def check_periods(stage: Stage, sites: Sites) -> None:
    """Raise if a stage averages in between where workers do not count alike."""
    if stage.local_every is not None and not sites.all_alike:
        raise ValueError(
            f"local_every={stage.local_every} with workers that do not count alike: expected "
            "rounds of all workers alone; leave it out."
        )
