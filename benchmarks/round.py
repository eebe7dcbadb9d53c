"""What a communication round costs, as ratios of things that alternate in one run.

    python -m benchmarks.round [--floats 25000000] [--workers 2 4] [--repeats 20]

A plain round against copying the vector once and a bare all_reduce of the same bytes, on real
processes of this machine over gloo; beside it the ratio to the bare all_reduce alone, and what a
compressed round takes. The suite also asks how a round grows with parameters and with tensors.
Times alone mean nothing on a shared machine; the ratios do.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import codauc
from benchmarks.measuring import Benchmark, Options, Pairs, no_collector
from codauc.algorithm.rounds import Averager
from codauc.workers import Group

Seconds = dict[str, list[float]]
MILLION = 1_000_000


class Vector(nn.Module):
    """A model of so many numbers, in so many tensors."""

    def __init__(self, floats: int, tensors: int = 160) -> None:
        super().__init__()
        sizes = [floats // tensors] * tensors
        sizes[0] += floats - sum(sizes)
        self.parts = nn.ParameterList(nn.Parameter(torch.randn(size)) for size in sizes)


def averager(group: Group, model: nn.Module, compress: str | None = None) -> Averager:
    """What makes the rounds of a model."""
    opt = codauc.PPDSG(model, codauc.MinMaxAUCLoss(pos_ratio=0.5), average=False)
    return codauc.CoDA(opt, group, compress=compress).averager


def timed(things: dict[str, Callable[[], Any]], repeats: int) -> Seconds:
    """Seconds of each thing, alternating, on this worker; a barrier before and after each."""
    seconds: Seconds = {name: [] for name in things}
    with no_collector():
        for repeat in range(repeats + 2):
            for name, thing in things.items():
                dist.barrier()
                start = time.perf_counter()
                thing()
                dist.barrier()
                if repeat >= 2:
                    seconds[name].append(time.perf_counter() - start)
    return seconds


def bare(floats: int) -> dict[str, Callable[[], Any]]:
    """The least that a round could do."""
    vector, message = torch.randn(floats), torch.zeros(floats)

    def all_reduce() -> None:
        message.mul_(0.5)  # stays finite
        dist.all_reduce(message)

    def copy_and_all_reduce() -> None:
        message.copy_(vector)
        dist.all_reduce(message)

    return {"copy + all_reduce": copy_and_all_reduce, "all_reduce": all_reduce}


def measure(group: Group, floats: int, repeats: int) -> Seconds:
    """A round, plain and compressed, beside the bare thing."""
    torch.set_num_threads(1)
    rounds = {"round": None, "round bf16": "bf16", "round int8": "int8"}
    things = {name: averager(group, Vector(floats), way).round for name, way in rounds.items()}
    return timed({**bare(floats), **things}, repeats)


def measure_growth(group: Group, floats: int, repeats: int) -> Seconds:
    """Rounds of models of several sizes, the largest of so many floats."""
    torch.set_num_threads(1)
    small = floats // 16
    models = {
        "16M": Vector(floats),
        "4M": Vector(floats // 4),
        "1M": Vector(small),
        "1000 tensors": Vector(small, 1000),
        "1 tensor": Vector(small, 1),
    }
    things = {name: averager(group, model).round for name, model in models.items()}
    return timed({**bare(floats), **things}, repeats)


@cache
def growth(options: Options) -> Seconds:
    """Measured once for all benchmarks."""
    floats = 160_000 if options.short else 16 * MILLION
    work = partial(measure_growth, floats=floats, repeats=options.times(40))
    return codauc.launch(work, workers=2)[0]


def pairs(options: Options, ours: str, theirs: str, times: float = 1.0) -> Pairs:
    """Seconds of two things; ours may be of so many times as much."""
    seconds = growth(options)
    return Pairs([each / times for each in seconds[ours]], seconds[theirs])


BENCHMARKS = [
    Benchmark(
        "round/all-reduce",
        "a round of 16 million floats, 2 processes",
        "copying them once and a bare all_reduce",
        partial(pairs, ours="16M", theirs="copy + all_reduce"),
    ),
    Benchmark(
        "round/16M-4M",
        "a quarter of a round of 16 million floats",
        "a round of 4 million",
        partial(pairs, ours="16M", theirs="4M", times=4),
        1.5,
    ),
    Benchmark(
        "round/4M-1M",
        "a quarter of a round of 4 million floats",
        "a round of 1 million",
        partial(pairs, ours="4M", theirs="1M", times=4),
    ),
    Benchmark(
        "round/tensors",
        "a round of 1,000 tensors of 1,000 floats",
        "a round of one tensor of a million",
        partial(pairs, ours="1000 tensors", theirs="1 tensor"),
        1.15,
    ),
]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--floats", type=int, default=25_000_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args()
    for workers in options.workers:
        work = partial(measure, floats=options.floats, repeats=options.repeats)
        seconds = codauc.launch(work, workers=workers)[0]
        for ours, theirs in (
            ("round", "copy + all_reduce"),
            ("round", "all_reduce"),
            ("round bf16", "round"),
            ("round int8", "round"),
        ):
            found = Pairs(seconds[ours], seconds[theirs]).summary()
            low, high = found["spread"]
            if options.json:
                told = {"ratio": found["ratio"], "low": low, "high": high}
                print(json.dumps({"workers": workers, "ours": ours, "theirs": theirs, **told}))
            else:
                print(
                    f"{workers} workers: {ours} / ({theirs}) = {found['ratio']:.3f}   "
                    f"(middle half of ratios: {low:.3f} to {high:.3f})"
                )


if __name__ == "__main__":
    main()
