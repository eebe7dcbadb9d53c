"""Pickled data, read without running it.

A pickle is a program for a small stack machine, and may call any function of any module. The
machine here knows the steps that make plain data, and the few calls by which numpy writes an array
of integers, whose result it makes itself. It imports no name and calls nothing that the file
names: any other step is an error.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Callable
from typing import Any

from codauc.data.pickled_arrays import Array, NotPlainError, build, called, named, text

# Ten times the steps of the largest standard file: more would only fill the memory.
_MOST_STEPS = 2_000_000
_MOST_OF_A_KEY = 200
_LONG_TEXT = 2**16

_OPCODES = {opcode.code.encode("latin-1"): opcode.name for opcode in pickletools.opcodes}


def unpickled(where: str, data: bytes, remedy: str) -> dict[str, Any]:
    """The pickled dict in `data`: lists, tuples, text, bytes, integers, arrays of integers.

    The keys are text, or were bytes as written by Python 2. Protocols 0 to 5 are known. No part
    of the file is run. Errors name the file, `where`, and end in `remedy`.

    >>> import pickle
    >>> unpickled("a file", pickle.dumps({b"labels": [1, 2]}, protocol=2), "get it again")
    {'labels': [1, 2]}
    >>> unpickled("a file", pickle.dumps({"run": print}, protocol=2), "get it again")
    Traceback (most recent call last):
        ...
    ValueError: a file asks for '__builtin__' 'print' near byte 34: expected a pickled dict of \
