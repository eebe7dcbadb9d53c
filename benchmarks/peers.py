"""Peers, imported where a benchmark needs them, and the networks that all of them train."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import codauc
from benchmarks.measuring import Missing
from codauc.models import MLP

INSTALL = "make bench installs it (benchmarks/requirements.txt)"
POSITIVE = 0.1  # the share of positives in what is made up
_stubs: list[Any] = []  # kept: with the object the operators would go


class LibAUC(NamedTuple):
    """Its loss and its optimizer."""

    loss: Callable[..., Any]
    optimizer: Callable[..., Any]


def peer(name: str) -> Any:
    """A module, or the reason why it is missing."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # a broken installation raises anything
        raise Missing(f"{name} does not import ({error}): {INSTALL}") from error


def libauc() -> LibAUC:
    """LibAUC's AUCMLoss and PESG."""
    return LibAUC(peer("libauc.losses").AUCMLoss, peer("libauc.optimizers").PESG)


def torchmetrics() -> Any:
    """Its functions for two classes; a torchvision for another torch would keep it from importing.

    Two operators, which are not used here, are all that such a torchvision lacks.
    """
    found = importlib.util.find_spec("torchvision")
    if found is not None and found.origin is not None and not _stubs:
        for library in Path(found.origin).parent.glob("_C*.so"):
            with contextlib.suppress(OSError):
                torch.ops.load_library(library)
        _stubs.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                _stubs[0].define(f"{name}(Tensor dets, Tensor scores, float threshold) -> Tensor")
    return peer("torchmetrics.functional.classification")


def mlp() -> nn.Module:
    """The small network of most benchmarks: 64-256-256-1, 82,689 parameters."""
    torch.manual_seed(0)
    return MLP(64, widths=(256, 256))


def batch(size: int, *shape: int) -> tuple[Tensor, Tensor]:
    """Random inputs and labels, bool, with at least one positive and one negative."""
    torch.manual_seed(0)
    labels = torch.rand(size) < POSITIVE
    labels[0], labels[1] = True, False
    return torch.randn(size, *shape), labels


def our_step(model: nn.Module, x: Tensor, y: Tensor, **options: Any) -> Callable[[], None]:
    """A whole step: gradients cleared, forward, loss, backward, optimizer."""
    loss = codauc.MinMaxAUCLoss(pos_ratio=POSITIVE)
    opt = codauc.PPDSG(model, loss, lr=0.01, **options)

    def step() -> None:
        opt.zero_grad()
        loss(model(x), y).backward()
        opt.step()

    return step


def step_in(
    stage: Iterator[tuple[Tensor, Tensor]], model: nn.Module, loss: nn.Module, opt: codauc.PPDSG
) -> Callable[[], None]:
    """A whole step inside a stage of CoDA, which gives the batch."""

    def step() -> None:
        x, y = next(stage)
        opt.zero_grad()
        loss(model(x), y).backward()
        opt.step()

    return step


def bce_step(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """The same with cross-entropy and torch's SGD with momentum."""
    opt, target = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), y.float()

    def step() -> None:
        opt.zero_grad()
        binary_cross_entropy_with_logits(model(x), target).backward()
        opt.step()

    return step


def pesg(model: nn.Module, loss: Any, lr: float = 0.01) -> Any:
    """LibAUC's optimizer with the settings of its tutorials."""
    return libauc().optimizer(
        model.parameters(), loss_fn=loss, lr=lr, momentum=0.9, epoch_decay=2e-3,
        weight_decay=1e-4, verbose=False,
    )  # fmt: skip


def libauc_step(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """The same with LibAUC: the sigmoid of the logits into AUCMLoss, and PESG."""
    loss = libauc().loss()
    opt, target = pesg(model, loss), y.float()

    def step() -> None:
        opt.zero_grad()
        loss(model(x).sigmoid(), target).backward()
        opt.step()

    return step
