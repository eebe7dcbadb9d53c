"""Claims about PPDAdam: torch's AdamW for w, implicit steps of a, b, alpha; rounds average s."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import codauc
import vectors
from codauc.algorithm.objective import objective

F64 = torch.float64
P = 0.2


def data(count, worker=0, size=8):
    source = torch.Generator().manual_seed(worker)
    for _ in range(count):
        y = torch.rand(size, generator=source) < P
        x = torch.randn(size, 3, dtype=F64, generator=source) + y[:, None].double()
        yield x, y


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def make(**options):
    loss = codauc.MinMaxAUCLoss(pos_ratio=P).double()
    return codauc.PPDAdam(net(), loss, **options)


def step(opt, x, y):
    opt.zero_grad()
    opt.loss(opt.model(x), y).backward()
    opt.step()


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_weights_take_the_steps_of_torchs_adamw(decay):
    opt = make(lr=0.01, weight_decay=decay, average=False)
    twin, loss = net(), opt.loss
    other = torch.optim.AdamW(twin.parameters(), lr=0.01, weight_decay=decay)
    for x, y in data(30):
        other.zero_grad()
        state = copy.deepcopy(loss)  # a, b and alpha as they are before the step
        state(twin(x), y).backward()
        other.step()
        step(opt, x, y)
        for mine, theirs in zip(opt.model.parameters(), twin.parameters(), strict=True):
            assert torch.allclose(mine, theirs, rtol=0, atol=1e-12)


class Scores(nn.Module):
    """A network that gives its inputs back, for steps of a, b and alpha alone."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1, dtype=F64))

    def forward(self, x):
        return x


def alone(p=P, **options):
    loss = codauc.MinMaxAUCLoss(pos_ratio=p, link="identity").double()
    return codauc.PPDAdam(Scores(), loss, **options)


def own(opt):
    return [float(t) for t in (opt.loss.a, opt.loss.b, opt.loss.alpha)]


def test_a_b_and_alpha_go_a_share_of_the_way_to_the_class_means():
    """A batch with the usual share of positives goes eta/(1 + eta) of it, eta = dual_lr."""
    opt = alone(dual_lr=0.25)
    h = torch.tensor([2.0, 1.0, 1.0, 0.0, -1.0], dtype=F64)
    step(opt, h, torch.tensor([1, 0, 0, 0, 0]))
    assert own(opt) == pytest.approx([0.2 * 2.0, 0.2 * 0.25, 0.2 * (0.25 - 2.0)])


@pytest.mark.parametrize("positives", [0, 1, 3, 6])
def test_a_and_b_minimise_the_batchs_objective_with_their_distance(positives):
    opt = alone(dual_lr=0.3)
    opt.loss.a.fill_(0.3), opt.loss.b.fill_(-0.4), opt.loss.alpha.fill_(0.2)
    old = own(opt)
    h, y = torch.randn(6, dtype=F64), torch.arange(6) < positives
    step(opt, h, y)
    u = torch.tensor(own(opt)[:2], dtype=F64, requires_grad=True)
    value = objective(h, y, (u[0], u[1], torch.tensor(old[2], dtype=F64)), P).mean()
    value = value + (u - torch.tensor(old[:2], dtype=F64)).square().sum() * P * (1 - P) / 0.3
    (slope,) = torch.autograd.grad(value, u)
    assert slope.abs().max() < 1e-14


def test_the_step_of_alpha_is_the_gradient_in_the_mean_over_batches():
    """To first order in dual_lr, over batches that together have a share p of positives."""
    eta, h = 1e-6, torch.randn(20, dtype=F64)
    y = torch.arange(20) < 4  # P = 0.2
    start = (0.3, -0.4, 0.2)

    def moved(rows):
        opt = alone(dual_lr=eta)
        for name, value in zip(("a", "b", "alpha"), start, strict=True):
            getattr(opt.loss, name).fill_(value)
        step(opt, h[rows], y[rows])
        return (own(opt)[2] - start[2]) / eta

    parts = torch.arange(20).reshape(5, 4)  # the first is of positives alone, the others of none
    mean = sum(moved(rows) for rows in parts) / 5
    exact = float(h[4:].mean() - h[:4].mean()) - start[2]
    assert mean == pytest.approx(exact, abs=1e-4)


RATIOS = [0.5, 0.1, 0.01, 1e-3, 1e-4, 1e-5]


