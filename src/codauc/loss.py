"""The module that owns a, b, alpha and p, and turns logits and labels into F."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from codauc.checks import choice, known_arguments, real, whole
from codauc.objective import positives

LINKS = ("sigmoid", "identity")


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
    (-0.075, [-0.0562, 0.0188, 0.0188, 0.0188])
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
        self.a = nn.Parameter(torch.zeros(self.tasks))
        self.b = nn.Parameter(torch.zeros(self.tasks))
        self.alpha = nn.Parameter(torch.zeros(self.tasks))
        # Rows: positives, negatives. What this worker saw, what of it the group knows, and what
        # the group saw together.
        for name in ("seen", "reported", "counts"):
            self.register_buffer(name, torch.zeros(2, self.tasks, dtype=torch.int64))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """F over the batch, a scalar; in training mode, with gradients, the labels are counted."""
        logits, positive, count = self._counted(logits, labels)
        ratio = self.pos_ratio
        value: Tensor = _MinMaxAUC.apply(  # type: ignore[no-untyped-call]
            logits, positive, count, self.a, self.b, self.alpha, ratio, self.margin, self.link
        )
        return value + self.mix * self._entropy(logits, positive) if self.mix else value

    def cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The batch's mean cross-entropy, in place of F, for a warm start: it moves w alone.

        The gradients of a, b and alpha are zero; `Stage(estimate_ab=True)` gives them values when
        the stage ends. Several tasks add up.

        >>> loss = MinMaxAUCLoss(pos_ratio=0.5)
        >>> loss.cross_entropy(torch.zeros(2), torch.tensor([0, 1]))
        tensor(0.6931, grad_fn=<AddBackward0>)
        """
        logits, positive, _ = self._counted(logits, labels)
        nothing = 0 * (self.a.sum() + self.b.sum() + self.alpha.sum())
        return self._entropy(logits, positive) + nothing

    def _entropy(self, logits: Tensor, positive: Tensor) -> Tensor:
        z = logits.to(torch.promote_types(logits.dtype, self.a.dtype))
        return binary_cross_entropy_with_logits(z, positive.to(z.dtype)) * self.tasks

    def _counted(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, which labels are positive, and how many; they are checked, and counted."""
        logits, labels = self.aligned(logits, labels)
        if self._values_need_a_check(logits):
            check_values(logits.detach(), labels)
            self._checked = True
        positive = positives(labels)
        count = positive.sum(0)
        if self.training and torch.is_grad_enabled():  # a validation loss is not training data
            self.seen.add_(torch.stack((count, len(labels) - count)).view(2, self.tasks))
        return logits, positive, count

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
        return _linked(logits, self.a.dtype, self.link)

    def extra_repr(self) -> str:
        """What `print(loss)` shows."""
        ratio = "estimated" if self.known_ratio is None else ", ".join(map(str, self.known_ratio))
        return f"pos_ratio={ratio}, tasks={self.tasks}, margin={self.margin:g}, link={self.link}"

    def _values_need_a_check(self, logits: Tensor) -> bool:
        if self.validate is not None:
            return self.validate
        if logits.is_meta:  # has no values
            return False
        return logits.device.type == "cpu" or not self._checked

    def aligned(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and labels of one shape: [N] for one task, [N, C] for C."""
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
        shapes = [list(logits.shape), list(labels.shape)]
        if self.tasks == 1:
            fits = all(shape[1:] in ([], [1]) for shape in shapes)
            logits, labels = logits.flatten(), labels.flatten()
        else:
            fits = all(shape[1:] == [self.tasks] for shape in shapes)
        if not fits or len(logits) != len(labels):
            raise ValueError(
                f"logits of shape {shapes[0]} and labels of shape {shapes[1]}: expected both of "
                f"shape {self._expected_shape()}; "
                + (
                    "pass tasks=C for C tasks, or the difference of two softmax logits."
                    if self.tasks == 1
                    else "one column a task."
                )
            )
        return logits, labels

    def _expected_shape(self) -> str:
        return "[N] or [N, 1]" if self.tasks == 1 else f"[N, {self.tasks}]"


class _MinMaxAUC(torch.autograd.Function):
    """F and all its gradients in one pass, in closed form.

    With u = h - (a + m + alpha) for positives and h - (b - m - alpha) for negatives, and the weight
    c = 1-p or p, dF/dh is 2 c u; the class sums of h that a, b and alpha need follow from sums of
    c u, and F from the sum of c u^2.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        positive: Tensor,
        count: Tensor,
        a: Tensor,
        b: Tensor,
        alpha: Tensor,
        p: Tensor,
        margin: float,
        link: str,
    ) -> Tensor:
        size = len(logits)
        h = _linked(logits, a.dtype, link)
        share = count.to(h.dtype) / size
        other = 1 - share
        pull, q = margin + alpha, 1 - p
        high, low = a + pull, b - pull
        u = h - torch.where(positive, high, low)
        cu = torch.where(positive, q, p) * u
        part = (cu * positive).sum(0) / size
        up = part + q * share * high  # (1-p) E[h[+]]
        down = cu.sum(0) / size - part + p * other * low  # p E[h[-]]
        value = (cu * u).sum(0) / size - p * q * alpha**2
        value = value - q * share * pull * (a + high) + p * other * pull * (b + low)
        grad = torch.ops.aten.sigmoid_backward(cu, h) if link == "sigmoid" else cu
        ctx.save_for_backward(
            (grad * (2 / size)).to(logits.dtype),
            2 * (q * share * a - up),
            2 * (p * other * b - down),
            2 * (down - up - p * q * alpha),
        )
        return value.sum()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: the result would silently be a constant
            raise RuntimeError(
                "MinMaxAUCLoss has no second derivatives: leave out create_graph=True, or write "
                "the loss with codauc.objective.objective."
            )
        logits, a, b, alpha = (
            (grad * scale).to(grad.dtype) if needed else None
            for grad, needed in zip(
                ctx.saved_tensors, [ctx.needs_input_grad[i] for i in (0, 3, 4, 5)], strict=True
            )
        )
        return logits, None, None, a, b, alpha, None, None, None


def _linked(logits: Tensor, at_least: torch.dtype, link: str) -> Tensor:
    h = logits.to(torch.promote_types(logits.dtype, at_least))
    return h.sigmoid() if link == "sigmoid" else h


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


def check_values(logits: Tensor, labels: Tensor) -> None:
    """Raise if a logit is not finite or the labels are not of two known values."""
    low, high = torch.aminmax(logits)
    if not (math.isfinite(low.item()) and math.isfinite(high.item())):
        bad = (~logits.isfinite()).nonzero()
        raise ValueError(
            f"logits: got {int(logits.isnan().sum())} NaN and {int(logits.isinf().sum())} infinite "
            f"of {logits.numel()}, the first at {bad[0].tolist()}; expected finite numbers; "
            "lower the step size, or look for bad input in this batch."
        )
    if labels.dtype == torch.bool:
        return
    one = labels == 1
    if not ((one | (labels == 0)).all() or (one | (labels == -1)).all()):
        values = sorted(set(labels.flatten().tolist()))[:5]
        raise ValueError(
            f"labels: got the values {values}; expected 0 and 1, -1 and +1, or bool; "
            "turn classes into one against the rest, for example labels == positive_class."
        )
