"""Claims about the engine: rounds, what they average, leaving early, saving, and errors."""

import contextlib
import copy
import io
import itertools
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

import codauc
import vectors

DTYPE = torch.float64
BATCH = 4


class Source:
    """Endless batches of one worker, each a function of (worker, position) alone."""

    def __init__(self, rank=0, position=0, dtype=DTYPE):
        self.rank, self.position, self.dtype = rank, position, dtype

    def __iter__(self):
        return self

    def __next__(self):
        x, y = self.at(self.position)
        self.position += 1
        return x, y

    def at(self, position):
        generator = torch.Generator().manual_seed(1000 * self.rank + position)
        y = torch.arange(BATCH) % (2 + self.rank % 2) == 0
        x = torch.randn(BATCH, 3, dtype=DTYPE, generator=generator) + y[:, None] + self.rank
        return x.to(self.dtype), y


def norm_net():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))


def plain_net():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def make(
    group=None, net=norm_net, *, pos_ratio=0.4, dtype=DTYPE, watch=None, dual="mean", **options
):
    """A worker's model, loss, optimizer and engine; `watch(run)` sees each step before a round."""
    model = net().to(dtype)
    loss = codauc.MinMaxAUCLoss(pos_ratio)
    loss = loss.double() if dtype == torch.float64 else loss
    options = {"lr": 0.1, "gamma": 2.0, **options}
    opt = codauc.PPDSG(model, loss, **options)
    run = SimpleNamespace(model=model, loss=loss, opt=opt)
    if watch is not None:
        opt.register_step_post_hook(lambda *_: watch(run))
    run.coda = codauc.CoDA(opt, group, dual=dual)
    return run


def step(run, batch):
    x, y = batch
    run.opt.zero_grad()
    run.loss(run.model(x), y).backward()
    run.opt.step()


def train(run, stages, source):
    for stage in stages:
        for batch in run.coda.stage(stage, source):
            step(run, batch)


def state_of(run):
    """Everything a worker computes with, as copies."""
    state = {**run.model.state_dict(), **{f"loss.{k}": v for k, v in run.loss.state_dict().items()}}
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def shared(state):
    """What the workers have in common after a round."""
    return {k: v for k, v in state.items() if k not in ("loss.seen", "loss.reported")}


def same(first, second):
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def launch(function, workers, **options):
    return codauc.launch(function, workers=workers, simulate=True, **options)


# The start


class Mixed(nn.Module):
    """Trained, frozen, float, integer and hidden tensors."""

    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        nn.init.normal_(self.norm.running_mean)
        self.body.bias.requires_grad_(False)
        self.register_buffer("scale", torch.rand(2) + 1)
        self.register_buffer("order", torch.randperm(1000))
        self.register_buffer("flags", torch.rand(9) > 0.5)
        self.register_buffer("hidden", torch.rand(3), persistent=False)

    def forward(self, x):
        return self.head(self.norm(self.body(x))) * self.scale.sum()


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_start_from_worker_0s_weights_buffers_and_frozen_parameters(workers):
    def work(group):
        torch.manual_seed(group.rank)
        model = Mixed()
        loss = codauc.MinMaxAUCLoss(pos_ratio=0.4)
        nn.init.constant_(loss.alpha, float(group.rank))
        opt = codauc.PPDSG(model, loss)
        tensors = [*model.parameters(), *model.buffers(), loss.a, loss.b, loss.alpha]
        before = [tensor.detach().clone() for tensor in tensors]
        codauc.CoDA(opt, group)
        frozen = not model.body.bias.requires_grad
        return before, [tensor.detach().clone() for tensor in tensors], frozen

    results = launch(work, workers)
    expected = results[0][0]
    for rank, (before, after, frozen) in enumerate(results):
        assert frozen
        assert all(torch.equal(a, b) for a, b in zip(after, expected, strict=True))
        if rank:
            assert not any(torch.equal(before[i], expected[i]) for i in (0, 1, -1))


# Rounds


