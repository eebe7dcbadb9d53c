"""Claims about simulated workers, their random streams, their errors and the ledger."""

import ast
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

import codauc
from codauc._internal.random_streams import random_state, seed_everything, set_random_state
from codauc.workers import Ledger, LocalGroup


def simulate(function, workers, **options):
    return codauc.launch(function, workers=workers, simulate=True, **options)


def meet(group):
    """A collective of no interest."""
    group.sum_(torch.zeros(1), "round")


def draw():
    """One number of each global stream."""
    return torch.rand(()).item(), float(np.random.rand()), random.random()


def alone(seed, rank, count):
    """What a worker with its streams for itself draws."""
    outside = random_state()
    seed_everything(seed, rank)
    numbers = [draw() for _ in range(count)]
    set_random_state(outside)
    return numbers


def living_workers():
    return [t.name for t in threading.enumerate() if t.name.startswith("codauc-worker")]


@pytest.fixture(autouse=True)
def _no_worker_outlives_its_test():
    yield
    assert living_workers() == []


# What the workers say to each other


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_the_order_of_ranks(workers):
    results = simulate(lambda group: (group.rank, group.size), workers)
    assert results == [(rank, workers) for rank in range(workers)]


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_sum_is_taken_in_the_order_of_ranks_and_given_to_all(workers):
    terms = [torch.randn(50) * 10.0 ** (k % 5) for k in range(workers)]
    expected = terms[0].clone()
    for term in terms[1:]:
        expected += term

    def total(group):
        mine = terms[group.rank].clone()
        group.sum_(mine, "round")
        return mine

    for result in simulate(total, workers):
        assert torch.equal(result, expected)
    if workers == 7:
        backwards = sum(reversed(terms[:-1]), start=terms[-1].clone())
        assert not torch.equal(backwards, expected)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_broadcast_gives_worker_0s_tensor(workers, dtype):
    def share(group):
        mine = torch.full((2, 3), 10 + group.rank, dtype=dtype)
        group.broadcast_(mine, "start")
        return mine

    for result in simulate(share, workers):
        assert torch.equal(result, torch.full((2, 3), 10, dtype=dtype))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_gather_gives_all_tensors_by_rank_as_copies(workers):
    def collect(group):
        mine = torch.tensor([group.rank, 7])
        gathered = group.gather(mine, "start")
        mine += 100
        meet(group)
        values = [tensor.tolist() for tensor in gathered]
        meet(group)
        gathered[0].zero_()
        return values

    for result in simulate(collect, workers):
        assert result == [[rank, 7] for rank in range(workers)]


def test_collectives_work_on_parameters_and_on_views():
    def share(group):
        weight = torch.nn.Parameter(torch.full((2, 2), float(group.rank)))
        group.sum_(weight, "round")
        matrix = torch.full((3, 3), float(group.rank))
        group.sum_(matrix[:, 1], "round")
        return weight.tolist(), matrix.tolist()

    for rank, (weight, matrix) in enumerate(simulate(share, 3)):
        assert weight == [[3, 3], [3, 3]]
        assert matrix == [[rank, 3, rank]] * 3


# One at a time


def test_one_worker_runs_at_a_time_and_hands_over_only_at_collectives():
    events = []

    def work(group):
        for phase in range(3):
            for part in range(4):
                events.append((phase, group.rank, part))
                time.sleep(0.001)  # another thread would run now if it could
            meet(group)

    simulate(work, 3)
    assert events == [(p, r, s) for p in range(3) for r in range(3) for s in range(4)]


def test_sixteen_workers_with_many_collectives_are_fast():
    def work(group):
        total = torch.zeros(1)
        for _ in range(200):
            total.fill_(1)
            group.sum_(total, "round")
        return total.item()

    start = time.perf_counter()
    assert simulate(work, 16) == [16.0] * 16
    assert time.perf_counter() - start < 60


