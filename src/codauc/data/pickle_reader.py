"""Pickled data, read without running it.

A pickle is a program for a small stack machine, and may call any function of any module. Python's
own machine reads it here with a short list of steps: those that make plain data. The names by which
numpy writes an array of integers are kept as texts, and what their calls would give is made here.
Nothing is imported, and no object on the stack can be called.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
import struct
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

# Five times the reads of the largest standard file: more would only fill the memory.
_MOST_READS = 3_000_000
_LONG_TEXT = 2**16
_NAMES = {
    *(("__builtin__", "bytes"), ("_codecs", "encode")),  # how Python 3 writes bytes for Python 2
    *(("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")),
    *(("numpy.core.numeric", "_frombuffer"), ("numpy._core.numeric", "_frombuffer")),
    *(("numpy", "ndarray"), ("numpy", "dtype")),
}
_AS_IN_PYTHON = """
PROTO STOP NONE NEWTRUE NEWFALSE INT LONG BININT BININT1 BININT2 LONG1 BINSTRING
SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 MARK EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET
GLOBAL STACK_GLOBAL"""
# Characters beyond latin-1, in either encoding.
_WIDE = {"utf-8": rb"[\xc4-\xff]", "raw_unicode_escape": rb"\\u(?!00)|\\U(?!000000)"}


def unpickled(where: str, data: bytes, remedy: str) -> dict[str, Any]:
    """The pickled dict in `data`: lists, tuples, text, bytes, integers, arrays of integers.

    The keys are text, or were bytes as written by Python 2. Protocols 0 to 5 are known. No part
    of the file is run. Errors name the file, `where`, and end in `remedy`.

    >>> unpickled("a file", pickle.dumps({b"labels": [1, 2]}, protocol=2), "get it again")
    {'labels': [1, 2]}
    >>> unpickled("a file", pickle.dumps({"run": print}, protocol=2), "get it again")
    Traceback (most recent call last):
        ...
    ValueError: a file asks for '__builtin__' 'print' near byte 34: expected a pickled dict of \
numbers, text and arrays; nothing in the file was run: get it again.
    """
    file = _File(data)
    try:
        found = _PlainUnpickler(file, len(data)).load()
        if type(found) is not dict:
            raise _NotPlainError(f"holds a {type(found).__name__}")
        return {key: v.array() if isinstance(v, _Array) else v for key, v in found.items()}
    except _NotPlainError as error:
        reason, cause = str(error), error  # type: tuple[str, Exception]
    except _DAMAGED as error:
        early = isinstance(error, EOFError | struct.error)
        reason, cause = "ends too early" if early else f"is damaged ({str(error)[:100]})", error
    raise ValueError(
        f"{where} {reason} near byte {file.tell()}: expected a pickled dict of numbers, "
        f"text and arrays; nothing in the file was run: {remedy}."
    ) from cause


class _NotPlainError(ValueError):
    """A step that is not plain data; the message follows the name of the file."""


# What Python's machine raises at steps that do not fit each other.
_DAMAGED = (
    *(ValueError, TypeError, AttributeError, LookupError, EOFError, OverflowError, struct.error),
    pickle.UnpicklingError,
)


class _File(io.BytesIO):
    """The pickle, of which every step takes at least one read."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads > _MOST_READS:
            raise _NotPlainError(f"has more than {_MOST_READS} steps")
        return super().read(size)


class _Name(str):
    """A name that the file mentions."""


class _Kind:
    """A dtype: its name, as u1, and its byte order, which a later step sets."""

    def __init__(self, name: str) -> None:
        self.name, self.order = name, ""


class _Array:
    """An array of a shape, a dtype, an order ("C" or "F") and bytes, which a later step may set."""

    def __init__(self, *contents: Any) -> None:
        self.contents = contents

    def array(self) -> NDArray[np.integer[Any]]:
        if not self.contents:
            raise _NotPlainError("has an array without contents")
        shape, kind, order, data = self.contents
        if not re.fullmatch(r"\|[iu]1|[<>][iu][248]", dtype := kind.order + kind.name):
            raise _NotPlainError(f"has an array of dtype {dtype!r}, which is not of integers,")
        if len(shape) > 32 or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
            raise _NotPlainError("has an array of impossible shape")
        if math.prod(shape) * int(dtype[-1]) != len(data):
            raise _NotPlainError(f"has an array of shape {shape} in {len(data)} bytes")
        found: NDArray[np.integer[Any]] = np.frombuffer(data, dtype).reshape(shape, order=order)
        return found


def _text(value: Any, most: int) -> str:
    """`value` as text of at most so many characters: Python 2 wrote text as bytes."""
    if type(value) not in (bytes, str):
        raise _NotPlainError(f"has a {type(value).__name__} in place of text")
    # Before it is decoded or hashed: a file can recall one long text over and over.
    if len(value) > most:
        raise _NotPlainError(f"has a name of {len(value)} characters")
    return value.decode("latin-1") if type(value) is bytes else str(value)


