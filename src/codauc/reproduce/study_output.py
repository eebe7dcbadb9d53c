"""What a study leaves behind: pictures, tables and a README."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from codauc._internal.files import whole_file
from codauc._internal.formats import count, size
from codauc.report.charts import Series, auc_chart, line_chart, row_chart, side_by_side
from codauc.report.rendering import Card, render
from codauc.reproduce import study_tables as tables
from codauc.reproduce.figure_definitions import HEADLINE, TITLES, figures, points_of
from codauc.reproduce.findings import Finding, findings
from codauc.reproduce.kept_runs import HEADER, KeptRun
from codauc.reproduce.measured_constants import StageConstants
from codauc.reproduce.study import Study, Tuned
from codauc.reproduce.study_results import MARGIN, Link, Results
from codauc.reproduce.study_tables import StudyTable
from codauc.training.recipe import PAPER

ABOUT, CONSTANTS, CURVES = "about.json", "constants.json", "curves.csv"
_OPTIONAL = ("constants", "runs")  # tables that are left out where they are empty
IDENTITY = ("data", "percent", "scale", "model", "pretraining", "start", "lr", "steps")
_FIGURE = ("workers", "period")  # the panels (a) and (b) of the paper's figures, in a row


@dataclass(frozen=True)
class Shown:
    """Everything that is shown of a study."""

    study: Study
    results: Results
    tried: Mapping[str, Mapping[Tuned, float]]
    chosen: Mapping[str, Tuned]
    link: Link
    step_seconds: float
    commits: Sequence[str]
    command: str
    whole: bool = True  # whether these are all figures of the study
    constants: Sequence[StageConstants] = ()
    tuning_seeds: int = 1  # whose mean has chosen T_0 and eta_0
    cpu_seconds: float = 0.0  # of the processor, for all runs; 0 where it was not measured
    runs: Sequence[KeptRun] = ()  # all that are finished

    @property
    def found(self) -> list[Finding]:
        """The paper's findings; of some figures alone, those that they show."""
        found = findings(self.study, self.results)
        return [each for each in found if self.whole or each.holds is not None]

    @property
    def setting(self) -> str:
        """How the runs were made, in a few sentences."""
        study, most = self.study, max(map(len, self.results.evaluations.values()), default=0)
        fewer = any(len(runs) < most for runs in self.results.evaluations.values())
        stages = f"{study.size.stages} stages, T_s = T_0 3^(s-1), eta_s = eta_0 / 3^(s-1)"
        tuned = self.chosen.get("auc")
        how = "" if tuned is None else f" with T_0 = {tuned.steps} and eta_0 = {tuned.lr:g}"
        how += ", a, b and alpha estimated before the first step" * (study.start == "estimate")
        seeds = f"{most} seed{'s' * (most != 1)}{', where no finding rests on it one' * fewer}"
        if not self.whole:
            seeds = f"in part: {'up to ' * fewer}{most} seed{'s' * (most != 1)} so far"
        return (
            f"{study.title}; {study.network_text}, batch {PAPER.batch_size} per worker, "
            f"gamma = {PAPER.gamma:g}, {stages}{how}; {seeds}. The target is the final AUC of one "
            f"worker, of the same seed, less {MARGIN:g}. Intervals are 95%, over seeds."
        )

    @property
    def model_of_time(self) -> str:
        """What modelled seconds are."""
        return (
            "Iterations, rounds and bytes are measured. Time is modelled, as the workers shared "
            f"one machine: iterations x {1e3 * self.step_seconds:.2f} ms, which a step of one "
            f"worker took here ({self.study.device}, one thread), + rounds x 2 (K-1) x latency "
            f"+ bytes / bandwidth, with a link of {self.link.text}."
        )