def test_a_launch_inside_a_worker_leaves_the_outer_one_as_it_was():
    def inner(group):
        x = torch.ones(1)
        group.sum_(x, "round")
        return draw(), x.item()

    def outer(group):
        before = draw()
        results = simulate(inner, 2, seed=5)
        after = draw()
        meet(group)
        return results, [before, after]

    for rank, (results, drawn) in enumerate(simulate(outer, 3, seed=9)):
        assert results == [(alone(5, k, 1)[0], 2.0) for k in range(2)]
        assert drawn == alone(9, rank, 2)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_see_the_callers_grad_mode(workers):
    with torch.no_grad():
        assert simulate(lambda group: torch.is_grad_enabled(), workers) == [False] * workers
    assert simulate(lambda group: torch.is_grad_enabled(), workers) == [True] * workers


# Random streams


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_every_worker_draws_what_it_would_draw_alone(workers):
    def work(group):
        numbers = []
        for _ in range(5):
            numbers.append(draw())
            meet(group)
        return numbers

    results = simulate(work, workers, seed=3)
    assert results == [alone(3, rank, 5) for rank in range(workers)]


def test_streams_do_not_depend_on_how_workers_interleave():
    def work(group):
        numbers = [draw()]
        meet(group)
        if group.rank == 1:  # uses up random numbers that are its own
            torch.nn.functional.dropout(torch.ones(1000))
            np.random.rand(1000)
            random.sample(range(1000), 100)
        meet(group)
        for _ in range(4):
            numbers.append(draw())
            for _ in range(3):
                meet(group)
        return numbers

    results = simulate(work, 3)
    for rank in (0, 2):
        assert results[rank] == alone(0, rank, 5)
    assert results[1][0] == alone(0, 1, 1)[0]
    assert results[1][1] != alone(0, 1, 2)[1]


def test_streams_differ_between_ranks_and_between_seeds():
    drawn = [simulate(lambda group: draw(), 4, seed=seed) for seed in (0, 1)]
    for stream in range(3):
        assert len({numbers[stream] for results in drawn for numbers in results}) == 8
    assert simulate(lambda group: draw(), 4) == drawn[0]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("fails", [False, True])
def test_the_callers_streams_are_untouched(workers, fails):
    def work(group):
        draw()
        meet(group)
        draw()
        if fails:
            raise ValueError("no")

    seed_everything(7, 0)
    expected = [draw() for _ in range(2)]
    seed_everything(7, 0)
    first = draw()
    if fails:
        with pytest.raises(ValueError, match="no"):
            simulate(work, workers)
    else:
        simulate(work, workers)
    assert [first, draw()] == expected


# Errors


class OwnError(Exception):
    """An error that only this file knows."""


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize("phase", [0, 2])
def test_error_of_any_worker_is_raised_with_its_number_and_ends_the_others(culprit, phase):
    cleaned, unreached = [], []

    def work(group):
        try:
            for t in range(4):
                if (t, group.rank) == (phase, culprit):
                    raise OwnError("broken", 42)
                meet(group)
            unreached.append(group.rank)
        finally:
            cleaned.append(group.rank)

    with pytest.raises(OwnError) as caught:
        simulate(work, 3)
    assert caught.value.args == (f"worker {culprit} of 3: broken", 42)
    assert caught.traceback[-1].name == "work"
    started = range(3) if phase else range(culprit + 1)
    assert sorted(cleaned) == list(started)
    assert unreached == []
    assert living_workers() == []


def test_the_first_of_two_errors_is_raised():
    def work(group):
        meet(group)
        try:
            if group.rank == 1:
                raise ValueError("first")
            meet(group)
        finally:
            if group.rank == 0:
                raise OwnError("second")

    with pytest.raises(ValueError, match="worker 1 of 3: first"):
        simulate(work, 3)


def test_a_collective_while_the_others_end_does_not_hang():
    def work(group):
        try:
            meet(group)
            if group.rank == 2:
                raise ValueError("broken")
            meet(group)
        finally:
            meet(group)

    with pytest.raises((ValueError, RuntimeError), match="worker 2"):
        simulate(work, 3)


