"""The steps of a, b and alpha: formulas that hold for numbers (one task) and for tensors.

With one task on the CPU everything is read as Python's numbers, whose arithmetic takes a tenth of
the time of operations on tensors of one element.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class BatchMeans(NamedTuple):
    """Means over the batches since the last step: of [+], [-], h[+] and h[-]."""

    positive: Any
    negative: Any
    up: Any
    down: Any


class InnerVariables(NamedTuple):
    """a, b and alpha, as numbers or as tensors with one element per task."""

    a: Any
    b: Any
    alpha: Any


def gradient_step(
    means: BatchMeans, pos_ratio: Any, inner: InnerVariables, eta: float
) -> InnerVariables:
    """The paper's step: down the slopes of F in a and b, up that in alpha.

        dF/da = 2(1-p) (a E[+] - E[h[+]]),   dF/db = 2p (b E[-] - E[h[-]])
        dF/dalpha = 2p E[h[-]] - 2(1-p) E[h[+]] - 2p(1-p) alpha

    a and b go no further than to the batch's class means: below the step size that is warned about
    they never would.

    >>> means = BatchMeans(0.5, 0.5, 0.25, 0.25)  # all scores are 0.5
    >>> gradient_step(means, 0.5, InnerVariables(0.0, 0.0, 0.0), 0.4)
    InnerVariables(a=0.1, b=0.1, alpha=0.0)
    """
    p, (a, b, alpha) = pos_ratio, inner
    up, down = 2 * (1 - p), 2 * p
    slope = down * means.down - up * means.up
    slope = slope - 0.5 * up * down * (means.positive + means.negative) * alpha
    rate_a, rate_b = eta * up, eta * down
    move_a = rate_a * (means.up - a * means.positive) / _least_one(rate_a * means.positive)
    move_b = rate_b * (means.down - b * means.negative) / _least_one(rate_b * means.negative)
    return InnerVariables(a + move_a, b + move_b, alpha + eta * slope)


def implicit_step(
    means: BatchMeans, pos_ratio: Any, inner: InnerVariables, eta: float
) -> InnerVariables:
    """`PPDAdam`'s step: a and b minimise the batch's F and their squared distance, alpha follows.

    >>> means = BatchMeans(0.5, 0.5, 0.25, 0.25)
    >>> implicit_step(means, 0.5, InnerVariables(0.0, 0.0, 0.0), 1.0)
    InnerVariables(a=0.25, b=0.25, alpha=0.0)
    """
    p, (a, b, alpha) = pos_ratio, inner
    rise, fall = eta / p, eta / (1 - p)
    move_a = rise * (means.up - means.positive * a) / (1 + rise * means.positive)
    move_b = fall * (means.down - means.negative * b) / (1 + fall * means.negative)
    whole = eta * (means.positive + means.negative)  # more or less where the loss is scaled
    distance = alpha - b + a
    moved = alpha + move_b - move_a - distance * (whole / (1 + whole))
    return InnerVariables(a + move_a, b + move_b, moved)


def _least_one(value: Any) -> Any:
    return value.clamp(min=1) if isinstance(value, Tensor) else max(1.0, value)


def towards(value: Any, target: Any, share: Any) -> Any:
    """The point that is `share` of the way from a value to a target."""
    return value + share * (target - value)
