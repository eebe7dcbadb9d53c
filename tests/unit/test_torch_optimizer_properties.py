"""What torch asks of its own optimizers, asked of ours; the list follows torch's test suite."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import codauc

KINDS = pytest.mark.parametrize("kind", [codauc.PPDSG, codauc.PPDAdam])
DATA = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([1, 0, 0, 1, 0, 0])


def make(kind, dtype=torch.float64, params=None, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype)
    loss = codauc.MinMaxAUCLoss(pos_ratio=1 / 3).double()
    named = {} if params is None else {"params": params(model)}
    return kind(model, loss, lr=0.05, **named, **options)


def closure_of(opt):
    def closure():
        opt.zero_grad()
        value = opt.loss(opt.model(DATA.to(next(opt.model.parameters()).dtype)), LABELS)
        value.backward()
        return value

    return closure


def train(opt, steps=3):
    for _ in range(steps):
        opt.step(closure_of(opt))
    return opt


def values(opt):
    return {**opt.model.state_dict(), **opt.loss.state_dict()}


def equal(one, other):
    return all(torch.equal(tensor, values(other)[name]) for name, tensor in values(one).items())


def two_groups(model):
    return [
        {"params": model[0].parameters(), "lr": 0.2},
        {"params": model[2].parameters(), "weight_decay": 0.1},
    ]


@KINDS
@pytest.mark.parametrize("params", [None, two_groups], ids=["one group", "two groups"])
@pytest.mark.parametrize("schedule", [None, "step", "plateau", "cosine"])
def test_steps_go_in_the_right_direction_with_any_scheduler(kind, params, schedule):
    opt = make(kind, params=params, gamma=50.0)
    schedulers = {
        None: lambda: None,
        "step": lambda: torch.optim.lr_scheduler.StepLR(opt, 20, gamma=0.9),
        "plateau": lambda: torch.optim.lr_scheduler.ReduceLROnPlateau(opt),
        "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(opt, 100),
    }
    scheduler = schedulers[schedule]()
    before = codauc.auc(opt.model(DATA.double()).detach().flatten(), LABELS)
    for _ in range(100):
        value = opt.step(closure_of(opt))
        if scheduler is not None:
            scheduler.step(value.item()) if schedule == "plateau" else scheduler.step()
    after = codauc.auc(opt.model(DATA.double()).detach().flatten(), LABELS)
    assert after >= max(before, 0.9)


@KINDS
def test_a_closure_runs_once_with_gradients_and_its_value_is_returned(kind):
    opt, calls = make(kind), []

    def closure():
        assert torch.is_grad_enabled()
        calls.append(closure_of(opt)())
        return calls[-1]

    with torch.no_grad():
        assert opt.step(closure) is calls[0]
    assert len(calls) == 1


@KINDS
def test_lr_may_be_a_tensor(kind):
    plain = train(make(kind))
    opt = make(kind)
    for group in opt.param_groups:
        group["lr"] = torch.tensor(0.05, dtype=torch.float64)
    assert equal(train(opt), plain)
    model, loss = nn.Linear(2, 1), codauc.MinMaxAUCLoss(0.5)
    assert kind(model, loss, lr=torch.tensor(0.25)).step_size == 0.25


@KINDS
def test_a_state_goes_through_a_file_and_continues_bit_for_bit(kind):
    opt = train(make(kind, gamma=5.0))
    file = io.BytesIO()
    torch.save({"model": opt.model.state_dict(), "opt": opt.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = make(kind, gamma=5.0)
    other.model.load_state_dict(saved["model"])
    other.load_state_dict(saved["opt"])
    assert equal(train(other), train(opt))


@KINDS
def test_a_loaded_state_is_equal_when_it_is_saved_again(kind):
    opt = train(make(kind))
    other = make(kind)
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    one, two = opt.state_dict(), other.state_dict()
    assert one["param_groups"] == two["param_groups"]
    assert one["state"].keys() == two["state"].keys()
    for index, kept in one["state"].items():
        for name, value in kept.items():
            same = torch.equal if isinstance(value, torch.Tensor) else int.__eq__
            assert same(value, two["state"][index][name])


@KINDS
def test_the_state_has_torchs_form(kind):
    opt = train(make(kind))
    packed = opt.state_dict()
    count = sum(len(group["params"]) for group in opt.param_groups)
    assert set(packed) == {"state", "param_groups", "ppdsg"}
    assert set(packed["state"]) == set(range(count))
    assert [i for group in packed["param_groups"] for i in group["params"]] == list(range(count))


@KINDS
def test_the_order_of_groups_must_be_the_saved_one(kind):
    opt = train(make(kind, params=two_groups))
    with pytest.raises(ValueError, match="state_dict of another model"):
        make(kind, params=lambda m: list(reversed(two_groups(m)))).load_state_dict(opt.state_dict())


@KINDS
def test_hooks_of_saving_and_loading_are_called(kind):
    opt, calls = train(make(kind)), []
    opt.register_state_dict_pre_hook(lambda o: calls.append("before saving"))
    opt.register_state_dict_post_hook(lambda o, state: calls.append("after saving"))
    opt.register_load_state_dict_pre_hook(lambda o, state: calls.append("before loading"))
    opt.register_load_state_dict_post_hook(lambda o: calls.append("after loading"))
    opt.load_state_dict(opt.state_dict())
    assert calls == ["before saving", "after saving", "before loading", "after loading"]


@KINDS
def test_deepcopy_copies_public_attributes_and_the_state(kind):
    opt = train(make(kind, gamma=5.0))
    other = copy.deepcopy(opt)
    public = {name for name in vars(opt) if not name.startswith("_")}
    assert public == {name for name in vars(other) if not name.startswith("_")}
    assert equal(train(other), train(opt))
    again = pickle.loads(pickle.dumps(opt))
    assert equal(train(again), train(opt))


@KINDS
def test_gradients_that_are_none_change_nothing_and_make_no_state(kind):
    opt = make(kind)
    before = copy.deepcopy(values(opt))
    opt.zero_grad(set_to_none=True)
    opt.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in values(opt).items())
    assert not opt.state_dict()["state"]


@KINDS
@pytest.mark.parametrize(
    "option", ["foreach", "fused", "capturable", "differentiable", "maximize", "nesterov"]
)
def test_options_of_torch_that_do_not_exist_here_are_refused(kind, option):
    with pytest.raises(ValueError, match=f"unknown argument '{option}'"):
        make(kind, **{option: True})


@KINDS
def test_a_state_of_torchs_own_optimizer_is_refused(kind):
    theirs = torch.optim.Adam(nn.Linear(2, 1).parameters())
    with pytest.raises(ValueError, match=r"expected one of PPDSG\.state_dict"):
        make(kind).load_state_dict(theirs.state_dict())


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_dtype_trains_and_keeps_its_dtype(kind, dtype):
    opt = train(make(kind, dtype=dtype))
    assert {p.dtype for p in opt.model.parameters()} == {dtype}
    assert all(p.isfinite().all() for p in opt.model.parameters())


@KINDS
def test_the_profiler_sees_the_step_and_repr_shows_the_groups(kind):
    opt = make(kind)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train(opt, 1)
    names = {event.key for event in profile.key_averages()}
    assert f"Optimizer.step#{kind.__name__}.step" in names
    assert "lr: 0.05" in repr(opt)


@KINDS
def test_tensors_of_no_elements_and_of_many_are_stepped(kind):
    model = nn.Module()
    model.w = nn.Parameter(torch.ones(3, dtype=torch.float64))
    model.empty = nn.Parameter(torch.ones(0, 2, dtype=torch.float64))
    loss = codauc.MinMaxAUCLoss(pos_ratio=1 / 3).double()
    opt = kind(model, loss, lr=0.05)
    (loss(DATA.double() @ model.w, LABELS) + model.empty.sum()).backward()
    opt.step()
    assert not torch.equal(model.w, torch.ones(3, dtype=torch.float64))
