"""Claims about PPDSG: the step, the average, torch's conventions, the state, the refusals."""

import copy
import io
import math
import pickle
import warnings
from functools import partial

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, StepLR
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import codauc
import vectors

F64 = torch.float64
P = 0.4


class Net(nn.Module):
    """A small network with several tensors and BatchNorm."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.norm(self.body(x)).tanh())


def make(model=None, dtype=F64, *, seed=0, p=P, **options):
    """An optimizer; its model and loss are `opt.model` and `opt.loss`."""
    if model is None:
        torch.manual_seed(seed)
        model = Net().to(dtype)
    loss = codauc.MinMaxAUCLoss(pos_ratio=p)
    return codauc.PPDSG(model, loss.double() if dtype == F64 else loss, **options)


def batches(count, dtype=F64, size=6, seed=1):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(size) % 3 == 0
    for _ in range(count):
        x = torch.randn(size, 3, dtype=F64, generator=generator) + y[:, None]
        yield x.to(dtype), y


def backward(opt, batch):
    opt.zero_grad()
    loss = opt.loss(opt.model(batch[0]), batch[1])
    loss.backward()
    return loss


def train(opt, data, scheduler=None):
    for batch in data:
        backward(opt, batch)
        opt.step()
        if scheduler:
            scheduler.step()
    return opt


def still(loss):
    """As after a batch that leaves a, b and alpha alone."""
    loss.sums.grad = torch.zeros_like(loss.sums)


def weights(opt):
    return {name: tensor.detach().clone() for name, tensor in opt.model.named_parameters()}


def dual(opt):
    return {name: getattr(opt.loss, name).detach().clone() for name in ("a", "b", "alpha")}


def gradients(module):
    return {name: tensor.grad.clone() for name, tensor in module.named_parameters()}


def snapshot(opt):
    """Copies of everything a step may change."""
    state = (opt.model.state_dict(), opt.loss.state_dict(), opt.state_dict())
    return copy.deepcopy(state)


def same(one, other):
    """Whether nested states are equal to the last bit, types included."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def largest_difference(one, other):
    assert one.keys() == other.keys()
    return max((one[name].double() - other[name].double()).abs().max().item() for name in one)


class Vector(nn.Module):
    """Weights without a network, for steps with gradients set by hand."""

    def __init__(self, values):
        super().__init__()
        self.w = nn.Parameter(torch.as_tensor(values))


def set_gradients(opt, value=0.0, *, a=None, b=0.0, **own):
    """Of the weights, and of a (as of the weights if not given) and b; that of alpha is a's - b's.

    As if the batch's means of h[+] and h[-] were such, and those of [+] and [-] zero.
    """
    for name, tensor in opt.model.named_parameters():
        tensor.grad = torch.zeros_like(tensor).add_(own.get(name, value))
    a = value if a is None else a
    means = [0.0, 0.0, -a / (2 * (1 - P)), -b / (2 * P), 1.0]
    opt.loss.sums.grad = torch.tensor([means], dtype=opt.loss.a.dtype)


# The step


ETA = st.floats(1e-6, 0.8)
GAMMA = st.one_of(st.floats(1e-300, 1e300), st.just(math.inf))
NUMBER = st.floats(-100, 100)


@given(ETA, GAMMA, *[st.lists(NUMBER, min_size=3, max_size=3)] * 3)
@example(0.5, 1e-300, [1.0] * 3, [2.0] * 3, [3.0] * 3)
@example(0.5, math.inf, [1.0] * 3, [2.0] * 3, [3.0] * 3)
@example(0.5, 0.5, [1.0] * 3, [2.0] * 3, [3.0] * 3)
def test_step_makes_the_gradient_of_its_argmin_objective_zero(eta, gamma, v0, first, second):
    v0, first, g = (torch.tensor(numbers, dtype=F64) for numbers in (v0, first, second))
    opt = make(Vector(v0.clone()), lr=eta, gamma=gamma)
    set_gradients(opt, w=first)
    opt.step()
    v = opt.model.w.detach().clone()
    set_gradients(opt, w=g)
    opt.step()
    u = opt.model.w.detach()
    # The distance to the minimiser of a quadratic: its gradient over its curvature.
    distance = (g + (u - v) / eta + (u - v0) / gamma) / (1 / eta + 1 / gamma)
    assert distance.abs().max() < 1e-13 * (1 + max(x.abs().max() for x in (v, v0, g)))


def test_step_is_where_a_numeric_minimiser_ends():
    v0, first, g = torch.randn(3, 5, dtype=F64)
    opt = make(Vector(v0.clone()), lr=0.3, gamma=0.7)
    set_gradients(opt, w=first)
    opt.step()
    v = opt.model.w.detach().clone()
    u = v.clone().requires_grad_()
    search = torch.optim.LBFGS([u], max_iter=50, tolerance_grad=1e-12, tolerance_change=1e-14)

    def objective():
        search.zero_grad()
        value = g @ u + (u - v).square().sum() / 0.6 + (u - v0).square().sum() / 1.4
        value.backward()
        return value

    search.step(objective)
    set_gradients(opt, w=g)
    opt.step()
    assert (opt.model.w - u).abs().max() < 1e-9


def test_step_is_the_proximal_form_and_not_a_gradient_of_the_pull():
    v0, first, g = torch.randn(3, 5, dtype=F64)
    opt = make(Vector(v0.clone()), lr=0.5, gamma=2.0)
    set_gradients(opt, w=first)
    opt.step()
    v = opt.model.w.detach().clone()
    set_gradients(opt, w=g)
    opt.step()
    assert (opt.model.w - (2.0 * (v - 0.5 * g) + 0.5 * v0) / 2.5).abs().max() < 1e-15
    assert (opt.model.w - (v - 0.5 * (g + (v - v0) / 2.0))).abs().max() > 1e-2


def test_a_b_are_pulled_to_their_anchor_and_alpha_is_not():
    opt = make(Vector(torch.zeros(1, dtype=F64)), lr=0.5, gamma=0.5)
    for name, value in (("a", 1.0), ("b", 2.0), ("alpha", 3.0)):
        getattr(opt.loss, name).fill_(value)
    set_gradients(opt, a=1.0, b=-1.0)
    opt.step()
    set_gradients(opt, 0.0)
    opt.step()
    # Half of the way back, in each of two steps; alpha goes up, and stays.
    assert opt.loss.a.item() == pytest.approx(1.0 - 0.125, abs=1e-15)
    assert opt.loss.b.item() == pytest.approx(2.0 + 0.125, abs=1e-15)
    assert opt.loss.alpha.item() == pytest.approx(4.0, abs=1e-15)


def test_all_of_v_and_alpha_step_from_gradients_at_the_old_point():
    eta, gamma = 0.3, 2.0
    opt = make(lr=eta, gamma=gamma)
    train(opt, batches(3))
    x, y = next(batches(1, seed=5))
    old, alpha = {**weights(opt), **dual(opt)}, opt.loss.alpha.detach().clone()
    start = vectors.anchor(opt)
    h = copy.deepcopy(opt.model)(x).flatten().sigmoid().detach()
    up, down = (1 - P) * (h * y).mean(), P * (h * ~y).mean()
    backward(opt, (x, y))
    slope = gradients(opt.model)
    slope["a"] = -2 * (1 - P) * ((h - old["a"]) * y).mean()
    slope["b"] = -2 * P * ((h - old["b"]) * ~y).mean()
    opt.step()
    rise = 2 * (down - up) - 2 * P * (1 - P) * alpha
    assert (opt.loss.alpha - (alpha + eta * rise)).abs() < 1e-14
    names = [*weights(opt), "a", "b"]
    v, g = (torch.cat([part[n].reshape(-1) for n in names]) for part in (old, slope))
    expected = (gamma * (v - eta * g) + eta * start) / (eta + gamma)
    new = {**weights(opt), **dual(opt)}
    assert (torch.cat([new[n].flatten() for n in names]) - expected).abs().max() < 1e-14


