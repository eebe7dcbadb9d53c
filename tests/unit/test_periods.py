"""Claims about periods that set themselves: by the step size ("qsr"), or measured ("auto")."""

import itertools
import json
import math
from fractions import Fraction

import pytest
import torch
from torch import nn

import codauc
import vectors
from codauc._internal.sync_periods import named_period
from codauc.algorithm import round_schedule
from codauc.algorithm.link_trial import try_link
from codauc.algorithm.round_periods import (
    DRIFT,
    FIRST,
    LONGEST,
    Measured,
    evened,
    measured_period,
    quadratic_period,
    quadratic_rounds,
)


def cosine(step, steps=60, rise=6):
    wave = 0.5 * (1 + math.cos(math.pi * step / steps))
    return max(min(1.0, (step + 1) / rise) * wave, 1e-6)


class Run:
    """One worker's training with a scheduler; it notes the steps after which rounds came."""

    def __init__(self, group, factor=cosine, **coda):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double()
        self.loss = codauc.MinMaxAUCLoss(pos_ratio=1 / 3).double()
        self.opt = codauc.PPDSG(self.model, self.loss, lr=0.3, average=False)
        self.group, self.factor = group, factor
        self.coda = codauc.CoDA(self.opt, group, **coda)
        self.position, self.rounds = 0, []

    def batch(self):
        generator = torch.Generator().manual_seed(1000 * self.group.rank + self.position)
        y = torch.arange(6) % 3 == 0
        x = torch.randn(6, 3, dtype=torch.float64, generator=generator)
        self.position += 1
        return x + (1 + self.group.rank) * y[:, None], y

    def train(self, *stages, leave_at=None):
        for stage in stages:
            source = (self.batch() for _ in itertools.count())
            for x, y in self.coda.stage(stage, source):
                for group in self.opt.param_groups:
                    group["lr"] = 0.3 * self.factor(self.opt.steps)
                before = self.group.ledger.rounds
                self.opt.zero_grad()
                self.loss(self.model(x), y).backward()
                self.opt.step()
                if self.group.ledger.rounds > before:
                    self.rounds.append(self.opt.steps)
                if self.opt.steps == leave_at:
                    return self
        return self

    @property
    def vector(self):
        return vectors.state(self.opt)


def simulate(function, workers=3):
    return codauc.launch(function, workers=workers, simulate=True)


# By the step size


def test_the_rule_is_quadratic_between_its_bounds():
    for first, eta in itertools.product((1, 3, 32), (Fraction(1, n) for n in range(1, 30))):
        exact = max(first, math.floor(first / eta**2))
        assert quadratic_period(first, 1.0, float(eta)) == min(exact, LONGEST * first)


def test_rounds_follow_the_step_size_and_a_rising_one_keeps_the_first_period():
    stage = codauc.Stage(0.3, 60, "qsr:4", 8)
    expected = list(quadratic_rounds(60, 4, cosine))
    assert expected[:3] == [4, 8, 12]
    assert expected[-1] == 60
    gaps = [b - a for a, b in itertools.pairwise([0, *expected[:-1]])]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 8

    def work(group):
        run = Run(group).train(stage)
        return run.rounds, group.ledger.rounds, run.coda.period_changes()

    for rounds, count, changes in simulate(work):
        assert rounds == expected[:-1]
        assert count == len(expected)
        assert [change["period"] for change in changes] == sorted({*gaps, changes[-1]["period"]})


def test_with_a_constant_step_size_it_is_the_fixed_period_bit_for_bit():
    def work(group, every):
        return Run(group, lambda step: 1.0).train(codauc.Stage(0.3, 22, every, 8)).vector

    fixed, own = (simulate(lambda g, e=every: work(g, e)) for every in (5, "qsr:5"))
    assert all(torch.equal(a, b) for a, b in zip(fixed, own, strict=True))


# By measured times and drift


