"""Claims about rounds that are compressed, delayed, or made inside a machine first."""

import itertools
import math

import pytest
import torch
from torch import nn

import codauc
import vectors
from codauc.algorithm.coda_state import CoDAState
from codauc.algorithm.compression import Compressed
from codauc.algorithm.rounds import NotFiniteError

DTYPE = torch.float64
STAGE = codauc.Stage(0.3, 22, 5, 8)


def net(seed=0, width=6, dtype=DTYPE):
    torch.manual_seed(seed)
    layers = [nn.Linear(3, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 1)]
    return nn.Sequential(*layers).to(dtype)


def batches(rank, dtype=DTYPE, start=0):
    """Endless batches of a worker, from a position on."""
    for index in itertools.count(start):
        generator = torch.Generator().manual_seed(1000 * rank + index)
        y = torch.arange(6) % 3 == 0
        yield torch.randn(6, 3, dtype=dtype, generator=generator) + (1 + rank) * y[:, None], y


class Run:
    """One worker's training."""

    def __init__(self, group=None, dtype=DTYPE, ratio=1 / 3, watch=None, opt=None, **coda):
        self.model = net(dtype=dtype)
        self.loss = codauc.MinMaxAUCLoss(pos_ratio=ratio)
        self.loss.to(torch.promote_types(dtype, torch.float32))
        self.opt = codauc.PPDSG(self.model, self.loss, lr=0.3, gamma=2.0, **(opt or {}))
        self.rank = 0 if group is None else group.rank
        if watch is not None:
            self.opt.register_step_post_hook(lambda *_: watch(self))
        self.coda = codauc.CoDA(self.opt, group, **coda)
        self.position, self.dtype = 0, dtype

    def source(self):
        for batch in batches(self.rank, self.dtype, self.position):
            self.position += 1
            yield batch

    def train(self, stage=STAGE, leave_at=None):
        for x, y in self.coda.stage(stage, self.source()):
            self.opt.zero_grad()
            self.loss(self.model(x), y).backward()
            self.opt.step()
            if self.opt.steps == leave_at:
                return self
        return self

    @property
    def vector(self):
        return vectors.state(self.opt)


def simulate(function, workers, **options):
    return codauc.launch(function, workers=workers, simulate=True, **options)


def result(stage=STAGE, workers=3, machines=1, **options):
    """The final vectors of all workers."""
    return simulate(lambda g: Run(g, **options).train(stage).vector, workers, machines=machines)


# Delay


def by_hand(stage, workers, delay, machine=None):
    """The algorithm in a plain loop over optimizers, without engine, group or message."""
    runs = [Run() for _ in range(workers)]
    for rank, run in enumerate(runs):
        run.rank = rank
        run.opt.begin_stage(stage.lr)
    sources = [run.source() for run in runs]
    steered, size = runs[0].opt.trained.steered_size, runs[0].opt.trained.weight_size + 2
    machine = 1 if machine is None else machine
    kept = common = None  # the round under way; the mean of the last one
    total = [torch.zeros(size, dtype=DTYPE) for _ in runs]  # of the iterates' w, a and b
    for step in range(1, stage.steps + 1):
        for run, source in zip(runs, sources, strict=True):
            x, y = next(source)
            run.opt.zero_grad()
            run.loss(run.model(x), y).backward()
            type(run.opt).step.__wrapped__(run.opt)  # without the engine's hooks
        for run, iterates in zip(runs, total, strict=True):
            iterates += run.vector[:size]
        if kept is not None and step in (kept[0] + delay, stage.steps):
            begun, common, bases = kept
            for run, base, iterates in zip(runs, bases, total, strict=True):
                now = run.vector
                iterates += (step - begun) * (common - base)[:size]
                run.opt.trained.unpack(
                    torch.cat([now[:steered] + (common - base)[:steered], common[steered:]])
                )
            kept = None
        outer = step % stage.sync_every == 0 and step < stage.steps
        inner = stage.local_every and step % stage.local_every == 0 and step < stage.steps
        if (inner or (stage.local_every and outer)) and (delay or not outer):
            for first in range(0, workers, machine):
                mine = runs[first : first + machine]
                mean = sum(run.vector for run in mine) / machine
                for run in mine:
                    run.opt.trained.unpack(mean)
        if outer:
            sent = [run.vector for run in runs]
            mean = sum(sent) / workers
            if delay:
                share = machine / workers if common is not None else 1
                bases = [x if common is None else common + share * (x - common) for x in sent]
                for run, x, base in zip(runs, sent, bases, strict=True):
                    run.opt.trained.unpack(torch.cat([base[:steered], x[steered:]]))
                kept = (step, mean, bases)
            else:
                for run in runs:
                    run.opt.trained.unpack(mean)
    return sum(total) / workers / stage.steps