numbers, text and arrays; nothing in the file was run: get it again.
    """
    machine = _Machine(data)
    try:
        found = machine.run()
        if type(found) is not dict:
            raise NotPlainError(f"holds a {type(found).__name__}")
        return {key: _value(value) for key, value in found.items()}
    except ValueError as error:
        reason = (
            str(error) if isinstance(error, NotPlainError) else f"is damaged ({str(error)[:100]})"
        )
        raise ValueError(
            f"{where} {reason} near byte {machine.position}: expected a pickled dict of numbers, "
            f"text and arrays; nothing in the file was run: {remedy}."
        ) from error


def _value(value: Any) -> Any:
    if not isinstance(value, Array):
        return value
    if value.value is None:
        raise NotPlainError("has an array without contents")
    return value.value


class _Machine:
    """The stack, the marks on it and the memo; each step is a function of them."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        # One text could be made bytes over and over; an honest file makes no more than its size.
        self.spare = len(data)

    def run(self) -> Any:
        for _ in range(_MOST_STEPS):
            code = self.take(1)
            if code == b".":
                return self.pop()
            step = _STEPS.get(code)
            if step is None:
                raise NotPlainError(f"has the step {_OPCODES.get(code, code)}")
            step(self)
        raise NotPlainError(f"has more than {_MOST_STEPS} steps")

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.data):
            raise NotPlainError("ends too early")
        found = self.data[self.position : end]
        self.position = end
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.position)
        if end < 0:
            raise NotPlainError("ends too early")
        return self.take(end + 1 - self.position)[:-1]

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def top(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise NotPlainError("takes a value where there is none")
        return self.stack[-1]

    def pop(self) -> Any:
        value = self.top()
        del self.stack[-1]
        return value

    def last(self, count: int) -> list[Any]:
        return [self.pop() for _ in range(count)][::-1]

    def since_mark(self) -> list[Any]:
        if not self.marks:
            raise NotPlainError("goes back to a mark where there is none")
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise NotPlainError("recalls what it did not store")
        self.push(self.memo[index])

    def append(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not list:
            raise NotPlainError(f"appends to a {type(target).__name__}")
        target.extend(items)

    def enter(self, items: list[Any]) -> None:
        target = self.top()
        if type(target) is not dict or len(items) % 2:
            raise NotPlainError(f"sets {len(items)} keys and values of a {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Text alone: the hash of nested tuples could take for ever.
            target[text(key, _MOST_OF_A_KEY)] = value

    def call(self) -> None:
        made = called(*self.last(2))
        if isinstance(made, bytes):
            self.spare -= len(made)
            if self.spare < 0:
                raise NotPlainError("makes more bytes than it has")
        self.push(made)


def _new_dict(machine: _Machine) -> None:
    items = machine.since_mark()
    machine.push({})
    machine.enter(items)


def _build(machine: _Machine) -> None:
    state = machine.pop()
    build(machine.top(), state)


def _store(index: Callable[[_Machine], int]) -> _Step:
    return lambda machine: machine.memo.__setitem__(index(machine), machine.top())


def _recall(index: Callable[[_Machine], int]) -> _Step:
    return lambda machine: machine.recall(index(machine))


def _skip(size: int) -> _Step:
    def step(machine: _Machine) -> None:
        machine.take(size)

    return step


def _constant(value: Any) -> _Step:
    return lambda machine: machine.push(value)


def _fixed(size: int, make: Callable[[bytes], Any]) -> _Step:
    return lambda machine: machine.push(make(machine.take(size)))


def _counted(size: int, make: Callable[[bytes], Any]) -> _Step:
    """As many bytes as the number in the first `size` bytes says."""
    return lambda machine: machine.push(make(machine.take(machine.number(size))))


def _line(make: Callable[[bytes], Any]) -> _Step:
    return lambda machine: machine.push(make(machine.line()))


def _unsigned(data: bytes) -> int:
    return int.from_bytes(data, "little")


def _signed(data: bytes) -> int:
    if len(data) > 8:
        raise NotPlainError(f"has an integer of {len(data)} bytes")
    return int.from_bytes(data, "little", signed=True)


def _decimal(line: bytes) -> int:
    # True and False are written so.
    return line == b"01" if line in (b"00", b"01") else int(line.removesuffix(b"L"))


_ESCAPES = re.compile(rb"""\\(?:[\\'"nrt]|x[0-9a-fA-F]{2})""")


def _quoted(line: bytes) -> bytes:
    """The bytes that Python 2 wrote as a literal."""
    if len(line) < 2 or line[:1] not in (b"'", b'"') or line[:1] != line[-1:]:
        raise NotPlainError("has text without quotes")
    if b"\\" in _ESCAPES.sub(b"", line):
        raise NotPlainError("has an unknown escape in text")
    return line[1:-1].decode("unicode_escape").encode("latin-1")


# Characters beyond latin-1, in either encoding.
_WIDE = {
    "utf-8": re.compile(rb"[\xc4-\xff]"),
    "raw_unicode_escape": re.compile(rb"\\u(?!00)|\\U(?!000000)"),
}


def _decoded(data: bytes, encoding: str) -> str:
    # One wide character makes all of a text take four bytes for each of its own; the long texts
    # of honest files are bytes written as latin-1.
    if len(data) > _LONG_TEXT and _WIDE[encoding].search(data):
        raise NotPlainError("has a long text beyond latin-1")
    return data.decode(encoding)


def _utf8(data: bytes) -> str:
    return _decoded(data, "utf-8")


def _escaped(line: bytes) -> str:
    return _decoded(line, "raw_unicode_escape")


_Step = Callable[[_Machine], None]

# By the letters that are written in a pickle: see pickletools in Python's library.
_STEPS: dict[bytes, _Step] = {
    b"\x80": _skip(1),  # the protocol
    b"\x95": _skip(8),  # the length of what follows
    b"N": _constant(None),
    b"\x88": _constant(True),
    b"\x89": _constant(False),
    b"I": _line(_decimal),
    b"L": _line(_decimal),
    b"K": _fixed(1, _unsigned),
    b"M": _fixed(2, _unsigned),
    b"J": _fixed(4, _signed),
    b"\x8a": _counted(1, _signed),
    b"S": _line(_quoted),
    b"U": _counted(1, bytes),
    b"T": _counted(4, bytes),
    b"C": _counted(1, bytes),
    b"B": _counted(4, bytes),
    b"\x8e": _counted(8, bytes),
    b"\x96": _counted(8, bytes),
    b"V": _line(_escaped),
    b"X": _counted(4, _utf8),
    b"\x8c": _counted(1, _utf8),
    b"\x8d": _counted(8, _utf8),
    b"(": lambda machine: machine.marks.append(len(machine.stack)),
    b")": _constant(()),
    b"t": lambda machine: machine.push(tuple(machine.since_mark())),
    b"\x85": lambda machine: machine.push(tuple(machine.last(1))),
    b"\x86": lambda machine: machine.push(tuple(machine.last(2))),
    b"\x87": lambda machine: machine.push(tuple(machine.last(3))),
    b"]": lambda machine: machine.push([]),
    b"l": lambda machine: machine.push(machine.since_mark()),
    b"a": lambda machine: machine.append(machine.last(1)),
    b"e": lambda machine: machine.append(machine.since_mark()),
    b"}": lambda machine: machine.push({}),
    b"d": _new_dict,
    b"s": lambda machine: machine.enter(machine.last(2)),
    b"u": lambda machine: machine.enter(machine.since_mark()),
    b"p": _store(lambda machine: _decimal(machine.line())),
    b"q": _store(lambda machine: machine.number(1)),
    b"r": _store(lambda machine: machine.number(4)),
    b"\x94": _store(lambda machine: len(machine.memo)),
    b"g": _recall(lambda machine: _decimal(machine.line())),
    b"h": _recall(lambda machine: machine.number(1)),
    b"j": _recall(lambda machine: machine.number(4)),
    b"c": lambda machine: machine.push(named(*(_utf8(machine.line()) for _ in range(2)))),
    b"\x93": lambda machine: machine.push(named(*machine.last(2))),
    b"R": _Machine.call,
    b"b": _build,
}