# The stage: average, anchor, restart


def test_running_average_is_the_mean_of_the_iterates_without_the_start():
    opt, iterates = make(lr=0.3), []
    for batch in batches(7):
        train(opt, [batch])
        iterates.append({**weights(opt), **dual(opt)})
        mean = {n: torch.stack([i[n] for i in iterates]).mean(0) for n in iterates[0]}
        flat = torch.cat([mean[n].flatten() for n in [*weights(opt), "a", "b"]])
        assert (vectors.average(opt) - flat).abs().max() < 1e-14
    assert opt.steps == 7
    last = opt.loss.alpha.item()
    opt.end_stage()
    assert largest_difference(weights(opt), {n: mean[n] for n in weights(opt)}) < 1e-14
    assert (opt.loss.a - mean["a"]).abs() < 1e-14
    assert (opt.loss.b - mean["b"]).abs() < 1e-14
    assert opt.loss.alpha.item() == last


def test_average_off_takes_the_same_steps_and_returns_the_last():
    averaged, last = make(lr=0.3), make(lr=0.3, average=False)
    for opt in (averaged, last):
        train(opt, batches(5))
    assert same(weights(averaged), weights(last))
    assert not any("average" in kept for kept in last.state.values())
    before = weights(last)
    last.end_stage()
    averaged.end_stage()
    assert same(weights(last), before)
    assert largest_difference(weights(averaged), before) > 1e-3


def test_end_stage_before_any_step_changes_nothing():
    opt = make()
    before = snapshot(opt)
    opt.end_stage()
    assert same(snapshot(opt), before)


@pytest.mark.parametrize("average", [True, False])
def test_second_stage_equals_a_new_optimizer_at_its_start(average):
    options = {"gamma": 0.5, "momentum": 0.9, "average": average}
    opt = train(make(lr=0.3, **options), batches(5))
    opt.end_stage()
    fresh = make(copy.deepcopy(opt.model), lr=0.1, **options)
    fresh.loss.load_state_dict(opt.loss.state_dict())
    opt.begin_stage(lr=0.1)
    assert opt.steps == 0
    for each in (opt, fresh):
        train(each, batches(5, seed=7))
        each.end_stage()
    assert largest_difference(weights(opt), weights(fresh)) < 1e-15
    assert largest_difference(dual(opt), dual(fresh)) < 1e-15


def test_begin_stage_without_lr_keeps_the_stages():
    opt = make(lr=0.3)
    opt.begin_stage(lr=0.1)
    opt.begin_stage()
    assert opt.stage_lr == 0.1


def test_anchor_is_where_the_first_step_starts_also_when_weights_are_loaded_later():
    source, late = make(seed=3, gamma=0.2), make(seed=4, gamma=0.2)
    late.model.load_state_dict(source.model.state_dict())
    for opt in (source, late):
        train(opt, batches(4))
    assert same(weights(source), weights(late))
    again = {n: t.clone() for n, t in make(seed=8).model.state_dict().items()}
    for opt in (source, late):
        opt.begin_stage()
        opt.model.load_state_dict(again)
    start = torch.cat([t.flatten() for t in weights(late).values()])
    train(late, batches(1))
    assert torch.equal(vectors.anchor(late)[: len(start)], start)


# Momentum, weight decay, clipping


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_without_pull_the_weights_step_as_torch_sgd(momentum):
    opt, twin = make(lr=0.1, gamma=math.inf, momentum=momentum), make()
    before = weights(opt)
    sgd = torch.optim.SGD(twin.model.parameters(), lr=0.1, momentum=momentum)
    for batch in batches(10):
        twin.loss.load_state_dict(opt.loss.state_dict())  # the same a, b and alpha
        backward(twin, batch)
        sgd.step()
        train(opt, [batch])
        assert largest_difference(weights(opt), weights(twin)) < 1e-15
    assert largest_difference(weights(opt), before) > 1e-2


def test_momentum_weight_decay_and_clipping_leave_the_steps_of_a_b_alpha_alone():
    plain = make(dtype=torch.float32, lr=0.3, gamma=2.0)
    others = {"momentum": 0.9, "weight_decay": 0.5, "max_grad_norm": 1e-3}
    full = make(dtype=torch.float32, lr=0.3, gamma=2.0, **others)
    for opt in (plain, full):
        opt.loss.a.data.fill_(0.5)
        for value in (1.0, -2.0, 0.5):
            set_gradients(opt, value)
            opt.step()
    assert same(dual(plain), dual(full))
    assert largest_difference(weights(plain), weights(full)) > 1e-2


def test_weight_decay_is_decoupled():
    eta, gamma, decay = 0.2, 3.0, 0.5
    opt = make(lr=eta, gamma=gamma, weight_decay=decay, momentum=0.9)
    v0, v = weights(opt), weights(opt)
    buffer = {name: torch.zeros_like(tensor) for name, tensor in v.items()}
    for batch in batches(4):
        backward(opt, batch)
        for name, g in gradients(opt.model).items():
            buffer[name] = 0.9 * buffer[name] + g
            moved = (1 - eta * decay) * v[name] - eta * buffer[name]
            v[name] = (gamma * moved + eta * v0[name]) / (eta + gamma)
        opt.step()
    assert largest_difference(weights(opt), v) < 1e-14


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("most", [1e-3, 1e3], ids=["clips", "does not clip"])
def test_max_grad_norm_equals_torch_clip_grad_norm_on_the_weights_alone(dtype, most):
    clipped = make(dtype=dtype, lr=0.3, max_grad_norm=most)
    by_hand = make(dtype=dtype, lr=0.3)
    for batch in batches(3, dtype):
        train(clipped, [batch])
        backward(by_hand, batch)
        torch.nn.utils.clip_grad_norm_(by_hand.model.parameters(), most)
        by_hand.step()
    tolerance = 1e-7 if dtype == torch.float32 else 1e-15
    assert largest_difference(weights(clipped), weights(by_hand)) < tolerance
    assert largest_difference(dual(clipped), dual(by_hand)) < tolerance


def test_clipping_does_not_change_the_users_gradients():
    opt = make(dtype=torch.float32, max_grad_norm=1e-3)
    backward(opt, next(batches(1, torch.float32)))
    before = gradients(opt.model)
    opt.step()
    assert same(gradients(opt.model), before)


def test_clipping_takes_one_norm_over_groups_and_dtypes():
    model = nn.Module()
    model.one, model.two = Vector(torch.zeros(1)), Vector(torch.zeros(1).bfloat16())
    groups = [{"params": model.one.parameters()}, {"params": model.two.parameters(), "lr": 0.5}]
    opt = make(model, torch.float32, lr=0.5, gamma=math.inf, max_grad_norm=1.0, params=groups)
    model.one.w.grad, model.two.w.grad = torch.full((1,), 3.0), torch.full((1,), 4.0).bfloat16()
    still(opt.loss)
    opt.step()
    assert abs(model.one.w.item() + 0.5 * 3 / 5) < 1e-6
    assert abs(model.two.w.item() + 0.5 * 4 / 5) < 1e-2


def test_clipping_ignores_the_last_gradient_of_a_parameter_that_has_none_now():
    model = nn.Module()
    model.one, model.two = Vector(torch.zeros(1)), Vector(torch.zeros(1))
    opt = make(model, torch.float32, lr=0.5, gamma=math.inf, max_grad_norm=1.0)
    model.two.w.grad = torch.full((1,), 100.0)
    still(opt.loss)
    opt.step()
    model.one.w.grad, model.two.w.grad = torch.ones(1), None
    still(opt.loss)
    opt.step()
    assert abs(model.one.w.item() + 0.5) < 1e-5


# Schedulers and groups


def moved_by_unit_gradients(opt):
    """How far one step with gradients of one moves the weights, a, and alpha."""
    before = {**weights(opt), **dual(opt)}
    set_gradients(opt, 1.0)
    opt.step()
    after = {**weights(opt), **dual(opt)}
    return {name: (after[name] - before[name]).mean().item() for name in before}


