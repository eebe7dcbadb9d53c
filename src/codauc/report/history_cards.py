"""Cards that show how a run went, and where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from codauc._internal.formats import count, digits, duration, number, percent, share
from codauc.report.axes import LIMIT, Floats
from codauc.report.charts import PROGRESS, Chart, Series, auc_chart, chart_card, outline, row_chart
from codauc.report.rendering import Card, CardTable
from codauc.report.run_material import Material, dicts

MOST_ROWS, MOST_PARTS = 200, 40  # of the table of workers, and of a profile
_FEW_BARS = 60


def training_cards(run: Material) -> list[Card]:
    """The AUC against iterations, rounds, bytes and seconds; the objective and its variables."""
    fields = PROGRESS if run.communicates else ("step", "seconds")
    return [*(_auc_card(run, field) for field in fields), *_inner_cards(run)]


def cost_cards(run: Material) -> list[Card]:
    """Where the time went, how the workers drifted, and what each of them holds."""
    return [_time_card(run), _drift_card(run), *_worker_cards(run), _worker_table(run)]


def _auc_card(run: Material, field: str) -> Card:
    x, auc, low, high = (run.column(each) for each in (field, "auc", "auc_low", "auc_high"))
    ends, best = _stage_ends(run, x), _best(run, x, auc)
    caption = {
        "step": f"Higher is better. The band is the 95% interval of the AUC on the {run.watched} "
        f"set{'; a dotted line is the end of a stage' if ends else ''}"
        f"{'; the dot is the model that was kept' if best else ''}.",
        "rounds": "The same curve, by how often the workers averaged their weights.",
        "bytes": "The same curve, by what each worker sent: what it costs on a slow network.",
        "seconds": "The same curve, by the clock.",
    }[field]
    series = [Series("AUC", x, auc, low, high), *best]
    return chart_card(auc_chart(run.watched, field, series, lines=ends), caption)


def _stage_ends(run: Material, x: Floats) -> list[float]:
    ends = [at for at, record in zip(x, run.records, strict=True) if record.stage_end is True]
    return [float(at) for at in ends[:-1] if np.isfinite(at)]


def _best(run: Material, x: Floats, auc: Floats) -> list[Series]:
    """The record of the model that was kept, if it can be found."""
    best = run.value("best_step")
    found = np.flatnonzero((run.column("step") == best) & np.isfinite(x) & np.isfinite(auc))
    if best is None or not found.size:
        return []
    return [Series("kept model", x[found[:1]], auc[found[:1]], colour=1)]


def _inner_cards(run: Material) -> list[Card]:
    return [
        _by_step(
            run,
            ("Objective", "pairwise loss"),
            [("loss", "loss", 0, 0)],
            "Lower is better: the mean of (1 - h+ + h-)^2 over all pairs of a positive and a "
            f"negative of the {run.watched} set. It is never negative.",
        ),
        _by_step(
            run,
            ("The algorithm's own variables", "score"),
            [
                ("a", "a", 0, 0),
                ("mean of positives", "positive_mean", 0, 1),
                ("b", "b", 1, 0),
                ("mean of negatives", "negative_mean", 1, 1),
                ("alpha", "alpha", 2, 0),
            ],
            "a should follow the mean score of the positives, b that of the negatives, and alpha "
            "the second minus the first.",
            y_limits=(-LIMIT, LIMIT),
        ),
    ]


def _drift_card(run: Material) -> Card:
    return _by_step(
        run,
        ("Drift between workers", "distance from the mean, relative"),
        [("drift", "drift", 3, 0)] if run.communicates else [],
        "How far a worker's weights were from the mean of all when last averaged. If it grows "
        "without end, average more often or use a smaller step.",
    )


def _by_step(
    run: Material,
    titles: tuple[str, str],
    columns: Sequence[tuple[str, str, int, int]],
    caption: str,
    y_limits: tuple[float, float] = (0.0, LIMIT),
) -> Card:
    """A title, the y axis, and what is drawn against iterations: label, field, colour, dashes."""
    step, (_, across, kind) = run.column("step"), PROGRESS["step"]
    series = [Series(name, step, run.column(f), colour=c, dash=d) for name, f, c, d in columns]
    lines, titled = _stage_ends(run, step), (titles[0], across, titles[1])
    chart = Chart(*titled, series, kind, lines=lines, y_limits=y_limits)
    return chart_card(chart, caption)


def _time_card(run: Material) -> Card:
    """Where the time went, from the summary or else the last record."""
    names, found = ("computing", "communicating", "waiting"), run.summary
    if run.records and not any(name in found for name in names):
        found = vars(run.records[-1])
    spent = {name: max(0.0, number(found.get(name)) or 0.0) for name in names}
    total = sum(spent.values()) or 1.0
    rows = [(name, s, f"{duration(s)} ({share(s / total)})") for name, s in spent.items()]
    caption = (
        "Of one worker's time. Much communicating: average less often. Much waiting: some workers "
        "are slower than others."
        if run.communicates
        else "One worker: no communication. With more there is the AUC against rounds and bytes."
    )
    title = "Where the time went"
    return Card(title, caption, row_chart(title, rows))


def _worker_cards(run: Material) -> list[Card]:
    samples = [total for total, _ in run.workers]
    if len(samples) < 2:
        return []
    rates = [100 * positives / total if total else 0.0 for total, positives in run.workers]
    mean = 100 * sum(positives for _, positives in run.workers) / (sum(samples) or 1.0)
    return [
        chart_card(
            worker_chart("Samples of each worker", "samples", samples),
            "Training samples that each worker holds; no worker sees those of another.",
        ),
        chart_card(
            worker_chart("Positives of each worker", "% positive", rates, colour=1, level=mean),
            "The share of positives among each worker's samples; the dashed line is that of all. "
            "Shares far from it mean that the workers' data differ.",
        ),
    ]


def worker_chart(
    title: str, label: str, values: Sequence[float], *, colour: int = 0, level: float | None = None
) -> Chart:
    """A bar for each worker's value, and a line across at `level`; nothing without a value."""
    n, ends = len(values), (-0.5, len(values) - 0.5)
    edges, heights = np.arange(n + 1) - 0.5, np.array(values, float)
    if 0 < n <= _FEW_BARS:  # with room for gaps between them
        edges, heights = np.repeat(np.arange(n), 2) + np.tile([-0.38, 0.38], n), np.zeros(2 * n - 1)
        heights[::2] = values
    tips = (np.arange(n), np.array(values, float))
    series = [Series(label, *outline(edges, heights), colour=colour, fill=True, tips=tips)]
    if level is not None:
        series.append(Series("all workers", ends, (level, level), colour=6, dash=1))
    return Chart(title, "worker", label, series if n else (), "count", "count", x_range=ends)


