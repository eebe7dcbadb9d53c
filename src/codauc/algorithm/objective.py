"""The min-max objective whose saddle value is the pairwise square loss of the AUC.

    F = (1-p)(h-a)^2[+] + p(h-b)^2[-] + 2(m+alpha)(p h[-] - (1-p) h[+]) - p(1-p) alpha^2

h is `scores`, [+] and [-] tell positive from negative `labels`, p is `pos_ratio`, m is `margin`.
Everything here is a pure function of tensors and works for one task ([N]) or several ([N, C]).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# The inner variables (a, b, alpha).
Inner = tuple[Tensor, Tensor, Tensor] | tuple[float, float, float]


class Gradients(NamedTuple):
    """Derivatives of F, one entry a sample."""

    scores: Tensor
    a: Tensor
    b: Tensor
    alpha: Tensor


class SaddlePoint(NamedTuple):
    """The inner optimum of F for given scores."""

    a: Tensor
    b: Tensor
    alpha: Tensor


def positives(labels: Tensor) -> Tensor:
    """Which labels are positive: 1, +1 or True.

    >>> positives(torch.tensor([-1, 1])), positives(torch.tensor([False, True]))
    (tensor([False,  True]), tensor([False,  True]))
    """
    return labels if labels.dtype == torch.bool else labels > 0


def objective(
    scores: Tensor, labels: Tensor, inner: Inner, pos_ratio: Tensor | float, margin: float = 1.0
) -> Tensor:
    """F of each sample at `inner` = (a, b, alpha).

    >>> objective(torch.tensor([0.5, 0.5]), torch.tensor([1, 0]), (0.0, 0.0, 0.0), 0.5)
    tensor([-0.3750,  0.6250])
    """
    p, h, (a, b, alpha) = pos_ratio, scores, inner
    slope = 2 * (margin + alpha)
    positive = (1 - p) * (h - a) ** 2 - slope * (1 - p) * h
    negative = p * (h - b) ** 2 + slope * p * h
    return torch.where(positives(labels), positive, negative) - p * (1 - p) * alpha**2


def gradients(
    scores: Tensor, labels: Tensor, inner: Inner, pos_ratio: Tensor | float, margin: float = 1.0
) -> Gradients:
    """Derivatives of each sample's F in closed form.

        dF/dh     = 2(1-p)(h-a-m-alpha)[+] + 2p(h-b+m+alpha)[-]
        dF/da     = -2(1-p)(h-a)[+]
        dF/db     = -2p(h-b)[-]
        dF/dalpha = 2(p h[-] - (1-p) h[+]) - 2p(1-p) alpha

    >>> g = gradients(torch.tensor([0.5]), torch.tensor([1]), (0.0, 0.0, 0.0), 0.5)
    >>> g.scores, g.a, g.b, g.alpha
    (tensor([-0.5000]), tensor([-0.5000]), tensor([0.]), tensor([-0.5000]))
    """
    p, h, (a, b, alpha) = pos_ratio, scores, inner
    positive = positives(labels)
    zero = torch.zeros_like(h)
    pull = margin + alpha
    return Gradients(
        scores=torch.where(positive, 2 * (1 - p) * (h - a - pull), 2 * p * (h - b + pull)),
        a=torch.where(positive, -2 * (1 - p) * (h - a), zero),
        b=torch.where(positive, zero, -2 * p * (h - b)),
        alpha=torch.where(positive, -2 * (1 - p) * h, 2 * p * h) - 2 * p * (1 - p) * alpha,
    )


def saddle_point(scores: Tensor, labels: Tensor) -> SaddlePoint:
    """The optimum `a = E[h|+], b = E[h|-], alpha = b - a` of F over a sample with both classes.

    >>> saddle_point(torch.tensor([0.9, 0.7, 0.2]), torch.tensor([1, 1, 0]))
    SaddlePoint(a=tensor(0.8000), b=tensor(0.2000), alpha=tensor(-0.6000))
    """
    positive = positives(labels)
    a = (scores * positive).sum(0) / positive.sum(0)
    b = (scores * ~positive).sum(0) / (~positive).sum(0)
    return SaddlePoint(a, b, b - a)


def pairwise_loss(scores: Tensor, labels: Tensor, margin: float = 1.0) -> Tensor:
    """Mean of `(m - h+ + h-)^2` over all pairs of a positive and a negative, from class moments.

    With d = E[h|+] - E[h|-] it is `(m - d)^2 + Var[h|+] + Var[h|-]`: never negative, and equal to
    `m^2 + F*/(p(1-p))` at the saddle point, p being the sample's own ratio.

    >>> pairwise_loss(torch.tensor([0.9, 0.2]), torch.tensor([1, 0]))
    tensor(0.0900)
    """
    positive = positives(labels)
    a, b, alpha = saddle_point(scores, labels)
    spread_positive = ((scores - a) ** 2 * positive).sum(0) / positive.sum(0)
    spread_negative = ((scores - b) ** 2 * ~positive).sum(0) / (~positive).sum(0)
    return (margin + alpha) ** 2 + spread_positive + spread_negative