def effective(opt):
    moved = moved_by_unit_gradients(opt)
    assert moved["a"] == pytest.approx(-moved["alpha"], rel=1e-9)
    assert moved["body.weight"] == pytest.approx(-moved["alpha"], rel=1e-9)
    return moved["alpha"]


def test_lambda_scheduler_multiplies_the_stages_step_size():
    opt = make(lr=0.1, gamma=math.inf)
    scheduler = LambdaLR(opt, lambda t: 1 / (1 + t))
    for stage_lr in (0.1, 0.3):
        opt.begin_stage(stage_lr)
        for _ in range(3):
            t = scheduler.last_epoch
            assert effective(opt) == pytest.approx(stage_lr / (1 + t), rel=1e-9)
            scheduler.step()


def test_warm_up_from_zero_starts_without_moving():
    opt = make(lr=0.1, gamma=2.0)
    scheduler = LambdaLR(opt, lambda t: t / 2)
    before = weights(opt)
    set_gradients(opt, 1.0)
    opt.step()
    assert same(weights(opt), before)
    scheduler.step()
    set_gradients(opt, 1.0)
    opt.step()
    assert largest_difference(weights(opt), before) > 1e-2


def test_scheduler_goes_on_after_load_state_dict():
    opt = make(lr=0.1, gamma=math.inf)
    scheduler = StepLR(opt, step_size=2, gamma=0.5)
    opt.begin_stage(0.4)
    for _ in range(3):
        effective(opt)
        scheduler.step()
    other = make(lr=0.25, gamma=math.inf)
    theirs = StepLR(other, step_size=2, gamma=0.5)
    other.load_state_dict(opt.state_dict())
    theirs.load_state_dict(scheduler.state_dict())
    assert effective(other) == pytest.approx(0.2, rel=1e-9)
    theirs.step()
    assert effective(other) == pytest.approx(0.1, rel=1e-9)


def test_one_cycle_without_momentum_cycles_the_step_size():
    opt = make(lr=0.1, gamma=math.inf)
    scheduler = OneCycleLR(opt, max_lr=0.4, total_steps=10, cycle_momentum=False)
    sizes = []
    for _ in range(9):
        sizes.append(effective(opt))
        scheduler.step()
    assert max(sizes) == pytest.approx(0.4, rel=1e-2)
    assert sizes[0] == pytest.approx(0.4 / 25, rel=1e-6)


def test_one_cycle_that_cycles_momentum_leaves_the_steps_of_a_b_alone():
    opt = make(lr=0.1, gamma=math.inf, momentum=0.9)
    OneCycleLR(opt, max_lr=0.1, total_steps=10)
    size = 0.1 / 25
    for _ in range(3):
        moved = moved_by_unit_gradients(opt)
        assert moved["a"] == pytest.approx(-size, rel=1e-9)
        assert moved["alpha"] == pytest.approx(size, rel=1e-9)
    assert moved["body.weight"] == pytest.approx(-size * (1 + 0.95 + 0.95**2), rel=1e-9)


def test_weight_decay_set_on_every_group_leaves_the_steps_of_a_b_alone():
    opt = make(lr=0.1, gamma=math.inf)
    opt.loss.a.data.fill_(1.0)
    for group in opt.param_groups:
        group["weight_decay"] = 0.5
    assert moved_by_unit_gradients(opt)["a"] == pytest.approx(-0.1, rel=1e-9)


def test_momentum_that_a_scheduler_sets_works_or_is_refused_with_the_remedy():
    """OneCycleLR's defaults set a momentum of 0.95 also where it was 0."""
    opt = make(lr=0.1, gamma=math.inf)
    OneCycleLR(opt, max_lr=0.1, total_steps=10)
    try:
        for _ in range(2):
            moved = moved_by_unit_gradients(opt)
    except ValueError as error:
        assert "momentum" in str(error)  # noqa: PT017
    else:
        assert moved["body.weight"] == pytest.approx(-0.1 / 25 * 1.95, rel=1e-9)


def test_groups_have_their_own_lr_weight_decay_and_momentum():
    torch.manual_seed(0)
    model = Net().double()
    body, head = list(model.body.parameters()), [*model.norm.parameters(), *model.head.parameters()]
    opt = make(
        model,
        lr=0.2,
        gamma=math.inf,
        params=[
            {"params": body, "lr": 0.05, "weight_decay": 0.5},
            {"params": head, "momentum": 0.5},
        ],
    )
    opt.begin_stage(0.4)  # twice the optimizer's lr, so twice every group's
    before = weights(opt)
    moved_by_unit_gradients(opt)
    moved = moved_by_unit_gradients(opt)
    assert moved["alpha"] == pytest.approx(0.4)
    assert moved["head.bias"] == pytest.approx(-0.4 * 1.5)
    w = before["body.weight"]
    for _ in range(2):
        w = (1 - 0.1 * 0.5) * w - 0.1
    assert (opt.model.body.weight - w).abs().max() < 1e-14


def test_parameters_outside_the_groups_stay():
    torch.manual_seed(0)
    model = Net().double()
    opt = make(model, params=model.head.parameters())
    before = weights(opt)
    train(opt, batches(3))
    after = weights(opt)
    assert torch.equal(after["body.weight"], before["body.weight"])
    assert not torch.equal(after["head.weight"], before["head.weight"])


# GradScaler and reduced precision


