"""Where the time of training goes: a clock with sections, a trace of a few steps, a table."""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from codauc.agreement import gather_bytes
from codauc.averaging import Averager
from codauc.group import Group
from codauc.progress import note
from codauc.report.formats import count, duration, percent
from codauc.report.table import table
from codauc.runs import TRACE
from codauc.writing import whole_file

T = TypeVar("T")

# "apart": in a message, while others may have their turn; split when it is told.
Section = Literal[
    "reading",
    "forward",
    "loss",
    "backward",
    "step",
    "round",
    "window",
    "stage",
    "look",
    "files",
    "checkpoint",
    "trace",
    "rest",
    "apart",
]
_LABELS = {  # the rows, in the order in which they are shown
    "reading": "reading the batch",
    "forward": "forward",
    "loss": "loss",
    "backward": "backward",
    "step": "optimizer step",
    "round": "round: own work",
    "sending": "round: sending",
    "waiting": "round: waiting",
    "turns": "taking turns (simulated)",
    "window": "mean of models",
    "stage": "begin, end of stages",
    "look": "looks (evaluation)",
    "files": "callbacks, files",
    "checkpoint": "checkpoints",
    "trace": "the trace itself",
    "rest": "the rest",
}
_ROUNDS = ("round", "begin", "complete", "inner_round", "gradients")  # of an Averager
_FIRST, _LAST = 10, 15  # steps after which a trace begins and ends
_RECENT = 10_000  # the last times of a section, of which the median is taken
_LONGEST_BAR, _SHORTEST_BAR = 30, 5
_MUCH = 0.05  # more of its time one worker waits than another


class Profile:
    """Measures nothing: what a run marks its sections on unless it is asked for a profile."""

    def mark(self, name: Section) -> None:
        """From now on the time is this section's."""

    def section(self, name: Section) -> AbstractContextManager[None]:
        """The time is this section's while this lasts; then that of the one before, again."""
        del name
        return nullcontext()

    def reading(self, batches: Iterator[T]) -> Iterator[T]:
        """The same batches; the time to get one is reading."""
        return batches

    def step(self) -> None:
        """A step is over."""

    def measuring(
        self, group: Group, averager: Averager, device: torch.device
    ) -> AbstractContextManager[None]:
        """Training lasts as long as this."""
        del group, averager, device
        return nullcontext()


