"""What the workers of these tests do, where their processes can import it."""

import itertools
import os
import signal
import sys
import time

import numpy as np
import torch
from torch import nn

import codauc
from codauc.data import Batches, read_table
from codauc.metrics.evaluation import evaluate
from codauc.workers.group import Call

SCENARIOS = {
    "plain": {},
    "last iterate, momentum": {"opt": {"average": False, "momentum": 0.9}},
    "unknown ratio, pooled": {"pos_ratio": None, "coda": {"dual": "pooled"}},
    "bf16": {"coda": {"compress": "bf16"}},
    "int8": {"coda": {"compress": "int8"}},
    "int4": {"coda": {"compress": "int4"}},
    "int2": {"coda": {"compress": "int2"}},
    "delayed": {"coda": {"delay": 3}},
    "int8, delayed": {"coda": {"compress": "int8", "delay": 2}},
    "adaptive": {"kind": codauc.PPDAdam},
    "adaptive, int8, delayed": {
        "kind": codauc.PPDAdam,
        "coda": {"compress": "int8", "delay": 2},
    },
    "outer": {"coda": {"outer": codauc.Nesterov(0.7, 0.9)}},
    "outer, last iterate, int8, delayed": {
        "opt": {"average": False},
        "coda": {"outer": codauc.Nesterov(0.7, 0.9), "compress": "int8", "delay": 2},
    },
    "qsr": {"stage": {"sync_every": "qsr:2"}, "falling": 0.7},
    "qsr, int2, outer": {
        "stage": {"sync_every": "qsr:2"},
        "falling": 0.8,
        "coda": {"compress": "int2", "outer": codauc.Nesterov(0.9, 0.5)},
    },
    "auto": {"stage": {"sync_every": "auto"}},  # the third stage tries the link, then has rounds
    "corrected": {"coda": {"correct": "scaffold"}},
    "corrected, adaptive, int8, outer": {
        "kind": codauc.PPDAdam,
        "coda": {
            "correct": "scaffold",
            "compress": "int8",
            "outer": codauc.Nesterov(0.9, 0.5),
        },
    },
    "by samples, some away": {"coda": {"weight": "samples", "present": codauc.Present(0.6, 3)}},
    "by samples, some away, corrected, int2": {
        "kind": codauc.PPDAdam,
        "coda": {
            "weight": "samples",
            "present": codauc.Present(0.6, 5),
            "correct": "scaffold",
            "compress": "int2",
        },
    },
    "own statistics": {"coda": {"norm": "local"}, "opt": {"momentum": 0.3}},
    "inner": {"stage": {"local_every": 2}},
    "inner, delayed": {"stage": {"local_every": 2}, "coda": {"delay": 3}},
}


