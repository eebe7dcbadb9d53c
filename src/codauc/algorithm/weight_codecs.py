"""Weights in few bits: blocks of numbers that share a scale, and small whole numbers for each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from codauc.algorithm.round_costs import BLOCK

_TINY = torch.finfo(torch.float32).tiny


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

    def pack(self, numbers: Tensor, codes: Tensor) -> None:
        """Write whole numbers into bytes, several to a byte if they have fewer than eight bits."""
        if self.bits == 8:
            codes.view(torch.int8).copy_(numbers)
            return
        parts = (numbers + self.levels).to(torch.uint8).view(len(numbers), -1, 8 // self.bits)
        codes.copy_(parts[..., 0])
        for i in range(1, 8 // self.bits):
            codes.bitwise_or_(parts[..., i] << (i * self.bits))

    def unpack(self, codes: Tensor, numbers: Tensor) -> None:
        """Read what `pack` wrote."""
        if self.bits == 8:
            numbers.copy_(codes.view(torch.int8))
            return
        parts = numbers.view(len(numbers), -1, 8 // self.bits)
        for i in range(8 // self.bits):
            parts[..., i].copy_((codes >> (i * self.bits)) & (2**self.bits - 1))
        numbers.sub_(self.levels)


CODECS = {
    "int8": WeightCodec(bits=8, levels=127),
    "int4": WeightCodec(bits=4, levels=7),
    "int2": WeightCodec(bits=2, levels=1, spread=1.5),
}
