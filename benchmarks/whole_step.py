"""A whole step of training: gradients cleared, forward, loss, backward, optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import repeat

import torch
from torch import Tensor, nn

import codauc
from benchmarks.measuring import Benchmark, Options, Pairs, alternate
from benchmarks.peers import POSITIVE, batch, bce_step, libauc_step, mlp, our_step, step_in
from codauc.models import ResNet20
from codauc.workers import Group

Step = Callable[[nn.Module, Tensor, Tensor], Callable[[], None]]

_FOREVER = 10**9


def resnet20() -> nn.Module:
    """The paper's smaller network."""
    torch.manual_seed(0)
    return ResNet20()


# The network, the shape of its inputs, the batch size, and pairs of runs.
NETWORKS = {"mlp": (mlp, (64,), 128, 150), "resnet20": (resnet20, (3, 32, 32), 32, 30)}


def coda_step(
    model: nn.Module, x: Tensor, y: Tensor, group: Group | None = None
) -> Callable[[], None]:
    """Our step inside a stage of CoDA, from which it takes its batch."""
    loss = codauc.MinMaxAUCLoss(pos_ratio=POSITIVE)
    opt = codauc.PPDSG(model, loss, lr=0.01)
    batches = codauc.CoDA(opt, group).stage(
        codauc.Stage(lr=0.01, steps=_FOREVER, sync_every=64), repeat((x, y))
    )
    return step_in(batches, model, loss, opt)


def measure(options: Options, network: str, ours: Step, theirs: Step) -> Pairs:
    """Both on the same batch, with networks of their own that begin alike."""
    make, shape, size, repeats = NETWORKS[network]
    x, y = batch(4 if options.short else size, *shape)
    other = theirs(make(), x, y)
    return alternate(ours(make(), x, y), other, options.times(repeats))


def _benchmark(
    network: str,
    theirs: tuple[str, str, Step],
    goal: float | None = None,
    ours: tuple[str, str, Step] = ("", "a step with MinMaxAUCLoss and PPDSG", our_step),
) -> Benchmark:
    run = partial(measure, network=network, ours=ours[2], theirs=theirs[2])
    size = NETWORKS[network][2]
    return Benchmark(
        f"step/{network}{ours[0]}-{theirs[0]}", f"{ours[1]}, batch {size}", theirs[1], run, goal
    )


_BCE = ("bce", "a step with cross-entropy and torch SGD(momentum=0.9)", bce_step)
_LIBAUC = ("libauc", "a step with LibAUC's AUCMLoss and PESG", libauc_step)
_CODA = ("-coda", "a step of both inside CoDA(opt).stage(...)", coda_step)

BENCHMARKS = [
    _benchmark("mlp", _BCE, 1.10),
    _benchmark("resnet20", _BCE, 1.02),
    _benchmark("mlp", _LIBAUC),
    _benchmark("resnet20", _LIBAUC),
    _benchmark("mlp", _BCE, ours=_CODA),
    _benchmark("resnet20", _BCE, ours=_CODA),
]