class Net(nn.Module):
    """A network with statistics and with random numbers."""

    def __init__(self, columns=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(columns, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, x):
        return self.head(self.body(x))


def shard(rank, dtype, size=60):
    """A worker's data, with both classes."""
    generator = torch.Generator().manual_seed(1 + rank)
    y = torch.arange(size) % (3 + rank % 2) == 0
    return torch.randn(size, 3, dtype=dtype, generator=generator) + y[:, None], y


def batches(x, y, size=5):
    """Endless batches in a fixed order."""
    for start in itertools.cycle(range(0, len(x), size)):
        yield x[start : start + size], y[start : start + size]


class FixedClock:
    """Steps of a hundredth of a second, wherever they run."""

    seconds = 0.01

    def start(self):
        """A step begins."""

    def stop(self):
        """It has ended."""


def train(
    group,
    stages,
    dtype,
    *,
    pos_ratio=0.3,
    opt=None,
    coda=None,
    stage=None,
    kind=codauc.PPDSG,
    falling=1.0,
):
    """Train by the engine; return everything that should be equal however the workers run."""
    del stage
    torch.manual_seed(100 + group.rank)
    model, loss = Net().to(dtype), codauc.MinMaxAUCLoss(pos_ratio=pos_ratio).to(dtype)
    optimizer = kind(model, loss, lr=0.3, gamma=2.0, **(opt or {}))
    shards = [(60 + 20 * rank, 15) for rank in range(group.size)]
    engine = codauc.CoDA(optimizer, group, shards=shards, **(coda or {}))
    if stages[0].sync_every == "auto":  # times that are equal in every process
        engine.schedule.clock = FixedClock()
        group.ledger.seconds = lambda *_: 0.0015 * sum(map(group.ledger.calls, ("start", "round")))
    x, y = shard(group.rank, dtype)
    source = batches(x, y)
    for each in stages:
        for features, labels in engine.stage(each, source):
            optimizer.zero_grad()
            loss(model(features), labels).backward()
            optimizer.step()
            for parameters in optimizer.param_groups:
                parameters["lr"] = 0.3 * falling ** (optimizer.steps % each.steps)
    group.ledger.__dict__.pop("seconds", None)
    tensors = {**model.state_dict(), **loss.state_dict()}
    tensors |= {f"average {i}": tensor for i, tensor in enumerate(optimizer.result)}
    ledger = group.ledger.state_dict()["tallies"]
    counted = {kind: [t["calls"], t["sent"], t["received"]] for kind, t in ledger.items()}
    return {name: tensor.clone() for name, tensor in tensors.items()}, counted


def stages_of(scenario):
    """Three stages of four steps and more, so that rounds fall on and between stages' ends."""
    options = {"sync_every": 4, **scenario.get("stage", {})}
    return codauc.geometric(0.3, 10, 3, factor=1.5, dual_samples=12, **options)


def all_scenarios(group):
    """Every scenario, in float64 over three stages and in float32 over one round."""
    results = {}
    for name, scenario in SCENARIOS.items():
        results[name] = train(group, stages_of(scenario), torch.float64, **scenario)
        first = codauc.Stage(0.3, 4, 4, 12)
        quick = {**scenario, "coda": {**scenario.get("coda", {})}}
        quick["coda"].pop("delay", None)
        results[name, "float32"] = train(group, [first], torch.float32, **quick)
    return results


def evaluations(group):
    """The AUC of shards of length 0, 7, 14, ... of one set, exact and with a tolerance."""
    x, y = whole_set(group.size)
    start = 7 * group.rank * (group.rank - 1) // 2
    mine = slice(start, start + 7 * group.rank)
    model = nn.Linear(3, 1)
    for parameter in model.parameters():
        parameter.data.fill_(1.0)
    exact = evaluate(model, x[mine], y[mine], group=group)
    return exact, evaluate(model, x[mine], y[mine], group=group, tolerance=0.01)


def whole_set(workers):
    """All samples of `evaluations`, with ties."""
    generator = torch.Generator().manual_seed(3)
    size = 7 * workers * (workers - 1) // 2
    x = torch.randint(-3, 3, (size, 3), generator=generator).float()
    return x, torch.arange(size) % 4 == 0


def where(group):
    """Who and where a worker is."""
    total = torch.ones(1)
    group.machine().sum_(total, "inner")
    return group.rank, group.size, torch.get_num_threads(), torch.rand(()).item(), total.item()


def model_of_worker_0(group):
    """A result that shares one vector among many tensors."""
    model, loss = Net(), codauc.MinMaxAUCLoss(pos_ratio=0.5)
    codauc.CoDA(codauc.PPDSG(model, loss), group)
    return model


def different_models(group):
    """Worker 1 has another width of input."""
    model = Net(columns=4 if group.rank == 1 else 3)
    codauc.CoDA(codauc.PPDSG(model, codauc.MinMaxAUCLoss(pos_ratio=0.5)), group)


def different_columns(group):
    """Worker 1's file has its columns in another order."""
    columns = ["age", "dose"] if group.rank == 0 else ["dose", "age"]
    opt = codauc.PPDSG(Net(), codauc.MinMaxAUCLoss(pos_ratio=0.5))
    codauc.CoDA(opt, group, settings={"columns": columns})


def meet(group):
    """A collective of no interest."""
    group.sum_(torch.zeros(3), "round")


def returns_early(group):
    """Worker 1 goes home after it has made an optimizer (torch then imports what holds groups)."""
    codauc.CoDA(codauc.PPDSG(Net(), codauc.MinMaxAUCLoss(pos_ratio=0.5)), group)
    if group.rank != 1:
        meet(group)


def raises(group):
    """Worker 1 has a problem of its own."""
    if group.rank == 1:
        raise ValueError("the file of this worker is empty")
    meet(group)


def exits(group):
    """Worker 1 calls sys.exit."""
    if group.rank == 1:
        sys.exit(0)
    meet(group)


def is_killed(group):
    """Worker 1 is killed."""
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    meet(group)


def stops(group):
    """Worker 1 no longer answers."""
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    meet(group)


def writes_pid_and_waits(group, directory):
    """Leave the process's number, then wait in a collective for a worker that sleeps."""
    (directory / str(group.rank)).write_text(str(os.getpid()))
    if group.rank == 1:
        time.sleep(600)
    meet(group)


CALLS = {  # what worker 0 and worker 1 call: method, shape, dtype, kind
    "a shorter broadcast": [
        ("broadcast_", (3,), torch.float32, "start"),
        ("broadcast_", (5,), torch.float32, "start"),
    ],
    "a longer broadcast": [
        ("broadcast_", (5,), torch.float32, "start"),
        ("broadcast_", (3,), torch.float32, "start"),
    ],
    "sizes of a sum": [
        ("sum_", (5,), torch.float32, "round"),
        ("sum_", (3,), torch.float32, "round"),
    ],
    "sizes of a gather": [
        ("gather", (50,), torch.int64, "evaluate"),
        ("gather", (70,), torch.int64, "evaluate"),
    ],
    "shapes": [
        ("sum_", (2, 3), torch.float64, "round"),
        ("sum_", (3, 2), torch.float64, "round"),
    ],
    "dtypes": [("sum_", (4,), torch.float32, "round"), ("sum_", (4,), torch.int32, "round")],
    "kinds": [("sum_", (4,), torch.float32, "round"), ("sum_", (4,), torch.float32, "dual")],
    "exchanges": [
        ("exchange", (2, 4), torch.uint8, "round"),
        ("exchange", (2, 6), torch.uint8, "round"),
    ],
}


def calls(group, case):
    """A call of this worker that is not the other one's."""
    method, shape, dtype, kind = CALLS[case][group.rank]
    tensor = torch.ones(shape, dtype=dtype)
    if method == "exchange":
        group.start(Call(method, kind, tensor, torch.zeros_like(tensor))).wait()
    else:
        getattr(group, method)(tensor, kind)


def all_different_calls(group):
    """The error of each case, in a group of its own; the tensors are as they were."""
    import torch.distributed as dist

    errors = {}
    for case in CALLS:
        inner = codauc.distributed(dist.new_group())
        try:
            calls(inner, case)
        except RuntimeError as error:
            errors[case] = str(error)
    return errors


def all_that_differs(group):
    """The errors of what workers do differently: with models, columns and launches, and in calls.

    Each is in a group of its own.
    """
    import torch.distributed as dist

    errors = {}
    for case in (different_models, different_columns, launches):
        inner = codauc.distributed(dist.new_group())
        try:
            case(inner)
        except Exception as error:
            errors[case.__name__] = type(error).__name__, str(error)
    return errors, all_different_calls(group)


def changes_size(group):
    """Worker 1's third message is shorter than the two before."""
    for size in (5, 5, 5 if group.rank == 0 else 3):
        group.sum_(torch.ones(size), "round")


def sums_or_gathers(group):
    """Worker 1 makes another kind of call."""
    if group.rank == 0:
        group.sum_(torch.ones(4), "round")
    else:
        group.gather(torch.ones(4), "round")


def launches(group):
    """A launch inside a worker."""
    simulated = codauc.launch(lambda inner: inner.size, workers=3, simulate=True)
    assert simulated == [3, 3, 3]
    codauc.launch(meet, workers=2)


def joins_what_exists(group):
    """The default group, and a subgroup of this worker alone."""
    import torch.distributed as dist

    values = []
    alone = [dist.new_group([rank]) for rank in range(group.size)][group.rank]
    for process_group in (None, alone):
        inner = codauc.distributed(process_group)
        total = torch.ones(1)
        inner.sum_(total, "round")
        values.append(total.item())
        inner.close()
    meet(group)
    return values


def one_is_slow(group):
    """Worker 1 comes late to four rounds; the first two of a run carry no times of others."""
    opt = codauc.PPDSG(Net(), codauc.MinMaxAUCLoss(pos_ratio=0.5))
    engine = codauc.CoDA(opt, group)
    for _ in range(5):
        time.sleep(0.2 * group.rank)
        engine.averager.round()
    return group.ledger.record()


def rolls_back(group):
    """A state that is loaded while a later round is under way: as if the run had not gone on."""
    results = []
    for straight in (True, False):
        torch.manual_seed(0)
        model, loss = Net().double(), codauc.MinMaxAUCLoss(pos_ratio=0.3).double()
        opt = codauc.PPDSG(model, loss, lr=0.3, gamma=2.0)
        engine = codauc.CoDA(opt, group, compress="int8", delay=5)
        source = list(itertools.islice(batches(*shard(group.rank, torch.float64)), 30))
        saved, again = None, not straight
        for position in itertools.chain(
            range(22), [None] if again else [], range(17 * again or 22, 30)
        ):
            if position is None:
                engine.load_state_dict(saved)
                continue
            step(engine, opt, source[position])
            if opt.steps == 17:
                saved = engine.state_dict()
        results.append(torch.cat([tensor.detach().flatten() for tensor in opt.trained.tensors()]))
    return results


LONG = codauc.Stage(0.3, 40, 10, 8)


def step(engine, opt, batch):
    """One step of a stage, which is then left."""
    for x, y in engine.stage(LONG, [batch]):
        opt.zero_grad()
        opt.loss(opt.model(x), y).backward()
        opt.step()
        break


def fails_once(group, mark):
    """The last worker is killed in the first try; return how often a round was made since."""
    opt = codauc.PPDSG(Net(), codauc.MinMaxAUCLoss(pos_ratio=0.5))
    engine = codauc.CoDA(opt, group)
    for _ in range(5):
        engine.averager.round()
        if group.rank == group.size - 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return group.ledger.rounds


def anonymous_memory():
    with open("/proc/self/status", encoding="utf-8") as file:
        line = next(line for line in file if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def anonymous_memory_of_reading(group, path, target):
    """How much more memory a worker holds after reading, and the number of its rows."""
    warm = read_table(np.zeros((4, 2)), np.array([0, 1, 0, 1]))  # what is imported is no data
    import pyarrow.parquet

    del warm, pyarrow
    before = anonymous_memory()
    table = read_table(path, target, group=group, memory=0)
    batches = Batches(table.x, table.y, 128, worker=group.rank)
    for _ in range(50):
        next(batches)
    return anonymous_memory() - before, len(table.rows)
