"""Rounds: pack a message, let the group average it, unpack it; and when it takes effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from codauc.algorithm.compression import Encoding, Means, StateSizes, encoding
from codauc.algorithm.control_variates import ControlVariates
from codauc.algorithm.eager_update import EagerUpdate
from codauc.algorithm.gradient_rounds import average_gradients
from codauc.algorithm.outer_step import Nesterov, OuterStep
from codauc.algorithm.ppdsg import PPDSG
from codauc.algorithm.round_message import NotFiniteError as NotFiniteError
from codauc.algorithm.round_message import RoundMessage
from codauc.algorithm.round_periods import Measured
from codauc.algorithm.same_start import (
    broadcast_outside_rounds,
    settings_to_compare,
    take_first,
)
from codauc.algorithm.saved_rounds import SavedRounds
from codauc.algorithm.sites import Sites
from codauc.algorithm.trained_state import view_like
from codauc.workers.agreement import compare
from codauc.workers.group import Flight, Group, LocalGroup, Pending

Method = TypeVar("Method", bound=Callable[..., Any])
Around = Callable[[], AbstractContextManager[None]]


def _observed(method: Method) -> Method:
    """Let the method happen inside the averager's `around()`."""

    @wraps(method)
    def inside(self: Averager, *args: Any, **options: Any) -> Any:
        with self.around():
            return method(self, *args, **options)

    return cast(Method, inside)