def write(shown: Shown, folder: Path) -> None:
    """Write everything into `folder`; the page of all studies is `overview`'s."""
    pictures, made = pictures_of(shown), _tables(shown)
    files = {f"{name}.csv": t.csv() for name, t in made.items() if t.rows or name not in _OPTIONAL}
    files[ABOUT] = about(shown)
    if shown.constants:
        files[CONSTANTS] = json.dumps([asdict(each) for each in shown.constants], indent=1)
    for name, (title, cards) in pictures.items():
        files[f"{name}.svg"] = _side_by_side(shown, title, cards)
    row = [card for name in _FIGURE if name in pictures for card in pictures[name][1]]
    if len(row) == 2 * len(_FIGURE):
        files["figure.svg"] = _side_by_side(shown, "(a) Fix I, vary K. (b) Fix K, vary I.", row)
    files["README.md"] = render(
        "study.md",
        title=shown.study.title,
        setting=shown.setting,
        time=shown.model_of_time,
        scale=shown.study.scale,
        made=f"Made by: {shown.command} (runs at commit {', '.join(shown.commits) or 'unknown'}).",
        findings=made["findings"].card(),
        pictures=[(title, f"{name}.svg") for name, (title, _) in pictures.items()],
        tables=[(table.title, table.card(), table.note) for table in tables_of(shown)],
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with whole_file(folder / name) as partial:
            partial.write_text(content, encoding="utf-8")


def tables_of(shown: Shown) -> list[StudyTable]:
    """The tables that people read."""
    return [table for table in _tables(shown).values() if table.note and table.rows]


def about(shown: Shown) -> str:
    """What the tables do not say of a study, to read it again from its directory."""
    study, link = shown.study, shown.link
    facts = {name: getattr(study, name) for name in IDENTITY}
    facts |= {"command": shown.command, "commits": list(shown.commits), "whole": shown.whole}
    facts |= {"cpu_seconds": round(shown.cpu_seconds), "tuning_seeds": shown.tuning_seeds}
    facts |= {"step_seconds": shown.step_seconds if math.isfinite(shown.step_seconds) else None}
    return json.dumps(facts | {"latency": link.latency, "bandwidth": link.bandwidth}, indent=1)


def _side_by_side(shown: Shown, title: str, cards: Sequence[Card]) -> str:
    return side_by_side(f"{shown.study.title}. {title}", [card.picture for card in cards])


def pictures_of(shown: Shown) -> dict[str, tuple[str, list[Card]]]:
    """The title and the cards of each picture that has any, by the name of its file."""
    names = [name for name in figures(shown.study.percent) if name in TITLES]
    found = {name: (TITLES[name], _curves(name, shown)) for name in names}
    title = f"K=16: what one worker's final AUC less {MARGIN:g} costs"
    found["headline"] = (title, _cost_bars(shown.results))
    found["tuning"] = ("Tuning: T_0 and eta_0 for one worker", _tuning_bars(shown))
    return {name: (title, cards) for name, (title, cards) in found.items() if cards}


def _curves(figure: str, shown: Shown) -> list[Card]:
    """AUC against iterations and against modelled time, the mean over seeds with their range."""
    runs = shown.results.evaluations
    known = [
        (i, point) for i, point in enumerate(points_of(shown.study, figure)) if runs.get(point)
    ]
    if len(known) < 2:
        return []  # nothing varies yet
    many = any(len(runs[point]) > 1 for _, point in known)
    mean = "The mean over seeds; the band is their range" if many else "One seed"
    time = f"modelled seconds ({shown.link.text})"
    cards = []
    for field, label in (("step", "iterations"), ("seconds", time)):
        series = [
            Series(
                point.label,
                curve[field],
                curve["auc"],
                curve["low"],
                curve["high"],
                colour=i,
                dash=i,
            )
            for i, point in known
            for curve in [shown.results.mean_curve(point)]
        ]
        chart = auc_chart("test", field, series, label, log_x=field == "seconds")
        cards.append(Card("", f"{mean}. Further left is cheaper.", line_chart(chart)))
    return [card for card in cards if card.shown]


def _cost_bars(results: Results) -> list[Card]:
    """Rounds and bytes to the target of NP-PPD-SG, CoDA and data parallel cross-entropy."""
    forms: dict[str, tuple[str, Callable[[float], str]]] = {
        "rounds": ("Rounds to the target AUC (logarithmic)", count),
        "bytes": ("Bytes sent per worker (logarithmic)", size),
    }
    found = []
    for what, (title, form) in forms.items():
        costs = {name: results.needed(p, what) for p, name in HEADLINE.items() if p in results}
        means = [cost.mean for cost in costs.values() if cost is not None]
        if len(means) < 2:
            continue
        low = 10 ** math.floor(math.log10(min(means)) - 0.3)
        rows = [
            (name, 0.0, "does not reach it")
            if cost is None
            else (name, math.log10(cost.mean / low), form(cost.mean))
            for name, cost in costs.items()
        ]
        caption = "Mean over seeds. Bytes are what a worker sends, in a ring."
        found.append(Card("", caption, row_chart(title, rows, heading=True)))
    return found


def _tuning_bars(shown: Shown) -> list[Card]:
    """The AUC on what was held out, by step size, of each objective."""
    found = []
    for name, tried in shown.tried.items():
        marks = {shown.chosen.get(name): ", chosen"}
        rows = [
            (
                f"T_0={each.steps}, eta_0={each.lr:g}{marks.get(each, '')}",
                max(0.0, auc - 0.5),
                f"{auc:.4f}" if auc else "diverged",
            )
            for each, auc in sorted(tried.items())
        ]
        title = "Held-out AUC, the bars from 0.5" + ": cross-entropy" * (name == "bce")
        mean = f"the mean over {shown.tuning_seeds} seeds" if shown.tuning_seeds > 1 else "seed 0"
        found.append(Card("", f"One worker, {mean}.", row_chart(title, rows, heading=True)))
    return [card for card in found if card.shown]


def _tables(shown: Shown) -> dict[str, StudyTable]:
    """All numbers, by the name of their file."""
    return {
        "findings": tables.findings(shown.found),
        "table1": tables.counts(shown.study, shown.results),
        "links": tables.links(shown.results, shown.step_seconds),
        "tuning": tables.tuned(shown.tried, shown.chosen, shown.tuning_seeds),
        "ends": tables.ends(shown.results),
        "curves": tables.curves(shown.results),
        "constants": tables.constants(shown.constants),
        "runs": StudyTable(HEADER, [run.row for run in shown.runs]),
    }
