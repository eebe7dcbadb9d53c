"""Weights to begin with, as in the paper: a network that tells classes of other images apart."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from codauc._internal.files import whole_file
from codauc._internal.random_streams import generator
from codauc.data.data_settings import DataSettings
from codauc.data.image_sources import read_images
from codauc.data.rows import Rows, as_rows
from codauc.models import build
from codauc.runs.settings import ModelSettings
from codauc.training.build import augmentation

BATCH, LR, MOMENTUM, DECAY = 128, 0.05, 0.9, 5e-4
HELD_OUT = 0.1  # of the training images, to say how much was learnt
SEED = 0
_AT_ONCE = 1000  # images to score
_STREAM = 24  # of random numbers, another than those of runs

Show = Callable[[int, int], object]


class Pretraining(NamedTuple):
    """The images, the network, the passes over the images, and the file of the weights."""

    source: str
    network: ModelSettings
    epochs: int
    out: Path


def pretrain(plan: Pretraining, show: Show) -> None:
    """Train by cross-entropy on all classes of the source, as the published weights were.

    Only the source's own training images are read. What is interrupted begins again. After each
    step `show(steps done, steps in all)` is called.
    """
    images = read_images(DataSettings(source=plan.source))
    x, y = as_rows(images.train.x), images.train.y
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        order = torch.randperm(len(y))
        count = round(HELD_OUT * len(y))
        held, used = order[:count], order[count:]
        arguments = {"in_channels": 3, "outputs": len(images.classes), **plan.network.arguments}
        model = build(plan.network.name, **arguments)
        _fit(model, x, y, used, plan.epochs, show)
    facts = {
        "source": Path(plan.source).name,
        "classes": len(images.classes),
        "images": len(used),
        "epochs": plan.epochs,
        "held_out_accuracy": _accuracy(model, x, y, held),
    }
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    with whole_file(plan.out.with_suffix(".json")) as partial:
        partial.write_text(json.dumps(facts), encoding="utf-8")
    with whole_file(plan.out) as partial:
        save_file(weights, partial)


def _fit(model: nn.Module, x: Rows, y: Tensor, used: Tensor, epochs: int, show: Show) -> None:
    steps = epochs * math.ceil(len(used) / BATCH)
    sgd = torch.optim.SGD(
        model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY, nesterov=True
    )
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, max(1, steps))
    random, done = generator(np.random.SeedSequence([SEED, _STREAM])), 0
    change = augmentation("flip")
    assert change is not None
    for _ in range(epochs):
        for rows in torch.split(used[torch.randperm(len(used), generator=random)], BATCH):
            sgd.zero_grad()
            loss = cross_entropy(model(change(x.gather(rows), random)), y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            sgd.step()
            cosine.step()
            show(done := done + 1, steps)


@torch.no_grad()
def _accuracy(model: nn.Module, x: Rows, y: Tensor, rows: Tensor) -> float:
    """The share of images whose class has the largest logit."""
    model.eval()
    parts = torch.split(rows, _AT_ONCE)
    right = [int((model(x.gather(part)).argmax(1) == y[part]).sum()) for part in parts]
    return sum(right) / max(1, len(rows))