class Clock(Profile):
    """Every moment from the beginning to the end belongs to exactly one section.

    So the sections add up to the whole. Devices that compute on their own are waited for at each
    mark: otherwise their time would be that of the section that first needs a result.
    """

    def __init__(self, trace: Path | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.times: Counter[str] = Counter()  # steps in which a section had time
        self.recent: dict[str, deque[float]] = {}
        self.steps, self.begin, self.end = 0, 0.0, 0.0
        self.sent, self.waited = 0.0, 0.0
        self.device = torch.device("cpu")
        self.trace = None if trace is None else Trace(trace)
        self._now: dict[str, float] = {}  # of this step
        self._current: Section = "rest"
        self._since = 0.0
        self._before: Section = "rest"  # the section in which a message was sent
        self._simulated = False
        self._synchronise: Callable[[], object] | None = None

    def mark(self, name: Section) -> None:
        """From now on the time is this section's."""
        if self._synchronise is not None:
            self._synchronise()
        now, current = time.perf_counter(), self._current
        self._now[current] = self._now.get(current, 0.0) + now - self._since
        self._current, self._since = name, now
        if self.trace is not None and self.trace.going:
            self.trace.label(name)

    @contextmanager
    def section(self, name: Section) -> Iterator[None]:
        """The time is this section's while this lasts; then that of the one before, again."""
        before = self._current
        self.mark(name)
        try:
            yield
        finally:
            self.mark(before)

    def reading(self, batches: Iterator[T]) -> Iterator[T]:
        """The same batches; the time to get one is reading."""
        while True:
            with self.section("reading"):
                batch = next(batches)
            yield batch

    def step(self) -> None:
        """A step is over."""
        self._enter()
        self.steps += 1
        if self.trace is not None and self.steps in (_FIRST, _LAST):
            with self.section("trace"):
                self.trace.start(self.device) if self.steps == _FIRST else self.trace.stop()

    def _enter(self, *, last: bool = False) -> None:
        """Enter the times of this step, or of what follows the last one."""
        self.mark(self._current)
        for name, seconds in self._now.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            if not (last and self.times[name] == self.steps):  # part of every step, and now of none
                self.times[name] += 1
                self.recent.setdefault(name, deque(maxlen=_RECENT)).append(seconds)
        self._now.clear()

    @contextmanager
    def measuring(self, group: Group, averager: Averager, device: torch.device) -> Iterator[None]:
        """Training lasts as long as this; rounds and messages are seen without a mark."""
        self.device, self._synchronise = device, synchroniser(device)
        self._simulated = group.size > 1 and not group.apart
        sent, waited = _sent(group), _waited(group)
        self.begin = self._since = time.perf_counter()
        with self._watched(group, averager):
            try:
                yield
            finally:
                if self.trace is not None and self.trace.going:
                    with self.section("trace"):
                        self.trace.stop()
                self._enter(last=True)
                self.end = self._since
        self.sent = _sent(group) - sent
        self.waited = _waited(group) - waited

    @contextmanager
    def _watched(self, group: Group, averager: Averager) -> Iterator[None]:
        """Mark where rounds begin and end, and where the ledger says that a worker stands still."""
        if group.size == 1:
            yield
            return
        ledger = group.ledger
        for name in _ROUNDS:
            setattr(averager, name, partial(self._in_round, getattr(averager, name)))
        for name, function in (("stand_still", self._stand_still), ("go_on", self._go_on)):
            setattr(ledger, name, partial(function, getattr(ledger, name)))
        try:
            yield
        finally:
            for thing, names in ((averager, _ROUNDS), (ledger, ("stand_still", "go_on"))):
                for name in names:
                    delattr(thing, name)

    def _in_round(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        with self.section("round"):
            return function(*args, **options)

    def _stand_still(self, function: Callable[[], None]) -> None:
        function()
        if self._current != "apart" and (self._simulated or self._current == "round"):
            self._before = self._current
            self.mark("apart")

    def _go_on(self, function: Callable[[], None]) -> None:
        if self._current == "apart":
            self.mark(self._before)
        function()

    def result(self, group: Group, last_step: int) -> dict[str, Any]:
        """What profile.json holds, on all workers; each calls it once, after the training."""
        mine = {
            "seconds": self.seconds,
            "begin": self.begin,
            "end": self.end,
            "sent": self.sent,
            "waited": self.waited,
        }
        told = gather_bytes(group, json.dumps(mine).encode(), "evaluate", torch.device("cpu"))
        parts = [json.loads(part) for part in told]
        workers = [_one(part) for part in parts]
        whole, found = sum(workers[0].values()), workers[0]
        if self._simulated:
            whole, found = _taking_turns(parts)
        return {
            "seconds": whole,
            "steps": self.steps,
            "last_step": last_step,
            "workers": group.size,
            "simulated": self._simulated,
            "device": str(self.device),
            "rows": [self._row(name, found[name], whole) for name in _LABELS if name in found],
            "by_worker": [] if self._simulated or group.size == 1 else workers,
            "trace": None if self.trace is None or not self.trace.written else TRACE,
        }

    def _row(self, name: str, seconds: float, whole: float) -> dict[str, Any]:
        recent = self.recent.get(name)
        return {
            "name": name,
            "label": _LABELS[name],
            "seconds": seconds,
            "share": seconds / whole if whole else 0.0,
            "ms_a_step": 1e3 * seconds / max(1, self.steps),
            "times": self.times.get(name),
            "ms_each": 1e3 * statistics.median(recent) if recent else None,
        }


class Trace:
    """A trace of some steps, as Chrome and Perfetto show it; what goes wrong is told, no more."""

    def __init__(self, path: Path) -> None:
        self.path, self.going, self.written = path, False, False
        self._profile: Any = None
        self._label: Any = None

    def start(self, device: torch.device) -> None:
        """Begin."""
        kind = device.type if device.type in ("cuda", "xpu") else None
        try:
            # what torch.profiler is made of; the latter would first import torch's compiler
            prepare()
            self._profile = torch.autograd.profiler.profile(use_device=kind, use_kineto=True)
            self._profile.__enter__()
            self.going = True
        except Exception as error:  # another profiler may be at work
            self._tell(error)

    def label(self, name: str) -> None:
        """Give what follows the name of its section."""
        if self._label is not None:
            self._label.__exit__(None, None, None)
        self._label = torch.autograd.profiler.record_function(f"codauc: {name}")
        self._label.__enter__()

    def stop(self) -> None:
        """End, and write the file."""
        if not self.going:
            return
        self.going = False
        try:
            if self._label is not None:
                self._label.__exit__(None, None, None)
            self._profile.__exit__(None, None, None)
            with whole_file(self.path, "the trace") as partial_file:
                self._profile.export_chrome_trace(str(partial_file))
            self.written = True
        except Exception as error:  # a full disk, or an odd build of torch
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        note(f"\nNo {TRACE} ({error}); the run goes on.")


@cache
def prepare() -> None:
    """Wake torch's profiler, once; where workers are threads, before they are.

    It complains if it first hears of another thread than the one that has imported torch.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would tell when it starts and ends
    with suppress(Exception), torch.autograd.profiler.profile(use_kineto=True):
        pass


def synchroniser(device: torch.device) -> Callable[[], object] | None:
    """What waits until a device has done its work; None for the CPU, which does it at once.

    >>> synchroniser(torch.device("cpu")) is None
    True
    """
    if device.type == "cpu":
        return None
    accelerator = getattr(torch, "accelerator", None)  # since torch 2.6
    if accelerator is not None:
        return partial(accelerator.synchronize, device)
    found = getattr(getattr(torch, device.type, None), "synchronize", None)
    return partial(found, device) if found is not None and device.type == "cuda" else found


def _sent(group: Group) -> float:
    return group.ledger.seconds(*group.ledger.tallies)


def _waited(group: Group) -> float:
    return sum((tally.waiting for tally in group.ledger.tallies.values()), 0.0)


def _one(part: Mapping[str, Any]) -> dict[str, float]:
    """A worker's seconds by row: where it stood still in rounds, it sent, or waited for others."""
    found = dict(part["seconds"])
    apart = found.pop("apart", None)
    if apart is not None:
        found["waiting"] = min(apart, max(0.0, part["waited"]))
        found["sending"] = apart - found["waiting"]
    return found


def _taking_turns(parts: Sequence[Mapping[str, Any]]) -> tuple[float, dict[str, float]]:
    """The whole time and the rows of simulated workers, one of which computes at any time."""
    whole = max(part["end"] for part in parts) - min(part["begin"] for part in parts)
    found: Counter[str] = Counter()
    for part in parts:
        found.update(part["seconds"])
    del found["apart"]
    left = max(0.0, whole - sum(found.values()))
    found["sending"] = min(left, sum(part["sent"] for part in parts))
    found["turns"] = left - found["sending"]
    return whole, dict(found)


def told(profile: Mapping[str, Any], path: Path, width: int | None = None) -> str:
    """A profile for the terminal; `path` is the run's directory."""
    rows, steps, seconds = profile["rows"], profile["steps"], profile["seconds"]
    other = _other(profile["by_worker"])
    header = ["", "ms a step", "ms each", "times", "worker 0" if other else "share"]
    header += [f"worker {other}"] if other else []
    lines = [_cells(row, profile, other) for row in rows]
    whole = f"{1e3 * seconds / max(1, steps):.3f}"
    lines.append(["all", whole, "", "", *["100.0%"] * (1 + bool(other))])
    bare = max(map(len, table(header, lines).splitlines()))
    room = (width or shutil.get_terminal_size().columns) - bare - 3
    bars = _bars([row["share"] for row in rows], min(_LONGEST_BAR, room))
    lines = [[*cells, bar] for cells, bar in zip(lines, [*bars, ""], strict=True)]
    return "\n".join(
        [
            f"Where the time went: {count(steps)} steps in {duration(seconds)}.",
            table([*header, ""], lines),
            *_remarks(profile, path),
        ]
    )


def _cells(row: Mapping[str, Any], profile: Mapping[str, Any], other: int) -> list[str]:
    each = "" if row["ms_each"] is None else f"{row['ms_each']:.3f}"
    times = "" if row["times"] is None else count(row["times"])
    cells = [row["label"], f"{row['ms_a_step']:.3f}", each, times, f"{row['share']:.1%}"]
    if other:
        seconds = profile["by_worker"][other]
        cells.append(f"{seconds.get(row['name'], 0.0) / sum(seconds.values()):.1%}")
    return cells


def _bars(shares: Sequence[float], cells: int) -> list[str]:
    """Bars of at most so many characters; none where there is no room.

    >>> [bar.rstrip() for bar in _bars([0.5, 0.25, 0.0], 8)], _bars([0.5], 4)
    (['########', '####', ''], [''])
    """
    if cells < _SHORTEST_BAR:
        return [""] * len(shares)
    longest = max(shares) or 1.0
    return [("#" * math.ceil(cells * share / longest - 0.5)).ljust(cells) for share in shares]


def _waits(by_worker: Sequence[Mapping[str, float]]) -> list[float]:
    return [part.get("waiting", 0.0) / (sum(part.values()) or 1.0) for part in by_worker]


def _other(by_worker: Sequence[Mapping[str, float]]) -> int:
    """The worker to be shown beside worker 0: the one others wait for, or else who waits most."""
    if not by_worker:
        return 0
    waits = _waits(by_worker)
    return waits.index(min(waits)) or waits.index(max(waits)) or 1


def _remarks(profile: Mapping[str, Any], path: Path) -> Iterator[str]:
    if profile["by_worker"]:
        waits = _waits(profile["by_worker"])
        least, most = waits.index(min(waits)), waits.index(max(waits))
        if waits[most] - waits[least] < _MUCH:
            yield f"Workers wait little for each other: at most {percent(waits[most])} of the time."
        else:
            yield (
                f"Worker {most} waits {percent(waits[most])} of its time, worker {least} "
                f"{percent(waits[least])}: the others wait for worker {least}."
            )
    if profile["simulated"]:
        yield (
            f"Rows are sums over {profile['workers']} simulated workers; a step is one of each, "
            "and what a row took each time is worker 0's."
        )
    if profile["trace"]:
        yield (
            f"Steps {_FIRST + 1} to {_LAST} in detail: open {path / profile['trace']} in "
            "https://ui.perfetto.dev or chrome://tracing."
        )
