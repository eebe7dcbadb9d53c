"""What a study leaves behind: pictures, tables, one page, and a text for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from codauc.experiments import tables
from codauc.experiments.findings import Finding, findings, rows
from codauc.experiments.panels import Panel
from codauc.experiments.pictures import charts, cost_bars, side_by_side
from codauc.experiments.results import MARGIN, Link, Results
from codauc.experiments.study import BATCH, GAMMA, Study, Tuned
from codauc.experiments.tables import Table
from codauc.report.html import document, escape, figure, grid, html_table, section
from codauc.writing import whole_file

PAGE, TEXT = "index.html", "README.md"
_FIGURE = ("workers", "period")  # the panels (a) and (b) of the paper's figures, in a row
_FINDINGS = ["finding", "expected", "measured", "verdict"]


@dataclass(frozen=True)
class Shown:
    """Everything that is told of a study."""

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
        """The paper's findings; of some figures alone, those that they tell of."""
        found = findings(self.study, self.results)
        return [each for each in found if self.whole or each.holds is not None]

    @property
    def setting(self) -> str:
        """How the runs were made, in a few sentences."""
        study, most = self.study, max(map(len, self.results.looks.values()), default=0)
        fewer = any(len(runs) < most for runs in self.results.looks.values())
        stages = f"{study.size.stages} stages, T_s = T_0 3^(s-1), eta_s = eta_0 / 3^(s-1)"
        tuned = self.chosen.get("auc")
        how = "" if tuned is None else f" with T_0 = {tuned.steps} and eta_0 = {tuned.lr:g}"
        how += ", a, b and alpha estimated before the first step" * (study.start == "estimate")
        return (
            f"{study.title}; {study.size.model}, batch {BATCH} a worker, gamma = {GAMMA:g}, "
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
    """Write everything into `folder`; return what people look at first."""
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
    _save(folder / PAGE, page(shown, bars))
    _save(folder / TEXT, text(shown, folder))
    return [folder / PAGE, folder / TEXT]


def _tables(shown: Shown) -> dict[str, Table]:
    found = Table(_FINDINGS, [list(row) for row in rows(shown.found)])
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


def page(shown: Shown, bars: Sequence[str]) -> str:
    """One HTML file."""
    made = _tables(shown)
    parts = [
        f'<header><p class="over">The paper, reproduced: {escape(shown.study.scale)} scale</p>'
        f"<h1>{escape(shown.study.title)}</h1>"
        f'<p class="plain">{escape(shown.setting)}</p></header>',
        section(
            "Findings",
            [
                figure(
                    "", _whole(html_table(_FINDINGS, rows(shown.found), words=True)), _made(shown)
                )
            ],
        ),
    ]
    for panel in shown.panels:
        pictures = charts(panel, shown.results, shown.link)
        many = any(len(shown.results.looks.get(p, ())) > 1 for p in panel.points)
        cards = [figure("", each, _CAPTION if many else _ONE) for each in pictures]
        parts.append(section(panel.title, [grid(cards)]))
    if bars:
        caption = "Mean over seeds. Bytes are what a worker sends, in a ring."
        parts.append(section(_headline(shown), [grid([figure("", bar, caption) for bar in bars])]))
    for name, title in _TITLES.items():
        table = made[name]
        if table.rows:
            content = html_table(table.header, tables.as_texts(table))
            parts.append(section(title, [figure("", content, _NOTES.get(name, ""))]))
    parts.append(section("Time", [f'<p class="plain">{escape(shown.model_of_time)}</p>']))
    return document(f"{shown.study.title}: the paper, reproduced", parts)


def _whole(table: str) -> str:
    """Without a box that scrolls: this is what people come for."""
    return table.replace('class="scroll"', 'class="scroll" style="max-height:none"', 1)


_ONE = "One seed. Further left is cheaper."
_CAPTION = "The mean over seeds; the band is their range. Further left is cheaper."
_TITLES = {
    "table1": "Table 1: iterations and rounds to the target",
    "links": "Modelled seconds to the target, by link",
    "tuning": "Tuning: T_0 and eta_0 for one worker",
    "ends": "Every run",
}
_NOTES = {
    "links": "From the counts at the target; the mean over seeds.",
    "table1": "Mean over seeds with its interval; the theory's orders are without constants.",
    "tuning": "AUC on a tenth of the training data, which these runs did not train on. The grid is "
    "the paper's, extended by 3 where its best was at the edge.",
}


def _made(shown: Shown) -> str:
    commits = ", ".join(shown.commits) or "unknown"
    return f"Made by: {shown.command} (runs at commit {commits})."


def text(shown: Shown, folder: Path) -> str:
    """The same for a README: findings, pictures, Table 1."""
    made = _tables(shown)
    lines = [
        f"# {shown.study.title}: the paper, reproduced at {shown.study.scale} scale",
        "",
        f"{_made(shown)}",
        "",
        shown.setting,
        "",
        "## Findings",
        "",
        tables.markdown(_FINDINGS, rows(shown.found)),
    ]
    pictures = [(panel.title, f"{panel.name}.svg") for panel in shown.panels]
    pictures.append((_headline(shown), "headline.svg"))
    for title, name in pictures:
        if (folder / name).exists():
            lines += ["", f"## {title}", "", f"![{title}]({name})"]
    for name, title in list(_TITLES.items())[:-1]:
        table = made[name]
        if table.rows:
            lines += ["", f"## {title}", "", tables.markdown(table.header, tables.as_texts(table))]
            lines += ["", _NOTES[name]]
    lines += ["", "## Time", "", shown.model_of_time, ""]
    lines += ["Numbers: curves.csv (every look), ends.csv (every run), findings.csv, table1.csv,"]
    lines += ["links.csv, tuning.csv; the page: index.html.", ""]
    return "\n".join(lines)


def _csv(table: Table) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.header)
    writer.writerows(table.rows)
    return buffer.getvalue()


def _save(path: Path, content: str) -> None:
    with whole_file(path) as partial:
        partial.write_text(content, encoding="utf-8")
