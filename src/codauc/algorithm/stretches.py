"""Stretches of the flat vector that take a step at once, and the gradients that belong there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from codauc.algorithm.flat_state import Block, Entry, FlatState, is_dense, view_like

BLOCK = 2**19  # numbers: of a few vectors, that many fit a processor's cache


class Cut(NamedTuple):
    """A part of a stretch that fits the cache: what a step reads and writes beside gradients."""

    v: Tensor
    anchor: Tensor
    average: Tensor | None
    momentum: Tensor | None
    second: Tensor | None  # moments of an adaptive step
    gradient: Tensor | None  # a place to lay gradients side by side, for a step that needs it
    tensors: list[Tensor]  # v as its gradients come: in several shapes, or as one part of a tensor
    momenta: list[Tensor]  # the same of the momentum
    gradients: list[Tensor]  # the same of the place for gradients

    def side_by_side(self, gradients: list[Tensor]) -> Tensor:
        """Gradients as one vector."""
        if self.gradient is None:
            return gradients[0]
        torch._foreach_copy_(self.gradients, gradients)
        return self.gradient


class Stretch:
    """Neighbouring tensors of one vector that take the same step.

    Gradients are read where autograd left them. A large tensor is a stretch of its own, of several
    parts; small ones share one, for an operation costs more than its few numbers.
    """

    def __init__(self, block: Block, start: int, entries: list[Entry]) -> None:
        self.block, self.vector, self.start = block, block.vector, start
        self.entries, self.tensors = entries, [entry.tensor for entry in entries]
        self.offsets = [0, *accumulate(tensor.numel() for tensor in self.tensors)]
        self.size = self.offsets.pop()
        self.stop = start + self.size
        self.cuts: list[Cut] = []

    def of(self, vectors: list[Tensor]) -> Tensor:
        """The stretch of vectors that are laid out like the state's own."""
        return vectors[self.vector][self.start : self.stop]

    def view(self, index: int, stretch: Tensor) -> Tensor:
        """One tensor's part of a vector that is laid out like this stretch, in its shape."""
        return view_like(self.tensors[index], stretch, self.offsets[index])

    def cut(self, sides: list[Tensor | None]) -> None:
        """Lay out the parts: v, anchor, average, momentum, second moment, place for gradients.

        The place is for steps that take gradients side by side; a single tensor needs none.
        """
        if len(self.tensors) > 1:
            self.cuts = [Cut(*sides, *(self._views(sides[i]) for i in (0, 3, 5)))]  # type: ignore[arg-type]
            return
        count = max(1, -(-self.size // BLOCK))
        columns = [[None] * count if s is None else torch.split(s, BLOCK) for s in sides]
        lists = [[[] if s is None else [s] for s in columns[i]] for i in (0, 3, 5)]
        self.cuts = [Cut(*parts) for parts in zip(*columns, *lists, strict=True)]

    def _views(self, side: Tensor | None) -> list[Tensor]:
        return [] if side is None else [self.view(i, side) for i in range(len(self.tensors))]

    def gradients(self) -> tuple[list[list[Tensor]], list[int]]:
        """For each part its gradients, none at all if all are missing; and which tensors lack one.

        A missing one among others counts as zero.
        """
        found = [tensor.grad for tensor in self.tensors]
        missing = [i for i, gradient in enumerate(found) if gradient is None]
        if len(missing) == len(found):
            return [], missing
        for i in missing:
            found[i] = torch.zeros_like(self.tensors[i])
        dense = [g.to_dense() if g.is_sparse else g for g in found if g is not None]
        if len(self.tensors) > 1:
            return [dense], missing
        parts = torch.split(_in_order(self.tensors[0], dense[0]), BLOCK)
        return [[part] for part in parts], missing


def _in_order(tensor: Tensor, gradient: Tensor) -> Tensor:
    """The gradient's numbers in the order in which the tensor's lie in memory."""
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    if gradient.dtype != tensor.dtype or gradient.is_neg():
        gradient = gradient.to(tensor.dtype).resolve_neg()
    if gradient.is_contiguous() and tensor.is_contiguous():
        return gradient.view(-1)
    if gradient.stride() == tensor.stride() and is_dense(tensor):
        return gradient.as_strided((tensor.numel(),), (1,), gradient.storage_offset())
    copied = gradient.new_empty(tensor.numel())
    view_like(tensor, copied, 0).copy_(gradient)
    return copied


class StretchPlan:
    """The stretches of w, laid out again only when other blocks take the same step."""

    def __init__(self, flat: FlatState) -> None:
        self.flat = flat
        self._alike: list[int] = []
        self._found: list[Stretch] = []

    def reset(self) -> None:
        """Lay out again: what belongs to a stretch has moved."""
        self._alike = []

    def get(
        self, ways: Sequence[object], sides: Callable[[Stretch], list[Tensor | None]]
    ) -> list[Stretch]:
        """The stretches, given each block's way to step and what `Stretch.cut` takes."""
        alike = [ways.index(way) for way in ways]  # a scheduler changes ways, but seldom these
        if alike != self._alike:
            self._found, self._alike = stretches(self.flat, alike), alike
            for stretch in self._found:
                stretch.cut(sides(stretch))
        return self._found


def stretches(flat: FlatState, ways: Sequence[object]) -> list[Stretch]:
    """The stretches of w; neighbours are joined where their blocks' ways to step are equal.

    `ways` has one value for each of the state's blocks. Small tensors share a stretch.
    """
    found = []
    for block, entries in _joined(flat, ways):
        start = block.start
        for part in _parts(entries):
            found.append(Stretch(block, start, part))
            start = found[-1].stop
    return found


def _joined(flat: FlatState, ways: Sequence[object]) -> Iterator[tuple[Block, list[Entry]]]:
    """Blocks of w with their entries, joined with the next one if it takes the same step."""
    held: list[Entry] = []
    first, key = flat.blocks[0], None
    for block, way in zip(flat.blocks, ways, strict=True):
        if block.role != "weight":
            continue
        if held and (block.vector, way) != key:
            yield first, held
            held = []
        if not held:
            first, key = block, (block.vector, way)
        held = held + flat.entries_in(block)
    if held:
        yield first, held


def _parts(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Tensors together, as far as they have at most `BLOCK` numbers; larger ones by themselves."""
    held: list[Entry] = []
    size = 0
    for entry in entries:
        count = entry.tensor.numel()
        if held and size + count > BLOCK:
            yield held
            held, size = [], 0
        held.append(entry)
        size += count
    if held:
        yield held


def clip_factor(weights: list[Tensor], longest: float | None, dtype: torch.dtype) -> Tensor | None:
    """What to multiply gradients by so that together they are at most `longest`; None for 1."""
    gradients = [tensor.grad for tensor in weights if tensor.grad is not None]
    if longest is None or not gradients:
        return None
    dense = (g.to_dense() if g.is_sparse else g for g in gradients)
    norms = [torch.linalg.vector_norm(g, dtype=dtype) for g in dense]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    return torch.clamp(longest / (norm + 1e-6), max=1.0)