def test_grad_scaler_gives_the_same_trajectory_as_no_scaling():
    options = {"dtype": torch.float32, "momentum": 0.9, "max_grad_norm": 0.05}
    plain, scaled = train(make(**options), batches(6, torch.float32)), make(**options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for x, y in batches(6, torch.float32):
        scaled.zero_grad()
        scaler.scale(scaled.loss(scaled.model(x), y)).backward()
        scaler.step(scaled)
        scaler.update()
    assert same(snapshot(scaled), snapshot(plain))


def test_grad_scaler_skips_a_step_with_infinite_gradients_and_it_does_not_count():
    opt = train(make(dtype=torch.float32), batches(2, torch.float32))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    opt.zero_grad()
    x, y = next(batches(1, torch.float32))
    scaler.scale(opt.loss(opt.model(x), y)).backward()
    opt.model.head.bias.grad.fill_(math.inf)
    before = snapshot(opt)
    scaler.step(opt)
    scaler.update()
    assert scaler.get_scale() == 2.0
    assert opt.steps == 2
    assert same(snapshot(opt), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reduced_parameters_keep_their_dtype_and_averages_are_float32(dtype):
    opt = make(
        nn.Linear(3, 1).to(dtype), dtype, lr=0.3, gamma=2.0, momentum=0.9, weight_decay=0.1,
        max_grad_norm=1.0,
    )  # fmt: skip
    before = weights(opt)
    train(opt, batches(4, dtype))
    assert {kept["average"].dtype for kept in opt.state.values()} == {torch.float32}
    opt.end_stage()
    assert {p.dtype for p in opt.model.parameters()} == {dtype}
    assert {tensor.dtype for tensor in dual(opt).values()} == {torch.float32}
    assert largest_difference(weights(opt), before) > 1e-3
    assert all(p.isfinite().all() for p in opt.model.parameters())


def test_bf16_body_with_fp32_norm_steps_as_fp32_to_bf16_precision():
    class Mixed(Net):
        def forward(self, x):
            h = self.norm(self.body(x.to(self.body.weight.dtype)).float())
            return self.head(h.tanh().to(self.head.weight.dtype))

    torch.manual_seed(0)
    model = Mixed()
    model.body.bfloat16(), model.head.bfloat16()
    full = copy.deepcopy(model).float()
    opts = [make(each, torch.float32, lr=0.3, gamma=2.0) for each in (model, full)]
    for opt in opts:
        train(opt, batches(5, torch.float32))
        opt.end_stage()
    assert model.body.weight.dtype == torch.bfloat16
    assert model.norm.weight.dtype == model.norm.running_mean.dtype == torch.float32
    assert largest_difference(weights(opts[0]), weights(opts[1])) < 0.02
    assert largest_difference(dual(opts[0]), dual(opts[1])) < 0.01


def test_average_of_bf16_iterates_is_more_exact_than_bf16():
    opt = make(Vector(torch.ones(8).bfloat16()), torch.float32, lr=0.5, gamma=math.inf)
    generator, iterates = torch.Generator().manual_seed(0), []
    coarse = torch.zeros(8, dtype=torch.bfloat16)
    for t in range(1, 101):
        set_gradients(opt, w=0.1 * torch.randn(8, generator=generator))
        opt.step()
        iterates.append(opt.model.w.detach().double())
        coarse.lerp_(opt.model.w.detach(), 1 / t)
    exact = torch.stack(iterates).mean(0)
    error = (opt.result[0] - exact).abs().max()
    assert error < 1e-6
    assert (coarse.double() - exact).abs().max() > 100 * error


# Frozen, missing, tied, strided and sparse


def test_frozen_parameters_stay_and_nothing_is_kept_of_them():
    torch.manual_seed(0)
    model = Net().double()
    model.body.requires_grad_(False)
    opt = make(model, lr=0.3, weight_decay=0.1, momentum=0.9)
    before, pointer = weights(opt), model.body.weight.data_ptr()
    train(opt, batches(3))
    opt.end_stage()
    assert model.body.weight.data_ptr() == pointer
    assert not any(slot.name.startswith("body") for slot in opt.trained.slots)
    assert model.body.weight not in opt.state
    assert torch.equal(opt.model.body.weight, before["body.weight"])
    assert not torch.equal(opt.model.head.weight, before["head.weight"])


@pytest.mark.parametrize("name", ["body.weight", "head.bias"])
def test_a_tensor_without_gradient_stays_exactly_as_with_torch_sgd(name):
    opt = make(lr=0.3, gamma=0.5, momentum=0.9, weight_decay=0.1)
    train(opt, batches(3))
    before = {**weights(opt), **dual(opt)}
    set_gradients(opt, 0.5)
    dict(opt.model.named_parameters())[name].grad = None
    opt.step()
    for key, tensor in {**weights(opt), **dual(opt)}.items():
        assert torch.equal(tensor, before[key]) == (key == name), key


def test_momentum_of_a_parameter_without_gradient_waits_as_with_torch_sgd():
    start = torch.zeros(3, dtype=F64)
    model = nn.Module()
    model.one, model.two = Vector(start.clone()), Vector(start.clone())
    twin = copy.deepcopy(model)
    opt = make(model, lr=0.1, gamma=math.inf, momentum=0.9)
    sgd = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    for has_gradient in (True, False, False, True):
        for each in (model, twin):
            each.one.w.grad = torch.ones_like(start)
            each.two.w.grad = torch.ones_like(start) if has_gradient else None
        still(opt.loss)
        opt.step()
        sgd.step()
        assert torch.equal(model.two.w, twin.two.w)
        assert torch.equal(model.one.w, twin.one.w)


def test_step_without_any_gradient_moves_nothing():
    options = {"momentum": 0.9, "weight_decay": 0.1, "max_grad_norm": 1.0}
    opt = make(dtype=torch.float32, gamma=0.5, **options)
    before = weights(opt), dual(opt)
    opt.step()
    assert same((weights(opt), dual(opt)), before)


def test_tied_weights_stay_tied_and_step_by_the_summed_gradient():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.two.weight = self.one.weight
            self.double()

        def forward(self, x):
            return self.two(self.one(x).tanh()).sum(1)

    opt = make(Tied(), lr=0.3, gamma=math.inf)
    model, (x, y) = opt.model, next(batches(1))
    parts = [model.one.weight.detach().clone().requires_grad_() for _ in range(2)]
    logits = ((x @ parts[0].T).tanh() @ parts[1].T).sum(1)
    slopes = torch.autograd.grad(copy.deepcopy(opt.loss)(logits, y), parts)
    train(opt, [(x, y)])
    assert model.two.weight is model.one.weight
    assert (model.one.weight - (parts[0] - 0.3 * (slopes[0] + slopes[1]))).abs().max() < 1e-14


def test_untying_tied_weights_after_construction_is_refused():
    """The new parameter would never be trained."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1)).double()
    model[1].weight = model[0].weight
    opt = make(model)
    model[1].weight = nn.Parameter(model[0].weight.detach().clone())
    with pytest.raises(RuntimeError, match="weight"):
        train(opt, batches(1))


def test_channels_last_keeps_its_strides_and_equals_contiguous():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 1)).double()
    last = copy.deepcopy(plain).to(memory_format=torch.channels_last)
    strides = last[0].weight.stride()
    assert strides != plain[0].weight.stride()
    x, y = torch.randn(6, 2, 4, 4, dtype=F64), torch.arange(6) % 2
    opts = [make(m, lr=0.3, gamma=2.0, momentum=0.9, weight_decay=0.1) for m in (plain, last)]
    for opt, format in zip(opts, (torch.contiguous_format, torch.channels_last), strict=True):
        train(opt, [(x.contiguous(memory_format=format), y)] * 4)
        opt.end_stage()
    assert last[0].weight.stride() == strides
    assert largest_difference(weights(opts[0]), weights(opts[1])) < 1e-13


@pytest.mark.parametrize("clip", [None, 1e-2])
def test_sparse_embedding_gradients_equal_dense_ones(clip):
    results = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(9, 1, sparse=sparse), nn.Flatten(0))
        opt = make(model, torch.float32, lr=0.3, gamma=2.0, momentum=0.9, max_grad_norm=clip)
        for index in ([0, 1, 1, 4], [4, 8, 2, 0]):
            train(opt, [(torch.tensor(index), torch.tensor([0, 1, 1, 0]))])
        results.append(weights(opt))
    assert same(*results)


# State


def rich(**options):
    """An optimizer with everything on, and its scheduler."""
    options = {"lr": 0.2, "gamma": 2.0, "momentum": 0.9, "weight_decay": 0.1} | options
    opt = make(**options)
    return opt, LambdaLR(opt, lambda t: 0.9**t)


def test_state_dict_holds_everything_of_the_optimizer_and_the_loss():
    opt, scheduler = rich()
    train(opt, batches(3), scheduler)
    state, kept = opt.state_dict()["ppdsg"], opt.state_dict()["state"]
    for name, tensor in opt.loss.state_dict().items():
        assert torch.equal(state["loss"][name], tensor)
    assert set(state["loss"]) == {"a", "b", "alpha", "seen", "reported", "counts"}
    assert state["loss"]["seen"].sum() == 18
    assert state["steps"] == 3
    for weight, saved in zip(opt.trained.weights, kept.values(), strict=True):
        assert set(saved) == {"anchor", "average", "momentum"}
        assert same(saved, opt.state[weight])
        assert saved["momentum"].any()
    assert same(state["own"], opt.own)
    assert opt.state_dict()["param_groups"][0]["lr"] == pytest.approx(0.2 * 0.9**3)


def test_state_dict_does_not_change_with_later_steps():
    opt, scheduler = rich()
    train(opt, batches(3), scheduler)
    state = opt.state_dict()
    before = copy.deepcopy(state)
    train(opt, batches(2, seed=4), scheduler)
    opt.begin_stage(0.1)
    train(opt, batches(1), scheduler)
    assert same(state, before)


def test_load_state_dict_neither_changes_nor_keeps_its_argument():
    opt, scheduler = rich()
    train(opt, batches(3), scheduler)
    state = opt.state_dict()
    before = copy.deepcopy(state)
    other, theirs = rich(seed=5)
    other.load_state_dict(state)
    assert same(state, before)
    train(other, batches(3, seed=4), theirs)
    other.begin_stage(0.1)
    train(other, batches(1), theirs)
    assert same(state, before)


@pytest.mark.parametrize("average", [True, False])
def test_a_run_saved_in_mid_stage_continues_bit_for_bit_in_new_objects(average):
    first, second = list(batches(4)), list(batches(5, seed=9))
    whole, scheduler = rich(average=average)
    whole.begin_stage(0.3)
    train(whole, first + second, scheduler)
    half, scheduler_half = rich(average=average)
    half.begin_stage(0.3)
    train(half, first, scheduler_half)
    file = io.BytesIO()
    parts = half.model, half, scheduler_half
    torch.save([part.state_dict() for part in parts], file)
    file.seek(0)
    new, scheduler_new = rich(seed=5, average=average, lr=0.1, gamma=7.0)
    parts = new.model, new, scheduler_new
    for part, state in zip(parts, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)
    train(new, second, scheduler_new)
    assert same(snapshot(new), snapshot(whole))
    for opt in (new, whole):
        opt.end_stage()
    assert same(snapshot(new), snapshot(whole))


def frozen_body():
    model = Net().double()
    model.body.requires_grad_(False)
    return make(model, momentum=0.9)


def two_groups():
    model = Net().double()
    body = list(model.body.parameters())
    rest = [p for name, p in model.named_parameters() if not name.startswith("body")]
    return make(model, momentum=0.9, params=[{"params": body}, {"params": rest}])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: make(nn.Linear(3, 1).double(), momentum=0.9), r"body\.weight.*there.*weight"),
        (frozen_body, r"body\.weight .*there"),
        (lambda: make(p=[0.4, 0.4], momentum=0.9), r"loss\.a .*\[1\].*there.*\[2\].*here"),
        (lambda: make(p=0.3, momentum=0.9), r"pos_ratio=\[0\.\d+\], here \[0\.3\]"),
        (lambda: make(momentum=0.9, average=False), "average=True, here False"),
        (two_groups, "groups="),
    ],
    ids=["model", "frozen", "tasks", "pos_ratio", "average", "groups"],
)
def test_a_state_of_another_setting_is_refused_and_leaves_everything_unchanged(other, words):
    state = train(make(momentum=0.9), batches(2)).state_dict()
    opt = other()
    before = snapshot(opt)
    with pytest.raises(ValueError, match=words):
        opt.load_state_dict(state)
    assert same(snapshot(opt), before)


def test_a_state_of_another_optimizer_is_refused():
    opt = make()
    sgd = torch.optim.SGD(Net().parameters(), lr=0.1, momentum=0.9)
    for state in (sgd.state_dict(), {}):
        with pytest.raises(ValueError, match=r"expected one of PPDSG\.state_dict"):
            opt.load_state_dict(state)


@pytest.mark.parametrize("part", ["alpha", "counts"])
def test_a_state_that_lacks_a_part_of_the_loss_is_refused_and_leaves_everything_unchanged(part):
    state = train(make(), batches(2)).state_dict()
    del state["ppdsg"]["loss"][part]
    opt = make(seed=5)
    before = snapshot(opt)
    with pytest.raises((ValueError, RuntimeError), match=part):
        opt.load_state_dict(state)
    assert same(snapshot(opt), before)


@pytest.mark.parametrize("kind", [codauc.PPDSG, codauc.PPDAdam])
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda opt: pickle.loads(pickle.dumps(opt))], ids=["copy", "pickle"]
)
def test_a_copy_trains_its_own_model_and_loss_as_the_original_would(kind, copied):
    torch.manual_seed(0)
    opt = kind(Net().double(), codauc.MinMaxAUCLoss(pos_ratio=P).double(), lr=0.1, gamma=2.0)
    train(opt, batches(3))
    other = copied(opt)
    assert other.model is not opt.model
    assert not {p.data_ptr() for p in opt.model.parameters()} & {
        p.data_ptr() for p in other.model.parameters()
    }
    before = snapshot(other)
    train(opt, batches(3, seed=4))
    assert same(snapshot(other), before)
    train(other, batches(3, seed=4))
    assert same(snapshot(other), snapshot(opt))


@pytest.mark.parametrize("kind", [codauc.PPDSG, codauc.PPDAdam])
@pytest.mark.parametrize("to", [torch.float32, torch.bfloat16])
def test_a_state_can_be_loaded_for_weights_of_another_dtype(kind, to):
    def made(dtype):
        torch.manual_seed(0)
        loss = codauc.MinMaxAUCLoss(pos_ratio=P)
        return kind(nn.Linear(3, 1).to(dtype), loss, lr=0.1, gamma=2.0)

    opt, other = train(made(torch.float32), batches(3, torch.float32)), made(to)
    other.model.load_state_dict(opt.model.state_dict())
    other.load_state_dict(opt.state_dict())
    for kept in other.state.values():
        assert kept["average"].dtype == torch.float32
        assert kept["anchor"].dtype == to
    train(other, batches(3, to, seed=4))
    train(opt, batches(3, torch.float32, seed=4))
    assert largest_difference(weights(opt), weights(other)) < (
        1e-9 if to == torch.float32 else 0.05
    )


# Moving away


def assign(module):
    module.load_state_dict({n: t.clone() for n, t in module.state_dict().items()}, assign=True)


def replace_weight(opt):
    opt.model.head.weight = nn.Parameter(torch.zeros(1, 4))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda opt: assign(opt.model), r"body\.weight was replaced"),
        (replace_weight, r"head\.weight was replaced"),
        (lambda opt: opt.model.head.register_parameter("bias", None), r"head\.bias was replaced"),
    ],
    ids=["assign", "replace", "remove"],
)
def test_step_after_replacing_a_parameter_names_it_and_the_remedy(change, words):
    opt = train(make(dtype=torch.float32), batches(2, torch.float32))
    set_gradients(opt, 0.5)
    average = vectors.average(opt)
    change(opt)
    with pytest.raises(RuntimeError, match=words + ".*make a new optimizer"):
        opt.step()
    assert opt.steps == 2
    assert torch.equal(vectors.average(opt), average)


@pytest.mark.parametrize("kind", [codauc.PPDSG, codauc.PPDAdam])
def test_a_model_that_is_cast_or_gets_other_memory_within_a_stage_trains_on(kind):
    def trained(change):
        torch.manual_seed(0)
        opt = kind(Net(), codauc.MinMaxAUCLoss(pos_ratio=P), lr=0.1, gamma=2.0)
        train(opt, batches(3, torch.float32))
        change(opt)
        train(opt, batches(3, next(opt.model.parameters()).dtype, seed=4))
        opt.end_stage()
        return opt

    def other_memory(opt):
        for p in opt.model.parameters():
            p.data = p.data.clone()

    plain = trained(lambda opt: None)
    assert same(snapshot(trained(other_memory)), snapshot(plain))
    wide = trained(lambda opt: (opt.model.double(), opt.loss.double()))
    assert {p.dtype for p in wide.model.parameters()} == {F64}
    assert largest_difference(weights(wide), weights(plain)) < 1e-5
    assert largest_difference(dual(wide), dual(plain)) < 1e-5


def test_no_operation_moves_work_and_loading_in_place_trains_the_loaded_weights():
    opt, other = make(), make(seed=5)
    saved = {n: t.clone() for n, t in other.model.state_dict().items()}
    opt.model.load_state_dict(saved)
    opt.model.double().cpu().eval().train()
    opt.loss.double().cpu()
    for each in (opt, other):
        train(each, batches(3))
    assert same(weights(opt), weights(other))


# Hooks


@pytest.mark.parametrize("kind", [codauc.PPDSG, codauc.PPDAdam])
def test_hooks_run_once_with_torchs_arguments(kind):
    def trained(optimizer, model):
        seen = []

        def before(opt, args, named):
            seen.append(("before", len(args), args[0] is opt, dict(named)))
            return args, named

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(lambda opt, args, _: seen.append(("after", len(args))))
        for step in (optimizer.step, lambda: optimizer.step(lambda: 3.0)):
            sums = [optimizer.loss.sums] if hasattr(optimizer, "loss") else []
            for parameter in [*sums, *model.parameters()]:
                parameter.grad = torch.zeros_like(parameter)
            step()
        return seen

    model, loss = nn.Linear(3, 1), codauc.MinMaxAUCLoss(pos_ratio=0.5)
    ours = kind(model, loss)
    theirs = nn.Linear(3, 1)
    expected = trained(torch.optim.SGD(theirs.parameters()), theirs)
    assert trained(ours, model) == expected
    ours.register_step_pre_hook(lambda *_: 5)
    with pytest.raises(RuntimeError, match=r"must return None|expected None"):
        ours.step()


# Parts that fit the cache


def trained_like(options, dtype, change=lambda opt: None, steps=5):
    """What a few steps make of it, with every kind of tensor: large, small, strided, frozen."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 70), nn.Conv1d(1, 2, 3), nn.Linear(68, 1)).to(dtype)
    model[1].weight.data = model[1].weight.data.transpose(0, 2).contiguous().transpose(0, 2)
    model[0].bias.requires_grad_(False)
    opt = make(model, dtype, **options)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        for name, p in [*model.named_parameters(), ("sums", opt.loss.sums)]:
            gradient = torch.randn(p.shape, dtype=F64, generator=generator).to(p.dtype)
            p.grad = None if not p.requires_grad or (name == "2.bias" and step == 2) else gradient
        change(opt)
        opt.step()
    return {
        **weights(opt),
        **dual(opt),
        "average": vectors.average(opt),
    }


WAYS = {
    "plain": {"lr": 0.3, "gamma": 2.0},
    "no pull": {"lr": 0.3, "gamma": math.inf},
    "last iterate": {"lr": 0.3, "gamma": 2.0, "average": False},
    "all": {"lr": 0.3, "gamma": 2.0, "momentum": 0.9, "weight_decay": 0.1, "max_grad_norm": 1.0},
}


@pytest.mark.parametrize("way", WAYS)
def test_foreach_operations_give_the_step_of_a_loop_over_tensors(way, monkeypatch):
    found = trained_like(WAYS[way], F64)
    for name in ("add_", "mul_", "lerp_"):
        in_turn = partial(_in_turn, getattr(torch.Tensor, name))
        monkeypatch.setattr(torch, f"_foreach_{name}", in_turn)
    assert largest_difference(trained_like(WAYS[way], F64), found) < 1e-15


def _in_turn(operation, tensors, others, *args, **named):
    others = others if isinstance(others, list) else [others] * len(tensors)
    for tensor, other in zip(tensors, others, strict=True):
        operation(tensor, other, *args, **named)


@pytest.mark.parametrize("kind", [torch.bfloat16, F64, "negative"])
def test_gradients_of_another_kind_are_read_as_the_numbers_they_are(kind):
    found = []
    for usual in (True, False):
        opt = make(Vector(torch.linspace(-1, 1, 7)), torch.float32, lr=0.1)
        set_gradients(opt, 0.5)
        if usual:
            pass
        elif kind == "negative":
            opt.model.w.grad = torch._neg_view(-torch.full((7,), 0.5))
        elif not hasattr(opt.model.w, "grad_dtype"):
            pytest.skip("this torch has no gradients of another dtype")
        else:
            opt.model.w.grad = None
            opt.model.w.grad_dtype = kind
            opt.model.w.grad = torch.full((7,), 0.5, dtype=kind)
        opt.step()
        found.append(weights(opt))
    assert largest_difference(*found) < 1e-6


# No host synchronisation, no stray tensor


class Strict(TorchDispatchMode):
    """Raises where an operation waits for the device, changes it, or meets a tensor elsewhere."""

    WAITING = ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "equal", "masked_select",
               "_unique2", "unique_dim")  # fmt: skip

    def __init__(self, device):
        super().__init__()
        self.device, self.seen = device, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.seen.add(name)
        assert name not in self.WAITING, f"{name} waits for the device"
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor):
                assert leaf.device.type == self.device, f"{name} with a tensor on {leaf.device}"
        return result


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("p", [0.4, None], ids=["given ratio", "estimated ratio"])
def test_loss_and_step_neither_wait_for_the_device_nor_leave_it(device, p, monkeypatch):
    # on the CPU numbers can be read; what runs elsewhere runs here, too
    monkeypatch.setattr("codauc.algorithm.loss.are_readable", lambda *_: False)
    model = nn.Sequential(Net()).to(device)
    model[0].head.bfloat16()
    model[0].head.register_forward_pre_hook(lambda _, args: args[0].bfloat16())
    loss = codauc.MinMaxAUCLoss(pos_ratio=p, validate=False).to(device)
    opt = codauc.PPDSG(
        model, loss, lr=0.1, gamma=2.0, momentum=0.9, weight_decay=0.1, max_grad_norm=1.0
    )
    scheduler = LambdaLR(opt, lambda t: 0.9**t)
    x, y = torch.zeros(6, 3, device=device), torch.ones(6, device=device)
    train(opt, [(x, y)])  # constants are put on the device once
    with Strict(device) as mode:
        train(opt, [(x, y)] * 2, scheduler)
        opt.end_stage()
        opt.begin_stage(0.05)
        train(opt, [(x, y)])
        opt.state_dict()
    assert {"_foreach_lerp_", "linalg_vector_norm", "sigmoid_backward"} <= mode.seen


