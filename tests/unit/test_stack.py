"""Claims about workers that step at once: equal to workers in turn, and what they refuse."""

import copy
import io

import pytest
import torch
from torch import nn

import codauc
from codauc import Stack, stacked
from codauc.data import Batches, even_shards
from codauc.models import MLP

DTYPE = torch.float64
SAMPLES, FEATURES, BATCH = 240, 3, 6
STAGES = [
    codauc.Stage(lr=0.1, steps=7, sync_every=4, dual_samples=20),
    codauc.Stage(lr=0.05, steps=9, sync_every=4, dual_samples=20),
    codauc.Stage(lr=0.02, steps=4, sync_every=4, dual_samples=8, estimate_ab=True),
]


def data():
    generator = torch.Generator().manual_seed(3)
    y = torch.rand(SAMPLES, generator=generator) < 0.4
    x = torch.randn(SAMPLES, FEATURES, dtype=DTYPE, generator=generator) + 0.5 * y[:, None]
    return x, y


def batches(workers):
    x, y = data()
    shards = even_shards(SAMPLES, workers, seed=1)
    return [
        Batches(x, y, batch_size=BATCH, seed=2, worker=k, rows=shard[: SAMPLES // workers])
        for k, shard in enumerate(shards)
    ]


def plain_net():
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, 1))


class Odd(nn.Module):
    """No chain of layers: for vmap."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(FEATURES, 4), nn.LayerNorm(4), nn.Linear(4, 1)
        self.register_buffer("scale", torch.tensor(2.0, dtype=DTYPE))

    def forward(self, x):
        h = self.norm(self.first(x))
        return self.last(torch.cat([h[:, :2].relu(), h[:, 2:] * self.scale], 1)).squeeze(1)


def tied_net():
    one = nn.Linear(FEATURES, FEATURES)
    return nn.Sequential(one, nn.ReLU(), one, nn.Linear(FEATURES, 1, bias=False))


class Wrapped(nn.Module):
    """A module that is there twice, for vmap."""

    def __init__(self):
        super().__init__()
        self.layers = tied_net()

    def forward(self, x):
        return self.layers(x)


class TiedParameters(nn.Module):
    """Two modules, one parameter."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).relu()).sum(1)


def half_frozen():
    model = plain_net()
    model[0].weight.requires_grad_(False)
    return model


def all_but_last_frozen():
    model = plain_net()
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


def mlp():
    return MLP(FEATURES, widths=(5, 4))


NETS = [plain_net, Odd, tied_net, Wrapped, TiedParameters, half_frozen, all_but_last_frozen, mlp]


def made(net):
    torch.manual_seed(0)
    return net().to(DTYPE)


def with_i(sync_every):
    return [codauc.Stage(s.lr, s.steps, sync_every, s.dual_samples) for s in STAGES]


def loop(coda, stages, source, *, gradients=False):
    for stage in stages:
        for x, y in coda.stage(stage, source):
            coda.opt.zero_grad()
            coda.opt.loss(coda.opt.model(x), y).backward()
            if gradients:
                coda.average_gradients()
            coda.opt.step()


def ledger_of(coda):
    tallies = coda.group.ledger.tallies
    return {kind: (tally.calls, tally.sent, tally.received) for kind, tally in tallies.items()}


def in_turn(workers, net, stages, *, dual="mean", optimizer=codauc.PPDSG, early=0, **options):
    """What every worker has at the end, or so many steps before it: weights, averages, a, b ..."""
    sources = batches(workers)

    def train(group):
        model, loss = made(net), codauc.MinMaxAUCLoss(pos_ratio=0.4).double()
        opt = optimizer(model, loss, **options)
        coda = codauc.CoDA(opt, group, dual=dual)
        coda.watch_drift()
        loop(coda, stages[:-1], sources[group.rank])
        if early:
            part = coda.stage(stages[-1], sources[group.rank])
            for _ in range(stages[-1].steps - early):
                x, y = next(part)
                opt.zero_grad()
                loss(model(x), y).backward()
                opt.step()
        else:
            loop(coda, stages[-1:], sources[group.rank])
        return found(coda), ledger_of(coda), coda.drift

    states, ledgers, drifts = zip(
        *codauc.launch(train, workers=workers, simulate=True), strict=True
    )
    together = {name: torch.stack([s[name] for s in states]) for name in states[0]}
    return together, ledgers[0], drifts[0]


