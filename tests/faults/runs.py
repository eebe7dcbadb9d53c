"""Runs of `codauc train` that are killed, and whether two runs are the same, bit for bit."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

CODAUC = [sys.executable, "-m", "codauc"]
TIMES = ("seconds", "computing", "communicating", "waiting")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def make_table(path, rows=2400, seed=0):
    """A table whose positives, 8%, are not easy to find."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 6))
    y = x[:, 0] + x[:, 1] * x[:, 2] + 0.5 * rng.normal(size=rows) > 2.0
    lines = [
        ",".join([*(f"{v:.5f}" for v in row), str(int(label))])
        for row, label in zip(x, y, strict=True)
    ]
    Path(path).write_text("\n".join(["a,b,c,d,e,f,y", *lines]) + "\n")
    return Path(path)


def start(out, *options, **more):
    """Begin or resume a run."""
    command = [*CODAUC, "train", *map(str, options), "--out", str(out), "--resume"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        command, **pipes, start_new_session=True, env={**ENVIRONMENT, **more.pop("env", {})}, **more
    )


def end(process, timeout=300):
    """Wait for the end: the code, and what was said."""
    out, error = process.communicate(timeout=timeout)
    return process.returncode, out, error


def run(out, *options, **more):
    """A run to its end."""
    code, said, error = end(start(out, *options, **more))
    assert code == 0, error
    return said, error


def children(pid):
    """The processes that one has started, and those that they have."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            own = [int(text) for text in task.read_text().split()]
        except OSError:
            continue
        found += [*own, *(deeper for child in own for deeper in children(child))]
    return found


def workers(process):
    """The workers' processes of a run that `codauc train --workers` started."""
    found = []
    for pid in children(process.pid):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"spawn_main" in command:
            found.append(pid)
    return found


def alive(pid):
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def wait_for(condition, seconds=600, pause=0.01):
    """Wait until something holds, and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(pause)
    raise AssertionError("it never came to hold")


def checkpoints(out):
    """The files that are whole."""
    return sorted(Path(out, "checkpoints").glob("*.safetensors"))


def looks(out):
    """How many lines the history has."""
    try:
        return len(Path(out, "metrics.jsonl").read_text().splitlines())
    except OSError:
        return 0


def kill(process):
    """Kill a process with what it has started, and see all of it end."""
    family = [process.pid, *children(process.pid)]
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=120)
    wait_for(lambda: not any(map(alive, family[1:])))


def history(out):
    """The records, without times."""
    lines = Path(out, "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [{k: v for k, v in record.items() if k not in TIMES} for record in records]


def assert_same(one, other):
    """Two runs have the same model, bit for bit, the same history and the same result."""
    assert history(one) == history(other)
    names = ("model.safetensors", "test_scores.npz")
    for name in names:
        assert Path(one, name).read_bytes() == Path(other, name).read_bytes(), name
    summaries = [json.loads(Path(run, "summary.json").read_text()) for run in (one, other)]
    for summary in summaries:
        for name in ("run", "notes", *TIMES):
            summary.pop(name)
    assert summaries[0] == summaries[1]
