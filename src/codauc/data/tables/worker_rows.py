"""Which rows of each part are a worker's, and the passes over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codauc._internal.checks import listed
from codauc.data.binary_labels import thin_negatives
from codauc.data.dataset import Part
from codauc.data.fingerprint import of_worker, total
from codauc.data.row_sites import RowSites, site_homes
from codauc.data.row_weights import checked_weights, part_weights
from codauc.data.shards import even_shards, mixed, skewed_shards
from codauc.data.tables.column_roles import TableRequest
from codauc.data.tables.column_statistics import Floats
from codauc.data.tables.encoder import Encoder
from codauc.data.tables.scan import Pass
from codauc.data.tables.table_sources import RowSource, split_values
from codauc.workers.group import Group


@dataclass
class WorkerRows:
    """Reads a worker's rows, part by part; `labels` are those of all rows, if they must be known.

    With sites a site's rows are with one worker in every part.
    """

    opened: RowSource
    request: TableRequest
    parts: Sequence[str]
    group: Group
    labels: Tensor | None
    sites: RowSites | None = None  # of all rows
    weights: Floats | None = None  # of all rows
    by: Any = None  # what rows are split by beside the labels
    split: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[str, Tensor] = field(default_factory=dict)

    def read(self, part: str, encoder: Encoder | None) -> Pass:
        """The pass over a worker's rows of one part."""
        request, group, first = self.request, self.group, part == self.parts[0]
        if first:
            self._prepare()
        if self.rows:
            rest = [self.rows[name] for name in self.parts[1:]] if first else []
            later = torch.cat(rest) if rest else None
            done = self.opened.some(self.rows[part], encoder, later)
        elif request.own or group.size == 1:
            done = self.opened.some(None, encoder)
        else:
            done = self.opened.even(group.rank, group.size, encoder)
        if self.sites is not None:  # which decide who has which rows
            which = self.sites.which.numpy()[done.rows.numpy()].astype(np.uint64)
            done.fingerprint += total(done.rows.numpy(), which)
        if self.weights is not None:
            bits = self.weights[done.rows.numpy()].view(np.uint64)
            done.fingerprint += total(done.rows.numpy(), mixed(bits))
        if request.own:
            done.fingerprint = of_worker(group.rank, done.fingerprint % 2**64)
        return done

    def whose(self, part: str) -> str:
        """Which rows the part has here, for a message."""
        name = {"train": "training", "validation": "validation"}.get(part, part)
        if self.sites is None:
            return f"the {name} rows of worker {self.group.rank}"
        here = torch.unique(self.sites.which[self.rows[part]]).tolist()
        return f"the {name} rows of {listed((self.sites.names[site] for site in here), most=5)}"

    def completed(self, part: Part) -> Part:
        """A part with what its rows have beside inputs and labels: groups, weights and sites."""
        split, groups = self.request.split, None
        if split is not None and split.group is not None:
            groups = torch.from_numpy(self.by[part.rows.numpy()])
        examined = part.examined
        if examined is not None and not self.group.rank:
            part = replace(part, examined=self.opened.with_dropped(examined, part.rows))
        weights, sums = part_weights(self.weights, part.rows, part.y, self.group)
        sites = None
        if self.sites is not None:
            sites = self.sites.of(part.rows, self._homes().tolist())
        if self.request.own and self.group.size > 1:
            names = tuple(f"worker {rank}" for rank in range(self.group.size))
            which = torch.full((len(part.rows),), self.group.rank)
            sites = RowSites("", names, which, tuple(range(self.group.size)))
        return replace(part, groups=groups, weights=weights, weight_sums=sums, sites=sites)

    def _prepare(self) -> None:
        """Find what decides which rows are whose, and the rows of each part."""
        request = self.request
        if request.silo is not None:
            names, which = self.opened.names_and_codes(request.silo, "site")
            self.sites = RowSites(request.silo, tuple(names), torch.from_numpy(which))
        if request.weight is not None:
            self.weights = _weights(self.opened, request.weight, self.labels)
        left_out = self.weights is not None and not self.weights.all()
        if self.labels is not None or self.sites is not None or left_out:
            self.rows = {name: self._chosen(name) for name in self.parts}

    def _counted(self) -> Tensor:
        """The rows of all parts: all but those of weight 0."""
        every = (self.labels, None if self.sites is None else self.sites.which, self.weights)
        kept = torch.arange(len(next(each for each in every if each is not None)))
        return kept if self.weights is None else kept[torch.from_numpy(self.weights > 0)]

    def _chosen(self, part: str) -> Tensor:
        """The numbers of a worker's rows, in the file's order."""
        request, labels, group = self.request, self.labels, self.group
        kept = self._counted()
        if labels is not None and (request.split or request.test_site is not None):
            if not self.split:
                self.split = self._parts(kept, labels)
            kept = self.split[part]
        keep = request.keep_negatives if part == "train" else 1.0
        # a file of a worker's own may lack negatives
        if labels is not None and keep < 1 and not labels[kept].all():
            kept = kept[thin_negatives(labels[kept], keep, request.seed)]
        if request.own:
            return kept
        if self.sites is not None:
            return kept[self._homes()[self.sites.which[kept]] == group.rank]
        if request.skew is not None and labels is not None and part == self.parts[0]:
            shards = skewed_shards(labels[kept], group.size, request.skew, request.seed)
        else:
            shards = even_shards(len(kept), group.size, request.seed)
        return kept[shards[group.rank]].sort().values

    def _parts(self, kept: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The rows of each part; with a test site all of its rows are the test set."""
        request, test = self.request, kept[:0]
        which = None if self.sites is None else self.sites.which
        if request.test_site is not None and which is not None and self.sites is not None:
            there = which[kept] == self.sites.number(request.test_site)
            test, kept = kept[there], kept[~there]
            _check_test_site(request.test_site, labels[test], labels[kept])
        parts = {"train": kept}
        if request.split is not None:
            self.by = split_values(self.opened, request.split)
            by = None if self.by is None else self.by[kept.numpy()]
            if by is not None and request.test_site is not None:
                _check_groups(request.test_site, self.by[test.numpy()], by)
            sites = None if which is None or by is not None else which[kept].numpy()
            least = request.least_samples or 0
            found = request.split.parts(labels[kept], by, sites, least)
            parts = {name: kept[places] for name, places in found.items()}
        return parts if request.test_site is None else parts | {"test": test}

    def _homes(self) -> Tensor:
        """The worker of each site. One that is left out is with the worker of the fewest rows."""
        assert self.sites is not None
        sites, test_site, trained = self.sites, self.request.test_site, self.request.trained
        if trained is not None:
            return torch.tensor([trained.home_of(name) for name in sites.names])
        sizes = torch.bincount(sites.which[self._counted()], minlength=len(sites.names)).numpy()
        if test_site is None:
            return torch.from_numpy(site_homes(sizes.tolist(), self.group.size, sites.column))
        left_out = sites.number(test_site)
        others = np.delete(sizes, left_out)
        home = site_homes(others.tolist(), self.group.size, sites.column)
        load = np.bincount(home, others, minlength=self.group.size)
        return torch.from_numpy(np.insert(home, left_out, load.argmin()))


def _check_test_site(name: str, test: Tensor, others: Tensor) -> None:
    """Raise where there would be no AUC, or nothing to learn from."""
    for labels, whose in ((test, f"all rows of the site {name!r}"), (others, "all other rows")):
        positives = int(labels.sum())
        if not 0 < positives < len(labels):
            raise ValueError(
                f"test_site={name!r}: {whose} ({len(labels)}) are "
                f"{'positive' if positives else 'negative'}; expected both classes, which an AUC "
                "needs; name another site, or join sites under one name."
            )


def _check_groups(name: str, test: NDArray[Any], others: NDArray[Any]) -> None:
    """Raise where a group would be both tested and trained on."""
    both = len(np.intersect1d(test, others))
    if both:
        raise ValueError(
            f"test_site={name!r} with group: {both} groups have rows of the site and of others, "
            "and would be in training and in the test; expected each group at one site; leave one "
            "of the two out."
        )


def _weights(opened: RowSource, weight: Any, labels: Tensor | None) -> Floats:
    """The weights of all rows, in a column or as given."""
    if isinstance(weight, str):
        where = f"{opened.path}, column {weight!r}"
        return checked_weights(where, opened.numbers(weight, "weight"))
    return checked_weights("weight", weight, None if labels is None else len(labels))
