"""What rounds keep from one to the next: taken as a record, and loaded again."""

from __future__ import annotations

import torch

from codauc.algorithm.coda_state import RoundState
from codauc.algorithm.compression import Encoding
from codauc.algorithm.eager_update import EagerUpdate
from codauc.algorithm.outer_step import OuterStep
from codauc.algorithm.ppdsg import PPDSG
from codauc.algorithm.round_message import RoundMessage
from codauc.algorithm.sites import Sites
from codauc.workers.group import Flight, Group


class SavedRounds:
    """`state` and `load` of `Averager`."""

    opt: PPDSG
    group: Group
    compress: str | None
    sites: Sites
    message: RoundMessage
    encoding: Encoding
    outer: OuterStep | None
    eager: EagerUpdate
    under_way: bool
    flight: Flight | None
    seconds: float
    drift: float | None

    def land(self) -> None:
        """Wait for the round that is under way."""
        raise NotImplementedError

    def measure(self, measuring: bool) -> None:
        """Let messages carry measured times and drift, or no longer."""
        raise NotImplementedError

    def state(self) -> RoundState:
        """What was lost by compression, and the round that is under way, as copies."""
        self.land()
        found = RoundState(
            compress=self.compress,
            workers=self.group.size,
            encoding=self.encoding.state_dict(),
            drift=self.drift,
            under_way=None,
            outer={} if self.outer is None else self.outer.state_dict(),
            measuring=self.message.measuring,
            seconds=self.seconds if self.message.measuring else 0.0,
            base=None if self.eager.base is None else self.eager.base.clone(),
            variates={} if self.opt.variates is None else self.opt.variates.state_dict(),
            period=self.sites.period,
        )
        if self.under_way:
            message = self.message
            parts = {"message": message.vector, "sent": self.eager.taken, "told": message.labels}
            found.under_way = {name: tensor.clone() for name, tensor in parts.items()}
        return found

    @torch.no_grad()
    def load(self, state: RoundState) -> None:
        """Take over what `state` gave."""
        correcting = self.opt.variates is not None
        state.check(
            self.compress, self.group.size, outer=self.outer is not None, correcting=correcting
        )
        self.measure(state.measuring)
        self.seconds = state.seconds
        self.group.wait_for_flight()  # it writes into the message, and into what is loaded
        if state.encoding:
            self.encoding.load_state_dict(state.encoding)
        if self.outer is not None:
            self.outer.load_state_dict(state.outer)
        if self.opt.variates is not None:
            self.opt.variates.load_state_dict(state.variates)
        self.sites.period = state.period
        self.opt.away = self.sites.away
        self.drift = state.drift
        saved = state.under_way
        self.flight, self.under_way = None, saved is not None
        self.eager.load(state.base, None if saved is None else saved["sent"])
        if saved is not None:
            self.message.vector.copy_(saved["message"])
            self.message.labels.copy_(saved["told"])