def test_where_drift_is_small_the_period_is_the_shortest_whose_rounds_take_a_twentieth():
    for seconds in (1e-4, 1e-2, 1.0):
        found = measured_period(16, 1, Measured(0.01, seconds, 1e-6))
        assert seconds / (found * 0.01 + seconds) <= 0.05 + 1e-9
        assert found == 1 or seconds / ((found - 1) * 0.01 + seconds) > 0.05


def test_where_workers_drift_apart_the_time_to_a_given_auc_is_least():
    for seconds, drift in itertools.product((0.05, 1.0, 30.0), (0.1, 0.5)):
        doubled = 64 * (DRIFT / drift) ** 2

        def time(period, seconds=seconds, doubled=doubled):
            return (1 + period / doubled) * (0.01 + seconds / period)

        found = measured_period(64, 1, Measured(0.01, seconds, drift))
        best = min(range(1, 2000), key=time)
        assert abs(found - best) <= 1
        assert seconds / (found * 0.01 + seconds) > 0.05  # or it would be shorter


def test_what_is_not_known_yet_gives_the_first_period():
    assert measured_period(1, 1, Measured(0.0, 0.0, 0.0)) == FIRST
    assert measured_period(1, 5, Measured(0.01, 0.0, 0.0)) == FIRST
    assert measured_period(1, FIRST + 9, Measured(0.01, 0.0, 0.0)) == FIRST + 9


def test_the_periods_that_remain_are_even_and_no_longer():
    for period, left in itertools.product((1, 7, 64, 100), (1, 6, 63, 64, 65, 129, 1000)):
        found, at = [], 0
        while at < left:
            found.append(evened(period, left - at))
            at += found[-1]
        assert at == left
        assert max(found) <= period
        assert len(found) == math.ceil(left / period)
        assert max(found) - min(found) <= 1


class Clock:
    """Steps of a hundredth of a second."""

    seconds = 0.01

    def start(self):
        pass

    stop = start


@pytest.fixture
def timed(monkeypatch):
    """Rounds take as long as is set, steps a hundredth of a second."""
    monkeypatch.setattr(round_schedule, "StepClock", Clock)

    def use(seconds):
        def ledger_seconds(ledger, *kinds):
            return seconds * ledger.calls("round")

        monkeypatch.setattr("codauc.workers.group.Ledger.seconds", ledger_seconds)

    return use


def test_auto_finds_long_periods_for_slow_rounds_and_short_ones_for_fast(timed):
    def rounds(seconds):
        timed(seconds)

        def work(group):
            run = Run(group, lambda step: 1e-3).train(codauc.Stage(0.3, 500, "auto", 8))
            return run.rounds, run.coda.period_changes()

        (first, changes), *others = simulate(work)
        assert all(other == (first, changes) for other in others)
        return first, changes

    slow, changes = rounds(0.02)
    gaps = [b - a for a, b in itertools.pairwise([0, *slow, 500])]
    assert gaps[:2] == [63, 63]  # 500 steps in equal parts of at most 64
    assert set(gaps[2:]) <= {37, 38}  # 38 are those of a twentieth
    assert changes[-1]["period"] in (37, 38)
    assert changes[-1]["round_seconds"] == pytest.approx(0.02)
    assert changes[-1]["step_seconds"] == pytest.approx(0.01)
    fast, _ = rounds(1e-4)
    assert fast[1:] == list(range(fast[1], 500))


def test_auto_tries_the_link_before_its_first_round(timed, monkeypatch):
    monkeypatch.setattr(round_schedule, "try_link", lambda *_: Measured(0.01, 1.0, 0.0))
    timed(1.0)

    def work(group):
        run = Run(group, lambda step: 1.0).train(codauc.Stage(0.3, 600, "auto", 8))
        return run.rounds[0]

    assert simulate(work) == [200] * 3  # 600 in equal parts of at most sqrt(512 100)