def test_the_watch_over_synchronisation_notices_one():
    opt = make(dtype=torch.float32)
    opt.loss.validate = True
    with Strict("cpu"), pytest.raises(AssertionError, match="waits for the device"):
        opt.loss(torch.zeros(2), torch.tensor([0, 1]))
    with Strict("meta"), pytest.raises(AssertionError, match="on cpu"):
        torch.zeros(2, device="meta") + torch.tensor(1.0)


# A torch optimizer


def test_it_is_a_torch_optimizer_with_closure_and_hooks():
    opt, plain, calls = make(lr=0.3), make(lr=0.3), []
    assert isinstance(opt, torch.optim.Optimizer)
    opt.register_step_pre_hook(lambda *_: calls.append(("before", opt.steps)))
    opt.register_step_post_hook(lambda *_: calls.append(("after", opt.steps)))
    batch = next(batches(1))

    def closure():
        assert torch.is_grad_enabled()
        return backward(opt, batch)

    with torch.no_grad():
        value = opt.step(closure)
    assert calls == [("before", 0), ("after", 1)]
    assert torch.equal(value, backward(plain, batch))
    assert plain.step() is None
    assert same(weights(opt), weights(plain))
    assert "lr: 0.3" in repr(opt)


def test_zero_grad_clears_the_models_and_the_losss_gradients():
    opt = make()
    backward(opt, next(batches(1)))
    tensors = [*opt.model.parameters(), opt.loss.sums]
    assert all(tensor.grad is not None for tensor in tensors)
    opt.zero_grad()
    assert all(tensor.grad is None for tensor in tensors)


