"""A study read again from the tables in its directory, without its runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from codauc._internal.files import read_text
from codauc.reproduce.kept_runs import read_kept, table_rows
from codauc.reproduce.measured_constants import StageConstants
from codauc.reproduce.study import Study, StudyPoint, Tuned
from codauc.reproduce.study_output import ABOUT, CONSTANTS, CURVES, IDENTITY, Shown
from codauc.reproduce.study_results import Link, Results
from codauc.runs.directory import Record


def studies_in(folder: Path) -> list[tuple[Path, Shown]]:
    """The studies below a directory, by their directories: the paper's order of data sets."""
    found = [(path.parent, read_shown(path.parent)) for path in folder.glob(f"*/{ABOUT}")]
    order = {"cifar10": 0, "cifar100": 1, "imagenet": 2}

    def place(each: tuple[Path, Shown]) -> tuple[Any, ...]:
        study = each[1].study
        network, start = (bool(study.pretraining), study.network.name), study.start != "zero"
        rank = (*network, start, study.steps or 0, study.lr or 0.0)
        return study.scale, -study.percent, order[study.data], *rank

    return sorted(found, key=place)


def read_shown(folder: Path) -> Shown:
    """All that `study_output.write` wrote of a study."""
    try:
        return _shown(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder} holds tables that cannot be read ({type(error).__name__}: {error}): "
            "expected those of codauc reproduce; write them again, or take the directory away."
        ) from error


def _shown(folder: Path) -> Shown:
    facts = {"steps": None, **json.loads(read_text(folder / ABOUT))}  # older tables lack it
    seconds = facts["step_seconds"]
    tried: dict[str, dict[Tuned, float]] = {}
    study = Study(**{name: facts[name] for name in IDENTITY})
    chosen = {"auc": study.grid[0]} if len(study.grid) == 1 else {}  # what was not to be tuned
    for row in table_rows(folder / "tuning.csv"):
        tuned, auc = Tuned(int(row["T_0"]), float(row["eta_0"])), row["held_out_auc"]
        tried.setdefault(row["objective"], {})[tuned] = 0.0 if auc == "diverged" else float(auc)
        if row["chosen"]:
            chosen[row["objective"]] = tuned
    return Shown(
        study=study,
        results=read_results(folder / CURVES),
        tried=tried,
        chosen=chosen,
        link=Link(facts["latency"], facts["bandwidth"]),
        step_seconds=math.nan if seconds is None else seconds,
        commits=facts["commits"],
        command=facts["command"],
        whole=facts["whole"],
        cpu_seconds=facts["cpu_seconds"],
        tuning_seeds=facts["tuning_seeds"],
        constants=list(kept_constants(folder)),
        runs=list(read_kept(folder).values()),
    )


def read_results(path: Path) -> Results:
    """The evaluations of all runs, from the table `curves.csv`."""
    found: dict[StudyPoint, dict[int, list[Record]]] = {}
    for row in table_rows(path):
        point = StudyPoint(int(row["K"]), int(row["I"]), row["growing"] == "1", row["objective"])
        found.setdefault(point, {}).setdefault(int(row["seed"]), []).append(_record(row))
    return Results(found)


def _record(row: dict[str, str]) -> Record:
    nothing = dict.fromkeys((field.name for field in fields(Record)), 0)
    own = {"step": int(row["iteration"]), "rounds": int(row["rounds"]), "bytes": int(row["bytes"])}
    aucs = {name: float(row[name]) for name in ("auc", "auc_low", "auc_high")}
    return Record(**nothing | own | aucs | {"seconds": float(row["modelled_seconds"])})  # type: ignore[arg-type]


def kept_constants(folder: Path) -> Iterator[StageConstants]:
    """The measured constants in a study's directory."""
    path = folder / CONSTANTS
    if path.exists():
        for each in json.loads(read_text(path)):
            yield StageConstants(**each)
