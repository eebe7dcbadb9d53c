"""From a model and data to its AUC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from codauc.checks import known_arguments, whole
from codauc.metrics import AUC, auc_interval


@known_arguments
def predict(model: nn.Module, x: Tensor, batch_size: int = 512) -> Tensor:
    """The model's logits for all of `x`, on the CPU, as in evaluation mode.

    The model is afterwards as it was: the mode of each of its parts, also after an error, and
    the statistics of BatchNorm. So is torch's global random state. Batches are moved to the
    model's device.

    >>> predict(torch.nn.Linear(3, 2), torch.zeros(5, 3), batch_size=2).shape
    torch.Size([5, 2])
    """
    batch_size = whole("batch_size", batch_size, least=1, remedy="use for example 512")
    if not len(x):
        raise ValueError("x has 0 samples: expected at least 1; give data to predict.")
    device = _device(model, default=x.device)
    devices = [device] if device.type == "cuda" else []
    # Not inference_mode: what a model caches in it could never be trained on afterwards.
    with _evaluation_mode(model), torch.random.fork_rng(devices), torch.no_grad():
        batches = (x[start : start + batch_size] for start in range(0, len(x), batch_size))
        return torch.cat([model(batch.to(device)).cpu() for batch in batches])


@known_arguments
def evaluate(
    model: nn.Module, x: Tensor, y: Tensor, batch_size: int = 512, level: float = 0.95
) -> AUC:
    """The AUC of the model's scores of `x` against the labels `y`, with its interval at `level`.

    >>> x = torch.tensor([[3.0], [1.0], [2.0], [0.0]])
    >>> evaluate(torch.nn.Identity(), x[:, 0], torch.tensor([1, 1, 0, 0])).value
    0.75
    """
    scores = predict(model, x, batch_size)
    if scores.shape == (len(y), 1):  # a column for one task, as the loss takes it too
        scores = scores.squeeze(1)
    return auc_interval(scores, y, level)


def _device(model: nn.Module, default: torch.device) -> torch.device:
    return next((t.device for t in chain(model.parameters(), model.buffers())), default)


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        # A module may do more in train() than set the flag; the flags come last because
        # train() also sets those of the parts, and a part can be shared.
        for module, mode in modes:
            module.train(mode)
        for module, mode in modes:
            module.training = mode
