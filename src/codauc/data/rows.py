"""Samples that can be asked for by number, wherever they are: memory, mapped files, data sets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 1 << 20  # bytes


class Rows(ABC):
    """Samples by number. A kind of rows says how many there are and how some of them are read.

    `block` is how many neighbours are best read together, None where it makes no difference.
    """

    block: int | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def gather(self, indices: Tensor) -> Tensor:
        """The samples of these numbers (int64, shape [n]) as one tensor [n, ...], in this order."""


class TensorRows(Rows):
    """A tensor's first dimension; one gather per batch."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def gather(self, indices: Tensor) -> Tensor:
        """One `index_select`."""
        return self.x.index_select(0, indices.to(self.x.device))


class ArrayRows(Rows):
    """A numpy array's first dimension, as float32; of a memory-mapped one only what is asked for.

    >>> ArrayRows(np.arange(6).reshape(3, 2)).gather(torch.tensor([2, 0]))
    tensor([[4., 5.],
            [0., 1.]])
    """

    def __init__(self, x: NDArray[Any]) -> None:
        if x.dtype.kind not in "biuf":
            raise ValueError(f"x of {x.dtype}: expected numbers; convert it, or use read_table.")
        self.x = x
        self.block = block_of(x)

    def __len__(self) -> int:
        return len(self.x)

    def gather(self, indices: Tensor) -> Tensor:
        """One gather, then a conversion where the array has another type."""
        # A plain view: numpy's memmap would make each batch one too, at some cost. And no `take`:
        # it first copies the whole of an array that is not in C order.
        taken = self.x.view(np.ndarray)[indices.numpy()]
        return torch.from_numpy(taken.astype(np.float32, order="C", copy=False))


def block_of(x: NDArray[Any]) -> int | None:
    """How many rows of a memory-mapped array make a megabyte; None for an array in memory."""
    base: Any = x
    while base is not None and not isinstance(base, np.memmap):
        base = getattr(base, "base", None)
    return None if base is None else rows_in_block(x)


def rows_in_block(x: Any) -> int:
    """How many rows of an array a disk reads well at once."""
    return max(BLOCK // max(int(x[:1].nbytes), 1), 1)


class DatasetRows(Rows):
    """A map-style data set: anything with a length whose items are inputs, or (inputs, label)."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def gather(self, indices: Tensor) -> Tensor:
        """The items' inputs, stacked."""
        return torch.stack([_inputs(item) for item in self._items(indices)])

    def pairs(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The items' inputs and labels, stacked."""
        items = self._items(indices)
        for item in items[:1]:
            if not isinstance(item, tuple | list) or len(item) != 2:
                raise ValueError(
                    f"an item of the data set is {type(item).__name__}: expected a pair (inputs, "
                    "label); give the labels as y instead."
                )
        inputs = torch.stack([_inputs(item) for item in items])
        return inputs, torch.stack([torch.as_tensor(label) for _, label in items])

    def _items(self, indices: Tensor) -> Sequence[Any]:
        many = getattr(self.dataset, "__getitems__", None)  # torch's way to ask for a batch
        wanted = indices.tolist()
        items = many(wanted) if many is not None else [self.dataset[i] for i in wanted]
        return list(items)


def _inputs(item: Any) -> Tensor:
    inputs = item[0] if isinstance(item, tuple | list) else item
    if not isinstance(inputs, Tensor | np.ndarray | np.number | float | int):
        raise ValueError(
            f"an item of the data set has inputs of type {type(inputs).__name__}: expected a "
            "tensor; give the data set a transform that makes one."
        )
    return torch.as_tensor(inputs)


def as_rows(x: Any) -> Rows:
    """A tensor, a numpy array, a map-style data set or rows, as rows."""
    if isinstance(x, Rows):
        return x
    if isinstance(x, Tensor):
        return TensorRows(x)
    if isinstance(x, np.ndarray):
        return ArrayRows(x)
    numbers = isinstance(x, list | tuple) and len(x) > 0 and _only_numbers(x[0])
    sized = hasattr(x, "__getitem__") and hasattr(x, "__len__") and not hasattr(x, "columns")
    if sized and not numbers and not isinstance(x, dict | str):
        return DatasetRows(x)
    raise ValueError(
        f"x: got {type(x).__name__}{' of numbers' if numbers else ''}, expected a tensor, a numpy "
        "array, a map-style data set (with a length and items) or codauc.data.Rows; use "
        "torch.tensor for numbers, read_table for a frame, codauc.data.Stream for an iterable."
    )


def _only_numbers(item: Any) -> bool:
    """Whether an item is a number or a row of them, which could be taken for (inputs, label)."""
    if isinstance(item, list | tuple):
        return all(isinstance(part, int | float) for part in item)
    return isinstance(item, int | float)
