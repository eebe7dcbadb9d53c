"""What the few names that a pickle of arrays mentions stand for: made here, never imported."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]

_MOST_DIMENSIONS = 32
# Of the names of dtypes and byte orders: the known ones have two.
_MOST_LETTERS = 8


class NotPlainError(ValueError):
    """A step that is not plain data; the message follows the name of the file."""


class Name(Enum):
    """The names that a file may mention."""

    BYTES = "bytes"
    ENCODE = "encode"
    RECONSTRUCT = "_reconstruct"
    FROMBUFFER = "_frombuffer"
    NDARRAY = "ndarray"
    DTYPE = "dtype"


_NAMES = {
    ("__builtin__", "bytes"): Name.BYTES,  # Python 3 writes b"" so for Python 2,
    ("_codecs", "encode"): Name.ENCODE,  # and other bytes so
    ("numpy.core.multiarray", "_reconstruct"): Name.RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): Name.RECONSTRUCT,
    ("numpy.core.numeric", "_frombuffer"): Name.FROMBUFFER,
    ("numpy._core.numeric", "_frombuffer"): Name.FROMBUFFER,
    ("numpy", "ndarray"): Name.NDARRAY,
    ("numpy", "dtype"): Name.DTYPE,
}


@dataclass(slots=True)
class Kind:
    """A dtype: its name, as u1, and its byte order, which a later step sets."""

    name: str
    order: str = ""


@dataclass(slots=True)
class Array:
    """An array, whose value a later step may set."""

    value: Integers | None = None


def text(value: Any, most: int) -> str:
    """`value` as text of at most so many characters: Python 2 wrote text as bytes."""
    if type(value) not in (bytes, str):
        raise NotPlainError(f"has a {type(value).__name__} in place of text")
    # Before it is decoded or hashed: a file can recall one long text over and over.
    if len(value) > most:
        raise NotPlainError(f"has a name of {len(value)} characters")
    return value.decode("latin-1") if type(value) is bytes else str(value)


def named(module: Any, name: Any) -> Name:
    """The known name, which is only a mark.

    >>> named("numpy", "ndarray"), named("os", "system")
    Traceback (most recent call last):
        ...
    codauc.data.pickled_arrays.NotPlainError: asks for 'os' 'system'
    """
    found = _NAMES.get((module, name)) if type(module) is type(name) is str else None
    if found is None:
        shown = (f"{part[:80]!r}" if type(part) is str else "no text" for part in (module, name))
        raise NotPlainError(f"asks for {' '.join(shown)}")
    return found


def called(name: Any, arguments: Any) -> bytes | Kind | Array:
    r"""What one of the known calls would give; nothing is called.

    >>> called(Name.ENCODE, ("caf\xe9", "latin1"))
    b'caf\xe9'
    """
    if type(arguments) is not tuple:
        raise NotPlainError(f"calls with a {type(arguments).__name__}")
    match (name, *arguments):
        case [Name.BYTES]:
            return b""
        case [Name.ENCODE, str(letters), "latin1"]:
            return letters.encode("latin-1")
        case [Name.RECONSTRUCT, Name.NDARRAY, (0,), b"b" | "b"]:
            return Array()
        case [Name.DTYPE, (str() | bytes()) as kind, 0, 1]:
            return Kind(text(kind, _MOST_LETTERS))
        case [Name.FROMBUFFER, bytes(data), Kind() as kind, tuple(shape), "C" | "F" as order]:
            return Array(_array(data, kind, shape, fortran=order == "F"))
    shown = name.value if isinstance(name, Name) else f"a {type(name).__name__}"
    raise NotPlainError(f"calls {shown} in an unknown way")


def build(target: Any, state: Any) -> None:
    """Set the byte order of a dtype, or the value of an array."""
    if type(target) not in (Kind, Array) or type(state) is not tuple:
        raise NotPlainError(f"builds {type(target).__name__} from {type(state).__name__}")
    match (target, *state):
        case [Kind(), 3, (str() | bytes()) as order, None, None, None, -1, -1, 0]:
            target.order = text(order, _MOST_LETTERS)
        case [Array(), 1, tuple(shape), Kind() as kind, 0 | 1 as fortran, bytes(data)]:
            target.value = _array(data, kind, shape, fortran=bool(fortran))
        case _:
            raise NotPlainError(f"builds a numpy {type(target).__name__.lower()} in an unknown way")


def _array(data: bytes, kind: Kind, shape: tuple[Any, ...], *, fortran: bool) -> Integers:
    """The array that shows `data`, if the dtype is of integers and the shape takes all of it."""
    dtype = kind.order + kind.name
    if not re.fullmatch(r"\|[iu]1|[<>][iu][248]", dtype):
        raise NotPlainError(f"has an array of dtype {dtype[:20]!r}, which is not of integers,")
    if len(shape) > _MOST_DIMENSIONS or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
        raise NotPlainError("has an array of impossible shape")
    if math.prod(shape) * int(dtype[-1]) != len(data):
        raise NotPlainError(
            f"has an array of shape {shape} and dtype {dtype!r} in {len(data)} bytes"
        )
    array: Integers = np.frombuffer(data, dtype)
    return array.reshape(shape, order="F" if fortran else "C")
