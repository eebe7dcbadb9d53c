"""Peak memory of training, each in a process of its own, less what it has after its imports.

    python -m benchmarks.memory ours      # prints bytes; so does theirs

The system's own count is read: VmHWM and VmRSS of /proc/self/status.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
from functools import cache, partial
from itertools import repeat
from pathlib import Path

import torch
from torch import nn

import codauc
from benchmarks.measuring import Benchmark, Missing, Options, Pairs, status
from benchmarks.peers import POSITIVE, batch, bce_step
from codauc.models import ResNet20, ResNet50
from codauc.workers import Group, LocalGroup

STEPS, BATCH = 6, 8


def network(*, short: bool) -> nn.Module:
    """A ResNet-50, 23.5 million parameters; its activations at 32 pixels are small beside them."""
    return ResNet20() if short else ResNet50()


def train_ours(group: Group, *, short: bool) -> int:
    """A stage with PPDSG and CoDA: rounds, the average of iterates, the estimate of alpha."""
    begin = _begin()
    model, loss = network(short=short), codauc.MinMaxAUCLoss(pos_ratio=POSITIVE)
    opt = codauc.PPDSG(model, loss, lr=0.01)
    stage = codauc.Stage(lr=0.01, steps=STEPS, sync_every=2, dual_samples=BATCH)
    for x, y in codauc.CoDA(opt, group).stage(stage, repeat(batch(BATCH, 3, 32, 32))):
        opt.zero_grad()
        loss(model(x), y).backward()
        opt.step()
    return status("VmHWM") - begin


def train_theirs(*, short: bool) -> int:
    """SGD with momentum, beside two copies of the parameters: an anchor and an average."""
    begin = _begin()
    model = network(short=short)
    copies = [[p.detach().clone() for p in model.parameters()] for _ in range(2)]
    step = bce_step(model, *batch(BATCH, 3, 32, 32))
    for _ in range(STEPS):
        step()
    del copies
    return status("VmHWM") - begin


def _begin() -> int:
    """What the process has when all is loaded that a first step loads."""
    torch.set_num_threads(1)
    bce_step(ResNet20(), *batch(2, 3, 32, 32))()
    gc.collect()
    return status("VmRSS")


def peaks(options: Options) -> list[int]:
    """Of ours and of theirs, side by side, each in a fresh process."""
    short = ["--short"] if options.short else []
    command, root = [sys.executable, "-m", "benchmarks.memory", *short], Path(__file__).parents[1]
    running = [
        subprocess.Popen([*command, who], stdout=subprocess.PIPE, cwd=root)
        for who in ("ours", "theirs")
    ]
    return [int(each.communicate()[0]) for each in running]


@cache
def alone(options: Options) -> Pairs:
    """One worker, measured once for both benchmarks."""
    if not Path("/proc/self/status").exists():
        raise Missing("this system has no /proc/self/status to read peak memory from")
    found = [peaks(options) for _ in range(1 if options.short else 5)]
    return Pairs([ours for ours, _ in found], [theirs for _, theirs in found])


def together(options: Options) -> Pairs:
    """Two workers, the larger of their peaks, against the same."""
    theirs, work = alone(options).theirs, partial(train_ours, short=options.short)
    return Pairs([max(codauc.launch(work, workers=2)) for _ in theirs], theirs)


_THEIRS = "SGD with momentum, with two copies of the parameters"
BENCHMARKS = [
    Benchmark(
        "memory/one-worker",
        "peak of PPDSG and CoDA, ResNet-50 at 32 pixels, batch 8",
        _THEIRS,
        alone,
        1.10,
        unit="bytes",
    ),
    Benchmark(
        "memory/two-workers",
        "peak of one of 2 gloo processes that do so",
        _THEIRS,
        together,
        1.10,
        unit="bytes",
    ),
]


def main() -> None:
    """Train, and print the peak."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("who", choices=("ours", "theirs"))
    parser.add_argument("--short", action="store_true")
    asked = parser.parse_args()
    ours = asked.who == "ours"
    print(train_ours(LocalGroup(), short=asked.short) if ours else train_theirs(short=asked.short))


if __name__ == "__main__":
    main()
