"""How a message is averaged over the group: as it is, or with weights and moments compressed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from codauc.algorithm.round_costs import BITS, coded_bytes, row_bytes
from codauc.algorithm.sites import Mean
from codauc.algorithm.weight_codecs import CODECS, Codec, codecs
from codauc.workers.group import Call, Group, Pending

COMPRESSIONS = ("bf16", *CODECS)


class Means(NamedTuple):
    """How the workers' states are averaged, and their control variates."""

    state: Mean
    variates: Mean


class Encoding(Protocol):
    """Turns a message of one worker into the mean of all workers'."""

    sums: bool  # whether it only adds up, so that what is averaged is handed over divided

    def average(self, message: Tensor, means: Means) -> Iterator[Pending]:
        """The collectives; after the last one `message` holds the answer."""

    def size(self, message: Tensor) -> int:
        """Bytes of a sum that sends as much as the collectives."""

    def reset(self, message: Tensor) -> None:
        """All workers have this message: changes count from here."""

    def follow(self, message: Tensor) -> None:
        """All workers took these weights after a round, in place of its mean."""

    def state_dict(self) -> dict[str, Tensor]:
        """What a checkpoint needs, as copies."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` gave."""


class Plain:
    """One sum of the whole message, of which what is averaged was divided beforehand."""

    sums = True

    def __init__(self, group: Group, kind: str = "round") -> None:
        self.group, self.kind = group, kind

    def average(self, message: Tensor, means: Means) -> Iterator[Pending]:
        """Sum in place."""
        del means
        yield self.group.start(Call("sum_", self.kind, message, message))

    def size(self, message: Tensor) -> int:
        """Its own."""
        return message.nbytes

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
        s   = sum_k lambda_k decode(encode(x_k)) + f      in float32 by the owner of each part
        w  <- w + decode(encode(s)),    e_k <- x_k - decode(encode(x_k)),   f likewise

    Control variates travel likewise, as they are changes. Second moments travel as they are, in as
    many bits of their logarithm, so that nothing adds up; all else exactly.

    Each worker owns 1/K of the vector: one exchange brings it everybody's version of its part, and
    one gather gives its answer to all, so that all get the same. Four bytes of scale or range for
    each 256 numbers make int8 0.254 of float32's bytes, int4 0.129 and int2 0.066. Errors are kept
    when both collectives have succeeded, by the workers that took part in the mean.
    """

    sums = False

    def __init__(self, group: Group, sizes: StateSizes, message: Tensor, name: str) -> None:
        self.group, self.sizes, k = group, sizes, group.size
        self.averaged = sizes.state - sizes.weights - sizes.moments
        variates = sizes.weights if sizes.variates else 0  # coded ones
        self.exact_variates = sizes.variates - variates
        exact = -(-(len(message) - sizes.weights - sizes.moments - variates) // k)  # of a part
        of_weights, of_moments = codecs(name)
        kinds = [(sizes.weights, of_weights), (sizes.moments, of_moments), (variates, of_weights)]
        coded = [CodedPart(*coded_bytes(n, k, name), codec) for n, codec in kinds]
        self.sent, self.got, self.back = (_Rows(k, exact, coded, message) for _ in range(3))
        self.mine = _Rows(1, exact, coded, message)

        self.scratch, self.moments = (
            message.new_zeros(k, part.code_bytes * 8 // BITS[name]) for part in coded[:2]
        )
        self.weights = _Feedback(0, sizes.weights, self.scratch)
        self.variates = _Feedback(2, variates, self.scratch) if variates else None
        self.remainder = message.new_zeros(k, exact)

    @property
    def feedbacks(self) -> list[_Feedback]:
        """What travels as changes."""
        return [self.weights] if self.variates is None else [self.weights, self.variates]

    def reset(self, message: Tensor) -> None:
        """Count changes from this state, the same on all workers, with nothing lost so far."""
        for feedback in self.feedbacks:
            feedback.reset()
        self.follow(message)

    def follow(self, message: Tensor) -> None:
        """Count changes from these weights; what was lost is still to come."""
        self.weights.reference.copy_(message[: self.sizes.weights])

    def average(self, message: Tensor, means: Means) -> Iterator[Pending]:
        """Exchange parts, add them up, gather the answers."""
        self._write(message, means)
        yield self.group.start(Call("exchange", "round", self.sent.data, self.got.data))
        self._add_up(means)
        yield self.group.start(Call("gather", "reply", self.mine.data, self.back.data))
        self._keep_errors(means)
        self._read(message)

    def size(self, message: Tensor) -> int:
        """Of all rows: they go out once, and as many answers once."""
        del message
        return self.sent.data.nbytes

    def _write(self, message: Tensor, means: Means) -> None:
        weights, averaged, moments, variates, exact, summed = self._parts(message)
        for feedback, values, mean in zip(self.feedbacks, (weights, variates), means, strict=False):
            feedback.write(values, self.sent, self.scratch, nothing=math.isinf(mean.divisor))
        divided = (averaged / means.state.divisor, exact / means.variates.divisor)
        rest = torch.cat([*divided, summed])
        self.remainder.view(-1)[: len(rest)].copy_(rest)
        self.sent.exact.copy_(self.remainder)
        self.moments.zero_()  # where the last answer was decoded
        if math.isfinite(means.state.divisor):
            self.moments.view(-1)[: len(moments)].copy_(moments)
        self.sent.encode(1, self.moments, self.scratch)

    def _add_up(self, means: Means) -> None:
        """The answer of this worker's part."""
        for feedback, mean in zip(self.feedbacks, means, strict=False):
            self.got.decode(feedback.part, self.scratch)
            _mean_of_rows(self.scratch, mean, out=feedback.answer)
            feedback.answer.add_(feedback.owner_error)
            self.mine.encode(feedback.part, feedback.answer, self.scratch[:1])
        total = self.got.exact[0]
        for row in self.got.exact[1:]:
            total.add_(row)
        self.mine.exact.copy_(total)
        self.got.decode(1, self.moments)
        moments = torch.empty_like(self.moments[:1])
        _mean_of_rows(self.moments, means.state, out=moments)
        self.mine.encode(1, moments, self.scratch[:1])

    def _keep_errors(self, means: Means) -> None:
        for feedback, mean in zip(self.feedbacks, means, strict=False):
            if math.isfinite(mean.divisor):
                self.sent.decode(feedback.part, self.scratch)
                torch.sub(feedback.change, self.scratch, out=feedback.error)
            self.mine.decode(feedback.part, self.scratch[:1])
            torch.sub(feedback.answer, self.scratch[:1], out=feedback.owner_error)

    def _read(self, message: Tensor) -> None:
        weights, averaged, moments, variates, exact, summed = self._parts(message)
        for feedback, values in zip(self.feedbacks, (weights, variates), strict=False):
            self.back.decode(feedback.part, self.scratch)
            change = self.scratch.view(-1)[: len(values)]
            if feedback is self.variates:  # which are changes
                values.copy_(change)
            else:
                feedback.reference.add_(change)
                values.copy_(feedback.reference)
        answer, start = self.back.exact.reshape(-1), 0
        for values in (averaged, exact, summed):
            values.copy_(answer[start : start + len(values)])
            start += len(values)
        self.back.decode(1, self.moments)
        moments.copy_(self.moments.view(-1)[: len(moments)])

    def _parts(self, message: Tensor) -> tuple[Tensor, ...]:
        """Weights; exact numbers that are averaged; moments; variates, coded and exact; summed."""
        sizes = self.sizes
        lengths = [sizes.weights, self.averaged, sizes.moments]
        lengths += [sizes.variates - self.exact_variates, self.exact_variates]
        return torch.split(message, [*lengths, len(message) - sum(lengths)])

    def state_dict(self) -> dict[str, Tensor]:
        """The points from which changes count, and what was lost so far."""
        own = {name: getattr(self.weights, name).clone() for name in _Feedback.SAVED}
        if self.variates is not None:
            own |= {f"variate_{n}": getattr(self.variates, n).clone() for n in _Feedback.SAVED}
        return own

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what `state_dict` gave."""
        for name in _Feedback.SAVED:
            getattr(self.weights, name).copy_(state[name])
            if self.variates is not None:
                getattr(self.variates, name).copy_(state.get(f"variate_{name}", _NOTHING))


_NOTHING = torch.zeros(())


def _mean_of_rows(rows: Tensor, mean: Mean, out: Tensor) -> None:
    """The workers' rows added up with what each of them counts; the rows may change."""
    if mean.shares is None:
        torch.sum(rows, 0, keepdim=True, out=out)
        out.div_(mean.divisor)
    else:
        torch.sum(rows.mul_(rows.new_tensor(mean.shares).unsqueeze(1)), 0, keepdim=True, out=out)


