"""Claims about the outer step: momentum along the averaged change of the weights."""

import itertools

import pytest
import torch
from torch import nn

import codauc
import vectors

STAGE = codauc.Stage(0.3, 22, 5, 8)
OUTER = codauc.Nesterov(lr=0.7, momentum=0.9)


def batches(rank, start=0):
    for index in itertools.count(start):
        generator = torch.Generator().manual_seed(1000 * rank + index)
        y = torch.arange(6) % 3 == 0
        x = torch.randn(6, 3, dtype=torch.float64, generator=generator)
        yield x + (1 + rank) * y[:, None], y


class Run:
    """One worker's training."""

    def __init__(self, group=None, rank=0, average=False, **coda):
        torch.manual_seed(0)
        layers = [nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1)]
        self.model = nn.Sequential(*layers).double()
        self.loss = codauc.MinMaxAUCLoss(pos_ratio=1 / 3).double()
        self.opt = codauc.PPDSG(self.model, self.loss, lr=0.3, gamma=2.0, average=average)
        self.rank = rank if group is None else group.rank
        self.coda = None if group is None and not coda else codauc.CoDA(self.opt, group, **coda)
        self.position = 0

    def step(self):
        x, y = next(batches(self.rank, self.position))
        self.position += 1
        self.opt.zero_grad()
        self.loss(self.model(x), y).backward()
        self.opt.step()

    def source(self):
        for batch in batches(self.rank, self.position):
            self.position += 1
            yield batch

    def train(self, *stages, leave_at=None):
        for stage in stages:
            for x, y in self.coda.stage(stage, self.source()):
                self.opt.zero_grad()
                self.loss(self.model(x), y).backward()
                self.opt.step()
                if self.opt.steps == leave_at:
                    return self
        return self

    @property
    def vector(self):
        return vectors.state(self.opt)


def simulate(function, workers=3):
    return codauc.launch(function, workers=workers, simulate=True)


def by_hand(stage, workers, rule):
    """Algorithm 2 with an outer step, in plain loops: the state before the estimate of alpha."""
    runs = [Run(rank=rank) for rank in range(workers)]
    size = runs[0].opt.trained.weight_size
    theta, m = runs[0].vector[:size].clone(), torch.zeros(size, dtype=torch.float64)
    for run in runs:
        run.opt.begin_stage(stage.lr)
    for step in range(1, stage.steps + 1):
        for run in runs:
            run.step()
        if step % stage.sync_every == 0 or step == stage.steps:
            mean = sum(run.vector for run in runs) / workers
            change = mean[:size] - theta
            m = rule.momentum * m + change
            theta = theta + rule.lr * (change + rule.momentum * m)
            mean[:size] = theta
            for run in runs:
                run.opt.trained.unpack(mean)
    return runs[0].vector


@pytest.mark.parametrize("rule", [OUTER, codauc.Nesterov(1.0, 0.5), codauc.Nesterov(0.5, 0.0)])
def test_the_outer_step_is_nesterov_s_on_the_change_of_the_weights_alone(rule):
    expected = by_hand(STAGE, 3, rule)

    def work(group):
        run = Run(group, outer=rule).train(STAGE)
        return run.vector, run.opt.trained.weight_size, run.opt.trained.steered_size

    for found, weights, steered in simulate(work):
        ends = weights + 2, steered  # a and b; then alpha and statistics, which the end estimates
        assert (found[: ends[0]] - expected[: ends[0]]).abs().max() < 1e-12


@pytest.mark.parametrize("options", [{}, {"compress": "int8"}, {"delay": 2}], ids=str)
def test_a_step_of_one_without_momentum_is_plain_averaging(options):
    outer = codauc.Nesterov(lr=1.0, momentum=0.0)
    plain = simulate(lambda g: Run(g, **options).train(STAGE).vector)
    found = simulate(lambda g: Run(g, outer=outer, **options).train(STAGE).vector)
    for mine, theirs in zip(found, plain, strict=True):
        assert (mine - theirs).abs().max() < 1e-12


@pytest.mark.parametrize("options", [{}, {"compress": "int8"}, {"compress": "int2"}], ids=str)
def test_all_workers_take_the_same_outer_step_and_nothing_is_sent_for_it(options):
    def work(group, **more):
        run = Run(group, **options, **more).train(STAGE, leave_at=10)
        return run.vector, [group.ledger.of(kind).sent for kind in ("round", "reply")]

    plain, outer = simulate(work), simulate(lambda g: work(g, outer=OUTER))
    for (vector, sent), (_, usual) in zip(outer, plain, strict=True):
        assert torch.equal(vector, outer[0][0])
        assert sent == usual
    assert not torch.allclose(outer[0][0], plain[0][0])