# Refusals


def test_lr_above_the_duals_limit_is_refused_with_both_numbers():
    # p = 0.2: 1/(2p(1-p)) = 3.125, 1/(2 max(p, 1-p)) = 0.625
    words = r"lr=3\.2 with pos_ratio=0\.2: .*3\.125.*0\.625"
    with pytest.raises(ValueError, match=words):
        make(p=0.2, lr=3.2)
    opt = make(p=0.2, lr=0.1)
    before = snapshot(opt)
    with pytest.raises(ValueError, match=words):
        opt.begin_stage(3.2)
    assert same(snapshot(opt), before)


def test_lr_that_a_scheduler_raises_above_the_limit_is_refused_and_nothing_moves():
    opt = make(p=0.2, lr=0.1)
    scheduler = LambdaLR(opt, lambda t: 32.0**t)
    train(opt, batches(1), scheduler)
    set_gradients(opt, 0.5)
    before = snapshot(opt)
    with pytest.raises(ValueError, match=r"lr=3\.2 .*3\.125.*0\.625"):
        opt.step()
    assert same(snapshot(opt), before)


def test_every_tasks_ratio_limits_lr_and_the_limit_itself_is_allowed():
    with pytest.raises(ValueError, match=r"lr=3 with pos_ratio=0\.5: .* 2,"):
        make(p=[0.1, 0.5], lr=3.0)
    with pytest.warns(UserWarning, match="end there"):
        make(p=0.5, lr=2.0)
    make(p=0.5, lr=1.0)


