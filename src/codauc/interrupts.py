"""Ctrl-C as a wish: the first asks a run to end with what it has, the second ends it at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType

_asked = threading.Event()
_notices: list[Path] = []  # files that tell workers who are not yet listening


def asked() -> bool:
    """Whether this process was asked to end."""
    return _asked.is_set()


@contextmanager
def listening(told: Callable[[], object] = lambda: None) -> Iterator[None]:
    """While this lasts, the first Ctrl-C calls `told` and is remembered; the second interrupts.

    Workers that this process started are told, too. Outside the main thread nothing is changed.
    """
    _asked.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        if _asked.is_set():
            raise KeyboardInterrupt
        _asked.set()
        told()
        for notice in _notices:
            with suppress(OSError):
                notice.touch()
        for child in multiprocessing.active_children():
            with suppress(OSError):
                os.kill(child.pid or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGINT, handle)
    # workers inherit that it is ignored, until they listen themselves
    unused = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGUSR1, unused)


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
    _asked.clear()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, lambda *_: _asked.set())
    if notice.exists():
        _asked.set()
