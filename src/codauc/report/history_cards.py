"""Cards that show how a run went."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from codauc._internal.formats import count, duration, number, percent, share
from codauc.report.axes import Floats
from codauc.report.bars import BarChart, bar_chart, stacked_bar
from codauc.report.charts import Chart, Mark, Series, line_chart
from codauc.report.rendering import Card, CardTable
from codauc.report.run_material import Material

MOST_ROWS = 200
PROGRESS = {  # the four ways to measure how far a run got: name of the card, label, kind of axis
    "step": ("iterations", "iterations of each worker", "count"),
    "rounds": ("rounds", "communication rounds", "count"),
    "bytes": ("bytes sent", "bytes sent by each worker", "bytes"),
    "seconds": ("time", "seconds", "number"),
}


def time_unit(longest: float) -> tuple[float, str]:
    """The unit for an axis of times up to `longest` seconds.

    >>> time_unit(100), time_unit(3600), time_unit(100_000)
    ((1.0, 'seconds'), (60.0, 'minutes'), (3600.0, 'hours'))
    """
    if longest < 300:
        return 1.0, "seconds"
    return (60.0, "minutes") if longest < 3 * 3600 else (3600.0, "hours")


def auc_cards(run: Material) -> list[Card]:
    """The AUC of the set that was watched against iterations, rounds, bytes and seconds."""
    fields = PROGRESS if run.communicates else ("step", "seconds")
    return [_auc_card(run, field) for field in fields]


def _auc_card(run: Material, field: str) -> Card:
    name, label, kind = PROGRESS[field]
    x = run.column(field)
    if field == "seconds" and x.size:
        factor, label = time_unit(float(np.nanmax(x, initial=0.0)))
        x = x / factor
    auc, low, high = (run.column(each) for each in ("auc", "auc_low", "auc_high"))
    chart = Chart(
        title=f"{run.watched.capitalize()} AUC against {name}",
        x_label=label,
        y_label="AUC",
        series=[Series("AUC", x, auc, low, high)],
        x_kind=kind,
        y_limits=(0.0, 1.0),
        lines=_stage_ends(run, x),
        marks=_best(run, x, auc),
    )
    caption = {
        "step": "Higher is better. The band is the 95% interval of the AUC on the {watched} set"
        "{stages}{best}.",
        "rounds": "The same curve, by how often the workers averaged their weights.",
        "bytes": "The same curve, by what each worker sent: what it costs on a slow network.",
        "seconds": "The same curve, by the clock.",
    }[field]
    stages = "; a dotted line is the end of a stage" if chart.lines else ""
    best = "; the dot is the model that was kept" if chart.marks else ""
    caption = caption.format(stages=stages, best=best, watched=run.watched)
    return Card(chart.title, caption, line_chart(chart))


def _stage_ends(run: Material, x: Floats) -> list[float]:
    ends = [at for at, record in zip(x, run.records, strict=True) if record.stage_end is True]
    return [float(at) for at in ends[:-1] if np.isfinite(at)]


def _best(run: Material, x: Floats, auc: Floats) -> list[Mark]:
    """The record of the model that was kept, if it can be found."""
    best = run.value("best_step")
    found = np.flatnonzero((run.column("step") == best) & np.isfinite(x) & np.isfinite(auc))
    if best is None or not found.size:
        return []
    return [Mark("kept model", float(x[found[0]]), float(auc[found[0]]), 1)]


def inner_cards(run: Material) -> list[Card]:
    """The objective, and a, b, alpha beside the means that they follow."""
    step = run.column("step")
    base = Chart("", PROGRESS["step"][1], "", (), "count", lines=_stage_ends(run, step))
    loss = replace(
        base,
        title="Objective",
        y_label="pairwise loss",
        series=[Series("loss", step, run.column("loss"))],
        y_limits=(0.0, 1e200),
    )
    names = [
        ("a", "a", 0, 0),
        ("mean of positives", "positive_mean", 0, 1),
        ("b", "b", 1, 0),
        ("mean of negatives", "negative_mean", 1, 1),
        ("alpha", "alpha", 2, 0),
    ]
    inner = replace(
        base,
        title="The algorithm's own variables",
        y_label="score",
        series=[Series(label, step, run.column(f), colour=c, dash=d) for label, f, c, d in names],
    )
    return [
        Card(
            loss.title,
            "Lower is better: the mean of (1 - h+ + h-)^2 over all pairs of a positive and a "
            f"negative of the {run.watched} set. It is never negative.",
            line_chart(loss),
        ),
        Card(
            inner.title,
            "a should follow the mean score of the positives, b that of the negatives, and alpha "
            "the second minus the first.",
            line_chart(inner),
        ),
    ]


def drift_card(run: Material) -> Card:
    """How far the workers moved apart between two rounds."""
    if not run.communicates:
        return Card()
    drift = Chart(
        title="Drift between workers",
        x_label=PROGRESS["step"][1],
        y_label="distance from the mean, relative",
        series=[Series("drift", run.column("step"), run.column("drift"), colour=3)],
        x_kind="count",
        y_limits=(0.0, 1e200),
        lines=_stage_ends(run, run.column("step")),
    )
    caption = (
        "How far a worker's weights were from the mean of all when last averaged. If it grows "
        "without end, average more often or use a smaller step."
    )
    return Card(drift.title, caption, line_chart(drift))


def time_card(run: Material) -> Card:
    """Where the time went, from the summary or else the last record."""
    last = run.records[-1] if run.records else None
    parts = []
    for name in ("computing", "communicating", "waiting"):
        value = run.value(name)
        value = number(getattr(last, name, None)) if value is None else value
        parts.append((name, max(0.0, value or 0.0)))
    caption = (
        "Of one worker's time. Much communicating: average less often. Much waiting: some workers "
        "are slower than others."
        if run.communicates
        else "One worker: no communication, so it neither sends nor waits."
    )
    title = "Where the time went"
    return Card(title, caption, stacked_bar(title, parts, duration))


def worker_cards(run: Material) -> list[Card]:
    """Samples, and the share of positives, of each worker."""
    samples = [total for total, _ in run.workers]
    if len(samples) < 2:
        return []
    rates = [100 * positives / total if total else 0.0 for total, positives in run.workers]
    every = sum(samples)
    mean = 100 * sum(positives for _, positives in run.workers) / every if every else None
    held = BarChart("Samples of each worker", "worker", "samples", samples, form=count)
    positive = BarChart(
        title="Positives of each worker",
        x_label="worker",
        y_label="% positive",
        values=rates,
        colour=1,
        form=lambda value: share(value / 100),
        kind="number",
        level=mean,
    )
    return [
        Card(
            held.title,
            "Training samples that each worker holds; no worker sees those of another.",
            bar_chart(held),
        ),
        Card(
            positive.title,
            "The share of positives among each worker's samples; the dashed line is that of all. "
            "Shares far from it mean that the workers' data differ.",
            bar_chart(positive),
        ),
    ]


def worker_table(run: Material) -> Card:
    """The numbers behind `worker_cards`, for the first workers if there are very many."""
    rows = [
        [str(i), count(total), count(positives), percent(positives / total) if total else "-"]
        for i, (total, positives) in enumerate(run.workers[:MOST_ROWS])
    ]
    if not rows:
        return Card()
    rest = len(run.workers) - len(rows)
    more = f" {count(rest)} more workers are not listed." if rest else ""
    return Card(
        "Workers in numbers",
        f"Training samples and positives of each worker.{more}",
        table=CardTable(["worker", "samples", "positives", "share"], rows),
    )
