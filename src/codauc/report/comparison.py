"""Several runs side by side, in the terminal and on a page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from codauc._internal import formats
from codauc.metrics.auc_difference import Difference, paired_auc_difference
from codauc.report.chart_parts import COLOURS, swatch
from codauc.report.charts import Chart, Series, line_chart
from codauc.report.curves import roc
from codauc.report.history_cards import PROGRESS, time_unit
from codauc.report.rendering import Card, CardTable, render
from codauc.report.run_material import Material, material
from codauc.report.test_set_cards import roc_chart
from codauc.runs.directory import RunFolder

HEADER = [
    *("run", "recipe/model", "K", "I", "test AUC", "95% interval", "AP"),
    *("steps", "rounds", "MB per worker", "seconds"),
]
DIFFERENCE = "AUC - first (95% interval)"
_FAR = 10.0  # costs that differ by more are drawn on a logarithmic axis


def comparison_rows(runs: Sequence[RunFolder]) -> tuple[list[str], list[list[str]]]:
    """The header and a row for each run, for `codauc._internal.text_table.table`.

    If the test labels of another run are those of the first, in the same order, a last column has
    the difference of their AUC with its paired interval. What a run does not know is a dash.
    """
    return _rows(_material(runs))


def comparison_page(runs: Sequence[RunFolder]) -> str:
    """One HTML file with the table, the AUC of all runs against what they cost, and their ROC."""
    found = _material(runs)
    header, rows = _rows(found)
    lines = [swatch(*line_style(i)) for i in range(len(found))]
    note = "K workers average every I iterations. AP is the average precision."
    if DIFFERENCE in header:
        note += (
            " The difference to the first run is on the same test labels; if its interval (of "
            "DeLong, paired) contains 0, the runs cannot be told apart."
        )
    return render(
        "comparison.html",
        names=names(found),
        lines=lines,
        results=Card(caption=note, table=CardTable(header, rows, lines=lines)),
        cards=[*(_auc_card(found, field) for field in PROGRESS), _roc_card(found)],
    )


def line_style(i: int) -> tuple[int, int]:
    """The colour and the dashes of run `i`; 28 runs all differ.

    >>> len({line_style(i) for i in range(28)})
    28
    """
    return i % COLOURS, i % 4


def names(runs: Sequence[Material]) -> list[str]:
    """The directories' names, or the paths if two are the same."""
    short = [run.name for run in runs]
    return short if len(set(short)) == len(short) else [str(run.path) for run in runs]


def _material(runs: Sequence[RunFolder]) -> list[Material]:
    if not runs:
        raise ValueError("runs=[]: expected at least one run; name the directories to compare.")
    return [material(run) for run in runs]


def _rows(runs: Sequence[Material]) -> tuple[list[str], list[list[str]]]:
    rows = [_row(name, run) for name, run in zip(names(runs), runs, strict=True)]
    differences = [_difference(runs[0], run) for run in runs[1:]]
    if not any(differences):
        return HEADER, rows
    cells = ["", *("-" if each is None else _signed(each) for each in differences)]
    place = HEADER.index("AP")
    header = [*HEADER[:place], DIFFERENCE, *HEADER[place:]]
    return header, [
        [*row[:place], cell, *row[place:]] for row, cell in zip(rows, cells, strict=True)
    ]


def _row(name: str, run: Material) -> list[str]:
    model = run.summary.get("model")
    parts = [run.setting("recipe", "name"), model.get("name") if isinstance(model, dict) else None]
    precision, sent, seconds = map(run.value, ("average_precision", "bytes_per_worker", "seconds"))
    every = run.setting("communication", "sync_every")
    if run.setting("communication", "averages") == "gradients":
        every = 1
    return [
        name,
        "/".join(str(part) for part in parts if part) or "-",
        str(len(run.workers) or "-"),
        "-" if every is None or len(run.workers) == 1 else str(every),
        formats.auc_text(run.value("test_auc")),
        formats.interval_text(run.value("auc_low"), run.value("auc_high")) or "-",
        "-" if precision is None else f"{precision:.4f}",
        _count(run.value("steps")),
        _count(run.value("rounds")),
        "-" if sent is None else formats.digits(sent / 1e6, 3),
        "-" if seconds is None else formats.digits(seconds, 3),
    ]


def _count(value: float | None) -> str:
    return "-" if value is None else formats.count(value)


def _difference(first: Material, other: Material) -> Difference | None:
    """How the other's AUC differs from the first's, if both scored the same samples."""
    if first.scores is None or other.scores is None or first.points is None or other.points is None:
        return None
    (mine, labels), (scores, theirs) = first.scores, other.scores
    if not np.array_equal(labels, theirs) or np.isnan(mine).any() or np.isnan(scores).any():
        return None
    return paired_auc_difference(scores, mine, labels)


def _signed(found: Difference) -> str:
    return f"{found.value:+.4f} ({found.low:+.4f} to {found.high:+.4f})"


def _auc_card(runs: Sequence[Material], field: str) -> Card:
    name, label, kind = PROGRESS[field]
    columns = [run.column(field) for run in runs]
    factor = 1.0
    if field == "seconds":
        factor, label = time_unit(max(float(np.nanmax(x, initial=0.0)) for x in columns))
    series = [
        Series(title, x / factor, run.column("auc"), None, None, *line_style(i))
        for i, (title, x, run) in enumerate(zip(names(runs), columns, runs, strict=True))
        if field in ("step", "seconds") or run.communicates
    ]
    chart = Chart(
        title=f"{' and '.join(sorted({r.watched for r in runs})).capitalize()} AUC against {name}",
        x_label=label,
        y_label="AUC",
        series=series,
        x_kind=kind,
        log_x=field in ("rounds", "bytes") and _far_apart([s.x for s in series]),
        y_limits=(0.0, 1.0),
        legend=False,
    )
    caption = "Higher is better; further left is cheaper."
    caption += " The axis is logarithmic." if chart.log_x else ""
    if len(series) < len(runs):
        caption += " Runs of one worker do not communicate and are not drawn."
    return Card(chart.title, caption, line_chart(chart))


def _far_apart(columns: Sequence[np.typing.NDArray[np.float64]]) -> bool:
    totals = [total for x in columns if (total := float(np.nanmax(x, initial=0.0))) > 0]
    return bool(totals) and max(totals) > _FAR * min(totals)


def _roc_card(runs: Sequence[Material]) -> Card:
    series = []
    for i, (name, run) in enumerate(zip(names(runs), runs, strict=True)):
        if run.points is not None:
            curve = roc(run.points)
            series.append(Series(name, curve.false_rate, curve.recall, None, None, *line_style(i)))
    chart = roc_chart("ROC curves of the test sets", series, legend=False)
    caption = "The nearer to the upper left corner the better; the dotted diagonal is chance."
    return Card(chart.title, caption, line_chart(chart))
