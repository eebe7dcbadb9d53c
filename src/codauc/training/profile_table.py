"""A profile as a table for the terminal."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from codauc._internal.formats import count, duration, percent
from codauc._internal.text_table import table

FIRST_TRACED, LAST_TRACED = 10, 15  # steps after which a trace begins and ends
_LONGEST_BAR, _SHORTEST_BAR = 30, 5
_MUCH = 0.05  # more of its time one worker waits than another


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
            f"Steps {FIRST_TRACED + 1} to {LAST_TRACED} in detail: open {path / profile['trace']} "
            "in https://ui.perfetto.dev or chrome://tracing."
        )
