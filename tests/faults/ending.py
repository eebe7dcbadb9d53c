"""Ends of runs: killed before any use of the directory that comes after the last step, or many."""

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import torch

import codauc
from codauc.runs.checkpoints import Checkpoints
from codauc.training.checkpoint_policy import _GRACE

USES = ("open", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.listdir", "os.scandir")

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["codauc.training.run", "ending"])


class Strike(codauc.Callback):
    """Kills worker 0, or with `launcher` the process that started it, before use number `place`.

    Uses count once the file `after` is there. From the command line these are STRIKE_PLACE,
    STRIKE_AFTER and STRIKE_LAUNCHER of the environment, and STRIKE_OUT for the directory.
    """

    def __init__(self, place=None, folder=None, after=None, launcher=None):
        self.after = os.environ.get("STRIKE_AFTER", "") if after is None else after
        self.place = int(os.environ["STRIKE_PLACE"]) if place is None else place
        self.folder = os.path.realpath(os.environ["STRIKE_OUT"] if folder is None else folder)
        self.launcher = bool(os.environ.get("STRIKE_LAUNCHER")) if launcher is None else launcher
        self.steps, self.count, self.armed = 0, 0, False

    def on_start(self, settings, steps):
        """Learn which step is the last, and listen from now on."""
        self.steps = steps
        sys.addaudithook(self.heard)  # one cannot be taken back: for processes of their own

    def on_step(self, step, stage, rounds):
        """What comes after the last step counts."""
        self.armed = step >= self.steps

    def heard(self, event, arguments):
        """Count what is about to be done to the directory."""
        if not self.armed or event not in USES or not arguments:
            return
        path = arguments[0]
        if isinstance(path, str | bytes | os.PathLike) and self.inside(os.fsdecode(path)):
            self.count += os.path.exists(os.path.join(self.folder, self.after))
            if self.count == self.place:
                os.kill(os.getppid() if self.launcher else os.getpid(), signal.SIGKILL)
                time.sleep(60)  # this one ends with the launcher

    def inside(self, path):
        """Whether a path is the run's directory, or in it."""
        return path == self.folder or path.startswith(self.folder + os.sep)


class AskToLeave(codauc.Callback):
    """Asks the run to leave after some steps, as a cluster does: SIGTERM to the launcher.

    No step is taken before the launcher has passed it on, and the next one takes longer than a
    worker waits for a round, so that machines of any speed leave here.
    """

    def on_step(self, step, stage, rounds):
        """Ask once, and wait for the signal."""
        if step == 201:
            time.sleep(_GRACE + 1)
        if step != 200:
            return
        heard, before = threading.Event(), signal.getsignal(signal.SIGTERM)

        def hear(number, frame):
            before(number, frame)
            heard.set()

        signal.signal(signal.SIGTERM, hear)
        os.kill(os.getppid(), signal.SIGTERM)
        if not heard.wait(120):
            raise AssertionError("the launcher did not pass the signal on")


def apart(work, *arguments):
    """Call it in a process that has no threads of this one; its exit code, negative for a signal.

    A fork of a process that has read tables would wait for pyarrow's threads, which it lacks.
    """
    process = _CONTEXT.Process(target=_quiet, args=(work, *arguments))
    process.start()
    process.join()
    return process.exitcode


def _quiet(work, *arguments):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    work(*arguments)


def forked(work):
    """Call it in a process of its own; the code it ends with, negative for a signal.

    For processes that have not trained yet, and for work that reads no table.
    """
    pid = begun(work)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def begun(work):
    """Begin a process that calls it, with nothing to say unless it fails."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = work() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def trained_until_struck(settings, out, place):
    """A run that is killed before use number `place` of its directory, after its last step."""
    codauc.train(settings, out, callbacks=[Strike(place, out, after="", launcher=False)])


def many_ends(folder, count, group):
    """What workers do with their checkpoints at the end of a run, again and again."""
    shared = Path(folder) / "checkpoints"
    for _ in range(count):
        store = Checkpoints(shared, group, 2, print)
        store.save(8, {"rank": group.rank})
        store.wait()
        group.sum_(torch.zeros(1), "checkpoint")  # as all wait for the summary
        store.clear()
        group.sum_(torch.zeros(1), "checkpoint")
        if shared.exists():
            raise AssertionError("checkpoints were left")
        group.sum_(torch.zeros(1), "checkpoint")
    return count
