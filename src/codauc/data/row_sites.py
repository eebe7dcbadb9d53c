"""Sites, such as hospitals: which site each row is of, who holds it, and how its rows are split."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codauc._internal.checks import listed

EACH = "each"  # in place of a site's name: one after the other

_CLASSES = ("negatives", "positives")
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class RowSites:
    """The sites of some rows.

    `column` names them, "" where each worker's own file is one; `names` are those of all rows of
    the source, in the order of their texts, and `which` says for each row here which it is of.
    `homes` are the workers of the sites.
    """

    column: str
    names: tuple[str, ...]
    which: Tensor
    homes: tuple[int, ...] = ()

    def of(self, rows: Tensor, homes: Sequence[int]) -> RowSites:
        """Those of the rows of these numbers, with the workers of the sites."""
        return replace(self, which=self.which[rows], homes=tuple(homes))

    def joined(self, other: RowSites) -> RowSites:
        """Those of the rows of two parts, one behind the other."""
        return replace(self, which=torch.cat([self.which, other.which]))

    def home_of(self, name: str) -> int:
        """The worker of a site, of this source or of another one; 0 of one that is not here."""
        return self.homes[self.names.index(name)] if name in self.names else 0

    def number(self, name: str) -> int:
        """The number of the site of this name; an error that names the nearest one otherwise."""
        return site_number(name, self.names, self.column)


class SiteCount(NamedTuple):
    """How many rows a site has, and how many of them are positive."""

    name: str
    samples: int
    positives: int


def site_number(name: str, names: Sequence[str], column: str) -> int:
    """The number of a test site among all sites; an error that names the nearest one otherwise."""
    if name in names:
        return names.index(name)
    near = difflib.get_close_matches(name, names, n=1)
    alike = [known for known in names if known.strip().casefold() == name.strip().casefold()]
    hint = f"did you mean {(alike or near)[0]!r}?" if alike or near else "name one of them."
    raise ValueError(
        f"test_site={name!r} is no site in the column {column!r}, which has {listed(names)}; {hint}"
    )


def site_homes(sizes: Sequence[int], workers: int, column: str = "") -> Integers:
    """The worker of each site; `sizes` are the sites' numbers of rows.

    With as many sites as workers each has one, in order; with more the largest goes first, each to
    the worker that has the fewest rows.

    >>> site_homes([5, 9, 3], workers=2).tolist()
    [1, 0, 1]
    """
    count = len(sizes)
    if count < workers:
        if column:
            raise ValueError(
                f"the column {column!r} names {count} sites for {workers} workers: expected at "
                f"least one site for each worker; use at most {count} workers."
            )
        raise ValueError(
            f"{count} silos with workers={workers}: expected at least one silo per worker; "
            f"use at most {count} workers."
        )
    home = np.arange(count)
    if count > workers:
        load = np.zeros(workers, np.int64)
        for site in np.argsort(-np.asarray(sizes), kind="stable"):
            home[site] = load.argmin()
            load[home[site]] += sizes[site]
    return home


def site_parts(
    labels: NDArray[np.bool_], sites: Integers, shares: Sequence[float], seed: int, least: int = 0
) -> Integers:
    """The part of each sample: 0 for training, 1 for validation, 2 for testing.

    Of each class a part gets its share of all samples, and of each site's samples of the class
    this share, rounded up or down: a class is laid out site by site, in random order, and every so
    many samples one is taken. A site keeps at least one sample for training, and gives up a class
    to validation or testing only with `least` samples. What is where depends on labels, sites and
    the seed alone.

    >>> labels, sites = np.arange(60) % 3 == 0, np.arange(60) // 20
    >>> home = site_parts(labels, sites, (0.7, 0.1, 0.2), seed=0)
    >>> [[int((home[sites == site] == part).sum()) for part in range(3)] for site in range(3)]
    [[14, 1, 5], [14, 3, 3], [14, 2, 4]]
    """
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(19,)))
    turns = random.permutation(int(sites.max(initial=0)) + 1)  # of the sites
    home = np.zeros(len(labels), np.int64)
    for positive in (False, True):
        members = np.flatnonzero(labels == positive)
        counts = [max(1, round(share * len(members))) if share else 0 for share in shares]
        left = len(members) - counts[1] - counts[2]
        if left < 1:
            raise ValueError(
                f"{len(members)} {_CLASSES[positive]}: expected at least "
                f"{counts[1] + counts[2] + 1}, one in each part of a split; use more data, a test "
                "file of its own, or no validation."
            )
        members = random.permutation(members)
        members = members[np.argsort(turns[sites[members]], kind="stable")]
        for part in (2, 1):
            taken = _every(len(members), counts[part], float(random.random()))
            home[members[taken]] = part
            members = np.delete(members, taken)
    for site in np.unique(sites) if least > 1 else ():
        for part, positive in ((p, c) for p in (1, 2) for c in (False, True)):
            given = np.flatnonzero((sites == site) & (home == part) & (labels == positive))
            if len(given) < least:
                home[given] = 0
    for site in np.setdiff1d(sites, sites[home == 0]):
        rows = np.flatnonzero(sites == site)
        home[rows[home[rows].argmin()]] = 0
    why = "each site keeps a row for training"
    if least > 1:
        why = f"a site holds out no class of which that would be fewer than {least} rows"
    _check(labels, home, shares, why)
    return home


def _every(count: int, taken: int, offset: float) -> Integers:
    """So many of `count` places, evenly spread from a random offset in [0, 1)."""
    return ((np.arange(taken) + offset) * count / max(1, taken)).astype(np.int64)


def _check(labels: NDArray[np.bool_], home: Integers, shares: Sequence[float], why: str) -> None:
    names = ("training", "validation", "testing")
    for part, positive in ((p, c) for p in range(3) for c in (False, True)):
        if (shares[part] or not part) and not (labels[home == part] == positive).any():
            raise ValueError(
                f"there are no {_CLASSES[positive]} for {names[part]}, as {why}: expected both "
                "classes in each part; use more data, hold out more, or join small sites under one "
                "name."
            )