def found(coda):
    """Copies of all that a worker computes with."""
    opt, state = coda.opt, {}
    for entry in opt.flat.entries:
        state[entry.name] = entry.tensor.detach().clone()
        vector, start = opt.flat.places[entry.role, entry.name]
        for kind in ("averages", "momenta", "anchor"):
            if entry.role in ("weight", "ab") and getattr(opt, kind):
                part = getattr(opt, kind)[vector][start : start + entry.tensor.numel()]
                state[f"{kind} {entry.name}"] = part.view_as(entry.tensor).clone()
    counts = {f"counts.{n}": getattr(opt.loss, n).clone() for n in ("seen", "reported", "counts")}
    return {**state, **counts}


def stack_of(workers, net, *, dual="mean", optimizer=codauc.PPDSG, **options):
    stack = Stack(made(net), workers=workers)
    loss = stack.loss(pos_ratio=0.4).double()
    return codauc.CoDA(optimizer(stack, loss, **options), dual=dual)


def at_once(workers, net, stages, *, early=0, **options):
    coda, source = stack_of(workers, net, **options), stacked(batches(workers))
    coda.watch_drift()
    loop(coda, stages[:-1], source)
    if early:
        part = coda.stage(stages[-1], source)
        for _ in range(stages[-1].steps - early):
            x, y = next(part)
            coda.opt.zero_grad()
            coda.opt.loss(coda.opt.model(x), y).backward()
            coda.opt.step()
    else:
        loop(coda, stages[-1:], source)
    return found(coda), ledger_of(coda), coda.drift


def same(stack, threads):
    """The same numbers, whatever the layout: [K, *shape] and K times [*shape]."""
    assert {name.replace("each.", "") for name in stack} == set(threads)
    for name, value in stack.items():
        other = threads[name.replace("each.", "")]
        if name.startswith("counts."):  # [2, K] and K times [2, 1]
            value = value.T
        torch.testing.assert_close(
            value.reshape(len(other), -1), other.reshape(len(other), -1), rtol=0, atol=1e-10
        )


@pytest.mark.parametrize("early", [0, 2])
@pytest.mark.parametrize("dual", ["mean", "pooled"])
@pytest.mark.parametrize("sync_every", [1, 4])
@pytest.mark.parametrize("workers", [2, 5])
def test_stacked_workers_equal_workers_in_turn(workers, sync_every, dual, early):
    options = {"lr": 0.1, "gamma": 2.0, "momentum": 0.9, "weight_decay": 1e-2}
    options.update(dual=dual, early=early)
    stages = with_i(sync_every)
    stack, ledger, drift = at_once(workers, plain_net, stages, **options)
    threads, other, drift0 = in_turn(workers, plain_net, stages, **options)
    same(stack, threads)
    assert ledger == other
    assert ledger["round"][0] == sum(s.rounds for s in stages) - (early > 0) * (
        1 + (stages[-1].steps - 1) // sync_every - (stages[-1].steps - early) // sync_every
    )
    assert drift == pytest.approx(drift0, abs=1e-10)


@pytest.mark.parametrize("net", NETS)
def test_any_network_without_chance_or_statistics_is_equal(net):
    options = {"lr": 0.1, "gamma": 2.0, "momentum": 0.5}
    stack, ledger, _ = at_once(3, net, STAGES, **options)
    threads, other, _ = in_turn(3, net, STAGES, **options)
    same(stack, threads)
    assert ledger == other


@pytest.mark.usefixtures("c_compiler")
@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": codauc.PPDAdam, "lr": 0.01, "weight_decay": 0.1},
        {"lr": 0.1, "average": False},
        {"lr": 0.1, "compile": True, "momentum": 0.9},
    ],
    ids=["PPDAdam", "last iterate", "compiled"],
)
def test_other_steps_are_equal(options):
    stack, ledger, _ = at_once(3, plain_net, STAGES, **options)
    threads, other, _ = in_turn(3, plain_net, STAGES, **options)
    same(stack, threads)
    assert ledger == other