def _quoted(line: bytes) -> bytes:
    """The bytes that Python 2 wrote as a literal; Python warns of other escapes than these."""
    if len(line) < 2 or line[:1] not in (b"'", b'"') or line[:1] != line[-1:]:
        raise _NotPlainError("has text without quotes")
    if b"\\" in re.sub(rb"""\\(?:[\\'"nrt]|x[0-9a-fA-F]{2})""", b"", line):
        raise _NotPlainError("has an unknown escape in text")
    return line[1:-1].decode("unicode_escape").encode("latin-1")


class _Steps(dict[int, Any]):
    """The steps that are taken, by their letters in the file."""

    def __missing__(self, code: int) -> Any:
        names = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
        raise _NotPlainError(f"has the step {names.get(code, bytes([code]))}")


_STEPS = _Steps(
    {
        code: step
        for code, step in pickle._Unpickler.dispatch.items()
        if any(getattr(pickle, name)[0] == code for name in _AS_IN_PYTHON.split())
    }
)
_STEPS |= {
    pickle.FRAME[0]: lambda m: m.read(8),  # the length of what follows
    pickle.BYTEARRAY8[0]: _STEPS[pickle.BINBYTES8[0]],
    pickle.STRING[0]: lambda m: m.stack.append(_quoted(m.readline()[:-1])),
    pickle.UNICODE[0]: lambda m: m.add_text(m.readline()[:-1], "raw_unicode_escape"),
    pickle.SHORT_BINUNICODE[0]: lambda m: m.add_text(m.counted(1)),
    pickle.BINUNICODE[0]: lambda m: m.add_text(m.counted(4)),
    pickle.BINUNICODE8[0]: lambda m: m.add_text(m.counted(8)),
    pickle.SETITEM[0]: lambda m: m.enter([m.stack.pop() for _ in range(2)][::-1]),
    pickle.SETITEMS[0]: lambda m: m.enter(m.pop_mark()),
    pickle.DICT[0]: lambda m: m.enter(m.pop_mark(), new=True),
    pickle.REDUCE[0]: lambda m: m.call(m.stack.pop()),
    pickle.BUILD[0]: lambda m: m.build(m.stack.pop()),
}


class _PlainUnpickler(pickle._Unpickler):
    """Python's own machine, in its form written in Python, whose steps can be chosen."""

    dispatch: ClassVar = _STEPS
    stack: list[Any]
    read: Callable[[int], bytes]

    def __init__(self, file: _File, size: int) -> None:
        super().__init__(file, encoding="bytes")
        # One text could be made bytes over and over; an honest file makes no more than its size.
        self.spare = size

    def find_class(self, module: str, name: str) -> _Name:
        if (module, name) not in _NAMES:
            raise _NotPlainError(f"asks for {module[:80]!r} {name[:80]!r}")
        return _Name(name)

    def call(self, arguments: Any) -> None:
        """Put what one of the known calls would give on the stack; nothing is called."""
        name = self.stack.pop()
        shown = str(name) if type(name) is _Name else f"a {type(name).__name__}"
        if type(arguments) is not tuple:
            raise _NotPlainError(f"calls {shown} with a {type(arguments).__name__}")
        match (shown, *arguments):
            case ["bytes"]:
                self.stack.append(b"")
            case ["encode", str(letters), "latin1"]:
                self.spare -= len(letters)
                if self.spare < 0:
                    raise _NotPlainError("makes more bytes than it has")
                self.stack.append(letters.encode("latin-1"))
            case ["_reconstruct", _Name("ndarray"), (0,), b"b" | "b"]:
                self.stack.append(_Array())
            case ["dtype", kind, 0, 1]:
                self.stack.append(_Kind(_text(kind, 8)))
            case ["_frombuffer", bytes(data), _Kind() as kind, tuple(shape), "C" | "F" as order]:
                self.stack.append(_Array(shape, kind, order, data))
            case _:
                raise _NotPlainError(f"calls {shown} in an unknown way")

    def build(self, state: Any) -> None:
        """Set the byte order of a dtype, or the contents of an array."""
        match (self.stack[-1], state):
            case [_Kind() as kind, (3, order, None, None, None, -1, -1, 0)]:
                kind.order = _text(order, 8)
            case [_Array() as array, (1, tuple(shape), _Kind() as kind, 0 | 1 as f, bytes(data))]:
                array.contents = (shape, kind, "F" if f else "C", data)
            case [target, _]:
                raise _NotPlainError(f"builds a {type(target).__name__} in an unknown way")

    def enter(self, items: list[Any], *, new: bool = False) -> None:
        """Set keys and values of the dict on the stack, or of a new one."""
        if new:
            self.stack.append({})
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise _NotPlainError(f"sets {len(items)} keys and values of a {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Text alone: the hash of nested tuples could take for ever.
            target[_text(key, 200)] = value

    def counted(self, size: int) -> bytes:
        """As many bytes as the number in the first `size` bytes says."""
        return self.read(int.from_bytes(self.read(size), "little"))

    def add_text(self, data: bytes, encoding: str = "utf-8") -> None:
        """Put a text on the stack."""
        # One wide character makes all of a text take four bytes for each of its own; the long
        # texts of honest files are bytes written as latin-1.
        if len(data) > _LONG_TEXT and re.search(_WIDE[encoding], data):
            raise _NotPlainError("has a long text beyond latin-1")
        self.stack.append(data.decode(encoding))
