"""A module's parameters and buffers as one contiguous vector, of which they are views."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from codauc.algorithm._large_pages import empty_vector

PRIMAL = ("weight", "ab")  # roles that make up v = (w, a, b); they come first in every vector
STEERED = (*PRIMAL, "alpha")  # what steps move; the rest follows by itself
ROLES = (*STEERED, "buffer", "moment")


class Entry(NamedTuple):
    """One tensor that lives in the vector, and where its owner keeps it."""

    name: str
    role: str
    group: int
    owner: nn.Module
    attribute: str
    ties: tuple[tuple[nn.Module, str], ...] = ()

    @property
    def tensor(self) -> Tensor:
        """The tensor the owner holds now."""
        tensor = self.held_by(self.owner, self.attribute)
        assert tensor is not None
        return tensor

    def held_by(self, owner: nn.Module, attribute: str) -> Tensor | None:
        """What an owner (the first, or one tied to it) holds now."""
        table = owner._parameters if self.role == "weight" else owner._buffers
        return table.get(attribute)


class Block(NamedTuple):
    """A contiguous stretch of one vector whose entries share role and group."""

    role: str
    group: int
    vector: int
    start: int
    stop: int

    def of(self, vectors: list[Tensor]) -> Tensor:
        """The stretch of vectors that are laid out like the state's own."""
        return vectors[self.vector][self.start : self.stop]


