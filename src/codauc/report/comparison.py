"""Several runs side by side, in the terminal and on a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from codauc._internal import formats
from codauc.metrics.auc_difference import Difference, paired_auc_difference
from codauc.report.charts import PROGRESS, Series, auc_chart, chart_card
from codauc.report.curves import thinned_points
from codauc.report.rendering import Card, CardTable, render
from codauc.report.run_material import Material
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
    note = "K workers average every I iterations. AP is the average precision."
    if DIFFERENCE in header:
        note += (
            " The difference to the first run is on the same test labels; if its interval (of "
            "DeLong, paired) contains 0, the runs cannot be told apart."
        )
    return render(
        "comparison.html",
        names=names(found),
        results=Card(caption=note, table=CardTable(header, rows, samples=True)),
        cards=[*(_auc_card(found, field) for field in PROGRESS), _roc_card(found)],
    )


def against(run: RunFolder, others: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """What baselines.json holds: how others compare with a run on its own test samples.

    `difference` is the AUC of the other less that of the run, with DeLong's paired interval.
    """
    mine, found = Material(run), list[dict[str, Any]]()
    for other in _material(others):
        gap = _difference(mine, other)
        model = other.summary.get("model")
        if gap is not None and isinstance(model, dict):
            facts = {"name": model.get("name"), "auc": other.value("test_auc")}
            facts |= {"difference": gap.value, "low": gap.low, "high": gap.high}
            precision, seconds = other.value("average_precision"), other.value("seconds")
            found.append({**facts, "average_precision": precision, "seconds": seconds})
    return found


def names(runs: Sequence[Material]) -> list[str]:
    """The directories' names, or the paths if two are the same."""
    short = [run.name for run in runs]
    return short if len(set(short)) == len(short) else [str(run.path) for run in runs]


def _material(runs: Sequence[RunFolder]) -> list[Material]:
    if not runs:
        raise ValueError("runs=[]: expected at least one run; name the directories to compare.")
    return [Material(run) for run in runs]


def _rows(runs: Sequence[Material]) -> tuple[list[str], list[list[str]]]:
    header, rows = list(HEADER), [_row(*each) for each in zip(names(runs), runs, strict=True)]
    differences = [_difference(runs[0], run) for run in runs[1:]]
    if any(differences):
        place = header.index("AP")
        cells = [
            "-" if d is None else f"{d.value:+.4f} ({d.low:+.4f} to {d.high:+.4f})"
            for d in differences
        ]
        for row, cell in zip((header, *rows), (DIFFERENCE, "", *cells), strict=True):
            row.insert(place, cell)
    return header, rows


def _row(name: str, run: Material) -> list[str]:
    model = run.summary.get("model")
    parts = [run.setting("recipe", "name"), model.get("name") if isinstance(model, dict) else None]
    every = run.setting("communication", "sync_every")
    if run.setting("communication", "averages") == "gradients":
        every = 1

    def cell(field: str, form: Callable[[float], str]) -> str:
        value = run.value(field)
        return "-" if value is None else form(value)

    return [
        name,
        "/".join(str(part) for part in parts if part) or "-",
        str(len(run.workers) or "-"),
        "-" if every is None or len(run.workers) == 1 else str(every),
        cell("test_auc", formats.auc_text),
        formats.interval_text(run.value("auc_low"), run.value("auc_high")) or "-",
        cell("average_precision", "{:.4f}".format),
        cell("steps", formats.count),
        cell("rounds", formats.count),
        cell("bytes_per_worker", lambda sent: formats.digits(sent / 1e6, 3)),
        cell("seconds", lambda seconds: formats.digits(seconds, 3)),
    ]


def _difference(first: Material, other: Material) -> Difference | None:
    """How the other's AUC differs from the first's, if both scored the same samples."""
    if first.scores is None or other.scores is None or first.points is None or other.points is None:
        return None
    (mine, labels), (scores, theirs) = first.scores, other.scores
    if not np.array_equal(labels, theirs) or np.isnan(mine).any() or np.isnan(scores).any():
        return None
    return paired_auc_difference(scores, mine, labels)


def _auc_card(runs: Sequence[Material], field: str) -> Card:
    series = [
        Series(name, run.column(field), run.column("auc"), colour=i, dash=i)
        for i, (name, run) in enumerate(zip(names(runs), runs, strict=True))
        if field in ("step", "seconds") or run.communicates
    ]
    whose = " and ".join(sorted({run.watched for run in runs}))
    totals = [total for each in series if (total := float(np.nanmax(each.x, initial=0.0))) > 0]
    log = field in ("rounds", "bytes") and max(totals, default=0) > _FAR * min(totals, default=0)
    caption = "Higher is better; further left is cheaper."
    caption += " The axis is logarithmic." if log else ""
    if len(series) < len(runs):
        caption += " Runs of one worker do not communicate and are not drawn."
    return chart_card(auc_chart(whose, field, series, log_x=log, legend=False), caption)


def _roc_card(runs: Sequence[Material]) -> Card:
    series = []
    for i, (name, run) in enumerate(zip(names(runs), runs, strict=True)):
        if run.points is not None:
            curve = thinned_points(run.points)
            series.append(Series(name, curve.false_rate, curve.recall, colour=i, dash=i))
    return chart_card(
        roc_chart("ROC curves of the test sets", series, legend=False),
        "The nearer to the upper left corner the better; the dotted diagonal is chance.",
    )
