"""Signals as wishes, which a run grants where nothing is lost.

Ctrl-C asks it to end with what it has, and a second one ends it at once. SIGTERM, as schedulers
send it, and SIGHUP, of a terminal that closes, ask it to save its state and leave. SIGUSR2 asks for
a checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any

STOP, LEAVE, SAVE = "stop", "leave", "save"
_LEAVING = (signal.SIGTERM, signal.SIGHUP)
_wishes: set[str] = set()
_notices: list[Path] = []  # files that tell workers who are not yet listening
_busy = False  # whether a run is where it looks at the wishes itself


class Left(BaseException):
    """A process that was asked to leave has nothing to do any more; not an error."""


def asked(wish: str) -> bool:
    """Whether this process was asked for it; for a checkpoint, since this was last called."""
    there = wish in _wishes
    if wish == SAVE:
        _wishes.discard(SAVE)
    return there


@contextmanager
def looked_at() -> Iterator[None]:
    """While this lasts, the run itself leaves when it is asked to; otherwise `Left` is raised."""
    global _busy
    if asked(LEAVE):
        raise Left
    before, _busy = _busy, True
    try:
        yield
    finally:
        _busy = before


def _wish_to_leave(*_: Any) -> None:
    _wishes.add(LEAVE)
    if not _busy:
        raise Left


def _wish_to_save(*_: Any) -> None:
    _wishes.add(SAVE)


@contextmanager
def listening(told: Callable[[], object] = lambda: None) -> Iterator[None]:
    """While this lasts, signals are remembered as wishes; the first Ctrl-C calls `told`.

    Workers that this process started are told, too. Outside the main thread nothing is changed.
    """
    _wishes.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        if asked(STOP):
            raise KeyboardInterrupt
        _wishes.add(STOP)
        told()
        _to_workers(signal.SIGUSR1, STOP)

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        if _notices:  # they leave, and then this process has nothing to wait for
            _wishes.add(LEAVE)
            _to_workers(number, LEAVE)
        else:
            _wish_to_leave()

    def save(*_: Any) -> None:
        _wish_to_save()
        for child in multiprocessing.active_children():
            _send(child.pid, signal.SIGUSR2)

    # workers inherit that SIGUSR1 is ignored, until they listen themselves
    handlers: dict[int, Any] = {signal.SIGUSR1: signal.SIG_IGN, signal.SIGUSR2: save}
    handlers |= {signal.SIGINT: stop, **dict.fromkeys(_LEAVING, leave)}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup
        del handlers[signal.SIGHUP]
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _to_workers(number: int, wish: str) -> None:
    for notice in _notices:
        with suppress(OSError):
            notice.write_text(wish)
    for child in multiprocessing.active_children():
        _send(child.pid, number)


def _send(pid: int | None, number: int) -> None:
    with suppress(OSError):
        if pid is not None:
            os.kill(pid, number)


@contextmanager
def telling(notice: Path) -> Iterator[None]:
    """While this lasts, a wish also makes the file `notice`, and new processes do not hear Ctrl-C.

    A terminal sends it to all of them. They inherit what the main thread blocks; another thread
    stays open to it, so that this process hears it still.
    """
    resource_tracker.ensure_running()  # which unblocks signals when it starts
    done = threading.Event()
    ear = threading.Thread(target=done.wait, daemon=True)
    ear.start()
    main = threading.current_thread() is threading.main_thread()
    _notices.append(notice)
    if main:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if main:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        _notices.remove(notice)
        done.set()


def listen_as_a_worker(notice: Path) -> None:
    """In a worker's process: the one that started it decides, and may already have."""
    _wishes.clear()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, lambda *_: _wishes.add(STOP))
    signal.signal(signal.SIGUSR2, _wish_to_save)
    for number in _LEAVING:
        signal.signal(number, partial(_leave_or_end, notice))
    with suppress(OSError):
        _wishes.update({notice.read_text()} & {STOP, LEAVE})


def _leave_or_end(notice: Path, number: int, frame: FrameType | None) -> None:
    """Leave if all are to; the launcher, when a worker was lost, just ends the others."""
    del frame
    for _ in range(20):  # it may be told a moment later
        with suppress(OSError):
            if notice.read_text() == LEAVE:
                _wish_to_leave()
                return
        time.sleep(0.05)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