@pytest.mark.parametrize("workers", [2, 3])
def test_after_each_round_workers_are_bit_equal_and_between_rounds_they_differ(workers):
    stage = codauc.Stage(lr=0.2, steps=7, sync_every=3, dual_samples=8)

    def work(group):
        torch.manual_seed(group.rank)
        run, states = make(group, pos_ratio=None), []
        for batch in run.coda.stage(stage, Source(group.rank)):
            step(run, batch)
            states.append(shared(state_of(run)))
        return [*states, shared(state_of(run))]

    first, *others = launch(work, workers)
    for other in others:
        for t, (mine, theirs) in enumerate(zip(first, other, strict=True), 1):
            if t in (3, 6, 8):  # two rounds, and the end of the stage
                assert same(mine, theirs), t
                continue
            for name in ("0.weight", "3.bias", "1.running_mean", "loss.a", "loss.b", "loss.alpha"):
                assert not torch.equal(mine[name], theirs[name]), (t, name)


@pytest.mark.parametrize("workers", [2, 3])
def test_state_after_a_round_is_the_mean_of_the_states_before_it(workers):
    stage = codauc.Stage(lr=0.2, steps=5, sync_every=2, dual_samples=8)

    def work(group):
        before, after = [], []
        run = make(group, watch=lambda run: before.append(state_of(run)))
        for batch in run.coda.stage(stage, Source(group.rank)):
            step(run, batch)
            after.append(state_of(run))
        return before, after

    results = launch(work, workers)
    for t in (1, 3):
        for name, tensor in results[0][1][t].items():
            if not tensor.is_floating_point():
                continue
            mean = torch.stack([before[t][name] for before, _ in results]).mean(0)
            assert torch.allclose(tensor, mean, rtol=0, atol=1e-14), name
    for t in (0, 2, 4):
        for before, after in results:
            assert same(before[t], after[t])


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("workers", [1, 3])
def test_stage_returns_the_mean_of_all_workers_results(workers, average):
    stage = codauc.Stage(lr=0.2, steps=5, sync_every=2, dual_samples=8)

    def work(group):
        iterates = []
        run = make(group, average=average, watch=lambda run: iterates.append(state_of(run)))
        train(run, [stage], Source(group.rank))
        return iterates, state_of(run)

    results = launch(work, workers)
    names = [n for n in results[0][1] if n.split(".")[-1] in ("weight", "bias", "a", "b")]
    assert len(names) == 8
    for name in names:
        steps = [iterates if average else iterates[-1:] for iterates, _ in results]
        expected = torch.stack([s[name] for per_worker in steps for s in per_worker]).mean(0)
        for _, final in results:
            assert torch.allclose(final[name], expected, rtol=0, atol=1e-14), name
            assert torch.equal(final[name], results[0][1][name])


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, DTYPE])
def test_label_counts_of_all_workers_are_exact_after_each_round(workers, dtype):
    huge = torch.tensor([[2**24 + 1], [2**31 + 4095]])
    stages = [codauc.Stage(0.1, 4, 3, 8), codauc.Stage(0.1, 2, 8, 8)]

    def work(group):
        run = make(group, plain_net, pos_ratio=None, dtype=dtype)
        run.loss.seen += huge + group.rank
        history = []
        for stage in stages:
            for batch in run.coda.stage(stage, Source(group.rank, dtype=dtype)):
                step(run, batch)
                history.append((run.loss.seen.clone(), run.loss.counts.clone()))
            history.append((run.loss.seen.clone(), run.loss.counts.clone()))
            p = run.loss.pos_ratio.item()
        return history, p

    results = launch(work, workers)
    for t in (2, 4, 7):  # the round of the first stage, and both ends
        total = sum(history[t][0] for history, _ in results)
        for history, _ in results:
            assert torch.equal(history[t][1], total), t
    pos, neg = total.flatten().tolist()
    for _, p in results:
        assert p == pytest.approx((pos + 0.5) / (pos + neg + 1), rel=1e-6)


@pytest.mark.parametrize("workers", [1, 3])
def test_estimated_ratio_is_that_of_all_workers_labels_after_the_stage(workers):
    def work(group):
        run = make(group, plain_net, pos_ratio=None)
        train(run, [codauc.Stage(0.1, 5, 2, 8)], Source(group.rank))
        return run.loss.pos_ratio.item()

    labels = torch.cat([Source(k).at(t)[1] for k in range(workers) for t in range(5)])
    expected = (labels.sum().item() + 0.5) / (len(labels) + 1)
    assert launch(work, workers) == [expected] * workers


