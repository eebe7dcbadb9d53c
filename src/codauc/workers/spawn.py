"""One process per rank that calls a function; they succeed together or are ended together.

What they return, and why they fail, comes back through pipes that only they and this process hold.
No port is opened, and nothing that others could write is read back.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from typing import Any

import torch.multiprocessing

_PAUSE = 0.1  # seconds after which a signal that came meanwhile is handled
_GRACE = 30.0  # seconds in which a process may end by itself when it was asked to
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class FailedError(Exception):
    """Processes ended without a result: their exit codes by rank, and what each has sent."""

    def __init__(self, codes: dict[int, int], messages: list[dict[str, Any]]) -> None:
        super().__init__(codes)
        self.codes, self.messages = codes, messages

    @property
    def errors(self) -> dict[int, tuple[float, Exception]]:
        """When and why processes failed, by rank, of those that could send it."""
        return {k: sent["error"] for k, sent in enumerate(self.messages) if "error" in sent}


class SignalledError(Exception):
    """A signal came that would have ended this process: its number."""


class _Child:
    """A process and the messages it has sent: "begun", then "result" or "error"."""

    def __init__(self, environment: dict[str, str], function: Any, arguments: Any) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self.pipe, self._theirs = context.Pipe(duplex=False)
        self.process = context.Process(
            target=_call, args=(self._theirs, environment, function, arguments)
        )
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


def call_in_processes(
    function: Callable[..., bytes], arguments: tuple[Any, ...], environments: list[dict[str, str]]
) -> list[bytes]:
    """Call `function(*arguments)` in a process for each of `environments`; their results.

    The first process that ends without a result ends all of them: `FailedError`. So does whatever
    is raised here meanwhile, such as `SignalledError` or KeyboardInterrupt.
    """
    children = [_Child(environment, function, arguments) for environment in environments]
    number: int = signal.SIGTERM
    try:
        for child in children:
            child.start()
        return _results(children)
    except SignalledError as error:
        number = error.args[0]
        raise
    finally:
        started = [child for child in children if child.process.pid is not None]
        deadline = time.monotonic() + _GRACE
        for child in started:
            child.send(number, signal.SIGCONT)  # also to those that are stopped
        for child in started:
            child.end(deadline)


def _call(pipe: Any, environment: dict[str, str], function: Any, arguments: Any) -> None:
    """The body of a process."""
    os.environ.update(environment)
    pipe.send(("begun", True))
    try:
        pipe.send(("result", function(*arguments)))
    except BaseException as error:
        if isinstance(error, Exception | SystemExit):
            with contextlib.suppress(OSError):  # nobody may be there to read it
                pipe.send(("error", (time.time(), sendable(error))))
        sys.exit(1)


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


@contextlib.contextmanager
def signals_raised(*, only_quit: bool) -> Iterator[None]:
    """Inside this block a signal that would end this process raises `SignalledError` instead.

    After the block it ends the process as if nobody had caught it. With `only_quit` another part of
    the program handles all but SIGQUIT. Outside the main thread nothing is changed.
    """
    here = threading.current_thread() is threading.main_thread()
    numbers = (_SIGNALS[-1:] if only_quit else _SIGNALS) if here else ()
    heard = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]  # nohup ignores one

    def caught(number: int, _: Any) -> None:
        raise SignalledError(number)

    before = {number: signal.signal(number, caught) for number in heard}
    number = None
    try:
        yield
    except SignalledError as error:
        number = error.args[0]
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if number is not None:
        signal.raise_signal(number)
        raise KeyboardInterrupt
