"""Simulated workers in one process, against as many times what one worker takes."""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import Tensor

import codauc
from benchmarks.measuring import Benchmark, Options, Pairs, no_collector
from benchmarks.peers import POSITIVE, mlp
from codauc.data import Batches, even_shards
from codauc.workers import Group

WORKERS = 16
PERIOD = 64  # steps from round to round
_SAMPLES = 1024  # of each worker


def data() -> tuple[Tensor, Tensor, list[Tensor]]:
    """Inputs, labels, and the rows of each worker."""
    torch.manual_seed(0)
    count = WORKERS * _SAMPLES
    return torch.randn(count, 64), torch.rand(count) < POSITIVE, even_shards(count, WORKERS, seed=0)


def train(group: Group, size: int, steps: int) -> tuple[float, float]:
    """When the stage began and ended on this worker; all models are made before it begins."""
    torch.set_num_threads(1)  # a simulated worker is a thread, with a number of its own
    x, y, shards = data()
    model, loss = mlp(), codauc.MinMaxAUCLoss(pos_ratio=POSITIVE)
    opt = codauc.PPDSG(model, loss, lr=0.01)
    own = Batches(x, y, batch_size=size, worker=group.rank, rows=shards[group.rank])
    coda = codauc.CoDA(opt, group)
    stage = codauc.Stage(lr=0.01, steps=steps, sync_every=PERIOD, dual_samples=1)
    begin = time.perf_counter()
    for inputs, labels in coda.stage(stage, own):
        opt.zero_grad()
        loss(model(inputs), labels).backward()
        opt.step()
    return begin, time.perf_counter()


def in_turn(workers: int, size: int, steps: int) -> float:
    """Seconds of a step of all workers, one after the other."""
    run = partial(train, size=size, steps=steps)
    times = codauc.launch(run, workers=workers, simulate=True)
    return (max(end for _, end in times) - min(begin for begin, _ in times)) / steps


def measure(options: Options, size: int) -> Pairs:
    """All workers, then one of them, again and again."""
    steps, ours, theirs = 8 if options.short else 2 * PERIOD, [], []
    with no_collector():
        for _ in range(options.times(9)):
            ours.append(in_turn(WORKERS, size, steps))
            theirs.append(WORKERS * in_turn(1, size, steps))
    return Pairs(ours, theirs)


BENCHMARKS = [
    Benchmark(
        "simulated/mlp-16-threads-128",
        f"a step of 16 simulated workers in turn (launch), batch 128 each, I = {PERIOD}",
        "16 times the step of one worker",
        partial(measure, size=128),
    ),
]
