"""What a run left behind; an interrupted run has some of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codauc._internal.formats import number
from codauc.report.curves import Operating, operating
from codauc.runs.directory import METRICS, SUMMARY, Record, RunFolder, Scores
from codauc.runs.settings import CONFIG

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Material:
    """The files of a run; a missing one is empty."""

    path: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    records: list[Record]
    scores: Scores | None
    points: Operating | None
    faults: list[dict[str, Any]] = field(default_factory=list)
    profile: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the directory."""
        return self.path.name or self.path.resolve().name

    def value(self, name: str) -> float | None:
        """A number of the summary, if it is there and finite."""
        return number(self.summary.get(name))

    def column(self, name: str) -> Floats:
        """One field of all records; NaN where there is no finite number."""
        found = [number(getattr(record, name)) for record in self.records]
        return np.array([np.nan if value is None else value for value in found], float)

    @property
    def workers(self) -> list[tuple[float, float]]:
        """Samples and positives of each worker."""
        listed: Any = self.summary.get("workers")
        found = [each for each in listed if isinstance(each, dict)] if _is_list(listed) else []
        return [(_amount(each.get("samples")), _amount(each.get("positives"))) for each in found]

    @property
    def communicates(self) -> bool:
        """Whether there is more than one worker, as far as is known."""
        rounds = self.column("rounds")
        return len(self.workers) > 1 or (not self.workers and bool((rounds > 0).any()))

    @property
    def watched(self) -> str:
        """The set that was evaluated during the run."""
        return "test" if self.setting("data", "watch") == "test" else "validation"

    def setting(self, *names: str) -> Any:
        """A value of the configuration, tables by name; None if it is not there."""
        found: Any = self.config
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        return found


def material(run: RunFolder) -> Material:
    """Read a run; its summary, history or scores may be missing, but not all of them."""
    has_summary, has_history = (run / SUMMARY).exists(), (run / METRICS).exists()
    summary = run.summary() if has_summary or not has_history else {}
    config = run.config() if (run / CONFIG).exists() else {}
    scores = run.scores()
    if scores is not None and scores.scores.shape != scores.labels.shape:
        raise ValueError(
            f"{run.path}: {scores.scores.shape} test scores and {scores.labels.shape} labels: "
            "expected one label for each score; the file was changed, train or evaluate again."
        )
    points = None if scores is None else operating(scores.scores.ravel(), scores.labels.ravel())
    records = run.records() if has_history else []
    return Material(
        run.path, config, summary, records, scores, points, run.faults(), run.profile() or {}
    )


def texts(value: Any) -> list[str]:
    """A list of texts from what a file had in its place.

    >>> texts(["a", 1]), texts("a"), texts(None)
    (['a', '1'], ['a'], [])
    """
    if value is None:
        return []
    return [str(each) for each in value] if _is_list(value) else [str(value)]


def _amount(value: Any) -> float:
    return max(0.0, number(value) or 0.0)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
