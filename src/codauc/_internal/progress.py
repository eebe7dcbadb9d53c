"""A line that shows the progress of a run."""

from __future__ import annotations

import os
import sys
from time import monotonic
from typing import Self, TextIO

from codauc._internal.notebook import notebook_line
from codauc._internal.terminal import printable, printable_lines

_SECONDS_BETWEEN_REDRAWS = 0.1
_LONGEST_BAR, _SHORTEST_BAR = 30, 5


class Progress:
    """Progress towards `total`, with a note, the time taken and an estimate of the time left.

    Where the total is not known, None, it shows how much is done, and no bar.

    On a terminal it is one line, redrawn at most ten times a second and never longer than the
    terminal is wide; in a notebook one bar with a text beside it. Elsewhere (a pipe, a log) it
    is plain lines, at most one in each tenth of the way. It goes to standard error unless `stream`
    is given. A stream that cannot be written to silences it and never stops the run.

    With d of `total` done and d_0 done at the first update, a time t ago, the time left is
    `t (total - d) / (d - d_0)`; so a resumed run is not taken for a fast one.

    >>> with Progress(total=4, label="train", stream=sys.stdout) as progress:
    ...     for step in range(1, 5):
    ...         progress.update(step, note=f"AUC 0.9{step}")
    train  25% AUC 0.91 00:00 elapsed
    train  50% AUC 0.92 00:00 elapsed, 00:00 left
    train  75% AUC 0.93 00:00 elapsed, 00:00 left
    train 100% AUC 0.94 00:00 elapsed
    """

    def __init__(self, total: int | None, *, label: str = "", stream: TextIO | None = None) -> None:
        self.total, self._label = total, _one_line(label)
        self._stream = sys.stderr if stream is None else stream
        self._terminal = _is_terminal(self._stream)
        self._line = notebook_line() if stream is None else None
        self._begin = monotonic()
        self._first: tuple[float, int] | None = None
        self._done, self._note = 0, ""
        self._drawn_done, self._drawn_time = -1, -1.0
        self._tenth = 0

    def update(self, done: int, note: str = "") -> None:
        """`done` of the total is done; `note` is shown beside it."""
        now = monotonic()
        if self._first is None:
            self._first = (now, done)
        self._done, self._note = done, note
        if self._terminal or self._line is not None:
            reached = self.total is not None and done >= self.total > self._drawn_done
            if reached or now - self._drawn_time >= _SECONDS_BETWEEN_REDRAWS:
                self._redraw(now)
        elif (tenth := self._parts(10)) > self._tenth:
            self._tenth = tenth
            self._write(self._text(now) + "\n")

    def close(self) -> None:
        """Show the last state and end the line; later updates do nothing."""
        if self._first is not None and (self._terminal or self._line is not None):
            self._redraw(monotonic())
            self._write("\n" if self._line is None else "")
        self._stream, self._terminal, self._line = None, False, None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _parts(self, parts: int) -> int:
        """How many of so many equal parts of the way are done."""
        if self.total is None:
            return 0
        return max(0, min(parts, parts * self._done // self.total)) if self.total else parts

    def _text(self, now: float) -> str:
        assert self._first is not None
        times, (then, done) = f"{_clock(now - self._begin)} elapsed", self._first
        if self.total is not None and done < self._done < self.total:
            left = (now - then) * (self.total - self._done) / (self._done - done)
            times += f", {_clock(left)} left"
        way = f"{self._done:,}" if self.total is None else f"{self._parts(100):3d}%"
        parts = (self._label, way, _one_line(self._note), times)
        return " ".join(filter(None, parts))

    def _redraw(self, now: float) -> None:
        self._drawn_done, self._drawn_time = self._done, now
        if self._line is not None:
            share = None if self.total is None else self._done / max(self.total, 1)
            self._line.show(self._text(now), share)
            return
        # The last column stays free: some terminals wrap as soon as it is filled.
        room, text = _columns(self._stream) - 1, self._text(now)
        cells = min(_LONGEST_BAR, room - len(text) - len("[] "))
        if cells >= _SHORTEST_BAR and self.total is not None:
            text = f"[{'#' * self._parts(cells):.<{cells}}] {text}"
        self._write("\r" + text[:room].ljust(room))

    def _write(self, text: str) -> None:
        try:
            if self._stream is not None:
                self._stream.write(text)
                self._stream.flush()
        except (OSError, ValueError):  # a broken pipe; a closed file
            self._stream, self._terminal = None, False


def status(text: str) -> None:
    """What a run is doing: the text of the line in a notebook, else a line on standard error."""
    line = notebook_line()
    if line is None:
        note(text)
    else:
        line.show(_one_line(text))


def note(text: str) -> None:
    """A line on standard error; one that cannot be written to is no reason to stop."""
    try:
        print(printable_lines(text), file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # a closed file
        return False


def _columns(stream: TextIO | None) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80 if stream else 80
    except (OSError, ValueError):  # a terminal without a size; a closed file
        return 80


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _clock(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute:02d}:{second:02d}"
