"""Files are read only where they are files, and are written as a whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MOST_TEXT = 256 << 20  # bytes of a text that is read as a whole
PARTIAL = ".codauc-partial-"  # how the name of what is not yet whole begins

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def regular_file(path: str | os.PathLike[str]) -> Path:
    """`path`, if it is a file or a link to one; it is not opened, as that may wait without end.

    >>> regular_file("/dev/null")
    Traceback (most recent call last):
        ...
    ValueError: /dev/null is a device: expected a file.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise ValueError(f"{path} is {kind}: expected a file.")
    return Path(path)


def read_text(path: str | os.PathLike[str], most: int = MOST_TEXT) -> str:
    """The text of a file in UTF-8 that has at most `most` bytes."""
    size = regular_file(path).stat().st_size
    if size > most:
        raise ValueError(f"{path} has {size} bytes: expected at most {most}; it was changed.")
    return Path(path).read_text(encoding="utf-8")


@contextmanager
def whole_file(path: str | os.PathLike[str], what: str = "it") -> Iterator[Path]:
    """A name beside `path` to write to; when the block ends it is synced and renamed.

    A link stays one. What goes wrong leaves the old file as it was, and no other; what a process
    that was killed had begun to write to this path goes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole_file(f"{folder}/a.txt") as partial:
    ...         _ = partial.write_text("all")
    ...     sorted(os.listdir(folder))
    ['a.txt']
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_dir():
        regular_file(target)  # a device or a pipe would be replaced by a file
    begin = f"{PARTIAL}{hashlib.blake2b(os.fsencode(target.name), digest_size=6).hexdigest()}-"
    partial = target.with_name(f"{begin}{uuid.uuid4().hex}")
    file = None
    try:
        remove_partial(target.parent, begin)
        file = lock(partial, os.O_CREAT | os.O_EXCL)
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(target)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{what} was not written as {target}: {error.strerror}; what was there is as it was",
        ) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        if file is not None:
            os.close(file)


def entries(folder: Path) -> list[Path]:
    """What is in a directory, by name; nothing if there is none, also if it goes just now."""
    try:
        return sorted(folder / name for name in os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def lock(path: Path, flags: int = 0) -> int | None:
    """A descriptor of the file, locked until it is closed or its process ends.

    None if another process has it, or it is no file; the lock of a file that was removed
    meanwhile is worth nothing. `flags` may say that the file is to be made.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o666)
    except (FileNotFoundError, IsADirectoryError):
        if flags:
            raise
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        here, there = os.fstat(file), os.stat(path, follow_symlinks=False)
        if stat.S_ISREG(here.st_mode) and here.st_ino == there.st_ino:
            return file
    except OSError:  # another has it, or has just removed it
        pass
    os.close(file)
    return None


def remove_abandoned(path: Path) -> None:
    """Remove a file that no process has locked."""
    with suppress(OSError):
        if (file := lock(path)) is not None:
            try:
                path.unlink(missing_ok=True)
            finally:
                os.close(file)


def remove_partial(folder: Path, begin: str = PARTIAL) -> None:
    """Remove what processes that were killed left half written there."""
    for path in entries(folder):
        if path.name.startswith(begin):
            remove_abandoned(path)


def free_name(path: Path) -> Path:
    """The path, or the first of NAME-2.SUFFIX, NAME-3.SUFFIX, ... that does not exist."""
    number, found = 1, path
    while found.exists() or found.is_symlink():
        number += 1
        found = path.with_stem(f"{path.stem}-{number}")
    return found