class FlatState:
    """Parameters, a, b, alpha, statistics and moments as views of one vector for each dtype.

    Usually there is one dtype and so one vector. v = (w, a, b) comes first, group after group, then
    alpha, then BatchNorm's statistics and an optimizer's moments, so that steps and rounds work on
    whole stretches. A tensor keeps its
    identity, shape and strides (channels_last stays so); only its memory moves. What moves it away
    again (`module.to(...)`, `load_state_dict(assign=True)`) is found by `check`.

    >>> model = nn.Linear(2, 1)
    >>> state = FlatState(list(entries_of(model, [list(model.parameters())])))
    >>> state.vectors[0].zero_()
    tensor([0., 0., 0.])
    >>> model.weight.tolist()
    [[0.0, 0.0]]
    """

    def __init__(self, entries: list[Entry]) -> None:
        _check_entries(entries)
        self.entries = sorted(entries, key=lambda e: (ROLES.index(e.role), e.group))
        tensors = [entry.tensor for entry in self.entries]
        dtypes = list(dict.fromkeys(tensor.dtype for tensor in tensors))
        self.vectors: list[Tensor] = []
        self.blocks: list[Block] = []
        self.primal_sizes: list[int] = []
        self.steered_sizes: list[int] = []  # all but statistics and moments, which come last
        self.places: dict[tuple[str, str], tuple[int, int]] = {}  # by role and name
        for dtype in dtypes:
            self._lay_out(dtype)
        self._expected = [(e, t, t.data_ptr()) for e, t in zip(self.entries, tensors, strict=True)]
        self._tensors = tensors
        self.size = sum(map(len, self.vectors))
        self.dtype = torch.float32
        for dtype in dtypes:
            self.dtype = torch.promote_types(self.dtype, dtype)

    def _lay_out(self, dtype: torch.dtype) -> None:
        index, start = len(self.vectors), 0
        mine = [entry for entry in self.entries if entry.tensor.dtype == dtype]
        device = mine[0].tensor.device
        vector = empty_vector(sum(e.tensor.numel() for e in mine), dtype, device)
        self.primal_sizes.append(sum(e.tensor.numel() for e in mine if e.role in PRIMAL))
        self.steered_sizes.append(sum(e.tensor.numel() for e in mine if e.role in STEERED))
        for entry in mine:
            tensor, stop = entry.tensor, start + entry.tensor.numel()
            view = view_like(tensor, vector, start)
            view.copy_(tensor.detach())
            tensor.data = view
            self.places[entry.role, entry.name] = (index, start)
            last = self.blocks[-1] if self.blocks else None
            if last and last.vector == index and last[:2] == (entry.role, entry.group):
                self.blocks[-1] = last._replace(stop=stop)
            else:
                self.blocks.append(Block(entry.role, entry.group, index, start, stop))
            start = stop
        self.vectors.append(vector)

    @property
    def primal(self) -> list[Tensor]:
        """v = (w, a, b): the head of every vector."""
        return [v[:n] for v, n in zip(self.vectors, self.primal_sizes, strict=True)]

    def like_primal(self, at_least: torch.dtype | None = None) -> list[Tensor]:
        """Zeros laid out like v, in at least the given precision."""
        return [
            empty_vector(
                len(v), torch.promote_types(v.dtype, at_least or v.dtype), v.device
            ).zero_()
            for v in self.primal
        ]

    def pack(self, message: Tensor, primal: list[Tensor] | None = None, divisor: int = 1) -> None:
        """Copy the state, divided, into `message`, with other values in the place of v if given."""
        start = 0
        for vector, size, v in zip(
            self.vectors, self.primal_sizes, primal or self.primal, strict=True
        ):
            middle, stop = start + size, start + len(vector)
            _copy_divided(v, message[start:middle], divisor)
            _copy_divided(vector[size:], message[middle:stop], divisor)
            start = stop

    def unpack(self, message: Tensor) -> None:
        """Copy `message` into the state."""
        for vector, part in self._parts(message):
            vector.copy_(part)
        self.mark_changed()

    def correct(self, mean: Tensor, before: Tensor) -> None:
        """Add `mean - before` to the state; `mean` is used up.

        Statistics and moments become the mean's: a correction could make a variance negative.
        """
        parts = zip(self._parts(mean), self._parts(before), self.steered_sizes, strict=True)
        for (vector, new), (_, old), size in parts:
            vector[:size].add_(new[:size].sub_(old[:size]))
            vector[size:].copy_(new[size:])
        self.mark_changed()

    def _parts(self, message: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(
            self.vectors, torch.split(message, [len(v) for v in self.vectors]), strict=True
        )

    def mark_changed(self) -> None:
        """Tell autograd that the tensors changed, as they would by operations of their own."""
        _count_changes(self._tensors)

    def entries_in(self, block: Block) -> list[Entry]:
        """The entries of a block, in the order of their places."""
        mine = (block.role, block.group, block.vector)
        return [
            e for e in self.entries if (e.role, e.group, self.places[e.role, e.name][0]) == mine
        ]

    def stretches(self, role: str) -> list[slice]:
        """Where the blocks of one role lie in a message."""
        starts = [sum(map(len, self.vectors[:i])) for i in range(len(self.vectors))]
        return [
            slice(starts[b.vector] + b.start, starts[b.vector] + b.stop)
            for b in self.blocks
            if b.role == role
        ]

    def layout(self) -> list[list[str]]:
        """Name, role, shape, strides and dtype of every entry: what two workers must share."""
        return [
            [e.name, e.role, str(list(t.shape)), str(list(t.stride())), str(t.dtype)]
            for e, t, _ in self._expected
        ]

    def check(self) -> None:
        """Raise if a tensor is no longer a view of the vector, so no stale copy is ever trained."""
        for entry, tensor, pointer in self._expected:
            (_, role, _, owner, attribute, ties) = entry
            table = owner._parameters if role == "weight" else owner._buffers
            if table.get(attribute) is not tensor or tensor.data_ptr() != pointer or ties:
                self._check_closely(entry, tensor, pointer)

    def _check_closely(self, entry: Entry, tensor: Tensor, pointer: int) -> None:
        holders = ((entry.owner, entry.attribute), *entry.ties)
        now = next((t for h in holders if (t := entry.held_by(*h)) is not tensor), tensor)
        if now is not tensor or tensor.data_ptr() != pointer:
            where = "was removed" if now is None else f"is now {now.dtype} on {now.device}"
            raise RuntimeError(
                f"{entry.name} {where}, no longer part of the optimizer's vector: its module "
                "was moved, cast or replaced after PPDSG was made. Move it first, then make "
                "PPDSG."
            )


def _count_changes(tensors: list[Tensor]) -> None:
    """Raise the version counters; an older torch takes one tensor at a time."""
    try:
        torch.autograd.graph.increment_version(tensors)
    except (TypeError, RuntimeError):
        for tensor in tensors:
            torch.autograd.graph.increment_version(tensor)


def _copy_divided(source: Tensor, target: Tensor, divisor: int) -> None:
    if divisor == 1:
        target.copy_(source)
    elif source.dtype == target.dtype:
        torch.div(source, divisor, out=target)
    else:
        target.copy_(source).div_(divisor)


def view_like(tensor: Tensor, vector: Tensor, start: int) -> Tensor:
    """A view of `vector` from `start` with the shape of `tensor`, and its strides if dense."""
    if is_dense(tensor):
        return vector.as_strided(tensor.shape, tensor.stride(), vector.storage_offset() + start)
    return vector[start : start + tensor.numel()].view(tensor.shape)


def entries_of(model: nn.Module, groups: list[list[nn.Parameter]]) -> Iterator[Entry]:
    """Entries of a model: its parameters by group, and the statistics of its norm layers."""
    group_of = {id(p): index for index, group in enumerate(groups) for p in group}
    found: dict[int, Entry] = {}
    for prefix, module in model.named_modules():
        for attribute, parameter in module._parameters.items():
            key, name = id(parameter), _join(prefix, attribute)
            if key in found:
                found[key] = found[key]._replace(ties=(*found[key].ties, (module, attribute)))
            elif key in group_of:
                found[key] = Entry(name, "weight", group_of[key], module, attribute)
    yield from found.values()
    for prefix, module in model.named_modules():
        if isinstance(module, _NormBase):
            for attribute, buffer in module._buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    yield Entry(_join(prefix, attribute), "buffer", 0, module, attribute)


def _join(prefix: str, attribute: str) -> str:
    return f"{prefix}.{attribute}" if prefix else attribute


def is_dense(tensor: Tensor) -> bool:
    """Whether the strides visit every element of a gapless stretch once."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _check_entries(entries: list[Entry]) -> None:
    for entry in entries:
        if nn.parameter.is_lazy(entry.tensor):
            raise ValueError(
                f"{entry.name} has no shape yet: run one batch through lazy modules before PPDSG."
            )
        if not entry.tensor.is_floating_point():
            raise ValueError(
                f"{entry.name} of {entry.tensor.dtype}: expected real floating point; "
                "freeze it (requires_grad_(False)) or give only other parameters to PPDSG."
            )
    _check_memory(entries)
    devices = {entry.tensor.device: entry.name for entry in entries}
    if len(devices) > 1:
        places = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise ValueError(
            f"tensors on several devices ({places}): expected the model and the loss on one; "
            "move both before PPDSG is made."
        )


def _check_memory(entries: list[Entry]) -> None:
    """Raise if two tensors share memory without being one: laying them out would part them."""
    places: dict[int, str] = {}
    for entry in entries:
        tensor = entry.tensor
        if tensor.is_meta or tensor.numel() == 0:
            continue
        other = places.setdefault(tensor.data_ptr(), entry.name)
        if other != entry.name:
            raise ValueError(
                f"{entry.name} and {other} share memory but are two tensors: expected one tensor "
                "in both places; tie them by assigning the same nn.Parameter."
            )
