"""Files that are whole or not there."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PARTIAL = ".codauc-partial-"  # how the name of what is not yet whole begins


@contextmanager
def whole_file(path: str | os.PathLike[str], what: str = "it") -> Iterator[Path]:
    """A name beside `path` to write to; when the block ends it is synced and renamed.

    A link stays one. What goes wrong leaves the old file as it was, and no other.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole_file(f"{folder}/a.txt") as partial:
    ...         _ = partial.write_text("all")
    ...     sorted(os.listdir(folder))
    ['a.txt']
    """
    target = Path(path).resolve()
    partial = target.with_name(f"{PARTIAL}{uuid.uuid4().hex}")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(target)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{what} was not written as {target}: {error.strerror}; what was there is as it was",
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def remove_partial(folder: Path) -> None:
    """Remove what a process that was killed left there; nobody else may be writing."""
    for path in folder.glob(f"{PARTIAL}*"):
        with suppress(OSError):
            path.unlink(missing_ok=True)