def _worker_table(run: Material) -> Card:
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


def profile_cards(run: Material) -> list[Card]:
    """Where the time of a step goes, and how long each worker waits; none without a profile."""
    title, rows = "Time of a step", [_part(each) for each in dicts(run.profile.get("rows"))]
    whose = "all simulated workers" if run.profile.get("simulated") is True else "worker 0"
    caption = (
        f"Milliseconds per step, and the share of the whole time, of {whose}; the bars add up to "
        "the whole. What does not happen at every step is spread over all of them."
    )
    workers = dicts(run.profile.get("by_worker"))
    waiting = [_waiting(worker) for worker in workers] if len(workers) > 1 else []
    return [
        Card(title, caption, row_chart(title, rows[:MOST_PARTS])),
        chart_card(
            worker_chart("Waiting of each worker", "% of its time", waiting, colour=1),
            "How long a worker waited in rounds for the others. They wait for the one with the "
            "shortest bar.",
        ),
    ]


def _part(plain: dict[str, Any]) -> tuple[str, float, str]:
    part, spent = (max(0.0, number(plain.get(name)) or 0.0) for name in ("share", "ms_a_step"))
    part = min(part, 1.0)
    return str(plain.get("label")), part, f"{digits(round(spent, 3), 3)} ms, {part:.1%}"


def _waiting(worker: dict[str, Any]) -> float:
    """As per cent of the worker's time."""
    spent = {name: max(0.0, number(value) or 0.0) for name, value in worker.items()}
    return 100 * spent.get("waiting", 0.0) / (sum(spent.values()) or 1.0)
