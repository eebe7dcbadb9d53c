"""What the package's networks share: they know how they were made, and return logits."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from codauc._internal.checks import shown, whole

# A file may describe a network of any size, so that sizes are checked before anything is made.
MOST_LAYERS = 1000
MOST_COLUMNS = 10_000  # of categories, each with an embedding of its own
MOST_WEIGHTS = 2**31  # 8 GB
MOST = 2**31 - 1  # of any size


class Model(nn.Module):
    """A network that can be made again: `build(model.model_name, **model.arguments)`.

    `arguments` are plain data (what JSON can hold), as given and checked. A subclass without a
    `name` of its own goes by its import path.

    >>> class Constant(Model, name="constant"):
    ...     def __init__(self, value=0.0):
    ...         super().__init__(value=value)
    >>> Constant(1.5).model_name, Constant(1.5).arguments
    ('constant', {'value': 1.5})
    """

    model_name: ClassVar[str]
    arguments: dict[str, Any]

    def __init_subclass__(cls, name: str | None = None) -> None:
        super().__init_subclass__()
        cls.model_name = name or f"{cls.__module__}:{cls.__qualname__}"

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.arguments = arguments


def one_or_more(x: Tensor) -> Tensor:
    """Logits of a head: [N, 1] as [N], and [N, outputs] as they are."""
    return x.squeeze(1) if x.shape[1] == 1 else x


def dense(sizes: Sequence[int], dropout: float = 0.0) -> nn.Sequential:
    """Fully connected layers from each size to the next, each with a ReLU and dropout, if any."""
    drop = [nn.Dropout(dropout)] if dropout else []
    layers = (nn.Sequential(nn.Linear(*pair), nn.ReLU(), *drop) for pair in pairwise(sizes))
    return nn.Sequential(*layers)


def positive(
    plural: str, name: str, values: Iterable[int], remedy: str, most: int = MOST_LAYERS
) -> list[int]:
    """`values`, in a list, tuple, array or the like, as a list of at most `most` integers >= 1."""
    try:
        # Texts hold no integers, bytes hold some by accident, and sets and mappings have no order.
        listed = None if isinstance(values, str | bytes | Set | Mapping) else list(values)
    except TypeError:  # also of arrays and tensors without a dimension, which look iterable
        listed = None
    if listed is None:
        raise ValueError(
            f"{plural}={shown(values)}: expected a sequence of integers; write {_example(values)}."
        )
    if len(listed) > most:
        raise ValueError(f"{plural} has {len(listed)} values: expected at most {most}; use fewer.")
    return [whole(name, value, least=1, most=MOST, remedy=remedy) for value in listed]


def check_size(weights: int) -> None:
    """Refuse a network of more `weights` than a computer is likely to hold."""
    if weights > MOST_WEIGHTS:
        raise ValueError(
            f"a network of {weights} weights: expected at most {MOST_WEIGHTS}; use smaller widths."
        )


def products(sizes: Sequence[int]) -> int:
    """How many weights fully connected layers of these sizes have."""
    return sum(one * other for one, other in pairwise(sizes))


def _example(value: Any) -> str:
    try:
        return f"[{operator.index(value)}]"
    except TypeError:
        return "them in a list, such as [16, 32]"


def checked_widths(widths: Iterable[int]) -> list[int]:
    """`widths` as a list of layer widths."""
    return positive("widths", "width", widths, "give one such number per layer")


def checked_outputs(outputs: int) -> int:
    """`outputs` as a number of logits per sample."""
    return whole("outputs", outputs, least=1, most=10**6, remedy="use 1 for one binary task")


def checked_channels(in_channels: int) -> int:
    """`in_channels` as a number of colours."""
    return whole("in_channels", in_channels, least=1, most=10**5, remedy="use 3 for colour images")


def check_images(model: nn.Module, x: Tensor, channels: int, least: int, remedy: str) -> None:
    """Refuse `x` unless it is images [N, channels, H, W] of sides >= `least` for `model`."""
    if x.dim() != 4 or x.shape[1] != channels:
        raise ValueError(
            f"x of shape {list(x.shape)}: expected [N, {channels}, H, W]; give images of this "
            "shape, or make the model with as many in_channels as they have."
        )
    if min(x.shape[2:]) < least:
        raise ValueError(
            f"x of shape {list(x.shape)}: expected [N, {channels}, H, W] with H, W >= {least}; "
            f"{remedy}."
        )
    check_floats(model, x)


def check_floats(model: nn.Module, x: Tensor) -> None:
    """Refuse `x` unless it is of floats that can be multiplied with the weights of `model`.

    Only dtypes are checked, not values, so that no device is waited for.
    """
    if not x.is_floating_point():
        raise ValueError(
            f"x of {x.dtype}: expected floats; use x.float(), also for codes of categories, and "
            "x.float() / 255 for pixels of 8 bits."
        )
    for weight in model.parameters():  # the first; older torch does not compile next(...)
        # Some quantised layers have no weights of floats, copies of DataParallel none at all.
        known = weight.dtype == x.dtype or not weight.is_floating_point()
        if known or _cast_by_autocast(x.device.type, x.dtype, weight.dtype):
            return
        raise ValueError(
            f"x of {x.dtype}: expected {weight.dtype}, as the weights are; use "
            f"x.to({weight.dtype}), or make all of the model {x.dtype} by model.to({x.dtype})."
        )


def _cast_by_autocast(device: str, *dtypes: torch.dtype) -> bool:
    """Whether a block of autocast makes these dtypes one, which it does but for float64."""
    if torch.float64 in dtypes or not torch.amp.is_autocast_available(device):
        return False
    return torch.is_autocast_enabled(device)