def test_averaged_gradients_are_equal():
    def train(group):
        opt = codauc.PPDSG(made(plain_net), codauc.MinMaxAUCLoss(pos_ratio=0.4).double(), lr=0.1)
        coda = codauc.CoDA(opt, group)
        loop(coda, STAGES[:1], sources[group.rank], gradients=True)
        return found(coda), ledger_of(coda)

    sources = batches(3)
    states, ledgers = zip(*codauc.launch(train, workers=3, simulate=True), strict=True)
    coda = stack_of(3, plain_net, lr=0.1)
    loop(coda, STAGES[:1], stacked(batches(3)), gradients=True)
    same(found(coda), {name: torch.stack([s[name] for s in states]) for name in states[0]})
    assert ledger_of(coda) == ledgers[0]


def shards_of_one_class():
    """Worker 0 has no positives; the others have both classes in every draw."""
    x, y = data()
    y = y.clone()
    y[:80], y[80::2], y[81::2] = False, True, False
    rows = torch.arange(SAMPLES).view(3, 80)
    return [
        Batches(x, y, batch_size=BATCH, worker=k, rows=r, balanced=0.5 if k else None)
        for k, r in enumerate(rows)
    ]


@pytest.mark.parametrize("dual", ["mean", "pooled"])
def test_a_worker_without_a_class_takes_no_part_as_in_turn(dual):
    stage = codauc.Stage(lr=0.1, steps=4, sync_every=2, dual_samples=18)

    def train(group):
        opt = codauc.PPDSG(made(plain_net), codauc.MinMaxAUCLoss(pos_ratio=0.4).double(), lr=0.1)
        coda = codauc.CoDA(opt, group, dual=dual)
        loop(coda, [stage], sources[group.rank])
        return opt.loss.alpha.item()

    sources = shards_of_one_class()
    with pytest.warns(UserWarning, match="worker 0 drew no positives"):
        alphas = codauc.launch(train, workers=3, simulate=True)
    coda = stack_of(3, plain_net, dual=dual, lr=0.1)
    with pytest.warns(UserWarning, match="worker 0 drew no positives"):
        loop(coda, [stage], stacked(shards_of_one_class()))
    assert coda.opt.loss.alpha.tolist() == pytest.approx(alphas, abs=1e-12)


def test_after_a_stage_all_workers_are_one_model_as_it_was_given():
    coda = stack_of(3, plain_net, lr=0.1)
    loop(coda, STAGES[:1], stacked(batches(3)))
    models = [coda.opt.model.unstack(k) for k in range(3)]
    x, _ = data()
    assert str(models[0]) == str(plain_net())
    for model in models:
        assert [*model.state_dict()] == [*plain_net().state_dict()]
        assert torch.equal(model(x), models[0](x))
    inputs = x[:12].view(3, 4, FEATURES)
    logits = coda.opt.model(inputs)
    for k, model in enumerate(models):
        torch.testing.assert_close(logits[:, k], model(inputs[k])[:, 0])
    models[0][0].weight.data.zero_()
    assert coda.opt.model.each[0].weight.all()  # copies


def test_a_loop_as_in_the_readme():
    x, y = data()
    stack = Stack(nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 1)), workers=4)
    shards = even_shards(len(y), 4, seed=0)
    source = stacked(
        [Batches(x.float()[s], y[s], batch_size=10, worker=k) for k, s in enumerate(shards)]
    )
    loss = stack.loss(pos_ratio=0.4)
    opt = codauc.PPDSG(stack, loss, lr=0.5, gamma=500.0, momentum=0.9)
    coda = codauc.CoDA(opt)
    for stage in codauc.geometric(lr=0.5, steps=60, stages=2, sync_every=8):
        for inputs, labels in coda.stage(stage, source):
            opt.zero_grad()
            loss(stack(inputs), labels).backward()
            opt.step()
    assert codauc.evaluate(stack.unstack(), x.float(), y).value > 0.6
    assert coda.group.ledger.rounds == 8 + 23