def test_limits_follow_the_estimated_ratio_at_the_start_of_each_stage():
    loss = codauc.MinMaxAUCLoss()
    opt = codauc.PPDSG(nn.Linear(3, 1), loss, lr=0.9)  # nothing seen: p = 1/2, warned above 1
    loss(torch.zeros(99), torch.arange(99) < 10)
    with pytest.warns(UserWarning, match=r"pos_ratio=0\.105 is above .* = 0\.5586"):
        opt.begin_stage()


def test_lr_above_the_limit_of_a_and_b_is_warned_about_exactly_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opt = make(p=0.2, lr=0.7)
        train(opt, batches(3))
        opt.begin_stage(0.8)
        train(opt, batches(3))
    assert len(caught) == 1
    assert "lr=0.7 with pos_ratio=0.2 is above 1/(2 max(p, 1-p)) = 0.625" in str(caught[0].message)


@pytest.mark.parametrize("when", ["made", "begun", "stepped"])
def test_the_warning_points_at_the_users_line(when):
    loss = codauc.MinMaxAUCLoss(pos_ratio=0.2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opt = codauc.PPDSG(Net(), loss, lr=0.7 if when == "made" else 0.1)
        if when == "begun":
            opt.begin_stage(0.7)
        if when == "stepped":
            LambdaLR(opt, lambda _: 7.0)
            opt.step()
    assert [warning.filename for warning in caught] == [__file__]


class Holder(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.net, self.loss = nn.Linear(3, 1), loss


STRANGER = nn.Parameter(torch.zeros(1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": 0}, r"lr=0: expected a number > 0"),
        ({"lr": math.nan}, "lr=nan: expected"),
        ({"lr": math.inf}, "lr=inf: expected"),
        ({"lr": "0.1"}, "lr='0.1': expected"),
        ({"gamma": 0}, "gamma=0: expected a number > 0.*math.inf"),
        ({"gamma": -1}, "gamma=-1: expected"),
        ({"gamma": math.nan}, "gamma=nan: expected"),
        ({"gamma": None}, "gamma=None: expected"),
        ({"momentum": 1.0}, "momentum=1.0: expected a number >= 0 and < 1"),
        ({"momentum": -0.1}, "momentum=-0.1: expected"),
        ({"weight_decay": -1e-4}, "weight_decay=-0.0001: expected a number >= 0"),
        ({"weight_decay": math.inf}, "weight_decay=inf: expected"),
        ({"max_grad_norm": 0}, "max_grad_norm=0: expected a number > 0.*None"),
        ({"max_grad_norm": True}, "max_grad_norm=True: expected"),
        ({"average": "no"}, "average='no': expected"),
        ({"weight_decy": 0.1}, "unknown argument 'weight_decy': did you mean 'weight_decay'"),
        ({"nesterov": True}, "unknown argument 'nesterov'.*It takes: .*momentum"),
        ({"params": [STRANGER]}, "not the model's"),
        ({"params": [{"params": [STRANGER]}]}, "not the model's"),
        ({"params": []}, "expected at least one"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_and_leave_model_and_loss_unchanged(options, words):
    model, loss = Net(), codauc.MinMaxAUCLoss(pos_ratio=0.5)
    tensors = [*model.state_dict().values(), *loss.state_dict().values()]
    before = [(tensor.clone(), tensor.data_ptr()) for tensor in tensors]
    with pytest.raises(ValueError, match=words):
        codauc.PPDSG(model, loss, **options)
    after = [*model.state_dict().values(), *loss.state_dict().values()]
    for now, (value, pointer) in zip(after, before, strict=True):
        assert torch.equal(now, value)
        assert now.data_ptr() == pointer


def head_group(model, **options):
    return {"params": list(model.head.parameters()), **options}


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (lambda m: [head_group(m, gamma=2.0)], r"\['gamma'\].*gamma and max_grad_norm are the opt"),
        (lambda m: [head_group(m, weigth_decay=0.1)], r"\['weigth_decay'\]: expected only"),
        (lambda m: [head_group(m, lr=-1)], "lr=-1: expected"),
        (lambda m: [head_group(m, momentum=2)], "momentum=2: expected"),
        (lambda m: [head_group(m), head_group(m)], "more than one parameter group"),
        (lambda m: [head_group(m), m.body.weight], "params"),
        (lambda m: [m.body.weight, head_group(m)], "params"),
        (lambda m: [head_group(m), {"weight_decay": 0.1}], "params"),
        (lambda m: [head_group(m), {"params": [m.body.bias], "lrr": 1}], r"\['lrr'\]"),
    ],
    ids=[
        *("gamma", "misspelt", "lr", "momentum", "twice", "then a tensor", "first a tensor"),
        *("without params", "misspelt in a frozen group"),
    ],
)
def test_bad_parameter_groups_are_refused_and_leave_model_and_loss_unchanged(groups, words):
    model, loss = Net(), codauc.MinMaxAUCLoss(pos_ratio=0.5)
    model.body.bias.requires_grad_(False)
    pointer, given = model.head.weight.data_ptr(), groups(model)
    before = [dict(group) for group in given if isinstance(group, dict)]
    with pytest.raises(ValueError, match=words):
        codauc.PPDSG(model, loss, params=given)
    assert model.head.weight.data_ptr() == pointer
    assert [group.keys() for group in before] == [g.keys() for g in given if isinstance(g, dict)]


def test_the_users_groups_are_not_changed():
    model = Net()
    group = head_group(model, lr=0.1)
    opt = make(model, torch.float32, params=[group])
    opt.param_groups[0]["lr"] = 0.2
    assert group.keys() == {"params", "lr"}
    assert group["lr"] == 0.1


@pytest.mark.parametrize(
    ("model", "loss", "words"),
    [
        (Net().parameters(), codauc.MinMaxAUCLoss(0.5), "model: got generator, expected an nn.Mod"),
        (Net(), nn.BCEWithLogitsLoss(), "loss: got BCEWithLogitsLoss, expected a codauc.MinMaxAUC"),
        (Net(), codauc.MinMaxAUCLoss(0.5).half(), "loss of torch.float16.*cast the model alone"),
        (Net().requires_grad_(False), codauc.MinMaxAUCLoss(0.5), "no parameter to train"),
        (nn.ReLU(), codauc.MinMaxAUCLoss(0.5), "no parameter to train"),
        (Net().to("meta"), codauc.MinMaxAUCLoss(0.5), "on meta.*on cpu.*move both before"),
    ],
    ids=["generator", "other loss", "half loss", "frozen", "no parameters", "two devices"],
)
def test_what_cannot_be_trained_is_refused(model, loss, words):
    with pytest.raises(ValueError, match=words):
        codauc.PPDSG(model, loss)


def test_a_loss_inside_the_model_is_refused():
    loss = codauc.MinMaxAUCLoss(pos_ratio=0.5)
    with pytest.raises(ValueError, match=r"loss is a submodule of model.*keep it outside"):
        codauc.PPDSG(Holder(loss), loss)


def test_a_group_may_be_added_between_stages_and_trains_as_if_it_had_been_there():
    torch.manual_seed(0)
    model = Net().double()
    body = list(model.body.parameters())
    rest = [p for name, p in model.named_parameters() if not name.startswith("body")]
    whole = make(copy.deepcopy(model), lr=0.3)
    opt = make(model, lr=0.3, params=rest)
    opt.add_param_group({"params": body, "weight_decay": 0.0})
    for each in (opt, whole):
        train(each, batches(4))
    assert same(weights(opt), weights(whole))
    assert [len(group["params"]) for group in opt.param_groups] == [4, 2]
    with pytest.raises(RuntimeError, match="within a stage"):
        opt.add_param_group({"params": [STRANGER]})


@pytest.mark.parametrize("lr", [0, -0.1, math.nan, "0.1"])
def test_begin_stage_refuses_a_bad_lr_and_changes_nothing(lr):
    opt = train(make(), batches(2))
    before = snapshot(opt)
    with pytest.raises(ValueError, match=r"lr=.*: expected a number > 0"):
        opt.begin_stage(lr)
    assert same(snapshot(opt), before)


# What a torch user would otherwise notice too late


def test_what_is_unfrozen_trains_from_then_on_within_and_between_stages():
    def trained(between):
        torch.manual_seed(0)
        model = Net().double()
        model.body.requires_grad_(False)
        opt = make(model, lr=0.3, gamma=2.0, momentum=0.9)
        train(opt, batches(2))
        start = weights(opt)
        if between:
            opt.begin_stage()
        model.body.requires_grad_(True)
        train(opt, batches(1, seed=4))
        return opt, start, weights(opt)

    for between in (True, False):
        opt, start, end = trained(between)
        assert not torch.equal(end["body.weight"], start["body.weight"])
        mean = (
            end["body.weight"] if between else (2 * start["body.weight"] + end["body.weight"]) / 3
        )
        average = opt.state[opt.model.body.weight]["average"]
        assert (average - mean).abs().max() < 1e-15
    opt.model.body.requires_grad_(False)
    opt.zero_grad()
    frozen, before = weights(opt)["body.weight"], average.clone()
    train(opt, batches(2))
    assert torch.equal(weights(opt)["body.weight"], frozen)
    expected = (3 * before + 2 * frozen) / 5  # of a frozen weight its value counts at each step
    assert (opt.state[opt.model.body.weight]["average"] - expected).abs().max() < 1e-15


def test_tensors_that_share_memory_without_being_one_are_refused():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1))
    model[1].weight.data = model[0].weight.data
    with pytest.raises(ValueError, match=r"1\.weight and 0\.weight share memory"):
        codauc.PPDSG(model, codauc.MinMaxAUCLoss(0.5))


def test_step_size_is_that_of_the_next_step():
    opt = make()
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 0.5**step)
    opt.begin_stage(0.02)
    assert opt.step_size == pytest.approx(0.02)
    train(opt, batches(1))
    schedule.step()
    assert opt.step_size == pytest.approx(0.01)


