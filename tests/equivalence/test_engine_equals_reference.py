"""The optimizer and the engine against the plain loops of reference.py, and against itself."""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

import codauc
from codauc.algorithm import reference

DTYPE = torch.float64


class Net(nn.Module):
    """A small network with several tensors."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.head = nn.Linear(4, 1)
        self.to(DTYPE)

    def forward(self, x):
        return self.head(self.body(x).tanh())


def make_data(workers, size=40):
    """A data set for each worker, with both classes everywhere."""
    generator = torch.Generator().manual_seed(1)
    data = []
    for _ in range(workers):
        y = torch.arange(size) % 3 == 0
        x = torch.randn(size, 3, dtype=DTYPE, generator=generator) + y[:, None]
        data.append((x, y))
    return data


def batches_of(x, y, size=4):
    """Endless batches in a fixed, worker-independent order."""
    for start in itertools.cycle(range(0, len(x), size)):
        yield x[start : start + size], y[start : start + size]


def run_engine(data, stages, gamma=2.0, p=1 / 3, correct=None, **options):
    """Train with the engine; return what every worker ended with."""

    def train(group):
        torch.manual_seed(100 + group.rank)
        model, loss = Net(), codauc.MinMaxAUCLoss(pos_ratio=p).double()
        opt = codauc.PPDSG(model, loss, lr=0.1, gamma=gamma, **options)
        coda = codauc.CoDA(opt, group, correct=correct)
        source = batches_of(*data[group.rank])
        for stage in stages:
            for x, y in coda.stage(stage, source):
                opt.zero_grad()
                loss(model(x), y).backward()
                opt.step()
        w = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        return reference.Point(w, loss.a.detach(), loss.b.detach(), loss.alpha.detach())

    return codauc.launch(train, workers=len(data), simulate=True)


def run_reference(data, stages, gamma=2.0, p=1 / 3, algorithm=reference.coda):
    torch.manual_seed(100)
    model = Net()
    names, shapes = zip(*((n, q.shape) for n, q in model.named_parameters()), strict=True)

    def score(w, x):
        parts = w.split([math.prod(shape) for shape in shapes])
        weights = {n: part.view(s) for n, part, s in zip(names, parts, shapes, strict=True)}
        return functional_call(model, weights, (x,)).squeeze(1).sigmoid()

    w = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    zero = torch.zeros((), dtype=DTYPE)
    start = reference.Point(w, zero, zero, zero)
    sources = [batches_of(*shard) for shard in data]
    return algorithm(score, start, sources, stages, gamma, p)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("sync_every", [1, 8])
def test_optimizer_and_engine_equal_reference_over_three_stages(workers, sync_every):
    data = make_data(workers)
    stages = codauc.geometric(lr=0.3, steps=12, stages=3, sync_every=sync_every, dual_samples=30)
    expected = run_reference(data, stages)
    for result in run_engine(data, stages):
        for name, mine, theirs in zip(expected._fields, result, expected, strict=True):
            error = (mine - theirs).abs().max().item()
            assert error < 1e-10, (name, error)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("steps", [12, 14, 15])  # whole periods; a last one that is cut short
def test_corrected_steps_equal_codasca_in_plain_loops(workers, steps):
    data = make_data(workers)
    data = [(x + k, y if k % 2 else ~y) for k, (x, y) in enumerate(data)]  # no two alike
    stages = codauc.geometric(lr=0.2, steps=steps, stages=3, sync_every=4, dual_samples=30)
    expected = run_reference(data, stages, p=0.5, algorithm=reference.codasca)
    plain = run_reference(data, stages, p=0.5)
    assert (expected.w - plain.w).abs().max() > 1e-3
    for result in run_engine(data, stages, p=0.5, correct="scaffold"):
        for name, mine, theirs in zip(expected._fields, result, expected, strict=True):
            error = (mine - theirs).abs().max().item()
            assert error < 1e-10, (name, error)


def test_reference_itself_moves_and_depends_on_every_argument():
    data = make_data(2)
    base = codauc.geometric(lr=0.3, steps=12, stages=2, sync_every=4, dual_samples=30)
    result = run_reference(data, base)
    others = [
        run_reference(data, codauc.geometric(lr=0.2, steps=12, stages=2, sync_every=4)),
        run_reference(data, codauc.geometric(lr=0.3, steps=12, stages=2, sync_every=5)),
        run_reference(data, base, gamma=1.0),
        run_reference(data, base, p=0.4),
    ]
    for other in others:
        assert (other.w - result.w).abs().max() > 1e-6
    few = codauc.geometric(lr=0.3, steps=12, stages=2, sync_every=4, dual_samples=10)
    assert (run_reference(data, few).alpha - result.alpha).abs() > 1e-6


def test_sync_every_1_equals_one_worker_that_averages_k_gradients():
    data = make_data(4)
    stages = codauc.constant(lr=0.3, steps=20, stages=1, dual_samples=40)
    many = run_engine(data, stages)[0]

    def joined():
        for parts in zip(*(batches_of(*shard) for shard in data), strict=True):
            yield tuple(torch.cat(part) for part in zip(*parts, strict=True))

    torch.manual_seed(100)
    model, loss = Net(), codauc.MinMaxAUCLoss(pos_ratio=1 / 3).double()
    opt = codauc.PPDSG(model, loss, lr=0.3, gamma=2.0)
    for x, y in itertools.islice(joined(), 20):
        opt.zero_grad()
        loss(model(x), y).backward()
        opt.step()
    opt.end_stage()
    w = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert (w - many.w).abs().max() < 1e-12
    assert (loss.a - many.a).abs().max() < 1e-12
    assert (loss.b - many.b).abs().max() < 1e-12


def test_last_iterate_is_returned_where_averaging_is_off():
    data = make_data(2)
    stages = codauc.constant(lr=0.3, steps=10, stages=1, sync_every=5)
    averaged = run_engine(data, stages)[0]
    last = run_engine(data, stages, average=False)
    assert (averaged.w - last[0].w).abs().max() > 1e-3
    assert torch.equal(last[0].w, last[1].w)


def test_simulated_runs_repeat_bit_for_bit():
    data = make_data(3)
    stages = codauc.geometric(lr=0.3, steps=10, stages=2, sync_every=4)
    for first, second in zip(run_engine(data, stages), run_engine(data, stages), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