@settings(max_examples=60)
@given(
    st.sampled_from(RATIOS),
    st.floats(0.01, 1.0),
    st.lists(
        st.lists(st.tuples(st.floats(-30, 30), st.booleans()), min_size=1, max_size=5),
        min_size=1,
        max_size=8,
    ),
)
def test_any_batch_leaves_a_and_b_within_the_scores_and_alpha_between_minus_1_and_1(p, eta, parts):
    loss = codauc.MinMaxAUCLoss(pos_ratio=p)
    opt = codauc.PPDAdam(Scores(), loss, dual_lr=eta)
    least, most = 0.0, 0.0  # a and b begin there
    for part in parts:
        logits, y = (torch.tensor(column) for column in zip(*part, strict=True))
        h = logits.sigmoid()
        least, most = min(least, float(h.min())), max(most, float(h.max()))
        step(opt, logits, y)
        a, b, alpha = own(opt)
        assert least - 1e-6 <= min(a, b) <= max(a, b) <= most + 1e-6
        assert -1 <= alpha <= 1


def test_one_positive_among_very_many_does_not_carry_a_beyond_its_score():
    """20,000 negatives to a positive, batches of 256: the old step went 19 times the way."""
    opt = alone(p=1 / 20_000, dual_lr=0.1)
    for share in (0, 1, 0, 2, 1):
        step(opt, torch.full((256,), 0.5, dtype=F64), torch.arange(256) < share)
        a, b, alpha = own(opt)
        assert 0 <= a <= 0.5
        assert 0 <= b <= 0.5
        assert alpha == pytest.approx(b - a, abs=1e-12)
    assert a > 0.49


def test_a_stage_with_another_objective_starts_with_its_own_second_moments():
    """Gradients a thousand times smaller than the last stage's move weights as far."""
    opt = make(lr=0.01)
    for x, y in data(20):
        step(opt, x * 10, y)
    opt.begin_stage()
    before = opt.model[2].bias.detach().clone()
    opt.zero_grad()
    (opt.loss(opt.model(x), y) / 1000).backward()
    opt.step()
    assert (opt.model[2].bias - before).abs().item() == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("gamma", [0.05, 2.0])
def test_the_step_is_the_argmin_in_the_norm_of_adam(gamma):
    """The gradient of <m, u> + |u - w|_H^2/(2 eta) + |u - w0|^2/(2 gamma) vanishes at the step."""
    opt = make(lr=0.1, gamma=gamma, average=False)
    anchor = opt.model[0].weight.detach().clone()
    first = second = torch.zeros_like(anchor)
    for count, (x, y) in enumerate(data(4), 1):
        before = opt.model[0].weight.detach().clone()
        step(opt, x, y)
        g, after = opt.model[0].weight.grad, opt.model[0].weight.detach()
        first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
        m, s = first / (1 - 0.9**count), second / (1 - 0.999**count)
        scale = s.sqrt() + 1e-8
        slope = m + scale * (after - before) / 0.1 + (after - anchor) / gamma
        assert slope.abs().max() < 1e-10


@pytest.mark.parametrize("workers", [2, 3])
def test_rounds_average_weights_duals_and_second_moments(workers):
    """Against plain loops: K states side by side, averaged every I steps."""
    lr, dual_lr, every, steps = 0.02, 0.1, 3, 7

    def work(group):
        opt = make(lr=lr, dual_lr=dual_lr, average=False)
        coda = codauc.CoDA(opt, group)
        stage = codauc.Stage(lr=lr, steps=steps, sync_every=every, dual_samples=8)
        batches = data(200, worker=group.rank)
        for x, y in coda.stage(stage, batches):
            step(opt, x, y)
        return [p.detach().clone() for p in opt.model.parameters()], opt.loss.a.item()

    expected, a = reference(workers, lr, dual_lr, every, steps)
    for found, found_a in codauc.launch(work, workers=workers, simulate=True):
        assert found_a == pytest.approx(a, abs=1e-12)
        for mine, theirs in zip(found, expected, strict=True):
            assert torch.allclose(mine, theirs, rtol=0, atol=1e-12)


