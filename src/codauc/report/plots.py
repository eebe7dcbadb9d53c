"""Plots of test AUC; they need matplotlib (`pip install codauc[plot]`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

# Okabe and Ito's colours: told apart by colour-blind readers and in print.
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))


class Curve(NamedTuple):
    """Test AUC along one run."""

    label: str
    points: Sequence[tuple[int, int, float]]  # step, round, AUC
    stage_ends: Sequence[int] = ()  # which points close a stage


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def plot_curves(curves: Sequence[Curve], path: Path, title: str) -> Path:
    """AUC against iterations and against communication rounds, as a PNG at `path`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    figure.suptitle(f"{title} (dots: a stage ends, its iterates are averaged)", fontsize=11)
    left, right = figure.subplots(1, 2, sharey=True)
    for i, curve in enumerate(curves):
        look: dict[str, Any] = {
            "color": COLOURS[i % len(COLOURS)],
            "linestyle": STYLES[i % len(STYLES)],
        }
        look |= {"marker": "o", "markersize": 5, "markevery": list(curve.stage_ends)}
        steps, rounds, auc = zip(*curve.points, strict=True)
        left.plot(steps, auc, label=curve.label, linewidth=1.8, **look)
        if max(rounds) == 0:
            right.axhline(auc[-1], color=look["color"], linewidth=1.2)  # never communicates
        else:
            right.plot(rounds, auc, linewidth=1.8, **look)
    left.set_xlabel("iterations of each worker")
    right.set_xlabel("communication rounds (log scale)")
    right.set_xscale("symlog", linthresh=1)
    right.set_xlim(left=0)
    left.set_ylabel("test AUC")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(loc="lower right", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
