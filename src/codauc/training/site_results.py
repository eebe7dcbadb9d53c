"""What each site brought to a run, and how well the model does on its own test rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from codauc.data.dataset import DataSet, Part
from codauc.metrics.weighted_auc import weighted_auc_interval
from codauc.workers.agreement import gather_bytes
from codauc.workers.group import Group

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class SiteResult:
    """A site, the worker that holds it, and its rows: of all parts, and of the test.

    A count is None where fewer samples than are allowed to say so are behind it. The AUC is that of
    the site's own test rows, with DeLong's interval; None where these are not of both classes.
    `drift` is how far the weights of the site's worker were from the mean of all when they were
    averaged, relative to it: the root mean square over the evaluations.
    """

    name: str
    worker: int
    samples: int | None
    positives: int | None
    test_samples: int | None
    test_positives: int | None
    auc: float | None = None
    auc_low: float | None = None
    auc_high: float | None = None
    drift: float | None = None

    @property
    def share(self) -> float | None:
        """The share of positives in all rows of the site."""
        if not self.samples or self.positives is None:
            return None
        return self.positives / self.samples


@dataclass(frozen=True)
class _SiteRows:
    """The labels of a worker's rows of one site, of all parts and of the test."""

    every: NDArray[np.bool_]
    test: NDArray[np.bool_]
    places: NDArray[np.intp]  # of the test rows, in the test part


def sites_at_start(opened: DataSet, group: Group, least: int = 0) -> list[SiteResult]:
    """All sites with their rows, on every worker; none where nothing names sites."""
    if opened.train.sites is None:
        return []
    mine = [_counted(name, group.rank, rows, least) for name, rows in _own(opened)]
    return _of_all(mine, group, "start")


def sites_at_end(
    opened: DataSet,
    scores: NDArray[Any] | None,
    drift: float | None,
    group: Group,
    least: int = 0,
) -> list[SiteResult]:
    """The same with the results; `scores` are those of this worker's test rows."""
    if opened.train.sites is None:
        return []
    mine = []
    for name, rows in _own(opened):
        trained = len(_places(opened.train, name)) > 0  # not a site that is left out for the test
        found = replace(_counted(name, group.rank, rows, least), drift=drift if trained else None)
        mine.append(found if scores is None else _tested(found, opened.test, rows, scores, least))
    return _of_all(mine, group, "evaluate")


def _own(opened: DataSet) -> list[tuple[str, _SiteRows]]:
    """The sites of which this worker has rows."""
    train, test = opened.train, opened.test
    assert train.sites is not None
    parts = [train, opened.validation, test]
    there = [part for part in parts if part is not None and part.sites is not None]
    names = sorted({name for part in there for name in _names(part)})
    found = []
    for name in names:
        every = np.concatenate([_labels(part)[_places(part, name)] for part in there])
        places = np.empty(0, np.intp) if test is None else _places(test, name)
        own_test = np.empty(0, bool) if test is None else _labels(test)[places]
        found.append((name, _SiteRows(every, own_test, places)))
    return found


def _names(part: Part) -> list[str]:
    """The sites of which the part has rows here."""
    sites = part.sites
    return [] if sites is None else [sites.names[i] for i in np.unique(sites.which.numpy())]


def _places(part: Part, name: str) -> NDArray[np.intp]:
    """Where the rows of a site are in the part."""
    if part.sites is None or name not in part.sites.names:
        return np.empty(0, np.intp)
    return np.flatnonzero(part.sites.which.numpy() == part.sites.names.index(name))


def _labels(part: Part) -> NDArray[np.bool_]:
    assert part.y is not None
    return part.y.numpy().astype(np.bool_)


def _counted(name: str, worker: int, rows: _SiteRows, least: int) -> SiteResult:
    counts = [*_pair(rows.every, least), *_pair(rows.test, least)]
    return SiteResult(name, worker, *counts)


def _pair(labels: NDArray[np.bool_], least: int) -> tuple[int | None, int | None]:
    """Samples and positives; None where 1 to `least` - 1 samples would be told of."""
    samples, positives = len(labels), int(labels.sum())
    few = [0 < count < least for count in (samples, positives, samples - positives)]
    return None if few[0] else samples, None if any(few) else positives


def _tested(
    found: SiteResult, test: Part | None, rows: _SiteRows, scores: NDArray[Any], least: int
) -> SiteResult:
    """With the AUC on the site's own test rows, if it is one that may be told."""
    positives = int(rows.test.sum())
    mine = scores[rows.places]
    if test is None or min(positives, len(rows.test) - positives) < max(1, least):
        return found
    if not np.isfinite(mine).all():
        return found
    groups, weights = (
        None if each is None else each.numpy()[rows.places] for each in (test.groups, test.weights)
    )
    auc = weighted_auc_interval(mine, rows.test, weights, groups)
    return replace(found, auc=auc.value, auc_low=auc.low, auc_high=auc.high)


def _of_all(mine: Sequence[SiteResult], group: Group, kind: str) -> list[SiteResult]:
    """The sites of all workers, in the order of workers."""
    text = json.dumps([asdict(each) for each in mine]).encode()
    parts = [json.loads(part) for part in gather_bytes(group, text, kind, _CPU)]
    return [SiteResult(**plain) for part in parts for plain in part]