@pytest.mark.parametrize("net", [plain_net, Odd])
def test_a_saved_state_goes_on_bit_for_bit(net):
    def new():
        sources = batches(3)
        return stack_of(3, net, lr=0.1, momentum=0.9), sources

    def steps(coda, stage, source, count):
        part = coda.stage(stage, source)
        for _ in range(count):
            x, y = next(part)
            coda.opt.zero_grad()
            coda.opt.loss(coda.opt.model(x), y).backward()
            coda.opt.step()

    coda, sources = new()
    loop(coda, STAGES[:1], stacked(sources))
    steps(coda, STAGES[1], stacked(sources), 6)
    buffer = io.BytesIO()
    torch.save((coda.state_dict(), [s.state_dict() for s in sources]), buffer)
    loop(coda, STAGES[1:], stacked(sources))

    other, others = new()
    state, positions = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    other.load_state_dict(state)
    for source, position in zip(others, positions, strict=True):
        source.load_state_dict(position)
    loop(other, STAGES[1:], stacked(others))
    for name, value in found(coda).items():
        assert torch.equal(value, found(other)[name]), name
    assert ledger_of(coda) == ledger_of(other)


def test_gradients_add_up_and_stay_with_who_keeps_them():
    """Memory is used again from step to step, but never while a gradient lives there."""
    torch.manual_seed(0)
    stack, x = Stack(made(tied_net), workers=2), torch.randn(2, 5, FEATURES, dtype=DTYPE)

    def gradients(inputs):
        stack.zero_grad()
        stack(inputs).sum().backward()
        return [p.grad for p in stack.parameters()]

    first = gradients(x)
    kept = [g.clone() for g in first]
    second = [g.clone() for g in gradients(2 * x)]
    for before, now in zip(kept, first, strict=True):
        assert torch.equal(before, now)
    stack(x).sum().backward()
    for p, a, b in zip(stack.parameters(), kept, second, strict=True):
        torch.testing.assert_close(p.grad, a + b)
    del first
    by_torch = stack._mapped(x).sum()
    for a, b in zip(torch.autograd.grad(by_torch, list(stack.parameters())), kept, strict=True):
        torch.testing.assert_close(a, b)


def test_memory_of_gradients_is_used_again():
    stack, x = Stack(plain_net(), workers=2), torch.randn(2, 5, FEATURES)
    places = set()
    for _ in range(4):
        stack.zero_grad()
        stack(x).sum().backward()
        places.add(stack.each[0].weight.grad.data_ptr())
        other = torch.empty_like(stack.each[0].weight)  # would take memory that was given back
    del other
    assert len(places) == 1


@pytest.mark.parametrize("net", [plain_net, Odd])
def test_a_copy_is_another_stack(net):
    stack, x = Stack(made(net), workers=2), torch.randn(2, 5, FEATURES, dtype=DTYPE)
    other, before = copy.deepcopy(stack), stack(x)
    for tensor in (*stack.parameters(), *stack.buffers()):
        tensor.data.zero_()
    assert other(x).equal(before)


def test_the_given_model_stays_as_it_is():
    model = plain_net()
    before = copy.deepcopy(model.state_dict())
    stack = Stack(model, workers=3)
    for p in stack.parameters():
        p.data.add_(1)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_frozen_parameters_are_shared():
    stack = Stack(half_frozen(), workers=3)
    assert {n: (list(p.shape), p.requires_grad) for n, p in stack.named_parameters()} == {
        "each.0.weight": ([4, FEATURES], False),
        "each.0.bias": ([3, 4], True),
        "each.2.weight": ([3, 1, 4], True),
        "each.2.bias": ([3, 1], True),
    }


def test_workers_that_began_apart_get_the_weights_of_worker_0():
    stack = Stack(plain_net(), workers=3)
    stack.each[0].weight.data[1:].zero_()
    codauc.CoDA(codauc.PPDSG(stack, stack.loss(pos_ratio=0.4), lr=0.1))
    assert stack.each[0].weight[2].equal(stack.each[0].weight[0])
    assert stack.each[0].weight[0].all()