@pytest.mark.parametrize("compress", [None, "int8"])
def test_a_round_should_take_what_small_sums_say_of_its_bytes(monkeypatch, compress):
    def ledger_seconds(ledger, *kinds):  # a millisecond a call, and 1 MB a second
        return sum(0.001 * ledger.calls(k) + 1e-6 * ledger.of(k).sent for k in kinds)

    monkeypatch.setattr("codauc.workers.group.Ledger.seconds", ledger_seconds)

    def work(group):
        averager = Run(group, compress=compress).coda.averager
        vector = averager.message.vector
        tried = try_link(group, vector, averager.encoding.size(vector), 0.01)
        before = sum(group.ledger.of(kind).sent for kind in ("round", "reply"))
        averager.round()
        return tried, sum(group.ledger.of(kind).sent for kind in ("round", "reply")) - before

    for tried, sent in simulate(work):
        assert tried.step_seconds == pytest.approx(0.01)
        assert tried.round_seconds == pytest.approx(0.001 + 1e-6 * sent, abs=2e-5)


def test_auto_has_short_periods_where_workers_drift_apart(timed):
    timed(1.0)

    def work(group):
        run = Run(group, lambda step: 1.0).train(codauc.Stage(0.3, 600, "auto", 8))
        return [change["period"] for change in run.coda.period_changes()]

    assert max(simulate(work)[0]) < 300  # while 1900 would be cheap


# Both


@pytest.mark.parametrize("every", ["qsr:4", "auto"])
@pytest.mark.parametrize("options", [{}, {"compress": "int8", "delay": 2}], ids=str)
@pytest.mark.parametrize("leave_at", [4, 6, 13, 21])
def test_a_state_saved_at_any_step_goes_on_bit_for_bit(timed, every, options, leave_at):
    timed(0.004)
    stages = codauc.Stage(0.3, 60, every, 8), codauc.Stage(0.1, 30, every, 8)

    def interrupted(group):
        first = Run(group, **options).train(stages[0], leave_at=leave_at)
        state = json.loads(json.dumps(first.coda.schedule.periods.pack()))
        saved = {**first.coda.state_dict(), "periods": state}
        second = Run(group, **options)
        second.coda.load_state_dict(saved)
        second.position = first.position
        second.train(*stages)
        return second.vector, second.coda.period_changes(), group.ledger.rounds

    def whole(group):
        run = Run(group, **options).train(*stages)
        return run.vector, run.coda.period_changes(), group.ledger.rounds

    for mine, theirs in zip(simulate(interrupted), simulate(whole), strict=True):
        assert torch.equal(mine[0], theirs[0])
        assert mine[1:] == theirs[1:]


@pytest.mark.parametrize("every", ["qsr", "auto"])
def test_a_single_worker_may_have_any_period(every):
    simulate(lambda g: Run(g).train(codauc.Stage(0.3, 40, every, 8)), 1)


def test_workers_with_other_periods_are_told_apart():
    def work(group):
        Run(group).train(codauc.Stage(0.3, 40, f"qsr:{4 + group.rank}", 8))

    with pytest.raises(ValueError, match="differ in stage sync_every"):
        simulate(work)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: codauc.Stage(0.1, 10, "qrs"), "did you mean 'qsr'"),
        (lambda: codauc.Stage(0.1, 10, "qsr:0"), "expected qsr:I with a number of steps"),
        (lambda: codauc.Stage(0.1, 10, "auto:3"), "expected auto alone"),
        (lambda: codauc.Stage(0.1, 10, "theorem"), "sync_every"),
        (lambda: codauc.Stage(0.1, 10, "qsr:4", local_every=4), "expected less"),
        (lambda: codauc.geometric(0.1, 10, 2, "qsr", grow_sync_every=True), "a number of steps"),
        (lambda: named_period("growing:x"), "expected growing:I"),
        (
            lambda: Run(codauc.LocalGroup(), delay=4).train(codauc.Stage(0.1, 10, "qsr:4")),
            "delay=4 with sync_every=qsr:4: expected a smaller delay",
        ),
    ],
)
def test_bad_values_are_answered(call, message):
    with pytest.raises(ValueError, match=message):
        call()
