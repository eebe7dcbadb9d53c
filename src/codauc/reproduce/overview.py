"""One page of all studies: what the paper claims, what was measured, and where it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from codauc._internal.files import read_text, whole_file
from codauc._internal.formats import duration
from codauc.report.rendering import Card, CardTable, render
from codauc.reproduce.figure_definitions import FIGURES, TITLES, figures, points_of
from codauc.reproduce.findings import Finding, harmless_range
from codauc.reproduce.study import DATA, KEEP, WORKERS, Study
from codauc.reproduce.study_output import Shown, pictures_of, tables_of, write
from codauc.reproduce.study_reading import studies_in
from codauc.reproduce.study_results import MARGIN

OVERVIEW = "overview"  # its name in the command
_COLUMNS = 6  # studies side by side that a page is wide enough for
PAGE, README, WHY = "index.html", "README.md", "why.md"
PAPER = {  # what a finding's claim begins with, and the paper's words for it
    "More workers need fewer iterations": (
        '"when K becomes larger, then our algorithm requires a less number of iterations to '
        'converge to the target AUC" (all data sets; in theory K times fewer)'
    ),
    "Skipping rounds costs nothing": (
        '"even when I becomes moderately large, our algorithm is still able to deliver comparable '
        'performance in terms of the number of iterations compared with the case when I=1"'
    ),
    "Fewer rounds to the target": (
        '"up to these thresholds the running time of CoDA can be dramatically reduced than the '
        'naive parallel version with I=1"'
    ),
    "Too large an I costs AUC": (
        'there is a "largest value of I that does not cause a dramatic performance drop"'
    ),
    "The largest I that loses": (
        '"I=1024, I=64, I=64 on ImageNet, CIFAR100 and CIFAR10, respectively" at K=16; I=512 at '
        "K=4 on both CIFARs. What a dramatic drop is, it does not say"
    ),
    "Fewer workers tolerate": (
        '"when K=4 the upper limit of I [...] is larger than the upper limit of I=64 for K=16"'
    ),
    "K=16 is the most time-efficient": (
        '"CoDA with K=16 machines is also the most time-efficient algorithm among all settings"'
    ),
}
_TITLES = {  # of claims that are longer than what they begin with
    "More workers need fewer iterations": (
        "More workers need fewer iterations (asked here: 2 times at K=4, 4 times at K=16)"
    ),
    "Skipping rounds costs nothing": "Skipping rounds costs nothing, up to I=64 at K=16",
    "Fewer rounds to the target": "Fewer rounds to the target, with I=64 at K=16",
    "The largest I that loses": "The largest harmless I is the paper's",
    "Fewer workers tolerate": "Fewer workers tolerate a larger I",
    "K=16 is the most time-efficient": "K=16 is the soonest at the target (time modelled)",
}
_COMMAND, _NORMALISED = "`codauc reproduce cifar10-71", {"resnet8", "resnet50"}
_LARGER = 'at K=16 "I=1024, I=64, I=64 on ImageNet, CIFAR100 and CIFAR10"; it does not say why'
MARKS = {(True, True): "✓", (True, False): "(✓)", (False, False): "(✗)", (False, True): "✗"}
LEGEND = (
    "✓ holds, ✗ does not hold, each with the whole 95% interval; in brackets: by the mean over "
    "seeds, while the interval leaves the opposite open, or with one seed, without an interval. "
    "Surely: with the whole interval."
)


class StudyPage(NamedTuple):
    """A study, its directory's name, and why a finding does not hold, as a person wrote it."""

    name: str
    shown: Shown
    why: tuple[str, ...]

    @property
    def one_seed(self) -> bool:
        """Whether nothing was run with two seeds, so that there are no intervals."""
        return all(len(runs) == 1 for runs in self.shown.results.evaluations.values())

    @property
    def label(self) -> str:
        """What tells it from the others."""
        return self.shown.study.label


def write_overview(folder: Path) -> Path:
    """Write the page and the README of all studies in `folder`, and each study's own again."""
    found = [StudyPage(path.name, shown, _lines(path / WHY)) for path, shown in studies_in(folder)]
    if not found:
        raise ValueError(
            f"--out {folder} holds no study with tables: expected some that codauc reproduce wrote."
        )
    for each in found:
        write(each.shown, folder / each.name)
    tables = {
        "minute": _minute(found),
        "matrix": _matrix(found),
        "numbers": _numbers(found),
        "start": _starts(found),
        "origins": _origins(found),
    }
    values = {
        "studies": found,
        "tables": tables,
        "legend": LEGEND,
        "missing": list(_missing(found)),
        "pictures": [(each, list(_files(each, folder))) for each in found],
    }
    for name, text in ((README, render("overview.md", **values)), (PAGE, _page(found, values))):
        with whole_file(folder / name) as partial:
            partial.write_text(text, encoding="utf-8")
    return folder / PAGE