@pytest.mark.parametrize("delay", [0, 1, 3, 4])
def test_the_own_part_of_a_mean_takes_effect_at_once_and_the_others_part_delay_steps_later(delay):
    expected = by_hand(STAGE, 3, delay)
    for vector in result(delay=delay):
        assert (vector[: len(expected)] - expected).abs().max() < 1e-12


def test_a_delayed_correction_keeps_variances_positive():
    def watch(run):
        assert run.model[1].running_var.min() > 0

    def work(group):
        run = Run(group, delay=9, watch=watch)
        with torch.no_grad():  # one worker's variance is far above the others'
            run.model[1].running_var.fill_(1000.0 if group.rank == 0 else 1e-3)
        run.train(codauc.Stage(0.3, 40, 10, 8))

    simulate(work, 3)


class Lost:
    """Collectives under way that fail."""

    def advance(self):
        raise LookupError

    land = advance


def test_a_delayed_round_can_be_taken_back_when_it_fails_and_in_a_saved_state():
    def work(group):
        seen = []
        run = Run(group, delay=4, watch=lambda run: seen.append(run.vector))
        run.train(leave_at=10)  # the second round is under way
        steered = run.opt.trained.steered_size
        expected = seen[-1][:steered]
        assert (run.vector[:steered] - expected).abs().max() > 1e-6
        saved = CoDAState.unpack(run.coda.state_dict())
        saved.take_back_round()
        run.coda.averager.flight = Lost()
        with pytest.raises(LookupError):
            run.coda.state_dict()
        assert not run.coda.under_way
        other = Run(group)
        other.model.load_state_dict(saved.model)
        other.loss.load_state_dict(saved.optimizer.loss)
        for found in (run, other):
            assert (found.vector[:steered] - expected).abs().max() < 1e-12

    simulate(work, 3)


def test_labels_seen_while_a_round_is_under_way_are_counted_once():
    def work(group):
        run = Run(group, ratio=None, delay=3)
        run.train(codauc.Stage(0.3, 20, 5, 8))
        return run.loss.counts.clone(), run.loss.seen.clone()

    results = simulate(work, 3)
    total = sum(seen for _, seen in results)
    # the estimate of alpha after the closing round counts no labels
    for counts, _ in results:
        assert torch.equal(counts, total)


# Compression


@pytest.mark.parametrize(
    ("compress", "limit"), [("bf16", 0.51), ("int8", 0.27), ("int4", 0.14), ("int2", 0.08)]
)
@pytest.mark.parametrize("workers", [2, 3, 4, 16])
@pytest.mark.parametrize("kind", [codauc.PPDSG, codauc.PPDAdam])
def test_compressed_rounds_send_so_many_of_the_plain_bytes(compress, limit, workers, kind):
    def sent(group, **options):
        model = nn.Linear(2000, 40)
        opt = kind(model, codauc.MinMaxAUCLoss(pos_ratio=[0.5] * 40))
        engine = codauc.CoDA(opt, group, **options)
        before = group.ledger.bytes_sent
        engine.averager.round()
        assert group.ledger.rounds == 1
        return group.ledger.bytes_sent - before

    plain = simulate(sent, workers)
    packed = simulate(lambda group: sent(group, compress=compress), workers)
    assert max(a / b for a, b in zip(packed, plain, strict=True)) <= limit


