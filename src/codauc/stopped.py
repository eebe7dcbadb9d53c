"""Processes that hang or outlive others: ended, so that those who wait for them can go on."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing.process
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

_PATIENCE = 5  # seconds for which a worker may be stopped
_PDEATHSIG = 1  # prctl: the signal to get when the parent ends

# What a guard runs, without this package, so that it is small: it ends with the one it watches.
_GUARD = """
import os, signal, sys, time
pid, patience, count = int(sys.argv[1]), int(sys.argv[2]), 0
while os.getppid() == pid:
    time.sleep(1)
    with open(f"/proc/{pid}/stat") as file:
        count = count + 1 if file.read().rpartition(")")[2].split()[0] == "T" else 0
    if count >= patience:
        os.kill(pid, signal.SIGKILL)
"""


def end_with_parent(parent: int) -> None:
    """Let this process end when its parent does, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the process that started this worker is gone")


def state_of(pid: int) -> str:
    """A letter: T for a process that was stopped (SIGSTOP), Z for one that has ended, or none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


@contextlib.contextmanager
def killing_the_stopped(*, always: bool) -> Iterator[None]:
    """While this lasts, processes that this one has started are killed if they stay stopped.

    Unless `always`, only when another has already ended: the launcher then ends them all, and would
    wait half a minute for one that is stopped to end by itself.
    """
    done = threading.Event()

    def watch() -> None:
        seconds: dict[int, int] = {}
        most = 0
        while not done.wait(1.0):
            # active_children() would reap them under the launcher's hands
            children = list(multiprocessing.process._children)  # type: ignore[attr-defined]
            states = {child.pid or 0: state_of(child.pid or 0) for child in children}
            living = sum(state not in ("", "Z") for state in states.values())
            most = max(most, living)
            for pid, state in states.items():
                seconds[pid] = seconds.get(pid, 0) + 1 if state == "T" else 0
                if seconds[pid] >= _PATIENCE and (always or living < most):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """While this lasts, a small process beside this one kills it if it stays stopped.

    A launcher that is not ours waits half a minute for a stopped worker to end by itself.
    """
    if sys.platform != "linux":
        yield
        return
    command = [sys.executable, "-S", "-E", "-c", _GUARD, str(os.getpid()), str(_PATIENCE)]
    guard = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        guard.kill()
        guard.wait()
