"""The costs that are known before a run are those that its ledger counts."""

import pytest
import torch
from torch import nn

import codauc
from codauc.algorithm.round_costs import (
    MessageSizes,
    Network,
    estimate_cost,
    round_cost,
    start_cost,
)

COMPRESSIONS = (None, "bf16", "int8", "int4", "int2")


@pytest.mark.parametrize("compress", COMPRESSIONS)
@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("kind", [codauc.PPDSG, codauc.PPDAdam])
@pytest.mark.parametrize("correct", [None, "scaffold"])
def test_bytes_of_start_rounds_and_estimates_equal_the_ledger(compress, workers, kind, correct):
    stage = codauc.Stage(lr=0.01, steps=7, sync_every=3, dual_samples=8)

    def work(group):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(9, 70), nn.BatchNorm1d(70), nn.Linear(70, 2))
        loss = codauc.MinMaxAUCLoss(pos_ratio=[0.5, 0.5])
        opt = kind(model, loss, lr=0.01)
        coda = codauc.CoDA(opt, group, compress=compress, correct=correct)
        data = [(torch.randn(8, 9), torch.tensor([[1, 0]] * 4 + [[0, 1]] * 4))]
        for x, y in coda.stage(stage, data):
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
        tallies = group.ledger.tallies
        reply = tallies["reply"].sent if "reply" in tallies else 0
        sent = tallies["round"].sent + reply
        return tallies["round"].calls, tallies["start"].sent, sent, tallies["dual"].sent

    parameters = 9 * 70 + 70 + 140 + 70 * 2 + 2
    network = Network(workers, 1e6, 0.0)
    ways = {"moments": kind is codauc.PPDAdam, "variates": correct is not None}
    cost = round_cost(network, MessageSizes(parameters, 140, tasks=2, **ways), compress)
    for rounds, start, sent, estimate in codauc.launch(work, workers=workers, simulate=True):
        assert rounds == stage.rounds == 3
        assert start == start_cost(network, stages=1, outside=1).bytes  # BatchNorm's counter
        assert sent == rounds * cost.bytes
        assert estimate == estimate_cost(network, 140, tasks=2).bytes


def test_seconds_are_latency_and_bytes_over_bandwidth():
    fast, slow = (round_cost(Network(4, rate, 0.01), MessageSizes(10**6)) for rate in (1e9, 1e6))
    assert fast.seconds == pytest.approx(6 * 0.01 + fast.bytes / 1e9)
    assert slow.seconds == pytest.approx(6 * 0.01 + slow.bytes / 1e6)
