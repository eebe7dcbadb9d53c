"""What the tables in a study's directory keep of it, to go on from without its runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from codauc.reproduce.kept_runs import RUNS, read_kept
from codauc.reproduce.measured_constants import StageConstants
from codauc.reproduce.study import StudyPoint
from codauc.reproduce.study_output import CURVES
from codauc.reproduce.study_reading import kept_constants, read_results
from codauc.reproduce.study_results import Results
from codauc.runs.directory import Record


class KeptStudy:
    """The runs in the tables by name, their evaluations and constants; nothing without tables."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, read_kept(folder)

    @property
    def seeds(self) -> set[int]:
        """Those of all runs with evaluations."""
        return {seed for runs in self._curves.evaluations.values() for seed in runs}

    def curve(self, point: StudyPoint, seed: int) -> Sequence[Record]:
        """The evaluations of a run."""
        try:
            return self._curves.evaluations[point][seed]
        except KeyError as error:
            raise ValueError(
                f"{self.folder / CURVES} lacks {point.label}, seed {seed}, which {RUNS} has: "
                "restore it, or remove both to repeat the runs."
            ) from error

    @cached_property
    def _curves(self) -> Results:
        path = self.folder / CURVES
        try:
            return read_results(path) if self.runs else Results({})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} cannot be read ({type(error).__name__}: {error}): expected the table "
                f"beside {RUNS}; restore it, or remove both to repeat the runs."
            ) from error

    def constants(self, at: StudyPoint) -> list[StageConstants]:
        """The measured constants of a K and an I."""
        found = kept_constants(self.folder)
        return [each for each in found if StudyPoint(each.workers, each.sync_every) == at]
