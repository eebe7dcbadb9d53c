"""docs/records.md: bytes and seconds to a fixed AUC, one line for each record, and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any

from codauc.report.charts import Chart, Series, line_chart, side_by_side

DOCS = Path(__file__).parents[1] / "docs"
MARK = "<!-- made by experiments/records.py --write: do not edit below -->\n"
LABELS = {
    "single": "one worker",
    "i1": "NP-PPD-SG, I=1",
    "i64": "CoDA, I=64",
    "i64-int2": "CoDA, I=64, int2",
    "i64-192-int2": "CoDA, I=64 then 192, int2",
    "i128-int2": "CoDA, I=128, int2",
    "i128-64-int2": "CoDA, I=128 then 64, int2",
    "i128-64-int2-mild": "the same with an outer step (1, 0.5)",
}
Found = Sequence[Mapping[str, Any]]


def write_page(found: Found) -> None:
    """Write the table under the text of docs/records.md, and the picture if its runs are here."""
    path = DOCS / "records.md"
    text, _, before = path.read_text(encoding="utf-8").partition(MARK)
    lines = "\n".join(_lines(found, before.splitlines()))
    path.write_text(f"{text}{MARK}\n{lines}\n", encoding="utf-8")
    if any(run["variant"] == "i1" and run["seed"] == 0 for run in found):
        (DOCS / "records.svg").write_text(picture(found), encoding="utf-8")


def _lines(found: Found, before: Sequence[str]) -> list[str]:
    """Those of the runs that are here, and of the others those of before."""
    head = "| | seeds | iterations | rounds | MB to the target | final AUC | commit |"
    lines = ["![AUC against bytes](records.svg)", "", head, "|---|---|---|---|---|---|---|"]
    for name, label in LABELS.items():
        runs = [r for r in found if r["variant"] == name and r["hit"]]
        kept = [line for line in before if line.startswith(f"| {label} |")]
        lines += [_line(name, runs)] if runs else kept
    return lines


def _line(name: str, runs: Found) -> str:
    hits = [run["hit"] for run in runs]
    steps, rounds = (round(geometric_mean(hit[i] for hit in hits)) for i in (0, 1))
    sent = geometric_mean(max(hit[2], 1) for hit in hits) / 1e6
    ends = [run["auc"] for run in runs if run["finished"]]
    final = f"{mean(ends):.4f} ({len(ends)})" if ends else ""
    seeds = ", ".join(str(run["seed"]) for run in runs)
    counts = ["", ""] if name == "single" else [f"{rounds:,}", f"{sent:,.3g}"]
    commits = ", ".join(sorted({run["commit"].split("-")[0] for run in runs}))
    cells = [LABELS[name], seeds, f"{steps:,}", *counts, final, commits]
    return f"| {' | '.join(cells)} |"


def picture(found: Found) -> str:
    """AUC against bytes, a line for each way: that of its first seed."""
    series = []
    for name, label in LABELS.items():
        runs = [run for run in found if run["variant"] == name and run["seed"] == 0]
        if runs and name != "single":
            points = [point for point in runs[0]["curve"] if point[2] > 0]
            x, y = [point[2] for point in points], [point[3] for point in points]
            series.append(Series(label, x, y, colour=len(series), dash=len(series)))
    singles = [run for run in found if run["variant"] == "single" and run["seed"] == 0]
    if singles and series:
        ends = [x for each in series for x in each.x]
        target = [singles[0]["target"]] * 2
        series.append(Series("target", [min(ends), max(ends)], target, colour=6, dash=2))
    chart = Chart(
        "AUC against bytes, seed 0",
        "sent by each worker (log scale)",
        "AUC on the test images",
        series,
        "bytes",
        log_x=True,
        y_limits=(0.0, 1.0),
    )
    return side_by_side("CIFAR-10, 71% positives, 16 workers", [line_chart(chart)])