@pytest.mark.parametrize(
    ("steps", "sync_every"), [(1, 1), (7, 1), (7, 2), (7, 3), (6, 3), (7, 7), (7, 8), (7, 1000)]
)
def test_a_stage_is_ceil_t_over_i_rounds_with_dual_estimates_apart(steps, sync_every):
    stages = codauc.constant(0.1, steps, stages=2, sync_every=sync_every, dual_samples=8)

    def work(group):
        run = make(group)
        counts = []
        for stage in stages:
            train(run, [stage], Source(group.rank))
            counts.append((group.ledger.rounds, group.ledger.calls("dual")))
        return counts, group.ledger, run.coda.averager.message.vector.nbytes

    expected = -(-steps // sync_every)
    assert stages[0].rounds == expected
    for counts, ledger, _ in launch(work, 2):
        assert counts == [(expected, 1), (2 * expected, 2)]
        size = 4 * 4 + 2 * 4 + 5 + 2 * 4 + 3  # layers, a b alpha
        size += 2 * 2 + 2 + 4  # digits, seconds, three wishes, whether all is finite
        tally = ledger.tallies["round"]
        assert tally.sent == tally.received == 2 * expected * size * 8


def test_a_single_worker_sends_nothing():
    run = make()
    train(run, [codauc.Stage(0.1, 5, 2, 8)], Source())
    assert run.coda.group.ledger.tallies == {}
    assert run.coda.stages_done == 1


# Layers with running statistics


@pytest.mark.parametrize("momentum", [0.1, 0.3, None])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_batchnorm_statistics_are_those_of_update_bn_on_all_workers_batches(workers, momentum):
    def work(group):
        run = make(group)
        run.model[1].momentum = momentum
        train(run, [codauc.Stage(0.1, 5, 2, 10)], Source(group.rank))
        return run.model

    drawn = [Source(k).at(t)[0] for k in range(workers) for t in range(5, 8)]
    for model in launch(work, workers):
        expected = copy.deepcopy(model)
        update_bn(drawn, expected)
        assert model[1].momentum == momentum
        assert model.training
        for name in ("running_mean", "running_var"):
            mine, theirs = getattr(model[1], name), getattr(expected[1], name)
            assert torch.allclose(mine, theirs, rtol=0, atol=1e-10), name
        assert model[1].num_batches_tracked == 3


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_layers_in_eval_mode_keep_their_statistics(workers):
    def work(group):
        run = make(group)
        norm = run.model[1]
        nn.init.normal_(norm.running_mean)
        group.broadcast_(norm.running_mean, "start")
        norm.eval()
        before = copy.deepcopy(norm.state_dict())
        train(run, codauc.constant(0.1, 5, 2, 2, dual_samples=8), Source(group.rank))
        return before, norm

    for before, norm in launch(work, workers):
        assert norm.momentum == 0.1
        assert not norm.training
        for name in ("running_mean", "running_var"):
            change = (getattr(norm, name) - before[name]).abs().max()
            assert change <= (0 if workers < 3 else 1e-15), name  # thirds are rounded
        assert norm.num_batches_tracked == before["num_batches_tracked"]


def test_instance_norm_keeps_statistics_of_the_data():
    norm = nn.InstanceNorm1d(3, track_running_stats=True)
    run = make(net=lambda: nn.Sequential(norm, nn.Flatten(), nn.Linear(15, 1)))
    x = torch.randn(BATCH, 3, 5, dtype=DTYPE) + 2
    train(run, [codauc.Stage(0.1, 5, 2, 8)], [(x, torch.tensor([0, 1, 0, 1]))])
    assert norm.running_mean.min() > 0.5


@pytest.mark.parametrize("workers", [1, 3])
def test_weights_in_bf16_train_end_to_end(workers):
    dtype = torch.bfloat16

    def work(group):
        torch.manual_seed(group.rank)
        run = make(group, dtype=dtype, pos_ratio=None, momentum=0.9)
        first = state_of(run)
        train(run, codauc.constant(0.1, 20, 2, 3, dual_samples=8), Source(group.rank, dtype=dtype))
        return first, state_of(run), [kept["average"].dtype for kept in run.opt.state.values()]

    results = launch(work, workers)
    for first, last, averages in results:
        assert same(shared(last), shared(results[0][1]))
        assert last["0.weight"].dtype == last["1.running_var"].dtype == dtype
        assert not torch.equal(first["0.weight"], last["0.weight"])
        assert set(averages) == {torch.float32}
        assert last["loss.alpha"].dtype == torch.float32
        assert last["loss.alpha"] < 0
        assert all(t.isfinite().all() for t in last.values() if t.is_floating_point())


# Leaving early, and going on

STAGES = [codauc.Stage(0.2, 5, 2, 8), codauc.Stage(0.1, 3, 3, 8)]
STEPS = sum(stage.steps for stage in STAGES)
SETTINGS = {"pos_ratio": None, "momentum": 0.9, "weight_decay": 0.01}


class StopTrainingError(Exception):
    """What the body of a loop may raise."""


class LostError(Exception):
    """What a collective may raise."""


def finish(run, source):
    train(run, STAGES[run.coda.stages_done :], source)
    spent = [source.position, run.coda.group.ledger.rounds]
    return {**state_of(run), "spent": torch.tensor(spent)}


def saved(state):
    """The state after a trip through a file, without code in it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def renewed(run, group):
    """Brand-new objects that load what the old ones saved."""
    state = saved(run.coda.state_dict())
    torch.manual_seed(77 + group.rank)
    fresh = make(group, **SETTINGS)
    assert not torch.equal(fresh.model[0].weight, run.model[0].weight)
    fresh.coda.load_state_dict(state)
    return fresh


def uninterrupted(workers):
    return launch(lambda group: finish(make(group, **SETTINGS), Source(group.rank)), workers)


def leave(run, source, steps, how):
    """Train and leave the loop after so many steps in all: before the next one, or right after."""
    done = 0
    for stage in STAGES:
        for batch in run.coda.stage(stage, source):
            if done == steps:
                source.position -= 1  # this batch was not used
                return
            step(run, batch)
            done += 1
            if done == steps and how == "break after":
                break
            if done == steps and how == "exception":
                raise StopTrainingError
        if done == steps and how == "break after":
            return


@pytest.mark.parametrize("renew", [False, True], ids=["same", "saved"])
@pytest.mark.parametrize("how", ["break before", "break after", "exception"])
@pytest.mark.parametrize("workers", [1, 3])
def test_leaving_at_any_step_and_going_on_changes_no_bit(workers, how, renew):
    expected = uninterrupted(workers)
    steps = range(STEPS) if how == "break before" else range(1, STEPS + 1)

    for at in steps:

        def work(group, at=at):
            run, source = make(group, **SETTINGS), Source(group.rank)
            with contextlib.suppress(StopTrainingError):
                leave(run, source, at, how)
            if renew:
                source = Source(group.rank, source.position)
                run = renewed(run, group)
            return finish(run, source)

        for mine, theirs in zip(launch(work, workers), expected, strict=True):
            assert same(mine, theirs), at


def test_workers_may_leave_at_different_steps():
    expected = uninterrupted(3)

    def work(group):
        run, source = make(group, **SETTINGS), Source(group.rank)
        leave(run, source, 2 + group.rank % 2, "break after")
        return finish(run, source)

    for mine, theirs in zip(launch(work, 3), expected, strict=True):
        assert same(mine, theirs)


def test_a_state_saved_in_the_body_of_the_loop_continues_bit_for_bit():
    run, source, states = make(**SETTINGS), Source(), []
    for stage in STAGES:
        for batch in run.coda.stage(stage, source):
            step(run, batch)
            states.append((saved(run.coda.state_dict()), source.position))
    expected = finish(run, source)
    assert len(states) == STEPS
    for state, position in states:
        fresh = make(**SETTINGS)
        fresh.coda.load_state_dict(state)
        assert same(finish(fresh, Source(0, position)), expected)


class Failing(codauc.Group):
    """A group in which the n-th sum fails, after having spoilt the message."""

    def __init__(self, group, fail_at):
        self.inner, self.left = group, fail_at
        self.rank, self.size, self.ledger = group.rank, group.size, group.ledger

    def start(self, call):
        counted = call.name == "sum_" and call.kind != "start"  # the first look is no round
        self.left -= counted
        if self.left == 0 and counted:
            call.tensor.fill_(float("nan"))
            raise LostError(call.kind)
        return self.inner.start(call)

    def machine(self):
        return self.inner.machine()


@pytest.mark.parametrize("renew", [False, True], ids=["same", "saved"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_failed_round_leaves_the_state_before_it_and_is_made_up_for(workers, renew):
    expected = uninterrupted(workers)
    kinds = []
    inner = [] if workers == 1 else ["round", "round"]  # one worker has only closing rounds
    collectives = [*inner, "round", "dual", "round", "dual"]

    for fail_at in range(1, len(collectives) + 1):

        def work(group, fail_at=fail_at):
            before, source = {}, Source(group.rank)

            def watch(run):
                before.update(state=state_of(run), position=source.position)

            run = make(Failing(group, fail_at), watch=watch, **SETTINGS)
            with pytest.raises(LostError) as caught:
                finish(run, source)
            kinds.append(caught.value.args[0])
            if kinds[-1] == "round":
                assert same(state_of(run), before["state"])
            source.position = before["position"]
            if renew:
                run = renewed(run, group)
            return finish(run, source)

        for mine, theirs in zip(launch(work, workers), expected, strict=True):
            assert same(mine, theirs), fail_at
    assert kinds[::workers] == collectives


def test_state_dict_is_a_copy_and_loading_it_keeps_nothing_of_it():
    run, source = make(**SETTINGS), Source()
    leave(run, source, 3, "break after")
    state = run.coda.state_dict()
    kept = copy.deepcopy(state)
    finish(run, source)
    assert_equal(state, kept)
    other = make(**SETTINGS)
    other.coda.load_state_dict(state)
    assert_equal(other.coda.state_dict(), kept)
    finish(other, Source(0, 3))
    assert_equal(state, kept)


def assert_equal(first, second):
    """Nested states are equal bit for bit."""
    assert type(first) is type(second)
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_equal(first[key], second[key])
    elif isinstance(first, list):
        assert len(first) == len(second)
        for a, b in zip(first, second, strict=True):
            assert_equal(a, b)
    else:
        assert first == second


def test_state_dict_holds_the_ledger_and_the_position():
    def work(group):
        run, source = make(group, **SETTINGS), Source(group.rank)
        leave(run, source, 4, "break after")
        fresh = renewed(run, group)
        assert fresh.coda.current == STAGES[0]
        assert fresh.opt.steps == 4
        return group.ledger.rounds

    assert launch(work, 2) == [2, 2]


def frozen_net():
    net = norm_net()
    net[0].bias.requires_grad_(False)
    return net


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"net": lambda: nn.Sequential(nn.Linear(3, 1))}, "0.weight|1."),
        ({"net": plain_net}, "1."),
        ({"net": lambda: nn.Sequential(*norm_net(), nn.Linear(1, 1))}, "lacks 4.bias"),
        ({"net": lambda: nn.Sequential(nn.Linear(2, 4), *norm_net()[1:])}, "has 0.weight of shape"),
        ({"net": frozen_net}, "0.bias"),
        ({"dtype": torch.float32}, "0.weight .* torch.float64"),
        ({"pos_ratio": [0.4, 0.4]}, "loss.a"),
        ({"pos_ratio": 0.3}, "pos_ratio"),
        ({"average": False}, "average=True, here False"),
    ],
    ids=["small", "no norm", "longer", "narrow", "frozen", "dtype", "tasks", "ratio", "average"],
)
def test_state_of_another_model_is_refused_and_leaves_all_unchanged(options, name):
    state = saved(make().coda.state_dict())
    run = make(**options)
    before = run.coda.state_dict()
    with pytest.raises(ValueError, match=name):
        run.coda.load_state_dict(state)
    assert_equal(run.coda.state_dict(), before)


@pytest.mark.parametrize("what", ["nothing", "optimizer", "model"])
def test_state_that_is_not_the_engines_is_refused_with_a_valueerror(what):
    run = make()
    states = {
        "nothing": {},
        "optimizer": run.opt.state_dict(),
        "model": run.model.state_dict(),
    }
    with pytest.raises(ValueError, match="state_dict"):
        run.coda.load_state_dict(states[what])


def test_another_stage_is_refused_while_one_is_unfinished():
    run, source = make(), Source()
    leave(run, source, 3, "break after")
    before = run.coda.state_dict()
    with pytest.raises(ValueError, match=r"steps=3.*while .*steps=5.* is at step 3.*end"):
        run.coda.stage(STAGES[1], source)
    assert_equal(run.coda.state_dict(), before)
    train(run, STAGES, source)
    assert run.coda.stages_done == 2


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_finish_ends_a_stage_early_with_one_model_for_all(steps):
    def work(group):
        run, source, seen = make(group), Source(group.rank), []
        batches = run.coda.stage(STAGES[0], source)
        for _ in range(steps):
            step(run, next(batches))
            seen.append(vectors.primal(run.opt))
        start = vectors.primal(run.opt)
        batches.close()
        run.coda.end(source)
        with pytest.raises(RuntimeError, match="outside a stage"):
            run.opt.step()
        assert run.coda.stages_done == 1
        ended = vectors.primal(run.opt)
        train(run, [STAGES[1]], source)
        assert run.coda.stages_done == 2
        return torch.stack(seen or [start]).mean(0), ended

    means, ends = zip(*launch(work, 2), strict=True)
    assert torch.equal(ends[0], ends[1])
    assert (ends[0] - (means[0] + means[1]) / 2).abs().max() < 1e-12


def test_finish_without_an_unfinished_stage_does_nothing():
    run = make()
    before = run.coda.state_dict()
    run.coda.end(Source())
    assert_equal(run.coda.state_dict(), before)


def test_workers_with_different_stages_are_told_so():
    def work(group):
        run = make(group)
        train(run, [codauc.Stage(0.1, 4, 2 + group.rank)], Source(group.rank))

    with pytest.raises(ValueError, match="differ in stage"):
        launch(work, 2)


def test_a_loop_that_was_left_behind_does_not_end_a_later_one():
    run, source = make(), Source()
    left_behind = run.coda.stage(STAGES[0], source)
    next(left_behind)
    for batch in run.coda.stage(STAGES[0], source):
        left_behind = None
        step(run, batch)
    assert left_behind is None
    assert run.coda.stages_done == 1


# Errors


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (lambda rank: {"pos_ratio": 0.1 + 0.1 * rank}, "pos_ratio"),
        (lambda rank: {"pos_ratio": None if rank else 0.4}, "pos_ratio"),
        (lambda rank: {"gamma": 2.0 + rank}, "gamma"),
        (lambda rank: {"average": rank == 0}, "average"),
        (lambda rank: {"max_grad_norm": 1.0 + rank}, "max_grad_norm"),
        (lambda rank: {"lr": 0.1 + 0.1 * rank}, "param_groups"),
        (lambda rank: {"momentum": 0.1 * rank}, "param_groups"),
        (lambda rank: {"net": plain_net if rank else norm_net}, "tensors"),
        (lambda rank: {"net": frozen_net if rank else norm_net}, "tensors"),
        (lambda rank: {"dual": ("mean", "pooled")[rank % 2]}, "dual"),
    ],
)
@pytest.mark.parametrize("workers", [2, 3])
def test_workers_that_were_set_up_differently_are_told_in_what(workers, options, name):
    with pytest.raises(ValueError, match=f"worker . and worker . differ in .*{name}"):
        launch(lambda group: make(group, **options(group.rank)), workers)


def test_workers_with_other_buffers_are_told_so():
    def work(group):
        def net():
            model = plain_net()
            model.register_buffer("table", torch.zeros(3 + group.rank))
            return model

        make(group, net)

    with pytest.raises(ValueError, match="differ in other_tensors"):
        launch(work, 2)


@pytest.mark.parametrize("moment", ["before", "after", "between"])
def test_a_step_outside_a_stage_is_refused_and_changes_nothing(moment):
    run, source = make(), Source()
    x, y = source.at(0)
    if moment == "after":
        train(run, [STAGES[0]], source)
    elif moment == "between":
        leave(run, source, 2, "break after")
    run.opt.zero_grad()
    run.loss(run.model(x), y).backward()
    before = run.coda.state_dict()
    with pytest.raises(RuntimeError, match=r"opt.step\(\) outside a stage"):
        run.opt.step()
    assert_equal(run.coda.state_dict(), before)


def twice(run, source):
    for batch in run.coda.stage(STAGES[0], source):
        step(run, batch)
        step(run, batch)


def test_more_steps_than_the_stage_has_are_refused_and_the_stage_can_still_be_closed():
    run, source = make(), Source()
    with pytest.raises(RuntimeError, match="no more often than the stage has steps"):
        twice(run, source)
    assert run.opt.steps == 5
    train(run, [STAGES[0]], source)
    assert run.coda.stages_done == 1


def test_an_optimizer_serves_one_engine():
    run = make()
    with pytest.raises(ValueError, match="already belongs to a CoDA"):
        codauc.CoDA(run.opt)


def test_an_optimizer_of_another_kind_is_refused():
    with pytest.raises(ValueError, match=r"got SGD, expected a codauc.PPDSG"):
        codauc.CoDA(torch.optim.SGD(plain_net().parameters(), lr=0.1))


def test_an_iterator_that_ends_is_reported_and_another_one_goes_on():
    run = make()
    with pytest.raises(ValueError, match="batches ended after 3: expected an endless iterator"):
        train(run, STAGES, itertools.islice(Source(), 3))
    assert run.opt.steps == 3
    used_up = itertools.islice(Source(), 0)
    with pytest.raises(ValueError, match="batches: got none"):
        train(run, STAGES, used_up)
    train(run, STAGES, Source(0, 3))
    expected = make_twin()
    train(expected, STAGES, Source())
    assert same(state_of(run), state_of(expected))


def make_twin():
    """The same start as `make()` has as the first thing in a test."""
    torch.manual_seed(0)
    return make()


def test_an_iterator_that_ends_during_the_dual_estimate_is_reported():
    run = make()
    with pytest.raises(ValueError, match="batches ended after 5"):
        train(run, [STAGES[0]], itertools.islice(Source(), 5))
    train(run, [STAGES[0]], Source(0, 5))
    expected = make_twin()
    train(expected, [STAGES[0]], Source())
    assert same(state_of(run), state_of(expected))


@pytest.mark.parametrize("batches", [[], (), iter(())], ids=["list", "tuple", "iterator"])
def test_a_worker_without_data_is_told_so(batches):
    run = make()
    with pytest.raises(ValueError, match=r"batches: got none.*no data"):
        train(run, STAGES, batches)


def test_a_batch_without_samples_is_refused_in_training_and_in_the_dual_estimate():
    empty = (torch.zeros(0, 3, dtype=DTYPE), torch.zeros(0))
    with pytest.raises(ValueError, match="expected at least one sample"):
        train(make(net=plain_net), STAGES, [empty])
    good = [Source().at(t) for t in range(5)]
    with pytest.raises(ValueError, match="expected at least one sample"):
        train(make(net=plain_net), STAGES, [*good, empty])


@pytest.mark.parametrize("stage", [5, None, {"lr": 0.1, "steps": 3}, STAGES, codauc.Stage])
def test_a_stage_of_another_type_is_refused(stage):
    run = make()
    with pytest.raises(ValueError, match=r"expected a codauc.Stage"):
        run.coda.stage(stage, Source())
    assert run.coda.current is None


def test_a_step_size_that_is_refused_begins_no_stage():
    run = make(pos_ratio=0.5)
    before = run.coda.state_dict()
    with pytest.raises(ValueError, match=r"lr=3 with pos_ratio=0.5"):
        run.coda.stage(codauc.Stage(3.0, 5), Source())
    assert_equal(run.coda.state_dict(), before)


def test_unknown_options_are_refused_with_the_nearest_that_exists():
    opt = codauc.PPDSG(plain_net(), codauc.MinMaxAUCLoss(0.4))
    with pytest.raises(ValueError, match=r"dual='poled'.*did you mean 'pooled'"):
        codauc.CoDA(opt, dual="poled")
    with pytest.raises(ValueError, match="unknown argument 'foward': did you mean 'forward'"):
        codauc.CoDA(opt, foward=None)
    codauc.CoDA(opt)  # a refused CoDA leaves the optimizer free


@pytest.mark.parametrize("kind", ["triple", "dict"])
def test_batches_that_are_not_pairs_need_a_forward_of_their_own(kind):
    def batches():
        for x, y in Source():
            yield (x, y, "id") if kind == "triple" else {"x": x, "y": y}

    def parts(batch):
        return batch[:2] if kind == "triple" else (batch["x"], batch["y"])

    def fit(run):
        for batch in run.coda.stage(STAGES[0], batches()):
            step(run, parts(batch))
        return state_of(run)

    expected = make()
    train(expected, [STAGES[0]], Source())
    got = {"triple": "tuple", "dict": "dict"}[kind]
    with pytest.raises(ValueError, match=f"batch: got {got}, expected a pair.*forward="):
        fit(make())
    torch.manual_seed(0)
    model, loss = norm_net().double(), codauc.MinMaxAUCLoss(0.4).double()
    opt = codauc.PPDSG(model, loss, lr=0.1, gamma=2.0)

    def forward(batch):
        x, y = parts(batch)
        return model(x), y

    run = SimpleNamespace(model=model, loss=loss, opt=opt, coda=codauc.CoDA(opt, forward=forward))
    assert same(fit(run), state_of(expected))


def test_a_loop_that_never_steps_is_ended_after_1000_batches():
    run, source = make(net=plain_net), Source()
    with pytest.raises(RuntimeError, match=r"1000 batches without opt.step\(\)"):
        list(run.coda.stage(STAGES[0], source))
    assert source.position == 1000


# Loops of other shapes


@pytest.mark.parametrize("workers", [1, 2])
def test_lists_and_dataloaders_are_started_again(workers):
    def data(rank):
        parts = [Source(rank).at(t) for t in range(3)]
        return parts, torch.utils.data.TensorDataset(*map(torch.cat, zip(*parts, strict=True)))

    def work(group, kind):
        parts, dataset = data(group.rank)
        batches = {
            "list": parts,
            "loader": torch.utils.data.DataLoader(dataset, batch_size=BATCH),
            "cycle": itertools.cycle(parts),
        }[kind]
        run = make(group)
        train(run, [codauc.Stage(0.1, 7, 3, 8)], batches)
        return state_of(run)

    expected = launch(lambda group: work(group, "cycle"), workers)
    for kind in ("list", "loader"):
        for mine, theirs in zip(
            launch(lambda g, k=kind: work(g, k), workers), expected, strict=True
        ):
            assert same(mine, theirs), kind


def test_steps_skipped_by_a_gradscaler_are_no_steps():
    stage = codauc.Stage(0.1, 5, 2, 8)

    def work(group):
        run, source, taken = make(group, plain_net), Source(group.rank), []
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        for x, y in run.coda.stage(stage, source):
            run.opt.zero_grad()
            scaler.scale(run.loss(run.model(x), y)).backward()
            if source.position in (2, 4 + group.rank):
                run.model[0].weight.grad[0, 0] = float("inf")
            else:
                taken.append(source.position - 1)
            scaler.step(run.opt)
            scaler.update()
        return state_of(run), taken, group.ledger.rounds

    results = launch(work, 2)
    assert [taken for _, taken, _ in results] == [[0, 2, 4, 5, 6], [0, 2, 3, 5, 6]]

    def plain(group):
        run, source = make(group, plain_net), Source(group.rank)
        good = (source.at(t) for t in (*results[group.rank][1], *range(7, 20)))
        train(run, [stage], good)
        return state_of(run)

    for (mine, _, rounds), theirs in zip(results, launch(plain, 2), strict=True):
        assert rounds == 3
        for name in ("0.weight", "2.bias", "loss.a", "loss.b", "loss.alpha"):
            assert torch.equal(mine[name], theirs[name]), name


def test_gradients_may_be_accumulated_over_batches():
    stage = codauc.Stage(0.1, 5, 2, 8)

    def accumulated(group):
        run, source = make(group, plain_net), Source(group.rank)
        for i, (x, y) in enumerate(run.coda.stage(stage, source)):
            if i % 2 == 0:
                run.opt.zero_grad()
            (run.loss(run.model(x), y) / 2).backward()
            if i % 2 == 1:
                run.opt.step()
        assert i == 9
        return state_of(run), group.ledger.rounds

    def joined(group):
        run, source = make(group, plain_net), Source(group.rank)
        pairs = (
            tuple(map(torch.cat, zip(*two, strict=True)))
            for two in zip(source, source, strict=True)
        )
        train(run, [stage], pairs)
        return state_of(run)

    for (mine, rounds), theirs in zip(launch(accumulated, 2), launch(joined, 2), strict=True):
        assert rounds == 3
        for name in mine:
            assert torch.allclose(mine[name], theirs[name], rtol=0, atol=1e-12), name


class OwnStep(codauc.PPDSG):
    def step(self, closure=None):
        return super().step(closure)


def test_a_step_that_calls_its_parent_s_has_the_same_rounds():
    """Torch runs the hooks of such an optimizer twice for each step."""

    def work(group, kind):
        torch.manual_seed(0)
        model, loss = plain_net(), codauc.MinMaxAUCLoss(0.5)
        opt = kind(model, loss, lr=0.1)
        coda = codauc.CoDA(opt, group)
        batch = (torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
        for x, y in coda.stage(codauc.Stage(lr=0.1, steps=7, sync_every=3), [batch]):
            opt.zero_grad()
            loss(model(x).flatten(), y).backward()
            opt.step()
        return group.ledger.rounds, vectors.state(opt)

    found = [
        codauc.launch(partial(work, kind=kind), workers=2, simulate=True)[0]
        for kind in (codauc.PPDSG, OwnStep)
    ]
    assert found[0][0] == found[1][0] == 3
    assert torch.equal(found[0][1], found[1][1])
