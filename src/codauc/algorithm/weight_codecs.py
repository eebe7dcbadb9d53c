"""Numbers in few bits: blocks that share a scale or a range, and a small whole number for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from codauc.algorithm.round_costs import BLOCK

_TINY = torch.finfo(torch.float32).tiny
_NOTHING = -20000.0  # the logarithm of a block of zeros: its power of two is zero
_OCTAVES = 24.0  # how far below a block's largest moment others can be told apart


@dataclass(frozen=True)
class WeightCodec:
    """A number x of a block becomes q = round(x / s), from -levels to levels, in so many bits.

    s is the block's largest |x| over `levels`, or `spread` times its mean |x|. With one level q is
    -1, 0 or 1, and 0 where |x| < s / 2: small values are sent as zero, and error feedback brings
    them when they have added up.
    """

    bits: int
    levels: int
    spread: float | None = None
    block: int = BLOCK  # numbers that share a scale

    def scales(self, sizes: Tensor) -> Tensor:
        """The scale of each block, from the sizes |x| of its numbers in the last dimension."""
        if self.spread is not None:
            return sizes.mean(-1).mul_(self.spread)
        return sizes.amax(-1).div_(self.levels)

    def quantise(self, values: Tensor, scales: Tensor, out: Tensor) -> None:
        """Whole numbers, as floats, of values whose blocks are in the last dimension."""
        torch.div(values, scales.clamp(min=_TINY).to(values.dtype).unsqueeze(-1), out=out)
        out.round_().clamp_(-self.levels, self.levels)

    def encode(self, values: Tensor, scales: Tensor, codes: Tensor, scratch: Tensor) -> None:
        """Write rows of values, which stay as they are, into scales and bytes."""
        blocks = (len(values), -1, self.block)
        torch.abs(values, out=scratch)
        scales.view(torch.float32).copy_(self.scales(scratch.view(blocks)))
        self.quantise(values.view(blocks), scales.view(torch.float32), scratch.view(blocks))
        _pack(scratch.add_(self.levels), self.bits, codes)

    def decode(self, scales: Tensor, codes: Tensor, values: Tensor) -> None:
        """Read what `encode` wrote."""
        _unpack(codes, self.bits, values.fill_(-self.levels))
        values.view(len(values), -1, self.block).mul_(scales.view(torch.float32).unsqueeze(2))


@dataclass(frozen=True)
class MomentCodec:
    """A second moment s of a block becomes q = round((log2 s - low) / step), in so many bits.

    step is (high - low) / (2^bits - 1); high is the largest log2 s of the block, low the least one,
    or `spread` standard deviations below the mean, so that few levels are near most of them. What
    counts of a moment is its order of size, so its error is relative; one that is too small to be
    told apart becomes larger, which makes steps smaller. Nothing is kept of what is lost: moments
    are sent as they are, not as changes, so errors do not add up. A zero among others becomes the
    least of them, a block of zeros stays.
    """

    bits: int
    spread: float | None = None
    block: int = BLOCK  # numbers that share a range

    def range(self, moments: Tensor) -> Tensor:
        """Low and high of each block, as float16 in a last dimension of two."""
        positive = moments > 0
        logs = moments.clamp(min=_TINY).log2()
        high = logs.amax(-1)
        logs = torch.maximum(logs, high.unsqueeze(-1) - _OCTAVES)
        low = logs.masked_fill(~positive, torch.inf).amin(-1)
        if self.spread is not None:
            count = positive.sum(-1).clamp(min=1)
            mean = logs.mul(positive).sum(-1) / count
            square = (logs - mean.unsqueeze(-1)).square_().mul_(positive).sum(-1) / count
            wide = self.spread * square.sqrt_()
            low = torch.maximum(low, mean - wide)
        found = torch.stack((low, high), -1).half()
        return found.masked_fill_(~positive.any(-1, keepdim=True), _NOTHING)

    def encode(self, values: Tensor, scales: Tensor, codes: Tensor, scratch: Tensor) -> None:
        """Write rows of moments into ranges and bytes."""
        blocks, most = values.view(len(values), -1, self.block), 2**self.bits - 1
        scales.view(torch.float16).copy_(self.range(blocks).flatten(1))
        low, step = self._steps(scales, values.dtype)
        out = scratch.view_as(blocks)
        torch.clamp(blocks, min=_TINY, out=out).log2_().sub_(low).div_(step.clamp(min=_TINY))
        out.round_().clamp_(0, most)
        _pack(scratch, self.bits, codes)

    def decode(self, scales: Tensor, codes: Tensor, values: Tensor) -> None:
        """Read what `encode` wrote."""
        _unpack(codes, self.bits, values.zero_())
        low, step = self._steps(scales, values.dtype)
        values.view(len(values), -1, self.block).mul_(step).add_(low).exp2_()

    def _steps(self, scales: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Low, and what two levels differ by, of each block."""
        ranges = scales.view(torch.float16).view(len(scales), -1, 1, 2).to(dtype)
        low, high = ranges.unbind(-1)
        return low, (high - low) / (2**self.bits - 1)


class Rounded:
    """Numbers as bfloat16, without scales."""

    def encode(self, values: Tensor, scales: Tensor, codes: Tensor, scratch: Tensor) -> None:
        """Write rows of values into bytes."""
        del scales, scratch
        codes.view(torch.bfloat16).copy_(values)

    def decode(self, scales: Tensor, codes: Tensor, values: Tensor) -> None:
        """Read what `encode` wrote."""
        del scales
        values.copy_(codes.view(torch.bfloat16))


CODECS = {
    "int8": WeightCodec(bits=8, levels=127),
    "int4": WeightCodec(bits=4, levels=7),
    "int2": WeightCodec(bits=2, levels=1, spread=1.5),
}
MOMENT_CODECS = {
    "int8": MomentCodec(bits=8),
    "int4": MomentCodec(bits=4),
    "int2": MomentCodec(bits=2, spread=1.5),
}


class Codec(Protocol):
    """Turns rows of numbers into bytes, of which four for each block are its scale or range."""

    def encode(self, values: Tensor, scales: Tensor, codes: Tensor, scratch: Tensor) -> None:
        """Write values, which stay as they are; `scratch` is of their size."""

    def decode(self, scales: Tensor, codes: Tensor, values: Tensor) -> None:
        """Read what `encode` wrote."""


def codecs(name: str) -> tuple[Codec, Codec]:
    """Of weights and of second moments."""
    if name == "bf16":
        return Rounded(), Rounded()
    return CODECS[name], MOMENT_CODECS[name]


def _pack(numbers: Tensor, bits: int, codes: Tensor) -> None:
    """Write whole numbers from 0 on, given as floats, into bytes: several to a byte if they fit."""
    parts = numbers.to(torch.uint8).view(len(numbers), -1, 8 // bits)
    codes.copy_(parts[..., 0])
    for i in range(1, 8 // bits):
        codes.bitwise_or_(parts[..., i] << (i * bits))


def _unpack(codes: Tensor, bits: int, numbers: Tensor) -> None:
    """Add what `_pack` wrote to numbers."""
    parts = numbers.view(len(numbers), -1, 8 // bits)
    for i in range(8 // bits):
        parts[..., i].add_((codes >> (i * bits)) & (2**bits - 1))
