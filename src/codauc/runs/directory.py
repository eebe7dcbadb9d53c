"""A run's directory: what is in it, and how it is written and read; known without torch."""

from __future__ import annotations

import json
import os
import socket
import time
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from codauc._internal.checks import shown
from codauc._internal.files import (
    PARTIAL,
    entries,
    lock,
    read_text,
    regular_file,
    remove_abandoned,
    remove_partial,
    whole_file,
)
from codauc.data.column_record import ColumnRecord, record_rows
from codauc.runs.settings import CONFIG

METRICS, SUMMARY, FAULTS = "metrics.jsonl", "summary.json", "faults.jsonl"
CHECKPOINTS = "checkpoints"
MODEL, SCORES, REPORT = "model.safetensors", "test_scores.npz", "report.html"
OF_WORKER = "model-worker-{}.safetensors"  # where models differ from worker to worker
PROFILE, TRACE = "profile.json", "trace.json"
VALIDATION = "validation_scores.npz"
COLUMNS = "columns.json"
IMPORTANCE, MISTAKES = "importance.json", "mistakes.json"
BASELINES, LEFT_OUT = "baselines.json", "left_out.json"
EVERY = "all"  # below a directory of left-out sites: the run in which all sites take part
_RESULTS = (
    *(SUMMARY, SCORES, REPORT, PROFILE, TRACE, IMPORTANCE, MISTAKES, BASELINES, VALIDATION),
    LEFT_OUT,
)
LOCK = ".lock"


@dataclass(frozen=True)
class Record:
    """One evaluation during a run: a line of metrics.jsonl.

    `stage` 0 is the warm start. `auc` with its interval, `loss` (the mean of (m - h+ + h-)^2 over
    pairs, never negative) and the mean scores of both classes are of the validation set. `a`, `b`
    and `alpha` are the algorithm's: they follow the mean score of the positives, of the negatives,
    and the second minus the first. `drift` is how far a worker's weights were from the mean when
    last averaged, relative to the mean's length; None for one worker. `bytes` and `rounds` are
    those of one worker; `computing`, `communicating` and `waiting` are seconds up to here.
    `workers` is how many there were.
    """

    step: int
    stage: int
    rounds: int
    bytes: int
    seconds: float
    lr: float
    loss: float
    auc: float
    auc_low: float
    auc_high: float
    positive_mean: float
    negative_mean: float
    a: float
    b: float
    alpha: float
    drift: float | None
    computing: float
    communicating: float
    waiting: float
    stage_end: bool
    workers: int = 1


_NUMBER: tuple[type, ...] = (int, float)
_TESTED = ("test_auc", "auc_low", "auc_high", "average_precision")
_RESULT: dict[str, tuple[type, ...]] = {  # what a summary holds, and of which types
    "run": (str,),
    "notes": (list,),
    "workers": (list,),
    "finished": (bool,),
    "interrupted": (bool,),
    **dict.fromkeys((*_TESTED, "validation_auc"), (*_NUMBER, type(None))),
    **dict.fromkeys(("steps", "rounds", "bytes_per_worker", "seconds", "pos_ratio"), _NUMBER),
    **dict.fromkeys(("train_samples", "test_samples", "test_positives"), _NUMBER),
}


class Scores(NamedTuple):
    """The scores (log-odds) and labels of a test or validation set."""

    scores: NDArray[np.float64]
    labels: NDArray[np.bool_]


