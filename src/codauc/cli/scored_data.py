"""A run's model, and the scores that it gives to other data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from codauc._internal.imports import importing_from_here, is_import_path
from codauc._internal.progress import Progress, note
from codauc._internal.terminal import printable
from codauc.data.data_settings import DataSettings
from codauc.data.dataset import Part
from codauc.data.image_files import ImageFiles
from codauc.data.opening import is_table, open_whole
from codauc.data.tables.kept_columns import kept_columns
from codauc.metrics.evaluation import logits_of
from codauc.models import build
from codauc.models.base import Model
from codauc.models.model_file import Saved, load_model
from codauc.runs.directory import MODEL, RunFolder
from codauc.runs.settings import CONFIG, RunSettings
from codauc.training.validation import check_scores
from codauc.workers.group import LocalGroup

Options = dict[str, Any]


@dataclass(frozen=True)
class Scored:
    """Samples in the order of their source, with their log-odds."""

    rows: NDArray[Any]
    scores: NDArray[Any]
    labels: NDArray[Any] | None
    copied: dict[str, Any]  # columns beside the scores: names of files, and what is to be kept


def loaded(options: Options) -> tuple[RunSettings, Saved]:
    """A run's settings and its model."""
    folder, given = RunFolder(options["run"]), options["model"]
    trust = options["trust_config"] or given is not None
    settings = RunSettings.from_dict(folder.config(), str(folder / CONFIG), trust=trust)
    if not (folder / MODEL).exists():
        raise ValueError(f"{folder.path} has no {MODEL}: it ended before its first evaluation.")
    name = settings.model.name
    if not is_import_path(name):
        return settings, load_model(folder / MODEL)
    if given not in (name, None):
        raise ValueError(f"--model {given}: {folder.path} was trained with {name}; name that.")
    with importing_from_here([name]):
        return settings, load_model(folder / MODEL, build(name, **settings.model.arguments))


def scored(settings: RunSettings, saved: Saved, options: Options) -> Scored:
    """The data that the options name, scored; notes and progress go to standard error."""
    data = _asked(settings.data, options)
    with _progress(options, "read", None) as done:
        part = open_whole(data, LocalGroup(), saved.encoder, done)
    for text in () if options["quiet"] else part.notes:
        note(printable(f"Note: {text}"))
    copied = _copied(data, part, options.get("keep") or ())
    with _progress(options, "score", len(part.x)) as done:
        scores = saved.calibration.log_odds(_scores(saved.model, part, done))
    names = None if saved.encoder is None else saved.encoder.names
    check_scores(options["source"], saved.model, part, scores, names)
    order = np.argsort(part.rows.numpy(), kind="stable")
    labels = None if part.y is None else part.y.numpy().astype(bool)[order]
    return Scored(part.rows.numpy()[order], scores[order], labels, copied)


def _asked(before: DataSettings, options: Options) -> DataSettings:
    """The settings of training, with the data of now."""
    target, source = options["target"], options["source"]
    changes = {"source": source, "target": target, "drop": options["drop"] or ()}
    if options["positive"]:
        changes |= {"positive": options["positive"], "negative": ()}
    elif before.negative == ():  # of a table, whose encoder knows them
        changes["positive"] = ()
    if before.images is not None:
        if is_table(replace(before, source=source, images=None)):
            changes["target"] = before.target if target is None else target
        else:  # images themselves, not a table of their names
            changes |= {"images": None, "file_column": None}
    return replace(before, **changes, own=False, test=None)


def _scores(model: torch.nn.Module, part: Part, progress: Any) -> NDArray[Any]:
    """Logits as float32; the package's networks for tables score several batches at a time."""
    small = isinstance(model, Model) and part.encoder is not None and not part.encoder.shape
    batch, threads = (2048, torch.get_num_threads()) if small else (512, 1)
    logits = logits_of(model, part.x, batch, threads=threads, progress=progress)
    return logits.astype(np.float32, copy=False)


def _copied(data: DataSettings, part: Part, keep: tuple[str, ...]) -> dict[str, Any]:
    """What stands beside the scores, in the order of the source."""
    columns: dict[str, Any] = {}
    if isinstance(part.x, ImageFiles):
        columns["file"] = np.array([part.x.name(i) for i in range(len(part.x))])
    taken = {*columns, "row", "score", "probability", "label", "predicted"} & {*keep}
    if taken:
        raise ValueError(
            f"keep={sorted(taken)!r}: the file of scores has a column of its own of this "
            "name; expected others: rename it in the data."
        )
    return columns | kept_columns(data.source, keep, data.encoding)


@contextmanager
def _progress(
    options: Options, label: str, total: int | None
) -> Iterator[Callable[[int], object] | None]:
    """A bar on a terminal; nothing in a pipe or a log, or if it is not wanted."""
    if options["quiet"] or options["json"] or not sys.stderr.isatty():
        yield None
        return
    with Progress(total, label=label) as bar:
        yield bar.update
