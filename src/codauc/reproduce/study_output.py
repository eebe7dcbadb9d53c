"""What a study leaves behind: pictures, tables, a page and a README."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from codauc._internal.files import whole_file
from codauc._internal.formats import count, size
from codauc.report.charts import Chart, Series, line_chart, row_chart, side_by_side
from codauc.report.rendering import Card, CardTable, render
from codauc.reproduce import study_tables as tables
from codauc.reproduce.figure_definitions import HEADLINE, Panel
from codauc.reproduce.findings import Finding, findings, rows
from codauc.reproduce.study import BATCH, GAMMA, Study, StudyPoint, Tuned
from codauc.reproduce.study_results import MARGIN, Link, Results
from codauc.reproduce.study_tables import StudyTable

PAGE, TEXT = "index.html", "README.md"
_FIGURE = ("workers", "period")  # the panels (a) and (b) of the paper's figures, in a row
_FINDINGS = ["finding", "expected", "measured", "verdict"]


@dataclass(frozen=True)
class Shown:
    """Everything that is shown of a study."""

    study: Study
    panels: Sequence[Panel]
    results: Results
    tried: Mapping[str, Mapping[Tuned, float]]
    chosen: Mapping[str, Tuned]
    link: Link
    step_seconds: float
    commits: Sequence[str]
    command: str
    whole: bool = True  # whether these are all figures of the study

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
        return (
            f"{study.title}; {study.size.model}, batch {BATCH} per worker, gamma = {GAMMA:g}, "
            f"{stages}{how}; {most} seed{'s' * (most != 1)}"
            f"{', where no finding rests on it one' * fewer}. The target is the final AUC of one "
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


def write(shown: Shown, folder: Path) -> list[Path]:
    """Write everything into `folder`; return the page and the README."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {panel: charts(panel, shown.results, shown.link) for panel in shown.panels}
    for panel, pictures in drawn.items():
        if pictures:
            title = f"{shown.study.title}. {panel.title}"
            _save(folder / f"{panel.name}.svg", side_by_side(title, pictures))
    row = [each for panel, some in drawn.items() if panel.name in _FIGURE for each in some]
    if len(row) == 2 * len(_FIGURE):
        title = f"{shown.study.title}. (a) Fix I, vary K. (b) Fix K, vary I."
        _save(folder / "figure.svg", side_by_side(title, row))
    bars = cost_bars(shown.results)
    if bars:
        _save(folder / "headline.svg", side_by_side(_headline(shown), bars))
    for name, table in _tables(shown).items():
        _save(folder / f"{name}.csv", _csv(table))
    _save(folder / PAGE, page(shown, drawn, bars))
    _save(folder / TEXT, text(shown, folder))
    return [folder / PAGE, folder / TEXT]


def charts(panel: Panel, results: Results, link: Link) -> list[Markup]:
    """AUC against iterations and against modelled time, the mean over seeds with their range."""
    known = [(i, point) for i, point in enumerate(panel.points) if point in results]
    axes = [
        ("step", "iterations", "iterations", "count"),
        ("seconds", "time", f"modelled seconds ({link.text})", "number"),
    ]
    found = []
    for field, name, label, kind in axes:
        series = [_series(point, i, results, field) for i, point in known]
        chart = Chart(
            title=f"{panel.title}: test AUC against {name}",
            x_label=label,
            y_label="test AUC",
            series=series,
            x_kind=kind,
            log_x=field == "seconds",
            y_limits=(0.0, 1.0),
        )
        found.append(line_chart(chart))
    return [text for text in found if text]


def _series(point: StudyPoint, i: int, results: Results, field: str) -> Series:
    curve = results.mean_curve(point)
    many = len(results.evaluations[point]) > 1
    return Series(
        point.label,
        curve[field],
        curve["auc"],
        low=curve["low"] if many else None,
        high=curve["high"] if many else None,
        colour=i,
        dash=i % 4,
    )


def cost_bars(results: Results) -> list[Markup]:
    """Rounds and bytes to the target of NP-PPD-SG, CoDA and data parallel cross-entropy."""
    known = {p: text for p, text in HEADLINE.items() if p in results}
    forms = {
        "rounds": ("Rounds to the target AUC", count),
        "bytes": ("Bytes sent per worker", size),
    }
    found = []
    for what, (title, form) in forms.items():
        costs = {text: results.needed(point, what) for point, text in known.items()}
        means = {text: None if cost is None else cost.mean for text, cost in costs.items()}
        if sum(mean is not None for mean in means.values()) > 1:
            found.append(_logarithmic(title, means, form))
    return found


