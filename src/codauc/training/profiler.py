"""Where the time of training goes: a clock whose sections add up, a trace, and a table of it."""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from codauc._internal.files import whole_file
from codauc._internal.formats import count, duration, percent
from codauc._internal.progress import note
from codauc._internal.text_table import table
from codauc.algorithm.engine import CoDA
from codauc.runs.directory import TRACE
from codauc.workers.agreement import gather_bytes
from codauc.workers.group import Group

T = TypeVar("T")

# A section of the time of training. "apart" is inside a collective, while others may compute.
_Step = Literal["reading", "forward", "loss", "backward", "step", "round", "apart", "rest"]
_Between = Literal["window", "stage", "evaluation", "files", "checkpoint", "trace"]
Section = _Step | _Between

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
    "evaluation": "evaluation",
    "files": "callbacks, files",
    "checkpoint": "checkpoints",
    "trace": "the trace itself",
    "rest": "the rest",
}
_FIRST_TRACED, _LAST_TRACED = 10, 15  # steps after which a trace begins and ends
_LONGEST_BAR, _SHORTEST_BAR = 30, 5
_MUCH = 0.05  # more of its time one worker waits than another
_RECENT = 10_000  # the last times of a section, of which the median is taken


class Clock:
    """Every moment of training belongs to exactly one section, so sections add up to the whole.

    Devices that compute on their own are waited for at each change of section: otherwise their time
    would belong to the section that first needs a result.
    """

    def __init__(self, trace: Path | None = None) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.times: Counter[str] = Counter()  # steps in which a section had time
        self.recent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT))
        self.steps, self.begin, self.end = 0, 0.0, 0.0
        self.sent, self.waited = 0.0, 0.0
        self.device = torch.device("cpu")
        self.trace = None if trace is None else Trace(trace)
        self._now: dict[str, float] = defaultdict(float)  # of this step
        self._current: Section = "rest"
        self._since = 0.0
        self._before: Section = "rest"  # the section in which a collective began
        self._simulated = False
        self._synchronise: Callable[[], object] | None = None

    def mark(self, name: Section) -> None:
        """From now on the time belongs to this section."""
        if self._synchronise is not None:
            self._synchronise()
        now = time.perf_counter()
        self._now[self._current] += now - self._since
        self._current, self._since = name, now

    @contextmanager
    def section(self, name: Section) -> Iterator[None]:
        """Inside this block the time belongs to the section `name`."""
        before = self._current
        self.mark(name)
        try:
            with nullcontext() if self.trace is None else self.trace.label(name):
                yield
        finally:
            self.mark(before)

    def reading(self, batches: Iterator[T]) -> Iterator[T]:
        """The same batches; the time to get one belongs to "reading"."""
        while True:
            with self.section("reading"):
                batch = next(batches)
            yield batch

    def on_step(self) -> None:
        """A step was taken."""
        self._enter()
        self.steps += 1
        if self.trace is not None and self.steps in (_FIRST_TRACED, _LAST_TRACED):
            with self.section("trace"):
                self.trace.start(self.device) if self.steps == _FIRST_TRACED else self.trace.stop()

    def _enter(self, *, last: bool = False) -> None:
        """Enter the times of this step, or of what follows the last one."""
        self.mark(self._current)
        for name, seconds in self._now.items():
            self.seconds[name] += seconds
            if not (last and self.times[name] == self.steps):  # part of every step, and now of none
                self.times[name] += 1
                self.recent[name].append(seconds)
        self._now.clear()

    @contextmanager
    def measuring(self, coda: CoDA) -> Iterator[None]:
        """Training happens inside this block; rounds and collectives are observed."""
        group, self.device = coda.group, coda.opt.trained.device
        self._synchronise = synchroniser(self.device)
        self._simulated = group.size > 1 and not group.apart
        before = group.ledger.record()
        self.begin = self._since = time.perf_counter()
        with ExitStack() as stack:
            if group.size > 1:
                stack.enter_context(coda.observing_rounds(partial(self.section, "round")))
                stack.enter_context(group.ledger.observing(self._stopped, self._resumed))
            try:
                yield
            finally:
                if self.trace is not None and self.trace.going:
                    with self.section("trace"):
                        self.trace.stop()
                self._enter(last=True)
                self.end = self._since
        after = group.ledger.record()
        self.waited = after["waiting"] - before["waiting"]
        self.sent = after["communicating"] - before["communicating"]

    def _stopped(self) -> None:
        if self._current != "apart" and (self._simulated or self._current == "round"):
            self._before = self._current
            self.mark("apart")

    def _resumed(self) -> None:
        if self._current == "apart":
            self.mark(self._before)

    def result(self, group: Group, last_step: int) -> dict[str, Any]:
        """What profile.json holds, on all workers; each calls it once, after the training."""
        names = ("seconds", "begin", "end", "sent", "waited")
        mine = json.dumps({name: getattr(self, name) for name in names}).encode()
        texts = gather_bytes(group, mine, "evaluate", torch.device("cpu"))
        parts = [json.loads(text) for text in texts]
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


def synchroniser(device: torch.device) -> Callable[[], object] | None:
    """Waits until a device has done its work; None for the CPU, which does it at once.

    >>> synchroniser(torch.device("cpu")) is None
    True
    """
    if device.type == "cpu":
        return None
    wait = getattr(torch, device.type).synchronize
    return wait if device.type == "mps" else partial(wait, device)  # mps is always one


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


class Trace:
    """A trace of some steps. What goes wrong is a message; the run continues."""

    def __init__(self, path: Path) -> None:
        self.path, self.going, self.written = path, False, False
        self._profile: Any = None

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
            self._report(error)

    def label(self, name: str) -> AbstractContextManager[Any]:
        """Inside this block the trace has the name of the section."""
        if not self.going or name == "trace":
            return nullcontext()
        return torch.autograd.profiler.record_function(f"codauc: {name}")

    def stop(self) -> None:
        """End, and write the file."""
        if not self.going:
            return
        self.going = False
        try:
            self._profile.__exit__(None, None, None)
            with whole_file(self.path, "the trace") as partial_file:
                self._profile.export_chrome_trace(str(partial_file))
            self.written = True
        except Exception as error:  # a full disk, or an odd build of torch
            self._report(error)

    def _report(self, error: Exception) -> None:
        note(f"\nNo {TRACE} ({error}); the run continues.")


@cache
def prepare() -> None:
    """Start torch's profiler once, before there are threads of workers.

    It warns if its first use is in another thread than the one that imported torch.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would log when it starts and ends
    with suppress(Exception), torch.autograd.profiler.profile(use_kineto=True):
        pass


def profile_table(profile: Mapping[str, Any], path: Path, width: int | None = None) -> str:
    """A profile for the terminal; `path` is the run's directory."""
    rows, steps, seconds = profile["rows"], profile["steps"], profile["seconds"]
    workers = profile["by_worker"]
    waits = [spent.get("waiting", 0.0) / (sum(spent.values()) or 1.0) for spent in workers]
    # beside worker 0: the one that others wait for, or else who waits most
    other = waits.index(min(waits)) or waits.index(max(waits)) or 1 if waits else 0
    header = ["", "ms per step", "ms each", "times", "worker 0" if other else "share"]
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
            *_remarks(profile, path, waits),
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


def _remarks(profile: Mapping[str, Any], path: Path, waits: list[float]) -> Iterator[str]:
    if waits:
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
            f"Steps {_FIRST_TRACED + 1} to {_LAST_TRACED} in detail: open "
            f"{path / profile['trace']} in https://ui.perfetto.dev or chrome://tracing."
        )
