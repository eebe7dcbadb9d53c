"""Finished runs as a study's tables keep them: what was made once is not made again elsewhere.

A run's own directory is large and stays on its machine; `runs.csv` and `curves.csv` are enough to
go on with a study from a copy of its tables.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from codauc._internal.files import read_text

RUNS = "runs.csv"
_DIVERGED = "diverged"
_MOST = 1 << 28  # bytes of a table


class KeptRun(NamedTuple):
    """A finished run: its name, its final AUC, the time it took, and its commit.

    The AUC is on what was held out in a run that tunes, on the test set in others; None for what
    has none, such as measured constants. `diverged` runs have none either.
    """

    name: str
    auc: float | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    commit: str = ""
    diverged: bool = False

    @property
    def row(self) -> list[Any]:
        """Of the table."""
        auc = _DIVERGED if self.diverged else "" if self.auc is None else self.auc
        return [self.name, auc, self.seconds, self.cpu_seconds, self.commit]


HEADER = ["run", "final_auc", "seconds", "cpu_seconds", "commit"]


def read_kept(folder: Path) -> dict[str, KeptRun]:
    """The runs in the table of a study's directory, by name; nothing where there is no table."""
    path = folder / RUNS
    return {run.name: run for run in _runs(path)} if path.exists() else {}


def _runs(path: Path) -> Iterable[KeptRun]:
    try:
        for row in table_rows(path):
            diverged, auc = row["final_auc"] == _DIVERGED, row["final_auc"]
            known = None if diverged or not auc else float(auc)
            times = float(row["seconds"]), float(row["cpu_seconds"])
            yield KeptRun(row["run"], known, *times, row["commit"], diverged)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}): expected the table that "
            "codauc reproduce wrote; restore it, or remove it to repeat the runs."
        ) from error


def table_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file with a header."""
    return list(csv.DictReader(read_text(path, _MOST).splitlines()))
