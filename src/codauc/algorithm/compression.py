"""How a message is averaged over the group: as it is, or with its weights compressed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from codauc.algorithm.round_costs import BITS, row_bytes, row_lengths
from codauc.algorithm.weight_codecs import CODECS, WeightCodec
from codauc.workers.group import Call, Group, Pending

COMPRESSIONS = ("bf16", *CODECS)


class Encoding(Protocol):
    """Turns a message of one worker into the mean of all workers'."""

    divisor: int  # what the state is divided by before it is handed over

    def average(self, message: Tensor) -> Iterator[Pending]:
        """The collectives; after the last one `message` holds the answer."""

    def reset(self, message: Tensor) -> None:
        """All workers have this message: changes count from here."""

    def follow(self, message: Tensor) -> None:
        """All workers took these weights after a round, in place of its mean."""

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint needs, as copies."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` gave."""


class Plain:
    """One sum of the whole message, of which the state was divided by K beforehand."""

    def __init__(self, group: Group, kind: str = "round") -> None:
        self.group, self.kind, self.divisor = group, kind, group.size

    def average(self, message: Tensor) -> Iterator[Pending]:
        """Sum in place."""
        yield self.group.start(Call("sum_", self.kind, message, message))

    def reset(self, message: Tensor) -> None:
        """Nothing to keep."""

    def follow(self, message: Tensor) -> None:
        """Nothing to keep."""

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing to save."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Nothing to load."""


class Compressed:
    """Weights travel as their change since the last round, in few bits; all else exactly.

        x_k = w_k - w + e_k             the change, and what earlier messages of k lost
        s   = mean_k decode(encode(x_k)) + f      summed in float32 by the owner of each part
        w  <- w + decode(encode(s)),    e_k <- x_k - decode(encode(x_k)),   f likewise

    Each worker owns 1/K of the vector: one exchange brings it everybody's version of its part, and
    one gather gives its answer to all, so that all get the same. A float32 scale for each 256
    weights makes int8 0.254 of float32's bytes, int4 0.129 and int2 0.066. Errors are kept when
    both collectives have succeeded.
    """

    divisor = 1

    def __init__(self, group: Group, weights: int, state: int, message: Tensor, name: str) -> None:
        self.group, self.count, k = group, weights, group.size
        self.averaged = state - weights  # exact numbers that are averaged; the others are summed
        lengths = row_lengths(weights, len(message) - weights, k, name)
        codec = CODECS.get(name)
        self.sent, self.got, self.back = (_Rows(k, lengths, codec, message) for _ in range(3))
        self.mine = _Rows(1, lengths, codec, message)

        def vector(rows: int) -> Tensor:
            return message.new_zeros(rows, lengths[2] * 8 // BITS[name])

        self.change, self.scratch, self.error = vector(k), vector(k), vector(k)
        self.answer, self.owner_error = vector(1), vector(1)
        self.reference = message.new_zeros(self.count)
        self.remainder = message.new_zeros(k, lengths[0])

    def reset(self, message: Tensor) -> None:
        """Count changes from this state, the same on all workers, with nothing lost so far."""
        self.reference.copy_(message[: self.count])
        self.error.zero_()
        self.owner_error.zero_()

    def follow(self, message: Tensor) -> None:
        """Count changes from these weights; what was lost is still to come."""
        self.reference.copy_(message[: self.count])

    def average(self, message: Tensor) -> Iterator[Pending]:
        """Exchange parts, add them up, gather the answers."""
        k, weights, exact = self.group.size, message[: self.count], message[self.count :]
        torch.sub(weights, self.reference, out=self.change.view(-1)[: self.count])
        self.change.add_(self.error)
        self.remainder.view(-1)[: len(exact)].copy_(exact)
        self.remainder.view(-1)[: self.averaged].div_(k)
        self.sent.encode(self.change, self.remainder, self.scratch)
        yield self.group.start(Call("exchange", "round", self.sent.data, self.got.data))
        self.got.decode(self.scratch)
        torch.sum(self.scratch, 0, keepdim=True, out=self.answer)
        self.answer.div_(k).add_(self.owner_error)
        total = self.got.exact[0]
        for row in self.got.exact[1:]:
            total.add_(row)
        self.mine.encode(self.answer, total.unsqueeze(0), self.scratch[:1])
        yield self.group.start(Call("gather", "reply", self.mine.data, self.back.data))
        self._keep_errors()
        self.back.decode(self.scratch)
        self.reference.add_(self.scratch.view(-1)[: self.count])
        weights.copy_(self.reference)
        exact.copy_(self.back.exact.reshape(-1)[: len(exact)])

    def _keep_errors(self) -> None:
        self.sent.decode(self.scratch)
        torch.sub(self.change, self.scratch, out=self.error)
        self.mine.decode(self.scratch[:1])
        torch.sub(self.answer, self.scratch[:1], out=self.owner_error)

    def state_dict(self) -> dict[str, Tensor]:
        """The point from which changes count, and what was lost so far."""
        return {name: getattr(self, name).clone() for name in self._SAVED}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` gave."""
        for name in self._SAVED:
            getattr(self, name).copy_(state[name])

    _SAVED = ("reference", "error", "owner_error")


class _Rows:
    """Rows of bytes, one for each worker's part: exact numbers, scales, codes."""

    def __init__(
        self, rows: int, lengths: tuple[int, int, int], codec: WeightCodec | None, like: Tensor
    ) -> None:
        self.codec, (rest, self.blocks, codes) = codec, lengths
        ends = [rest * like.itemsize, rest * like.itemsize + 4 * self.blocks]
        row = row_bytes(*lengths, like.itemsize)  # wider numbers can be viewed in every row
        self.data = torch.zeros(rows, row, dtype=torch.uint8, device=like.device)
        self.exact = self.data[:, : ends[0]].view(like.dtype)
        self.scales = self.data[:, ends[0] : ends[1]].view(torch.float32)
        self.codes = self.data[:, ends[1] : ends[1] + codes]

    def encode(self, values: Tensor, exact: Tensor, scratch: Tensor) -> None:
        """Write values, which stay as they are, and exact numbers into the bytes."""
        self.exact.copy_(exact)
        if self.codec is None:
            self.codes.view(torch.bfloat16).copy_(values)
            return
        torch.abs(values, out=scratch)
        self.scales.copy_(self.codec.scales(self._by_block(scratch)))
        self.codec.quantise(self._by_block(values), self.scales, self._by_block(scratch))
        self.codec.pack(scratch, self.codes)

    def decode(self, values: Tensor) -> None:
        """Read the values."""
        if self.codec is None:
            values.copy_(self.codes.view(torch.bfloat16))
            return
        self.codec.unpack(self.codes, values)
        self._by_block(values).mul_(self.scales.unsqueeze(2))

    def _by_block(self, values: Tensor) -> Tensor:
        return values.view(len(values), self.blocks, -1)


def encoding(
    name: str | None, group: Group, weights: int, state: int, message: Tensor
) -> Plain | Compressed:
    """The encoding of that name; None and a single worker send numbers as they are.

    A message begins with so many weights; `state` says how much of it is averaged.
    """
    if name is None or group.size == 1:
        return Plain(group)
    return Compressed(group, weights, state, message, name)
