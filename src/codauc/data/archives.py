"""Files of a standard archive, read into memory: nothing is unpacked to the disk."""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

# Far above the largest standard file (154 MB), and far below what fills a machine's memory.
_MOST_BYTES = 2**30
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
                return form, [read_file(folder / name, form.files, remedy) for name in form.files]
    for form in forms:
        for name in (form.tarball, form.tarball.removesuffix(".gz")):
            if (root / name).is_file():
                return _from_tar(root / name, [form], remedy)
    found = _has_no(root, forms[0].files[0])
    raise ValueError(f"path={str(root)!r} {found}: expected {_expected(forms)}; {remedy}.")


def read_file(path: Path, together: Sequence[str], remedy: str) -> File:
    """The contents of a file, unzipped if it ends in `.gz`; `together` are the set's names."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: expected {_all_of(together)}; {remedy} again.")
    with (
        _readable(path, remedy),
        gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream,
    ):
        return File(str(path), _contents(stream.read))


def find_file(root: Path, names: Sequence[str], together: Sequence[str], remedy: str) -> Path:
    """The first of `names` that is in the directory, plain or with `.gz` after it."""
    for name in names:
        for path in (root / name, root / f"{name}.gz"):
            if path.is_file():
                return path
    raise ValueError(
        f"path={str(root)!r} {_has_no(root, names[0])}: expected {_all_of(together)}, "
        f"plain or .gz; {remedy}."
    )


def _from_tar(path: Path, forms: Sequence[Form], remedy: str) -> tuple[Form, list[File]]:
    with _readable(path, remedy):
        names, found = _members(path, forms)
    for form in forms:
        if form.files[0] in found:
            return form, [_member(found, path, name, form, remedy) for name in form.files]
    raise ValueError(f"{path} holds {_some(names)}: expected {_expected(forms)}; {remedy}.")


def _members(path: Path, forms: Sequence[Form]) -> tuple[list[str], dict[str, File]]:
    """The names of all plain files of a tar file, and those that belong to one of the forms.

    Read in one pass, as going back in a gzipped file means to unzip it again from its start.
    """
    wanted = {
        PurePosixPath(at, name) for form in forms for at in ("", form.folder) for name in form.files
    }
    names: list[str] = []
    found: dict[str, File] = {}
    with tarfile.open(path, "r:gz" if _is_zipped(path) else "r:") as tar:
        for member in tar:
            # A link may lead to itself or to nothing: none is followed.
            if member.isreg() and (stream := tar.extractfile(member)) is not None:
                names.append(member.name)
                if PurePosixPath(member.name) in wanted:
                    where = f"{path}: {member.name}"
                    found[PurePosixPath(member.name).name] = File(where, _contents(stream.read))
        # The checksum of a gzipped file is at its very end.
        while tar.fileobj is not None and tar.fileobj.read(_PART):
            pass
    return names, found


def _is_zipped(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def _member(found: dict[str, File], path: Path, name: str, form: Form, remedy: str) -> File:
    if name not in found:
        expected = _all_of(form.files)
        raise ValueError(f"{path}: {name} is missing: expected {expected}; {remedy} again.")
    return found[name]


# What gzip, zlib and tarfile are known to raise at damaged files.
_DAMAGED = (
    tarfile.TarError,
    OSError,
    EOFError,
    zlib.error,
    ValueError,
    OverflowError,
    RecursionError,
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


def _contents(read: Callable[[int], bytes]) -> bytes:
    parts, total = [], 0
    while part := read(_PART):
        parts.append(part)
        total += len(part)
        if total > _MOST_BYTES:
            raise ValueError(f"it holds more than {_MOST_BYTES} bytes")
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


def _all_of(names: Sequence[str]) -> str:
    count = {2: "both", 4: "all four", 6: "all six"}.get(len(names), f"all {len(names)}")
    return f"{count} files {', '.join(names)}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(ascii(name[:60]) for name in names[:5])
    return f"{shown}, ... ({len(names)} in all)" if len(names) > 5 else shown or "no files"
