"""What rounds average, weights, a, b, alpha, statistics and moments, and the vector of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from codauc.algorithm.loss import MinMaxAUCLoss

ROLES = ("weight", "a", "b", "alpha", "buffer")  # v = (w, a, b) comes first


class Slot(NamedTuple):
    """One tensor that is trained or averaged, and where its owner keeps it."""

    name: str
    role: str
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


class TrainedState:
    """The tensors that rounds average, in the order in which a message carries them.

    They stay where their owners keep them. `pack` copies them into a message and `unpack` back.
    w comes first, parameter group after group, then a, b, alpha, BatchNorm's statistics, and the
    moments that the optimizer wants averaged (`moments(w)`, one for each weight, or none). With
    `statistics=False` those of BatchNorm stay with their worker.

    >>> model = nn.Linear(2, 1)
    >>> state = TrainedState(model, MinMaxAUCLoss(0.5), [list(model.parameters())])
    >>> message = torch.zeros(state.size)
    >>> state.unpack(message)
    >>> model.weight.tolist()
    [[0.0, 0.0]]
    """

    def __init__(
        self,
        model: nn.Module,
        loss: MinMaxAUCLoss,
        groups: list[list[nn.Parameter]],
        names: frozenset[str] = frozenset(),
        moments: Callable[[list[Tensor]], list[Tensor]] | None = None,
        *,
        statistics: bool = True,
    ) -> None:
        weights = [slot for group in groups for slot in _weight_slots(model, group, names)]
        own = [Slot(f"loss.{name}", name, loss, name) for name in ("a", "b", "alpha")]
        self.slots = [*weights, *own, *(_statistics(model) if statistics else ())]
        _check_slots(self.slots)
        self._held = [(s.owner._parameters, s.attribute, s.tensor, s) for s in weights]
        self.weights = [slot.tensor for slot in weights]
        tensors = [slot.tensor for slot in self.slots]
        self.device = tensors[0].device
        self.dtype = torch.float32
        for tensor in tensors:
            self.dtype = torch.promote_types(self.dtype, tensor.dtype)
        self.weight_size = sum(weight.numel() for weight in self.weights)
        self.steered = len(weights) + 3  # tensors that steps move
        self.steered_size = self.weight_size + 3 * loss.tasks
        self.moments = moments
        self.moment_size = 0 if moments is None else self.weight_size
        self.size = sum(tensor.numel() for tensor in tensors) + self.moment_size

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order of a message."""
        moments = [] if self.moments is None else self.moments(self.weights)
        return [*(slot.tensor for slot in self.slots), *moments]

    @property
    def statistics(self) -> list[Tensor]:
        """Those of BatchNorm and the like."""
        return [slot.tensor for slot in self.slots if slot.role == "buffer"]

    @torch.no_grad()
    def pack(self, message: Tensor, primal: list[Tensor] | None = None, divisor: float = 1) -> None:
        """Copy the state, divided, into `message`, with other values in the place of v if given."""
        tensors = self.tensors()
        tensors[: len(primal or ())] = primal or ()
        for tensor, part in zip(tensors, self.parts(message), strict=True):
            if divisor == 1:
                part.copy_(tensor)
            elif tensor.dtype == part.dtype:
                torch.div(tensor, divisor, out=part)
            else:
                part.copy_(tensor).div_(divisor)

    @torch.no_grad()
    def unpack(self, message: Tensor) -> None:
        """Copy `message` into the state."""
        for tensor, part in zip(self.tensors(), self.parts(message), strict=True):
            tensor.copy_(part)

    @torch.no_grad()
    def steer(self, values: Tensor) -> None:
        """Copy the values of a message into what steps move: w, a, b and alpha."""
        for tensor, part in zip(self.tensors()[: self.steered], self.parts(values), strict=False):
            tensor.copy_(part)

    @torch.no_grad()
    def shift(self, change: Tensor) -> None:
        """Add a change, laid out as a message, to what steps move."""
        for tensor, part in zip(self.tensors()[: self.steered], self.parts(change), strict=False):
            tensor.add_(part)

    @torch.no_grad()
    def correct(self, mean: Tensor, change: Tensor) -> None:
        """Add a change to what steps move.

        Statistics and moments become the mean's: a correction could make a variance negative.
        """
        self.shift(change)
        rest = list(zip(self.tensors(), self.parts(mean), strict=True))[self.steered :]
        for tensor, part in rest:
            tensor.copy_(part)

    def parts(self, message: Tensor) -> Iterator[Tensor]:
        """The part of a message for each tensor, in its shape."""
        tensors = self.tensors()
        starts = accumulate((tensor.numel() for tensor in tensors), initial=0)
        for tensor, start in zip(tensors, starts, strict=False):
            yield view_like(tensor, message, start)

    def layout(self) -> list[list[str]]:
        """Name, role, shape, dtype and strides of every tensor: what two workers must share."""
        return [
            [slot.name, slot.role, str(list(t.shape)), str(t.dtype), str(list(t.stride()))]
            for slot, t in ((slot, slot.tensor) for slot in self.slots)
        ]

    def frozen(self) -> list[str]:
        """Names of weights that no longer ask for gradients."""
        return [slot.name for *_, weight, slot in self._held if not weight.requires_grad]

    def check(self) -> None:
        """Raise if the model has another parameter in the place of one that is trained."""
        for table, attribute, tensor, slot in self._held:
            if table.get(attribute) is not tensor or slot.ties:
                holders = ((slot.owner, slot.attribute), *slot.ties)
                if any(slot.held_by(*holder) is not tensor for holder in holders):
                    raise RuntimeError(
                        f"{slot.name} was replaced or removed after the optimizer was made, which "
                        "would train a tensor that the model no longer uses: make a new optimizer "
                        "(load_state_dict without assign=True keeps the parameters)."
                    )


