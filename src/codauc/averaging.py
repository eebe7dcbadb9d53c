"""What the workers average, in one message, and when it takes effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from codauc.agreement import compare
from codauc.encoding import Plain, encoding
from codauc.group import Flight, Group, Pending
from codauc.memory import zero_vector
from codauc.optim import PPDSG

WISHES = ("stop", "leave", "save")  # what a worker can ask of all
_PART = 2**18  # numbers that are looked at together
_BASE = 4096  # counts travel as two digits to this base, each exact in float32


class NotFiniteError(ArithmeticError):
    """A worker's weights, or its loss, became infinite or NaN; all workers raise it together."""


class Averager:
    """Averages v, alpha, BatchNorm statistics and label counts over the group, in one collective.

    The message is a copy, so that a collective that fails leaves the worker as it was. After a
    plain round the message becomes the state's memory and the old memory the next message: the
    numbers are moved once. `compress` sends weights in fewer bytes.

    A message is the state, the digits of the label counts, the seconds of each worker's last round
    (who took the least had to wait for nobody), what a worker asks of all, and whether its numbers
    are finite: if one's are not, no worker takes the answer over.
    """

    def __init__(self, opt: PPDSG, group: Group, compress: str | None = None) -> None:
        self.opt, self.group, self.inner, self.compress = opt, group, group, compress
        self.size = opt.flat.size if group.size > 1 else 0  # a single worker sends no state
        self.message = self._buffer()
        self.home: Tensor | None = None  # where the state lives, if messages and it change places
        if group.size > 1 and opt.flat.movable:
            self.home = self._buffer()
            self.home[: self.size].copy_(opt.flat.vectors[0])
            opt.flat.move_to(self.home[: self.size])
        self.encoding = encoding(
            compress, group, opt.flat.stretches("weight"), self.size, self.message
        )
        self.told = opt.loss.seen.clone()  # the label counts of which the last message speaks
        self.before: Tensor | None = None  # the state when a delayed round began
        self.inner_message: Tensor | None = None
        self.under_way = False  # whether a round has begun and not yet taken effect
        self.flight: Flight | None = None
        self.seconds = 0.0  # of the last round
        self.asking: set[str] = set()  # what this worker asks of all
        self.asked: set[str] = set()  # what one of them did in the last round
        self.grants = 0  # how often wishes were heard
        self.losses = torch.zeros((), device=self.message.device)  # their sum: is it finite?
        self.watching = False  # whether rounds note the drift, which takes one more pass
        self.drift: float | None = None  # |w - mean| / |mean| when it was last noted

    def _buffer(self) -> Tensor:
        flat = self.opt.flat
        tail = 2 * self.opt.loss.seen.numel() + self.group.size + len(WISHES) + 1
        return zero_vector(self.size + tail, flat.dtype, flat.vectors[0].device)

    @torch.no_grad()
    def start(self, **settings: Any) -> None:
        """Compare settings, then give every worker the state of worker 0."""
        self.compare(**_settings(self.opt), **settings)
        self.same_everywhere()

    @torch.no_grad()
    def same_everywhere(self) -> None:
        """Give every worker the state of worker 0; nothing was lost by compression so far."""
        if self.group.size == 1:
            return
        state = self.message[: self.size]
        self.opt.flat.pack(state)
        self.group.broadcast_(state, "start")
        self.opt.flat.unpack(state)
        self.encoding.reset(self.message)
        for tensors in _others(self.opt):
            joined = torch.cat([tensor.flatten() for tensor in tensors])
            self.group.broadcast_(joined, "start")
            parts = torch.split(joined, [tensor.numel() for tensor in tensors])
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    @torch.no_grad()
    def round(self, *, closing: bool = False) -> None:
        """Replace the state by its mean; a stage's closing round carries the stage's result."""
        if self.group.size == 1:
            self._alone(closing=closing)
            return
        self._write(self.opt.result if closing and self.opt.steps else None)
        self._send().land()
        self._read()
        if self.watching and not closing:
            self._note_drift()
        if isinstance(self.encoding, Plain) and self.home is not None:
            self.message = self._move_to(self.message)
        else:
            self.opt.flat.unpack(self.message[: self.size])

    @torch.no_grad()
    def inner_round(self) -> None:
        """Replace the state by its mean over this worker's machine; counts wait for a round."""
        if self.inner.size == 1:
            return
        if self.inner_message is None:
            self.inner_message = self._buffer()
        state = self.inner_message[: self.size]
        self.opt.flat.pack(state, divisor=self.inner.size)
        self.inner.sum_(state, "inner")  # a round of all workers may be under way meanwhile
        if self.home is not None:
            self.inner_message = self._move_to(self.inner_message)
        else:
            self.opt.flat.unpack(state)

    @torch.no_grad()
    def begin(self) -> None:
        """Start a round that goes on while this worker computes."""
        if self.group.size == 1:
            self._alone()
            return
        if self.before is None:
            self.before = torch.empty_like(self.message[: self.size])
        self.opt.flat.pack(self.before)
        self._write(None)
        self.under_way, self.flight = True, self._send()

    @torch.no_grad()
    def gradients(self) -> None:
        """Replace the gradients by their mean, in one message with the wish to stop."""
        if self.group.size == 1:
            return
        found = [p.grad for group in self.opt.param_groups for p in group["params"]]
        gradients = [gradient for gradient in found if gradient is not None]
        wishes = gradients[0].new_tensor(self._wishes())
        message = torch.cat([*(gradient.flatten() for gradient in gradients), wishes])
        bad = float(not self._finite(message))
        message = torch.cat([message, message.new_tensor([bad])])
        self.group.sum_(message.div_(self.group.size), "round")
        *means, wishes, bads = torch.split(
            message, [*(gradient.numel() for gradient in gradients), len(WISHES), 1]
        )
        self._grant(wishes)
        self._check_finite(float(bads))
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.copy_(mean.view_as(gradient))

    def advance(self) -> None:
        """Let a round that is under way go on, as far as is possible without waiting."""
        if self.flight is not None:
            self.flight.advance()

    @torch.no_grad()
    def complete(self) -> None:
        """Let the round that was begun take effect: add what it changes to the state of now."""
        self._land()
        self.under_way = False
        self._read()
        assert self.before is not None
        self.opt.flat.correct(self.message[: self.size], self.before)

    def _land(self) -> None:
        flight, self.flight = self.flight, None
        if flight is not None:
            try:
                flight.land()
            except BaseException:
                self.under_way = False
                raise

    def _alone(self, *, closing: bool = False) -> None:
        """With nobody to average with: a single state is its own mean."""
        loss, opt = self.opt.loss, self.opt
        if closing:
            parts = [*opt.result, *opt.flat.vectors]
            self._check_finite(float(not all(self._finite(part) for part in parts)))
            self.group.sum_(self.message, "round")  # counted like any other's
            if opt.steps and opt.average:
                for v, result in zip(opt.flat.primal, opt.result, strict=True):
                    v.copy_(result)
                opt.flat.mark_changed()
        loss.agree(loss.seen - loss.reported, loss.seen)
        self.asked = set(self.asking)

    def _note_drift(self) -> None:
        flat, square, length = self.opt.flat, 0.0, 0.0
        own = [b.of(flat.vectors) for b in flat.blocks if b.role == "weight"]
        for mine, stretch in zip(own, flat.stretches("weight"), strict=True):
            pairs = zip(mine.split(_PART), self.message[stretch].split(_PART), strict=True)  # type: ignore[no-untyped-call]
            for part, mean in pairs:  # in parts, so as not to need another copy of the weights
                square += float((part.to(mean.dtype) - mean).square_().sum())
                length += float(mean.square().sum())
        self.drift = (square / length) ** 0.5 if length else 0.0

    def _write(self, primal: list[Tensor] | None) -> None:
        loss = self.opt.loss
        self.opt.flat.pack(self.message[: self.size], primal, self.encoding.divisor)
        digits, seconds, asking, bad = self._tail()
        self.told.copy_(loss.seen)
        fresh = loss.seen - loss.reported
        digits[0].copy_(fresh // _BASE)
        digits[1].copy_(fresh % _BASE)
        seconds.zero_()[self.group.rank] = self.seconds
        asking.copy_(asking.new_tensor(self._wishes()))
        bad.fill_(float(not self._finite(self.message[: self.size])))

    def _send(self) -> Flight:
        return self.group.fly(self._timed())

    def _timed(self) -> Iterator[Pending]:
        before = self.group.ledger.seconds("round", "reply")
        yield from self.encoding.average(self.message)
        self.seconds = self.group.ledger.seconds("round", "reply") - before

    def _read(self) -> None:
        """Take from the answer what is not state: label counts, and how long others took."""
        digits, seconds, asking, bad = self._tail()
        self._check_finite(float(bad))
        self._grant(asking)
        high, low = digits.round().to(torch.int64)
        self.opt.loss.agree(high * _BASE + low, self.told)
        taken = seconds.tolist()
        if min(taken) > 0:  # all speak of the round before
            self.group.ledger.of("round").waiting += taken[self.group.rank] - min(taken)

    def _tail(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        sizes = [2 * self.opt.loss.seen.numel(), self.group.size, len(WISHES), 1]
        digits, seconds, asking, bad = torch.split(self.message[self.size :], sizes)
        return digits.view(2, 2, -1), seconds, asking, bad

    def _wishes(self) -> list[float]:
        return [float(wish in self.asking) for wish in WISHES]

    def _grant(self, sums: Tensor) -> None:
        self.grants += 1
        self.asked = {w for w, total in zip(WISHES, sums.tolist(), strict=True) if total > 0}

    def _finite(self, values: Tensor) -> bool:
        """Whether these numbers are, and the losses since this was last asked."""
        fine = bool((values.sum() + self.losses).isfinite())
        if not fine:  # a sum of finite numbers may overflow
            fine = bool(values.isfinite().all() and self.losses.isfinite())
        self.losses.zero_()
        return fine

    def check_alone(self) -> None:
        """Raise if this worker's numbers are not finite."""
        self._check_finite(float(not all(self._finite(vector) for vector in self.opt.flat.vectors)))

    def _check_finite(self, bad: float) -> None:
        if bad > 0:
            raise NotFiniteError(
                f"the weights or the loss of {'a' if self.group.size > 1 else 'the'} worker are "
                "not finite: expected numbers; lower the step size, or look for bad input."
            )

    def _move_to(self, message: Tensor) -> Tensor:
        """Make a message the state's home; return the old home."""
        old, self.home = self.home, message
        assert old is not None
        self.opt.flat.move_to(message[: self.size])
        return old

    def compare(self, kind: str = "start", **settings: Any) -> None:
        """Raise, on every worker, if one of them has another value of a setting."""
        compare(self.group, settings, self.message.device, kind)

    def state_dict(self) -> dict[str, Any]:
        """What was lost by compression, and the round that is under way, as copies."""
        self._land()
        state: dict[str, Any] = {
            "compress": self.compress,
            "workers": self.group.size,
            "encoding": self.encoding.state_dict(),
            "drift": self.drift,
            "under_way": None,
        }
        if self.under_way:
            assert self.before is not None
            names = ("message", "before", "told")
            state["under_way"] = {name: getattr(self, name).clone() for name in names}
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.check_state(state)
        self.group.settle()  # what is under way writes into the message, and into what is loaded
        if state["encoding"]:
            self.encoding.load_state_dict(state["encoding"])
        self.drift = state["drift"]
        saved = state["under_way"]
        self.flight, self.under_way = None, saved is not None
        if saved is not None:
            self.message.copy_(saved["message"])
            self.before = saved["before"].to(self.message.device, copy=True)
            self.told.copy_(saved["told"])

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise if a saved state is not of an averager like this one."""
        here = {"compress": self.compress, "workers": self.group.size}
        if not state["encoding"] and state["under_way"] is None:
            del here["workers"]  # nothing in it depends on their number
        for name, value in here.items():
            if state[name] != value:
                raise ValueError(
                    f"state saved with {name}={state[name]!r}, here {value!r}: make CoDA as it was "
                    "when it was saved."
                )


def _settings(opt: PPDSG) -> dict[str, Any]:
    """What must be equal on all workers."""
    loss = opt.loss
    groups = [{k: v for k, v in group.items() if k != "params"} for group in opt.param_groups]
    return {
        **{k: v for k, v in opt.settings().items() if k != "groups"},
        "tensors": {name: " ".join(rest) for name, *rest in opt.flat.layout()},
        "other_tensors": [[str(t.dtype), *t.shape] for tensors in _others(opt) for t in tensors],
        "tasks": loss.tasks,
        "mix": loss.mix,
        "gamma": opt.gamma,
        "max_grad_norm": opt.max_grad_norm,
        "param_groups": groups,
    }


def _others(opt: PPDSG) -> list[list[Tensor]]:
    """Frozen parameters and buffers that no round averages, by dtype: equal only at the start."""
    averaged = {id(entry.tensor) for entry in opt.flat.entries}
    tensors = [*opt.model.parameters(), *opt.model.buffers()]
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        if id(tensor) not in averaged:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
    return list(by_dtype.values())
