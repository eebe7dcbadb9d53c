"""Hosts on one machine: network namespaces joined by a switch, each on a link of a given rate.

    python experiments/hosts.py 4 100mbit sh -c 'torchrun $TORCHRUN_NODE train.py'

runs the command once in every host and takes everything down at the end. The command finds NODE
(its number from 0), NODES, HEAD (the address of host 0), ADDR (its own) and TORCHRUN_NODE
(torchrun's flags for this host). It needs Linux, root and iproute2; files and processors are shared
by all hosts, only the network is each one's own.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any, NamedTuple

PORT = 29500
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BURST = 0.02  # seconds of a link's rate that it may send at once after a pause
_LEAST_BURST = 16_384  # bytes: some packets, or the rate is not reached
_QUEUE = "200ms"  # how much waits before packets are dropped
_number = itertools.count()


def bytes_per_second(rate: str) -> float:
    """Of a rate in tc's notation.

    >>> bytes_per_second("100mbit")
    12500000.0
    """
    scale = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
    number, unit = re.fullmatch(r"([\d.]+)([kmg]?)bit", rate).groups()  # type: ignore[union-attr]
    return float(number) * scale[unit] / 8


class HostsError(RuntimeError):
    """Hosts could not be made, or a command of iproute2 failed."""


class Counters(NamedTuple):
    """Bytes that passed a host's interface since it was made, headers included."""

    sent: int
    received: int


