"""Workers as processes of this machine, through torch's own elastic launcher."""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import io
import json
import logging
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, TypeVar

import torch

from codauc.group import Group, GroupError
from codauc.group.distributed import distributed
from codauc.interrupts import LEAVE, Left, asked, listen_as_a_worker, telling
from codauc.stopped import end_with_parent, killing_the_stopped
from codauc.streams import seed_everything

R = TypeVar("R")

_HOPELESS = "hopeless"  # the file that says that no further try can succeed
_OLD = 60.0  # seconds
_PREFIX = "codauc-launch-"  # of the names of temporary directories
_NOTICE = "asked-to-end"  # the file that tells workers who start late


def run_processes(
    function: Callable[[Group], R],
    workers: int,
    seed: int,
    timeout: float,
    *,
    patient: bool = False,
    max_restarts: int = 0,
) -> list[R]:
    """Call `function(group)` in `workers` processes; return the results by rank.

    With `patient` signals are left to `interrupts.listening`.

    The first error of a worker ends all of them; they are started again up to `max_restarts` times,
    and then it is raised here with the worker's number. A worker that was stopped (SIGSTOP) is
    killed after a few seconds where all may be started again, or are about to end.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _check_can_be_sent(function)
    with _own_directory() as directory, _as_before(), _quiet():
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=workers,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",
            local_addr="127.0.0.1",
            max_restarts=max_restarts,
            start_method="spawn",
            logs_specs=DefaultLogsSpecs(log_dir=directory),
            **(_without_signals(LaunchConfig) if patient else {}),
        )
        arguments = (function, seed, timeout, directory, os.getpid(), patient)
        hearing = telling(Path(directory) / _NOTICE) if patient else contextlib.nullcontext()
        try:
            with hearing, killing_the_stopped(always=max_restarts > 0):
                results = elastic_launch(config, _work)(*arguments)
        except ChildFailedError as error:
            if asked(LEAVE):  # before some were listening
                raise Left from None
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            raise _failure(Path(directory), codes, workers) from None
        except SignalException as error:
            caught = error.sigval
        else:
            return [_unpacked(results[rank]) for rank in range(workers)]
    signal.raise_signal(caught)  # the workers are gone; now as if nobody had caught it
    raise KeyboardInterrupt


def _work(
    function: Callable[[Group], Any],
    seed: int,
    timeout: float,
    directory: str,
    parent: int,
    patient: bool,
) -> bytes:
    """The body of a worker's process."""
    end_with_parent(parent)
    if patient:
        listen_as_a_worker(Path(directory) / _NOTICE)
    rank = int(os.environ["RANK"])
    notes = Path(directory)
    if not (notes / _HOPELESS).exists():
        (notes / f"{rank}.failure").unlink(missing_ok=True)  # of an earlier try
    (notes / f"{rank}.began").touch()
    if (notes / _HOPELESS).exists():  # an earlier try failed as all others would
        raise SystemExit(1)
    try:
        with distributed(timeout=timeout) as group:
            seed_everything(seed, rank)
            return _packed(function(group))
    except Left:
        return _packed(None)
    except SystemExit as left:
        # It would look like success, and the launcher would wait for a result for ever.
        error = RuntimeError(f"sys.exit({left.code!r}) in the worker")
        _note_failure(Path(directory), rank, error)
        raise error from None
    except Exception as error:
        _note_failure(Path(directory), rank, error)
        if isinstance(error, ValueError | ArithmeticError):  # bad input, bad numbers: not bad luck
            (Path(directory) / _HOPELESS).touch()
        raise
    finally:
        if patient:  # nothing is left to be saved
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _own_directory() -> Iterator[str]:
    """A directory for this launch; those that killed launchers left behind go."""
    for path in Path(gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _OLD:  # a new one may not yet be held
                with _held(path):
                    shutil.rmtree(path, ignore_errors=True)
    with TemporaryDirectory(prefix=_PREFIX) as directory, _held(Path(directory)):
        yield directory


@contextlib.contextmanager
def _held(directory: Path) -> Iterator[None]:
    """A lock that ends with this process; an OSError if another holds it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _without_signals(config: Any) -> dict[str, Any]:
    """What lets the elastic launcher leave signals alone; earlier than torch 2.9 it cannot."""
    name = "signals_to_handle"
    return {name: "SIGQUIT"} if name in config.__dataclass_fields__ else {}


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


def _unpacked(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)  # of this program's own making


def _note_failure(directory: Path, rank: int, error: BaseException) -> None:
    note = {
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
        "follows": isinstance(error, GroupError),  # another worker's failure came first
        "time": time.time(),
    }
    draft = directory / f"{rank}.draft"
    draft.write_text(json.dumps(note), encoding="utf-8")
    draft.rename(directory / f"{rank}.failure")


def _failure(directory: Path, codes: dict[int, int], workers: int) -> BaseException:
    """The error of the worker who failed first, of its own type where Python has it built in."""
    notes = [
        (int(path.stem), json.loads(path.read_text(encoding="utf-8")))
        for path in directory.glob("*.failure")
    ]
    killed = {rank: -code for rank, code in codes.items() if code < 0}
    if killed and all(note["follows"] for _, note in notes):
        rank = min(killed)
        name = signal.Signals(killed[rank]).name
        return GroupError(f"worker {rank} of {workers} was killed by {name}{_HINTS.get(name, '.')}")
    if not notes:
        rank, code = min(codes.items())
        if (directory / f"{rank}.began").exists():
            return RuntimeError(f"worker {rank} of {workers} ended by itself with code {code}.")
        return RuntimeError(
            f"worker {rank} of {workers} ended with code {code} before it could begin; its own "
            "message is above. Is the call of launch() under `if __name__ == '__main__':`?"
        )
    rank, note = min(notes, key=lambda item: (item[1]["follows"], item[1]["time"]))
    number = f"worker {rank} of {workers}"
    text = note["message"].removeprefix(f"{number}: ")
    error = _as_type(note["type"], number, text)
    error.add_note(f"in the worker:\n{note['traceback'].rstrip()}")
    return error


def _as_type(name: str, number: str, text: str) -> Exception:
    if name == "GroupError":
        return GroupError(text if text.startswith(number) else f"{number}: {text}")
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with contextlib.suppress(TypeError):  # some ask for more than a message
            return kind(f"{number}: {text}")
    return RuntimeError(f"{number}: {name}: {text}")


_HINTS = {
    "SIGKILL": ": by a person, or by the system for using too much memory (see its log).",
    "SIGABRT": ": it may have made another call than the others; all must take the same steps.",
    "SIGSEGV": ": a library crashed in it; see its messages above.",
}


def _named(function: Any) -> str:
    """Without the arguments of a partial, which may be large."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__qualname__", None) or repr(inner))


def _check_can_be_sent(function: Callable[..., Any]) -> None:
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


@contextlib.contextmanager
def _as_before() -> Iterator[None]:
    """Put back what the elastic launcher changes and leaves so: signals, a variable."""
    name = "TORCHELASTIC_SIGNALS_TO_HANDLE"
    variable = os.environ.get(name)
    here = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT) if here else ()
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.environ.pop(name, None)
        if variable is not None:
            os.environ[name] = variable


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the elastic launcher's log: the error raised here says more, once."""
    roots = ("torch.distributed.elastic", "torch.multiprocessing")
    names = [*roots, *(n for n in logging.root.manager.loggerDict if n.startswith(roots))]
    loggers = [logging.getLogger(name) for name in names]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)
