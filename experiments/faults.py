"""Faults in their long form: runs that are killed, cut off, damaged and starved, and go on.

    python experiments/faults.py kills [--count 50]      # SIGKILL, resume: the same bits
    python experiments/faults.py ends [--count 10000]    # ends of two and of four workers
    python experiments/faults.py finish [--count 200]    # SIGKILL after the last step, resume
    python experiments/faults.py hosts                   # four hosts: one lost, stopped, cut off
    python experiments/faults.py corrupt [--count 200]   # damaged checkpoints
    python experiments/faults.py disk                    # a disk that is full
    python experiments/faults.py soak [--seconds 1800]   # a fault a minute; nothing leaks
    python experiments/faults.py all

Each prints its figures and ends with 1 and the reason if a claim does not hold. `hosts` needs
Linux, root and iproute2, `disk` Linux and root.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "faults"))

from ending import Strike, begun, forked, many_ends
from hosts import Hosts, HostsError
from runs import (
    CODAUC,
    ENVIRONMENT,
    alive,
    assert_same,
    checkpoints,
    children,
    end,
    looks,
    make_table,
    run,
    start,
    wait_for,
    workers,
)

import codauc.training.run  # noqa: F401 - before processes are forked, which then begin at once
from codauc import launch
from codauc._internal.archive import pack, unpack
from codauc._internal.files import PARTIAL
from codauc._internal.text_table import table
from codauc.cli.main import main as command

COMMON = ("--target", "y", "--checkpoint-minutes", 0, "--quiet")
HAND, AGAIN, LAUNCHER = "worker, by hand", "worker, restarted", "launcher"
PORT = 29400
LONGEST = 30.0  # seconds from a fault to training again
Process = subprocess.Popen[str]


class Options(NamedTuple):
    """What the command line asks for."""

    folder: Path
    count: int | None
    seconds: float
    every: float
    seed: int


def claim(holds: object, reason: str) -> None:
    """Raise with the reason unless it holds."""
    if not holds:
        raise AssertionError(reason)


def until(condition: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    """Wait until it holds, and return it; `what` names what never came."""
    try:
        return wait_for(condition, seconds, pause=0.005)
    except AssertionError:
        raise AssertionError(f"{what}: not within {seconds:.0f} s") from None


def same(one: Path, other: Path, what: str) -> None:
    """Two runs are the same, bit for bit."""
    try:
        assert_same(one, other)
    except (AssertionError, OSError) as error:
        text = str(error).splitlines()[0] if str(error) else "history or summary"
        raise AssertionError(f"{what}: not as the undisturbed run ({text[:100]})") from error


def number(out: Path) -> int:
    """The step of the newest checkpoint; 0 if there is none."""
    return max((int(path.name[:9]) for path in checkpoints(out)), default=0)


def events(out: Path, event: str) -> list[dict[str, Any]]:
    """The lines of faults.jsonl of one kind."""
    with contextlib.suppress(OSError):
        lines = Path(out, "faults.jsonl").read_text().splitlines()
        return [fault for fault in map(json.loads, lines) if fault["event"] == event]
    return []


def resumes(out: Path) -> int:
    """How often the run was resumed."""
    return len(events(out, "resumed"))


def partial_file(out: Path) -> str | None:
    """A checkpoint that is being written."""
    with contextlib.suppress(OSError):
        for name in os.listdir(out / "checkpoints"):
            if name.startswith(PARTIAL):
                return str(out / "checkpoints" / name)
    return None


def log_to(log: Path, out: Path, *options: object, **env: str) -> Process:
    """Begin or resume a run whose messages go to a file."""
    command = [*CODAUC, "train", *map(str, options), "--out", str(out), "--resume"]
    with log.open("a") as file:
        return subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            text=True,
            start_new_session=True,
            env={**ENVIRONMENT, **env},
        )


# --- kills


class Way(NamedTuple):
    """A way to run, and how it is killed: at random, or only while a checkpoint is written."""

    name: str
    options: tuple[object, ...]
    share: float  # of all kills
    writing: bool = False


def ways(folder: Path) -> list[Way]:
    """All ways to run."""
    data = (make_table(folder / "table.csv"), *COMMON, "--steps", 300)
    shared = ("--sync-every", 8, "--checkpoint-rounds", 2)
    two = ("--workers", 2, *shared)
    wide = (*data[:-1], 100, "--model", "tabular", "--model-arguments", "widths=[1024,1024]")
    images = ("fashion-tiny", "--positive", "half", *COMMON[2:], "--steps", 40, *two)
    return [
        Way("one worker", (*data, "--checkpoint-rounds", 15), 4),
        Way("one, restarted", (*data, "--checkpoint-rounds", 15, "--max-restarts", 99), 4),
        Way("simulated 3", (*data, "--simulate", 3, *shared), 3),
        Way("processes 2", (*data, *two), 5),
        Way("processes 3", (*data, "--workers", 3, *shared), 4),
        Way("int8", (*data, *two, "--compress", "int8"), 5),
        Way("bf16, delay 4", (*data, *two, "--compress", "bf16", "--delay", 4), 5),
        Way("BatchNorm", images, 3),
        Way("recipe paper", (*data[:-1], 25, *two, "--recipe", "paper"), 3),
        Way("wide, one worker", (*wide, "--checkpoint-rounds", 4), 7, writing=True),
        Way("wide, processes 2", (*wide, *two[:-1], 1), 7, writing=True),
    ]


class Kills(NamedTuple):
    """What became of the kills of one way."""

    kinds: Counter[str]
    gone: list[float]  # seconds until the last process of a run had ended


def kills(options: Options) -> None:
    """Runs that are killed with SIGKILL and resumed end as if they had not been."""
    chance = random.Random(options.seed)
    all_ways, count = ways(options.folder), options.count or 50
    whole, rows, total = sum(way.share for way in all_ways), [], Counter[str]()
    for way in all_ways:
        quota = max(1, round(count * way.share / whole))
        done = killed(way, quota, options.folder / way.name.replace(" ", "-"), chance)
        kinds, total = done.kinds, total + done.kinds
        told = [str(kinds[kind]) for kind in (LAUNCHER, AGAIN, HAND, "writing", "half")]
        rows.append([way.name, str(quota), *told, f"{max(done.gone, default=0):.2f}", "identical"])
        print(f"{way.name}: {quota} kills, identical", flush=True)
    header = ["way", "kills", LAUNCHER, AGAIN, HAND, "while writing", "left half", "gone in s"]
    print(table([*header, "result"], rows))
    print(f"{sum(total[k] for k in (LAUNCHER, AGAIN, HAND))} kills, {total['writing']} writing")
    least = count // 5
    claim(total["writing"] >= least, f"only {total['writing']} kills while writing, not {least}")


def killed(way: Way, quota: int, folder: Path, chance: random.Random) -> Kills:
    """Kill runs of one way `quota` times; each run is killed some times and compared at its end."""
    folder.mkdir(parents=True, exist_ok=True)
    run(folder / "reference", *way.options)
    done, trial = Kills(Counter(), []), 0
    while (left := quota - sum(done.kinds[kind] for kind in (LAUNCHER, AGAIN, HAND))) > 0:
        claim(trial < 3 * quota, f"{way.name}: runs end before they are killed")
        out, trial = folder / f"killed-{trial}", trial + 1
        one_run(way, out, min(left, chance.randint(2, 5)), done, chance)
        same(out, folder / "reference", f"{way.name}, run {trial} ({dict(done.kinds)})")
        shutil.rmtree(out)
    return done


def one_run(way: Way, out: Path, most: int, done: Kills, chance: random.Random) -> None:
    """A run that is killed up to `most` times and then ends by itself."""
    process: Process | None = None
    before = 0
    for _ in range(most):
        if process is None:
            again = "--workers" in way.options and chance.random() < 0.5
            more = ("--max-restarts", 99) if again else ()
            process = start(out, *way.options, *more)
            restarted = "--max-restarts" in (*way.options, *more)
        before = trained(process, out, before)
        kind = struck(process, out, way, restarted, done, chance)
        if kind is None:
            break
        done.kinds[kind] += 1
        if kind != AGAIN:
            process = None
    code, _, error = end(process or start(out, *way.options))
    claim(code == 0, f"{way.name}: ended with {code}: {error[-300:]}")


def trained(process: Process, out: Path, before: int) -> int:
    """Wait until the run trains, or has ended; return how often it was resumed."""
    fresh = before == 0 and not checkpoints(out)

    def trains() -> bool:
        there = bool(checkpoints(out)) if fresh else resumes(out) > before
        return there or process.poll() is not None

    until(trains, f"{out.name}: training")
    return resumes(out)


def struck(
    process: Process, out: Path, way: Way, restarted: bool, done: Kills, chance: random.Random
) -> str | None:
    """Kill the launcher or a worker; returns which, or None if the run ended before that."""
    time.sleep(chance.uniform(0.0, 0.4 if way.writing else 0.8))
    there = workers(process)
    by_worker = bool(there) and chance.random() < 0.6
    family = [process.pid, *children(process.pid)]
    target = chance.choice(there) if by_worker else process.pid
    seen = written(process, out) if way.writing else None
    if process.poll() is not None or (way.writing and (seen is None or not os.path.exists(seen))):
        return None
    try:
        os.kill(target, signal.SIGKILL)
    except ProcessLookupError:
        return None
    began = time.monotonic()
    if seen:
        done.kinds["writing"] += 1
    if by_worker and restarted:
        until(lambda: not alive(target), "a killed worker's end")
        kind = AGAIN
    else:
        kind = HAND if by_worker else LAUNCHER
        code, _, error = end(process)
        until(lambda: not any(map(alive, family)), "the end of a killed run's processes", 30)
        done.gone.append(time.monotonic() - began)
        if by_worker:
            fine = code == 0 or (code == 1 and "was killed by SIGKILL" in error)
            claim(fine and "Traceback" not in error, f"code {code}: {error[-300:]}")
    if seen and kind != AGAIN and os.path.exists(seen):
        done.kinds["half"] += 1
    return kind


def written(process: Process, out: Path) -> str | None:
    """Wait for a checkpoint that is being written; None if the run ends."""
    while process.poll() is None:
        if (path := partial_file(out)) is not None:
            return path
        time.sleep(0.0005)
    return None


# --- ends


def ends(options: Options) -> None:
    """Workers that remove their checkpoints at the same time do not get in each other's way."""
    count = options.count or 10_000
    whole = max(1, count // 50)
    rows = [ended_often(options.folder, workers_, count // 2) for workers_ in (2, 4)]
    rows.append(ended_as_a_whole(options.folder, whole))
    print(table(["ends", "workers", "number", "failed", "seconds"], rows))
    claim(all(row[3] == "0" for row in rows), "some ends failed")


def ended_often(folder: Path, workers_: int, count: int) -> list[str]:
    """Ends of real processes that only save and remove checkpoints."""
    began, failed = time.monotonic(), 0
    try:
        launch(partial(many_ends, str(folder / f"ends-{workers_}"), count), workers=workers_)
    except Exception as error:  # whatever it is, the table tells of it
        failed = 1
        print(f"{workers_} workers: {error}", flush=True)
    seconds = time.monotonic() - began
    return ["of checkpoints", str(workers_), str(count), str(failed), f"{seconds:.0f}"]


def ended_as_a_whole(folder: Path, count: int) -> list[str]:
    """Short runs of two workers, from the command to its exit code."""
    data, began, failed = make_table(folder / "table.csv", 600), time.monotonic(), 0
    settings = (data, *COMMON, "--steps", 8, "--sync-every", 4, "--checkpoint-rounds", 1)
    for trial in range(count):
        out = folder / f"run-{trial}"
        code, _, error = end(start(out, *settings, "--workers", 2))
        names = sorted(path.name for path in out.iterdir())
        if code or names != sorted(END):
            failed += 1
            print(f"run {trial}: code {code}, {names}: {error[-300:]}", flush=True)
        shutil.rmtree(out)
    seconds = time.monotonic() - began
    return ["of runs", "2", str(count), str(failed), f"{seconds:.0f}"]


# --- finish

END = {  # what a run leaves
    *("config.toml", "metrics.jsonl", "model.safetensors"),
    *("report.html", "summary.json", "test_scores.npz"),
}


class Ending(NamedTuple):
    """A way to run to the end, and how it is killed there: at each use of the files, or writing."""

    name: str
    options: tuple[object, ...]
    share: float
    how: str = "uses"


def endings(folder: Path) -> list[Ending]:
    """All ways to come to an end."""
    data = (make_table(folder / "table.csv", 600), *COMMON, "--steps", 16)
    shared = ("--sync-every", 8, "--checkpoint-rounds", 1)
    wide = ("--model", "tabular", "--model-arguments", "widths=[1024,1024]")
    return [
        Ending("one worker", (*data, "--checkpoint-rounds", 8), 6),
        Ending("simulated 3", (*data, *shared, "--simulate", 3), 4),
        Ending("processes 2", (*data, *shared, "--workers", 2), 2, "worker 0"),
        Ending("processes 2, launcher", (*data, *shared, "--workers", 2), 2, "launcher"),
        Ending("wide, one worker", (*data, "--checkpoint-rounds", 8, *wide), 6, "writing"),
    ]


def finish(options: Options) -> None:
    """A run that is killed between its last step and its end is completed by --resume."""
    chance, count = random.Random(options.seed), options.count or 200
    ways_, rows, done = endings(options.folder), [], 0
    for number_, way in enumerate(ways_):
        quota = max(1, round(count * way.share / sum(each.share for each in ways_)))
        quota = max(1, count - done) if number_ == len(ways_) - 1 else quota
        tally = finished_after(way, quota, options.folder / way.name.replace(" ", "-"), chance)
        states = ("no summary", "no report", "report")
        told = [str(tally[state]) for state in states]
        rows.append([way.name, str(quota), *told, str(tally["half"]), "complete"])
        done += quota
        print(f"{way.name}: {quota} kills, all completed", flush=True)
    header = ["way", "kills", "before the summary", "before the report", "after it"]
    print(table([*header, "left half", "result"], rows))
    print(f"{done} kills between the last step and the end")


def finished_after(way: Ending, quota: int, folder: Path, chance: random.Random) -> Counter[str]:
    """Kill runs of one way at their end `quota` times, resume each and compare all its files."""
    folder.mkdir(parents=True, exist_ok=True)
    reference, tally, place = folder / "reference", Counter[str](), 1
    claim(forked(lambda: run_here(reference, *way.options)) == 0, f"{way.name}: undisturbed")
    claim(names_in(reference) == END, f"{way.name}: {names_in(reference)} undisturbed")
    trial = 0
    while sum(tally[state] for state in ("no summary", "no report", "report")) < quota:
        out, trial = folder / f"killed-{trial}", trial + 1
        claim(trial < 4 * quota + 20, f"{way.name}: runs end before they are killed")
        if not killed_at_its_end(way, out, place, chance):
            place = chance.randint(1, 5)  # that was the last: from the beginning again
            shutil.rmtree(out)
            continue
        there = names_in(out)
        state = "report" if "report.html" in there else "no report"
        tally[state if "summary.json" in there else "no summary"] += 1
        tally["half"] += any(name.startswith(PARTIAL) for name in there)
        what = f"{way.name}, place {place}, killed with {sorted(there)}"
        code = forked(lambda o=out: command(["train", "--resume", "--quiet", "--out", str(o)]))
        claim(code == 0, f"{what}: resumed with code {code}")
        left = names_in(out) - {"faults.jsonl"}
        claim(left == END, f"{what}: {sorted(left ^ END)} missing or left over")
        same(out, reference, what)
        shutil.rmtree(out)
        place += 1 if quota > 30 else chance.randint(1, 4)
    return tally


def names_in(out: Path) -> set[str]:
    """What is in a directory."""
    return {path.name for path in out.iterdir()}


def run_here(out: Path, *options: object, callback: bool = False) -> int:
    """A run in this process, which is to be one of its own."""
    more = ("--callback", f"{Strike.__module__}:{Strike.__name__}") if callback else ()
    return command(["train", *map(str, options), "--out", str(out), "--resume", *more])


def killed_at_its_end(way: Ending, out: Path, place: int, chance: random.Random) -> bool:
    """Run, and kill it after its last step; False if it came to its end."""
    if way.how == "writing":
        return killed_while_writing(way, out, chance)
    strike = {"STRIKE_PLACE": str(place), "STRIKE_OUT": str(out), "STRIKE_LAUNCHER": ""}
    if way.how == "uses":
        os.environ.update(strike)
        code = forked(lambda: run_here(out, *way.options, callback=True))
        claim(code in (0, -signal.SIGKILL), f"{way.name}, place {place}: code {code}")
        return code != 0
    strike |= {"STRIKE_LAUNCHER": "1"} if way.how == "launcher" else {}
    strike |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = start(out, *way.options, "--callback", "ending:Strike", env=strike)
    family = until(lambda: workers(process) or process.poll() is not None, "workers")
    code, _, error = end(process)
    claim("Traceback" not in error, f"{way.name}, place {place}: {error[-300:]}")
    if isinstance(family, list):
        until(lambda: not any(map(alive, family)), "the end of a killed run's processes", 30)
    return code != 0


def killed_while_writing(way: Ending, out: Path, chance: random.Random) -> bool:
    """Kill it while a file of its end is half written, or soon after."""
    began = begun(lambda: run_here(out, *way.options))
    records = len((out.parent / "reference" / "metrics.jsonl").read_text().splitlines())
    skipped = chance.randint(0, 6)  # files that it may write before
    seen = set[str]()
    while True:
        pid, status = os.waitpid(began, os.WNOHANG)
        if pid:
            claim(os.waitstatus_to_exitcode(status) == 0, f"{way.name}: {status}")
            return False
        if looks(out) == records:
            seen |= {name for name in names_in(out) if name.startswith(PARTIAL)}
            if len(seen) > skipped:
                time.sleep(chance.choice([0.0, 0.0, chance.uniform(0, 0.01)]))
                os.kill(began, signal.SIGKILL)
                return os.waitstatus_to_exitcode(os.waitpid(began, 0)[1]) != 0
        time.sleep(0.0002)


# --- hosts


class Cluster:
    """Four hosts, each with an agent of torchrun and a directory of its own."""

    def __init__(self, hosts: Hosts, folder: Path, nodes: str, options: tuple[object, ...]) -> None:
        self.hosts, self.folder, self.nodes, self.options = hosts, folder, nodes, options
        self.folder.mkdir(parents=True, exist_ok=True)
        self.agents = [self.agent(host) for host in range(hosts.count)]
        self.tended = set(range(hosts.count))  # those that are started again when they end

    def out(self, host: int = 0) -> Path:
        """A host's directory of the run."""
        return self.folder / f"host-{host}"

    def agent(self, host: int) -> subprocess.Popen[Any]:
        """Start torchrun in a host."""
        conf = f"is_host={int(host == 0)},timeout=300,last_call_timeout=3,keep_alive_interval=1"
        command = [
            *(sys.executable, "-m", "torch.distributed.run"),
            f"--nnodes={self.nodes}",
            "--nproc-per-node=1",
            "--max-restarts=50",
            "--monitor-interval=0.2",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self.hosts.addresses[0]}:{PORT}",
            f"--rdzv-id={self.folder.name}",
            f"--rdzv-conf={conf},keep_alive_max_attempt=5,read_timeout=15",
            f"--local-addr={self.hosts.addresses[host]}",
            *("-m", "codauc", "train", *map(str, self.options)),
            *("--out", str(self.out(host)), "--resume"),
        ]
        with (self.folder / f"host-{host}.log").open("ab") as log:
            env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
            return self.hosts.start(host, command, env=env, output=log, errors=subprocess.STDOUT)

    def worker(self, host: int) -> int:
        """The process that trains in a host."""
        for pid in children(self.agents[host].pid):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"codauc" in words and b"torch.distributed.run" not in words:
                    return pid
        raise AssertionError(f"no worker in host {host}")

    def tend(self) -> None:
        """Start agents again that have ended, as whoever keeps a cluster would."""
        for host in self.tended:
            if self.agents[host].poll() is not None:
                self.agents[host] = self.agent(host)

    def training(self, before: int, what: str) -> int:
        """Wait until the run was resumed and has saved again; returns the number of workers."""

        def resumed() -> bool:
            self.tend()
            return resumes(self.out()) > before

        until(resumed, f"{what}: resumed", 120)
        step = events(self.out(), "resumed")[-1]["step"]
        until(lambda: number(self.out()) > step, f"{what}: training again", 60)
        return int(events(self.out(), "resumed")[-1]["workers"])

    def ended(self) -> dict[str, Any]:
        """Wait for the end of the run; returns its summary."""
        for host in self.tended:
            code = self.agents[host].wait(timeout=600)
            claim(code == 0, f"host {host} ended with {code}: see {self.folder}/host-{host}.log")
        return summary_of(self.out())


def summary_of(out: Path) -> dict[str, Any]:
    """What came of a run."""
    return dict(json.loads((out / "summary.json").read_text()))


def lose(cluster: Cluster) -> None:
    """Kill a host; its agent is back two seconds later."""
    cluster.tended.discard(2)
    cluster.hosts.kill(2)
    time.sleep(2.0)
    cluster.agents[2] = cluster.agent(2)
    cluster.tended.add(2)


def stop(cluster: Cluster) -> None:
    """Stop a worker's process."""
    os.kill(cluster.worker(1), signal.SIGSTOP)


def cut_and_mend(cluster: Cluster) -> None:
    """Cut a host's link for 12 seconds."""
    cluster.hosts.link(3, up=False)
    time.sleep(12.0)
    cluster.hosts.link(3, up=True)


def gone(cluster: Cluster) -> None:
    """Kill a host for good."""
    cluster.tended.discard(2)
    cluster.hosts.kill(2)


def back(cluster: Cluster) -> None:
    """Bring the lost host back."""
    cluster.agents[2] = cluster.agent(2)
    cluster.tended.add(2)


def cut(cluster: Cluster) -> None:
    """Cut a host's link for good."""
    cluster.tended.discard(3)
    cluster.hosts.link(3, up=False)


def leave(cluster: Cluster) -> None:
    """Ask a host's torchrun to leave."""
    cluster.tended.discard(1)
    cluster.agents[1].send_signal(signal.SIGTERM)


class Disturbance(NamedTuple):
    """A fault, how many workers train after it, and the seconds in which it is there by itself."""

    name: str
    fault: Callable[[Cluster], None]
    workers: int
    lasts: float = 0.0


FIXED = (
    Disturbance("host killed, back after 2 s", lose, 4),
    Disturbance("worker stopped", stop, 4),
    Disturbance("link cut for 12 s", cut_and_mend, 4, 12.0),
)
ELASTIC = (
    Disturbance("host gone", gone, 3),
    Disturbance("host back", back, 4),
    Disturbance("link cut for good", cut, 3),
    Disturbance("torchrun asked to leave", leave, 2),
)


def disturbed(cluster: Cluster, faults: tuple[Disturbance, ...]) -> list[list[str]]:
    """One fault after the other; the seconds until training goes on, for the table."""
    rows = []
    until(lambda: number(cluster.out()) > 100, "training in the hosts")
    for each in faults:
        before, began = resumes(cluster.out()), time.monotonic()
        each.fault(cluster)
        count = cluster.training(before, each.name)
        seconds = time.monotonic() - began
        mended = f"{seconds - each.lasts:.1f}" if each.lasts else ""
        rows.append([each.name, cluster.nodes, str(count), f"{seconds:.1f}", mended])
        print(f"{each.name}: {seconds:.1f} s, step {number(cluster.out())}", flush=True)
        claim(count == each.workers, f"{each.name}: {count} workers, not {each.workers}")
        claim(seconds - each.lasts < LONGEST, f"{each.name}: training after {seconds:.1f} s")
        time.sleep(2.0)
    return rows


def hosts(options: Options) -> None:
    """Hosts that are lost, stopped and cut off are waited for, or done without."""
    if (reason := Hosts.reason()) is not None:
        raise HostsError(reason)
    data = make_table(options.folder / "table.csv", 12_000)
    shape = ("--steps", 2000, "--sync-every", 8, "--checkpoint-rounds", 2)
    settings = (data, *COMMON, *shape)
    reference = options.folder / "reference"
    run(reference, *settings, "--workers", 4)
    with Hosts(4, "none") as made:
        fixed = Cluster(made, options.folder / "fixed", "4", settings)
        rows = disturbed(fixed, FIXED)
        fixed.ended()
        same(fixed.out(), reference, "fixed size")
    with Hosts(4, "none") as made:
        elastic = Cluster(made, options.folder / "elastic", "1:4", settings)
        rows += disturbed(elastic, ELASTIC)
        made.link(3, up=True)
        summary = elastic.ended()
    print(table(["fault", "nodes", "K after", "s from fault", "s from mending"], rows))
    there = summary_of(reference)
    low, auc, high = (there[name] for name in ("auc_low", "test_auc", "auc_high"))
    print(f"fixed size: identical; elastic: AUC {summary['test_auc']:.4f}, else {auc:.4f}")
    claim(low <= summary["test_auc"] <= high, f"AUC is not within {low:.4f} to {high:.4f}")


# --- corrupt


class Bomb:
    """Unpickling it would make a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


class Stopped(NamedTuple):
    """A run that was asked to leave, how it would have ended, and another model's checkpoint."""

    out: Path
    reference: Path
    options: tuple[object, ...]
    other: Path
    marker: Path


def stopped_run(folder: Path, workers_: int) -> Stopped:
    """Run to the end, and again with SIGTERM on the way, when two checkpoints are whole."""
    folder.mkdir(parents=True, exist_ok=True)
    data = (make_table(folder / "table.csv"), *COMMON, "--steps", 120, "--evaluations", 10)
    rounds = ("--checkpoint-rounds", 10) if workers_ == 1 else ("--checkpoint-rounds", 2)
    settings = (*data, *rounds, "--simulate", workers_, "--sync-every", 8)
    run(folder / "reference", *settings)
    leave_at(folder / "stopped", 110, *settings)
    leave_at(folder / "other", 20, *settings, "--model-arguments", "widths=[32]")
    marker = folder / "marker"
    return Stopped(folder / "stopped", folder / "reference", settings, folder / "other", marker)


def leave_at(out: Path, step: int, *options: object) -> None:
    """Begin a run, ask it to leave at a step, and see it do so."""
    process = start(out, *options)
    until(lambda: number(out) >= step or process.poll() is not None, f"{out.name}: step {step}")
    process.send_signal(signal.SIGTERM)
    code, _, error = end(process)
    claim(code == 0, f"asked to leave, ended with {code}: {error[-300:]}")
    steps = {path.name[:9] for path in checkpoints(out)}
    claim(len(steps) >= 2, f"{out.name}: {len(steps)} checkpoints, where 2 are to be kept")


def flipped(data: bytes, chance: random.Random, where: range | None = None) -> bytes:
    """One to eight bits are not as they were."""
    harmed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        place = chance.choice(where or range(len(harmed)))
        harmed[place] ^= 1 << chance.randrange(8)
    return bytes(harmed)


def without_field(data: bytes, chance: random.Random) -> tuple[bytes, str]:
    """A field is missing somewhere, and the checksum is right; also where it was."""
    content = unpack(data)
    kinds: dict[tuple[Any, ...], list[tuple[tuple[Any, ...], str]]] = {}
    for where, name in fields_of(content):
        kind = (*(key for key in where if isinstance(key, str)), name)
        kinds.setdefault(kind, []).append((where, name))
    where, name = chance.choice(chance.choice(list(kinds.values())))
    holder = content
    for key in where:
        holder = holder[key]
    del holder[name]
    return pack(content), "/".join(map(str, [*where, name]))


def fields_of(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Every key of every dict: the way to the dict, and the key."""
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, part in parts:
        if isinstance(tree, dict):
            yield path, key
        if isinstance(part, dict | list | tuple):
            yield from fields_of(part, (*path, key))


def under_its_name(other: Path, name: str) -> bytes:
    """Another run's checkpoint that says it has this name."""
    content = unpack(other.read_bytes())
    content["name"] = name
    return pack(content)


class Harm(NamedTuple):
    """What was done to a checkpoint."""

    name: str
    path: Path
    before: bytes
    detail: str = ""

    @property
    def same_content(self) -> bool:
        """Whether what can be read of it is what was written."""
        try:
            return pack(unpack(self.path.read_bytes())) == pack(unpack(self.before))
        except (OSError, ValueError):
            return False


KINDS = ("bits", "bits of the header", "cut off", "empty", "missing field", "another model's")
KINDS = (*KINDS, "another model's, renamed", "another worker's", "older step's", "pickle")


def harmed(kind: str, out: Path, stopped: Stopped, chance: random.Random) -> Harm:
    """Damage the newest checkpoint of a random worker."""
    newest = [path for path in checkpoints(out) if int(path.name[:9]) == number(out)]
    path, older = chance.choice(newest), checkpoints(out)[0]
    data, detail = path.read_bytes(), path.name
    header = range(8 + int.from_bytes(data[:8], "little"))
    others = [other for other in newest if other != path]
    rank = path.name.split("-")[1]
    alien = next(p for p in checkpoints(stopped.other) if p.name.split("-")[1] == rank)
    if kind == "missing field":
        new, detail = without_field(data, chance)
    elif kind == "pickle":
        saved = io.BytesIO()
        torch.save(Bomb(stopped.marker), saved)
        new = chance.choice([pickle.dumps(Bomb(stopped.marker)), saved.getvalue()])
    else:
        new = {
            "bits": lambda: flipped(data, chance),
            "bits of the header": lambda: flipped(data, chance, header),
            "cut off": lambda: data[: chance.randrange(len(data))],
            "empty": lambda: b"",
            "another model's": alien.read_bytes,
            "another model's, renamed": lambda: under_its_name(alien, path.name),
            "another worker's": chance.choice(others or [older]).read_bytes,
            "older step's": older.read_bytes,
        }[kind]()
    path.write_bytes(new)
    return Harm(kind, path, data, detail)


def outcome(harm: Harm, out: Path, stopped: Stopped) -> str:
    """Resume, and say what became of it; raise if that is not as it should be."""
    what, fine = f"{harm.name} ({harm.detail})", harm.same_content
    newest, earlier = number(out), resumes(out)
    said = io.StringIO()
    arguments = ["train", *map(str, stopped.options), "--out", str(out), "--resume"]
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = command(arguments)
        except Exception as error:
            raise AssertionError(f"{what}: a traceback: {type(error).__name__}: {error}") from error
    claim(not stopped.marker.exists(), f"{what}: code in it was run")
    lines = said.getvalue().strip().splitlines()
    if code == 2:
        claim(len(lines) == 1, f"{what}: refused in {len(lines)} lines: {said.getvalue()[:300]}")
        return "refused"
    claim(code == 0, f"{what}: code {code}: {said.getvalue()[:300]}")
    same(out, stopped.reference, what)
    resumed = events(out, "resumed")[earlier:]
    claim(len(resumed) == 1, f"{what}: not resumed")
    if resumed[0]["step"] < newest:
        claim(any("Not used" in line for line in lines), f"{what}: passed over silently")
        return "from the one before"
    return "unharmed" if fine else "field not needed"


def corrupt(options: Options) -> None:
    """A damaged checkpoint is refused, or passed over for the one before; never gone on with."""
    chance, count = random.Random(options.seed), options.count or 200
    runs = [stopped_run(options.folder / f"workers-{k}", k) for k in (1, 2)]
    tally: Counter[tuple[str, str]] = Counter()
    wrong: list[str] = []
    for trial in range(count):
        stopped, kind = runs[trial // len(KINDS) % 2], KINDS[trial % len(KINDS)]
        out = options.folder / "damaged"
        shutil.copytree(stopped.out, out)
        harm = harmed(kind, out, stopped, chance)
        try:
            found = outcome(harm, out, stopped)
        except AssertionError as error:
            found = "WRONG"
            wrong.append(str(error))
            print(error, flush=True)
        if found == "field not needed" and kind != "missing field":
            wrong.append(f"{kind} ({harm.detail}): gone on with")
        tally[kind, found] += 1
        shutil.rmtree(out)
    columns = ["refused", "from the one before", "unharmed", "field not needed", "WRONG"]
    rows = [[kind, *(str(tally[kind, column]) for column in columns)] for kind in KINDS]
    print(table(["damage", *columns], rows))
    claim(not wrong, f"{len(wrong)} of {count} went wrong; the first: {wrong[:1]}")


# --- disk


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """A disk of `size` bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def mount(*arguments: str) -> None:
    """Call mount; it needs root."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    claim(done.returncode == 0, f"mount failed: {done.stderr.strip()}")


def refusals(log: Path) -> int:
    """How many checkpoints a run said it could not write."""
    return log.read_text().count("no checkpoint of step") if log.exists() else 0


def fill(folder: Path) -> Path:
    """Fill a disk to its end."""
    path = folder / "filler"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(1 << 8))
    return path


def killed_with(process: Process) -> None:
    """Kill a run, with what it has started."""
    family = [process.pid, *children(process.pid)]
    process.kill()
    process.wait()
    until(lambda: not any(map(alive, family)), "the end of a killed run's processes", 30)


def disk(options: Options) -> None:
    """A disk that is full costs checkpoints, not the run."""
    data = make_table(options.folder / "table.csv")
    shape = ("--steps", 700, "--sync-every", 8, "--checkpoint-rounds", 2, "--workers", 2)
    settings = (data, *COMMON, *shape)
    reference = options.folder / "reference"
    process = start(reference, *settings)
    size = until(lambda: checkpoint_sizes(reference), "two checkpoints")
    code, _, error = end(process)
    claim(code == 0, f"undisturbed: {error[-300:]}")
    alone, alone_settings = options.folder / "alone", (*settings[:-2], "--checkpoint-rounds", 16)
    run(alone, *alone_settings)
    cases: dict[str, Callable[[], list[str]]] = {
        "third does not fit": lambda: too_small(options.folder / "a", settings, size, reference),
        "full for a while": lambda: freed(options.folder / "b", settings, size, reference),
        "full to the end": lambda: full(options.folder / "c", settings, size, reference),
        "the same, one worker": lambda: full(options.folder / "d", alone_settings, size, alone),
    }
    rows, wrong = [], list[str]()
    for name, case in cases.items():
        try:
            rows.append([name, *case(), "identical"])
        except AssertionError as error:
            rows.append([name, "", "", "WRONG"])
            wrong.append(f"{name}: {error}")
    print(f"A checkpoint of both workers: {size / 1e6:.1f} MB")
    print(table(["disk", "told of", "what the run did", "result"], rows))
    claim(not wrong, "; ".join(wrong))


def checkpoint_sizes(out: Path) -> int:
    """Bytes of the newest checkpoint of all workers; 0 if there are not yet two."""
    found = checkpoints(out)
    if len(found) < 4:
        return 0
    with contextlib.suppress(OSError):
        return 2 * max(path.stat().st_size for path in found)
    return 0


def too_small(folder: Path, settings: tuple[object, ...], size: int, reference: Path) -> list[str]:
    """The third checkpoint does not fit; killed then, and resumed where there is room."""
    log = folder.with_suffix(".log")
    with small_disk(folder, int(2.7 * size)) as place:
        process = log_to(log, place / "run", *settings)
        until(lambda: refusals(log) >= 4 or process.poll() is not None, "a disk that is too small")
        claim(process.poll() is None, f"ended with {process.returncode}: {log}")
        steps = sorted({path.name[:9] for path in checkpoints(place / "run")})
        killed_with(process)
        told = refusals(log)
        claim(len(steps) >= 1, "no older checkpoint is left")
        mount("-o", f"remount,size={8 * size}", str(place))
        run(place / "run", *settings)
        used = events(place / "run", "resumed")[-1]["step"]
        same(place / "run", reference, "a disk that is too small")
    kept = f"trained on, killed, resumed at {used}"
    return [str(told), kept]


def freed(folder: Path, settings: tuple[object, ...], size: int, reference: Path) -> list[str]:
    """Full in mid-run, and free again later."""
    log = folder.with_suffix(".log")
    with small_disk(folder, 8 * size) as place:
        process = log_to(log, place / "run", *settings)
        until(lambda: len(checkpoints(place / "run")) >= 4, "two checkpoints")
        filler = fill(place)
        until(lambda: refusals(log) >= 6 or process.poll() is not None, "a full disk")
        claim(process.poll() is None, f"ended with {process.returncode}: {log}")
        step, told = number(place / "run"), refusals(log)
        filler.unlink()
        until(lambda: number(place / "run") > step, "a checkpoint after the disk was freed")
        claim(process.wait(300) == 0, f"ended with {process.returncode}: {log}")
        same(place / "run", reference, "a disk that was full for a while")
    return [str(told), "trained on, saved again"]


def full(folder: Path, settings: tuple[object, ...], size: int, reference: Path) -> list[str]:
    """Full until the run ends; what is on the disk then is enough to go on from."""
    log = folder.with_suffix(".log")
    with small_disk(folder, 8 * size) as place:
        process = log_to(log, place / "run", *settings)
        until(lambda: len(checkpoints(place / "run")) >= 2, "two checkpoints")
        filler = fill(place)
        code, told = process.wait(300), refusals(log)
        claim("Traceback" not in log.read_text(), f"a traceback: {log}")
        claim(told >= 6, f"told of {told} checkpoints that were not written: {log}")
        filler.unlink()
        if code:
            run(place / "run", *settings)
        same(place / "run", reference, f"a disk that was full at the end (code {code})")
    return [str(told), f"trained on, ended with {code}" + ", resumed" * bool(code)]


# --- soak


class Sample(NamedTuple):
    """How a run that has been going for a while stands."""

    seconds: float
    step: int
    launcher: int
    files: int  # descriptors of the launcher
    own: float  # MB of the launcher
    largest: float  # MB of the largest worker
    processes: int
    temporary: int


class Soak:
    """A run of four workers to which something happens again and again."""

    def __init__(self, folder: Path) -> None:
        self.out, self.log, self.tmp = folder / "run", folder / "log", folder / "tmp"
        self.tmp.mkdir(parents=True)
        data = make_table(folder / "table.csv")
        more = ("--steps", 5_000_000, "--sync-every", 8, "--checkpoint-rounds", 20)
        self.options = (data, *COMMON, *more, "--workers", 4, "--max-restarts", 1000)
        self.began, self.sessions = time.monotonic(), list[int]()
        self.lost = 0  # launchers that were killed
        self.process = self.start()

    def start(self) -> Process:
        """Begin, or go on."""
        process = log_to(self.log, self.out, *self.options, TMPDIR=str(self.tmp))
        self.sessions.append(process.pid)
        return process

    def sample(self) -> Sample:
        """Look at the run's processes."""
        pid, there = self.process.pid, workers(self.process)
        return Sample(
            seconds=time.monotonic() - self.began,
            step=number(self.out),
            launcher=pid,
            files=len(os.listdir(f"/proc/{pid}/fd")),
            own=megabytes(pid),
            largest=max(map(megabytes, there), default=0.0),
            processes=len(in_sessions(self.sessions)),
            temporary=len(list(self.tmp.iterdir())),
        )

    def kill_worker(self, chance: random.Random) -> None:
        """Kill a worker."""
        os.kill(chance.choice(workers(self.process)), signal.SIGKILL)

    def stop_worker(self, chance: random.Random) -> None:
        """Stop a worker."""
        os.kill(chance.choice(workers(self.process)), signal.SIGSTOP)

    def kill_writing(self, chance: random.Random) -> None:
        """Kill a worker while a checkpoint is written."""
        there = workers(self.process)
        claim(written(self.process, self.out), "the run ended")
        os.kill(chance.choice(there), signal.SIGKILL)

    def kill_launcher(self, chance: random.Random) -> None:
        """Kill the launcher, and resume."""
        del chance
        self.lost += 1
        killed_with(self.process)
        claim(not in_sessions(self.sessions), "processes are left of a killed launcher")
        self.process = self.start()

    def ask_to_leave(self, chance: random.Random | None = None) -> None:
        """Ask the run to save and leave, and resume unless this is the end."""
        self.process.terminate()
        code = self.process.wait(60)
        claim(code == 0, f"asked to leave, ended with {code}: {self.log}")
        until(lambda: not in_sessions(self.sessions), "the end of what a run started", 5)
        if chance is not None:
            self.process = self.start()

    def recovered(self, before: int, step: int, began: float) -> float:
        """Seconds until the run trains again; its processes are then those it needs."""
        until(lambda: resumes(self.out) > before, f"resumed: {self.log}", 90)
        until(lambda: number(self.out) > step, "steps after a fault", 90)
        seconds = time.monotonic() - began
        family = {self.process.pid, *children(self.process.pid)}
        strangers = [pid for pid in in_sessions(self.sessions) if pid not in family]
        strangers = [pid for pid in strangers if pid not in children(self.process.pid)]
        claim(not strangers, f"{len(strangers)} processes outlived a fault")
        claim(len(workers(self.process)) == 4, f"{len(workers(self.process))} workers, not 4")
        return seconds


def megabytes(pid: int) -> float:
    """The memory of a process."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0


def in_sessions(sessions: list[int]) -> list[int]:
    """The processes that belong to the runs with these first processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            parts = path.read_text().rpartition(")")[2].split()
            if int(parts[3]) in sessions and parts[0] not in "ZX":
                found.append(int(path.parent.name))
    return found


def soak(options: Options) -> None:
    """A long run with a fault every minute goes on, and nothing is left lying about."""
    chance, shared = random.Random(options.seed), set(os.listdir("/dev/shm"))
    it = Soak(options.folder / "soak")
    until(lambda: number(it.out) > 0, f"training: {it.log}")
    common = [it.kill_worker, it.stop_worker, it.kill_writing]
    samples, rows = [], []
    try:
        for turn in range(max(1, int(options.seconds / options.every))):
            time.sleep(max(0.0, (turn + 1) * options.every - (time.monotonic() - it.began)))
            samples.append(now := it.sample())
            claim(turn == 0 or now.step > samples[-2].step, "no steps between two faults")
            rare = it.kill_launcher if turn % 16 == 5 else it.ask_to_leave
            fault = rare if turn % 8 == 5 else chance.choice(common)
            before, step, began = resumes(it.out), number(it.out), time.monotonic()
            fault(chance)
            seconds = it.recovered(before, step, began)
            rows.append(row_of(now, fault.__name__, seconds))
            print(*rows[-1], flush=True)
        it.ask_to_leave()
    finally:
        for pid in in_sessions(it.sessions):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    header = ["at s", "step", "launcher fds", "launcher MB", "worker MB", "processes", "in TMPDIR"]
    print(table([*header, "then", "again in s"], rows))
    judge(it, samples, set(os.listdir("/dev/shm")) - shared)


def row_of(now: Sample, name: str, seconds: float) -> list[str]:
    """A line of the table."""
    told = [now.files, f"{now.own:.0f}", f"{now.largest:.0f}", now.processes, now.temporary]
    texts = [f"{now.seconds:.0f}", now.step, *told, name.replace("_", " "), f"{seconds:.1f}"]
    return [str(text) for text in texts]


def judge(it: Soak, samples: list[Sample], shared: set[str]) -> None:
    """Say whether anything grew or was left; raise if so."""
    names = sorted(path.name for path in it.tmp.iterdir())
    left = [name for name in names if not name.startswith("torchinductor_")]  # torch's cache
    print(f"left in /dev/shm: {len(shared)}; in TMPDIR: {len(left)} {left[:8]}")
    print(f"launchers killed: {it.lost}; in checkpoints/: {len(checkpoints(it.out))} files")
    claim(not shared, f"left in /dev/shm: {sorted(shared)[:5]}")
    claim(len(left) <= it.lost, f"{len(left)} in TMPDIR after {it.lost} killed launchers")
    claim(partial_file(it.out) is None, "a partial checkpoint is left")
    for pid in dict.fromkeys(sample.launcher for sample in samples):
        mine = [sample for sample in samples if sample.launcher == pid]
        flat("descriptors of a launcher", [sample.files for sample in mine], 4)
        flat("MB of a launcher", [sample.own for sample in mine], 20)
    flat("MB of the largest worker", [sample.largest for sample in samples], 40)
    print("flat: descriptors, memory of launcher and workers")


def flat(what: str, values: list[float], slack: float) -> None:
    """The later values are not above the earlier ones by more than `slack`."""
    if len(values) >= 4:
        half = len(values) // 2
        rise = max(values[half:]) - max(values[:half])
        claim(rise <= slack, f"{what} rose by {rise:.0f}: {values}")


# --- the command line

COMMANDS = {
    "kills": kills,
    "ends": ends,
    "finish": finish,
    "hosts": hosts,
    "corrupt": corrupt,
    "disk": disk,
    "soak": soak,
}


def main() -> int:
    """Run what is named; 1 if a claim does not hold, 2 if it cannot be run here."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=[*COMMANDS, "all"])
    parser.add_argument(
        "--count",
        type=int,
        help="kills (50), ends (10000), kills at the end (200), or damaged checkpoints (200)",
    )
    parser.add_argument("--seconds", type=float, default=1800.0, help="of soak (1800)")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between faults (60)")
    parser.add_argument("--folder", type=Path, help="where to work (a temporary directory)")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (0)")
    told = parser.parse_args()
    if told.folder is not None:
        return all_of(told, told.folder)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        return all_of(told, Path(folder))


def all_of(told: argparse.Namespace, folder: Path) -> int:
    """Run the named one, or each in turn; the first that fails ends it."""
    torch.set_num_threads(1)
    for name in list(COMMANDS) if told.name == "all" else [told.name]:
        place = folder.resolve() / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        began = time.monotonic()
        try:
            COMMANDS[name](Options(place, told.count, told.seconds, told.every, told.seed))
        except AssertionError as error:
            print(f"faults.py {name}: {error}", file=sys.stderr)
            return 1
        except HostsError as error:
            print(f"faults.py {name}: {error}", file=sys.stderr)
            return 2
        print(f"{name}: as claimed, in {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
