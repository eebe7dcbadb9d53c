"""Workers as processes of this machine: started, started again, and what their errors become."""

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
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, TypeVar

import torch

from codauc._internal.imports import as_started, safe_children
from codauc.workers.group import Group, GroupError, numbered
from codauc.workers.network_interfaces import loopback
from codauc.workers.signals import LEAVE, LEAVING, AskedToLeave, Requests
from codauc.workers.spawn import FailedError, call_in_processes, signals_raised
from codauc.workers.torch_distributed import on_this_machine
from codauc.workers.watchdog import end_with_parent, guarded

R = TypeVar("R")

_OLD = 60.0  # seconds
_PREFIX = "codauc-launch-"  # of the names of temporary directories
_FINAL = (ValueError, ArithmeticError)  # bad input, bad numbers: another try would end the same
_NOTICE = "asked-to-end"  # the file by which workers that start late get a request


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
        signals_raised(only_quit=requests is not None),
        _own_directory() as directory,
        safe_children(),
        requests.forwarding(directory / _NOTICE) if requests else contextlib.nullcontext(),
    ):
        arguments = (function, timeout, directory, os.getpid(), requests)
        try:
            results = _first_success(arguments, workers, max_restarts)
        except FailedError as error:
            if requests is not None and requests.pending(LEAVE):  # before some were listening
                raise AskedToLeave from None
            raise _failure(error, workers) from None
        # They came through a pipe from processes that this one started, of the same program.
        return [torch.load(io.BytesIO(data), weights_only=False) for data in results]


def _first_success(arguments: tuple[Any, ...], workers: int, restarts: int) -> list[bytes]:
    """The results of the first try that succeeds, or the error of the last one."""
    for number in range(restarts):
        try:
            return _try(arguments, workers, number, restarts)
        except FailedError as error:
            if any(isinstance(each, _FINAL) for _, each in error.errors.values()):
                raise
    return _try(arguments, workers, restarts, restarts)


def _try(arguments: tuple[Any, ...], workers: int, number: int, restarts: int) -> list[bytes]:
    """One try; the environment is torchrun's, without the address of a store."""
    job = {
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "TORCHELASTIC_RUN_ID": "local",
        "TORCHELASTIC_RESTART_COUNT": str(number),
        "TORCHELASTIC_MAX_RESTARTS": str(restarts),
        "GLOO_SOCKET_IFNAME": loopback(),  # gloo's ports are for this machine alone
    }
    each = [{**job, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(workers)]
    return call_in_processes(_work, arguments, each)


def _work(
    function: Callable[[Group], Any],
    timeout: float,
    directory: Path,
    parent: int,
    requests: Requests | None,
) -> bytes:
    """The body of a worker's process."""
    as_started()
    end_with_parent(parent)
    if requests is not None:
        requests.listen_in_worker(directory / _NOTICE)
    number = os.environ["TORCHELASTIC_RESTART_COUNT"]
    restarted = os.environ["TORCHELASTIC_MAX_RESTARTS"] != "0"
    try:
        # a store for each try: in an older one torch would find the addresses of the dead
        with (
            guarded() if restarted else contextlib.nullcontext(),
            on_this_machine(directory / f"store-{number}", timeout) as group,
        ):
            return _packed(function(group))
    except AskedToLeave:
        return _packed(None)
    finally:
        if requests is not None:  # nothing is left to be saved
            for each in LEAVING:
                signal.signal(each, signal.SIG_DFL)


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


def _named(function: Any) -> str:
    """Without the arguments of a partial, which may be large."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__qualname__", None) or repr(inner))


def check_can_be_sent(function: Callable[..., Any]) -> None:
    """Raise where processes could not get the function, or are about to start themselves again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "launch() was reached while a worker imports this program: put the call under "
            "`if __name__ == '__main__':`."
        )
    main = sys.modules["__main__"]
    try:
        data = pickle.dumps(function)
    except Exception as error:
        raise ValueError(
            f"{_named(function)} cannot be sent to processes ({error}): expected a function "
            "defined at the top of a module, or functools.partial of one; or use simulate=True."
        ) from None
    if b"__main__" in data and not hasattr(main, "__file__"):
        raise ValueError(
            f"{_named(function)} was defined in a notebook or at a prompt, where processes cannot "
            "find it: put it into a file and import it; or use simulate=True."
        )
