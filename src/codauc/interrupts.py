"""Ctrl-C as a wish: the first asks a run to end with what it has, the second ends it at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_asked = threading.Event()


def asked() -> bool:
    """Whether this process was asked to end."""
    return _asked.is_set()


@contextmanager
def listening(told: Callable[[], object] = lambda: None) -> Iterator[None]:
    """While this lasts, the first Ctrl-C calls `told` and is remembered; the second interrupts.

    Processes that this one started are told, too. Outside the main thread nothing is changed.
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
        for child in multiprocessing.active_children():
            with suppress(OSError):
                os.kill(child.pid or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def listen_as_a_worker() -> None:
    """In a worker's process: Ctrl-C reaches it too, but the process that started it decides."""
    _asked.clear()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.signal(signal.SIGUSR1, lambda *_: _asked.set())