def test_clipping_and_momentum_come_back_from_a_saved_state():
    opt = train(make(momentum=0.9, max_grad_norm=0.01), batches(3))
    other = make()
    other.model.load_state_dict(opt.model.state_dict())
    other.load_state_dict(opt.state_dict())
    for one in (opt, other):
        train(one, batches(3))
    assert other.max_grad_norm == 0.01
    assert same(snapshot(opt), snapshot(other))


def test_a_step_without_any_gradient_is_no_step():
    opt = make()
    before = snapshot(opt)
    opt.zero_grad()
    opt.step()
    assert opt.steps == 0
    assert same(snapshot(opt), before)


@pytest.mark.parametrize("change", ["step", "end_stage", "unpack"])
def test_a_graph_from_before_a_change_is_refused_as_by_torch(change):
    opt = train(make(), batches(1))
    x, y = next(batches(1))
    value = opt.loss(opt.model(x), y)
    value.backward(retain_graph=True)
    if change == "unpack":
        opt.trained.unpack(vectors.state(opt))
    else:
        getattr(opt, change)()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_a_layer_put_in_after_construction_is_refused():
    for change in ("replace", "append"):
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)).double()
        opt = make(model)
        if change == "replace":
            model[1] = nn.Linear(4, 1).double()
        else:
            model.append(nn.Linear(1, 1).double())
        with pytest.raises(RuntimeError, match=r"\.weight (asks for gradients, but|was replaced)"):
            train(opt, batches(1))


def test_a_loop_with_another_loss_is_told_so():
    opt = make()
    x, y = next(batches(1))
    other = codauc.MinMaxAUCLoss(0.4).double()
    before = weights(opt)
    for loss in (other, lambda h, y: nn.functional.binary_cross_entropy_with_logits(h[:, 0], y)):
        opt.zero_grad()
        loss(opt.model(x), y.double()).backward()
        with pytest.raises(RuntimeError, match="loss may be another one"):
            opt.step()
    assert same(weights(opt), before)


def cleared_by_hand(opt):
    for parameter in opt.model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


@pytest.mark.parametrize(
    "clear",
    [
        lambda opt: opt.zero_grad(set_to_none=False),
        lambda opt: opt.model.zero_grad(),
        lambda opt: opt.model.zero_grad(set_to_none=False),
        cleared_by_hand,
    ],
    ids=["in place", "the model", "the model in place", "by hand"],
)
@pytest.mark.parametrize("kind", [codauc.PPDSG, codauc.PPDAdam])
def test_however_gradients_are_cleared_the_run_is_the_same(kind, clear):
    def trained(clear):
        torch.manual_seed(0)
        opt = kind(Net().double(), codauc.MinMaxAUCLoss(P).double(), lr=0.1)
        for x, y in batches(4):
            clear(opt)
            opt.loss(opt.model(x), y).backward()
            opt.step()
        return snapshot(opt)

    assert same(trained(clear), trained(lambda opt: opt.zero_grad()))


def test_zero_grad_drops_a_batch_for_a_b_and_alpha_too():
    model = nn.Linear(3, 1).double()
    one, other = make(copy.deepcopy(model)), make(model)
    first, second = batches(2)
    backward(one, first)  # never stepped, for example as its loss was too large
    train(one, [second])
    train(other, [second])
    assert same(dual(one), dual(other))


@pytest.mark.parametrize("kind", [codauc.PPDSG, codauc.PPDAdam])
def test_batches_that_accumulate_step_as_one_batch(kind):
    x, y = next(batches(1, size=12))

    def trained(parts):
        torch.manual_seed(0)
        model = nn.Linear(3, 1).double()
        opt = kind(model, codauc.MinMaxAUCLoss(P).double(), lr=0.1)
        for _ in range(3):
            opt.zero_grad()
            for part in torch.arange(12).chunk(parts):
                (opt.loss(model(x[part]), y[part]) / parts).backward()
            opt.step()
        return {**weights(opt), **dual(opt)}

    assert largest_difference(trained(3), trained(1)) < 1e-14


def test_a_step_without_a_new_backward_is_refused():
    opt = train(make(), batches(1))
    before = snapshot(opt)
    with pytest.raises(RuntimeError, match=r"expected one backward\(\) .* before each step\(\)"):
        opt.step()
    assert same(snapshot(opt), before)


# Any batch: a and b stay among the scores


@st.composite
def odd_batches(draw):
    """A ratio, a step size within its limit, and batches of any share of positives."""
    p = draw(st.sampled_from([0.5, 0.1, 0.01, 1e-3, 1e-4, 1e-5]))
    limit = 1 / (2 * p * (1 - p))
    eta = limit * draw(st.floats(0.01, 1.0))
    many = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=6)
    return p, eta, draw(st.lists(many, min_size=1, max_size=6))


@pytest.mark.filterwarnings("ignore:lr=")
@given(odd_batches(), st.sampled_from([0.5, math.inf]))
def test_a_and_b_stay_within_the_scores_whatever_the_batches_share_of_positives(drawn, gamma):
    p, eta, data = drawn
    opt = make(Vector(torch.zeros(1, dtype=F64)), p=p, lr=eta, gamma=gamma)
    opt.loss.link = "identity"
    for batch in data:
        h, y = (torch.tensor(column) for column in zip(*batch, strict=True))
        opt.loss(h.double(), y).backward()
        opt.step()
        found = dual(opt)
        assert -1e-12 <= found["a"] <= 1 + 1e-12
        assert -1e-12 <= found["b"] <= 1 + 1e-12
        assert abs(found["alpha"]) <= max(p, 1 - p) / (p * (1 - p)) * (1 + 1e-9)  # Lemma 7
