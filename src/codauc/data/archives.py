"""Files of a standard archive, read into memory: nothing is unpacked to the disk."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar

from codauc._internal.checks import listed

T = TypeVar("T")

# For all files of a set, and for all of a tar file when unzipped. Far above the largest standard
# set (185 MB), and far below what fills a machine's memory.
_MOST_BYTES = 2**30
# The standard archives have fewer than 20.
_MOST_MEMBERS = 1000
_PART = 2**20


class Form(NamedTuple):
    """One of the forms in which an archive is given: its tar file, its folder, its files."""

    tarball: str
    folder: str
    files: tuple[str, ...]


class File(NamedTuple):
    """The contents of a file, and where it was found, for messages."""

    where: str
    data: bytes


def read_archive(
    path: str | os.PathLike[str], forms: Sequence[Form], remedy: str
) -> tuple[Form, list[File]]:
    """The form that is at `path`, and its files in the order of `Form.files`.

    `path` is a tar file, plain or gzipped, or a directory with the files, with the form's folder
    of them, or with the form's tar file. What is unpacked goes before tar files, and an earlier
    form before a later one. The `remedy` ends every error.
    """
    root = Path(path)
    if root.is_file():
        return _from_tar(root, forms, remedy)
    for form in forms:
        for folder in (root, root / form.folder):
            if (folder / form.files[0]).is_file():
                found = {name: folder / name for name in form.files if (folder / name).is_file()}
                return form, read_files(_all(form, found, folder, remedy), remedy)
    for form in forms:
        for name in (form.tarball, form.tarball.removesuffix(".gz")):
            if (root / name).is_file():
                return _from_tar(root / name, [form], remedy)
    what = _has_no(root, forms[0].files[0])
    raise ValueError(f"path={str(root)!r} {what}: expected {_expected(forms)}; {remedy}.")


def _all(form: Form, found: Mapping[str, T], where: Path, remedy: str) -> list[T]:
    for name in form.files:
        if name not in found:
            raise ValueError(
                f"{where}: {name} is missing: expected all of {', '.join(form.files)}; {remedy} "
                "again."
            )
    return [found[name] for name in form.files]


def read_files(paths: Sequence[Path], remedy: str) -> list[File]:
    """The contents of files, unzipped if they end in `.gz`."""
    files: list[File] = []
    for path in paths:
        spare = _MOST_BYTES - sum(len(file.data) for file in files)
        with (
            _readable(path, remedy),
            gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream,
        ):
            files.append(File(str(path), _contents(stream.read, spare)))
    return files


def find_file(root: Path, names: Sequence[str], together: Sequence[str], remedy: str) -> Path:
    """The first of `names` that is in the directory, plain or with `.gz` after it."""
    for name in names:
        for path in (root / name, root / f"{name}.gz"):
            if path.is_file():
                return path
    raise ValueError(
        f"path={str(root)!r} {_has_no(root, names[0])}: expected all of {', '.join(together)}, "
        f"plain or .gz; {remedy}."
    )


def _from_tar(path: Path, forms: Sequence[Form], remedy: str) -> tuple[Form, list[File]]:
    with _readable(path, remedy):
        names, found = _members(path, forms)
    for form in forms:
        if form.files[0] in found:
            return form, _all(form, found, path, remedy)
    raise ValueError(f"{path} holds {_some(names)}: expected {_expected(forms)}; {remedy}.")


def tar_files(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The name of every plain file in a tar file, and how it is read before the next is asked for.

    It may hold many: of all others but the standard sets nobody knows how many.
    """
    with _readable(path, "get it"), _unzipped(path) as stream:
        for member in _plain_files(stream, most=10**8, size=2**42):
            yield member.name, partial(_data, stream, member)


def _members(path: Path, forms: Sequence[Form]) -> tuple[list[str], dict[str, File]]:
    """The names of all plain files of a tar file, and those that belong to one of the forms."""
    wanted = {
        PurePosixPath(at, name) for form in forms for at in ("", form.folder) for name in form.files
    }
    names, found = list[str](), dict[str, File]()
    with _unzipped(path) as stream:
        for member in _plain_files(stream, most=_MOST_MEMBERS, size=_MOST_BYTES):
            names.append(member.name)
            place = PurePosixPath(member.name)
            if place in wanted and place.name in found:
                raise ValueError(f"it holds {place.name} twice, the second time as {place}")
            if place in wanted:
                found[place.name] = File(f"{path}: {member.name}", _data(stream, member))
    return names, found


def _plain_files(stream: io.BufferedIOBase, *, most: int, size: int) -> Iterator[tarfile.TarInfo]:
    """The plain files of a tar file, with the stream at the data of each.

    Headers are read one by one, and extended ones (long names, PAX) passed over: tarfile would read
    them whole at any length. Links are not followed.
    """
    entries = 0
    while block := stream.read(tarfile.BLOCKSIZE).rstrip(b"\0"):
        block = block.ljust(tarfile.BLOCKSIZE, b"\0")
        member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        blocks = -(-member.size // tarfile.BLOCKSIZE)
        end = stream.tell() + blocks * tarfile.BLOCKSIZE
        _check_size(end, size)
        entries += 1
        if member.size < 0 or entries > most:
            raise ValueError(f"it has more than {most} entries, or one of size < 0")
        if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
            yield member
        stream.seek(end)
    # The checksum of a gzipped file is at its very end.
    while stream.read(_PART):
        _check_size(stream.tell(), size)


def _unzipped(path: Path) -> io.BufferedIOBase:
    return gzip.open(path) if _is_zipped(path) else path.open("rb")


def _data(stream: io.BufferedIOBase, member: tarfile.TarInfo) -> bytes:
    data = stream.read(member.size)
    if len(data) < member.size:
        raise ValueError(f"it ends within {member.name}")
    return data


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ValueError(f"it holds more than {most} bytes")


def _is_zipped(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


# What gzip, zlib and tarfile are known to raise at damaged files.
_DAMAGED = (
    tarfile.TarError,
    EOFError,
    OSError,
    ValueError,
    OverflowError,
    RecursionError,
    zlib.error,
)


@contextmanager
def _readable(path: Path, remedy: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise ValueError(
            f"{path} cannot be read ({error}): expected a complete file; it was cut off or "
            f"damaged, or is another kind of file: {remedy} again."
        ) from error


def _contents(read: Callable[[int], bytes], most: int) -> bytes:
    parts, total = [], 0
    while part := read(_PART):
        parts.append(part)
        total += len(part)
        if total > most:
            raise ValueError(f"the set holds more than {_MOST_BYTES} bytes")
    return b"".join(parts)


def _has_no(root: Path, name: str) -> str:
    if not root.is_dir():
        return "is not a directory"
    inside = sorted(entry.name for entry in root.iterdir())
    return f"has no {name}" + (f" but {_some(inside)}" if inside else "")


def _expected(forms: Sequence[Form]) -> str:
    """The first form in full, and the others by their folders.

    >>> _expected([Form("b.tar.gz", "b", ("1.bin", "2.bin")), Form("p.tar.gz", "p", ("1", "2"))])
    '1.bin, 2.bin, there or in a folder b, or b.tar.gz; or a folder p or p.tar.gz'
    """
    first, *others = forms
    text = f"{', '.join(first.files)}, there or in a folder {first.folder}, or {first.tarball}"
    return "; or ".join([text, *(f"a folder {form.folder} or {form.tarball}" for form in others)])


def _some(names: Sequence[str]) -> str:
    return listed((name[:60] for name in names), most=5)