class Hosts:
    """`count` hosts, host i at `addresses[i]`, that reach each other at `rate` in each direction.

    The rate is tc's, such as "100mbit", or "none" for as fast as it goes. It holds for what a host
    sends and for what it receives. Hosts and switch are namespaces of their own, so several `Hosts`
    may exist at once, and nothing outside is reached or changed. On leaving the `with` block, also
    by an error, Ctrl-C or SIGTERM, every process in the hosts is killed and all of it is gone.

        with Hosts(4, "100mbit") as hosts:
            codes = hosts.run(lambda i: ["torchrun", *hosts.torchrun(i), "train.py"])
    """

    def __init__(self, count: int, rate: str = "100mbit") -> None:
        if not isinstance(count, int) or not 1 <= count <= 250:
            raise ValueError(f"count={count!r}: expected an integer from 1 to 250; use 4, say.")
        if rate != "none" and not re.fullmatch(r"\d+(\.\d+)?[kmg]?bit", rate):
            raise ValueError(
                f"rate={rate!r}: expected a number with bit, kbit, mbit or gbit, such as "
                "'100mbit'; use 'none' for no limit."
            )
        self.count, self.rate = count, rate
        prefix = f"codauc{os.getpid()}-{next(_number)}"
        self.switch = f"{prefix}-switch"
        self.names = [f"{prefix}-{i}" for i in range(count)]
        self.addresses = [f"10.77.0.{i + 1}" for i in range(count)]
        self._processes: list[subprocess.Popen[Any]] = []
        self._handlers: dict[int, Any] = {}

    @staticmethod
    def reason() -> str | None:
        """Why hosts cannot be made here, or None; it is found out by making two."""
        try:
            with Hosts(2, "100mbit"):
                return None
        except HostsError as error:
            return str(error)

    def __enter__(self) -> Hosts:
        _check_machine()
        atexit.register(self.close)  # an interrupt may fall between two lines of __exit__
        self._end_on_signals()
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _make(self) -> None:
        _ip("netns", "add", self.switch)
        _ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self.switch, "link", "set", "br0", "up")
        for i, name in enumerate(self.names):
            port = f"p{i}"
            _ip("netns", "add", name)
            veth = ("type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", self.switch, "link", "add", port, *veth)
            _ip("-n", self.switch, "link", "set", port, "master", "br0", "up")
            _ip("-n", name, "addr", "add", f"{self.addresses[i]}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", name, "link", "set", device, "up")
            self._limit(self.switch, port)
            self._limit(name, "eth0")

    def _limit(self, name: str, device: str) -> None:
        if self.rate != "none":
            burst = max(_LEAST_BURST, round(_BURST * bytes_per_second(self.rate)))
            shape = ("tbf", "rate", self.rate, "burst", str(burst), "latency", _QUEUE)
            _run("tc", "-n", name, "qdisc", "add", "dev", device, "root", *shape)

    def environment(self, host: int) -> dict[str, str]:
        """The variables by which a process in `host` knows where it is."""
        return {
            "NODE": str(host),
            "NODES": str(self.count),
            "HEAD": self.addresses[0],
            "ADDR": self.addresses[host],
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            "TORCHRUN_NODE": shlex.join(self.torchrun(host)),
        }

    def torchrun(self, host: int, job: str = "hosts") -> list[str]:
        """torchrun's flags for the agent in `host`; the agents meet in host 0."""
        # An agent in a namespace does not recognise its own address, so it is told who is host.
        conf = f"is_host={int(host == 0)},timeout=120"
        return [
            f"--nnodes={self.count}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self.addresses[0]}:{PORT}",
            f"--rdzv-id={job}",
            f"--rdzv-conf={conf}",
            f"--local-addr={self.addresses[host]}",
        ]

    def start(
        self,
        host: int,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        output: IO[Any] | int | None = None,
        errors: IO[Any] | int | None = None,
    ) -> subprocess.Popen[Any]:
        """Start a command in a host, in a process group of its own.

        `env` is added to this process's environment and to `environment(host)`; `output` and
        `errors` are where its stdout and stderr go, if not where this process's do.
        """
        process = subprocess.Popen(
            [_find("ip"), "netns", "exec", self.names[host], *command],
            env={**os.environ, **self.environment(host), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def run(
        self,
        command: Callable[[int], Sequence[str]],
        *,
        env: Mapping[str, str] | None = None,
        errors: Sequence[IO[Any]] | None = None,
        patience: float = 30.0,
    ) -> list[int]:
        """Start `command(i)` in every host i, wait for all, return their exit codes.

        `errors[i]` takes what host i writes to stderr. Once one has failed the others have
        `patience` seconds to end, then they are killed.
        """
        processes = [
            self.start(i, command(i), env=env, errors=errors[i] if errors else None)
            for i in range(self.count)
        ]
        deadline = float("inf")
        while any(process.poll() is None for process in processes):
            if deadline == float("inf") and any(process.poll() for process in processes):
                deadline = time.monotonic() + patience
            if time.monotonic() > deadline:
                self.kill()
            time.sleep(0.05)
        return [process.wait() for process in processes]

    def counters(self, host: int) -> Counters:
        """The bytes host `host` has sent and received."""
        shown = json.loads(_ip("-n", self.names[host], "-s", "-j", "link", "show", "eth0"))
        return Counters(shown[0]["stats64"]["tx"]["bytes"], shown[0]["stats64"]["rx"]["bytes"])

    def link(self, host: int, *, up: bool) -> None:
        """Mend the host's link, or cut it: packets are lost then, and connections stay open."""
        _ip("-n", self.switch, "link", "set", f"p{host}", "up" if up else "down")

    def kill(self, host: int | None = None) -> None:
        """Kill every process in one host, or in all of them."""
        names = self.names if host is None else [self.names[host]]
        for name in names:
            while pids := _pids(name):
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                for process in self._processes:
                    process.poll()
                time.sleep(0.01)

    def close(self) -> None:
        """Kill what runs in the hosts and remove them; a second call does nothing."""
        with _undisturbed():
            there = _namespaces()
            for name in [*self.names, self.switch]:
                if name in there:
                    self._remove(name)
            for process in self._processes:
                process.wait()
            self._processes.clear()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        atexit.unregister(self.close)

    def _remove(self, name: str) -> None:
        if name != self.switch:
            self.kill(self.names.index(name))
        _ip("netns", "delete", name)

    def _end_on_signals(self) -> None:
        """Let SIGTERM and SIGHUP end this process as Ctrl-C does, through the `with` block."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                self._handlers[number] = signal.signal(number, _end)


def my_counters(interface: str = "eth0") -> Counters:
    """The bytes of the host this process runs in; nothing is started to read them."""
    for line in Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            values = numbers.split()
            return Counters(sent=int(values[8]), received=int(values[0]))
    raise HostsError(f"no interface {interface}: this process is not in a host.")


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C and the like wait until the block is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {n: signal.signal(n, lambda number, _: came.append(number)) for n in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for late in came:
        signal.raise_signal(late)


def _check_machine() -> None:
    if sys.platform != "linux":
        raise HostsError(f"this is {sys.platform}: hosts are network namespaces of Linux.")
    for tool in ("ip", "tc"):
        _find(tool)
    if os.geteuid():
        raise HostsError(f"this is user {os.geteuid()}: hosts need root; use sudo.")


def _find(tool: str) -> str:
    path = shutil.which(tool, path=_PATH)
    if path is None:
        raise HostsError(f"no command {tool}: install iproute2 (Debian: apt install iproute2).")
    return path


def _run(tool: str, *arguments: str) -> str:
    done = subprocess.run([_find(tool), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HostsError(f"{tool} {' '.join(arguments)}: {done.stderr.strip() or 'failed'}")
    return done.stdout


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _namespaces() -> set[str]:
    return {line.split()[0] for line in _ip("netns", "list").splitlines() if line.strip()}


def _pids(name: str) -> list[int]:
    return [int(pid) for pid in _ip("netns", "pids", name).split()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command in every host; the exit code is that of the first that failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("count", type=int, help="how many hosts")
    parser.add_argument("rate", help="the rate of each link, such as 100mbit, or none")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run in each host")
    options = parser.parse_args(arguments)
    if not options.command:
        parser.error("no command: expected what to run in each host, for example: ip address")
    try:
        with Hosts(options.count, options.rate) as hosts:
            codes = hosts.run(lambda _: options.command)
    except (HostsError, ValueError) as error:
        parser.exit(2, f"hosts.py: {error}\n")
    except KeyboardInterrupt:
        return 130
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
