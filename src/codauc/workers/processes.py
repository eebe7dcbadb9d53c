"""Workers as processes of this machine: they succeed together, or are ended and started again.

What they return, and why they fail, comes back through pipes that only they and this process hold.
No port is opened to other machines, and nothing that others could write is read back.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, NamedTuple, TypeVar

import torch

from codauc._internal.imports import as_started, safe_children
from codauc.workers.group import Group, GroupError, numbered
from codauc.workers.rendezvous import loopback
from codauc.workers.signals import LEAVE, LEAVING, AskedToLeave, Requests, handled
from codauc.workers.torch_distributed import on_this_machine
from codauc.workers.watchdog import end_with_parent, guarded

R = TypeVar("R")

_PAUSE = 0.1  # seconds after which a signal that came meanwhile is handled
_GRACE = 30.0  # seconds in which a process may end by itself when it was asked to
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_FINAL = (ValueError, ArithmeticError)  # bad input, bad numbers: another try would end the same
_OLD = 60.0  # seconds
_PREFIX = "codauc-launch-"  # of the names of temporary directories
_NOTICE = "asked-to-end"  # the file by which workers that start late get a request


class FailedError(Exception):
    """Processes ended without a result: their exit codes by rank, and what each has sent."""

    def __init__(self, codes: dict[int, int], messages: list[dict[str, Any]]) -> None:
        super().__init__(codes)
        self.codes, self.messages = codes, messages

    @property
    def errors(self) -> dict[int, tuple[float, Exception]]:
        """When and why processes failed, by rank, of those that could send it."""
        return {k: sent["error"] for k, sent in enumerate(self.messages) if "error" in sent}

    @property
    def final(self) -> bool:
        """Whether another try would end the same."""
        return any(isinstance(error, _FINAL) for _, error in self.errors.values())


class SignalledError(Exception):
    """A signal came that would have ended this process: its number."""


def run_processes(
    function: Callable[[Group], R],
    workers: int,
    timeout: float,
    *,
    requests: Requests | None = None,
    max_restarts: int = 0,
) -> list[R]:
    """Call `function(group)` in `workers` processes; return the results by rank.

    With `requests` signals are left to it, here and in the workers.

    The first error of a worker ends all of them; they are started again up to `max_restarts` times,
    and then it is raised here with the worker's number. A worker that is stopped (SIGSTOP) is
    killed after a few seconds where all may be started again.
    """
    with (
        contextlib.nullcontext() if requests else signals_raised(),
        _own_directory() as directory,
        safe_children(),
        requests.forwarding(directory / _NOTICE) if requests else contextlib.nullcontext(),
    ):
        task = _Task(function, timeout, directory, os.getpid(), requests)
        for number in range(max_restarts + 1):
            try:
                results = _try(task, workers, number, max_restarts)
                break
            except FailedError as error:
                if requests is not None and requests.pending(LEAVE):  # before some were listening
                    raise AskedToLeave from None
                if error.final or number == max_restarts:
                    raise _failure(error, workers) from None
        # They came through a pipe from processes that this one started, of the same program.
        return [torch.load(io.BytesIO(data), weights_only=False) for data in results]


def _try(task: _Task, workers: int, number: int, restarts: int) -> list[bytes]:
    """The results, if all processes succeed; the first that ends without one ends all of them.

    Their environment is torchrun's, without the address of a store.
    """
    job = {
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "TORCHELASTIC_RUN_ID": "local",
        "TORCHELASTIC_RESTART_COUNT": str(number),
        "TORCHELASTIC_MAX_RESTARTS": str(restarts),
        "GLOO_SOCKET_IFNAME": loopback(),  # gloo's ports are for this machine alone
    }
    ranks = map(str, range(workers))
    children = [_Child(task, {**job, "RANK": rank, "LOCAL_RANK": rank}) for rank in ranks]
    ending: int = signal.SIGTERM
    try:
        for child in children:
            child.start()
        return _results(children)
    except SignalledError as error:
        ending = error.args[0]
        raise
    finally:
        started = [child for child in children if child.process.pid is not None]
        deadline = time.monotonic() + _GRACE
        for child in started:
            child.send(ending, signal.SIGCONT)  # also to those that are stopped
        for child in started:
            child.end(deadline)


class _Task(NamedTuple):
    """What every process is given."""

    function: Callable[[Group], Any]
    timeout: float
    directory: Path
    parent: int
    requests: Requests | None


class _Child:
    """A process and the messages it has sent: "begun", then "result" or "error"."""

    def __init__(self, task: _Task, environment: dict[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, self._theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_body, args=(self._theirs, task, environment))
        self.messages: dict[str, Any] = {}

    def start(self) -> None:
        """Start the process; from then on its pipe ends with it."""
        self.process.start()
        self._theirs.close()

    def receive(self) -> None:
        """Take what has come."""
        try:
            while not self.pipe.closed and self.pipe.poll():
                kind, value = self.pipe.recv()
                self.messages[kind] = value
        except (EOFError, OSError):  # it ends without a result
            self.pipe.close()

    def send(self, *numbers: int) -> None:
        """Send signals, if it lives."""
        for number in numbers:
            if self.process.pid is not None and self.process.exitcode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.process.pid, number)

    def end(self, deadline: float) -> None:
        """Wait until it ends by itself, or then make it; what it has to say is taken meanwhile."""
        while self.process.exitcode is None and time.monotonic() < deadline:
            self.receive()
            self.process.join(_PAUSE)
        self.send(signal.SIGKILL)
        self.process.join()
        self.receive()
        self.pipe.close()


def _results(children: list[_Child]) -> list[bytes]:
    """What all processes returned, once they have ended."""
    while True:
        codes = [child.process.exitcode for child in children]
        for child in children:
            child.receive()
        failed = {
            rank: code
            for rank, (code, child) in enumerate(zip(codes, children, strict=True))
            if code or (code == 0 and "result" not in child.messages)
        }
        if failed:
            raise FailedError(failed, [child.messages for child in children])
        if all(code == 0 for code in codes):
            return [child.messages["result"] for child in children]
        pipes = [child.pipe for child in children if not child.pipe.closed]
        ends = [child.process.sentinel for child in children if child.process.exitcode is None]
        wait([*pipes, *ends], _PAUSE)


def _body(pipe: Any, task: _Task, environment: dict[str, str]) -> None:
    """The body of a process."""
    os.environ.update(environment)
    pipe.send(("begun", True))
    try:
        pipe.send(("result", _work(task)))
    except BaseException as error:
        if isinstance(error, Exception | SystemExit):
            with contextlib.suppress(OSError):  # nobody may be there to read it
                pipe.send(("error", (time.time(), sendable(error))))
        sys.exit(1)


def _work(task: _Task) -> bytes:
    as_started()
    end_with_parent(task.parent)
    if task.requests is not None:
        task.requests.listen_in_worker(task.directory / _NOTICE)
    number = os.environ["TORCHELASTIC_RESTART_COUNT"]
    restarted = os.environ["TORCHELASTIC_MAX_RESTARTS"] != "0"
    try:
        # a store for each try: in an older one torch would find the addresses of the dead
        with (
            guarded() if restarted else contextlib.nullcontext(),
            on_this_machine(task.directory / f"store-{number}", task.timeout) as group,
        ):
            return _packed(task.function(group))
    except AskedToLeave:
        return _packed(None)
    finally:
        if task.requests is not None:  # nothing is left to be saved
            for each in LEAVING:
                signal.signal(each, signal.SIG_DFL)


def _packed(result: Any) -> bytes:
    """The result as bytes; torch's own format stores a shared vector once."""
    buffer = io.BytesIO()
    try:
        torch.save(result, buffer)
    except Exception as error:
        raise ValueError(
            f"the function's result, {type(result).__name__}, cannot be sent from the worker's "
            f"process ({error}); return numbers, tensors, a module or a state_dict()."
        ) from None
    return buffer.getvalue()


