"""Claims about the progress line."""

import io
import os
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codauc._internal import progress as module
from codauc._internal.progress import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal, of so many columns."""

    def __init__(self, columns=80):
        super().__init__()
        self.columns = columns

    def isatty(self):
        return True

    def fileno(self):
        return self.columns

    def drawn(self):
        return self.getvalue().split("\r")[1:]


class Broken(Terminal):
    """A terminal or pipe whose reader has gone."""

    def __init__(self, terminal):
        super().__init__()
        self.terminal, self.writes = terminal, 0

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.writes += 1
        raise BrokenPipeError


@pytest.fixture(autouse=True, scope="module")
def _columns_of_terminals():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module.os, "get_terminal_size", lambda fd: os.terminal_size((fd, 24)))
        yield


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set."""
    now = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


def run(stream, total, steps, **options):
    with Progress(total, stream=stream, **options) as progress:
        for done in steps:
            progress.update(done, note="AUC 0.9")


def test_terminal_gets_one_redrawn_line(clock):
    terminal = Terminal(59)
    with Progress(4, label="train", stream=terminal) as progress:
        for done in range(1, 5):
            clock[0] += 30
            progress.update(done, note=f"AUC 0.9{done}")
    text = terminal.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    lines = [line.rstrip() for line in terminal.drawn()]
    assert lines[1] == "[#####.....] train  50% AUC 0.92 01:00 elapsed, 01:00 left"
    assert lines[3].endswith("] train 100% AUC 0.94 02:00 elapsed")
    assert "." not in lines[3].split("]")[0]


def test_terminal_is_redrawn_at_most_ten_times_a_second(clock):
    terminal = Terminal()
    with Progress(10_000, stream=terminal) as progress:
        for done in range(1, 5001):
            clock[0] += 0.001
            progress.update(done)
        assert 40 <= len(terminal.drawn()) <= 51


def test_reaching_the_total_is_drawn_at_once_and_once(clock):
    terminal = Terminal()
    progress = Progress(5, stream=terminal)
    for done in [1, 2, 3, 4, 5, 5, 5]:
        progress.update(done)
    assert [line.split("]")[1].split()[0] for line in terminal.drawn()] == ["20%", "100%"]


def test_closing_shows_the_last_state(clock):
    terminal = Terminal()
    run(terminal, 100, range(1, 58))
    assert " 57% AUC 0.9" in terminal.drawn()[-1]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 120), st.text(max_size=40), st.text(max_size=80), st.integers(-1, 30))
def test_no_line_is_wider_than_the_terminal(width, label, note, done):
    terminal = Terminal(width)
    with Progress(20, label=label, stream=terminal) as progress:
        progress.update(done, note)
    drawn = terminal.getvalue().removesuffix("\n").split("\r")[1:]
    assert drawn
    assert all(len(line) < max(width, 2) and "\n" not in line for line in drawn)


def test_a_terminal_without_a_size_is_taken_to_have_80_columns(monkeypatch):
    def no_size(fd):
        raise OSError

    monkeypatch.setattr(module.os, "get_terminal_size", no_size)
    screen = Terminal(50)
    run(screen, 10, [5])
    assert {len(line.rstrip("\n")) for line in screen.drawn()} == {79}


def test_a_shorter_line_leaves_nothing_of_a_longer_one(clock):
    terminal = Terminal(70)
    with Progress(10, stream=terminal) as progress:
        progress.update(1, note="a long note, soon gone")
        clock[0] += 1
        progress.update(2)
    assert {len(line.rstrip("\n")) for line in terminal.drawn()} == {69}


def test_pipe_gets_plain_lines_at_most_one_in_each_tenth():
    pipe = io.StringIO()
    run(pipe, 1000, range(1, 1001), label="train")
    lines = pipe.getvalue().splitlines()
    assert [int(re.search(r"(\d+)%", line)[1]) for line in lines] == list(range(10, 101, 10))
    assert all(line.startswith("train ") and "AUC 0.9" in line for line in lines)
    assert "\r" not in pipe.getvalue()
    assert pipe.getvalue().endswith("\n")


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 50), st.lists(st.integers(-5, 60)))
def test_pipe_never_gets_more_than_ten_lines(total, steps):
    pipe = io.StringIO()
    run(pipe, total, steps)
    tenths = [int(found) // 10 for found in re.findall(r"(\d+)%", pipe.getvalue())]
    assert tenths == sorted(set(tenths))
    assert len(tenths) <= 10


def test_percent_is_exact():
    pipe = io.StringIO()
    Progress(100, stream=pipe).update(29)
    assert " 29% " in pipe.getvalue()


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "pipe"])
def test_a_total_of_0_is_done_from_the_start(stream):
    run(stream, 0, [0, 0, 3])
    assert "100%" in stream.getvalue()
    assert len(re.findall("100%", stream.getvalue())) <= 2


@pytest.mark.parametrize("terminal", [True, False])
def test_a_broken_pipe_silences_and_never_raises(terminal):
    stream = Broken(terminal)
    run(stream, 10, range(1, 11))
    assert stream.writes == 1


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_a_closed_stream_never_raises(kind):
    closed_before, closed_later = kind(), kind()
    closed_before.close()
    run(closed_before, 10, range(11))
    with Progress(10, stream=closed_later) as progress:
        progress.update(1)
        closed_later.close()
        progress.update(10)


def test_no_standard_error_never_raises(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    run(None, 10, range(11))


def test_writes_to_standard_error_by_default(capsys):
    run(None, 1, [1])
    captured = capsys.readouterr()
    assert "100%" in captured.err
    assert captured.out == ""


def test_an_error_inside_ends_the_line_and_is_passed_on():
    terminal = Terminal()

    def fail():
        yield 1
        raise KeyError

    with pytest.raises(KeyError):
        run(terminal, 10, fail())
    assert terminal.getvalue().endswith("\n")


def test_closing_twice_or_without_updates_writes_nothing_more():
    terminal = Terminal()
    Progress(10, stream=terminal).close()
    assert terminal.getvalue() == ""
    progress = Progress(10, stream=terminal)
    progress.update(1)
    progress.close()
    text = terminal.getvalue()
    progress.close()
    progress.update(2)
    assert terminal.getvalue() == text


def test_time_left_of_a_resumed_run_counts_only_its_own_steps(clock):
    pipe = io.StringIO()
    progress = Progress(1000, stream=pipe)
    progress.update(500)
    clock[0] += 100
    progress.update(600)
    assert pipe.getvalue().splitlines()[-1].endswith("01:40 elapsed, 06:40 left")


def test_hours_are_shown(clock):
    pipe = io.StringIO()
    progress = Progress(1, stream=pipe)
    clock[0] += 3 * 3600 + 62
    progress.update(1)
    assert pipe.getvalue().endswith("3:01:02 elapsed\n")
