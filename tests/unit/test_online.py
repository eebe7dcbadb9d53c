"""Claims about training with an unknown share of positives."""

import pytest
import torch
from torch import nn

import codauc
from codauc.data import Stream

P, WORKERS = 0.1, 4


def clusters(seed):
    """Positives in two clusters, negatives between them: a network is needed."""
    source = torch.Generator().manual_seed(seed)
    while True:
        y = int(torch.rand((), generator=source) < P)
        side = 2 * int(torch.rand((), generator=source) < 0.5) - 1
        x = torch.randn(4, generator=source)
        x[:2] += 1.6 * side * y
        yield x, y


def held_out():
    stream = clusters(999)
    x, y = zip(*(next(stream) for _ in range(5000)), strict=True)
    return torch.stack(x), torch.tensor(y)


def run(seed, ratio, steps=300):
    def work(group):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
        loss = codauc.MinMaxAUCLoss(pos_ratio=ratio)
        opt = codauc.PPDSG(model, loss, lr=0.5, momentum=0.9)
        coda = codauc.CoDA(opt, group)
        stream = Stream(clusters(100 * seed + group.rank), 32)
        first = []
        for x, y in coda.stage(codauc.Stage(0.5, steps, 16, dual_samples=2048), stream):
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
            first.append(loss.pos_ratio.item())
        return model, loss.pos_ratio.item(), loss.alpha.item(), first[0]

    return codauc.launch(work, workers=WORKERS, simulate=True)[0]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(more, marks=pytest.mark.long) for more in (1, 2))]
)
def test_an_estimated_p_costs_nothing(seed):
    """p, alpha and AUC are those of the known p, and p is right from the first step on."""
    x, y = held_out()
    model, _, alpha, _ = run(seed, P)
    other, p, other_alpha, first = run(seed, None)
    assert abs(first - P) < 0.03
    assert abs(p - P) < 0.01
    assert abs(other_alpha - alpha) < 0.05
    known, estimated = (codauc.evaluate(m, x, y).value for m in (model, other))
    assert known > 0.85
    assert abs(estimated - known) < 0.01


def test_the_first_look_is_one_small_message_and_happens_once():
    def work(group):
        model, loss = nn.Linear(4, 1), codauc.MinMaxAUCLoss()
        opt = codauc.PPDSG(model, loss, lr=0.1)
        coda = codauc.CoDA(opt, group)
        stream, before = Stream(clusters(group.rank), 32), group.ledger.calls("start")
        calls = []
        for stage in codauc.constant(lr=0.1, steps=4, stages=2, sync_every=4, dual_samples=32):
            for x, y in coda.stage(stage, stream):
                opt.zero_grad()
                loss(model(x), y).backward()
                opt.step()
            calls.append(group.ledger.calls("start") - before)
        return calls, loss.counts.sum().item()

    for calls, counted in codauc.launch(work, workers=2, simulate=True):
        assert calls == [2, 3]  # a comparison of settings at each stage, and the first look
        assert counted == 2 * (1024 + 2 * 4 * 32)


def test_a_given_p_needs_no_look():
    model, loss = nn.Linear(4, 1), codauc.MinMaxAUCLoss(pos_ratio=P)
    stream = Stream(clusters(0), 32)
    opt = codauc.PPDSG(model, loss, lr=0.1)
    next(iter(codauc.CoDA(opt).stage(codauc.Stage(0.1, 4), stream)))
    assert stream.given == 32


def test_labels_of_batches_of_another_form_come_from_forward():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
    loss = codauc.MinMaxAUCLoss()
    opt = codauc.PPDSG(model, loss, lr=0.1)

    def forward(batch):
        return model(batch["x"]), batch["y"]

    batches = ({"x": x, "y": y} for x, y in Stream(clusters(0), 32))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    next(iter(codauc.CoDA(opt, forward=forward).stage(codauc.Stage(0.1, 4), batches)))
    assert loss.seen.sum() == 1024
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
