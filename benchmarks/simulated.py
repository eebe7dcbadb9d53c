"""Simulated workers in one process, against as many times what one worker takes."""

from __future__ import annotations

import time
from itertools import repeat

import torch

import codauc
from benchmarks.measuring import Benchmark, Options, Pairs, no_collector
from benchmarks.peers import POSITIVE, batch, mlp
from codauc.group import Group

WORKERS = 16


def train(group: Group, steps: int) -> tuple[float, float]:
    """When the stage began and ended on this worker; all models are made before it begins."""
    torch.set_num_threads(1)  # a simulated worker is a thread, with a number of its own
    model, loss = mlp(), codauc.MinMaxAUCLoss(pos_ratio=POSITIVE)
    opt = codauc.PPDSG(model, loss, lr=0.01)
    coda = codauc.CoDA(opt, group)
    stage = codauc.Stage(lr=0.01, steps=steps, sync_every=64, dual_samples=1)
    begin = time.perf_counter()
    for x, y in coda.stage(stage, repeat(batch(128, 64))):
        opt.zero_grad()
        loss(model(x), y).backward()
        opt.step()
    return begin, time.perf_counter()


def in_turn(workers: int, steps: int) -> float:
    """Seconds of a step of all workers, simulated one after the other."""
    times = codauc.launch(lambda group: train(group, steps), workers=workers, simulate=True)
    return (max(end for _, end in times) - min(begin for begin, _ in times)) / steps


# The place for the batched interface: `batched(workers, steps)`, which like `in_turn` returns the
# seconds of a step of all workers. Set `simulate = batched` then; the goal is for this one.
simulate = in_turn


def measure(options: Options) -> Pairs:
    """All workers, then one of them, again and again."""
    steps, ours, theirs = 8 if options.short else 128, [], []
    with no_collector():
        for _ in range(options.times(9)):
            ours.append(simulate(WORKERS, steps))
            theirs.append(WORKERS * in_turn(1, steps))
    return Pairs(ours, theirs)


BENCHMARKS = [
    Benchmark(
        "simulated/mlp-16-workers",
        "a step of 16 simulated workers, batch 128 each, I = 64",
        "16 times the step of one worker",
        measure,
        0.5,
    )
]
