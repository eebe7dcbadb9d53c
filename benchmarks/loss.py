"""The loss, forward and backward to the logits and to a, b and alpha."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import codauc
from benchmarks.measuring import Benchmark, Options, Pairs, alternate
from benchmarks.peers import POSITIVE, batch, libauc

Loss = Callable[[Tensor, Tensor], Tensor]

SIZES = (32, 128, 1024, 8192, 65536)


def there_and_back(loss: Loss, labels: Tensor, *own: Tensor) -> Callable[[], None]:
    """Logits to a value and back; their gradient, and those of `own`, are thrown away."""
    logits = torch.randn(len(labels), requires_grad=True)
    leaves = [logits, *own]

    def run() -> None:
        for leaf in leaves:
            leaf.grad = None
        loss(logits, labels).backward()

    return run


def ours(labels: Tensor) -> Callable[[], None]:
    """F, with the labels as they are."""
    loss = codauc.MinMaxAUCLoss(pos_ratio=POSITIVE)
    loss.has_optimizer = True  # as in training
    return there_and_back(loss, labels, loss.sums)


def bce(labels: Tensor) -> Callable[[], None]:
    """Cross-entropy, which needs labels as floats."""
    return there_and_back(binary_cross_entropy_with_logits, labels.float())


def aucm(labels: Tensor) -> Callable[[], None]:
    """LibAUC's loss; its sigmoid is outside of it."""
    loss = libauc().loss()

    def run(logits: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = loss(logits.sigmoid(), labels)
        return value

    return there_and_back(run, labels.float(), loss.a, loss.b, loss.alpha)


def measure(
    options: Options,
    size: int,
    theirs: Callable[[Tensor], Callable[[], None]],
    dtype: torch.dtype = torch.bool,
) -> Pairs:
    """Both on the same labels."""
    labels = batch(size)[1]
    other = theirs(labels)
    return alternate(ours(labels.to(dtype)), other, options.times(100))


_OURS = "MinMaxAUCLoss(pos_ratio=0.1), forward and backward, bool labels"
_BCE = "binary_cross_entropy_with_logits, forward and backward"

BENCHMARKS = [
    *(
        Benchmark(f"loss/bce-{size}", _OURS, _BCE, partial(measure, size=size, theirs=bce), 2.5)
        for size in SIZES
    ),
    Benchmark(
        "loss/bce-1024-float-labels",
        _OURS.replace("bool", "float"),
        _BCE,
        partial(measure, size=1024, theirs=bce, dtype=torch.float32),
    ),
    *(
        Benchmark(
            f"loss/libauc-{size}",
            _OURS,
            "LibAUC's sigmoid and AUCMLoss, forward and backward",
            partial(measure, size=size, theirs=aucm),
        )
        for size in (32, 1024)
    ),
]
