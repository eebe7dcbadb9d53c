"""Stages, and functions that return lists of them.

PPD-SG is any of these schedules with one worker; NP-PPD-SG is `np_ppd_sg` (I = 1) and one-shot
averaging is `one_shot` (I = T_s), each with several.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

from codauc._internal.checks import known_arguments, real, whole
from codauc._internal.sync_periods import named_period
from codauc.algorithm.theory import round_up, theorem1


@dataclass(frozen=True)
class Stage:
    """One call of Algorithm 2: T `steps` of size eta `lr`, averaged every I `sync_every` steps.

    After it every worker draws m `dual_samples` to estimate alpha. A stage may be shorter than
    `sync_every`: it closes with a round in any case. `local_every` steps, fewer than `sync_every`,
    are the period of averaging inside each machine alone (None: never). With `estimate_ab` the same
    samples also give a and b, the mean scores of the two classes: after a warm start with another
    loss, which does not move them.

    `sync_every` may also say how the period sets itself: "qsr:8" begins with I = 8 and grows as the
    step size falls within the run, I = 8 (eta_peak / eta)^2; "auto" measures steps, rounds and
    drift, and takes the period by which a given AUC should be reached soonest.

    >>> Stage(lr=0.1, steps=100, sync_every=64).rounds
    2
    """

    lr: float
    steps: int
    sync_every: int | str = 1
    dual_samples: int = 1024
    local_every: int | None = None
    estimate_ab: bool = False

    def __post_init__(self) -> None:
        lr = real("lr", self.lr, above=0, remedy="use a positive step size, such as 0.1")
        steps = whole("steps", self.steps, least=1, remedy="a stage has at least one step")
        every: int | str = _period(self.sync_every)
        samples = whole(
            "dual_samples", self.dual_samples, least=1, remedy="alpha is estimated from samples"
        )
        local = self.local_every
        if local is not None:
            local = whole("local_every", local, least=1, remedy="use None not to average locally")
            if local >= (least := _least(every)) and every != "auto":
                raise ValueError(
                    f"local_every={local} with sync_every={least}: expected less; machines average "
                    "inside more often than across, and None means never."
                )
        if not isinstance(self.estimate_ab, bool):
            raise ValueError(f"estimate_ab={self.estimate_ab!r}: expected True or False.")
        values = (lr, steps, every, samples, local, self.estimate_ab)
        for name, value in zip(self.__match_args__, values, strict=True):
            object.__setattr__(self, name, value)

    @property
    def least_period(self) -> int:
        """I, or the least that it can become where it sets itself."""
        return _least(self.sync_every)

    @property
    def rounds(self) -> int:
        """Communication rounds, ceil(T/I); the estimate of alpha is counted apart.

        Where I sets itself, there are at most so many.
        """
        return -(-self.steps // self.least_period)


def _period(every: int | str) -> int | str:
    """A number of steps, or "qsr:I" or "auto"."""
    if not isinstance(every, str):
        return whole("sync_every", every, least=1, remedy="use 1 to average after every step")
    name, first = named_period(every, ("qsr", "auto"))
    return f"qsr:{first}" if name == "qsr" else name


def _least(every: int | str) -> int:
    return every if isinstance(every, int) else named_period(every)[1]


class StageOptions(TypedDict, total=False):
    """What all stages of a schedule share."""

    dual_samples: int
    local_every: int | None
    estimate_ab: bool


class ProblemConstants(TypedDict):
    """What Theorem 1 needs to know of the problem."""

    mu: float
    L: float
    G_h: float
    pos_ratio: float


Stage.__init__ = known_arguments(Stage.__init__)  # type: ignore[method-assign]


@known_arguments
def geometric(
    lr: float,
    steps: int,
    stages: int,
    sync_every: int | str = 1,
    *,
    factor: float = 3,
    grow_sync_every: bool = False,
    **further: Unpack[StageOptions],
) -> list[Stage]:
    """The paper's experiments: the step size falls and the stages lengthen by `factor`.

        eta_s = eta_0 / factor^(s-1),  T_s = T_0 factor^(s-1),  s = 1..`stages`

    `lr` is eta_0 and `steps` T_0. I stays at `sync_every`, or with `grow_sync_every` also grows:
    I_s = I_0 factor^(s-1). T and I are rounded up to integers. `further` arguments are those of
    `Stage`, equal in all stages: `dual_samples`, `local_every` and `estimate_ab`.

    >>> [(round(s.lr, 4), s.steps, s.sync_every) for s in geometric(0.1, 2000, 3, sync_every=64)]
    [(0.1, 2000, 64), (0.0333, 6000, 64), (0.0111, 18000, 64)]
    """
    first = Stage(lr, steps, sync_every, **further)
    return [
        replace(
            first,
            lr=first.lr / scale,
            steps=round_up(first.steps * scale),
            sync_every=_grown(first.sync_every, scale if grow_sync_every else 1),
        )
        for scale in _scales(factor, stages, first)
    ]


def _grown(every: int | str, scale: float) -> int | str:
    if isinstance(every, int):
        return round_up(every * scale)
    if scale != 1:
        raise ValueError(f"sync_every={every!r} with grow_sync_every: expected a number of steps.")
    return every


def _scales(factor: float, stages: int, first: Stage) -> list[float]:
    """factor^0, ..., factor^(stages-1), refused where T or I could no longer be counted."""
    factor = real("factor", factor, least=1, remedy="use 1 for equal stages, 3 as the paper does")
    stages = whole("stages", stages, least=1, remedy="use 1 for a single stage")
    longest = max(first.steps, first.least_period)
    if math.log2(longest) + (stages - 1) * math.log2(factor) > 53:
        raise ValueError(
            f"stages={stages}: expected a last stage below 2^53 steps, got "
            f"{longest} * {factor:g}^{stages - 1}; use fewer stages or a smaller factor."
        )
    return [factor**s for s in range(stages)]


@known_arguments
def constant(
    lr: float,
    steps: int,
    stages: int = 1,
    sync_every: int | str = 1,
    **further: Unpack[StageOptions],
) -> list[Stage]:
    """Equal stages: only the anchor and alpha are renewed between them.

    >>> constant(0.1, 500, stages=2, sync_every=8)[1]
    Stage(lr=0.1, steps=500, sync_every=8, dual_samples=1024, local_every=None, estimate_ab=False)
    """
    return geometric(lr, steps, stages, sync_every, factor=1, **further)


@known_arguments
def np_ppd_sg(
    lr: float, steps: int, stages: int, *, factor: float = 3, **further: Unpack[StageOptions]
) -> list[Stage]:
    """Naive parallel PPD-SG: `geometric` with I = 1, an average after every step.

    >>> [stage.rounds for stage in np_ppd_sg(0.1, 10, 2)]
    [10, 30]
    """
    return geometric(lr, steps, stages, 1, factor=factor, **further)


@known_arguments
def one_shot(
    lr: float, steps: int, stages: int, *, factor: float = 3, **further: Unpack[StageOptions]
) -> list[Stage]:
    """One-shot averaging: `geometric` with I = T_s, one round per stage.

    >>> [stage.rounds for stage in one_shot(0.1, 10, 2)]
    [1, 1]
    """
    return geometric(lr, steps, stages, steps, factor=factor, grow_sync_every=True, **further)


@known_arguments
def theorem(
    lr0: float, workers: int, stages: int, **problem: Unpack[ProblemConstants]
) -> list[Stage]:
    """The stages of Theorem 1 for a `problem` with `mu`, `L`, `G_h` and `pos_ratio`.

    See `codauc.algorithm.theory.theorem1` for these; it also gives the theorem's gamma.

    >>> theorem(0.01, 4, 1, mu=0.5, L=2.0, G_h=1.0, pos_ratio=0.5)
    [Stage(lr=0.04, steps=100, sync_every=3, dual_samples=189, local_every=None, estimate_ab=False)]
    """
    plan = theorem1(lr0, workers, stages, **problem)
    return [
        Stage(*row)
        for row in zip(plan.lr, plan.steps, plan.sync_every, plan.dual_samples, strict=True)
    ]
