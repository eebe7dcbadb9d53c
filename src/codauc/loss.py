"""The module that owns a, b, alpha and p, and turns logits and labels into F."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NoReturn, SupportsFloat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from codauc.checks import choice, known_arguments, real, whole
from codauc.closed_form import Given, InTensors, arrays_of, in_arrays
from codauc.objective import positives

LINKS = ("sigmoid", "identity")
_USUAL = (torch.float32, torch.float64)


class MinMaxAUCLoss(nn.Module):
    """Mean over the batch of the min-max objective F; its saddle value is the AUC's square loss.

        F = (1-p)(h-a)^2[+] + p(h-b)^2[-] + 2(m+alpha)(p h[-] - (1-p) h[+]) - p(1-p) alpha^2

    h = sigmoid(logits), p is `pos_ratio`, m is `margin`; a, b and alpha are parameters of this
    module, which `PPDSG` moves (down in a and b, up in alpha). F itself may be negative: the
    readable number is `codauc.objective.pairwise_loss`, which never is.

    Labels are 0/1, -1/+1 or bool, of shape [N], or [N, C] for C tasks, each with its own a, b,
    alpha and p; the value is then the sum over the tasks, so that every task takes the same dual
    steps as if it were alone. Without `pos_ratio`, p is estimated from the labels seen in training,
    by all workers together, as (positives + 1/2) / (labels + 1); `tasks` then says how many.

    `link="identity"` leaves out the sigmoid: h is then the logit itself, unbounded. `mix` adds
    that many times the cross-entropy to F: with many positives it makes better use of them.

    Values are checked on every batch on the CPU, and on the first batch elsewhere, because a check
    waits for the device; `validate=True` checks always, `validate=False` never.

    >>> loss = MinMaxAUCLoss(pos_ratio=0.1)
    >>> logits = torch.zeros(4, requires_grad=True)
    >>> value = loss(logits, torch.tensor([1, 0, 0, 0]))
    >>> value.backward()
    >>> round(value.item(), 4), [round(g, 4) for g in logits.grad.tolist()]
    (-0.075, [-0.0563, 0.0188, 0.0188, 0.0188])
    """

    seen: Tensor
    reported: Tensor
    counts: Tensor

    @known_arguments
    def __init__(
        self,
        pos_ratio: SupportsFloat | Iterable[SupportsFloat] | None = None,
        *,
        tasks: int | None = None,
        margin: float = 1.0,
        link: str = "sigmoid",
        mix: float = 0.0,
        validate: bool | None = None,
    ) -> None:
        super().__init__()
        self.known_ratio = None if pos_ratio is None else _ratios(pos_ratio)
        self.tasks = _tasks(tasks, self.known_ratio)
        self.margin = real("margin", margin, above=0, remedy="use 1, the paper's")
        self.link = choice("link", link, LINKS)
        self.mix = real("mix", mix, least=0, remedy="use 0 for F alone")
        self.validate = validate
        self._checked = False
        self.one_class_told = False  # whether a shard without a class was reported
        self.ratio_told = False  # whether a doubtful pos_ratio was reported
        self._ratio_cache: Tensor | None = None
        self._seen = _Mirror()
        self.a = nn.Parameter(torch.zeros(self.tasks))
        self.b = nn.Parameter(torch.zeros(self.tasks))
        self.alpha = nn.Parameter(torch.zeros(self.tasks))
        # Rows: positives, negatives. What this worker saw, what of it the group knows, and what
        # the group saw together.
        for name in ("seen", "reported", "counts"):
            self.register_buffer(name, torch.zeros(2, self.tasks, dtype=torch.int64))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """F over the batch, a scalar; in training mode, with gradients, the labels are counted."""
        logits, labels = self.aligned(logits, labels)
        given, own = self._counted(logits, labels), self._parameters
        apply = InTensors.apply if given.logits is None else in_arrays
        value: Tensor = apply(logits, own["a"], own["b"], own["alpha"], given)
        return value + self.mix * self._entropy(logits, given) if self.mix else value

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The batch's mean cross-entropy, in place of F, for a warm start: it moves w alone.

        The gradients of a, b and alpha are zero; `Stage(estimate_ab=True)` gives them values when
        the stage ends. Several tasks add up.

        >>> loss = MinMaxAUCLoss(pos_ratio=0.5)
        >>> loss.cross_entropy(torch.zeros(2), torch.tensor([0, 1]))
        tensor(0.6931, grad_fn=<AddBackward0>)
        """
        logits, labels = self.aligned(logits, labels)
        nothing = 0 * (self.a.sum() + self.b.sum() + self.alpha.sum())
        return self._entropy(logits, self._counted(logits, labels)) + nothing

    def _entropy(self, logits: Tensor, given: Given) -> Tensor:
        arrays = given.logits is not None
        marks: Tensor = torch.from_numpy(given.marks) if arrays else given.marks
        value = binary_cross_entropy_with_logits(logits.to(marks.dtype), marks)
        return value * self.tasks if self.tasks > 1 else value

    def _counted(self, logits: Tensor, labels: Tensor) -> Given:
        """What the batch gives beside logits, checked, and counted if it is one of training."""
        counting = self.training and torch.is_grad_enabled()  # validation is not training data
        own, size = self._parameters["a"], len(labels)
        assert own is not None
        if _values_at_hand(logits, labels, own):
            z, known, positive = arrays_of(logits, labels, own)
            marks = positive.astype(z.dtype)
            if self.validate is not False:
                check_arrays(z, marks, known, logits)
            one = self.tasks == 1
            count: Any = np.count_nonzero(positive, None if one else 0)
            if counting:
                seen = self._seen.array(self._buffers["seen"])
                seen[(0, 0) if one else 0] += count
                seen[(1, 0) if one else 1] += size - count
            return Given(z, marks, count, self._ratio(), self.margin, self.link)
        if self._values_need_a_check(logits):
            check_values(logits.detach(), labels)
        signs = positives(labels).to(torch.promote_types(logits.dtype, own.dtype))
        counts = torch.count_nonzero(signs, 0)
        if counting:
            self.seen.add_(torch.stack((counts, size - counts)).view(2, self.tasks))
        return Given(None, signs, counts, self.pos_ratio, self.margin, self.link)

    def _ratio(self) -> Any:
        """p as a number, or an array for several tasks."""
        if self.tasks > 1:
            return self.pos_ratio.numpy()
        return self.pos_ratio.item() if self.known_ratio is None else self.known_ratio[0]

    @property
    def pos_ratio(self) -> Tensor:
        """p of each task: as given, or as estimated so far."""
        if self.known_ratio is None:
            known = (self.counts + self.seen - self.reported).to(self.a.dtype)
            return (known[0] + 0.5) / (known.sum(0) + 1)
        cache = self._ratio_cache
        if cache is None or cache.dtype != self.a.dtype or cache.device != self.a.device:
            cache = torch.tensor(self.known_ratio, dtype=self.a.dtype, device=self.a.device)
            self._ratio_cache = cache
        return cache

    def agree(self, fresh: Tensor, told: Tensor) -> None:
        """Add all workers' new labels; `told` is what this one had seen when it told of its own."""
        self.counts.add_(fresh)
        self.reported.copy_(told)

    def scores(self, logits: Tensor) -> Tensor:
        """h: the link of the logits, in at least float32."""
        h = logits.to(torch.promote_types(logits.dtype, self.a.dtype))
        return h.sigmoid() if self.link == "sigmoid" else h

    def extra_repr(self) -> str:
        """What `print(loss)` shows."""
        ratio = "estimated" if self.known_ratio is None else ", ".join(map(str, self.known_ratio))
        return f"pos_ratio={ratio}, tasks={self.tasks}, margin={self.margin:g}, link={self.link}"

    def _values_need_a_check(self, logits: Tensor) -> bool:
        if self.validate is not None:
            return self.validate
        kind = logits.device.type
        if kind in ("cpu", "meta"):  # meta tensors have no values
            return kind == "cpu"
        first, self._checked = not self._checked, True
        return first

    def aligned(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and labels of one shape: [N] for one task, [N, C] for C."""
        if not (isinstance(logits, Tensor) and isinstance(labels, Tensor)):
            self._refuse(logits, labels)
        one, other = logits.shape, labels.shape
        if self.tasks == 1 and len(one) == 1 and one == other and one[0] and logits.dtype in _USUAL:
            return logits, labels
        tails = ((), (1,)) if self.tasks == 1 else ((self.tasks,),)
        fits = one[:1] == other[:1] and one[1:] in tails and other[1:] in tails and one[:1] > (0,)
        if not fits or not logits.is_floating_point() or labels.is_complex():
            self._refuse(logits, labels)
        if self.tasks == 1:
            logits = logits if len(one) == 1 else logits.flatten()
            labels = labels if len(other) == 1 else labels.flatten()
        return logits, labels

    def _refuse(self, logits: Any, labels: Any) -> NoReturn:
        """Say what is wrong with them."""
        for name, tensor in (("logits", logits), ("labels", labels)):
            if not isinstance(tensor, Tensor):
                raise ValueError(
                    f"{name}: got {type(tensor).__name__}, expected a tensor; use torch.as_tensor."
                )
            if tensor.dim() == 0 or len(tensor) == 0:
                raise ValueError(
                    f"{name} of shape {list(tensor.shape)}: expected at least one sample, of shape "
                    f"{self._expected_shape()}; skip empty batches."
                )
        if not logits.is_floating_point():
            raise ValueError(f"logits of {logits.dtype}: expected floating point; pass raw logits.")
        if labels.is_complex():
            raise ValueError(f"labels of {labels.dtype}: expected 0 and 1, -1 and +1, or bool.")
        raise ValueError(
            f"logits of shape {list(logits.shape)} and labels of shape {list(labels.shape)}: "
            f"expected both of shape {self._expected_shape()}; "
            + (
                "pass tasks=C for C tasks, or the difference of two softmax logits."
                if self.tasks == 1
                else "one column a task."
            )
        )

    def _expected_shape(self) -> str:
        return "[N] or [N, 1]" if self.tasks == 1 else f"[N, {self.tasks}]"


def _ratios(pos_ratio: SupportsFloat | Iterable[SupportsFloat]) -> tuple[float, ...]:
    values = pos_ratio.tolist() if hasattr(pos_ratio, "tolist") else pos_ratio
    if isinstance(values, str) or not isinstance(values, Iterable):
        values = [values]
    remedy = "it is the share of positives in all data; leave it out to estimate it while training"
    return tuple(real("pos_ratio", value, above=0, below=1, remedy=remedy) for value in values)


def _tasks(tasks: int | None, ratios: tuple[float, ...] | None) -> int:
    if ratios is not None and not ratios:
        raise ValueError("pos_ratio=[]: expected one number a task; leave it out to estimate it.")
    if tasks is None:
        return 1 if ratios is None else len(ratios)
    tasks = whole("tasks", tasks, least=1, remedy="it is the number of columns of the labels")
    if ratios is not None and len(ratios) != tasks:
        raise ValueError(
            f"tasks={tasks} with {len(ratios)} positive ratios: expected one ratio a task; "
            "give pos_ratio as a list, or leave out tasks."
        )
    return tasks


def _values_at_hand(logits: Tensor, labels: Tensor, own: Tensor) -> bool:
    """Whether values can be read as arrays: no device to wait for, and nothing that is traced."""
    if not (logits.is_cpu and type(logits) is type(labels) is Tensor and own.dtype in _USUAL):
        return False
    transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    return not (transformed or torch._C._is_tracing() or logits.is_neg())


class _Mirror:
    """A tensor as an array of the same memory: to add to it is not worth an operation.

    A copy of it begins anew, as a copied array would have memory of its own.
    """

    def __init__(self) -> None:
        self._of: tuple[Tensor | None, int] = (None, 0)
        self._array: NDArray[Any] = np.empty(0)

    def array(self, tensor: Tensor | None) -> NDArray[Any]:
        """The array; made again where the tensor is another or has moved."""
        assert tensor is not None
        if self._of[0] is not tensor or self._of[1] != tensor.data_ptr():
            self._of, self._array = (tensor, tensor.data_ptr()), tensor.numpy()
        return self._array

    def __reduce__(self) -> tuple[type[_Mirror], tuple[()]]:
        return _Mirror, ()


def check_arrays(z: Any, marks: Any, labels: Any, logits: Tensor) -> None:
    """`check_values` of arrays."""
    if labels.dtype == marks.dtype:
        right = labels.tobytes() == marks.tobytes()  # for few numbers faster than a comparison
    else:
        right = labels.dtype == np.bool_ or np.logical_and.reduce(marks == labels, None)
    if not (right and np.count_nonzero(np.isfinite(z)) == z.size):
        check_values(logits.detach(), torch.from_numpy(labels))


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