def test_with_compression_the_outer_step_is_near_the_plain_one():
    stage = codauc.Stage(0.3, 60, 5, 8)
    plain, packed = (
        simulate(lambda g, c=compress: Run(g, outer=OUTER, compress=c).train(stage).vector)[0]
        for compress in (None, "int8")
    )
    assert 0 < (plain - packed).abs().max() < 0.03 * plain.abs().max()


def test_the_mean_of_a_stage_s_iterates_takes_no_outer_step():
    def work(group):
        run = Run(group, average=True, outer=OUTER).train(STAGE, leave_at=STAGE.steps - 1)
        run.train(STAGE)
        return vectors.average(run.opt), run.vector

    means = simulate(work)
    expected = sum(average for average, _ in means) / len(means)
    for _, vector in means:
        assert (vector[: len(expected) - 2] - expected[:-2]).abs().max() < 1e-12


def test_a_stage_begins_without_momentum():
    """A stage of one round after another gives what it gives alone, from the same weights."""
    second = codauc.Stage(0.1, 10, 5, 8)

    def work(group):
        run = Run(group, outer=OUTER).train(STAGE)
        start = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
        inner = {name: tensor.clone() for name, tensor in run.loss.state_dict().items()}
        other = Run(group, outer=OUTER)
        other.position = run.position
        other.model.load_state_dict(start)
        other.loss.load_state_dict(inner)
        return run.train(second).vector, other.train(second).vector

    for mine, alone in simulate(work):
        assert torch.equal(mine, alone)


@pytest.mark.parametrize(
    "options",
    [{}, {"compress": "int8"}, {"delay": 3}, {"compress": "int2", "delay": 2}, {"average": True}],
    ids=str,
)
@pytest.mark.parametrize("leave_at", [3, 5, 6, 8, 10, 21])
def test_a_state_saved_at_any_step_goes_on_bit_for_bit(options, leave_at):
    later = codauc.Stage(0.1, 12, 5, 8)

    def interrupted(group):
        first = Run(group, outer=OUTER, **options).train(STAGE, leave_at=leave_at)
        second = Run(group, outer=OUTER, **options)
        second.coda.load_state_dict(first.coda.state_dict())
        second.position = first.position
        return second.train(STAGE, later).vector

    whole = simulate(lambda g: Run(g, outer=OUTER, **options).train(STAGE, later).vector)
    for mine, theirs in zip(simulate(interrupted), whole, strict=True):
        assert torch.equal(mine, theirs)


def test_a_single_worker_takes_no_outer_steps():
    plain = simulate(lambda g: Run(g).train(STAGE).vector, 1)[0]
    assert torch.equal(plain, simulate(lambda g: Run(g, outer=OUTER).train(STAGE).vector, 1)[0])


def test_a_state_of_one_worker_begins_outer_steps_where_it_is():
    state = simulate(lambda g: Run(g, outer=OUTER).train(STAGE, leave_at=7).coda.state_dict(), 1)[0]

    def work(group):
        run = Run(group, outer=codauc.Nesterov(1.0, 0.0))
        run.coda.load_state_dict(state)
        return run.train(STAGE).vector

    def plain(group):
        run = Run(group)
        run.coda.load_state_dict(state)
        return run.train(STAGE).vector

    for mine, theirs in zip(simulate(work, 2), simulate(plain, 2), strict=True):
        assert (mine - theirs).abs().max() < 1e-12


def test_a_state_with_outer_steps_is_refused_without_them():
    state = simulate(lambda g: Run(g, outer=OUTER).train(STAGE, leave_at=7).coda.state_dict())[0]

    def load(group):
        with pytest.raises(ValueError, match="saved with outer steps, here none"):
            Run(group, average=False).coda.load_state_dict(state)

    simulate(load)


def test_workers_with_other_outer_steps_are_told_apart():
    def work(group):
        Run(group, outer=codauc.Nesterov(0.7, 0.9 if group.rank else 0.8))

    with pytest.raises(ValueError, match="differ in outer momentum"):
        simulate(work, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: codauc.Nesterov(lr=0), "lr=0: expected a number > 0"),
        (lambda: codauc.Nesterov(momentum=1.0), r"momentum=1.0: expected a number >= 0 and < 1"),
        (lambda: codauc.Nesterov(rate=1.0), "unknown argument 'rate'"),
        (lambda: Run(codauc.LocalGroup(), outer=0.7), r"outer: got float, expected codauc.Nester"),
    ],
)
def test_bad_values_are_answered(make, message):
    with pytest.raises(ValueError, match=message):
        make()
