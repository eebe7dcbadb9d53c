"""How a message is averaged over the group: as it is, or with weights and moments compressed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from codauc.algorithm.round_costs import BITS, coded_bytes, row_bytes
from codauc.algorithm.weight_codecs import CODECS, Codec, codecs
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
    """Weights travel as their change since the last round, in few bits, with error feedback.

        x_k = w_k - w + e_k             the change, and what earlier messages of k lost
        s   = mean_k decode(encode(x_k)) + f      summed in float32 by the owner of each part
        w  <- w + decode(encode(s)),    e_k <- x_k - decode(encode(x_k)),   f likewise

    Second moments travel as they are, in as many bits of their logarithm, so that nothing adds up;
    all else exactly.

    Each worker owns 1/K of the vector: one exchange brings it everybody's version of its part, and
    one gather gives its answer to all, so that all get the same. Four bytes of scale or range for
    each 256 numbers make int8 0.254 of float32's bytes, int4 0.129 and int2 0.066. Errors are kept
    when both collectives have succeeded.
    """

    divisor = 1

    def __init__(self, group: Group, sizes: StateSizes, message: Tensor, name: str) -> None:
        self.group, self.count, k = group, sizes.weights, group.size
        self.sizes, self.averaged = sizes, sizes.state - sizes.weights - sizes.moments
        exact = len(message) - sizes.weights - sizes.moments
        lengths = [coded_bytes(n, k, name) for n in (sizes.weights, sizes.moments)]
        layout = _RowLayout(-(-exact // k), lengths[0], lengths[1], *codecs(name))
        self.sent, self.got, self.back = (_Rows(k, layout, message) for _ in range(3))
        self.mine = _Rows(1, layout, message)

        def vector(rows: int, part: int = 0) -> Tensor:
            return message.new_zeros(rows, lengths[part][1] * 8 // BITS[name])

        self.change, self.scratch, self.error = vector(k), vector(k), vector(k)
        self.answer, self.owner_error = vector(1), vector(1)
        self.moments = vector(k, 1)
        self.reference = message.new_zeros(self.count)
        self.remainder = message.new_zeros(k, layout.exact)

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
        self._write(message)
        yield self.group.start(Call("exchange", "round", self.sent.data, self.got.data))
        self._add_up()
        yield self.group.start(Call("gather", "reply", self.mine.data, self.back.data))
        self._keep_errors()
        self._read(message)

    def _write(self, message: Tensor) -> None:
        weights, averaged, moments, summed = self._parts(message)
        torch.sub(weights, self.reference, out=self.change.view(-1)[: self.count])
        self.change.add_(self.error)
        self.sent.encode(self.change, self.scratch)
        rest = self.remainder.view(-1)
        torch.div(averaged, self.group.size, out=rest[: self.averaged])
        rest[self.averaged : self.averaged + len(summed)].copy_(summed)
        self.sent.exact.copy_(self.remainder)
        self.moments.view(-1)[: len(moments)].copy_(moments)
        self.moments.view(-1)[len(moments) :].zero_()  # where the last answer was decoded
        self.sent.encode_moments(self.moments, self.scratch)

    def _add_up(self) -> None:
        """The answer of this worker's part."""
        self.got.decode(self.scratch)
        torch.sum(self.scratch, 0, keepdim=True, out=self.answer)
        self.answer.div_(self.group.size).add_(self.owner_error)
        self.mine.encode(self.answer, self.scratch[:1])
        total = self.got.exact[0]
        for row in self.got.exact[1:]:
            total.add_(row)
        self.mine.exact.copy_(total)
        self.got.decode_moments(self.moments)
        mean = self.moments.sum(0, keepdim=True).div_(self.group.size)
        self.mine.encode_moments(mean, self.scratch[:1])

    def _keep_errors(self) -> None:
        self.sent.decode(self.scratch)
        torch.sub(self.change, self.scratch, out=self.error)
        self.mine.decode(self.scratch[:1])
        torch.sub(self.answer, self.scratch[:1], out=self.owner_error)

    def _read(self, message: Tensor) -> None:
        weights, averaged, moments, summed = self._parts(message)
        self.back.decode(self.scratch)
        self.reference.add_(self.scratch.view(-1)[: self.count])
        weights.copy_(self.reference)
        exact = self.back.exact.reshape(-1)
        averaged.copy_(exact[: self.averaged])
        summed.copy_(exact[self.averaged : self.averaged + len(summed)])
        self.back.decode_moments(self.moments)
        moments.copy_(self.moments.view(-1)[: len(moments)])

    def _parts(self, message: Tensor) -> tuple[Tensor, ...]:
        """Weights; exact numbers that are averaged; moments; exact numbers that are summed."""
        sizes = (self.count, self.averaged, self.sizes.moments)
        return torch.split(message, [*sizes, len(message) - self.sizes.state])

    def state_dict(self) -> dict[str, Tensor]:
        """The point from which changes count, and what was lost so far."""
        return {name: getattr(self, name).clone() for name in self._SAVED}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` gave."""
        for name in self._SAVED:
            getattr(self, name).copy_(state[name])

    _SAVED = ("reference", "error", "owner_error")


class _RowLayout(NamedTuple):
    """Of one worker's part: how many exact numbers, bytes of scales and codes, and their codecs."""

    exact: int
    weights: tuple[int, int]
    moments: tuple[int, int]
    weight_codec: Codec
    moment_codec: Codec


class _Rows:
    """Rows of bytes, one for each worker's part: exact numbers, scales, codes."""

    def __init__(self, rows: int, layout: _RowLayout, like: Tensor) -> None:
        self.layout, size = layout, like.itemsize
        row = row_bytes(layout.exact, layout.weights, layout.moments, itemsize=size)
        # a row's length is a multiple of eight, so that wider numbers can be viewed in every row
        self.data = torch.zeros(rows, row, dtype=torch.uint8, device=like.device)
        lengths = (layout.exact * size, layout.weights[0], layout.moments[0])
        ends = [*accumulate((*lengths, layout.weights[1], layout.moments[1]), initial=0)]
        parts = [self.data[:, start:end] for start, end in pairwise(ends)]
        self.exact = parts[0].view(like.dtype)
        self.scales, self.ranges, self.codes, self.moment_codes = parts[1:]

    def encode(self, values: Tensor, scratch: Tensor) -> None:
        """Write values of weights, which stay as they are, into the bytes."""
        self.layout.weight_codec.encode(values, self.scales, self.codes, scratch)

    def decode(self, values: Tensor) -> None:
        """Read the values."""
        self.layout.weight_codec.decode(self.scales, self.codes, values)

    def encode_moments(self, moments: Tensor, scratch: Tensor) -> None:
        """Write second moments, if there are any."""
        if moments.numel():
            self.layout.moment_codec.encode(moments, self.ranges, self.moment_codes, scratch)

    def decode_moments(self, moments: Tensor) -> None:
        """Read them."""
        if moments.numel():
            self.layout.moment_codec.decode(self.ranges, self.moment_codes, moments)


class StateSizes(NamedTuple):
    """Of the state with which a message begins: weights first, moments last, all of it."""

    weights: int
    moments: int
    state: int


def encoding(
    name: str | None, group: Group, sizes: StateSizes, message: Tensor
) -> Plain | Compressed:
    """The encoding of that name; None and a single worker send numbers as they are."""
    if name is None or group.size == 1:
        return Plain(group)
    return Compressed(group, sizes, message, name)