@pytest.mark.parametrize(
    "error",
    [
        ValueError(),
        OSError(2, "no such file"),
        OwnError(3),
        ModuleNotFoundError("No module named 'x'"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_error_tells_the_number_in_its_message_or_in_a_note(error):
    before = str(error)

    def work(group):
        meet(group)
        if group.rank == 1:
            raise error
        meet(group)

    with pytest.raises(type(error)) as caught:
        simulate(work, 2)
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "worker 1 of 2" in told
    assert before in told


def test_error_of_a_single_worker_is_raised_as_it_is():
    def work(group):
        raise OwnError("broken")

    with pytest.raises(OwnError, match=r"^broken$"):
        simulate(work, 1)


def mismatch(odd, normal, unusual):
    """Three workers, of which `odd` does something else at the second collective."""

    def work(group):
        meet(group)
        (unusual if group.rank == odd else normal)(group)

    with pytest.raises(RuntimeError) as caught:
        simulate(work, 3)
    assert living_workers() == []
    return str(caught.value)


def total(shape=(4,), dtype=torch.float32, kind="round"):
    return lambda group: group.sum_(torch.zeros(shape, dtype=dtype), kind)


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_a_worker_that_returns_early_is_named_together_with_one_that_waits(odd):
    message = mismatch(odd, total(), lambda group: None)
    assert f"worker {odd} has returned" in message
    waiting = 1 if odd == 0 else 0
    assert f"worker {waiting} waits in sum_([4] torch.float32)" in message
    assert "same steps" in message


@pytest.mark.parametrize("odd", [0, 1, 2])
@pytest.mark.parametrize(
    ("unusual", "word"),
    [
        (lambda group: group.broadcast_(torch.zeros(4), "round"), "broadcast_([4]"),
        (lambda group: group.gather(torch.zeros(4), "round"), "gather([4]"),
        (total(shape=(5,)), "[5]"),
        (total(shape=(2, 2)), "[2, 2]"),
        (total(dtype=torch.float64), "torch.float64"),
        (total(kind="dual"), "'dual'"),
    ],
    ids=["broadcast", "gather", "size", "shape", "dtype", "kind"],
)
def test_calls_that_do_not_match_name_both_workers(odd, unusual, word):
    message = mismatch(odd, total(), unusual)
    assert word in message
    assert "sum_([4] torch.float32) for 'round'" in message
    named = {0, 1} if odd == 0 else {0, odd}
    for rank in named:
        assert f"worker {rank} calls" in message


def test_two_workers_that_return_early_do_not_hang_the_third():
    def work(group):
        meet(group)
        if group.rank == 1:
            meet(group)

    with pytest.raises(RuntimeError, match="worker 0 has returned while worker 1 waits"):
        simulate(work, 3)


INTERRUPTED = """
import sys, threading, time
import torch
import codauc

loop, looping = sys.argv[1], int(sys.argv[2])
events = []

def python_loop(group):
    n = 0
    while True:
        n += 1

def torch_loop(group):
    x = torch.ones(200, 200)
    while True:
        x = (x @ x).clamp(max=1)

def collectives(group):
    x = torch.ones(1)
    while True:
        group.sum_(x, "round")

def nested(group):
    codauc.launch(python_loop, workers=2, simulate=True)

def work(group):
    try:
        group.sum_(torch.ones(1), "round")
        if group.rank == looping:
            print("ready", flush=True)
        if group.rank == looping or loop == "collectives":
            globals()[loop](group)
        group.sum_(torch.ones(1), "round")
    finally:
        events.append(group.rank)
        time.sleep(0.05)
        events.append(group.rank)

torch.set_num_threads(1)
try:
    codauc.launch(work, workers=3, simulate=True)
except KeyboardInterrupt:
    print(events)
    print([t.name for t in threading.enumerate() if t.name.startswith("codauc")], flush=True)
"""


def listen():
    """Let a child hear SIGINT even where the parent ignores it, as background jobs do."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def interrupt(loop, rank):
    """Send Ctrl-C to worker `rank` in a loop; return the order of clean-ups and who still lives."""
    command = [sys.executable, "-c", INTERRUPTED, loop, str(rank)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=listen) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            pytest.fail("still running 60 s after the interrupt")
        finally:
            process.kill()
    assert process.returncode == 0
    events, alive = map(ast.literal_eval, output.splitlines())
    return events, alive


@pytest.mark.parametrize(
    ("loop", "rank"),
    [("python_loop", 0), ("python_loop", 2), ("torch_loop", 1), ("collectives", 0), ("nested", 1)],
)
def test_interrupt_ends_all_workers_and_their_finally_blocks_run(loop, rank):
    events, alive = interrupt(loop, rank)
    assert sorted(events) == [0, 0, 1, 1, 2, 2]
    assert alive == []


def test_workers_clean_up_one_at_a_time_after_an_interrupt():
    events, _ = interrupt("python_loop", 2)
    assert events[0::2] == events[1::2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 2, "timeout": 0}, "timeout=0: expected a number > 0"),
        ({"workers": 0}, "workers=0: expected an integer >= 1"),
        ({"workers": 2.5, "simulate": True}, "workers=2.5: expected an integer"),
        ({"workers": True}, "workers=True: expected an integer"),
        ({"workers": 2, "simulate": True, "seed": -1}, "seed=-1: expected an integer >= 0"),
        ({"worker": 2}, "unknown argument 'worker': did you mean 'workers'"),
        ({"workers": 2, "simulated": True}, "did you mean 'simulate'"),
    ],
    ids=str,
)
def test_launch_refuses_bad_arguments_before_it_runs_anything(options, message):
    ran = []
    with pytest.raises(ValueError, match=message):
        codauc.launch(ran.append, **options)
    assert ran == []


def test_launch_takes_one_worker_by_default():
    assert codauc.launch(lambda group: (type(group), group.size)) == [(LocalGroup, 1)]


# The ledger


def parent(rank):
    """Who passes a broadcast on to this worker: its number without the highest bit."""
    return rank - (1 << (rank.bit_length() - 1))


@pytest.mark.parametrize("workers", [2, 3, 16])
def test_ledger_counts_calls_by_kind_and_bytes_of_a_ring(workers):
    def work(group):
        for _ in range(3):
            group.sum_(torch.zeros(48, dtype=torch.float64), "round")
        group.sum_(torch.zeros(12), "dual")
        group.broadcast_(torch.zeros(10), "start")
        group.gather(torch.zeros(5, dtype=torch.int64), "start")
        return group.ledger

    for rank, ledger in enumerate(simulate(work, workers)):
        assert ledger.rounds == ledger.calls("round") == 3
        assert ledger.calls("dual") == 1
        assert ledger.calls("start") == 2
        assert ledger.calls("other") == 0
        ring = 2 * (workers - 1) / workers
        rounds, dual, start = (ledger.tallies[kind] for kind in ("round", "dual", "start"))
        assert rounds.sent == rounds.received == 3 * ring * 48 * 8
        assert dual.sent == dual.received == ring * 12 * 4
        others = (workers - 1) * 40
        children = [k for k in range(rank + 1, workers) if parent(k) == rank]
        assert start.sent == others + len(children) * 40
        assert start.received == others + (0 if rank == 0 else 40)
        assert ledger.bytes_sent == rounds.sent + dual.sent + start.sent
        assert ledger.bytes_received == rounds.received + dual.received + start.received
        assert all(tally.seconds > 0 for tally in ledger.tallies.values())


def test_a_single_worker_communicates_nothing():
    group = LocalGroup()
    tensor = torch.tensor([1.0, 2.0])
    group.sum_(tensor, "round")
    group.broadcast_(tensor, "start")
    gathered = group.gather(tensor, "start")
    gathered[0].zero_()
    assert tensor.tolist() == [1.0, 2.0]
    assert (group.ledger.rounds, group.ledger.bytes_sent, group.ledger.tallies) == (0, 0, {})


def test_ledger_survives_saving():
    ledger, other = Ledger(), Ledger()
    ledger.add("round", sent=6, received=7, seconds=0.5)
    ledger.add("dual", sent=1, received=2, seconds=0.25)
    state = ledger.state_dict()
    ledger.add("round", sent=100, received=100, seconds=1.0)
    other.load_state_dict(state)
    assert (other.rounds, other.bytes_sent, other.bytes_received) == (1, 7, 9)
    assert other.tallies["dual"].seconds == 0.25
    other.add("round", sent=1, received=1, seconds=1.0)
    assert state["tallies"]["round"]["calls"] == 1


def test_processes_are_not_launched_inside_a_simulated_worker():
    def work(group):
        return codauc.launch(float, workers=2)

    with pytest.raises(RuntimeError, match="inside a worker of another launch"):
        codauc.launch(work, workers=2, simulate=True)
