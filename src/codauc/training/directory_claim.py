"""Which directory a run writes to, and that no other run uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from codauc.report.run_page import page
from codauc.runs.checkpoints import clear, from_one
from codauc.runs.directory import CHECKPOINTS, EVERY, FAULTS, METRICS, MODEL, REPORT, RunFolder
from codauc.runs.settings import CONFIG
from codauc.workers.agreement import together
from codauc.workers.group import Group

_OUTLIVED = 15.0  # seconds in which a killed run's workers end


def of_several(folder: RunFolder) -> bool:
    """Whether it holds the runs of `--test-site each`, in directories below it."""
    return not folder.begun and (folder / CONFIG).exists() and (folder / EVERY / CONFIG).exists()


def check_free(folder: RunFolder, *, overwrite: bool) -> None:
    """Refuse a directory that holds a run, unless it may be overwritten."""
    if folder.path.exists() and not folder.path.is_dir():
        raise ValueError(f"{folder.path} is a file: expected a directory for the run.")
    if (folder.begun or of_several(folder)) and not overwrite:
        raise ValueError(
            f"out={folder.path} already holds a run: expected another directory; choose one, or "
            "use resume=True to continue the existing run, or overwrite=True to lose it."
        )


def new_directory(source: str, root: Path = Path("runs")) -> Path:
    """Create the first of runs/NAME-1, runs/NAME-2, ... that does not exist."""
    name = Path(source).name.split(".")[0].strip("<>") or "run"
    root.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        try:
            (path := root / f"{name}-{number}").mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


@contextmanager
def claimed(
    group: Group, source: str, out: str | None, *, resuming: bool, overwrite: bool
) -> Iterator[RunFolder]:
    """Inside this block no other run may use the directory `out`, or a new one named by `source`.

    With `resuming` an existing run is continued, otherwise it is refused, or with `overwrite` lost.
    """
    with _removed_if_unused() as made, ExitStack() as stack:

        def take(folder: RunFolder) -> str:
            if group.rank == 0 and (out is None or not folder.path.exists()):
                made.append(folder)
            folder.path.mkdir(parents=True, exist_ok=True)
            stack.enter_context(folder.locked(group.rank, _OUTLIVED if resuming else 0.0))
            if not resuming:
                if group.rank == 0:
                    check_free(folder, overwrite=overwrite)
                    folder.remove_results(CONFIG, METRICS, MODEL, FAULTS)
                clear(folder / CHECKPOINTS)  # which may be a host's own
            return str(folder.path)

        def first() -> str:
            if group.rank:
                return ""
            return take(RunFolder(new_directory(source) if out is None else out))

        path = from_one(group, together(group, first, "start").encode()).decode()
        folder = RunFolder(out or path)  # each host may have its own
        together(group, lambda: group.rank and take(folder), "start")
        together(group, folder.sweep, "start")  # all have their locks by now
        yield folder


@contextmanager
def _removed_if_unused() -> Iterator[list[RunFolder]]:
    """Remove directories that were made for a run that failed before its first step."""
    made: list[RunFolder] = []
    try:
        yield made
    except BaseException:
        for folder in made:
            folder.remove_unbegun()
        raise


def complete_end(folder: RunFolder, rank: int, *, held: bool) -> str:
    """Do what a finished run was killed before: write the report, remove what is not needed.

    Its summary is written when the model, the scores and the history are whole, so the report can
    be made from them. Returns what was done. `held`: the directory is already locked.
    """
    missing = rank == 0 and not (folder / REPORT).exists()
    if not missing and not folder.left_over():
        return ""
    with nullcontext() if held else folder.locked(rank, _OUTLIVED):
        if missing and not (folder / REPORT).exists():
            folder.write(REPORT, page(folder))
        clear(folder / CHECKPOINTS)
        folder.sweep()
    return "its end was completed" if missing or not held else ""
