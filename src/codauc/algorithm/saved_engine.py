"""The engine's state: taken at any step, and loaded again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from codauc._internal.random_streams import random_state, set_random_state
from codauc.algorithm.coda_state import CoDAState
from codauc.algorithm.ppdsg import PPDSG
from codauc.algorithm.round_schedule import RoundSchedule
from codauc.algorithm.rounds import Averager
from codauc.algorithm.schedules import Stage
from codauc.models.weights import check_weights
from codauc.workers.group import Group


class SavedEngine:
    """`state_dict` and `load_state_dict` of `CoDA`."""

    opt: PPDSG
    group: Group
    averager: Averager
    schedule: RoundSchedule
    current: Stage | None
    stages_done: int
    closed: bool
    loop: object | None
    _driven: bool
    _ending: Iterator[Any] | None

    def __getstate__(self) -> dict[str, Any]:
        """Refused: the other workers would know nothing of a copy."""
        raise TypeError("CoDA cannot be copied or pickled: make a new one and load_state_dict.")

    def state_dict(self) -> dict[str, Any]:
        """Everything this worker needs to go on, as copies; may be taken between any two steps."""
        return CoDAState(
            model={k: v.detach().clone() for k, v in self.opt.model.state_dict().items()},
            optimizer=self.opt.state_record(),
            averager=self.averager.state(),
            ledger=self.group.ledger.state_dict(),
            streams=random_state(),
            stage=self.current,
            stages_done=self.stages_done,
            closed=self.closed,
            **self.schedule.state(),
        ).pack()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave; the argument is neither kept nor changed."""
        saved = CoDAState.unpack(state)
        check_weights("the state", self.opt.model, saved.model)
        self.averager.load(saved.averager)
        self.opt.load_state_dict(saved.optimizer.pack())
        self.opt.model.load_state_dict(saved.model)
        self.group.ledger.load_state_dict(saved.ledger)
        set_random_state(saved.streams)
        self.current, self.stages_done, self.closed = saved.stage, saved.stages_done, saved.closed
        self.loop, self._driven, self._ending = None, False, None
        self.schedule.load(saved)
