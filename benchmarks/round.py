"""What a communication round costs, as ratios of things that alternate in one run.

    python benchmarks/round.py [--floats 25000000] [--workers 2 4] [--repeats 20]

A plain round against copying the vector once and a bare all_reduce of the same bytes, on real
processes of this machine over gloo; beside it the ratio to the bare all_reduce alone, and what a
compressed round takes. Times alone mean nothing on a shared machine; the ratios do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

import codauc
from codauc.averaging import Averager
from codauc.group import Group


class Vector(nn.Module):
    """A model of so many numbers, in tensors of the sizes of a ResNet's."""

    def __init__(self, floats: int) -> None:
        super().__init__()
        sizes = [floats // 160] * 160
        sizes[0] += floats - sum(sizes)
        self.parts = nn.ParameterList(nn.Parameter(torch.randn(size)) for size in sizes)


def measure(group: Group, floats: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each thing, alternating; a barrier before and after each."""
    vector, message = torch.randn(floats), torch.zeros(floats)

    def averager(compress: str | None) -> Averager:
        loss = codauc.MinMaxAUCLoss(pos_ratio=0.5)
        opt = codauc.PPDSG(Vector(floats), loss, average=False)
        return codauc.CoDA(opt, group, compress=compress).averager

    def copy_and_all_reduce() -> None:
        message.copy_(vector)
        dist.all_reduce(message)

    def all_reduce() -> None:
        dist.all_reduce(message)

    things: dict[str, Callable[[], None]] = {
        "copy + all_reduce": copy_and_all_reduce,
        "all_reduce": all_reduce,
        "round": averager(None).round,
        "round bf16": averager("bf16").round,
        "round int8": averager("int8").round,
    }
    seconds: dict[str, list[float]] = {name: [] for name in things}
    for repeat in range(repeats + 2):
        for name, thing in things.items():
            message.zero_()
            dist.barrier()
            start = time.perf_counter()
            thing()
            dist.barrier()
            if repeat >= 2:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """The ratio of the medians, and the spread of the ratios of neighbours in time."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    quarter = len(ratios) // 4
    return {
        "ratio": statistics.median(ours) / statistics.median(theirs),
        "low": ratios[quarter],
        "high": ratios[-1 - quarter],
    }


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
            found = ratio(seconds[ours], seconds[theirs])
            if options.json:
                print(json.dumps({"workers": workers, "ours": ours, "theirs": theirs, **found}))
            else:
                print(
                    f"{workers} workers: {ours} / ({theirs}) = {found['ratio']:.3f}   "
                    f"(middle half of ratios: {found['low']:.3f} to {found['high']:.3f})"
                )


if __name__ == "__main__":
    main()
