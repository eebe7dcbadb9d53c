"""What the network experiment found: summary, table and picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from codauc._internal.text_table import table
from codauc.report.charts import Chart, Series, line_chart, side_by_side

MARGIN = 0.005
History = Sequence[Mapping[str, Any]]


def reached(history: History, target: float) -> Mapping[str, Any] | None:
    """The first point with an AUC of at least `target`.

    >>> reached([{"auc": 0.6}, {"auc": 0.8}, {"auc": 0.9}], 0.7)
    {'auc': 0.8}
    """
    return next((point for point in history if point["auc"] >= target), None)


def summarise(histories: Mapping[str, History], base: str = "ddp") -> dict[str, Any]:
    """The target, what each method needed to reach it, and how many times less than each other.

    The target is the best AUC of `base` less 0.005. `factors[a][b]` is b's seconds over a's.
    """
    target = max(point["auc"] for point in histories[base]) - MARGIN
    methods = {}
    for name, history in histories.items():
        hit = reached(history, target)
        methods[name] = {
            "best_auc": max(point["auc"] for point in history),
            "final_auc": history[-1]["auc"],
            "steps": history[-1]["step"],
            "seconds": history[-1]["seconds"],
            "bytes": history[-1]["bytes"],
            "wire": history[-1]["wire"],
            "to_target": None if hit is None else dict(hit),
        }
    seconds = {n: m["to_target"]["seconds"] for n, m in methods.items() if m["to_target"]}
    factors = {
        name: {other: seconds[other] / own for other in seconds if other != name}
        for name, own in seconds.items()
    }
    return {"target": target, "methods": methods, "factors": factors}


def as_table(summary: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    """The summary for the terminal."""
    header = ["method", "best AUC", "steps", "seconds", "MB sent"]
    header += ["steps to target", "seconds", "MB sent", "times sooner than DDP"]
    rows = []
    for name, method in summary["methods"].items():
        hit, factor = method["to_target"], summary["factors"].get(name, {}).get("ddp")
        row = [labels[name], f"{method['best_auc']:.4f}", str(method["steps"])]
        row += [f"{method['seconds']:.0f}", f"{method['bytes'] / 1e6:.0f}"]
        if hit is None:
            row += ["not reached", "", "", ""]
        else:
            row += [str(hit["step"]), f"{hit['seconds']:.1f}", f"{hit['bytes'] / 1e6:.0f}"]
            row.append("" if factor is None else f"{factor:.1f}")
        rows.append(row)
    return table(header, rows)


def plot(
    histories: Mapping[str, History],
    summary: Mapping[str, Any],
    labels: Mapping[str, str],
    title: str,
) -> str:
    """AUC against seconds and against bytes sent by a worker, on logarithmic axes, as SVG text."""
    axes = {
        "seconds": ("seconds of training (log scale)", "number"),
        "bytes": ("sent by each worker (log scale)", "bytes"),
    }
    charts = []
    for unit, (x_label, kind) in axes.items():
        series, marks = [], []
        for i, (name, history) in enumerate(histories.items()):
            x, y = [point[unit] for point in history], [point["auc"] for point in history]
            series.append(Series(labels[name], x, y, colour=i, dash=i))
            if (hit := summary["methods"][name]["to_target"]) is not None:
                marks.append(Series(labels[name], [hit[unit]], [hit["auc"]], colour=i))
        ends = [x for each in series for x in each.x if x > 0]
        target = [summary["target"]] * 2
        label = f"target {target[0]:.3f}; dots: reached"
        series.append(Series(label, [min(ends), max(ends)], target, colour=6, dash=2))
        chart = Chart(
            f"AUC against {unit}",
            x_label,
            "AUC on the test images",
            [*series, *marks],
            kind,
            log_x=True,
            y_limits=(0.0, 1.0),
        )
        charts.append(line_chart(chart))
    return side_by_side(title, charts)