class Averager(SavedRounds):
    """Averages v, alpha and BatchNorm statistics over the group, in one collective.

    Label counts, requests and seconds travel with them (`RoundMessage`).

    The message is a copy, so that a collective that fails leaves the worker as it was. `compress`
    sends weights and moments in fewer bytes; `outer` is what is done with the mean
    of the weights. If one worker's numbers are not finite, no worker takes the answer over.
    """

    def __init__(
        self,
        opt: PPDSG,
        group: Group,
        compress: str | None = None,
        outer: Nesterov | None = None,
        sites: Sites | None = None,
        *,
        correcting: bool = False,
    ) -> None:
        self.opt, self.group, self.compress = opt, group, compress
        self.sites = sites or Sites(group.rank, group.size)
        self.inner: Group = LocalGroup()  # who averages in between: the workers of this machine
        self.message = RoundMessage(opt, group, correcting=correcting)
        opt.variates, opt.away = self._new_variates(), self.sites.away
        self.requests, self.finite = self.message.requests, self.message.finite
        self.encoding, self.outer = self._new_encoding(), self._new_outer(outer)
        self.eager = EagerUpdate(opt)  # what delayed rounds do
        self.inner_message: Tensor | None = None
        self.under_way = False  # whether a round has begun and not yet taken effect
        self.flight: Flight | None = None
        self.seconds = 0.0  # of the last round
        self.step_seconds = 0.0  # of this worker, for messages that carry measures
        self.around: Around = nullcontext  # each round
        self.watching = False  # whether rounds note the drift, which takes one more pass
        self.drift: float | None = None  # |w - mean| / |mean| when it was last noted

    def _new_encoding(self) -> Encoding:
        trained, message = self.opt.trained, self.message
        sizes = StateSizes(
            trained.weight_size, trained.moment_size, message.size, message.variate_size
        )
        return encoding(self.compress, self.group, sizes, message.vector)

    def _new_outer(self, rule: Nesterov | None) -> OuterStep | None:
        if rule is None or self.group.size == 1:
            return None
        return OuterStep(rule, self.message.vector, self.opt.trained.weight_size)

    def _new_variates(self) -> ControlVariates | None:
        if not self.message.variate_size:
            return None
        trained, tasks = self.opt.trained, self.opt.loss.tasks
        return ControlVariates(trained, tasks, self.message.vector, self.group.rank)

    @torch.no_grad()
    def lay_out(self, *, measuring: bool) -> None:
        """Before a stage: make the message anew if other tensors are trained now.

        All workers take them from worker 0, as at the start. `measuring` is for periods that set
        themselves.
        """
        changed = self.message.layout != self.opt.trained.layout()
        self.measure(measuring)
        if changed:
            self.message.lay_out()
            self.encoding, self.inner_message = self._new_encoding(), None
            self.outer = self._new_outer(None if self.outer is None else self.outer.rule)
            self.opt.variates = self._new_variates()
            self.same_everywhere()

    def measure(self, measuring: bool) -> None:
        """Let messages carry measured times and drift, or no longer; all workers are equal now."""
        if measuring == self.message.measuring or self.group.size == 1:
            return
        self.message.measuring, self.watching = measuring, measuring or self.watching
        self.message.lay_out()
        self.encoding, self.inner_message = self._new_encoding(), None
        self.opt.trained.pack(self.message.state)
        self.encoding.reset(self.message.vector)

    @torch.no_grad()
    def begin_stage(self, *, again: bool) -> None:
        """All workers have the same weights, or go on with a stage that was begun."""
        if self.outer is not None and not (again and self.outer.begun):
            self.opt.trained.pack(self.message.state)
            self.outer.begin(self.message.vector)

    def _step_outside(self) -> None:
        """Replace the mean of the weights in the message by what the outer step makes of it."""
        if self.outer is not None:
            self.outer.take(self.message.vector)
            self.encoding.follow(self.message.vector)

    @torch.no_grad()
    def start(self, **settings: Any) -> None:
        """Compare settings, then give every worker the state of worker 0."""
        self.compare(**settings_to_compare(self.opt), **settings)
        self.same_everywhere()

    def compare(self, kind: str = "start", **settings: Any) -> None:
        """Raise, on every worker, if one of them has another value of a setting."""
        compare(self.group, settings, self.message.vector.device, kind)

    @torch.no_grad()
    def same_everywhere(self) -> None:
        """Give every worker the state of worker 0; nothing was lost by compression so far."""
        if self.group.size == 1:
            return
        state = self.message.state
        self.opt.trained.pack(state)
        take_first(self.group, state)
        self.opt.trained.unpack(state)
        self.encoding.reset(self.message.vector)
        self.begin_variates_anew()
        broadcast_outside_rounds(self.opt, self.group)

    @torch.no_grad()
    def begin_variates_anew(self) -> None:
        """What comes has another objective, or other data: no gradient is corrected as yet."""
        if self.opt.variates is not None:
            self.opt.variates.begin_anew()

    @_observed
    @torch.no_grad()
    def round(self, *, closing: bool = False) -> None:
        """Replace the state by its mean; a stage's closing round carries the stage's result."""
        if self.group.size == 1:
            self._alone(closing=closing)
            return
        means = self._pack(self.opt.result if closing and self.opt.steps else None, closing)
        self.group.fly(self._average(means)).land()
        self.message.unpack_tail()
        if self.watching and not closing:
            self.drift = _drift(self.opt.trained.weights, self.message.vector)
        if not (closing and self.opt.average):  # a stage's mean is no change since the last round
            self._step_outside()
        self.opt.trained.unpack(self.message.state)
        if self.opt.variates is not None:
            self.opt.variates.take(self.message.variates, self.sites, closing=closing)
        self._next_period()
        if closing:
            self.eager.forget()

    def _next_period(self) -> None:
        self.sites.period += 1
        self.opt.away = self.sites.away

    def _pack(self, primal: list[Tensor] | None, closing: bool = False) -> Means:
        """Write the message; returns how the means of state and variates are taken."""
        message, variates, ready = self.message, self.opt.variates, self.encoding.sums
        means = Means(self.sites.mean(), self.sites.mean())
        message.measured = (self.step_seconds, self.drift or 0.0)
        message.pack(primal, means.state.divisor if ready else 1, self.seconds)
        if variates is not None:
            means = means._replace(variates=variates.mean(self.sites, closing=closing))
            variates.pack(message.variates, means.variates, divided=ready)
        return means

    @property
    def measured(self) -> Measured | None:
        """What the last round said of all workers, if messages carry measures."""
        return self.message.heard

    def _average(self, means: Means) -> Iterator[Pending]:
        before = self.group.ledger.seconds("round", "reply")
        yield from self.encoding.average(self.message.vector, means)
        self.seconds = self.group.ledger.seconds("round", "reply") - before

    @_observed
    @torch.no_grad()
    def inner_round(self) -> None:
        """Replace the state by its mean over this worker's machine; counts wait for a round."""
        if self.inner.size == 1:
            return
        if self.inner_message is None:
            self.inner_message = self.message.buffer()
        state = self.inner_message[: self.message.size]
        self.opt.trained.pack(state, divisor=self.inner.size)
        self.inner.sum_(state, "inner")  # a round of all workers may be under way meanwhile
        self.opt.trained.unpack(state)

    @_observed
    @torch.no_grad()
    def begin(self) -> None:
        """Start a round that goes on while this worker computes."""
        if self.group.size == 1:
            self._alone()
            return
        self.eager.pack(self.message.state)
        means = self._pack(None)
        self.flight, self.under_way = self.group.fly(self._average(means)), True
        self.eager.hold_back(self.inner.size / means.state.divisor)

    def advance(self) -> None:
        """Let a round that is under way go on, as far as is possible without waiting."""
        if self.flight is not None:
            with self._taken_back_if_it_fails():
                self.flight.advance()

    @_observed
    @torch.no_grad()
    def complete(self, steps: int) -> None:
        """Let the round that was begun so many steps ago take effect on the state of now."""
        with self._taken_back_if_it_fails():
            self.land()
            self.message.unpack_tail()
        self.under_way = False
        self._next_period()
        if self.message.measuring:
            self.drift = _drift([self.eager.taken_weights], self.message.vector)
        self._step_outside()
        self.eager.arrive(self.message.state, steps)

    def land(self) -> None:
        """Wait for the round that is under way."""
        if self.flight is not None:
            with self._taken_back_if_it_fails():
                self.flight.land()
        self.flight = None

    @contextmanager
    def _taken_back_if_it_fails(self) -> Iterator[None]:
        """Inside this block an error ends the round that is under way, as if it had not begun."""
        try:
            yield
        except BaseException:
            self.flight, self.under_way = None, False
            self.eager.take_back()
            raise

    @_observed
    @torch.no_grad()
    def gradients(self) -> None:
        """Replace the gradients by their mean, in one message with the requests."""
        if self.group.size > 1:
            average_gradients(self.opt, self.group, self.requests, self.finite)

    def _alone(self, *, closing: bool = False) -> None:
        """With nobody to average with: a single state is its own mean."""
        loss, opt = self.opt.loss, self.opt
        if closing:
            self.finite.require(*opt.result, *opt.trained.tensors())
            self.group.sum_(self.message.vector, "round")  # counted like any other's
            if opt.steps and opt.average:
                opt.take_result()
        loss.agree(loss.seen - loss.reported, loss.seen)
        self.requests.hear_alone()


@contextmanager
def observing_rounds(averager: Averager, around: Around) -> Iterator[None]:
    """Inside this block every round, from packing to unpacking, happens inside `around()`."""
    before, averager.around = averager.around, around
    try:
        yield
    finally:
        averager.around = before


def _drift(weights: list[Tensor], message: Tensor) -> float:
    """How far this worker's weights are from the mean in a message, relative to the mean."""
    square = length = 0.0
    start = 0
    for weight in weights:
        mean = view_like(weight, message, start)
        square += float((weight.to(mean.dtype) - mean).square_().sum())
        length += float(mean.square().sum())
        start += weight.numel()
    return (square / length) ** 0.5 if length else 0.0
