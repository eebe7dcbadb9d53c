"""What the package's networks share: they know how they were made, and return logits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

from torch import Tensor, nn

from codauc.checks import whole


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
    """Logits of a head: [N, 1] as [N], and [N, outputs] as they are.

    >>> import torch
    >>> one_or_more(torch.zeros(5, 1)).shape, one_or_more(torch.zeros(5, 2)).shape
    (torch.Size([5]), torch.Size([5, 2]))
    """
    return x.squeeze(1) if x.shape[1] == 1 else x


def dense(sizes: Sequence[int], dropout: float = 0.0) -> nn.Sequential:
    """Fully connected layers from each size to the next, each with a ReLU and dropout, if any.

    >>> [layer[0].weight.shape for layer in dense((5, 4, 3))]
    [torch.Size([4, 5]), torch.Size([3, 4])]
    """
    drop = [nn.Dropout(dropout)] if dropout else []
    layers = (nn.Sequential(nn.Linear(*pair), nn.ReLU(), *drop) for pair in pairwise(sizes))
    return nn.Sequential(*layers)


def positive(plural: str, name: str, values: Sequence[int], remedy: str) -> list[int]:
    """`values` as a list of integers of at least 1.

    >>> positive("widths", "width", (8, 0), "give one such number per layer")
    Traceback (most recent call last):
        ...
    ValueError: width=0: expected an integer >= 1; give one such number per layer.
    """
    if not isinstance(values, Sequence):
        raise ValueError(
            f"{plural}={values!r}: expected a sequence of integers; write [{values!r}]."
        )
    return [whole(name, value, least=1, remedy=remedy) for value in values]


def checked_widths(widths: Sequence[int]) -> list[int]:
    """`widths` as a list of layer widths."""
    return positive("widths", "width", widths, "give one such number per layer")


def checked_outputs(outputs: int) -> int:
    """`outputs` as a number of logits a sample."""
    return whole("outputs", outputs, least=1, remedy="use 1 for one binary task")


def checked_channels(in_channels: int) -> int:
    """`in_channels` as a number of colours."""
    return whole("in_channels", in_channels, least=1, remedy="use 3 for colour images")
