"""F and all its gradients in one pass, as functions that autograd knows.

With u = h - (a + m + alpha) for positives and h - (b - m - alpha) for negatives, and the weight
c = 1-p or p, dF/dh is 2 c u; the class sums of h that a, b and alpha need follow from sums of u,
and F from the sum of c u^2.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


class Given(NamedTuple):
    """What has no gradient: labels as 1 and 0, how many are 1, p, m, and the link.

    Where values are at hand these are arrays, of one task numbers, and the logits are there too.
    """

    logits: Any
    marks: Any
    count: Any
    pos_ratio: Any
    margin: float
    link: str


def arrays_of(logits: Tensor, labels: Tensor, like: Tensor) -> tuple[Array, Array, Array]:
    """A batch as arrays: logits, labels, and which of these are positive.

    Logits are in at least the precision of `like`.

    >>> arrays_of(torch.zeros(2), torch.tensor([-1, 1]), torch.zeros(1))[2]
    array([False,  True])
    """
    if logits.dtype != like.dtype:
        logits = logits.to(torch.promote_types(logits.dtype, like.dtype))
    known = _array(labels)
    return logits.detach().numpy(), known, known if known.dtype == np.bool_ else known > 0


class InArrays(torch.autograd.Function):
    """On the CPU: vectors are arrays, and what is no vector is, for one task, a Python number.

    A batch has few logits, and arrays take half the time of tensors for them.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, a: Tensor, b: Tensor, alpha: Tensor, given: Given
    ) -> Tensor:
        """F; its slopes are kept."""
        z, y, count, p, margin, link = given
        a_: Any
        b_: Any
        alpha_: Any
        if y.ndim == 1:  # Python's numbers, which are faster than numpy's
            a_, b_, alpha_ = a.item(), b.item(), alpha.item()
        else:
            a_, b_, alpha_ = a.numpy(), b.numpy(), alpha.numpy()
        h = _sigmoid(z) if link == "sigmoid" else z
        size = len(y)
        share, q, pull = count / size, 1 - p, margin + alpha_
        high, low, other = a_ + pull, b_ - pull, 1 - share
        u = y * (low - high)
        u += h
        u -= low
        cu = y * (q - p)
        cu += p
        cu *= u
        ups, both = _dot(u, y), _total(u)
        up = q * (ups / size + share * high)  # (1-p) E[h[+]]
        down = p * ((both - ups) / size + other * low)  # p E[h[-]]
        value = _dot(cu, u) / size - p * q * alpha_**2
        value = value + p * other * pull * (b_ + low) - q * share * pull * (a_ + high)
        if link == "sigmoid":
            cu *= h
            np.subtract(1, h, out=h)
            cu *= h
        ctx.slopes = (cu, q * share * a_ - up, p * other * b_ - down, down - up - p * q * alpha_)
        ctx.types = logits.dtype, a.dtype
        value = value if y.ndim == 1 else float(value.sum())
        return torch.scalar_tensor(value, dtype=a.dtype, device="cpu")

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        """Twice the slopes; those of the logits are a mean's."""
        _refuse_second_derivatives()
        try:
            double, (cu, *slopes) = 2 * scale.item(), ctx.slopes
        except RuntimeError:  # several at once: is_grads_batched=True
            return _backward_in_tensors(ctx, scale)
        of_logits, of_own = ctx.types
        logits = torch.from_numpy(cu * (double / len(cu)))
        logits = logits if logits.dtype == of_logits else logits.to(of_logits)
        kind = np.float32 if of_own == torch.float32 else np.float64
        if cu.ndim == 1:
            own = [torch.from_numpy(np.array((double * slope,), kind)) for slope in slopes]
        else:
            own = [torch.from_numpy((double * slope).astype(kind)) for slope in slopes]
        return logits, *own, None


# `apply` without what torch.func's transforms need
_apply: Any = super(torch.autograd.Function, InArrays).apply


def in_arrays(logits: Tensor, a: Any, b: Any, alpha: Any, given: Given) -> Any:
    """`InArrays` of these; scores without a bound may overflow without a word."""
    if given.link == "sigmoid":
        return _apply(logits, a, b, alpha, given)
    with np.errstate(over="ignore", invalid="ignore"):
        return _apply(logits, a, b, alpha, given)


class InTensors(torch.autograd.Function):
    """The same where reading a number would wait for the device, or operations are recorded."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, a: Tensor, b: Tensor, alpha: Tensor, given: Given
    ) -> Tensor:
        """F; its slopes are kept."""
        _, y, count, p, margin, link = given
        size, h = len(logits), logits.to(y.dtype)
        h = h.sigmoid() if link == "sigmoid" else h
        share = count.to(h.dtype) / size
        other, q, pull = 1 - share, 1 - p, margin + alpha
        high, low = a + pull, b - pull
        u = torch.addcmul(h - low, y, low - high)
        cu = u * (p + (q - p) * y)
        ups, both = (u * y).sum(0), u.sum(0)
        up = q * (ups / size + share * high)
        down = p * ((both - ups) / size + other * low)
        value = (cu * u).sum(0) / size - p * q * alpha**2
        value = value - q * share * pull * (a + high) + p * other * pull * (b + low)
        grad = torch.ops.aten.sigmoid_backward.default(cu, h) if link == "sigmoid" else cu
        ctx.save_for_backward(
            (grad * (2 / size)).to(logits.dtype),
            2 * (q * share * a - up),
            2 * (p * other * b - down),
            2 * (down - up - p * q * alpha),
        )
        return torch.sum(value)

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients times what comes from above."""
        _refuse_second_derivatives()
        needed = ctx.needs_input_grad
        gradients = [
            (gradient * scale).to(gradient.dtype) if needed[i] else None
            for i, gradient in enumerate(ctx.saved_tensors)
        ]
        return *gradients, None


def _backward_in_tensors(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
    """For a scale that is several at once."""
    cu, *slopes = ctx.slopes
    of_logits, of_own = ctx.types
    logits = (torch.from_numpy(cu) * (2 * scale / len(cu))).to(of_logits)
    own = [(torch.as_tensor(s).view(-1) * (2 * scale)).to(of_own) for s in slopes]
    return logits, *own, None


def _array(labels: Tensor) -> Array:
    try:
        found: Array = labels.numpy()
    except (TypeError, RuntimeError):  # a type that numpy has not, or a tensor with a gradient
        found = labels.detach().to(torch.float64).numpy()
    return found


def _dot(x: Array, y: Array) -> Any:
    """The sum of products over the samples, for each task."""
    return float(x.dot(y)) if x.ndim == 1 else np.einsum("nc,nc->c", x, y)


def _total(x: Array) -> Any:
    """The sum over the samples, for each task."""
    return float(x.dot(_ones(len(x), x.dtype))) if x.ndim == 1 else x.sum(0)


@lru_cache(maxsize=16)
def _ones(size: int, dtype: Any) -> Array:
    """For few numbers a product with ones takes a third of the time of a sum."""
    return np.ones(size, dtype)


def _sigmoid(z: Array) -> Array:
    h: Array = np.maximum(z, -80)  # below it is 0 to the last bit beside 1, and exp may overflow
    np.negative(h, out=h)
    np.exp(h, out=h)
    h += 1
    return np.reciprocal(h, out=h)


def _refuse_second_derivatives() -> None:
    if torch.is_grad_enabled():  # create_graph=True: the result would silently be a constant
        raise RuntimeError(
            "MinMaxAUCLoss has no second derivatives: leave out create_graph=True, or write "
            "the loss with codauc.objective.objective."
        )
