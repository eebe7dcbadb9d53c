"""Arrays in files: NPY and NPZ, mapped into memory and never read as a whole."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_BROKEN = (  # what numpy and zipfile raise for damaged files
    ValueError,
    OSError,
    EOFError,
    KeyError,
    SyntaxError,
    NotImplementedError,
    RuntimeError,
    MemoryError,
    OverflowError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def open_array(path: Path) -> Array:
    """The array of an NPY file, as a memory map."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("it is an archive of arrays; name it .npz")
    except _BROKEN as error:
        raise _unreadable(path, error) from error
    return _numbers(path, array)


def open_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an NPZ file; those that are not compressed as memory maps."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {
                info.filename.removesuffix(".npy"): _member(path, archive, info)
                for info in archive.infolist()
            }
    except _BROKEN as error:
        raise _unreadable(path, error) from error
    return {name: _numbers(path, array) for name, array in members.items()}


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    with archive.open(info) as stream:
        if info.compress_type != zipfile.ZIP_STORED:
            return np.lib.format.read_array(stream, allow_pickle=False)
        version = np.lib.format.read_magic(stream)
        read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = read[version[0]](stream)
        header = stream.tell()
    if dtype.hasobject:
        raise ValueError(f"{info.filename} holds Python objects, which are not loaded")
    size = int(np.prod(shape)) * dtype.itemsize
    if info.file_size - header != size:
        raise ValueError(f"{info.filename} has {info.file_size - header} bytes, not {size}")
    if not size:
        return np.empty(shape, dtype)
    offset = _data_start(path, info) + header
    return np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")


def _data_start(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin: behind its local header, whose length is its own."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        name, extra = struct.unpack("<26x2H", file.read(30))
    return int(info.header_offset + 30 + name + extra)


def _numbers(path: Path, array: Array) -> Array:
    if array.dtype.kind not in "biufUS":
        raise ValueError(f"{path} holds {array.dtype}: expected numbers, or texts for labels.")
    return array


def _unreadable(path: Path, error: Exception) -> ValueError:
    if isinstance(error, FileNotFoundError):
        return ValueError(f"{path} does not exist: expected an .npy or .npz file.")
    kind = "NPZ" if path.suffix.lower() == ".npz" else "NPY"
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return ValueError(
        f"{path} cannot be read as {kind}: {text}; it was cut off, is damaged or is another kind "
        "of file: make it again."
    )
