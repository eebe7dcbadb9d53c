"""Random changes of images [N, C, H, W], a whole batch at a time, each image by its own draw.

A part is called as `part(x, generator)`. It draws from `generator` alone, so equal generators
give equal results, and it returns a new tensor: `x` is not changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from codauc._internal.checks import choice, known_arguments, real, whole

Part = Callable[[Tensor, Generator], Tensor]


class Augment:
    """Parts, one after the other, drawing from one generator.

    >>> augment = Augment(Crop(padding=4), Flip())
    >>> augment(torch.zeros(8, 3, 32, 32), torch.Generator().manual_seed(0)).shape
    torch.Size([8, 3, 32, 32])
    >>> augment
    Augment(Crop(size=None, padding=4), Flip(probability=0.5))
    """

    def __init__(self, *parts: Part) -> None:
        for part in parts:
            if isinstance(part, type) or not callable(part):
                shown = f"the class {part.__name__}" if isinstance(part, type) else repr(part)
                raise ValueError(
                    f"Augment got {shown}: expected callables (x, generator) -> x; "
                    "make a part first, as in Augment(Flip())."
                )
        self.parts = parts

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """What the last part makes of what the others made."""
        _shape(x)
        for part in self.parts:
            x = part(x, generator)
        return x

    def __repr__(self) -> str:
        return f"Augment({', '.join(map(repr, self.parts))})"


class Flip:
    """Each image mirrored left to right with `probability`.

    >>> Flip(probability=1)(torch.arange(3.0).view(1, 1, 1, 3), torch.Generator())
    tensor([[[[2., 1., 0.]]]])
    """

    @known_arguments
    def __init__(self, probability: float = 0.5) -> None:
        remedy = "it is the part of the images to mirror"
        self.probability = real("probability", probability, least=0, remedy=remedy)
        if self.probability > 1:
            raise ValueError(f"probability={probability!r}: expected a number <= 1; {remedy}.")

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """The images, some of them mirrored."""
        count, *_ = _shape(x)
        draws = torch.rand(count, generator=generator, device=generator.device)
        chosen = (draws < self.probability).to(x.device)
        return torch.where(chosen.view(-1, 1, 1, 1), x.flip(3), x)

    def __repr__(self) -> str:
        return f"Flip(probability={self.probability:g})"


class Crop:
    """From each image, with `padding` pixels added on every side, a window at a random place.

    The window is `size` x `size`, or with None as large as the image was. All places are equally
    likely. `fill` says what is added: "zeros", or "edge", which repeats the outermost pixels. Zeros
    are black only in images that are not scaled; after `(pixel - mean) / std` they are the mean
    colour.

    >>> crop = Crop(size=2, padding=0)
    >>> crop(torch.arange(9.0).view(1, 1, 3, 3), torch.Generator().manual_seed(2))
    tensor([[[[1., 2.],
              [4., 5.]]]])
    """

    @known_arguments
    def __init__(self, size: int | None = None, padding: int = 4, fill: str = "zeros") -> None:
        self.size = None if size is None else _side(size)
        self.padding = whole("padding", padding, least=0, remedy="use 0 for no pixels around")
        self.fill = choice("fill", fill, ("zeros", "edge"))

    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """The windows; an image's place is drawn top first, for all images, then left."""
        count, channels, *sides = _shape(x)
        height, width = sides if self.size is None else (self.size, self.size)
        padded = self._padded(x) if self.padding else x
        if self.size is not None:
            _fits(self.size, padded)
        top, left = (
            torch.randint(room + 1, (count,), generator=generator, device=generator.device)
            for room in (padded.shape[2] - height, padded.shape[3] - width)
        )
        windows = padded.new_empty(count, channels, height, width)
        places = zip(top.tolist(), left.tolist(), strict=True)
        for window, image, (t, s) in zip(windows, padded, places, strict=True):
            window.copy_(image[:, t : t + height, s : s + width])
        return windows

    def _padded(self, x: Tensor) -> Tensor:
        if self.fill == "zeros":
            return pad(x, (self.padding,) * 4)
        rows, columns = (  # torch has no padding with the edge for all dtypes
            torch.arange(-self.padding, side + self.padding, device=x.device).clamp(0, side - 1)
            for side in x.shape[2:]
        )
        return x[:, :, rows[:, None], columns]

    def __repr__(self) -> str:
        fill = "" if self.fill == "zeros" else f", fill={self.fill!r}"
        return f"Crop(size={self.size}, padding={self.padding}{fill})"


class CenterCrop:
    """The middle `size` x `size` of each image; nothing is drawn, so it serves evaluation too.

    >>> CenterCrop(1)(torch.arange(9.0).view(1, 1, 3, 3))
    tensor([[[[4.]]]])
    """

    @known_arguments
    def __init__(self, size: int) -> None:
        self.size = _side(size)

    def __call__(self, x: Tensor, generator: Generator | None = None) -> Tensor:  # noqa: ARG002
        """The middles."""
        sides = _shape(x)[2:]
        _fits(self.size, x)
        top, left = (round((side - self.size) / 2) for side in sides)
        # a view would hand changes of the result on to x
        return x[:, :, top : top + self.size, left : left + self.size].clone()

    def __repr__(self) -> str:
        return f"CenterCrop(size={self.size})"


def _shape(x: Any) -> list[int]:
    if not isinstance(x, Tensor) or x.dim() != 4:
        got = f"shape {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(
            f"x: got {got}, expected images [N, C, H, W]; use x.unsqueeze(1) for grey images "
            "[N, H, W], and no augmentation for other data."
        )
    return list(x.shape)


def _fits(size: int, x: Tensor) -> None:
    if size > min(x.shape[2:]):
        raise ValueError(
            f"size={size}: expected at most {min(x.shape[2:])}, the shorter side of images "
            f"{list(x.shape[2:])} (with padding); use a smaller size or more padding."
        )


def _side(size: int) -> int:
    return whole("size", size, least=1, remedy="it is the side of the square, such as 28")