class _Feedback:
    """Numbers that travel as their change, and what their messages lost; `part` is their place."""

    SAVED = ("reference", "error", "owner_error")

    def __init__(self, part: int, count: int, like: Tensor) -> None:
        self.part, self.count = part, count
        self.change, self.error = torch.zeros_like(like), torch.zeros_like(like)
        self.answer, self.owner_error = torch.zeros_like(like[:1]), torch.zeros_like(like[:1])
        self.reference = self.change.new_zeros(count)

    def reset(self) -> None:
        """Changes count from zero, and nothing was lost."""
        for tensor in (self.reference, self.error, self.owner_error):
            tensor.zero_()

    def write(self, values: Tensor, rows: _Rows, scratch: Tensor, *, nothing: bool) -> None:
        """Encode the change and what was lost before; zeros where it takes no part in the mean."""
        torch.sub(values, self.reference, out=self.change.view(-1)[: self.count])
        self.change.zero_() if nothing else self.change.add_(self.error)
        rows.encode(self.part, self.change, scratch)


class CodedPart(NamedTuple):
    """Of one worker's part: bytes of scales and of codes, and their codec."""

    scale_bytes: int
    code_bytes: int
    codec: Codec


class _Rows:
    """Rows of bytes, one for each worker's part: exact numbers, scales, codes."""

    def __init__(self, rows: int, exact: int, coded: list[CodedPart], like: Tensor) -> None:
        self.coded, size = coded, like.itemsize
        row = row_bytes(
            exact, *((part.scale_bytes, part.code_bytes) for part in coded), itemsize=size
        )
        # a row's length is a multiple of eight, so that wider numbers can be viewed in every row
        self.data = torch.zeros(rows, row, dtype=torch.uint8, device=like.device)
        lengths = [exact * size, *(p.scale_bytes for p in coded), *(p.code_bytes for p in coded)]
        ends = [*accumulate(lengths, initial=0)]
        parts = [self.data[:, start:end] for start, end in pairwise(ends)]
        self.exact = parts[0].view(like.dtype)
        self.scales, self.codes = parts[1 : 1 + len(coded)], parts[1 + len(coded) :]

    def encode(self, part: int, values: Tensor, scratch: Tensor) -> None:
        """Write values of a part, which stay as they are, into the bytes."""
        if values.numel():
            codec = self.coded[part].codec
            codec.encode(values, self.scales[part], self.codes[part], scratch)

    def decode(self, part: int, values: Tensor) -> None:
        """Read the values."""
        if values.numel():
            self.coded[part].codec.decode(self.scales[part], self.codes[part], values)


class StateSizes(NamedTuple):
    """Of the state with which a message begins, weights first, moments last; what follows."""

    weights: int
    moments: int
    state: int
    variates: int = 0  # that follow it


def encoding(
    name: str | None, group: Group, sizes: StateSizes, message: Tensor
) -> Plain | Compressed:
    """The encoding of that name; None and a single worker send numbers as they are."""
    if name is None or group.size == 1:
        return Plain(group)
    return Compressed(group, sizes, message, name)
