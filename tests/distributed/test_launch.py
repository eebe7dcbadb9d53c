"""Workers as processes: results, shares of the cores, bad set-ups, and that nothing is left."""

import contextlib
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import workers as w

import codauc
from codauc.workers import GroupError, processes
from codauc.workers.processes import FailedError, sendable

HERE = Path(__file__).parent
PATHS = os.pathsep.join([str(Path(codauc.__file__).parents[1]), str(HERE)])
CLEAN = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}


def children():
    """The processes that this one has started and that still live."""
    tasks = Path("/proc/self/task").glob("*/children")
    pids = {pid for task in tasks for pid in task.read_text().split()}
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids if alive(pid)}
    return {pid for pid, name in names.items() if b"resource_tracker" not in name}


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture(autouse=True)
def _nothing_is_left():
    before = children()
    yield
    deadline = time.monotonic() + 10
    while children() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not children() - before  # those of other tests may end meanwhile


def launch(function, count=2, **options):
    return codauc.launch(function, workers=count, **{"timeout": 60, **options})


def test_results_come_in_the_order_of_ranks_with_the_simulations_random_numbers(
    monkeypatch, tmp_path
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    results = launch(w.where, 3, seed=5)
    simulated = codauc.launch(w.where, workers=3, simulate=True, seed=5)
    for rank, (result, other) in enumerate(zip(results, simulated, strict=True)):
        assert result[:2] == (rank, 3)
        assert result[2] == max(1, len(os.sched_getaffinity(0)) // 3)
        assert result[3] == other[3]
        assert result[4] == 3
    assert handlers == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    assert list(tmp_path.iterdir()) == []


def test_a_model_comes_back_from_every_worker():
    models = launch(w.model_of_worker_0)
    first, second = (model.state_dict() for model in models)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name])


