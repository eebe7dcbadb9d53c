"""Schedules are lists of valid stages with the paper's numbers."""

import dataclasses
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codauc.algorithm import schedules, theory
from codauc.algorithm.schedules import Stage

SEEDED = settings(derandomize=True, deadline=None)


def rows(stages):
    return [(s.lr, s.steps, s.sync_every, s.dual_samples) for s in stages]


def test_geometric_divides_lr_and_multiplies_steps_by_3():
    stages = schedules.geometric(0.9, 2000, 3, sync_every=64, dual_samples=7)
    assert rows(stages) == [
        (0.9, 2000, 64, 7),
        (pytest.approx(0.3), 6000, 64, 7),
        (pytest.approx(0.1), 18000, 64, 7),
    ]


def test_grow_sync_every_multiplies_it_by_the_factor_too():
    stages = schedules.geometric(0.1, 100, 3, sync_every=8, factor=2, grow_sync_every=True)
    assert [s.sync_every for s in stages] == [8, 16, 32]


@SEEDED
@given(
    steps=st.integers(1, 10_000),
    every=st.integers(1, 100),
    tenths=st.integers(10, 50),
    stages=st.integers(1, 6),
)
def test_steps_and_sync_every_are_rounded_up_exactly(steps, every, tenths, stages):
    """Against exact integer arithmetic, for factors with one decimal, which floats do not hold."""
    made = schedules.geometric(0.1, steps, stages, every, factor=tenths / 10, grow_sync_every=True)
    for s, stage in enumerate(made):
        assert stage.steps == -(-steps * tenths**s // 10**s)
        assert stage.sync_every == -(-every * tenths**s // 10**s)


def test_constant_stages_are_equal():
    assert schedules.constant(0.1, 50, 3, 8, dual_samples=9) == [Stage(0.1, 50, 8, 9)] * 3
    assert schedules.constant(0.1, 50) == [Stage(0.1, 50)]


def test_np_ppd_sg_has_a_round_at_every_step():
    stages = schedules.np_ppd_sg(0.1, 10, 3, factor=2)
    assert [(s.steps, s.rounds) for s in stages] == [(10, 10), (20, 20), (40, 40)]


@pytest.mark.parametrize("factor", [1, 1.1, 2.5, 3])
def test_one_shot_has_one_round_a_stage(factor):
    stages = schedules.one_shot(0.1, 10, 5, factor=factor)
    assert [s.rounds for s in stages] == [1] * 5
    assert [s.sync_every for s in stages] == [s.steps for s in stages]


def test_theorem_gives_the_stages_of_theorem_1():
    given_ = {"mu": 0.5, "L": 2.0, "G_h": 2.0, "pos_ratio": 0.3}
    plan = theory.theorem1(0.01, 4, 3, **given_)
    stages = schedules.theorem(0.01, 4, 3, **given_)
    assert rows(stages) == list(
        zip(plan.lr, plan.steps, plan.sync_every, plan.dual_samples, strict=True)
    )


@SEEDED
@given(steps=st.integers(1, 10**6), every=st.integers(1, 10**6))
def test_rounds_are_steps_over_sync_every_rounded_up(steps, every):
    synced = sum(1 for t in range(every, min(steps, 50 * every) + 1, every) if t <= steps)
    if steps <= 50 * every:
        assert Stage(0.1, steps, every).rounds == synced + (steps % every > 0)
    assert Stage(0.1, steps, every).rounds == math.ceil(steps / every)


def test_a_stage_may_be_shorter_than_sync_every():
    assert Stage(0.1, 3, 1000).rounds == 1


def test_a_stage_holds_plain_numbers_and_is_frozen():
    stage = Stage(np.float32(0.5), np.int64(3), np.int32(2), np.int16(4), np.int8(1))
    assert [type(x) for x in dataclasses.astuple(stage)] == [float, int, int, int, int, bool]
    assert pickle.loads(pickle.dumps(stage)) == stage == dataclasses.replace(stage)
    with pytest.raises(dataclasses.FrozenInstanceError):
        stage.lr = 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Stage(0, 1), r"lr=0: expected a number > 0; use a positive"),
        (lambda: Stage(math.nan, 1), r"lr=nan: expected a number > 0"),
        (lambda: Stage(math.inf, 1), r"lr=inf: expected a number > 0"),
        (lambda: Stage(0.1, 0), r"steps=0: expected an integer >= 1"),
        (lambda: Stage(0.1, 2.5), r"steps=2.5: expected an integer >= 1"),
        (lambda: Stage(0.1, True), r"steps=True: expected an integer >= 1"),
        (lambda: Stage(0.1, 1, 0), r"sync_every=0: expected an integer >= 1; use 1 to average"),
        (lambda: Stage(0.1, 1, 1, 0), r"dual_samples=0: expected an integer >= 1"),
        (lambda: Stage(0.1, 1, sync_evry=2), r"Stage\(\) got .* did you mean 'sync_every'\?"),
        (lambda: schedules.geometric(0.1, 1, 0), r"stages=0: expected an integer >= 1"),
        (lambda: schedules.geometric(0.1, 1, 2, factor=0.5), r"factor=0.5: expected a number >= 1"),
        (lambda: schedules.geometric(0.1, 9, 1000), r"stages=1000: expected a last stage below"),
        (lambda: schedules.geometric(0.1, 1, 2, factr=2), r"did you mean 'factor'\?"),
        (lambda: schedules.constant(0.1, step=2), r"did you mean 'steps'\?"),
        (lambda: schedules.np_ppd_sg(0.1, 1, stage=2), r"did you mean 'stages'\?"),
        (lambda: schedules.one_shot(0.1, 1, stage=2), r"did you mean 'stages'\?"),
        (lambda: schedules.theorem(0.1, worker=2), r"did you mean 'workers'\?"),
    ],
)
def test_errors_say_what_was_got_and_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()
