"""F, its gradient in the logits, and what a, b and alpha need of the batch, in one pass.

With u = h - (a + m + alpha) for positives and h - (b - m - alpha) for negatives, and the weight
c = 1-p or p, dF/dh is 2 c u; the class sums of h that a, b and alpha need follow from sums of u,
and F from the sum of c u^2.

F is a quadratic in a, b and alpha. Its derivatives there, and its curvature, follow from four means
over the batch: of [+], [-], h[+] and h[-]. Autograd hands these over as the "gradient" of a tensor
that stands for them (`sums`, [tasks, 5]), so that they add up over several backward passes. The
fifth is 1, and so tells by what the loss was scaled (a GradScaler, a sum of several losses), which
concerns the weights alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from codauc.algorithm.inner_steps import InnerVariables


class Given(NamedTuple):
    """What has no gradient: labels as 1 and 0, the share of 1, p, (a, b, alpha), m, and the link.

    With `weights` (1 in the mean over all data) the share is that of the weights, over the size of
    the batch, and `other` is the same of the negatives: both need not add up to 1.

    The share, p and (a, b, alpha) are numbers where reading them costs nothing (`are_readable`):
    arithmetic with Python's numbers takes a tenth of the time of operations on tensors of one
    element. Otherwise they are tensors with one element per task. The formulas are the same.
    """

    marks: Tensor
    share: Any
    pos_ratio: Any
    own: InnerVariables
    margin: float
    link: str
    weights: Tensor | None = None
    other: Any = None


def are_readable(*tensors: Tensor) -> bool:
    """Whether values can be read at no cost: no device to wait for, and nothing that is traced."""
    if not all(type(tensor) is Tensor and tensor.is_cpu for tensor in tensors):
        return False
    transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    return not (transformed or torch._C._is_tracing())


class ClosedForm(torch.autograd.Function):
    """F over a batch, summed over the tasks."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, sums: Tensor, given: Given) -> Tensor:
        """F; its slopes are kept."""
        y, share, p, (a, b, alpha), margin, link, weights, other = given
        of_numbers, size, h = isinstance(p, float), len(logits), logits.to(y.dtype)
        h = h.sigmoid() if link == "sigmoid" else h
        q, pull = 1 - p, margin + alpha
        penalty = p * q * (alpha * alpha)  # a power of numbers may raise
        high, low = a + pull, b - pull
        u = _plus(h, y, low - high).sub_(low)
        cu = u * _plus(p, y, q - p)
        dot = torch.dot if of_numbers else _dot
        if weights is None:
            other, all_u, y_u = 1 - share, u.sum(0), dot(u, y)
        else:
            penalty, cu = penalty * (share + other), cu.mul_(weights)
            all_u, y_u = dot(u, weights), dot(u, y * weights)
        totals: list[Any] = [all_u, y_u, dot(cu, u)]
        if of_numbers:
            totals = [total.item() for total in totals]
        both, ups, squares = totals
        up = ups / size + share * high  # E[h[+]]
        down = (both - ups) / size + other * low  # E[h[-]]
        value = squares / size - penalty
        value = value - q * share * pull * (a + high) + p * other * pull * (b + low)
        grad = torch.ops.aten.sigmoid_backward.default(cu, h) if link == "sigmoid" else cu
        means: list[Any] = [share, other, up, down]
        if of_numbers:
            found = torch.tensor([[*means, 1.0]], dtype=sums.dtype)
            value = torch.tensor(value, dtype=y.dtype)
        else:
            means.append(torch.ones_like(up))
            found = torch.stack([mean.reshape(-1) for mean in means], 1).to(sums.dtype)
            value = value.sum()
        ctx.save_for_backward(grad.mul_(2 / size).to(logits.dtype), found)
        result: Tensor = value
        return result

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        """The slope and the means times what comes from above."""
        if torch.is_grad_enabled():  # create_graph=True: the result would silently be a constant
            raise RuntimeError(
                "MinMaxAUCLoss has no second derivatives: leave out create_graph=True, or write "
                "the loss with codauc.algorithm.objective.objective."
            )
        needed = ctx.needs_input_grad
        gradients = [
            (gradient * scale).to(gradient.dtype) if needed[i] else None
            for i, gradient in enumerate(ctx.saved_tensors)
        ]
        return *gradients, None


def _plus(x: Any, y: Tensor, factor: Any) -> Tensor:
    """x + factor y."""
    if isinstance(x, Tensor) and not isinstance(factor, Tensor):
        return torch.add(x, y, alpha=factor)
    result: Tensor = y * factor + x
    return result


def _dot(one: Tensor, other: Tensor) -> Tensor:
    return (one * other).sum(0)
