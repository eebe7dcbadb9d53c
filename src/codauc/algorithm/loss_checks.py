"""What MinMaxAUCLoss refuses: its arguments, and shapes and values of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, SupportsFloat

import torch
from torch import Tensor

from codauc._internal.checks import real, warn, whole


def checked_ratios(pos_ratio: SupportsFloat | Iterable[SupportsFloat]) -> tuple[float, ...]:
    """One number for each task, strictly between 0 and 1.

    >>> checked_ratios(0.5)
    (0.5,)
    """
    values = pos_ratio.tolist() if hasattr(pos_ratio, "tolist") else pos_ratio
    if isinstance(values, str) or not isinstance(values, Iterable):
        values = [values]
    remedy = "it is the share of positives in all data; leave it out to estimate it while training"
    return tuple(real("pos_ratio", value, above=0, below=1, remedy=remedy) for value in values)


def checked_tasks(tasks: int | None, ratios: tuple[float, ...] | None) -> int:
    """The number of tasks, as given or as there are ratios."""
    if ratios is not None and not ratios:
        raise ValueError("pos_ratio=[]: expected one number per task; leave it out to estimate it.")
    if tasks is None:
        return 1 if ratios is None else len(ratios)
    tasks = whole("tasks", tasks, least=1, remedy="it is the number of columns of the labels")
    if ratios is not None and len(ratios) != tasks:
        raise ValueError(
            f"tasks={tasks} with {len(ratios)} positive ratios: expected one ratio per task; "
            "give pos_ratio as a list, or leave out tasks."
        )
    return tasks


def aligned(logits: Any, labels: Any, tasks: int) -> tuple[Tensor, Tensor]:
    """Logits and labels of one shape: [N] for one task, [N, C] for C."""
    for name, tensor in (("logits", logits), ("labels", labels)):
        if not isinstance(tensor, Tensor):
            raise ValueError(
                f"{name}: got {type(tensor).__name__}, expected a tensor; use torch.as_tensor."
            )
        if tensor.dim() == 0:
            raise ValueError(
                f"{name} of shape []: expected {_expected(tasks)}; use squeeze(1) or "
                "flatten() where squeeze() removes also the dimension of a single sample."
            )
        if len(tensor) == 0:
            raise ValueError(
                f"{name} of shape {list(tensor.shape)}: expected at least one sample, of shape "
                f"{_expected(tasks)}; skip empty batches."
            )
    if not logits.is_floating_point():
        raise ValueError(f"logits of {logits.dtype}: expected floating point; pass raw logits.")
    if labels.is_complex():
        raise ValueError(f"labels of {labels.dtype}: expected 0 and 1, -1 and +1, or bool.")
    one, other = logits.shape, labels.shape
    tails = ((), (1,)) if tasks == 1 else ((tasks,),)
    if one[0] != other[0] or one[1:] not in tails or other[1:] not in tails:
        remedy = "pass tasks=C for C tasks, or the difference of two softmax logits."
        raise ValueError(
            f"logits of shape {list(one)} and labels of shape {list(other)}: expected both of "
            f"shape {_expected(tasks)}; {remedy if tasks == 1 else 'one column per task.'}"
        )
    return (logits.flatten(), labels.flatten()) if tasks == 1 else (logits, labels)


def checked_weights(weights: Any, shape: tuple[int, ...], *, values: bool) -> Tensor:
    """Weights for logits of this shape: one for each sample, or one for each of its tasks.

    The result has as many dimensions as the logits. With `values` what they are is checked, too.
    """
    if not isinstance(weights, Tensor):
        raise ValueError(
            f"weights: got {type(weights).__name__}, expected a tensor; use torch.as_tensor."
        )
    size, *tasks = shape
    if weights.shape not in ((size,), (size, 1), shape):
        raise ValueError(
            f"weights of shape {list(weights.shape)}: expected one per sample, [{size}]."
        )
    found: Tensor = weights.reshape(size, -1) if tasks else weights.flatten()
    if values and not (found.isfinite() & (found >= 0)).all():
        bad = (~(found.isfinite() & (found >= 0))).nonzero()[0].tolist()
        raise ValueError(
            f"weights: got {float(found[tuple(bad)]):g} for sample {bad[0]} of the batch; "
            "expected finite numbers >= 0; leave the sample out, or give it 0."
        )
    return found


def _expected(tasks: int) -> str:
    return "[N] or [N, 1]" if tasks == 1 else f"[N, {tasks}]"


def check_values(logits: Tensor, labels: Tensor) -> None:
    """Raise if a logit is not finite or the labels are not of two known values."""
    # a finite sum has finite terms; the sum of finite ones may overflow
    if not math.isfinite(logits.sum()) and not logits.isfinite().all():
        bad = (~logits.isfinite()).nonzero()
        raise ValueError(
            f"logits: got {int(logits.isnan().sum())} NaN and {int(logits.isinf().sum())} infinite "
            f"of {logits.numel()}, the first at {bad[0].tolist()}; expected finite numbers; "
            "lower the step size, or look for bad input in this batch."
        )
    if labels.dtype == torch.bool:
        return
    one, signed = labels == 1, labels.dtype.is_signed  # of an unsigned type 255 equals -1
    if not ((one | (labels == 0)).all() or (signed and (one | (labels == -1)).all())):
        values = sorted(set(labels.flatten().tolist()))[:5]
        raise ValueError(
            f"labels: got the values {values}; expected 0 and 1, -1 and +1, or bool; "
            "turn classes into one against the rest, for example labels == positive_class."
        )


_FIRST_BATCHES = 10  # of training, after which an optimizer should have been made

_SHAPES = ("View", "Squeeze", "Unsqueeze", "Reshape", "Select", "Slice", "ToCopy", "Index")


def ends_with_sigmoid(logits: Tensor) -> bool:
    """Whether the last operation but changes of shape was a sigmoid or a softmax.

    >>> x = torch.zeros(2, 1, requires_grad=True)
    >>> ends_with_sigmoid(x.sigmoid().squeeze(1)), ends_with_sigmoid(2 * x)
    (True, False)
    """
    node = logits.grad_fn
    while node is not None and any(word in node.name() for word in _SHAPES):
        node = node.next_functions[0][0]
    return node is not None and node.name().startswith(("SigmoidBackward", "SoftmaxBackward"))


class MisuseCheck:
    """Warns, once, of what would otherwise train something else in silence."""

    def __init__(self) -> None:
        self.batches = 0  # of training

    def look(self, logits: Tensor, link: str, *, has_optimizer: bool) -> None:
        """At a batch of training."""
        self.batches += 1
        if self.batches > _FIRST_BATCHES:
            return
        if self.batches == 1 and link == "sigmoid" and ends_with_sigmoid(logits):
            warn(
                "the logits come from a sigmoid or softmax: expected raw logits, the sigmoid is "
                "the loss's own; leave out the model's."
            )
        if self.batches == _FIRST_BATCHES and not has_optimizer:
            warn(
                f"{_FIRST_BATCHES} batches and no PPDSG or PPDAdam made with this loss: another "
                "optimizer moves the weights alone, and a, b and alpha stay as they are; use "
                "opt = codauc.PPDAdam(model, loss)."
            )