@pytest.mark.parametrize(("compress", "gain"), [("bf16", 100), ("int8", 100), ("int4", 20)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_all_workers_get_the_same_and_what_is_lost_comes_with_later_rounds(compress, gain, dtype):
    """Rounds without steps in between come ever nearer to the exact mean."""

    def work(group):
        run = Run(group, dtype=dtype, compress=compress)
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.copy_(torch.randn(parameter.shape) * (1 + group.rank))
        mine = run.vector.double()
        means = []
        for _ in range(4):
            run.coda.averager.round()
            means.append(run.vector.double())
        return mine, means

    results = simulate(work, 3)
    exact = sum(mine for mine, _ in results) / 3
    for _, means in results:
        for mean, other in zip(means, results[0][1], strict=True):
            assert torch.equal(mean, other)
        errors = [(mean - exact).abs().max().item() for mean in means]
        assert errors[0] > 0
        if dtype != torch.bfloat16:
            assert errors[-1] < errors[0] / gain


@pytest.mark.parametrize("compress", ["bf16", "int8", "int4", "int2"])
def test_all_but_the_weights_travels_exactly(compress):
    def work(group, **options):
        run = Run(group, dtype=torch.float32, ratio=None, **options)
        run.opt.trained.unpack(torch.randn(run.opt.trained.size) * 100**group.rank)
        run.loss.seen += torch.tensor([[5000 + group.rank], [10**9]])
        run.coda.averager.round()
        return run.vector[run.opt.trained.weight_size :], run.loss.counts

    plain, packed = simulate(work, 3), simulate(lambda g: work(g, compress=compress), 3)
    for (vector, counts), (other, other_counts) in zip(plain, packed, strict=True):
        assert torch.allclose(vector, other, rtol=1e-6, atol=0)
        assert torch.equal(counts, other_counts)
        assert counts.flatten().tolist() == [15003, 3 * 10**9]


@pytest.mark.parametrize(
    ("compress", "octaves"), [("bf16", 0.01), ("int8", 0.05), ("int4", 0.5), ("int2", 1.5)]
)
def test_moments_come_as_the_mean_of_all_workers_within_a_factor(compress, octaves):
    """And the same on all of them, with all else as exact as without moments."""

    def work(group, **options):
        torch.manual_seed(group.rank)
        model, loss = nn.Linear(500, 2), codauc.MinMaxAUCLoss(pos_ratio=[0.5, 0.5])
        opt = codauc.PPDAdam(model, loss)
        coda = codauc.CoDA(opt, group, **options)
        (second,) = opt.moments([model.weight])
        second.copy_(torch.exp2(3 * torch.randn(2, 500)))
        loss.a.fill_(group.rank)
        coda.averager.round()
        return second.clone(), loss.a.clone()

    plain, packed = simulate(work, 3), simulate(lambda g: work(g, compress=compress), 3)
    for (exact, a), (found, other_a) in zip(plain, packed, strict=True):
        assert torch.equal(found, packed[0][0])
        assert torch.allclose(a, other_a)
        assert (found / exact).log2().abs().mean() < octaves


def test_weights_in_several_dtypes_and_groups_are_all_sent():
    def work(group):
        model = nn.Sequential(nn.Linear(3, 300), nn.Linear(300, 1).to(torch.float64))
        loss = codauc.MinMaxAUCLoss(pos_ratio=0.5)
        groups = [{"params": [p]} for p in model.parameters()]
        opt = codauc.PPDSG(model, loss, params=groups)
        engine = codauc.CoDA(opt, group, compress="int8")
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.fill_(number + group.rank)
        engine.averager.round()
        return [parameter.mean().item() for parameter in model.parameters()]

    for means in simulate(work, 3):
        assert means == pytest.approx([1, 2, 3, 4], rel=0.01)


@pytest.mark.parametrize("compress", ["bf16", "int8", "int4", "int2"])
def test_compressed_training_ends_near_the_plain_one(compress):
    stage = codauc.Stage(0.3, 60, 5, 8)
    plain, packed = result(stage)[0], result(stage, compress=compress)[0]
    assert 0 < (plain - packed).abs().max() < 0.03 * plain.abs().max()


class Failing(codauc.Group):
    """A group in which the n-th collective fails, after having spoilt its answer."""

    def __init__(self, group, fail_at):
        self.inner, self.left = group, fail_at
        self.rank, self.size, self.ledger = group.rank, group.size, group.ledger

    def start(self, call):
        self.left -= 1
        if self.left == 0:
            call.out.fill_(-1)
            raise LookupError
        return self.inner.start(call)

    def machine(self):
        return self.inner.machine()


@pytest.mark.parametrize("fail_at", [1, 2])
def test_a_failed_compressed_round_leaves_state_and_errors_and_can_be_repeated(fail_at):
    def work(group, fail):
        run = Run(group, compress="int8")
        run.train(leave_at=9)
        before = run.coda.state_dict()
        if fail:
            run.coda.averager.encoding.group = Failing(group, fail_at)
            with pytest.raises(LookupError):
                run.coda.averager.round()
            after = run.coda.state_dict()
            for name in ("error", "reference", "owner_error"):
                saved = [s["averager"]["encoding"][name] for s in (before, after)]
                assert torch.equal(*saved)
            assert all(torch.equal(before["model"][k], v) for k, v in after["model"].items())
            run.coda.averager.encoding.group = group
        return run.train().vector

    for failed, plain in zip(
        simulate(lambda g: work(g, True), 3), simulate(lambda g: work(g, False), 3), strict=True
    ):
        assert torch.equal(failed, plain)


# Checkpoints


@pytest.mark.parametrize(
    "options",
    [
        {"compress": "int8"},
        {"compress": "int2", "delay": 3},
        {"compress": "bf16", "delay": 3},
        {"delay": 4},
        {"compress": "int8", "delay": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("leave_at", [3, 5, 6, 7, 8, 9, 10, 21])
def test_a_state_saved_at_any_step_goes_on_bit_for_bit(options, leave_at):
    """Also while a round is under way, and with what compression lost."""

    def interrupted(group):
        first = Run(group, **options).train(leave_at=leave_at)
        state = first.coda.state_dict()
        second = Run(group, **options)
        second.coda.load_state_dict(state)
        second.position = first.position
        return second.train().train(codauc.Stage(0.1, 12, 5, 8)).vector

    def whole(group):
        return Run(group, **options).train().train(codauc.Stage(0.1, 12, 5, 8)).vector

    for mine, theirs in zip(simulate(interrupted, 3), simulate(whole, 3), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("compress", ["bf16", "int8", "int4", "int2"])
def test_a_state_with_compressed_moments_goes_on_bit_for_bit(compress):
    def work(group, leave):
        parts = []
        for _ in range(2):
            torch.manual_seed(0)
            model, loss = nn.Linear(3, 1), codauc.MinMaxAUCLoss(pos_ratio=1 / 3)
            opt = codauc.PPDAdam(model, loss, lr=0.1)
            parts.append((model, loss, opt, codauc.CoDA(opt, group, compress=compress)))
        source, (first, second) = batches(group.rank, torch.float32), parts
        for model, loss, opt, coda in (first, second) if leave else (second,):
            if coda is second[3] and leave:
                coda.load_state_dict(first[3].state_dict())
            for x, y in coda.stage(STAGE, source):
                opt.zero_grad()
                loss(model(x), y).backward()
                opt.step()
                if leave and coda is first[3] and opt.steps == 12:
                    break
        return vectors.state(second[2])

    interrupted, whole = (simulate(lambda g, b=leave: work(g, b), 3) for leave in (True, False))
    for mine, theirs in zip(interrupted, whole, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("saved", "here", "workers", "message"),
    [
        ({}, {"compress": "int8"}, 3, "saved with compress=None, here 'int8'"),
        ({"compress": "int8"}, {"compress": "bf16"}, 3, "saved with compress='int8', here 'bf16'"),
        ({"compress": "int8"}, {}, 3, "saved with compress='int8', here None"),
        ({"compress": "int8"}, {"compress": "int8"}, 2, "saved with workers=3, here 2"),
        ({"delay": 4}, {"delay": 4}, 2, "saved with workers=3, here 2"),
    ],
)
def test_a_state_of_another_kind_of_engine_is_refused(saved, here, workers, message):
    def save(group):
        return Run(group, **saved).train(leave_at=6).coda.state_dict()

    state = simulate(save, 3)[0]

    def load(group):
        run = Run(group, **here)
        before = run.vector
        with pytest.raises(ValueError, match=message):
            run.coda.load_state_dict(state)
        assert torch.equal(run.vector, before)

    simulate(load, workers)


def test_a_plain_state_can_be_loaded_by_any_number_of_workers():
    state = simulate(lambda g: Run(g).train(leave_at=6).coda.state_dict(), 3)[0]

    def load(group):
        run = Run(group)
        run.coda.load_state_dict(state)
        run.train()

    simulate(load, 2)


# Inside a machine


@pytest.mark.parametrize("delay", [0, 3])
def test_inner_rounds_average_each_machine_and_outer_rounds_all(delay):
    stage = codauc.Stage(0.3, 22, 6, 8, local_every=2)
    expected = by_hand(stage, 4, delay, machine=2)
    for vector in result(stage, workers=4, machines=2, delay=delay):
        assert (vector[: len(expected)] - expected).abs().max() < 1e-12
    flat = by_hand(codauc.Stage(0.3, 22, 6, 8), 4, delay)
    assert (flat - expected).abs().max() > 1e-6


def test_after_an_inner_round_a_machine_agrees_and_machines_differ():
    def work(group):
        run = Run(group).train(codauc.Stage(0.3, 20, 8, 8, local_every=4), leave_at=4)
        return run.vector, group.ledger.calls("inner"), group.ledger.rounds

    vectors, inner, rounds = zip(*simulate(work, 4, machines=2), strict=True)
    assert torch.equal(vectors[0], vectors[1])
    assert torch.equal(vectors[2], vectors[3])
    assert not torch.equal(vectors[0], vectors[2])
    assert inner == (1, 1, 1, 1)
    assert rounds == (0, 0, 0, 0)


def test_inner_rounds_are_counted_apart_and_send_nothing_across():
    def work(group):
        Run(group).train(codauc.Stage(0.3, 20, 10, 8, local_every=2))
        return group.ledger

    for ledger in simulate(work, 4, machines=2):
        assert ledger.rounds == 2
        assert ledger.calls("inner") == 8  # at 2, 4, 6, 8 and 12, 14, 16, 18


# The memory of the state


def test_parameters_keep_their_identity_and_memory_in_a_round():
    def work(group):
        run = Run(group)
        parameters = list(run.model.parameters())
        before = [parameter.data_ptr() for parameter in parameters]
        for _ in range(6):
            run.coda.averager.round()
            run.opt.trained.check()
        assert [parameter.data_ptr() for parameter in parameters] == before
        assert all(a is b for a, b in zip(parameters, run.model.parameters(), strict=True))

    simulate(work, 2)


def test_a_graph_from_before_a_round_is_refused():
    def work(group):
        run = Run(group)
        x, y = next(run.source())
        loss = run.loss(run.model(x), y)
        run.coda.averager.round()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    simulate(work, 2)


def test_compressed_encoding_is_off_for_a_single_worker():
    assert not isinstance(Run(compress="int8").coda.averager.encoding, Compressed)


@pytest.mark.parametrize("name", ["a", "alpha"])
def test_a_single_worker_does_not_close_a_stage_with_numbers_that_are_not_finite(name):
    run = Run()
    with torch.no_grad():
        getattr(run.loss, name).fill_(math.inf)
    with pytest.raises(NotFiniteError, match="the worker are not finite"):
        run.coda.averager.round(closing=True)
