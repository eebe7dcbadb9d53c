"""What fits of `tasks.py` found, as a table in the repository: a line for each.

A fit that is in the table is not repeated. Where the recipe changes, remove its lines.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs" / "defaults" / "results.csv"
# Texts, whole numbers, and numbers with their decimal places.
_TEXTS = ("task", "method", "commit")
_WHOLE = ("split", "rows", "positives", "test_positives", "step", "rounds", "bytes")
_DECIMALS = {"auc": 6, "ap": 6, "seconds": 1, "cpu_seconds": 1, "peak_mb": 0}
COLUMNS = ("task", "method", "split", "auc", "ap", "seconds", "cpu_seconds", "peak_mb",
           "rows", "positives", "test_positives", "step", "rounds", "bytes", "commit")  # fmt: skip

Result = dict[str, Any]


def key(line: Result) -> tuple[str, str, int]:
    """What tells one fit from another."""
    return line["task"], line["method"], line["split"]


def read(path: Path = RESULTS) -> list[Result]:
    """The lines of a table; none if there is no file yet."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [_parsed(line) for line in csv.DictReader(file)]


def append(path: Path, line: Result) -> None:
    """Add one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        writer.writerow([_text(column, line.get(column)) for column in COLUMNS])


def of_methods(results: Iterable[Result], methods: Iterable[str]) -> list[Result]:
    """The lines of some methods."""
    wanted = set(methods)
    return [line for line in results if line["method"] in wanted]


def _text(column: str, value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.{_DECIMALS[column]}f}" if column in _DECIMALS else str(value)


def _parsed(line: dict[str, str]) -> Result:
    found: Result = {}
    for column, text in line.items():
        if column in _TEXTS:
            found[column] = text
        elif text:
            found[column] = int(text) if column in _WHOLE else float(text)
    return found
