"""Samples a second of two processes over one, and beside torch's own ways of training on two."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

import codauc
from benchmarks.measuring import Benchmark, Options, Pairs
from benchmarks.peers import batch, bce_step, mlp
from benchmarks.round import Seconds, timed
from benchmarks.whole_step import coda_step
from codauc.workers import Group

WORKERS, BATCH, PERIOD = 2, 128, 64
Step = Callable[[], None]


def ddp(x: Tensor, y: Tensor) -> tuple[nn.Module, Step]:
    """Torch's data parallel training: gradients are averaged at every step."""
    model = DistributedDataParallel(mlp())
    return model, bce_step(model, x, y)


def post_local_sgd(x: Tensor, y: Tensor) -> Step:
    """Torch's local SGD as its documentation has it, local from the first step on."""
    model, target = DistributedDataParallel(mlp()), y.float()
    alone, _ = dist.new_subgroups(group_size=1)
    state = PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=0)
    model.register_comm_hook(state, post_localSGD_hook)
    local = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    opt = PostLocalSGDOptimizer(local, PeriodicModelAverager(period=PERIOD, warmup_steps=0))

    def step() -> None:
        opt.zero_grad()
        binary_cross_entropy_with_logits(model(x), target).backward()
        opt.step()

    return step


def measure(group: Group, steps: int, repeats: int) -> Seconds:
    """Seconds of so many steps of each way; what one process does, the first does by itself."""
    torch.set_num_threads(1)
    x, y = batch(BATCH, 64)
    ways: dict[str, Step] = {
        "coda": coda_step(mlp(), x, y, group),
        "coda alone": coda_step(mlp(), x, y),
        "ddp": ddp(x, y)[1],
        "bce alone": bce_step(mlp(), x, y),
        "post-local": post_local_sgd(x, y),
    }

    def run(name: str) -> None:
        if group.rank == 0 or "alone" not in name:
            for _ in range(steps):
                ways[name]()

    return timed({name: partial(run, name) for name in ways}, repeats)


@cache
def measured(options: Options) -> Seconds:
    """Samples a second of each way, measured once for all benchmarks."""
    steps = 8 if options.short else 4 * PERIOD
    work = partial(measure, steps=steps, repeats=options.times(30))
    return {
        name: [(1 if "alone" in name else WORKERS) * BATCH * steps / each for each in seconds]
        for name, seconds in codauc.launch(work, workers=WORKERS)[0].items()
    }


def pairs(options: Options, ours: str, theirs: str) -> Pairs:
    """Samples a second of two ways."""
    return Pairs(measured(options)[ours], measured(options)[theirs])


_WAYS = {
    "coda": "CoDA, I = 64, MLP, batch 128, 2 processes",
    "coda alone": "CoDA, MLP, batch 128, 1 process",
    "ddp": "SGD and cross-entropy by DDP, 2 processes",
    "post-local": "SGD and cross-entropy by PostLocalSGD, period 64, 2 processes",
    "bce alone": "SGD and cross-entropy, 1 process",
}


def _benchmark(name: str, ours: str, theirs: str, goal: float | None = None) -> Benchmark:
    run = partial(pairs, ours=ours, theirs=theirs)
    return Benchmark(
        f"scaling/{name}", _WAYS[ours], _WAYS[theirs], run, goal, unit="samples/s", higher=True
    )


BENCHMARKS = [
    _benchmark("coda-2-1", "coda", "coda alone", 1.7),
    _benchmark("ddp-2-1", "ddp", "bce alone"),
    _benchmark("post-local-2-1", "post-local", "bce alone"),
    _benchmark("coda-ddp", "coda", "ddp"),
    _benchmark("coda-post-local", "coda", "post-local"),
]
