"""How the engine runs the model on a batch, and checks that the user's loop does the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from codauc._internal.checks import warn
from codauc.algorithm.dual_estimate import in_modes
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.objective import positives
from codauc.algorithm.ppdsg import PPDSG

Forward = Callable[[Any], tuple[Tensor, ...]]


def parts_of(batch: Any, device: torch.device) -> tuple[Tensor, ...]:
    """The inputs, labels and, if there are some, weights of a batch, on the model's device."""
    if (
        not isinstance(batch, tuple | list)
        or len(batch) not in (2, 3)
        or not all(isinstance(part, Tensor) for part in batch)
    ):
        raise ValueError(
            f"batch: got {type(batch).__name__}, expected a pair of tensors (inputs, labels), "
            "or three with weights; pass forward=... to CoDA for other batches."
        )
    return tuple(part.to(device) for part in batch)


class BatchForward:
    """Logits and labels of a batch, by the user's `forward`, or by the model of a pair."""

    def __init__(self, opt: PPDSG, forward: Forward | None) -> None:
        self.opt, self.given = opt, forward
        self.watched = forward is not None  # whether the loop was seen to use the batches as is

    def __call__(self, batch: Any) -> tuple[Tensor, ...]:
        """Logits, labels and, if the batch has some, weights."""
        if self.given is not None:
            return self.given(batch)
        inputs, *rest = self._parts(batch)
        return self.opt.model(inputs), *rest

    def labels(self, batch: Any) -> Tensor:
        """The labels alone."""
        if self.given is None:
            return self._parts(batch)[1]
        with in_modes(self.opt.model, False):
            return self.given(batch)[1]

    def watch(self, batch: Any) -> Iterator[Any]:
        """Yield the first batch; see that the loop trains on what the estimate of alpha uses."""
        inputs, labels = self._parts(batch)[:2]
        loss, before, fed = self.opt.loss, self.opt.loss.seen.clone(), list[Any]()
        hook = self.opt.model.register_forward_pre_hook(Fed(fed))
        try:
            yield batch
        finally:
            hook.remove()
        self.watched = True
        check_loop(inputs, labels, fed, loss.seen - before)

    def _parts(self, batch: Any) -> tuple[Tensor, ...]:
        return parts_of(batch, self.opt.trained.device)


class Fed:
    """A hook that keeps what reaches the model first; it can be pickled with the model."""

    def __init__(self, fed: list[Any]) -> None:
        self.fed = fed

    def __call__(self, _: Any, args: tuple[Any, ...]) -> None:
        """Torch calls it before the model's forward pass."""
        self.fed.extend(args[:1])


def check_loop(inputs: Tensor, labels: Tensor, fed: list[Any], counted: Tensor) -> None:
    """Warn if the loop changes a batch before the model or the loss sees it.

    alpha and BatchNorm statistics are estimated from the batches as they come; a loop that scales
    inputs or picks classes on the way needs a `forward` that does the same. `fed` is what reached
    the model, `counted` the positives and negatives that reached the loss.
    """
    remedy = (
        "alpha and BatchNorm statistics would be estimated on something else; give the batches as "
        "the model takes them, or pass forward=... to CoDA that does what the loop does."
    )
    if fed and isinstance(fed[0], Tensor) and not _same(fed[0], inputs):
        warn(f"the loop feeds the model something else than the batch's inputs: {remedy}")
    if labels.dim() == 0:
        return  # the loss says what is wrong with it
    share = positives(labels).reshape(len(labels), -1).sum(0)
    positive, total = counted[0], counted.sum(0)
    if share.shape == positive.shape and (share * total != positive * len(labels)).any():
        warn(f"the loop gives the loss other labels than the batch's: {remedy}")


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.is_meta:
        return one.shape == other.shape
    return bool(torch.equal(one.to(other.device, other.dtype), other))


def check_ratio(loss: MinMaxAUCLoss) -> None:
    """Warn once if the given ratio is far from that of the labels all workers trained on."""
    if loss.known_ratio is None or loss.ratio_told or loss.counts.is_meta:
        return
    for p, (positive, negative) in zip(loss.known_ratio, loss.counts.T.tolist(), strict=True):
        total = positive + negative
        odds = (positive + 0.5) * (1 - p) / ((negative + 0.5) * p)
        noise = 6 * math.sqrt(p * (1 - p) * total)
        if not 0.5 < odds < 2 and abs(positive - p * total) > noise:
            loss.ratio_told = True
            warn(
                f"pos_ratio={p:g} was given, but {positive} of the {total} labels trained on are "
                "positive: expected the share of positives in all data; correct it, or leave it "
                "out to estimate it."
            )
