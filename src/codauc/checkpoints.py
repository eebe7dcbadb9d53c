"""Every worker's own state on the disk, and which of what is there a run goes on with."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from codauc.agreement import gather_bytes
from codauc.group import Group
from codauc.snapshot import pack, unpack
from codauc.version import __version__
from codauc.writing import remove_partial, whole_file

FORMAT = 1  # of what is in a checkpoint; another one is refused
_CPU = torch.device("cpu")
_NAME = re.compile(r"(\d{9,})-(\d+)-of-(\d+)-([0-9a-f]{8})\.safetensors")
_MARK = re.compile(r"(\d{9,})-all-of-(\d+)-([0-9a-f]{8})")


class Name(NamedTuple):
    """What a file's name says: the step, the worker, the number of workers, and which history.

    States of one step belong together only if they come from one history: a run that goes on with
    other workers, or without one's state, begins a new one.
    """

    number: int
    rank: int
    size: int
    history: str

    def __str__(self) -> str:
        return f"{self.number:09d}-{self.rank}-of-{self.size}-{self.history}.safetensors"

    @classmethod
    def parse(cls, text: str) -> Name | None:
        """The name of a checkpoint, if it is one."""
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        return cls(int(found[1]), int(found[2]), int(found[3]), found[4])

    @property
    def mark(self) -> str:
        """The name of the empty file that says that all workers have written theirs."""
        return f"{self.number:09d}-all-of-{self.size}-{self.history}"


@dataclass(frozen=True)
class Found:
    """What a run goes on with: the states that this worker has read, by their worker's number.

    `exact`: every worker has its own state, and continues as if nothing had happened. Otherwise
    each state is with one of the workers, which make one of them all.
    """

    number: int
    size: int
    exact: bool
    base: Any  # this worker's own state, or else that of the first, on all workers
    states: dict[int, Any]
    missing: list[int]  # the workers whose state is nowhere
    told: list[str]  # what could not be read


class Checkpoints:
    """A worker's checkpoints in a directory, which may be shared by all workers or a host's own.

    A state is written beside training, under another name, synced and renamed. The last `keep` that
    all workers have written are kept, and whatever is newer. `told` hears what went wrong: a disk
    that is full costs checkpoints, not the run.
    """

    def __init__(
        self, folder: Path, group: Group, keep: int, told: Callable[[str], object]
    ) -> None:
        self.folder, self.group, self.keep, self.told = folder, group, keep, told
        self.history = self._new_history()
        self._thread: threading.Thread | None = None
        self.written: int | None = None  # the last number that is on the disk
        self._tried: int | None = None
        self._whole: list[int] = []  # numbers that all workers have written
        self._error: OSError | None = None

    def _new_history(self) -> str:
        key = torch.frombuffer(bytearray(uuid.uuid4().bytes[:4]), dtype=torch.uint8).clone()
        self.group.broadcast_(key, "checkpoint")
        return key.numpy().tobytes().hex()

    def save(self, number: int, state: Any) -> None:
        """All workers save their states of one step; what is no longer needed goes."""
        self.confirm()
        self._begin(number, state)

    def confirm(self) -> None:
        """See whether all workers have written what they last saved; then what is older goes."""
        self.wait()
        wrote = self._tried is not None and self.written == self._tried
        if not bool(self.group.gather(torch.tensor([int(wrote)]), "checkpoint").all()):
            return
        assert self._tried is not None
        if self._tried not in self._whole:
            self._whole.append(self._tried)
        with suppress(OSError):
            (self.folder / self._name(self._tried).mark).touch()
        self._prune()

    def save_alone(self, number: int, state: Any) -> None:
        """Save this worker's state, without a word to the others; what was of that step goes."""
        self.wait()
        self._begin(number, state)

    def wait(self) -> None:
        """Until what is being written is on the disk, or is known not to be."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            self.told(f"no checkpoint of step {self._tried} ({error.strerror or error})")

    def _begin(self, number: int, state: Any) -> None:
        self._tried, self.written = number, None
        name = self._name(number)
        about = {"format": FORMAT, "version": __version__, "name": str(name)}
        self._thread = threading.Thread(
            target=self._write, args=(name, {**about, "state": state}), daemon=True
        )
        self._thread.start()

    def _name(self, number: int) -> Name:
        return Name(number, self.group.rank, self.group.size, self.history)

    def _write(self, name: Name, content: Any) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with whole_file(self.folder / str(name), "the checkpoint") as partial:
                partial.write_bytes(pack(content))
            self.written = name.number
        except OSError as error:
            self._error = error

    def _prune(self) -> None:
        """Remove what is older than the last `keep` that all have."""
        self._whole = self._whole[-self.keep :]
        if len(self._whole) == self.keep:
            self._remove(lambda number: number < self._whole[0])

    def _remove(self, unwanted: Callable[[int], bool]) -> None:
        for path in self._paths():
            if unwanted(int(path.name.partition("-")[0])):
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        """States, and the marks of those that all have written."""
        there = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(p for p in there if _NAME.fullmatch(p.name) or _MARK.fullmatch(p.name))

    def clear(self) -> None:
        """The run is over: nothing is needed any more."""
        self.wait()
        self._remove(lambda _: True)
        remove_partial(self.folder)
        with suppress(OSError):
            self.folder.rmdir()

    def newest(self) -> Found | None:
        """The newest states with which all workers can go on, or None if there are none at all.

        A set of states of which one cannot be read is passed over for the one before it. Only where
        no set is whole any more, as when a host was lost with its disk, will a part of one do.
        """
        sets, told = self._sets(), list[str]()
        for key in sorted(sets, key=lambda key: self._worth(key, sets[key]), reverse=True):
            exact = len(sets[key]) == key.size == self.group.size
            readers = self._readers(sets[key], exact=exact)
            contents, errors = self._read(key, readers)
            if errors:
                told += errors
                continue
            if exact:
                contents = self._handed_over(key, readers, contents)
            missing = [rank for rank in range(key.size) if rank not in sets[key]]
            self._go_on_from(key, exact=exact)
            states = {rank: content["state"] for rank, content in contents.items()}
            base = states[self.group.rank] if exact else self._first(readers, contents)["state"]
            return Found(key.number, key.size, exact, base, states, missing, told)
        if told:
            raise ValueError(
                f"no checkpoint in {self.folder} can be read: {'; '.join(told)}; begin anew with "
                "--overwrite."
            )
        return None

    def _sets(self) -> dict[Name, dict[int, list[int]]]:
        """By step, number of workers and history: whose states are there, and who can read them."""
        remove_partial(self.folder)
        mine = [path.name for path in self._paths()]
        lists = gather_bytes(self.group, json.dumps(mine).encode(), "checkpoint", _CPU)
        sets: dict[Name, dict[int, list[int]]] = {}
        marks: set[str] = set()
        for reader, data in enumerate(lists):
            texts = json.loads(data)
            marks.update(texts)
            for name in filter(None, map(Name.parse, texts)):
                if name.rank < name.size:
                    holders = sets.setdefault(name._replace(rank=0), {})
                    holders.setdefault(name.rank, []).append(reader)
        return {k: v for k, v in sets.items() if len(v) == k.size or k.mark in marks}

    def _worth(self, key: Name, holders: dict[int, list[int]]) -> tuple[bool, int, bool]:
        return len(holders) == key.size, key.number, key.size == self.group.size

    def _readers(self, holders: dict[int, list[int]], *, exact: bool) -> dict[int, int]:
        """Who reads whose state: its own worker, if it can, or one who has little to do."""
        readers: dict[int, int] = {}
        for rank in sorted(holders):
            busy = list(readers.values())
            own = exact and rank in holders[rank]
            readers[rank] = rank if own else min(holders[rank], key=busy.count)
        return readers

    def _read(self, key: Name, readers: dict[int, int]) -> tuple[dict[int, Any], list[str]]:
        """What this worker is to read, and what could not be read on any of them."""
        contents, errors, refusal = {}, list[str](), ""
        for rank, reader in readers.items():
            if reader == self.group.rank:
                name = key._replace(rank=rank)
                try:
                    contents[rank] = self._content(name, (self.folder / str(name)).read_bytes())
                except _RefusedError as error:
                    refusal = f"{name}: {error}"
                except (OSError, ValueError) as error:
                    errors.append(f"{name}: {error}")
        told = json.dumps([errors, refusal]).encode()
        lists = [json.loads(data) for data in gather_bytes(self.group, told, "checkpoint", _CPU)]
        for _, refused in lists:
            if refused:
                raise ValueError(refused)
        return contents, [text for texts, _ in lists for text in texts]

    def _content(self, name: Name, data: bytes) -> Any:
        content = unpack(data)
        if not isinstance(content, dict) or not {"format", "name", "state"} <= content.keys():
            raise ValueError("not a checkpoint of codauc")
        if content["format"] != FORMAT:
            raise _RefusedError(
                f"it has format {content['format']} of codauc {content.get('version')}, here "
                f"{FORMAT} of {__version__}: go on with that version, or begin anew with "
                "--overwrite."
            )
        if content["name"] != str(name):
            raise ValueError(f"it is {content['name']} under another name")
        return content

    def _handed_over(
        self, key: Name, readers: dict[int, int], contents: dict[int, Any]
    ) -> dict[int, Any]:
        """Give each worker its own state, where another one has read it."""
        for rank, reader in readers.items():
            if rank == reader:
                continue
            name, data = key._replace(rank=rank), b""
            if self.group.rank == reader:
                data = (self.folder / str(name)).read_bytes()
            data = from_one(self.group, data)
            if self.group.rank == rank:
                contents[rank] = self._content(name, data)
        return {rank: part for rank, part in contents.items() if rank == self.group.rank}

    def _first(self, readers: dict[int, int], contents: dict[int, Any]) -> Any:
        """The first state that somebody has, on all workers."""
        rank = min(readers)
        mine = rank in contents
        return unpack(from_one(self.group, pack(contents[rank]) if mine else b""))

    def _go_on_from(self, key: Name, *, exact: bool) -> None:
        """What is newer belongs to a future that will not be, or will be again."""
        self._remove(lambda number: number > key.number)
        self._tried = self.written = key.number
        if exact:
            self.history = key.history


class _RefusedError(ValueError):
    """Nothing is wrong with the file, but it is not for this program."""


def from_one(group: Group, data: bytes) -> bytes:
    """The bytes that one worker has, on all of them; the others give none."""
    length = torch.tensor([len(data)])
    group.sum_(length, "checkpoint")
    buffer = torch.zeros(int(length), dtype=torch.uint8)
    if data:
        buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    group.sum_(buffer, "checkpoint")
    return buffer.numpy().tobytes()
