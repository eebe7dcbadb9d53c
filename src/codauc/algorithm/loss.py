"""The module that owns a, b, alpha and p, and turns logits and labels into F."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from codauc._internal.checks import choice, known_arguments, real
from codauc.algorithm.closed_form import ClosedForm, Given, are_readable
from codauc.algorithm.inner_steps import BatchMeans, InnerVariables
from codauc.algorithm.loss_checks import (
    MisuseCheck,
    aligned,
    check_values,
    checked_ratios,
    checked_tasks,
)
from codauc.algorithm.objective import positives
from codauc.algorithm.sample_weights import check_ratio_is_known, weighted

LINKS = ("sigmoid", "identity")


class MinMaxAUCLoss(nn.Module):
    """Mean over the batch of the min-max objective F; its saddle value is the AUC's square loss.

        F = (1-p)(h-a)^2[+] + p(h-b)^2[-] + 2(m+alpha)(p h[-] - (1-p) h[+]) - p(1-p) alpha^2

    h = sigmoid(logits), p is `pos_ratio`, m is `margin`; a, b and alpha are buffers of this
    module, which `PPDSG` moves (down in a and b, up in alpha). F itself may be negative: the
    readable number is `codauc.algorithm.objective.pairwise_loss`, which never is.

    `backward()` leaves the gradient of the weights as usual, and what a, b and alpha need of the
    batch in this module, where `opt.step()` uses it up: no loop has to clear it.

    Labels are 0/1, -1/+1 or bool, of shape [N], or [N, C] for C tasks, each with its own a, b,
    alpha and p; the value is then the sum over the tasks, so that every task takes the same dual
    steps as if it were alone. Without `pos_ratio`, p is estimated from the labels seen in training,
    by all workers together, as (positives + 1/2) / (labels + 1); `tasks` then says how many.

    `link="identity"` leaves out the sigmoid: h is then the logit itself, unbounded. `mix` adds
    that many times the cross-entropy to F: with many positives it makes better use of them.

    `loss(logits, labels, weights)` takes one weight >= 0 per sample: a sample of weight 2 counts as
    two, one of weight 0 not at all. F and the cross-entropy are then sums of weight times value,
    divided by the sum of the batch's weights; or, if the attribute `mean_weight` is set to that of
    all data, by it times the size of the batch: as repeated rows in expectation over random
    batches. `pos_ratio` is needed, the share of positives among the weights. Weights of shape
    [N, C] are those of each task.

    Values are checked on every batch on the CPU, and on the first batch elsewhere, because a check
    waits for the device; `validate=True` checks always, `validate=False` never.

    >>> loss = MinMaxAUCLoss(pos_ratio=0.1)
    >>> logits = torch.zeros(4, requires_grad=True)
    >>> value = loss(logits, torch.tensor([1, 0, 0, 0]))
    >>> value.backward()
    >>> round(value.item(), 4), [round(g, 3) for g in logits.grad.tolist()]
    (-0.075, [-0.056, 0.019, 0.019, 0.019])
    """

    a: Tensor
    b: Tensor
    alpha: Tensor
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
        self.known_ratio = None if pos_ratio is None else checked_ratios(pos_ratio)
        self.tasks = checked_tasks(tasks, self.known_ratio)
        self.margin = real("margin", margin, above=0, remedy="use 1, the paper's")
        self.link = choice("link", link, LINKS)
        self.mix = real("mix", mix, least=0, remedy="use 0 for F alone")
        self.mean_weight: float | None = None  # of all data, to divide weights by
        self.one_label = False  # whether all tasks have the same label: members of an ensemble
        self.validate = validate
        self._checked = False
        self.has_optimizer = False  # whether a PPDSG or PPDAdam moves a, b and alpha
        self._misuse = MisuseCheck()
        self.one_class_told = False  # whether a shard without a class was reported
        self.ratio_told = False  # whether a doubtful pos_ratio was reported
        self._ratio_cache: Tensor | None = None
        self._register()

    @torch.inference_mode(False)  # tensors made within it could never take part in training
    def _register(self) -> None:
        for name in ("a", "b", "alpha"):
            self.register_buffer(name, torch.zeros(self.tasks))
        self._sums = self._new_sums()
        # Rows: positives, negatives. What this worker saw, what of it the group knows, and what
        # the group saw together.
        for name in ("seen", "reported", "counts"):
            self.register_buffer(name, torch.zeros(2, self.tasks, dtype=torch.int64))

    @torch.inference_mode(False)
    def _new_sums(self) -> Tensor:
        return self.a.new_zeros(self.tasks, 5, requires_grad=True)

    def forward(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """F over the batch, a scalar; in training mode, with gradients, the labels are counted."""
        logits, labels = self.aligned(logits, labels)
        given = self._counted(logits, labels, weights)
        value: Tensor = ClosedForm.apply(logits, self.sums, given)  # type: ignore[no-untyped-call]
        return value + self.mix * self._entropy(logits, given) if self.mix else value

    def cross_entropy(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """The batch's mean cross-entropy, in place of F, for a warm start: it moves w alone.

        a, b and alpha stay; `Stage(estimate_ab=True)` gives them values when the stage ends.
        Several tasks add up.

        >>> loss = MinMaxAUCLoss(pos_ratio=0.5)
        >>> loss.cross_entropy(torch.zeros(2), torch.tensor([0, 1]))
        tensor(0.6931, grad_fn=<AddBackward0>)
        """
        logits, labels = self.aligned(logits, labels)
        given = self._counted(logits, labels, weights)
        return self._entropy(logits, given) + 0 * self.sums.sum()

    def _entropy(self, logits: Tensor, given: Given) -> Tensor:
        marks = given.marks
        value = binary_cross_entropy_with_logits(logits.to(marks.dtype), marks, given.weights)
        return value * self.tasks if self.tasks > 1 else value

    def _counted(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> Given:
        """What the batch gives beside logits, checked, and counted if it is one of training."""
        if self._values_need_a_check(logits):
            check_values(logits.detach(), labels)
        positive, size = positives(labels), len(labels)
        marks = positive.to(torch.promote_types(logits.dtype, self.a.dtype))
        numbers, count = self.reads_numbers(logits, labels), positive.sum(0)
        share: Any = count.item() if numbers else count
        if self.training and torch.is_grad_enabled():  # validation is not training data
            self._misuse.look(logits, self.link, has_optimizer=self.has_optimizer)
            self.seen.add_(
                torch.tensor([[share], [size - share]])
                if numbers
                else torch.stack((count, size - count)).view(2, self.tasks)
            )
        share = share / size if numbers else count.to(marks.dtype) / size
        inner = self.inner(numbers=numbers)
        p = self.ratio(numbers=numbers)
        given = Given(marks, share, p, inner, self.margin, self.link)
        if weights is None:
            return given
        check_ratio_is_known(self.known_ratio)
        self.ratio_told = True  # labels are counted without weights
        return weighted(given, weights, self.mean_weight, check=self.validate is not False)

    @property
    def sums(self) -> Tensor:
        """The tensor [tasks, 5] whose gradient is what a, b and alpha need of the batches.

        Means over a batch of [+], [-], h[+] and h[-], and 1, times the scale of the loss, added up
        over the backward passes since the last step. Its own values are zero and mean nothing.
        """
        kept, own = self._sums, self.a
        if kept.dtype != own.dtype or kept.device != own.device:
            self._sums = kept = self._new_sums()
        return kept

    def batch_means(self) -> BatchMeans:
        """Means of [+], [-], h[+] and h[-] over the batches since the last step.

        They do not depend on what the loss was multiplied by before `backward()`. All are zero
        after `cross_entropy`. They are numbers where these can be read.

        >>> loss = MinMaxAUCLoss(pos_ratio=0.5)
        >>> (8 * loss(torch.zeros(2), torch.tensor([0, 1]))).backward()
        >>> loss.batch_means()
        BatchMeans(positive=0.5, negative=0.5, up=0.25, down=0.25)
        """
        found = self.sums.grad
        if found is None:
            raise RuntimeError("no backward() since the last step: there are no means.")
        if self.reads_numbers(found):
            *numbers, scale = found[0].tolist()
            return BatchMeans(*(number / scale if scale else 0.0 for number in numbers))
        scales = found[:, 4]
        return BatchMeans(
            *found.t()[:4] / torch.where(scales == 0, torch.ones_like(scales), scales)
        )

    def reads_numbers(self, *tensors: Tensor) -> bool:
        """Whether a step works with numbers: one task, values that cost nothing to read."""
        return self.tasks == 1 and are_readable(*tensors)

    def inner(self, *, numbers: bool) -> InnerVariables:
        """a, b and alpha."""
        found = (self._buffers[name] for name in InnerVariables._fields)
        return InnerVariables(*(v.item() if numbers else v for v in found if v is not None))

    def set_inner(self, inner: InnerVariables) -> None:
        """Give a, b and alpha other values."""
        for name, value in zip(InnerVariables._fields, inner, strict=True):
            own = self._buffers[name]
            assert own is not None
            own.copy_(value) if isinstance(value, Tensor) else own.fill_(value)

    def ratio(self, *, numbers: bool) -> Any:
        """p, as a number or one element per task."""
        if not numbers:
            return self.pos_ratio
        if self.known_ratio is not None:
            return self.known_ratio[0]
        positive, negative = (self.counts + self.seen - self.reported).flatten().tolist()
        return (positive + 0.5) / (positive + negative + 1)

    @property
    def pos_ratio(self) -> Tensor:
        """p of each task: as given, or as estimated so far."""
        own, cache = self.a, self._ratio_cache
        if self.known_ratio is None:
            known = (self.counts + self.seen - self.reported).to(own.dtype)
            return (known[0] + 0.5) / (known.sum(0) + 1)
        if cache is None or cache.dtype != own.dtype or cache.device != own.device:
            cache = torch.tensor(self.known_ratio, dtype=own.dtype, device=own.device)
            self._ratio_cache = cache
        return cache

    @property
    def ratio_is_unseen(self) -> bool:
        """Whether p is to be estimated and no label has been counted by all workers so far."""
        return self.known_ratio is None and not bool(self.counts.any())

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
        if self.one_label and labels.dim() == 1:
            labels = labels.unsqueeze(1).expand(-1, self.tasks)
        return aligned(logits, labels, self.tasks)
