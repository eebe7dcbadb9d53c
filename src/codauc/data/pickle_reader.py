"""The pickles of CIFAR's archives, read without running them.

A pickle is a program for a small stack machine, and may call any function of any module. Here only
the steps are known by which Python 2 wrote a dict of integers, texts, lists and arrays of bytes.
Names remain texts: nothing is imported, and nothing on the stack can be called.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Five times the steps of the largest standard file: more would only fill the memory.
_MOST_STEPS = 3_000_000
_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}


def unpickled(where: str, data: bytes, remedy: str) -> dict[str, Any]:
    r"""The dict in `data`, a pickle of protocol 2 by Python 2; its texts are decoded as latin-1.

    No part of the file is run. Errors name the file, `where`, and end in `remedy`.

    >>> unpickled("a file", b"}U\x06labels](K\x01K\x02es.", "get it again")
    {'labels': [1, 2]}
    """
    file = io.BytesIO(data)
    try:
        found = _Machine().run(file)
        if type(found) is not dict:
            raise ValueError(f"it holds a {type(found).__name__}")
        return {key: v.values if isinstance(v, _Array) else v for key, v in found.items()}
    except ValueError as error:
        reason, cause = str(error)[:200], error  # type: tuple[str, Exception]
    except (LookupError, TypeError) as error:
        reason, cause = "its steps do not fit each other", error
    raise ValueError(
        f"{where} cannot be read ({reason} near byte {file.tell()}): expected the pickled dict of "
        f"a standard archive; nothing in the file was run: {remedy}."
    ) from cause


class _Name(str):
    """A name that the file mentions, or what is made of it."""


_NAMES = ("numpy ndarray", "numpy dtype", "numpy.core.multiarray _reconstruct")


class _Array:
    """An array, whose values a later step sets."""

    values: NDArray[np.uint8] | None = None


class _Machine:
    """The stack and the memo of a pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.spare = 0

    def run(self, file: io.BytesIO) -> Any:
        """What the file leaves on the stack."""
        # One text could be made an array over and over; an honest file makes no more than its size.
        self.spare = len(file.getbuffer())
        for _ in range(_MOST_STEPS):
            code = file.read(1).decode("latin-1")
            step = _OPCODES.get(code)
            if code == pickle.STOP.decode():
                return self.stack.pop()
            if step is None or step.name not in _STEPS:
                shown = repr(code) if step is None else step.name
                raise ValueError(f"it has the step {shown}" if code else "it ends too early")
            _STEPS[step.name](self, None if step.arg is None else step.arg.reader(file))
        raise ValueError(f"it has more than {_MOST_STEPS} steps")

    def after_mark(self) -> list[Any]:
        return self.last(len(self.stack) - self.marks.pop())

    def last(self, count: int) -> list[Any]:
        start = len(self.stack) - count
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def name(self, name: str) -> None:
        if name not in _NAMES:
            raise ValueError(f"it asks for {name[:80]!r}")
        self.stack.append(_Name(name))

    def enter(self, items: list[Any]) -> None:
        target = self.stack[-1]
        # Texts alone: the hash of nested tuples could take for ever.
        if type(target) is not dict or any(type(key) is not str for key in items[::2]):
            raise ValueError(f"it sets keys of a {type(target).__name__} that are not all texts")
        target.update(zip(items[::2], items[1::2], strict=True))

    def call(self, name: Any, arguments: Any) -> None:
        """Put what one of two known calls would give on the stack; nothing is called."""
        match (name, arguments):
            case [_Name("numpy.core.multiarray _reconstruct"), (_Name("numpy ndarray"), (0,), "b")]:
                self.stack.append(_Array())
            case [_Name("numpy dtype"), ("u1", 0, 1)]:
                self.stack.append(_Name("dtype of bytes"))
            case _:
                shown = name if type(name) is _Name else f"a {type(name).__name__}"
                raise ValueError(f"it calls {shown} in an unknown way")

    def build(self, state: Any) -> None:
        """Set the values of an array; the byte order of bytes says nothing."""
        match (self.stack[-1], state):
            case [_Name(), (3, "|", None, None, None, -1, -1, 0)]:
                pass
            case [_Array() as array, (1, (int(n), int(m)), _Name(), fortran, str(data))]:
                if min(n, m) < 0 or n * m != len(data):
                    raise ValueError(f"it has an array of {n} x {m} in {len(data)} bytes")
                self.spare -= len(data)
                if self.spare < 0:
                    raise ValueError("it makes more bytes than it has")
                flat = np.frombuffer(data.encode("latin-1"), np.uint8)
                array.values = flat.reshape(n, m, order="F" if fortran else "C")
            case [target, _]:
                raise ValueError(f"it builds a {type(target).__name__} in an unknown way")


def _push(machine: _Machine, value: Any) -> None:
    machine.stack.append(value)


def _put(machine: _Machine, place: int) -> None:
    machine.memo[place] = machine.stack[-1]


# What each step does with its argument.
_STEPS: dict[str, Callable[[_Machine, Any], object]] = {
    "PROTO": lambda _, __: None,
    **dict.fromkeys(
        ("NONE", "BININT", "BININT1", "BININT2", "BINSTRING", "SHORT_BINSTRING"), _push
    ),
    "NEWTRUE": lambda m, _: _push(m, True),
    "NEWFALSE": lambda m, _: _push(m, False),
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "EMPTY_LIST": lambda m, _: _push(m, []),
    "APPEND": lambda m, _: list.extend(m.stack[-2], m.last(1)),
    "APPENDS": lambda m, _: list.extend(m.stack[m.marks[-1] - 1], m.after_mark()),
    "EMPTY_DICT": lambda m, _: _push(m, {}),
    "SETITEM": lambda m, _: m.enter(m.last(2)),
    "SETITEMS": lambda m, _: m.enter(m.after_mark()),
    "EMPTY_TUPLE": lambda m, _: _push(m, ()),
    "TUPLE": lambda m, _: _push(m, tuple(m.after_mark())),
    "TUPLE1": lambda m, _: _push(m, tuple(m.last(1))),
    "TUPLE2": lambda m, _: _push(m, tuple(m.last(2))),
    "TUPLE3": lambda m, _: _push(m, tuple(m.last(3))),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _put),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda m, place: _push(m, m.memo[place])),
    "GLOBAL": lambda m, name: m.name(name),
    "REDUCE": lambda m, _: m.call(*m.last(2)),
    "BUILD": lambda m, _: m.build(*m.last(1)),
}