def _lines(path: Path) -> tuple[str, ...]:
    return tuple(read_text(path).strip().splitlines()) if path.exists() else ()


def _page(found: Sequence[StudyPage], values: Mapping[str, object]) -> str:
    """All figures of all studies, and their tables."""
    parts = []
    for each in found:
        below = [Card(caption=t.note, table=t.card(), title=t.title) for t in tables_of(each.shown)]
        parts.append((each, list(pictures_of(each.shown).values()), below))
    return render("overview.html", parts=parts, **values)


def _minute(found: Sequence[StudyPage]) -> CardTable:
    """Each claim of the paper in a row: its words, in how many studies it holds, and where not."""
    rows = [
        [_TITLES.get(begin, begin), words, *_verdict(begin, found)]
        for begin, words in PAPER.items()
    ]
    rows.append(["ImageNet tolerates a larger I than CIFAR", _LARGER, *_of_data_sets(found)])
    return CardTable(
        ["claim", "the paper", "here", "where it does not"],
        rows,
        words=True,
        whole=True,
        stack=True,
    )


def _verdict(begin: str, found: Sequence[StudyPage]) -> tuple[str, str]:
    own = [(page, f) for page in found for f in page.shown.found if f.claim.startswith(begin)]
    known = [(page, f) for page, f in own if f.holds is not None]
    bad = [(page, f) for page, f in known if not f.holds]
    if not known:
        return "not measured", ""
    surely = sum(bool(f.holds) and f.sure and not page.one_seed for page, f in known)
    good = len(known) - len(bad)
    where = f"{_word(good, len(known))} {good} of {len(known)} comparisons, {surely} of them surely"
    return where, "; ".join(f"{page.label}: {_short(f)}" for page, f in bad)


def _of_data_sets(found: Sequence[StudyPage]) -> tuple[str, str]:
    """The largest harmless I on ImageNet beside that on CIFAR-10, in studies that are alike."""
    said, larger = list[tuple[bool, str]](), DATA["imagenet"].title
    own = [page for page in found if page.shown.study.data == "cifar10"]
    for cifar in [page for page in own if not page.shown.study.pretraining]:
        twin = replace(cifar.shown.study, data="imagenet")
        for other in [page for page in found if _alike(page.shown.study, twin)]:
            for workers in WORKERS[1:]:
                few, many = (
                    harmless_range(page.shown.study, page.shown.results, workers)
                    for page in (cifar, other)
                )
                if few is not None and many is not None:
                    text = f"K={workers}: {many.text} on {larger}, {few.text} on {cifar.label}"
                    said.append((many.mean > few.mean, text))
    if not said:
        return "not measured", ""
    good = [text for holds, text in said if holds]
    where = f"{_word(len(good), len(said))} {len(good)} of {len(said)} comparisons"
    return "; ".join([where, *good]), "; ".join(text for holds, text in said if not holds)


def _word(good: int, of: int) -> str:
    return "Holds:" if good == of else "Holds in part:" if good else "Does not hold:"


def _alike(study: Study, other: Study) -> bool:
    return _but_start(study) == _but_start(other) and study.start == other.start


def _short(finding: Finding) -> str:
    detail = finding.claim.partition(": ")[2] or finding.claim.partition("loses ")[2]
    return f"{detail + ': ' if detail else ''}{finding.measured}"


def _matrix(found: Sequence[StudyPage]) -> CardTable:
    """Every finding in a row, every study in a column."""
    by_study = [_by_claim(page) for page in found]
    claims = list(dict.fromkeys(claim for own in by_study for claim in own))
    expected = {claim: own[claim].expected for own in by_study for claim in own}
    several = [{own[c].expected for own in by_study if c in own} for c in claims]
    shared = {claim for claim, each in zip(claims, several, strict=True) if len(each) == 1}
    rows = [
        [
            claim,
            expected[claim] if claim in shared else "the paper's number for the data set",
            *(_cell(own.get(claim)) for own in by_study),
        ]
        for claim in claims
    ]
    header = ["finding", "expected", *(page.label for page in found)]
    return CardTable(header, rows, words=True, whole=len(found) <= _COLUMNS, stack=True)


def _by_claim(page: StudyPage) -> dict[str, Finding]:
    """Findings by claims; what one seed shows is never sure."""
    alone = page.one_seed
    return {f.claim: f._replace(sure=f.sure and not alone) for f in page.shown.found}


def _cell(finding: Finding | None) -> str:
    if finding is None or finding.holds is None:
        return "-"
    return f"{MARKS[finding.holds, finding.sure]} {finding.measured}"


