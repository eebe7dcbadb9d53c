"""Rounds of workers that are a Stack, the ledger they would keep, and what they cannot do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from codauc.averaging import WISHES, Averager
from codauc.flat import PRIMAL, Entry, view_like
from codauc.group import Call, Group, LocalGroup, Pending
from codauc.optim import PPDSG
from codauc.stack import INSTEAD, Stack


def check_stack(opt: PPDSG, **options: Any) -> None:
    """Raise where a Stack is asked for something that only real workers, or threads, can do."""
    stack, loss = opt.model, opt.loss
    if not isinstance(stack, Stack):
        return
    for name, value in {**options, "max_grad_norm": opt.max_grad_norm}.items():
        if value:
            got = type(value).__name__ if name == "group" else value
            raise ValueError(
                f"{name}={got!r} with a Stack: expected none, for its workers are one model; leave "
                f"it out, or {INSTEAD}."
            )
    if loss.tasks != stack.workers or loss.known_ratio is None or len(set(loss.known_ratio)) > 1:
        raise ValueError(
            f"loss of {loss.tasks} tasks, pos_ratio {loss.known_ratio}: expected one of "
            f"{stack.workers}, all with the same number; use stack.loss(pos_ratio=...)."
        )
    own = {id(p) for p in stack.stacked().values()}
    for entry in opt.flat.entries:
        if entry.role == "weight" and id(entry.tensor) not in own:
            raise ValueError(
                f"{entry.name} asks for gradients but was frozen when the Stack was made, and so "
                "is shared: unfreeze it in the model, then make the Stack."
            )


def averager_for(
    opt: PPDSG, group: Group | None, compress: str | None = None, delay: int = 0
) -> Averager:
    """What averages over the workers of a group, or over those of a Stack."""
    if isinstance(opt.model, Stack):
        check_stack(opt, group=group, compress=compress, delay=delay)
        return StackAverager(opt, StackedGroup(opt.model.workers))
    return Averager(opt, group if group is not None else LocalGroup(), compress)


class StackedGroup(LocalGroup):
    """The workers of a Stack: one process, and the ledger that worker 0 of K would keep.

    Seconds are those of all workers together.
    """

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.workers = workers

    @contextmanager
    def speaking(self, name: str, kind: str, numbers: int, dtype: torch.dtype) -> Iterator[None]:
        """What is done inside is a collective on so many numbers of each worker."""
        self.ledger.stand_still()
        start = time.perf_counter()
        yield
        given = torch.empty(numbers, dtype=dtype, device="meta")
        self._enter(Call(name, kind, given, given), time.perf_counter() - start)
        self.ledger.go_on()

    def start(self, call: Call) -> Pending:
        """What is equal on all workers anyway is handed back."""
        pending = super().start(call)
        self._enter(call, 0.0)
        return pending

    def _enter(self, call: Call, seconds: float) -> None:
        sent, received = call.traffic(0, self.workers)
        self.ledger.add(call.kind, sent=sent, received=received, seconds=seconds)

    def sum_columns_(self, tensor: Tensor, kind: str) -> None:
        """`sum_` where each column is a worker's: all become their sum."""
        with self.speaking("sum_", kind, tensor.numel() // self.workers, tensor.dtype):
            tensor.copy_(tensor.sum(-1, keepdim=True).expand_as(tensor))


class StackAverager(Averager):
    """Rounds of a Stack: every worker's part becomes the mean over the leading dimension."""

    group: StackedGroup

    def __init__(self, opt: PPDSG, group: StackedGroup) -> None:
        super().__init__(opt, group)
        self.workers = group.workers
        self.numbers = opt.flat.size // group.workers  # that a worker would send of its state

    @torch.no_grad()
    def same_everywhere(self) -> None:
        """Give every worker the state of worker 0."""
        flat = self.opt.flat
        with self.group.speaking("broadcast_", "start", self.numbers, flat.dtype):
            for entry in flat.entries:
                entry.tensor.copy_(entry.tensor[:1].clone())
        for dtype, numbers in self._shared().items():
            with self.group.speaking("broadcast_", "start", numbers, dtype):
                pass  # they are one tensor

    def _shared(self) -> dict[torch.dtype, int]:
        """How many numbers no round averages, frozen parameters and buffers, by dtype."""
        averaged = {id(entry.tensor) for entry in self.opt.flat.entries}
        found: dict[torch.dtype, int] = {}
        for tensor in [*self.opt.model.parameters(), *self.opt.model.buffers()]:
            if id(tensor) not in averaged:
                found[tensor.dtype] = found.get(tensor.dtype, 0) + tensor.numel()
        return found

    @torch.no_grad()
    def round(self, *, closing: bool = False) -> None:
        """Replace the state by its mean; a stage's closing round takes the stage's result."""
        flat, loss = self.opt.flat, self.opt.loss
        result = self.opt.result if closing and self.opt.steps else None
        # beside the state: digits of two counts, seconds of K workers, wishes, and "not finite"
        numbers = self.numbers + 4 + self.workers + len(WISHES) + 1
        with self.group.speaking("sum_", "round", numbers, flat.dtype):
            self._check_finite(float(not all(map(self._finite, [*flat.vectors, *(result or [])]))))
            if self.watching and not closing:
                self._note_drift()
            for entry in flat.entries:
                entry.tensor.copy_(self._mean(entry, result))
            flat.mark_changed()
            fresh = (loss.seen - loss.reported).sum(1, keepdim=True)
            loss.agree(fresh.expand_as(loss.seen), loss.seen)
        self.grants += 1
        self.asked = set(self.asking)

    def _mean(self, entry: Entry, result: list[Tensor] | None = None) -> Tensor:
        flat, tensor = self.opt.flat, entry.tensor
        if result is not None and entry.role in PRIMAL:
            vector, start = flat.places[entry.role, entry.name]
            tensor = view_like(tensor, result[vector], start)
        return tensor.mean(0, keepdim=True, dtype=flat.dtype)

    def _note_drift(self) -> None:
        """Worker 0's, as its ledger."""
        square = length = 0.0
        for entry in self.opt.flat.entries:
            if entry.role == "weight":
                mean = self._mean(entry)
                square += float((entry.tensor[:1] - mean).square_().sum())
                length += float(mean.square().sum())
        self.drift = (square / length) ** 0.5 if length else 0.0

    @torch.no_grad()
    def gradients(self) -> None:
        """Replace the gradients by their mean over the workers."""
        found = [p.grad for group in self.opt.param_groups for p in group["params"]]
        gradients = [gradient for gradient in found if gradient is not None]
        numbers = sum(g.numel() for g in gradients) // self.workers + len(WISHES) + 1
        with self.group.speaking("sum_", "round", numbers, gradients[0].dtype):
            for gradient in gradients:
                gradient.copy_(gradient.mean(0, keepdim=True))
            self._check_finite(float(not all(map(self._finite, gradients))))
        self.grants += 1
        self.asked = set(self.asking)