def reference(workers, lr, dual_lr, every, steps):
    nets = [net() for _ in range(workers)]
    losses = [codauc.MinMaxAUCLoss(pos_ratio=P).double() for _ in range(workers)]
    firsts = [[torch.zeros_like(p) for p in n.parameters()] for n in nets]
    seconds = copy.deepcopy(firsts)
    sources = [data(200, worker=k) for k in range(workers)]
    for t in range(1, steps + 1):
        for k, (model, loss) in enumerate(zip(nets, losses, strict=True)):
            x, y = next(sources[k])
            model.zero_grad()
            loss(model(x), y).backward()
            loss.sums.grad = None
            with torch.no_grad():
                h = model(x).sigmoid().flatten()  # the scores before the step
                for p, m, s in zip(model.parameters(), firsts[k], seconds[k], strict=True):
                    m.mul_(0.9).add_(p.grad, alpha=0.1)
                    s.mul_(0.999).add_(p.grad**2, alpha=0.001)
                    scale = (s / (1 - 0.999**t)).sqrt() + 1e-8
                    p -= lr * (m / (1 - 0.9**t)) / scale
                new_a, new_b = float(loss.a), float(loss.b)
                if y.any():
                    rate = dual_lr * float(y.double().mean()) / P
                    new_a = (new_a + rate * float(h[y].mean())) / (1 + rate)
                if not y.all():
                    rate = dual_lr * float((~y).double().mean()) / (1 - P)
                    new_b = (new_b + rate * float(h[~y].mean())) / (1 + rate)
                loss.alpha.fill_(new_b - new_a)  # they begin equal, and stay so
                loss.a.fill_(new_a), loss.b.fill_(new_b)
        if t % every == 0 or t == steps:
            states = [[*n.parameters(), ls.a, ls.b, ls.alpha, *seconds[k]]
                      for k, (n, ls) in enumerate(zip(nets, losses, strict=True))]  # fmt: skip
            with torch.no_grad():
                for tensors in zip(*states, strict=True):
                    mean = torch.stack([t.detach() for t in tensors]).mean(0)
                    for tensor in tensors:
                        tensor.copy_(mean)
    return list(nets[0].parameters()), losses[0].a.item()


def test_the_message_is_twice_as_long_as_that_of_plain_steps():
    def sent(kind):
        def work(group):
            loss = codauc.MinMaxAUCLoss(pos_ratio=P).double()
            opt = kind(net(), loss, lr=0.01)
            coda = codauc.CoDA(opt, group)
            stage = codauc.Stage(lr=0.01, steps=2, sync_every=1, dual_samples=8)
            for x, y in coda.stage(stage, data(50, worker=group.rank)):
                step(opt, x, y)
            return group.ledger.tallies["round"].sent

        return codauc.launch(work, workers=2, simulate=True)[0]

    weights = 3 * 4 + 4 + 4 + 1
    assert sent(codauc.PPDAdam) - sent(codauc.PPDSG) == 2 * weights * 8


def test_a_state_goes_on_bit_for_bit():
    whole, half = make(lr=0.01), make(lr=0.01)
    batches = list(data(10))
    for x, y in batches:
        step(whole, x, y)
    for x, y in batches[:5]:
        step(half, x, y)
    other = make(lr=0.01)
    other.model.load_state_dict(half.model.state_dict())
    other.load_state_dict(half.state_dict())
    for x, y in batches[5:]:
        step(other, x, y)
    assert torch.equal(vectors.state(whole), vectors.state(other))


def test_a_state_of_plain_steps_is_refused():
    loss = codauc.MinMaxAUCLoss(pos_ratio=P).double()
    plain = codauc.PPDSG(net(), loss, lr=0.01)
    with pytest.raises(ValueError, match="state_dict"):
        make(lr=0.01).load_state_dict(plain.state_dict())


def test_scales_of_the_inputs_do_not_change_the_first_step():
    """A weight moves by lr at first, whatever the scale of its gradient."""
    for scale in (1e-3, 1.0, 10.0):
        loss = codauc.MinMaxAUCLoss(pos_ratio=P).double()
        opt = codauc.PPDAdam(net(), loss, lr=0.01, average=False)
        before = opt.model[0].weight.detach().clone()
        x, y = next(data(1))
        step(opt, x * scale, y)
        moved = (opt.model[0].weight - before).abs()
        assert torch.allclose(moved, torch.full_like(moved, 0.01), rtol=0.05)  # eps


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dual_lr": 0.0}, "dual_lr"),
        ({"betas": (0.9, 1.0)}, "beta2"),
        ({"betas": 0.9}, "betas"),
        ({"eps": 0.0}, "eps"),
        ({"lr": math.nan}, "lr"),
        ({"momentum": 0.9}, "unknown argument 'momentum'"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        make(**options)


def test_workers_with_other_numbers_are_told():
    def work(group):
        codauc.CoDA(make(lr=0.01, betas=(0.9, 0.99 if group.rank else 0.999)), group)

    with pytest.raises(ValueError, match="differ in adam"):
        codauc.launch(work, workers=2, simulate=True)


def test_a_parameter_without_gradient_is_left_alone():
    opt = make(lr=0.01, weight_decay=0.1)
    x, y = next(data(1))
    step(opt, x, y)
    before = opt.model[0].weight.detach().clone()
    kept = opt.state_dict()["state"][0]["second"]
    opt.zero_grad()
    opt.loss(opt.model(x), y).backward()
    opt.model[0].weight.grad = None
    opt.step()
    assert torch.equal(opt.model[0].weight, before)
    assert torch.equal(opt.state_dict()["state"][0]["second"], kept)
