"""Every worker's own state on the disk, and from which of them a run is resumed."""

from __future__ import annotations

import json
import math
import re
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from codauc._internal.archive import pack, unpack
from codauc._internal.files import entries, regular_file, remove_partial, whole_file
from codauc.version import __version__
from codauc.workers.agreement import gather_bytes, together
from codauc.workers.group import Group

FORMAT = 4  # of what is in a checkpoint; another one is refused
_CPU = torch.device("cpu")
_STATE = re.compile(r"(\d{9,})-(\d+)-of-(\d+)-([0-9a-f]{8})\.safetensors")
_MARK = re.compile(r"\d{9,}-all-of-\d+-[0-9a-f]{8}")  # see CheckpointName.mark


class CheckpointName(NamedTuple):
    """What a file's name says: the step, the worker, the number of workers, and which history.

    States of one step belong together only if they come from one history: a run that resumes with
    other workers, or without one's state, begins a new one.
    """

    number: int
    rank: int
    size: int
    history: str

    def __str__(self) -> str:
        return f"{self.number:09d}-{self.rank}-of-{self.size}-{self.history}.safetensors"

    @classmethod
    def parse(cls, text: str) -> CheckpointName | None:
        """The name of a checkpoint, if it is one."""
        found = _STATE.fullmatch(text)
        return found and cls(int(found[1]), int(found[2]), int(found[3]), found[4])

    @property
    def mark(self) -> str:
        """The name of the empty file that says that all workers have written theirs."""
        return f"{self.number:09d}-all-of-{self.size}-{self.history}"


@dataclass(frozen=True)
class Found:
    """What a run is resumed from: the states that this worker has read, by their worker's number.

    `exact`: every worker has its own state, and continues as if nothing had happened. Otherwise
    each state is with one of the workers, which make one of them all.
    """

    number: int
    size: int
    exact: bool
    base: Any  # this worker's own state, or else that of the first, on all workers
    states: dict[int, Any]
    missing: list[int]  # the workers whose state is nowhere
    unreadable: list[str]


def clear(folder: Path) -> None:
    """Remove all workers' checkpoints, and the directory; any number of workers may do so at once.

    What else somebody has put there stays.
    """
    _remove(folder, below=math.inf)
    remove_partial(folder)
    with suppress(OSError):
        folder.rmdir()


def _names(folder: Path) -> list[str]:
    """States, and the marks of those that all workers have written."""
    names = [path.name for path in entries(folder)]
    return [name for name in names if _STATE.fullmatch(name) or _MARK.fullmatch(name)]


def _remove(folder: Path, below: float = 0, above: float = math.inf) -> None:
    """Remove the states and marks of the steps below one, or above another."""
    for name in _names(folder):
        if not below <= int(name.partition("-")[0]) <= above:
            with suppress(OSError):
                (folder / name).unlink(missing_ok=True)


