"""Claims about runs of real processes that are killed, stopped, or asked to leave."""

import json
import os
import random
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from runs import (
    alive,
    assert_same,
    checkpoints,
    children,
    end,
    kill,
    run,
    start,
    wait_for,
    workers,
)

from codauc.workers.processes import _held, _own_directory

SHARED = (
    *("--target", "y", "--steps", "300", "--sync-every", "8", "--quiet"),
    *("--model", "tabular", "--select", "best"),
    *("--compress", "int8", "--delay", "3"),
    *("--checkpoint-minutes", "0", "--checkpoint-rounds", "2"),
)
OPTIONS = (*SHARED, "--workers", "2")


@pytest.fixture(scope="module")
def whole(table, tmp_path_factory):
    """The directory of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    run(out, table, *SHARED, "--simulate", "2")  # which gives the same bits
    return out


def newest(out):
    """The step of the newest checkpoint."""
    found = checkpoints(out)
    return int(found[-1].name[:9]) if found else 0


def half_written(out):
    return list(Path(out, "checkpoints").glob(".codauc-partial-*"))


@pytest.mark.long
def test_asked_to_leave_and_then_killed_it_ends_the_same(table, whole, tmp_path):
    process = start(tmp_path, table, *OPTIONS, "--timeout", "9999")
    wait_for(lambda: newest(tmp_path) > 40)
    family = children(process.pid)
    os.killpg(process.pid, signal.SIGTERM)  # all of them; below, the launcher alone
    code, said, error = end(process)  # long before the timeout of a round
    assert (code, error) == (0, "")
    assert "Resume with: codauc train --resume" in said
    wait_for(lambda: not any(map(alive, family)))
    process, step = start(tmp_path, table, *OPTIONS), newest(tmp_path)
    wait_for(lambda: half_written(tmp_path) and newest(tmp_path) > step, pause=0.0005)
    kill(process)  # which sees its workers end
    run(tmp_path)  # the directory knows the rest
    assert_same(whole, tmp_path)


def test_lost_workers_are_started_again(table, whole, tmp_path):
    """One is killed, one is stopped: the run ends by itself as if nothing had happened."""
    process = start(tmp_path, table, *OPTIONS, "--max-restarts", "9")
    for number in (signal.SIGKILL, signal.SIGSTOP):
        step = newest(tmp_path)
        wait_for(lambda s=step: newest(tmp_path) > s + 16 and len(workers(process)) == 2)
        os.kill(random.choice(workers(process)), number)
        lost = newest(tmp_path)
        wait_for(lambda s=lost: newest(tmp_path) > s + 16)  # not torch's half hour
    code, _, error = end(process)
    assert code == 0, error
    assert_same(whole, tmp_path)
    faults = [json.loads(line) for line in (tmp_path / "faults.jsonl").read_text().splitlines()]
    assert [fault["restart"] for fault in faults] == [1, 2]


def test_what_killed_launchers_left_goes_and_what_others_use_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, used = tmp_path / "codauc-launch-left", tmp_path / "codauc-launch-used"
    for path in (left, used):
        (path / "inside").mkdir(parents=True)
        os.utime(path, (0, 0))
    with _held(used), _own_directory() as own:
        assert not left.exists()
        assert used.exists()
        with _own_directory() as another:
            assert sorted(tmp_path.iterdir()) == sorted([used, own, another])
    assert list(tmp_path.iterdir()) == [used]


def test_asked_to_leave_between_distant_rounds_each_saves_where_it_is(table, tmp_path):
    options = (table, "--target", "y", "--steps", "300", "--sync-every", "once", "--quiet")
    options = (*options, "--model", "tabular", "--select", "best")
    run(tmp_path / "whole", *options, "--simulate", "2", "--warm-start", "0")
    cut = tmp_path / "cut"
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    callback = ("--callback", "ending:AskToLeave")  # in the middle, however fast the machine is
    process = start(cut, *options, "--workers", "2", "--warm-start", "0", *callback, env=env)
    code, said, error = end(process)
    assert code == 0, error
    assert "saved at step" in said
    assert newest(cut) == 0  # there was no round
    assert len(checkpoints(cut)) == 2
    run(cut)
    assert_same(tmp_path / "whole", cut)


def test_sigterm_while_data_are_read_leaves_at_once(tmp_path):
    table = tmp_path / "long.csv"
    table.write_text("a,y\n" + "1.5,0\n2.5,1\n" * 1_000_000)
    process = start(tmp_path / "run", table, "--target", "y")
    assert "Reading" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    code, said, error = end(process)
    assert (code, "nothing is lost" in said) == (0, True), error
