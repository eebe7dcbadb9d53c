"""What the network experiment found: summary, table and picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from codauc.report.plots import COLOURS, STYLES
from codauc.report.table import table

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
    paths: Sequence[Path],
) -> None:
    """AUC against seconds and against bytes sent by a worker, both on logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.4), layout="constrained")
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(1, 2, sharey=True)
    for panel, unit, scale in zip(axes, ("seconds", "bytes"), (1.0, 1e6), strict=True):
        panel.axhline(summary["target"], color="#888888", linewidth=0.8, zorder=0)
        for i, (name, history) in enumerate(histories.items()):
            look: dict[str, Any] = {"color": COLOURS[i % len(COLOURS)]}
            after = [point for point in history if point[unit] > 0]
            x, y = [point[unit] / scale for point in after], [point["auc"] for point in after]
            style = STYLES[i % len(STYLES)]
            panel.plot(x, y, label=labels[name], linewidth=1.8, linestyle=style, **look)
            if (hit := summary["methods"][name]["to_target"]) is not None:
                panel.plot(hit[unit] / scale, hit["auc"], "o", markersize=7, **look)
        panel.set_xscale("log")
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_xlabel("seconds of training (log scale)")
    axes[1].set_xlabel("MB sent by each worker (log scale)")
    axes[0].set_ylabel("AUC on the test images")
    small: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": "#555555"}
    first = f"target {summary['target']:.3f}; dots: reached"
    where = (0.01, summary["target"])
    axes[0].annotate(first, where, xycoords=("axes fraction", "data"), xytext=(0, 3), **small)
    axes[1].legend(loc="lower right", frameon=False)
    for path in paths:
        figure.savefig(path, dpi=150)
