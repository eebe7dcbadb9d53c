"""Signals as requests, which a run answers where nothing is lost.

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
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

STOP, LEAVE, SAVE = "stop", "leave", "save"
LEAVING = (signal.SIGTERM, signal.SIGHUP)


class AskedToLeave(BaseException):
    """Raised in a process that was asked to leave and has nothing more to do; not an error.

    `step` is where a run was interrupted, if it had begun, and `saved` whether its state is kept.
    """

    def __init__(self, step: int | None = None, *, saved: bool = True) -> None:
        super().__init__(f"left at step {step}")
        self.step, self.saved = step, saved


class Requests:
    """What signals have asked a run for.

    Whoever starts a run creates one, listens with it and hands it to `launch` and to the run. A
    worker's process gets an empty copy, which listens there.

    Args:
        on_stop: called at the first Ctrl-C, for example to print a message.
    """

    def __init__(self, on_stop: Callable[[], object] = lambda: None) -> None:
        self._on_stop = on_stop
        self._names: set[str] = set()
        self._notice: Path | None = None  # a file for workers that do not listen yet
        self._polled = 0  # how many runs ask `pending` themselves

    def __reduce__(self) -> tuple[Any, ...]:
        return Requests, ()

    def pending(self, name: str) -> bool:
        """Whether this was asked for; for a checkpoint, since the last call."""
        found = name in self._names
        if name == SAVE:
            self._names.discard(SAVE)
        return found

    @contextmanager
    def polled(self) -> Iterator[None]:
        """Inside this block the run polls `pending`; elsewhere a signal raises `AskedToLeave`."""
        if LEAVE in self._names:
            raise AskedToLeave
        self._polled += 1
        try:
            yield
        finally:
            self._polled -= 1

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside this block signals become requests, of this process and of its workers.

        Outside the main thread nothing is changed.
        """
        # workers inherit that SIGUSR1 is ignored, until they listen themselves
        handlers: dict[int, Any] = {signal.SIGUSR1: signal.SIG_IGN, signal.SIGUSR2: self._save}
        handlers |= {signal.SIGINT: self._stop, **dict.fromkeys(LEAVING, self._leave)}
        if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup
            del handlers[signal.SIGHUP]
        with handled(handlers):
            yield

    @contextmanager
    def stoppable(self) -> Iterator[bool]:
        """Inside this block Ctrl-C is a request, and all other signals are what they were.

        Yields whether it is so: where Ctrl-C does not raise KeyboardInterrupt, or outside the main
        thread, whoever arranged that decides, and nothing is changed.
        """
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ours = usual and threading.current_thread() is threading.main_thread()
        handlers: dict[int, Any] = {signal.SIGUSR1: signal.SIG_IGN, signal.SIGINT: self._stop}
        with handled(handlers if ours else {}):
            yield ours

    def _stop(self, *_: Any) -> None:
        if STOP in self._names:
            raise KeyboardInterrupt
        self._names.add(STOP)
        self._on_stop()
        self._forward(signal.SIGUSR1, STOP)

    def _leave(self, number: int, *_: Any) -> None:
        self._names.add(LEAVE)
        if self._notice is not None:  # when the workers have left, nothing is waited for
            self._forward(number, LEAVE)
        elif not self._polled:
            raise AskedToLeave

    def _save(self, *_: Any) -> None:
        self._names.add(SAVE)
        self._forward(signal.SIGUSR2)

    def _forward(self, number: int, name: str = "") -> None:
        """Pass the request on to the workers of this process, also to those yet to come."""
        if self._notice is None:
            return
        if name:
            with suppress(OSError):
                self._notice.write_text(name)
        for child in multiprocessing.active_children():
            with suppress(OSError):
                if child.pid is not None:
                    os.kill(child.pid, number)

    @contextmanager
    def forwarding(self, notice: Path) -> Iterator[None]:
        """Inside this block requests also reach new workers, by the file `notice`.

        They do not get Ctrl-C, which a terminal sends to all of them: they inherit that the main
        thread blocks it. Another thread does not, so that this process still gets it.
        """
        resource_tracker.ensure_running()  # which unblocks signals when it starts
        done = threading.Event()
        threading.Thread(target=done.wait, daemon=True).start()
        blocked = {signal.SIGINT} if threading.current_thread() is threading.main_thread() else ()
        self._notice = notice
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
            self._notice = None
            done.set()

    def listen_in_worker(self, notice: Path) -> None:
        """In a worker's process: the one that started it decides, and may have done so already."""

        def leave_or_end(number: int, *_: Any) -> None:
            """Leave if all do; when a worker was lost, the launcher only ends the others."""
            for _attempt in range(20):  # the notice may come a moment later
                if _text(notice) == LEAVE:
                    self._leave(number)
                    return
                time.sleep(0.05)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, lambda *_: self._names.add(STOP))
        signal.signal(signal.SIGUSR2, self._save)
        for number in LEAVING:
            signal.signal(number, leave_or_end)
        self._names.update({_text(notice)} & {STOP, LEAVE})


@contextmanager
def handled(handlers: dict[int, Any]) -> Iterator[None]:
    """Inside this block signals have these handlers; outside the main thread nothing is changed."""
    here = threading.current_thread() is threading.main_thread()
    before = {n: signal.signal(n, handler) for n, handler in handlers.items() if here}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _text(notice: Path) -> str:
    with suppress(OSError):
        return notice.read_text()
    return ""
