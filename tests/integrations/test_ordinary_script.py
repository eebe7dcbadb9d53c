"""An ordinary PyTorch script in which three lines were changed: everything around them works."""

import copy
import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_model, save_model
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import codauc

KINDS = pytest.mark.parametrize("kind", [codauc.PPDSG, codauc.PPDAdam])
EPOCHS = 4


def data(rows=512):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 6, generator=generator)
    score = x[:, 0] + x[:, 1] * x[:, 2] + 0.5 * torch.randn(rows, generator=generator)
    return x, (score > 1.5).long()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))


def script(kind, *, compile_model=False):
    x, y = data()
    model = net()
    forward = torch.compile(model, backend="eager") if compile_model else model
    loss = codauc.MinMaxAUCLoss(pos_ratio=float(y.float().mean()))  # changed line 1
    lr = 0.01 if kind is codauc.PPDAdam else 0.3
    opt = kind(model, loss, lr=lr)  # changed line 2
    loader = DataLoader(TensorDataset(x, y), batch_size=64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 1.5 * lr, total_steps=EPOCHS * len(loader))
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(EPOCHS):
        for inputs, labels in loader:
            opt.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                logits = forward(inputs)
            loss(logits, labels).backward()  # changed line 3
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            schedule.step()
            ema.update_parameters(model)
    return model, ema.module, opt, (x, y)


@KINDS
@pytest.mark.parametrize("compile_model", [False, True], ids=["eager", "compiled"])
def test_amp_clipping_ema_and_one_cycle_train(kind, compile_model, tmp_path):
    model, ema, opt, (x, y) = script(kind, compile_model=compile_model)
    start = codauc.auc(net()(x).detach().flatten(), y)
    for each in (model, ema):
        assert codauc.auc(each(x).detach().flatten(), y) > max(0.8, start)
    assert opt.step_size == pytest.approx(opt.param_groups[0]["lr"])
    save_model(model, str(tmp_path / "model.safetensors"))
    other = net()
    load_model(other, str(tmp_path / "model.safetensors"))
    assert torch.equal(other(x), model(x))


def test_schedulers_leave_the_dual_step_alone_and_cycle_the_betas():
    model, loss = net(), codauc.MinMaxAUCLoss(pos_ratio=0.1)
    opt = codauc.PPDAdam(model, loss, lr=0.01, dual_lr=0.2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.04, total_steps=10)
    x, y = data(64)
    sizes = []
    for _ in range(9):
        before = loss.a.clone(), loss.pos_ratio
        loss(model(x), y).backward()
        share, _, mean, _ = loss.batch_means()
        factor = opt.step_size / 0.01
        opt.step()
        rate = 0.2 / before[1]  # the implicit step towards the mean of the positives
        expected = before[0] + rate * (mean - share * before[0]) / (1 + rate * share)
        assert torch.allclose(loss.a, expected, atol=1e-6)
        sizes.append(factor)
        schedule.step()
    assert max(sizes) == pytest.approx(4.0, rel=0.2)
    assert "betas" in opt.defaults
    assert opt.param_groups[0]["betas"][0] != 0.9  # cycled, as with torch's Adam


DDP = {
    "wrapped first": (codauc.PPDSG, 0.15),
    "wrapped later": (codauc.PPDAdam, 0.15),
    "wrapped later, unknown ratio": (codauc.PPDAdam, None),
}


def ddp_worker(rank, path):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.FileStore(f"{path}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    for case in DDP:
        torch.save(ddp_case(rank, case), f"{path}/{case}-{rank}.pt")
    dist.destroy_process_group()


def ddp_case(rank, case):
    kind, pos_ratio = DDP[case]
    x, y = data()
    model, loss = net(), codauc.MinMaxAUCLoss(pos_ratio=pos_ratio)
    if case == "wrapped first":
        wrapped = DistributedDataParallel(model)
        opt = kind(wrapped, loss, lr=0.02)
    else:
        opt = kind(model, loss, lr=0.02)
        wrapped = DistributedDataParallel(model)
    for step in range(20):
        rows = torch.arange(step * 16, step * 16 + 16) % len(x)
        mine = rows[rank::2]
        opt.zero_grad()
        loss(wrapped(x[mine]), y[mine]).backward()
        opt.step()
    state = {**model.state_dict(), **loss.state_dict(), "p": loss.pos_ratio}
    with pytest.raises(RuntimeError, match="use one of them"):
        codauc.CoDA(opt)
    return state


def test_under_ddp_all_ranks_train_as_one_process_with_the_whole_batch(tmp_path):
    mp.spawn(ddp_worker, (str(tmp_path),), nprocs=2)
    for case, (kind, pos_ratio) in DDP.items():
        one, two = (torch.load(tmp_path / f"{case}-{rank}.pt") for rank in range(2))
        for name, tensor in one.items():
            if name not in ("seen", "reported"):  # each rank's own
                assert torch.equal(two[name], tensor), (case, name)
        if pos_ratio is not None:
            assert_trained_by_one_process(one, kind, pos_ratio)


def assert_trained_by_one_process(one, kind, pos_ratio):
    x, y = data()
    model, loss = net(), codauc.MinMaxAUCLoss(pos_ratio=pos_ratio)
    opt = kind(model, loss, lr=0.02)
    for step in range(20):
        rows = torch.arange(step * 16, step * 16 + 16) % len(x)
        opt.zero_grad()
        loss(model(x[rows]), y[rows]).backward()
        opt.step()
    for name, tensor in {**model.state_dict(), "alpha": loss.alpha, "a": loss.a}.items():
        assert (one[name] - tensor).abs().max() < 1e-5, name


def test_a_second_model_in_the_same_memory_is_trained_alone():
    model = net()
    opt = codauc.PPDAdam(model, codauc.MinMaxAUCLoss(pos_ratio=0.1))
    twin = copy.deepcopy(opt)
    x, y = data(64)
    before = model[0].weight.detach().clone()
    twin.loss(twin.model(x), y).backward()
    twin.step()
    assert torch.equal(model[0].weight, before)
    assert not torch.equal(twin.model[0].weight, before)
