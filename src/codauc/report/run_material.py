"""What a run left behind; an interrupted run has some of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from codauc._internal.formats import number
from codauc.report.axes import Floats
from codauc.report.curves import operating
from codauc.runs.directory import (
    BASELINES,
    IMPORTANCE,
    LEFT_OUT,
    METRICS,
    MISTAKES,
    SUMMARY,
    RunFolder,
)
from codauc.runs.settings import CONFIG


class Material:
    """The files of a run; its summary, history or scores may be missing, but not all of them."""

    def __init__(self, run: RunFolder) -> None:
        has_summary, has_history = (run / SUMMARY).exists(), (run / METRICS).exists()
        self.path = run.path
        self.name = self.path.name or self.path.resolve().name
        self.summary = run.summary() if has_summary or not has_history else {}
        self.config = run.config() if (run / CONFIG).exists() else {}
        self.records = run.records() if has_history else []
        self.faults, self.profile = run.faults(), run.profile() or {}
        self.importance = run.found(IMPORTANCE) or {}
        self.mistakes = run.found(MISTAKES) or {}
        self.columns = run.column_table()
        self.baselines = run.found(BASELINES) or {}
        self.left_out = run.found(LEFT_OUT) or {}
        self.scores = scores = run.scores()
        if scores is not None and scores.scores.shape != scores.labels.shape:
            raise ValueError(
                f"{run.path}: {scores.scores.shape} test scores and {scores.labels.shape} labels: "
                "expected one label for each score; the file was changed, train or evaluate again."
            )
        self.points = None if scores is None else operating(*scores)
        self.workers = [  # samples and positives of each
            (_amount(each.get("samples")), _amount(each.get("positives")))
            for each in dicts(self.summary.get("workers"))
        ]
        self.watched = "test" if self.setting("data", "watch") == "test" else "validation"

    def value(self, name: str) -> float | None:
        """A number of the summary, if it is there and finite."""
        return number(self.summary.get(name))

    def column(self, name: str) -> Floats:
        """One field of all records; NaN where there is no finite number."""
        found = [number(getattr(record, name)) for record in self.records]
        return np.array([np.nan if value is None else value for value in found], float)

    @property
    def communicates(self) -> bool:
        """Whether there is more than one worker, as far as is known."""
        rounds = self.column("rounds")
        return len(self.workers) > 1 or (not self.workers and bool((rounds > 0).any()))

    def setting(self, *names: str) -> Any:
        """A value of the configuration, tables by name; None if it is not there."""
        found: Any = self.config
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        return found


def texts(value: Any) -> list[str]:
    """A list of texts from what a file had in its place.

    >>> texts(["a", 1]), texts("a"), texts(None)
    (['a', '1'], ['a'], [])
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [str(each) for each in value]
    return [] if value is None else [str(value)]


def dicts(found: Any) -> list[dict[str, Any]]:
    """The tables of a list from what a file had in its place."""
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _amount(value: Any) -> float:
    return max(0.0, number(value) or 0.0)