def test_a_round_of_numbers_that_are_not_finite_is_refused():
    coda, source = stack_of(3, plain_net, lr=0.1), stacked(batches(3))
    part = coda.stage(STAGES[0], source)
    for number, (x, y) in enumerate(part):
        coda.opt.zero_grad()
        coda.opt.loss(coda.opt.model(x), y).backward()
        if number == 3:
            coda.opt.model.each[0].weight.grad[1] = torch.nan
            with pytest.raises(ArithmeticError, match="not finite"):
                coda.opt.step()
            break
        coda.opt.step()
    assert coda.opt.model.each[0].weight[0].isfinite().all()


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(FEATURES, 1)

    def forward(self, x):
        return self.last(x + torch.randn_like(x))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), r"1 \(BatchNorm1d\) keeps running"),
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1)), r"1 \(Dropout\) draws at random"),
        (nn.LazyLinear(1), "weight has no shape yet"),
        (torch.zeros(3), "got Tensor, expected one worker's nn.Module"),
        (Stack(plain_net(), workers=2), "got Stack, expected one worker's nn.Module"),
    ],
    ids=["BatchNorm", "Dropout", "lazy", "no module", "stack"],
)
def test_models_that_cannot_be_stacked_are_refused(model, says):
    with pytest.raises(ValueError, match=says):
        Stack(model, workers=2)


def test_layers_that_neither_draw_nor_keep_are_fine():
    net = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 1)
    )
    stack, x = Stack(net, workers=2), torch.randn(2, 5, 3)
    torch.testing.assert_close(stack(x)[:, 1], net(x[1])[:, 0])


def test_chance_in_a_model_s_own_code_is_refused_when_it_runs():
    with pytest.raises(RuntimeError, match=r"cannot run for all workers at once.*codauc.launch"):
        Stack(Noisy(), workers=2)(torch.randn(2, 4, FEATURES))


@pytest.mark.parametrize("workers", [1, 0, 2.5, True])
def test_a_number_of_workers_below_2_is_refused(workers):
    with pytest.raises(ValueError, match="workers="):
        Stack(plain_net(), workers=workers)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"group": codauc.LocalGroup()}, "group='LocalGroup' with a Stack"),
        ({"compress": "int8"}, "compress='int8' with a Stack"),
        ({"delay": 2}, "delay=2 with a Stack"),
    ],
    ids=["group", "compress", "delay"],
)
def test_what_only_real_workers_can_do_is_refused(options, says):
    stack = Stack(plain_net(), workers=2)
    opt = codauc.PPDSG(stack, stack.loss(pos_ratio=0.4), lr=0.1)
    with pytest.raises(ValueError, match=says + r".*codauc\.launch"):
        codauc.CoDA(opt, **options)
    codauc.CoDA(opt)


def test_clipping_by_the_norm_of_all_workers_is_refused():
    stack = Stack(plain_net(), workers=2)
    opt = codauc.PPDSG(stack, stack.loss(pos_ratio=0.4), lr=0.1, max_grad_norm=1.0)
    with pytest.raises(ValueError, match=r"max_grad_norm=1.0 with a Stack"):
        codauc.CoDA(opt)


def test_averaging_inside_machines_is_refused():
    coda = stack_of(2, plain_net, lr=0.1)
    with pytest.raises(ValueError, match="local_every=2 with a Stack"):
        coda.stage(codauc.Stage(lr=0.1, steps=8, sync_every=4, local_every=2), [])
    assert coda.current is None


@pytest.mark.parametrize("ratio", [0.4, [0.4, 0.5, 0.4], None])
def test_a_loss_that_is_not_the_workers_is_refused(ratio):
    stack = Stack(plain_net(), workers=3)
    tasks = 3 if ratio is None else None
    opt = codauc.PPDSG(stack, codauc.MinMaxAUCLoss(ratio, tasks=tasks), lr=0.1)
    with pytest.raises(ValueError, match=r"expected one of 3.*stack\.loss"):
        codauc.CoDA(opt)


@pytest.mark.parametrize("ratio", [None, [0.4, 0.4]])
def test_a_loss_needs_one_ratio(ratio):
    with pytest.raises(ValueError, match="expected one number"):
        Stack(plain_net(), workers=2).loss(pos_ratio=ratio)


def test_what_was_shared_cannot_be_trained():
    stack = Stack(half_frozen(), workers=3)
    stack.each[0].weight.requires_grad_(True)
    opt = codauc.PPDSG(stack, stack.loss(pos_ratio=0.4), lr=0.1)
    with pytest.raises(ValueError, match=r"each\.0\.weight asks for gradients but was frozen"):
        codauc.CoDA(opt)


