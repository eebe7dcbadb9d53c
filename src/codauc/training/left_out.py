"""Every site left out in turn: what it costs a site not to take part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from codauc._internal.progress import status
from codauc.data.opening import sites_of
from codauc.data.row_sites import EACH, SiteCount
from codauc.metrics.auc_difference import paired_auc_difference
from codauc.metrics.auc_values import auc_interval
from codauc.report.run_page import page
from codauc.runs.checkpoints import clear
from codauc.runs.directory import (
    CHECKPOINTS,
    EVERY,
    FAULTS,
    LEFT_OUT,
    METRICS,
    MODEL,
    REPORT,
    RunFolder,
)
from codauc.runs.settings import CONFIG, RunSettings
from codauc.training.directory_claim import check_free, new_directory, of_several
from codauc.training.run_state import check_settings
from codauc.training.train_call import train


@dataclass(frozen=True)
class LeftOut:
    """What leaving a site out costs, on the site's rows that the run with all sites did not see.

    `took_part` and `left_out` are AUCs of the two models on these rows, `cost` the first less the
    second with DeLong's paired interval; None where `reason` says why. `whole` is the AUC of the
    model without the site on all of its rows.
    """

    site: str
    rows: int
    test_rows: int = 0
    took_part: float | None = None
    left_out: float | None = None
    cost: float | None = None
    cost_low: float | None = None
    cost_high: float | None = None
    whole: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class EachSite:
    """The runs of `--test-site each`, and what they found; not `complete` after an interrupt."""

    path: Path
    sites: list[LeftOut]
    complete: bool


def each_site(
    settings: RunSettings,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    words: Callable[[str], str] = str,
) -> EachSite:
    """Train with all sites, then without each of them, in directories below `out`.

    With `resume` what is finished is skipped, and what was interrupted goes on.

    Args:
        settings: whose `data.silo` names the column of sites; `data.test_site` is set here.
        out: the directory; None for the first of runs/NAME-1, runs/NAME-2, ... that is free.
        resume: continue what is in `out`.
        overwrite: replace the runs in `out`.
        quiet: show no progress.
        words: turns messages that name arguments into those of another way in.
    """
    counts = sites_of(settings.data)
    if any(site.name == EACH for site in counts):
        raise ValueError(
            f"test_site={EACH!r} means every site in turn, and a site in {settings.data.silo!r} "
            "has that name: expected other names; rename the site."
        )
    tested = [site for site in counts if 0 < site.positives < site.samples]
    plan = {EVERY: settings.with_changes("data", test_site=None)}
    for name, site in zip(_directories(tested), tested, strict=True):
        plan[name] = settings.with_changes("data", test_site=site.name)
    folder = _claimed(settings, out, resume=resume, overwrite=overwrite)
    if overwrite:
        for name in plan:  # all at once, so that none is taken for one of this call
            RunFolder(folder / name).remove_results(CONFIG, METRICS, MODEL, FAULTS)
            clear(folder / name / CHECKPOINTS)
    for number, (name, each) in enumerate(plan.items(), 1):
        path = folder.path / name
        if not quiet:
            left = each.data.test_site
            what = "all sites take part" if left is None else f"without {left!r}"
            status(f"Run {number} of {len(plan)}, {what}: {path}")
        summary = train(each, path, quiet=quiet, words=words, resume=True)
        if summary.get("stopped") or summary.get("interrupted"):
            return EachSite(folder.path, [], complete=False)
    without = {str(each.data.test_site): folder / name for name, each in plan.items()}
    found = list(_compared(counts, folder / EVERY, without))
    _write(folder, found)
    return EachSite(folder.path, found, complete=True)


def _claimed(
    settings: RunSettings, out: str | Path | None, *, resume: bool, overwrite: bool
) -> RunFolder:
    """The directory of all runs, with the settings that continue them."""
    folder = RunFolder(new_directory(settings.data.source) if out is None else out)
    if of_several(folder) and not (resume or overwrite):
        raise ValueError(
            f"out={folder.path} already holds runs: expected another directory; choose one, or "
            "use resume=True to continue them, or overwrite=True to lose them."
        )
    check_free(folder, overwrite=overwrite or resume)
    if resume and folder.begun:
        raise ValueError(
            f"out={folder.path} holds one run, not those of test_site={EACH!r}: expected the "
            "directory of those; choose another one."
        )
    if resume and of_several(folder):
        saved = (folder / CONFIG).read_text(encoding="utf-8")
        check_settings(RunSettings.from_toml(saved, str(folder / CONFIG), trust=True), settings)
    if overwrite:
        folder.remove_results(CONFIG, METRICS, MODEL, FAULTS)
        clear(folder / CHECKPOINTS)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.write(CONFIG, settings.to_toml())
    return folder


def _directories(sites: Sequence[SiteCount]) -> Iterator[str]:
    """A name for each site's directory, like that of the site.

    >>> [*_directories([SiteCount("Bad Tölz", 9, 1), SiteCount("bad/tölz", 9, 1)])]
    ['site-1-Bad_Tölz', 'site-2-bad_tölz']
    """
    for number, site in enumerate(sites, 1):
        name = re.sub(r"[^\w.-]+", "_", site.name)
        yield f"site-{number}-{name[:40]}"


def _compared(counts: Sequence[SiteCount], every: Path, runs: dict[str, Path]) -> Iterator[LeftOut]:
    with_all = _scored(every)
    for site in counts:
        if site.name not in runs:
            reason = "all rows are positive" if site.positives else "all rows are negative"
            yield LeftOut(site.name, site.samples, reason=reason)
        else:
            yield _cost(site, with_all, _scored(runs[site.name]))


_Scored = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]  # rows, scores, labels


def _scored(path: Path) -> _Scored | None:
    folder = RunFolder(path)
    found, rows = folder.scores(), folder.test_rows()
    return None if found is None or rows is None else (rows, found.scores, found.labels)


def _cost(site: SiteCount, with_all: _Scored | None, without: _Scored | None) -> LeftOut:
    if with_all is None or without is None:
        return LeftOut(site.name, site.samples, reason="a run has no test scores of its rows")
    _, here, there = np.intersect1d(with_all[0], without[0], return_indices=True)
    labels, positives = with_all[2][here], int(with_all[2][here].sum())
    whole = auc_interval(without[1], without[2]).value
    found = LeftOut(site.name, site.samples, len(here), whole=whole)
    if not 0 < positives < len(here):
        what = "no test rows" if not len(here) else "test rows of one class"
        return LeftOut(site.name, site.samples, len(here), whole=whole, reason=what)
    part, out = with_all[1][here], without[1][there]
    gap = paired_auc_difference(part, out, labels)
    values = {"took_part": auc_interval(part, labels).value, "cost": gap.value}
    values |= {"left_out": auc_interval(out, labels).value}
    values |= {"cost_low": gap.low, "cost_high": gap.high}
    return LeftOut(**{**asdict(found), **values})


def _write(folder: RunFolder, found: Sequence[LeftOut]) -> None:
    """Keep what was found, and show it in the report of the run with all sites."""
    every, plain = RunFolder(folder / EVERY), {"sites": [asdict(each) for each in found]}
    for place in (folder, every):
        place.write_json(LEFT_OUT, plain)
    every.write(REPORT, page(every))