def _weight_slots(model: nn.Module, group: list[nn.Parameter], names: frozenset[str]) -> list[Slot]:
    """The parameters of one group that ask for gradients or have these names, in order."""
    named = {id(p) for name, p in model.named_parameters() if name in names}
    wanted = {id(p) for p in group if p.requires_grad or id(p) in named}
    found: dict[int, Slot] = {}
    for prefix, module in model.named_modules():
        for attribute, parameter in module._parameters.items():
            key = id(parameter)
            if key in found:
                found[key] = found[key]._replace(ties=(*found[key].ties, (module, attribute)))
            elif key in wanted:
                found[key] = Slot(_join(prefix, attribute), "weight", module, attribute)
    return list(found.values())


def _statistics(model: nn.Module) -> Iterator[Slot]:
    for prefix, module in model.named_modules():
        if isinstance(module, _NormBase):
            for attribute, buffer in module._buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    yield Slot(_join(prefix, attribute), "buffer", module, attribute)


def _join(prefix: str, attribute: str) -> str:
    return f"{prefix}.{attribute}" if prefix else attribute


def view_like(tensor: Tensor, vector: Tensor, start: int) -> Tensor:
    """A view of `vector` from `start` with the shape of `tensor`, and its strides if dense."""
    if tensor.is_contiguous() or not _is_dense(tensor):
        return vector[start : start + tensor.numel()].view(tensor.shape)
    return vector.as_strided(tensor.shape, tensor.stride(), vector.storage_offset() + start)


def _is_dense(tensor: Tensor) -> bool:
    """Whether the strides visit every element of a gapless stretch once."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _check_slots(slots: list[Slot]) -> None:
    """Raise if a tensor cannot be trained, or two of them cannot be trained together."""
    for slot in slots:
        if nn.parameter.is_lazy(slot.tensor):
            raise ValueError(
                f"{slot.name} has no shape yet: run one batch through lazy modules before PPDSG."
            )
        if not slot.tensor.is_floating_point():
            raise ValueError(
                f"{slot.name} of {slot.tensor.dtype}: expected real floating point; "
                "freeze it (requires_grad_(False)) or give only other parameters to PPDSG."
            )
    _check_memory(slots)
    devices: dict[Any, str] = {slot.tensor.device: slot.name for slot in slots}
    if len(devices) > 1:
        places = ", ".join(f"{name} on {device}" for device, name in devices.items())
        raise ValueError(
            f"tensors on several devices ({places}): expected the model and the loss on one; "
            "move both before PPDSG is made."
        )


def _check_memory(slots: list[Slot]) -> None:
    """Raise if two tensors share memory without being one: both would be stepped."""
    places: dict[int, str] = {}
    for slot in slots:
        tensor = slot.tensor
        if tensor.is_meta or tensor.numel() == 0:
            continue
        other = places.setdefault(tensor.data_ptr(), slot.name)
        if other != slot.name:
            raise ValueError(
                f"{slot.name} and {other} share memory but are two tensors: expected one tensor "
                "in both places; tie them by assigning the same nn.Parameter."
            )
