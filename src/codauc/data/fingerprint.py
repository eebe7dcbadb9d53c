"""A number that tells data from other data, the same however rows are shared out to workers.

Each row gives a number, from its place in the source and its values as they were read; those of
all rows are added modulo 2**64, so that workers add up theirs. Values are taken before anything is
computed of them: means and deviations are sums over workers, which round differently for another
number of workers or on another processor, while what is read is exact everywhere. So nothing has
to be compared with a tolerance.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codauc.data.image_files import ImageFiles
from codauc.data.shards import mixed, scattered

Marks = NDArray[np.uint64]

SAMPLE = 256  # image files of a part whose content is compared
_BLOCK = 1 << 16  # words at a time, which fit the cache
_SHIFT = np.uint64(29)  # bits; no multiple of 8, as words may hold several numbers


def row_marks(values: NDArray[Any]) -> Marks:
    """A number for each row of an array; one other value in a row always gives another number.

    A row's bytes are taken as words of 64 bits, whose products with odd numbers are added. Before
    that the upper bits of a word are added to the lower ones: numbers of opposite sign differ in
    the highest bit alone, which a product would leave there, and two of them would cancel out.

    >>> first, other = row_marks(np.array([[1.0, -2.0], [-1.0, 2.0]])).tolist()
    >>> first != other
    True
    """
    plain = values.astype(values.dtype.newbyteorder("<"), order="C", copy=False)
    rows = plain.reshape(len(plain), int(np.prod(plain.shape[1:]))).view(np.uint8)
    width = -(-rows.shape[1] // 8)
    factors, marks = _factors(width), np.empty(len(rows), np.uint64)
    step = min(len(rows), max(1, _BLOCK // max(width, 1))) or 1
    for start in range(0, len(rows), step):
        words = _words(rows[start : start + step], width)
        np.einsum("ij,j->i", words ^ (words >> _SHIFT), factors, out=marks[start : start + step])
    marks += np.uint64(text_mark(plain.dtype.str))  # the same bits may be other numbers
    return marks


def _words(rows: NDArray[np.uint8], width: int) -> Marks:
    if rows.shape[1] % 8 == 0:
        return rows.view("<u8")
    padded = np.zeros((len(rows), 8 * width), np.uint8)
    padded[:, : rows.shape[1]] = rows
    return padded.view("<u8")


@lru_cache(maxsize=64)
def _factors(count: int) -> Marks:
    return scattered(np.arange(count, dtype=np.uint64), 1) | np.uint64(1)


def text_mark(text: str | float | None) -> int:
    """A number for a text, or for a value that is missing."""
    data = b"" if text is None else b"=" + str(text).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def add_texts(
    marks: Marks, column: int, values: Sequence[Any], which: Any, known: dict[Any, int]
) -> None:
    """Add a column of texts, `values[which]`, to its rows' numbers; `known` keeps those made."""
    for value in values:
        if value not in known:
            known[value] = text_mark(value)
    factor = scattered(np.array([column], np.uint64), 2) | np.uint64(1)
    marks += (np.array([known[value] for value in values], np.uint64) * factor)[which]


def total(rows: NDArray[Any], marks: Marks) -> int:
    """The number of all these rows, whatever their order."""
    return int(mixed(rows.astype(np.uint64), marks).sum(dtype=np.uint64))


def of_worker(rank: int, number: int) -> int:
    """The number of a worker's own data, which is other data with another worker."""
    return total(np.array([rank]), np.array([number], np.uint64))


def file_marks(files: ImageFiles, rows: NDArray[Any], samples: int) -> Marks:
    """A number for each image file: of its name, its size, and for about 256 files its content.

    Which files are read is decided by their place in the source, of which all workers together
    have `samples`. Pixels are no part of it: decoders of other versions round differently.
    """
    chance = scattered(rows.astype(np.uint64), 5)
    read = chance <= np.uint64(min(2**64 - 1, SAMPLE * 2**64 // max(samples, 1)))
    found = (_file(files, index, content=bool(read[index])) for index in range(len(rows)))
    return np.fromiter(found, np.uint64, len(rows))


def _file(files: ImageFiles, index: int, *, content: bool) -> int:
    digest, path = hashlib.blake2b(os.fsencode(files.name(index)), digest_size=8), files.path(index)
    try:
        digest.update(f"\n{os.stat(path).st_size}\n".encode())
        if content:
            with open(path, "rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
    except OSError:  # a file that cannot be read is an error when it is asked for
        digest.update(b"\nnot there")
    return int.from_bytes(digest.digest(), "little")


def combined(parts: Sequence[Mapping[str, int]]) -> dict[str, str]:
    """The numbers of all workers' parts, by name, as texts to compare and to show."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: f"{sum(part[name] for part in parts) % 2**64:016x}" for name in names}
