"""Parts of data that keep what belongs together on one side: groups, or the order of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Shares = Sequence[float]  # of the parts, which add up to 1; 0 for one that is not asked for

_CLASSES = ("negatives", "positives")


def group_parts(
    labels: NDArray[np.bool_], groups: Integers, shares: Shares, seed: int, name: str
) -> Integers:
    """The part of each sample; all samples of a group are in one part.

    Groups with the same numbers of negatives and positives are exchangeable: they are shuffled by
    `seed` and dealt out by the shares. The few that are left over go, large ones first, where
    negatives and positives are then nearest to their shares.

    >>> labels, groups = np.arange(12) % 3 == 0, np.arange(12) // 3
    >>> group_parts(labels, groups, (0.5, 0.0, 0.5), 0, "patient").tolist()
    [2, 2, 2, 0, 0, 0, 2, 2, 2, 0, 0, 0]
    """
    _, which = np.unique(groups, return_inverse=True)
    sizes = np.stack([np.bincount(which, ~labels), np.bincount(which, labels)], 1).astype(np.int64)
    _check_enough(sizes, shares, name)
    return _with_both(_dealt(sizes, shares, seed), sizes, shares, name)[which]


def _check_enough(sizes: Integers, shares: Shares, name: str) -> None:
    asked = sum(share > 0 for share in shares)
    for place, title in enumerate(_CLASSES):
        holders = int((sizes[:, place] > 0).sum())
        if holders < asked:
            raise ValueError(
                f"group={name!r}: {title} are in {holders} of its {len(sizes)} groups, expected at "
                f"least {asked}, one for each part of the split; use more data, or hold out less "
                "with validation_fraction=0."
            )


def _dealt(sizes: Integers, shares: Shares, seed: int) -> Integers:
    """The part of each group."""
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(14,)))
    order = random.permutation(len(sizes))
    kinds, kind = np.unique(sizes[order], axis=0, return_inverse=True)
    members = np.split(
        order[np.argsort(kind.ravel(), kind="stable")], np.cumsum(np.bincount(kind.ravel()))[:-1]
    )
    want = np.outer(shares, sizes.sum(0))
    have, home = np.zeros_like(want), np.empty(len(sizes), np.int64)
    rest: list[tuple[int, Integers]] = []  # one group at a time
    for number, same in enumerate(members):
        counts = np.floor(np.array(shares) * len(same)).astype(np.int64)
        *parts, left = np.split(same, np.cumsum(counts))
        for part, chosen in enumerate(parts):
            home[chosen] = part
        have += np.outer(counts, kinds[number])
        rest += [(int(group), kinds[number]) for group in left]
    for group, size in sorted(rest, key=lambda each: -int(each[1].sum())):
        home[group] = _best(have, want, size, shares)
        have[home[group]] += size
    return home


def _best(have: Any, want: Any, size: Integers, shares: Shares) -> int:
    """The part to which a group brings negatives and positives nearest to their shares."""
    scale = np.maximum(want.sum(0), 1)
    gaps = ((have + size - want) / scale) ** 2 - ((have - want) / scale) ** 2
    cost = np.where(np.array(shares) > 0, gaps.sum(1), np.inf)
    return int(cost.argmin())


def _with_both(home: Integers, sizes: Integers, shares: Shares, name: str) -> Integers:
    """Move small groups until every part that is asked for has both classes."""
    for part in np.flatnonzero(np.array(shares) > 0).tolist():
        for place, title in enumerate(_CLASSES):
            if sizes[home == part, place].any():
                continue
            group = _spare(home, sizes, place)
            if group is None:
                raise ValueError(
                    f"group={name!r}: its groups cannot be split so that each part has positives "
                    f"and negatives; one part has no {title}. Use more data, or hold out less with "
                    "validation_fraction=0."
                )
            home[group] = part
    return home


def _spare(home: Integers, sizes: Integers, place: int) -> int | None:
    """The smallest group with a class whose part keeps both classes without it."""
    holders = np.flatnonzero(sizes[:, place])
    for group in holders[np.argsort(sizes[holders].sum(1), kind="stable")].tolist():
        if ((sizes[home == home[group]].sum(0) - sizes[group]) > 0).all():
            return int(group)
    return None


def time_parts(
    labels: NDArray[np.bool_], times: NDArray[np.float64], shares: Shares, name: str
) -> Integers:
    """The part of each sample: the oldest for training, the newest for testing.

    Samples of one time are in one part: a cut moves to the nearest change of time.

    >>> labels, times = np.arange(8) % 2 == 0, np.array([7.0, 6, 5, 4, 3, 2, 1, 1])
    >>> time_parts(labels, times, (0.5, 0.25, 0.25), "day").tolist()
    [2, 2, 1, 1, 0, 0, 0, 0]
    """
    values, which, counts = np.unique(times, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)  # how many samples are no newer than each time
    home = np.zeros(len(values), np.int64)
    for part in (1, 2):
        wanted = len(times) * sum(shares[:part])
        if shares[part]:
            home[np.abs(ends - wanted).argmin() + 1 :] = part
    found = home[which.ravel()]
    _check_times(labels, found, shares, name, len(values))
    return found


def _check_times(
    labels: NDArray[np.bool_], found: Integers, shares: Shares, name: str, different: int
) -> None:
    titles = ("oldest samples, for training,", "samples for validation", "newest samples, to test,")
    for part, title in enumerate(titles):
        own = labels[found == part]
        if not shares[part] or 0 < own.sum() < len(own):
            continue
        got = f"{len(own)} samples, all {_CLASSES[int(own[0])]}" if len(own) else "nothing"
        raise ValueError(
            f"time={name!r} with {different} different times: the {title} are {got}; expected "
            "positives and negatives in each part; use other shares (test_fraction, "
            "validation_fraction), more data, or leave time out."
        )