CAUGHT = {  # what each worker may catch, so that one launch is enough for all
    "different_models": (
        "ValueError",
        r"worker 0 and worker 1 differ in tensors body\.0\.weight \(weight \[8, 3\].*\[8, 4\]",
    ),
    "different_columns": (
        "ValueError",
        r"worker 0 and worker 1 differ in settings columns\[0\] \(age and dose\)",
    ),
    "launches": (
        "RuntimeError",
        r"launch\(\) was called inside a worker.*the group that the function was",
    ),
}
BAD = {
    "returns early": (w.returns_early, GroupError, r"left alone in sum_.*worker 1 had left"),
    "raises": (w.raises, ValueError, "worker 1 of 2: the file of this worker is empty"),
    "exits": (w.exits, RuntimeError, r"worker 1 of 2: sys\.exit\(0\)"),
    "changes size": (
        w.changes_size,
        GroupError,
        r"worker \d of 2.*(another size|every worker must have the same model)",
    ),
    "is killed": (w.is_killed, GroupError, "worker 1 of 2 was killed by SIGKILL"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_set_ups_end_in_one_clear_error_long_before_the_timeout(case):
    function, kind, message = BAD[case]
    start = time.monotonic()
    with pytest.raises(kind, match=message) as caught:
        launch(function, timeout=2000)
    assert type(caught.value) is kind
    assert time.monotonic() - start < 1000
    if case == "raises":
        assert "Traceback" in caught.value.__notes__[0]


def test_what_differs_is_one_clear_error_on_every_worker():
    """Models, columns, calls; those of calls are the simulation's."""
    refused, real = zip(*launch(w.all_that_differs), strict=True)
    for case, (kind, message) in CAUGHT.items():
        for errors in refused:
            assert errors[case][0] == kind
            assert re.search(message, errors[case][1]), errors[case]
    for case in w.CALLS:
        with pytest.raises(RuntimeError) as caught:
            codauc.launch(partial(w.calls, case=case), workers=2, simulate=True)
        text = caught.value.args[0].removeprefix("worker 1 of 2: ").removeprefix("worker 0 of 2: ")
        assert "calls" in text
        for rank, errors in enumerate(real):
            assert errors[case] == f"worker {rank} of 2: {text}", case


def test_another_kind_of_call_is_named_after_the_timeout():
    text = r"worker 1 calls gather\(\[4\] .* while worker 0 calls sum_\(\[4\]"
    with pytest.raises(GroupError, match=text):
        launch(w.sums_or_gathers, timeout=4)


def test_a_worker_that_no_longer_answers_is_named_after_the_timeout():
    with pytest.raises(GroupError, match=r"left alone in sum_.*worker 1 \(.*\) gave no answer"):
        launch(w.stops, timeout=4)


def start(code, *arguments, **environment):
    """A program of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=HERE,
        env={**CLEAN, "PYTHONPATH": PATHS, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for(paths, process):
    while not all(path.exists() and path.read_text() for path in paths):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    return [path.read_text() for path in paths]


WAITING = """
import functools, pathlib, sys, codauc, workers
if __name__ == "__main__":
    work = functools.partial(workers.writes_pid_and_waits, directory=pathlib.Path(sys.argv[1]))
    codauc.launch(work, workers=2)
"""


def hear_interrupts():
    """Also where these tests run as a background job, which ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("ending", ["SIGINT to all", "SIGTERM", "SIGKILL"])
def test_workers_end_with_the_program_however_it_ends(ending, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(WAITING)
    pids = tmp_path / "pids"
    pids.mkdir()
    process = subprocess.Popen(
        [sys.executable, script, pids],
        env={**CLEAN, "PYTHONPATH": PATHS},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=hear_interrupts,
    )
    workers = wait_for([pids / "0", pids / "1"], process)
    time.sleep(0.3)
    if ending == "SIGINT to all":  # as Ctrl-C in a terminal
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(getattr(signal, ending))
    output = process.communicate(timeout=60)[0]
    assert process.returncode != 0
    deadline = time.monotonic() + 20
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))
    assert "destroy_process_group" not in output
    if ending == "SIGINT to all":
        assert output.rstrip().endswith("KeyboardInterrupt")


def test_a_script_without_a_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import codauc, workers\ncodauc.launch(workers.where, workers=2)\n")
    done = subprocess.run(
        [sys.executable, script],
        env={**CLEAN, "PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "under `if __name__ == '__main__':`" in done.stderr


# Without torchrun: the variables that any cluster can set

JOIN = """
import sys, torch, codauc
if len(sys.argv) > 1:
    import codauc.workers.rendezvous as d
    d.__version__ = sys.argv[1]
with codauc.distributed(timeout=4) as group:
    total = torch.ones(1)
    group.sum_(total, "round")
    print("sum", total.item())
with codauc.distributed(timeout=4) as group:  # and another one afterwards
    group.sum_(total, "round")
    print("sum", total.item())
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def cluster(ranks, port, size=2, arguments=None):
    """Start these ranks; return each one's code and output."""
    processes = [
        start(
            JOIN,
            *(arguments or {}).get(rank, ()),
            RANK=str(rank),
            WORLD_SIZE=str(size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        for rank in ranks
    ]
    outputs = [process.communicate(timeout=90)[0] for process in processes]
    return [(p.returncode, output) for p, output in zip(processes, outputs, strict=True)]


def test_ranks_that_a_cluster_started_find_each_other():
    for code, output in cluster([0, 1], free_port()):
        assert (code, output.split()) == (0, ["sum", "2.0", "sum", "4.0"])


def test_mpi_and_slurm_name_ranks_in_their_own_way(monkeypatch):
    from codauc.workers.rendezvous import Place

    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert Place.from_environment() is None
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    monkeypatch.setenv("SLURM_LOCALID", "1")
    assert Place.from_environment() == (3, 8, 1, None)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "x")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="OMPI_COMM_WORLD_RANK='x'"):
        Place.from_environment()


@pytest.mark.parametrize("here", [0, 1])
def test_a_rank_that_never_arrives_is_named(here):
    ((code, output),) = cluster([here], free_port())
    assert code == 1
    missing = (
        "worker 1 did not arrive within 4 s; see whether it was started"
        if here == 0
        else "no answer from worker 0 at"
    )
    assert f"worker {here} of 2: {missing}" in output.splitlines()[-1]


def test_different_versions_are_an_error_on_every_rank():
    for rank, (code, output) in enumerate(cluster([0, 1], free_port(), arguments={1: ["0.0.9"]})):
        assert code == 1
        last = output.splitlines()[-1]
        assert f"worker {rank} of 2: worker 1 (" in last
        assert "runs codauc 0.0.9, worker 0 (" in last
        assert "install the same on all" in last


def test_a_port_in_use_is_an_error_on_every_rank():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        (code, output), (code_1, output_1) = cluster([0, 1], port)
    assert code == code_1 == 1
    assert f"port {port} of 127.0.0.1 cannot be opened" in output.splitlines()[-1]
    assert "set MASTER_PORT to a free one" in output.splitlines()[-1]
    assert f"no answer from worker 0 at 127.0.0.1:{port}" in output_1.splitlines()[-1]


def test_an_existing_process_group_is_used_and_left_alone():
    assert launch(w.joins_what_exists) == [[2.0, 1.0]] * 2


def test_an_unknown_interface_leaves_the_choice_to_gloo():
    from codauc.workers.rendezvous import interface_towards

    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("256.1.1.1") is None


def test_results_that_cannot_be_sent_are_named():
    with pytest.raises(ValueError, match="result, function, cannot be sent"):
        processes._packed(lambda: 1)


class NeedsMoreError(Exception):
    """Its arguments do not make it again."""

    def __init__(self, file, *, line):
        super().__init__(f"{file}, line {line}")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (KeyError("x"), KeyError, "'worker 1 of 2: x'"),
        (OSError(2, "no such file"), FileNotFoundError, "[Errno 2] no such file"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), UnicodeDecodeError, "'utf-8' codec can't"),
        (GroupError("worker 1 of 2 was alone"), GroupError, "worker 1 of 2 was alone"),
        (NeedsMoreError("a", line=3), RuntimeError, "worker 1 of 2: NeedsMoreError: a, line 3"),
        (SystemExit(3), RuntimeError, "worker 1 of 2: sys.exit(3) in the worker"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_errors_keep_their_type_where_they_can_be_sent(error, kind, text):
    sent = pickle.loads(pickle.dumps(sendable(error)))
    failed = FailedError({1: 1}, [{}, {"begun": True, "error": (0.0, sent)}])
    found = processes._failure(failed, 2)
    assert type(found) is kind
    assert str(found).startswith(text)
    assert "in the worker" in found.__notes__[0]
    assert "worker 1 of 2" in "".join([str(found), *found.__notes__])


def test_a_state_loaded_while_a_round_is_under_way_is_what_goes_on():
    results = launch(w.rolls_back)
    for straight, again in results:
        assert torch.equal(straight, again)
    assert not torch.equal(results[0][0], results[1][0])  # in mid-stage workers differ


RESTARTED = """
import functools, pathlib, sys, codauc, workers
mark = pathlib.Path(sys.argv[1])
for _ in range(2):  # one launch after the other is not one inside the other
    print(codauc.launch(functools.partial(workers.fails_once, mark=mark), timeout=30))
"""


def test_workers_that_torchrun_starts_again_find_each_other(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(RESTARTED)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *torchrun, "--max-restarts=1", script, tmp_path / "mark"],
        env={**CLEAN, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "".join(done.stdout.split()) == "[5][5][5][5]"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "2"}, "RANK=2 and WORLD_SIZE=2"),
        ({"RANK": "-1"}, "RANK=-1"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT=99999: expected a port"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT='x'"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR=''"),
        ({"MASTER_ADDR": "no.such.host.invalid"}, "does not know it"),
    ],
)
def test_nonsense_in_the_environment_is_refused_at_once(variables, message, monkeypatch):
    usual = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in {**usual, **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        codauc.distributed(timeout=30)


def test_more_processes_than_a_machine_can_bear_are_refused_before_one_is_started():
    with pytest.raises(ValueError, match=r"workers=1000000: expected at most \d+ processes"):
        codauc.launch(print, workers=1_000_000)
