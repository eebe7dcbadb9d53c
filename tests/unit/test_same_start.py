"""Claims about the start: what workers send so that all have the state of worker 0."""

import pytest
import torch

import codauc
from codauc.algorithm.same_start import take_first
from codauc.models import MLP


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_workers_that_are_equal_already_send_hashes_alone(workers):
    def work(group):
        torch.manual_seed(0)
        before = group.ledger.bytes_sent
        take_first(group, torch.randn(1000))
        return group.ledger.bytes_sent - before

    sent = codauc.launch(work, workers=workers, simulate=True)
    assert set(sent) == {8 * (workers - 1)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("odd", [0, 1, 2])
def test_one_worker_that_differs_is_enough_to_give_all_the_state_of_worker_0(dtype, odd):
    def work(group):
        mine = torch.zeros(2, 3, dtype=dtype)
        mine[1, 2] = group.rank == odd
        take_first(group, mine)
        return mine

    for mine in codauc.launch(work, workers=3, simulate=True):
        assert float(mine.sum()) == (odd == 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_signs_of_zero_and_nans_are_bits_as_others(dtype):
    def work(group):
        mine = torch.tensor([0.0, float("nan")], dtype=dtype)
        mine[0] = -0.0 if group.rank else 0.0
        take_first(group, mine)
        return bool(mine[0].signbit()), bool(mine[1].isnan())

    assert codauc.launch(work, workers=2, simulate=True) == [(False, True)] * 2


@pytest.mark.parametrize(("seeds", "fewer"), [((0, 0, 0), True), ((0, 1, 0), False)])
def test_a_run_begins_with_the_weights_of_worker_0_whoever_sends_them(seeds, fewer):
    def work(group):
        torch.manual_seed(seeds[group.rank])
        model = MLP(50, (40,))
        opt = codauc.PPDSG(model, codauc.MinMaxAUCLoss(pos_ratio=0.5))
        codauc.CoDA(opt, group)
        return group.ledger.tallies["start"].sent, model.head.weight.sum().item()

    found = codauc.launch(work, workers=3, simulate=True)
    assert len({weight for _, weight in found}) == 1
    assert (found[0][0] < 4 * 50 * 40) == fewer
