"""Simulated workers in one process, against as many times what one worker takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import codauc
from benchmarks.measuring import Benchmark, Options, Pairs, alternate, no_collector
from benchmarks.peers import POSITIVE, mlp, step_in
from codauc.data import Batches, even_shards
from codauc.group import Group
from codauc.stack import Stack, stacked

WORKERS = 16
SIZES = (8, 32, 128)
PERIOD = 64  # steps from round to round, and of one timing
_FOREVER = 10**9
_SAMPLES = 1024  # of each worker


def data() -> tuple[Tensor, Tensor, list[Tensor]]:
    """Inputs, labels, and which of them each worker has."""
    torch.manual_seed(0)
    count = WORKERS * _SAMPLES
    return torch.randn(count, 64), torch.rand(count) < POSITIVE, even_shards(count, WORKERS, seed=0)


def _stage(steps: int = _FOREVER) -> codauc.Stage:
    return codauc.Stage(lr=0.01, steps=steps, sync_every=PERIOD, dual_samples=1)


def at_once(size: int) -> Callable[[], None]:
    """A step of all workers as one model, with what draws their batches."""
    x, y, shards = data()
    stack = Stack(mlp(), workers=WORKERS)
    loss = stack.loss(pos_ratio=POSITIVE)
    opt = codauc.PPDSG(stack, loss, lr=0.01)
    own = [Batches(x, y, batch_size=size, worker=k, rows=rows) for k, rows in enumerate(shards)]
    batches = codauc.CoDA(opt).stage(_stage(), stacked(own))
    return step_in(batches, stack, loss, opt)


def alone(size: int) -> Callable[[], None]:
    """A step of one worker, with what draws its batches."""
    x, y, shards = data()
    model, loss = mlp(), codauc.MinMaxAUCLoss(pos_ratio=POSITIVE)
    opt = codauc.PPDSG(model, loss, lr=0.01)
    own = Batches(x, y, batch_size=size, rows=shards[0])
    batches = codauc.CoDA(opt).stage(_stage(), own)
    return step_in(batches, model, loss, opt)


def products(size: int, workers: int) -> Callable[[], None]:
    """The products of matrices that a step of so many workers cannot do without, and nothing else.

    Three layers forward, their weights' gradients, and the inputs' but for the first.
    """
    layers = []
    for inputs, outputs in ((64, 256), (256, 256), (256, 1)):
        x, w = torch.randn(workers, size, inputs), torch.randn(workers, outputs, inputs)
        g = torch.randn(workers, size, outputs)
        layers.append((x, w, g, torch.empty_like(x), torch.empty_like(w), torch.empty_like(g)))

    def run() -> None:
        for x, w, _, _, _, h in layers:
            torch.bmm(x, w.transpose(1, 2), out=h)
        for number, (x, w, g, of_x, of_w, _) in enumerate(layers):
            torch.bmm(g.transpose(1, 2), x, out=of_w)
            if number:
                torch.bmm(g, w, out=of_x)

    return run


def _times(count: int, thing: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(count):
            thing()

    return run


def measure_at_once(options: Options, size: int) -> Pairs:
    """A period of all workers' steps, then of one worker's, again and again; and the bound."""
    steps = 2 if options.short else PERIOD
    theirs = _times(WORKERS * steps, alone(size))
    found = alternate(_times(steps, at_once(size)), theirs, options.times(9))
    bound = {
        "products alone": _times(steps, products(size, WORKERS)),
        "products alone, one worker again and again": _times(steps * WORKERS, products(size, 1)),
    }
    notes = {
        name: round(alternate(thing, theirs, options.times(5)).summary()["ratio"], 3)
        for name, thing in bound.items()
    }
    return Pairs(found.ours, found.theirs, notes)


def train(group: Group, size: int, steps: int) -> tuple[float, float]:
    """When the stage began and ended on this worker; all models are made before it begins."""
    torch.set_num_threads(1)  # a simulated worker is a thread, with a number of its own
    x, y, shards = data()
    model, loss = mlp(), codauc.MinMaxAUCLoss(pos_ratio=POSITIVE)
    opt = codauc.PPDSG(model, loss, lr=0.01)
    own = Batches(x, y, batch_size=size, worker=group.rank, rows=shards[group.rank])
    coda = codauc.CoDA(opt, group)
    begin = time.perf_counter()
    for inputs, labels in coda.stage(_stage(steps), own):
        opt.zero_grad()
        loss(model(inputs), labels).backward()
        opt.step()
    return begin, time.perf_counter()


def in_turn(workers: int, size: int, steps: int) -> float:
    """Seconds of a step of all workers, one after the other."""
    run = partial(train, size=size, steps=steps)
    times = codauc.launch(run, workers=workers, simulate=True)
    return (max(end for _, end in times) - min(begin for begin, _ in times)) / steps


def measure_in_turn(options: Options, size: int) -> Pairs:
    """All workers, then one of them, again and again."""
    steps, ours, theirs = 8 if options.short else 2 * PERIOD, [], []
    with no_collector():
        for _ in range(options.times(9)):
            ours.append(in_turn(WORKERS, size, steps))
            theirs.append(WORKERS * in_turn(1, size, steps))
    return Pairs(ours, theirs)


BENCHMARKS = [
    *(
        Benchmark(
            f"simulated/mlp-16-workers-{size}",
            f"a step of 16 simulated workers as a Stack, batch {size} each, I = {PERIOD}",
            "16 times the step of one worker",
            partial(measure_at_once, size=size),
            0.5,
        )
        for size in SIZES
    ),
    Benchmark(
        "simulated/mlp-16-threads-128",
        f"a step of 16 simulated workers in turn (launch), batch 128 each, I = {PERIOD}",
        "16 times the step of one worker",
        partial(measure_in_turn, size=128),
    ),
]