class RunFolder:
    """The files of one run; each is whole or not there."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def begun(self) -> bool:
        """Whether there is something to lose."""
        saved = bool(entries(self / CHECKPOINTS))
        return (self / SUMMARY).exists() or (self / MODEL).exists() or saved

    @property
    def finished(self) -> bool:
        """Whether a run came to its end here."""
        try:
            return bool(self.summary().get("finished"))
        except _MissingError:
            return False

    def left_over(self) -> list[str]:
        """The names of what a run that came to its end would not have left there."""
        names = [path.name for path in entries(self.path)]
        return [n for n in names if n == CHECKPOINTS or _is_lock(n) or n.startswith(PARTIAL)]

    def sweep(self) -> None:
        """Remove what killed processes left: files half written, and locks that nobody has."""
        remove_partial(self.path)
        for path in entries(self.path):
            if _is_lock(path.name):
                remove_abandoned(path)

    def remove_results(self, *more: str) -> None:
        """Remove the results of an earlier end."""
        for name in (*_RESULTS, *more):
            (self / name).unlink(missing_ok=True)
        for path in self.path.glob(OF_WORKER.format("*")):
            path.unlink(missing_ok=True)

    def remove_unbegun(self) -> None:
        """Remove what a run left that failed before its first step; nothing of any other."""
        if self.begun or (self / CONFIG).exists():
            return
        with suppress(OSError):  # others may have files there
            for name in (METRICS, COLUMNS, CHECKPOINTS):
                path = self / name
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
            self.path.rmdir()

    @property
    def failed(self) -> bool:
        """Whether it is of a run that failed before its first evaluation."""
        try:
            return not (self / SUMMARY).exists() and not self.records()
        except _MissingError:
            return False

    @contextmanager
    def locked(self, rank: int = 0, patience: float = 0.0) -> Iterator[None]:
        """No other process may be this worker here meanwhile; the lock ends when this one does.

        One that is about to end, of a run that was killed, is waited for `patience` seconds.
        """
        self.refuse_links()
        path = self / (f"{LOCK}-{rank}" if rank else LOCK)
        deadline = time.monotonic() + patience
        while (file := _lock(path)) is None:
            if time.monotonic() >= deadline:
                raise ValueError(
                    f"another run is being written to {self.path}{_writer(path)}: expected a "
                    "directory of its own; choose another out=DIRECTORY, or end that run."
                )
            time.sleep(0.1)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(file)

    def refuse_links(self) -> None:
        """A directory may come from anybody, and what a link in it points to would be lost."""
        for path in entries(self.path):
            _refuse_link(path)

    def note_fault(self, event: str, **facts: Any) -> None:
        """Append a line to faults.jsonl; it cannot be written where the disk is the fault."""
        path, now = self / FAULTS, datetime.now().astimezone().isoformat(timespec="seconds")
        if path.exists() and not path.is_file():
            return  # a pipe, say, which would be waited for
        with suppress(OSError), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": now, "event": event, **facts}) + "\n")

    def faults(self) -> list[dict[str, Any]]:
        """What happened to the run; lines that cannot be read are passed over."""
        found = []
        with suppress(OSError, UnicodeDecodeError):
            for line in read_text(self / FAULTS).splitlines():
                with suppress(ValueError, RecursionError):
                    found.append(json.loads(line))
        return [fault for fault in found if isinstance(fault, dict)]

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file, all of it or nothing."""
        _refuse_link(self / name)
        with whole_file(self / name) as partial:
            partial.write_bytes(content.encode() if isinstance(content, str) else content)
        return self / name

    def write_json(self, name: str, values: Mapping[str, Any]) -> None:
        """Write names and values, as SUMMARY, PROFILE or COLUMNS."""
        self.write(name, json.dumps(values, indent=1, allow_nan=False) + "\n")

    def write_scores(self, scores: Any, labels: Any, name: str = SCORES, rows: Any = None) -> None:
        """Write the scores and labels of the test set, or of the validation set.

        `rows` are the numbers of its samples in the source.
        """
        buffer, dtype = BytesIO(), np.float32 if name == SCORES else np.float64
        scores, labels = np.asarray(scores, dtype), np.asarray(labels, np.bool_)
        arrays = {"scores": scores, "labels": labels}
        arrays |= {} if rows is None else {"rows": np.asarray(rows, np.int64)}
        np.savez_compressed(buffer, **arrays)
        self.write(name, buffer.getvalue())

    def config(self) -> dict[str, Any]:
        """The settings, as written in config.toml."""
        return dict(self._read(CONFIG, tomllib.loads))

    def summary(self) -> dict[str, Any]:
        """What the run achieved, and what it cost."""
        return dict(self._read(SUMMARY, json.loads))

    def result(self, *names: str) -> dict[str, Any]:
        """The summary of a run that came to its end; raise where `names`, or all, are not there."""
        found = self.summary()
        for name in names or _RESULT:
            if name not in found:
                raise self._changed(f"has no {name}")
            value, kinds = found[name], _RESULT[name]
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise self._changed(f"has {name} {shown(value)}")
        missing = [name for name in _TESTED if found.get(name) is None]
        if 0 < len(missing) < len(_TESTED) and not names:
            raise self._changed(f"has no {missing[0]}, but others of {', '.join(_TESTED)}")
        return {name: value for name, value in found.items() if name != "stopped"}

    def _changed(self, how: str) -> ValueError:
        return ValueError(f"{self / SUMMARY} {how}: it was changed; train again.")

    def shape(self) -> tuple[int, ...] | None:
        """The shape of a sample that is an image; None for a table."""
        found = self.summary().get("shape") or None
        if found is None:
            return None
        if not isinstance(found, list) or not all(type(side) is int and side > 0 for side in found):
            raise self._changed(f"has shape {shown(found)}")
        return tuple(found)

    def profile(self) -> dict[str, Any] | None:
        """Where the time of training went, if it was asked for."""
        return self.found(PROFILE)

    def found(self, name: str) -> dict[str, Any] | None:
        """The names and values of a file of JSON that a run may have left."""
        try:
            return dict(self._read(name, json.loads))
        except _MissingError:
            return None

    def columns(self) -> list[ColumnRecord]:
        """How each column of a table was read; of other data, or of an earlier version, none."""
        try:
            found = self._read(COLUMNS, json.loads).get("columns")
        except _MissingError:
            return []
        if not isinstance(found, list):
            raise ValueError(f"{self / COLUMNS} has no list of columns: it was changed.")
        try:
            return [ColumnRecord.from_dict(plain) for plain in found]
        except ValueError as error:
            raise ValueError(f"{self / COLUMNS}: {error}") from error

    def column_table(self) -> tuple[list[str], list[list[str]]]:
        """A header and a row of text for each column of a table, as codauc inspect shows them."""
        return record_rows(self.columns())

    def records(self) -> list[Record]:
        """The history; an incomplete last line is ignored."""
        found, names = list[Record](), {field.name for field in fields(Record)}
        lines = self._text(METRICS).split("\n")
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                plain = {"workers": 1, **json.loads(line)}  # which earlier versions did not write
                found.append(Record(**{name: plain[name] for name in names}))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                if number == len(lines):  # without its end: the run was killed while it wrote
                    break
                raise ValueError(
                    f"{self / METRICS}, line {number} cannot be read ({error}): expected a record "
                    "of codauc train; it was changed, or is of another version."
                ) from error
        return found

    def scores(self, name: str = SCORES) -> Scores | None:
        """The scores of the test set, or of the validation set, if they were kept."""
        try:
            with np.load(regular_file(self / name), allow_pickle=False) as arrays:
                return Scores(arrays["scores"].astype(np.float64), arrays["labels"].astype(bool))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, OSError, EOFError, BadZipFile, zlib.error) as error:
            raise ValueError(f"{self / name} cannot be read ({error}): it was changed.") from error

    def test_rows(self) -> NDArray[np.int64] | None:
        """The numbers of the test samples in their source, where sites made the run keep them."""
        if self.scores() is None:
            return None
        with np.load(regular_file(self / SCORES), allow_pickle=False) as arrays:
            return arrays["rows"].astype(np.int64) if "rows" in arrays else None

    def _read(self, name: str, parse: Any) -> Any:
        text = self._text(name)
        try:
            plain = parse(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self / name} cannot be read ({error}): it was changed.") from error
        if not isinstance(plain, dict):
            raise ValueError(f"{self / name}: expected names and values; it was changed.")
        return plain

    def _text(self, name: str) -> str:
        if not self.path.is_dir():
            raise _MissingError(
                f"{self.path} is not a directory: expected one that codauc train has made."
            )
        try:
            return read_text(self / name)
        except FileNotFoundError:
            raise _MissingError(
                f"{self.path} has no {name}: expected the directory of a run that ended; "
                "train it first."
            ) from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{self / name} cannot be read ({error}): it was changed.") from error


class _MissingError(ValueError):
    """The run has no such file."""


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise ValueError(
            f"{path} is a link, and to write there would change what it points to: expected the "
            "run's own files and directories; remove it."
        )


def _is_lock(name: str) -> bool:
    return name == LOCK or name.startswith(f"{LOCK}-")


def _lock(path: Path) -> int | None:
    """A descriptor of the file, locked, that says who has it; None if another process has it."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file: it was changed; remove it.")
    file = lock(path, os.O_CREAT)
    if file is not None:
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
    return file


def _writer(path: Path) -> str:
    with suppress(OSError):
        return f" ({path.read_text()})"
    return ""