def _numbers(found: Sequence[StudyPage]) -> CardTable:
    """The numbers that the paper's text gives, beside those of every study."""
    rows = [
        ["network", "ResNet-50, pretrained", *(p.shown.study.network_text for p in found)],
        [
            "T_0, of 2000, 5000, 10000",
            "not said which",
            *(str(t.steps) if (t := p.shown.chosen.get("auc")) else "-" for p in found),
        ],
        [
            "eta_0, of 0.1, 0.01, 0.001",
            "not said which",
            *(f"{t.lr:g}" if (t := p.shown.chosen.get("auc")) else "-" for p in found),
        ],
    ]
    for workers, paper in ((16, "64, 64, 1024"), (4, "512, 512, not said")):
        for margin in (MARGIN, 2 * MARGIN):
            limits = (
                harmless_range(p.shown.study, p.shown.results, workers, margin) for p in found
            )
            rows.append(
                [
                    f"largest I at K={workers} that loses at most {margin:g} of AUC",
                    f"{paper} (CIFAR-10, CIFAR-100, ImageNet)",
                    *("-" if limit is None else limit.text for limit in limits),
                ]
            )
    header = ["number", "the paper", *(page.label for page in found)]
    return CardTable(header, rows, words=True, whole=True, stack=True)


def _starts(found: Sequence[StudyPage]) -> CardTable:
    """Findings of a study that starts from zeros, as the paper, beside those from estimates."""
    pairs = [
        (zero, other)
        for zero in found
        for other in found
        if other.shown.study.start != "zero" == zero.shown.study.start
        and _but_start(zero.shown.study) == _but_start(other.shown.study)
    ]
    rows = []
    for zero, other in pairs:
        theirs = _by_claim(other)
        for mine in _by_claim(zero).values():
            there = theirs.get(mine.claim)
            if mine.holds is not None and there is not None and there.holds is not None:
                changes = "yes" if mine.holds != there.holds else "no"
                rows.append([zero.label, mine.claim, _cell(mine), _cell(there), changes])
    header = ["study", "finding", "zeros", "estimated", "verdict changes"]
    return CardTable(header, rows, words=True, whole=True, stack=True)


def _but_start(study: Study) -> tuple[object, ...]:
    setting = (study.pretraining, study.lr, study.steps)
    return study.data, study.percent, study.scale, study.network.name, *setting


def _origins(found: Sequence[StudyPage]) -> CardTable:
    """Where everything comes from."""
    rows = [
        [
            page.label,
            page.shown.command,
            ", ".join(page.shown.commits) or "unknown",
            str(sum(len(runs) for runs in page.shown.results.evaluations.values())),
            duration(page.shown.cpu_seconds) if page.shown.cpu_seconds else "not recorded",
        ]
        for page in found
    ]
    header = ["study", "command", "commits of the runs", "runs", "processor time"]
    return CardTable(header, rows, words=True, whole=True, stack=True)


def _files(page: StudyPage, folder: Path) -> Iterator[tuple[str, str]]:
    """The pictures of a study in its directory; the first two as one, as in the paper."""
    together = "figure.svg"
    own = folder / page.name
    names = [name for name in (*TITLES, "headline", "tuning") if (own / f"{name}.svg").exists()]
    if (folder / page.name / together).exists():
        yield "(a) Fix I, vary K. (b) Fix K, vary I.", f"{page.name}/{together}"
        names = [name for name in names if name not in ("workers", "period")]
    for name in names:
        yield TITLES.get(name, FIGURES.get(name, name)), f"{page.name}/{name}.svg"


def _missing(found: Sequence[StudyPage]) -> Iterator[str]:
    """What of the paper has not been made: whole studies, and figures of those that are there."""
    there = {(page.shown.study.data, page.shown.study.percent) for page in found}
    for data in DATA:
        for percent in KEEP:
            if (data, percent) not in there:
                command = f"`codauc reproduce {data}-{percent}`"
                yield f"{DATA[data].title} with {percent}% positives: {command}"
    networks = {page.shown.study.network.name for page in found}
    if not any(page.shown.study.pretraining or page.shown.study.scale == "paper" for page in found):
        yield f"A pretrained network, as the paper's: {_COMMAND} --pretrain PATH`"
    if not networks & _NORMALISED:
        yield f"A network with BatchNorm, as the paper's: {_COMMAND} --model resnet8`"
    for page in found:
        study, results = page.shown.study, page.shown.results
        for name in figures(study.percent):
            points = points_of(study, name)
            lacking = [point.label for point in points if point not in results]
            if lacking:
                yield f"{page.label}, {name}: {', '.join(lacking)}"
        if not page.shown.constants and "table1" in figures(study.percent):
            yield f"{page.label}, table1: its measured constants"
