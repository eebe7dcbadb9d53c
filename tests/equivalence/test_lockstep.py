"""Claims about lockstep: the same numbers as the simulated engine, to rounding."""

import pytest
import torch

import codauc
from codauc.data import Batches
from codauc.models import PatchNet
from codauc.reproduce._lockstep import Lockstep, patches

RATIO = 0.6
STAGES = [
    codauc.Stage(lr=0.5, steps=13, sync_every=4, dual_samples=20),
    codauc.Stage(lr=0.2, steps=11, sync_every=3, dual_samples=20),
]


def images(workers, dtype):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(40 * workers + 1, 3, 16, 16, generator=generator, dtype=dtype)
    y = torch.rand(len(x), generator=generator) < RATIO
    shards = torch.randperm(len(x), generator=generator).tensor_split(workers)
    return x, y, shards


def network(dtype):
    torch.manual_seed(5)
    return PatchNet(widths=(8, 6), patch=2).to(dtype)


def by_the_engine(workers, dtype, **options):
    """Weights; a, b and alpha; rounds; bytes, without those of the start."""
    x, y, shards = images(workers, dtype)

    def work(group):
        model, loss = network(dtype), codauc.MinMaxAUCLoss(pos_ratio=RATIO).to(dtype)
        opt = codauc.PPDSG(model, loss, gamma=50.0)
        coda = codauc.CoDA(opt, group, **options)
        source = Batches(x, y, 7, rows=shards[group.rank], seed=1, worker=group.rank)
        for stage in STAGES:
            for inputs, labels in coda.stage(stage, source):
                opt.zero_grad()
                loss(model(inputs), labels).backward()
                opt.step()
        tallies = group.ledger.tallies
        sent = sum(tallies[kind].sent for kind in ("round", "reply", "dual") if kind in tallies)
        weights = torch.cat([w.detach().flatten() for w in model.parameters()])
        return weights, [v.item() for v in (loss.a, loss.b, loss.alpha)], group.ledger.rounds, sent

    return codauc.launch(work, workers=workers, simulate=True)[0]


def in_lockstep(workers, dtype, **options):
    x, y, shards = images(workers, dtype)
    run = Lockstep(network(dtype), RATIO, workers, gamma=50.0, **options)
    rows = patches(x, 2)
    sources = [Batches(rows, y, 7, rows=s, seed=1, worker=k) for k, s in enumerate(shards)]
    seen = []
    for stage in STAGES:
        run.stage(stage, sources, lambda at, w: seen.append((at, w.clone())))
    assert torch.equal(seen[-1][1], run.weights[0])
    done = seen[-1][0]
    return run.weights[0], [v[0].item() for v in run.own], done.rounds, done.bytes


OPTIONS = [
    {},
    {"compress": "int8"},
    {"compress": "int2"},
    {"outer": codauc.Nesterov(0.7, 0.9)},
    {"compress": "int4", "outer": codauc.Nesterov(1.0, 0.5)},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("workers", [2, 3])
def test_lockstep_equals_the_simulated_engine(workers, options):
    weights, own, rounds, _ = by_the_engine(workers, torch.float64, **options)
    found, found_own, found_rounds, _ = in_lockstep(workers, torch.float64, **options)
    assert torch.allclose(found, weights, rtol=0, atol=1e-10)
    assert found_own == pytest.approx(own, abs=1e-10)
    assert found_rounds == rounds
    start = torch.cat([w.detach().flatten() for w in network(torch.float64).parameters()])
    assert float((weights - start).abs().max()) > 0.01


@pytest.mark.parametrize("compress", [None, "int2"])
def test_in_float32_it_is_as_near_as_rounding_lets_it_be_and_counts_the_ledgers_bytes(compress):
    weights, own, _, sent = by_the_engine(3, torch.float32, compress=compress)
    found, found_own, _, found_sent = in_lockstep(3, torch.float32, compress=compress)
    if compress is None:  # a code may fall on the other side of a half
        assert torch.allclose(found, weights, rtol=0, atol=2e-5)
        assert found_own == pytest.approx(own, abs=2e-5)
    assert found_sent == sent


def test_scores_are_the_networks():
    x, _, _ = images(1, torch.float64)
    model = network(torch.float64)
    run = Lockstep(model, RATIO, 2)
    found = run.scores(run.weights[0], patches(x, 2), at_once=7)
    assert torch.allclose(found, model(x).detach(), rtol=0, atol=1e-12)