@pytest.mark.parametrize(
    "x", [torch.zeros(3, 4, FEATURES), torch.zeros(2), None], ids=["K", "flat", "none"]
)
def test_inputs_of_another_shape_are_refused(x):
    with pytest.raises(ValueError, match=r"expected \[2, B, ...\]"):
        Stack(plain_net(), workers=2)(x)


@pytest.mark.parametrize(
    "model",
    [nn.Linear(FEATURES, 2), nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, 2))],
    ids=["chain", "vmap"],
)
def test_several_outputs_are_refused(model):
    with pytest.raises(ValueError, match="expected one logit a sample"):
        Stack(model, workers=2)(torch.zeros(2, 5, FEATURES))


@pytest.mark.parametrize("worker", [-1, 2])
def test_a_worker_that_is_not_there_cannot_be_unstacked(worker):
    with pytest.raises(ValueError, match=f"worker={worker}: expected 0 to 1"):
        Stack(plain_net(), workers=2).unstack(worker)


def test_batches_of_several_lengths_are_refused():
    x, y = data()
    source = stacked(
        [Batches(x[:n], y[:n], batch_size=8, worker=k) for k, n in enumerate((16, 16, 12))]
    )
    next(source)
    with pytest.raises(ValueError, match=r"worker 0 drew 8 samples and worker 2 4.*one length"):
        next(source)


def copied_batches(workers):
    """As `batches`, but of tensors of their own."""
    return [
        Batches(b.x.x[b.rows], b.y[b.rows, None], batch_size=BATCH, seed=2, worker=k)
        for k, b in enumerate(batches(workers))
    ]


@pytest.mark.parametrize("make", [batches, copied_batches])
def test_stacked_batches_are_the_workers_own(make):
    ones, others = make(3), make(3)
    source = stacked(ones)
    for turn in range(60):
        drawn = [next(b) for b in others]
        if turn % 7 == 3:  # drawn past `stacked`
            for one, (x, _) in zip(ones, drawn, strict=True):
                assert next(one)[0].equal(x)
            continue
        x, y = next(source)
        assert x.equal(torch.stack([x for x, _ in drawn]))
        assert y.equal(torch.stack([y.flatten() for _, y in drawn], 1))
        assert [b.state_dict() for b in ones] == [b.state_dict() for b in others]
        if turn == 30:
            for b in (*ones, *others):
                b.load_state_dict({**b.state_dict(), "epoch": 1, "index": BATCH})


def test_shards_of_one_tensor_of_several_lengths_are_refused():
    x, y = data()
    rows = [torch.arange(8), torch.arange(7)]
    source = stacked([Batches(x, y, batch_size=4, rows=r, worker=k) for k, r in enumerate(rows)])
    next(source)
    with pytest.raises(ValueError, match=r"worker 0 drew 4 samples and worker 1 3.*one length"):
        next(source)


def test_several_labels_a_sample_are_refused():
    x, y = data()
    pairs = torch.stack((y, ~y), 1)
    source = stacked([Batches(x, pairs, batch_size=4, worker=k) for k in range(2)])
    with pytest.raises(ValueError, match=r"labels of shape \[4, 2\] for worker 0: expected one"):
        next(source)


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        ([iter([])], "of 1 workers: expected those of at least 2"),
        ([iter([]), [(1, 2)]], "worker 1: got list, expected an endless iterator"),
    ],
)
def test_sources_that_cannot_be_stacked_are_refused(sources, says):
    with pytest.raises(ValueError, match=says):
        stacked(sources)


def test_sources_that_end_are_refused():
    source = stacked([iter([(torch.zeros(2, 1), torch.zeros(2))]) for _ in range(2)])
    next(source)
    with pytest.raises(ValueError, match="worker 0 ended"):
        next(source)


@pytest.mark.parametrize("samples", [1, 4, 6])
def test_inputs_of_more_dimensions_go_to_their_own_worker(samples):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Flatten(), nn.Linear(24, 1)).double()
    stack = codauc.Stack(model, workers=4)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.add_(torch.randn_like(parameter))
    x = torch.randn(4, samples, 3, 5, dtype=torch.float64)
    for k in range(4):
        assert (stack(x)[:, k] - stack.unstack(k)(x[k]).flatten()).abs().max() < 1e-12