def _logarithmic(
    title: str, means: Mapping[str, float | None], form: Callable[[float], str]
) -> Markup:
    """Bars on a logarithmic scale; each ends with its amount."""
    low = 10 ** math.floor(math.log10(min(mean for mean in means.values() if mean)) - 0.3)
    rows = [
        (name, math.log10(mean / low), form(mean)) if mean else (name, 0.0, "does not reach it")
        for name, mean in means.items()
    ]
    return row_chart(f"{title} (logarithmic)", rows, heading=True)


def _tables(shown: Shown) -> dict[str, StudyTable]:
    found = StudyTable(_FINDINGS, [list(row) for row in rows(shown.found)])
    return {
        "findings": found,
        "table1": tables.counts(shown.study, shown.results),
        "links": tables.links(shown.results, shown.step_seconds),
        "ends": tables.ends(shown.results),
        "tuning": tables.tuned(shown.tried, shown.chosen),
        "curves": tables.curves(shown.results),
    }


def _headline(shown: Shown) -> str:
    return f"{shown.study.title}, K=16: what one worker's final AUC less {MARGIN:g} costs"


def page(shown: Shown, drawn: Mapping[Panel, Sequence[Markup]], bars: Sequence[Markup]) -> str:
    """One HTML file."""
    made = _tables(shown)
    found = CardTable(_FINDINGS, rows(shown.found), words=True, whole=True)
    sections: list[tuple[str, list[Card], list[Card]]] = [
        ("Findings", [], [Card(caption=_made(shown), table=found)])
    ]
    for panel, pictures in drawn.items():
        many = any(len(shown.results.evaluations.get(p, ())) > 1 for p in panel.points)
        cards = [Card("", _CAPTION if many else _ONE, each) for each in pictures]
        sections.append((panel.title, cards, []))
    caption = "Mean over seeds. Bytes are what a worker sends, in a ring."
    sections.append((_headline(shown), [Card("", caption, bar) for bar in bars], []))
    for name, title in _TITLES.items():
        table = CardTable(made[name].header, tables.as_texts(made[name]))
        card = Card(caption=_NOTES.get(name, ""), table=table if table.rows else None)
        sections.append((title, [], [card]))
    return render(
        "study.html",
        title=shown.study.title,
        over=f"The paper, reproduced: {shown.study.scale} scale",
        setting=shown.setting,
        sections=sections,
        time=shown.model_of_time,
    )


_ONE = "One seed. Further left is cheaper."
_CAPTION = "The mean over seeds; the band is their range. Further left is cheaper."
_TITLES = {
    "table1": "Table 1: iterations and rounds to the target",
    "links": "Modelled seconds to the target, by link",
    "tuning": "Tuning: T_0 and eta_0 for one worker",
    "ends": "Every run",
}
_NOTES = {
    "table1": "Mean over seeds with its interval; the theory's orders are without constants.",
    "links": "From the counts at the target; the mean over seeds.",
    "tuning": "AUC on a tenth of the training data, which these runs did not train on. The grid is "
    "the paper's, extended by 3 where its best was at the edge.",
}


def _made(shown: Shown) -> str:
    commits = ", ".join(shown.commits) or "unknown"
    return f"Made by: {shown.command} (runs at commit {commits})."


def text(shown: Shown, folder: Path) -> str:
    """The same for a README: findings, pictures, Table 1."""
    made = {name: CardTable(t.header, tables.as_texts(t)) for name, t in _tables(shown).items()}
    pictures = [*((p.title, f"{p.name}.svg") for p in shown.panels)]
    pictures.append((_headline(shown), "headline.svg"))
    return render(
        "study.md",
        title=shown.study.title,
        scale=shown.study.scale,
        made=_made(shown),
        setting=shown.setting,
        findings=made["findings"],
        pictures=[(title, name) for title, name in pictures if (folder / name).exists()],
        tables=[(_TITLES[n], made[n], _NOTES[n]) for n in _NOTES if made[n].rows],
        time=shown.model_of_time,
    )


def _csv(table: StudyTable) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.header)
    writer.writerows(table.rows)
    return buffer.getvalue()


def _save(path: Path, content: str) -> None:
    with whole_file(path) as partial:
        partial.write_text(content, encoding="utf-8")