def sendable(error: BaseException) -> BaseException:
    """The error with its traceback as a note; of another type if its own cannot be sent."""
    if isinstance(error, SystemExit):
        error = RuntimeError(f"sys.exit({error.code!r}) in the worker")
    text = "".join(traceback.format_exception(error)).rstrip()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"in the worker:\n{text}")
    return error


def _failure(error: FailedError, workers: int) -> BaseException:
    """The error of the worker who failed first; a GroupError follows from another's failure."""
    found = sorted(
        (isinstance(each, GroupError), when, rank) for rank, (when, each) in error.errors.items()
    )
    killed = {rank: -code for rank, code in error.codes.items() if code < 0}
    if killed and (not found or found[0][0]):
        rank = min(killed)
        name = signal.Signals(killed[rank]).name
        return GroupError(f"worker {rank} of {workers} was killed by {name}{_HINTS.get(name, '.')}")
    if found:
        rank = found[0][-1]
        return numbered(error.errors[rank][1], rank, workers)
    rank, code = min(error.codes.items())
    if error.messages[rank]:
        return RuntimeError(f"worker {rank} of {workers} ended by itself with code {code}.")
    return RuntimeError(
        f"worker {rank} of {workers} ended with code {code} before it could begin; its own "
        "message is above. Is the call of launch() under `if __name__ == '__main__':`?"
    )


_HINTS = {
    "SIGKILL": ": by a person, or by the system for using too much memory (see its log).",
    "SIGABRT": ": it may have made another call than the others, or with a tensor of another size; "
    "all must take the same steps.",
    "SIGSEGV": ": a library crashed in it; see its messages above.",
}


@contextlib.contextmanager
def _own_directory() -> Iterator[Path]:
    """A directory that only this user can enter; those that killed launchers left behind go."""
    for path in Path(gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            old = time.time() - found.st_mtime > _OLD  # a new one may not yet be held
            if old and found.st_uid == os.getuid():
                with _held(path):
                    shutil.rmtree(path, ignore_errors=True)
    with TemporaryDirectory(prefix=_PREFIX) as directory, _held(Path(directory)):
        yield Path(directory)


@contextlib.contextmanager
def _held(directory: Path) -> Iterator[None]:
    """A lock that ends with this process; an OSError if another holds it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _named(function: Any) -> str:
    """Without the arguments of a partial, which may be large."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__qualname__", None) or repr(inner))


def check_can_be_sent(function: Callable[..., Any]) -> None:
    """Raise where processes could not get the function."""
    try:
        data = pickle.dumps(function)
    except Exception as error:
        raise ValueError(
            f"{_named(function)} cannot be sent to processes ({error}): expected a function "
            "defined at the top of a module, or functools.partial of one; or use simulate=True."
        ) from None
    if b"__main__" in data and not hasattr(sys.modules["__main__"], "__file__"):
        raise ValueError(
            f"{_named(function)} was defined in a notebook or at a prompt, where processes cannot "
            "find it: put it into a file and import it; or use simulate=True."
        )


@contextlib.contextmanager
def signals_raised() -> Iterator[None]:
    """Inside this block a signal that would end this process raises `SignalledError` instead.

    After the block it ends the process as if nobody had caught it.
    """

    def caught(number: int, _: Any) -> None:
        raise SignalledError(number)

    number = None
    try:
        with handled({n: caught for n in _SIGNALS if signal.getsignal(n) is not signal.SIG_IGN}):
            yield
    except SignalledError as error:
        number = error.args[0]
    if number is not None:
        signal.raise_signal(number)
        raise KeyboardInterrupt
