"""Processes that are stopped or outlive their parent are ended, so that nobody waits for them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

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


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Inside this block a small process beside this one kills it if it stays stopped (SIGSTOP).

    The launcher then starts the workers again at once, instead of after a timeout.
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
