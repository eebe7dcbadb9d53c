"""The confusion table of a threshold, as text."""

from __future__ import annotations

from codauc._internal.text_table import table
from codauc.metrics.shares import share_interval
from codauc.metrics.thresholds import Confusion, Threshold


def confusion_text(threshold: Threshold, counts: Confusion) -> str:
    """The four counts, and recall, precision and the share of false positives with intervals."""
    c = counts
    rows = [["positive", f"{c.found}", f"{c.missed}"], ["negative", f"{c.false}", f"{c.right}"]]
    pairs = {
        "recall": (c.found, c.found + c.missed),
        "precision": (c.found, c.found + c.false),
        "false positive rate": (c.false, c.false + c.right),
    }
    return "\n".join(
        [
            f"At the threshold of {threshold.rule}, score {threshold.value:.4g}:",
            table(["", "predicted positive", "predicted negative"], rows),
            *(_line(name, *pair) for name, pair in pairs.items() if pair[1]),
        ]
    )


def _line(name: str, part: int, whole: int) -> str:
    low, high = share_interval(part, whole)
    return f"{name} {part / whole:.4f} (95% interval {low:.4f} to {high:.4f})"