class Checkpoints:
    """A worker's checkpoints in a directory, which may be shared by all workers or a host's own.

    A state is written beside training, under another name, synced and renamed. The last `keep` that
    all workers have written are kept, and whatever is newer. `on_error` is called with a
    message when a state could not be written: a full disk costs checkpoints, not the run.
    """

    def __init__(
        self, folder: Path, group: Group, keep: int, on_error: Callable[[str], object]
    ) -> None:
        self.folder, self.group, self.keep, self.on_error = folder, group, keep, on_error
        key = uuid.uuid4().hex[:8].encode() if group.rank == 0 else b""
        self.history = from_one(group, key).decode()
        self._thread: threading.Thread | None = None
        self.written: int | None = None  # the last number that is on the disk
        self._tried: int | None = None
        self._whole: list[int] = []  # numbers that all workers have written
        self._error: Exception | None = None

    def save(self, number: int, state: Any) -> None:
        """All workers save their states of one step; what is no longer needed goes."""
        self.confirm()
        self.save_alone(number, state)

    def confirm(self) -> None:
        """See whether all workers have written what they last saved; then what is older goes."""
        self.wait()
        wrote = self._tried is not None and self.written == self._tried
        if not bool(self.group.gather(torch.tensor([int(wrote)]), "checkpoint").all()):
            return
        assert self._tried is not None
        with suppress(OSError):
            (self.folder / self._name(self._tried).mark).touch()
        if self._tried not in self._whole:
            self._whole = [*self._whole, self._tried][-self.keep :]
        if len(self._whole) == self.keep:
            _remove(self.folder, below=self._whole[0])

    def save_alone(self, number: int, state: Any) -> None:
        """Save this worker's state, without the others; an earlier one of that step is replaced."""
        self.wait()
        self._tried, self.written = number, None
        name = self._name(number)
        about = {"format": FORMAT, "version": __version__, "name": str(name)}
        content = {**about, "state": state}
        self._thread = threading.Thread(target=self._write, args=(name, content), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until what is being written is on the disk, or is known not to be."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if isinstance(error, OSError):
            self.on_error(f"no checkpoint of step {self._tried} ({error.strerror or error})")
        elif error is not None:
            raise error

    def _name(self, number: int) -> CheckpointName:
        return CheckpointName(number, self.group.rank, self.group.size, self.history)

    def _write(self, name: CheckpointName, content: Any) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole_file(self.folder / str(name), "the checkpoint") as partial:
                partial.write_bytes(pack(content))
            self.written = name.number
        except Exception as error:  # the thread's; `wait` reports or raises it
            self._error = error

    def clear(self) -> None:
        """The run is over: nothing is needed any more."""
        self.wait()
        clear(self.folder)

    def newest(self) -> Found | None:
        """The newest states from which all workers can resume, or None if there are none at all.

        A set of states of which one cannot be read is passed over for the one before it. Only where
        no set is whole any more, as when a host was lost with its disk, will a part of one do.
        """
        sets, unreadable = self._sets(), list[str]()

        def worth(key: CheckpointName) -> tuple[bool, int, bool]:
            return len(sets[key]) == key.size, key.number, key.size == self.group.size

        for key in sorted(sets, key=worth, reverse=True):
            exact = len(sets[key]) == key.size == self.group.size
            readers = self._readers(sets[key], exact=exact)
            states, errors = self._read(key, readers)
            if errors:
                unreadable += errors
                continue
            if exact:
                for rank in (rank for rank, reader in readers.items() if rank != reader):
                    handed = self._handed_over(states.pop(rank, None))
                    if self.group.rank == rank:
                        states[rank] = handed
                base = states[self.group.rank]
            else:
                base = self._handed_over(states.get(min(readers)))
            missing = [rank for rank in range(key.size) if rank not in sets[key]]
            # what is newer belongs to a future that will not be, or will be again
            _remove(self.folder, above=key.number)
            self._tried = self.written = key.number
            self.history = key.history if exact else self.history
            return Found(key.number, key.size, exact, base, states, missing, unreadable)
        if unreadable:
            raise ValueError(
                f"no checkpoint in {self.folder} can be read: {'; '.join(unreadable)}; begin anew "
                "with overwrite=True."
            )
        return None

    def _sets(self) -> dict[CheckpointName, dict[int, list[int]]]:
        """By step, number of workers and history: whose states are there, and who can read them."""
        remove_partial(self.folder)
        mine = json.dumps(_names(self.folder)).encode()
        lists = gather_bytes(self.group, mine, "checkpoint", _CPU)
        sets: dict[CheckpointName, dict[int, list[int]]] = {}
        marks: set[str] = set()
        for reader, data in enumerate(lists):
            texts = json.loads(data)
            marks.update(texts)
            for name in filter(None, map(CheckpointName.parse, texts)):
                if name.rank < name.size:
                    holders = sets.setdefault(name._replace(rank=0), {})
                    holders.setdefault(name.rank, []).append(reader)
        return {k: v for k, v in sets.items() if len(v) == k.size or k.mark in marks}

    def _readers(self, holders: dict[int, list[int]], *, exact: bool) -> dict[int, int]:
        """Who reads whose state: its own worker, if it can, or one who has little to do."""
        readers: dict[int, int] = {}
        for rank in sorted(holders):
            busy = list(readers.values())
            own = exact and rank in holders[rank]
            readers[rank] = rank if own else min(holders[rank], key=busy.count)
        return readers

    def _read(
        self, key: CheckpointName, readers: dict[int, int]
    ) -> tuple[dict[int, Any], list[str]]:
        """The states that this worker is to read, and what could not be read on any of them."""
        states, errors = dict[int, Any](), list[str]()

        def read() -> None:
            for rank in (rank for rank, reader in readers.items() if reader == self.group.rank):
                name = key._replace(rank=rank)
                try:
                    data = regular_file(self.folder / str(name)).read_bytes()
                    states[rank] = _state(name, data)
                except _RefusedError:
                    raise
                except (OSError, ValueError) as error:
                    errors.append(f"{name}: {error}")

        together(self.group, read, "checkpoint")
        lists = gather_bytes(self.group, json.dumps(errors).encode(), "checkpoint", _CPU)
        return states, [text for data in lists for text in json.loads(data)]

    def _handed_over(self, state: Any) -> Any:
        """The state that one worker has read, on all of them; the others give None."""
        return unpack(from_one(self.group, b"" if state is None else pack(state)))


class _RefusedError(ValueError):
    """Nothing is wrong with the file, but it is not for this program."""


def _state(name: CheckpointName, data: bytes) -> Any:
    content = unpack(data)
    if not isinstance(content, dict) or not {"format", "name", "state"} <= content.keys():
        raise ValueError("not a checkpoint of codauc")
    if content["format"] != FORMAT:
        raise _RefusedError(
            f"{name}: it has format {content['format']} of codauc {content.get('version')}, here "
            f"{FORMAT} of {__version__}: resume with that version, or begin anew with "
            "overwrite=True."
        )
    if content["name"] != str(name):
        raise ValueError(f"it is {content['name']} under another name")
    return content["state"]


def from_one(group: Group, data: bytes) -> bytes:
    """The bytes that one worker has, on all of them; the others give none."""
    length = torch.tensor([len(data)])
    group.sum_(length, "checkpoint")
    buffer = torch.zeros(int(length), dtype=torch.uint8)
    if data:
        buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    group.sum_(buffer, "checkpoint")
    return buffer.numpy().tobytes()
