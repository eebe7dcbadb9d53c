"""Claims about workers as sites: corrected steps, weights by samples, workers that are away."""

import itertools
import math

import pytest
import torch
from torch import nn

import codauc
import vectors
from codauc.algorithm.coda_state import CoDAState
from codauc.algorithm.sites import Present, Sites, chosen_dual, labels_differ

STAGE, LATER = codauc.Stage(0.3, 22, 5, 8), codauc.Stage(0.1, 12, 5, 8)
SHARDS = [(30, 10), (10, 4), (60, 20), (20, 6)]
CORRECT = {"correct": "scaffold"}


def batches(rank, start=0):
    for index in itertools.count(start):
        generator = torch.Generator().manual_seed(1000 * rank + index)
        y = torch.arange(6) % (2 + rank) == 0
        x = torch.randn(6, 3, dtype=torch.float64, generator=generator)
        yield x + (1 + rank) * y[:, None], y


class Run:
    """One worker's training."""

    def __init__(self, group, kind=codauc.PPDSG, average=False, norm=True, lr=0.3, **coda):
        torch.manual_seed(0)
        layers = [nn.Linear(3, 6), nn.BatchNorm1d(6) if norm else nn.Identity(), nn.Tanh()]
        self.model = nn.Sequential(*layers, nn.Linear(6, 1)).double()
        self.loss = codauc.MinMaxAUCLoss(pos_ratio=1 / 3).double()
        self.loss.ratio_told = True
        self.opt = kind(self.model, self.loss, lr=lr, gamma=2.0, average=average)
        self.group, self.rank, self.position = group, group.rank, 0
        shards = SHARDS[: group.size] if group.size <= len(SHARDS) else None
        self.coda = codauc.CoDA(self.opt, group, **{"shards": shards, "dual": "pooled", **coda})

    def source(self):
        for batch in batches(self.rank, self.position):
            self.position += 1
            yield batch

    def train(self, *stages, leave_at=None):
        for stage in stages or (STAGE,):
            for x, y in self.coda.stage(stage, self.source()):
                self.opt.zero_grad()
                self.loss(self.model(x), y).backward()
                self.opt.step()
                if self.opt.steps == leave_at:
                    return self
        return self

    def step_by_step(self, steps):
        """So many steps of the first stage, on all workers alike; who is away skips them."""
        self.coda.begin(STAGE)
        for _ in range(steps):
            if self.coda.away:
                self.coda.skip()
                continue
            x, y = next(self.source())
            self.opt.zero_grad()
            self.loss(self.model(x), y).backward()
            self.opt.step()
        return self

    @property
    def vector(self):
        return vectors.state(self.opt)


def simulate(function, workers=3):
    return codauc.launch(function, workers=workers, simulate=True)


def trained(workers=3, stages=(STAGE,), **options):
    """The state with which each worker ends."""
    return simulate(lambda g: Run(g, **options).train(*stages).vector, workers)


# Control variates. That they equal CODASCA in plain loops is claimed in tests/equivalence.


def one_batch(rank, size=12):
    """All that a worker has, as one batch: what is positive differs from worker to worker."""
    generator = torch.Generator().manual_seed(rank)
    y = torch.arange(size) % (2 + 2 * rank) == 0
    x = torch.randn(size, 3, dtype=torch.float64, generator=generator)
    return x + y[:, None] * torch.eye(3, dtype=torch.float64)[rank], y


def gradient_at_the_end(group, kind, sync_every, correct, steps):
    """The length of all workers' mean gradient, where a run with a falling step size ends."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False).double()
    loss = codauc.MinMaxAUCLoss(pos_ratio=1 / 3, link="identity").double()
    loss.ratio_told = True
    opt = kind(model, loss, lr=0.05, gamma=math.inf, average=False)
    coda, batch = codauc.CoDA(opt, group, correct=correct, dual="pooled"), one_batch(group.rank)
    for x, y in coda.stage(codauc.Stage(0.05, steps, sync_every, 12), [batch]):
        opt.zero_grad()
        loss(model(x), y).backward()
        opt.step()
        for options in opt.param_groups:
            options["lr"] = 0.05 * (1 - opt.steps / (steps + 1))
    opt.zero_grad()
    loss(model(batch[0]), batch[1]).backward()
    gradient = model.weight.grad / group.size
    group.sum_(gradient, "round")
    return gradient.norm().item()


@pytest.mark.parametrize("kind", [codauc.PPDSG, codauc.PPDAdam])
def test_corrected_steps_end_where_the_mean_gradient_is_zero_and_plain_ones_do_not(kind):
    def end(correct):
        return simulate(lambda g: gradient_at_the_end(g, kind, 16, correct, 800))[0]

    plain, corrected = end(None), end("scaffold")
    assert corrected < 0.1 * plain, (plain, corrected)


def test_the_first_period_is_plain_and_the_second_is_not():
    for steps, equal in ((5, True), (9, False)):
        stage = codauc.Stage(0.3, steps, 5, 8)
        both = trained(stages=[stage]), trained(stages=[stage], **CORRECT)
        assert torch.equal(both[0][0], both[1][0]) == equal


def test_without_correction_nothing_more_is_sent_and_with_it_at_most_twice_the_weights():
    def sent(group, **options):
        Run(group, norm=False, **options).train()
        return group.ledger.of("round").sent

    plain, corrected = (simulate(lambda g, o=o: sent(g, **o))[0] for o in ({}, CORRECT))
    rounds, numbers = 5, 31 + 3  # weights, and a, b, alpha
    assert corrected - plain == pytest.approx(rounds * numbers * 8 * 2 * 2 / 3, rel=0.02)


def test_corrections_of_all_workers_add_up_to_zero():
    def pull(group, **options):
        run = Run(group, **CORRECT, **options).train(leave_at=12)
        return run.opt.variates.pull.clone(), run.coda.sites.mean().divisor

    for options in ({}, {"weight": "samples"}):
        pulls = simulate(lambda g, o=options: pull(g, **o))
        assert all(vector.abs().max() > 1e-3 for vector, _ in pulls)
        assert sum(vector / divisor for vector, divisor in pulls).abs().max() < 1e-14


@pytest.mark.parametrize("compress", ["bf16", "int8"])
def test_compressed_variates_are_near_the_plain_ones(compress):
    plain, packed = trained(**CORRECT)[0], trained(compress=compress, **CORRECT)[0]
    assert 0 < (plain - packed).abs().max() < 0.02 * plain.abs().max()


def test_after_a_warm_start_variates_begin_anew():
    warm = codauc.Stage(0.3, 10, 5, 8, estimate_ab=True)

    def known(group):
        run = Run(group, **CORRECT)
        found = []
        for stage in (warm, STAGE):
            run.train(stage)
            found.append(len(run.opt.variates.known))
        return found

    assert simulate(known)[0] == [0, 3]


def test_a_single_worker_is_not_corrected():
    assert torch.equal(trained(1)[0], trained(1, **CORRECT)[0])


# Weights of workers


@pytest.mark.parametrize("compress", [None, "bf16"])
def test_weights_by_samples_are_those_of_the_mean(compress):
    """After one step from the same start, rounds of few and of many samples add up to all."""

    def work(group):
        run = Run(group, norm=False, weight="samples", compress=compress)
        start = run.vector.clone()
        run.coda.begin(codauc.Stage(0.3, 9, 5, 8))
        for x, y in itertools.islice(run.source(), 4):
            run.loss(run.model(x), y).backward()
            run.opt.step()
            run.opt.zero_grad()
        before = run.vector.clone()
        x, y = next(run.source())
        run.coda.averager.round()
        return start, before, run.vector

    results = simulate(work)
    shares = [n / 100 for n, _ in SHARDS[:3]]
    mean = sum(share * before for share, (_, before, _) in zip(shares, results, strict=True))
    for start, _, after in results:
        close = 1e-14 if compress is None else 0.02 * (mean - start).abs().max()
        assert (after - mean).abs().max() <= close


def test_equal_shards_by_samples_are_the_plain_algorithm_bit_for_bit():
    shards = [(20, 5)] * 3
    plain, weighted = trained(), trained(shards=shards, weight="samples")
    assert all(torch.equal(one, other) for one, other in zip(plain, weighted, strict=True))


def test_a_worker_without_samples_is_as_if_it_were_not_there():
    shards = [(30, 10), (10, 4), (0, 0)]
    both = {"weight": "samples", **CORRECT, "kind": codauc.PPDAdam, "average": True}

    def work(group):
        run = Run(group, **both, shards=shards[: group.size])
        run.train(STAGE, LATER)
        return run.vector, run.position

    two, three = simulate(work, 2), simulate(work, 3)
    assert [position for _, position in three] == [two[0][1], two[1][1], 0]
    for vector, _ in three:
        assert (vector - two[0][0]).abs().max() < 1e-12


@pytest.mark.parametrize("options", [{}, CORRECT, {"compress": "int8", **CORRECT}], ids=str)
def test_sites_of_one_class_and_of_one_sample_train(options):
    def only(rank):
        x, y = next(batches(rank))
        rows = {0: y, 1: ~y, 2: torch.arange(6) == 0}[rank]
        return [(x[rows], y[rows])]

    def work(group):
        run = Run(group, norm=False, kind=codauc.PPDAdam, lr=0.01, **options)
        for x, y in run.coda.stage(STAGE, only(group.rank)):
            run.opt.zero_grad()
            run.loss(run.model(x), y).backward()
            run.opt.step()
        return run.vector

    with pytest.warns(UserWarning, match="drew no"):
        results = simulate(work)
    assert all(torch.equal(vector, results[0]) for vector in results)
    assert results[0].isfinite().all()


# Workers that are away


def test_a_share_of_the_workers_is_drawn_anew_for_each_period_by_the_seed():
    draws = [Present(0.7, seed=3).draw(period, range(10)) for period in range(200)]
    assert all(len(draw) == 7 for draw in draws)
    often = [sum(k in draw for draw in draws) for k in range(10)]
    assert min(often) > 110
    assert max(often) < 170
    assert draws != [Present(0.7, seed=4).draw(period, range(10)) for period in range(200)]
    assert len(Present(0.01).draw(0, range(3))) == 1


def test_who_is_gone_never_comes_back():
    present = Present(0.9, gone=((1, 2),))
    assert [1 in present.draw(p, range(2)) for p in (0, 1, 2, 50)][2:] == [False, False]


def test_workers_that_are_away_stand_still_and_take_over_the_next_mean():
    """Only worker 0 and 2 take steps; the mean is theirs, and worker 1 has it after the round."""
    present = Present(gone=((1, 0),))

    def work(group):
        run = Run(group, present=present)
        start, states = run.vector, []
        run.coda.begin(STAGE)
        for x, y in itertools.islice(run.source(), 10):
            run.loss(run.model(x), y).backward()
            run.opt.step()
            run.opt.zero_grad()
            states.append(run.vector.clone())
        return start, states

    results = simulate(work)
    steered = 3 * 6 + 6 + 6 + 6 + 6 + 1 + 3
    start, states = results[1]
    for state in states[:4]:
        assert torch.equal(state[:steered], start[:steered])
    assert torch.equal(states[4], results[0][1][4])
    assert not torch.equal(results[0][1][8], results[2][1][8])


def test_a_loop_over_batches_skips_periods_in_which_the_worker_is_away():
    def work(group):
        run = Run(group, present=0.4)
        run.train()
        return run.position, run.group.ledger.rounds, run.opt.steps

    results = simulate(work, 4)
    assert {(rounds, steps) for _, rounds, steps in results} == {(5, 22)}
    assert len({position for position, *_ in results}) > 1


def test_all_present_is_the_plain_algorithm():
    for mine, plain in zip(trained(present=1.0), trained(), strict=True):
        assert (mine - plain).abs().max() < 1e-12


def test_the_variate_of_a_worker_that_is_gone_has_no_part_in_the_others():
    """Whatever it was: the run is the same to the last bit."""

    def work(group, other):
        run = Run(group, present=Present(gone=((1, 2),)), **CORRECT)
        run.step_by_step(13)
        if group.rank == 1 and other:
            run.opt.variates.own.fill_(1e6)
        return run.train().vector

    plain, other = (simulate(lambda g, o=o: work(g, o)) for o in (False, True))
    assert torch.equal(plain[0], other[0])
    assert torch.equal(plain[2], other[2])


def test_a_worker_that_comes_back_late_takes_its_own_gradients_first():
    """It has no c_k, and is not in c; the corrections of the others add up to zero."""

    def work(group):
        run = Run(group, present=Present(0.5, seed=1), **CORRECT)
        found = []
        for x, y in run.coda.stage(codauc.Stage(0.3, 60, 5, 8), run.source()):
            run.opt.zero_grad()
            run.loss(run.model(x), y).backward()
            run.opt.step()
            variates = run.opt.variates
            found.append((run.coda.sites.period, variates.pull.clone(), set(variates.known)))
        return found

    results, lasts = simulate(work, 4), []
    for period in range(1, 11):
        there = Present(0.5, seed=1).draw(period, range(4))
        pulls = [v for k in there for p, v, _ in results[k] if p == period]
        known = next(known for k in there for p, _, known in results[k] if p == period)
        shown = [k for k in there if k in known]
        lasts.append(len(shown))
        total = sum(next(v for p, v, _ in results[k] if p == period) for k in there)
        assert pulls
        assert total.abs().max() < 1e-12
        for k in there - known:
            assert not any(v.any() for p, v, _ in results[k] if p == period)
    assert 2 in lasts
    assert min(lasts) < 2


# Statistics


def test_with_their_own_statistics_workers_share_weights_alone():
    def own(group):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)).double()
        loss = codauc.MinMaxAUCLoss(pos_ratio=1 / 3).double()
        loss.ratio_told = True
        opt = codauc.PPDSG(model, loss, lr=0.3)
        coda = codauc.CoDA(opt, group, norm="local")
        for x, y in coda.stage(STAGE, batches(group.rank)):
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
        return model[0].weight.detach(), model[1].running_mean

    (weight, mean), (other_weight, other_mean) = simulate(own, 2)
    assert torch.equal(weight, other_weight)
    assert (mean - other_mean).abs().max() > 0.01


# The estimate of alpha


@pytest.mark.parametrize(
    ("shards", "differ"),
    [
        ([(1000, 100), (1000, 112), (1000, 95)], False),
        ([(1000, 100), (1000, 180)], True),
        ([(5000, 2), (5000, 3), (5000, 0)], False),
        ([(1000, 100), (1000, 0)], True),
        ([(1000, 0), (1000, 0)], False),
        ([(1000, 100), (0, 0)], False),
        ([(1000, 100)], False),
    ],
)
def test_labels_differ_where_chance_does_not_explain_it(shards, differ):
    assert labels_differ(shards) == differ
    assert chosen_dual(shards) == ("pooled" if differ else "mean")


def test_even_shards_hardly_ever_differ_by_chance():
    generator = torch.Generator().manual_seed(0)
    differ = 0
    for _ in range(300):
        y = torch.randperm(4000, generator=generator) < 300
        differ += labels_differ([(500, int(part.sum())) for part in y.chunk(8)])
    assert differ <= 3


def test_auto_takes_the_pooled_estimate_for_shards_that_differ():
    def dual(group, shards):
        return Run(group, dual="auto", shards=shards).coda.dual

    assert simulate(lambda g: dual(g, [(100, 50), (100, 52)]), 2) == ["mean", "mean"]
    assert simulate(lambda g: dual(g, [(100, 5), (100, 52)]), 2) == ["pooled", "pooled"]


# Checkpoints


@pytest.mark.parametrize(
    "options",
    [
        CORRECT,
        {"compress": "int8", **CORRECT},
        {"kind": codauc.PPDAdam, "average": True, **CORRECT},
        {"weight": "samples", "present": 0.6, "compress": "int2", **CORRECT},
        {"present": Present(0.6, seed=2), "outer": codauc.Nesterov(), **CORRECT},
        {"weight": "samples", "present": 0.6, "average": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("leave_at", [3, 5, 8, 21])
def test_a_state_saved_at_any_step_goes_on_bit_for_bit(options, leave_at):
    def interrupted(group):
        first = Run(group, **options).step_by_step(leave_at)
        second = Run(group, **options)
        second.coda.load_state_dict(first.coda.state_dict())
        second.position = first.position
        return second.train(STAGE, LATER).vector

    whole = trained(stages=(STAGE, LATER), **options)
    for mine, theirs in zip(simulate(interrupted), whole, strict=True):
        assert torch.equal(mine, theirs)


def test_for_other_workers_a_state_has_no_variates():
    state = simulate(lambda g: Run(g, **CORRECT).train(leave_at=12).coda.state_dict())[0]
    other = CoDAState.unpack(state).for_workers(2).pack()

    def work(group):
        run = Run(group, **CORRECT)
        run.coda.load_state_dict(other)
        run.coda.same_everywhere()
        assert not run.opt.variates.known
        return run.train().vector

    assert all(vector.isfinite().all() for vector in simulate(work, 2))


def test_states_of_others_are_refused():
    state = simulate(lambda g: Run(g, **CORRECT).train(leave_at=12).coda.state_dict())[0]
    with pytest.raises(ValueError, match="saved with correct='scaffold', here None"):
        simulate(lambda g: Run(g).coda.load_state_dict(state))
    with pytest.raises(ValueError, match="saved with workers=3, here 2"):
        simulate(lambda g: Run(g, **CORRECT).coda.load_state_dict(state), 2)


# Arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"correct": "scafold"}, "did you mean 'scaffold'"),
        ({"weight": "samples", "shards": None}, "weight='samples' without shards"),
        ({"dual": "auto", "shards": None}, "dual='auto' without shards"),
        ({"shards": [(3, 1)]}, r"shards=\[\(3, 1\)\]: expected the samples and the positives"),
        ({"shards": [(3, 4), (3, 1)]}, "expected the samples and the positives"),
        ({"shards": [(0, 0), (0, 0)]}, "no worker has a sample"),
        ({"present": 1.5}, "share=1.5: expected at most 1"),
        ({"present": 0}, "present=0: expected a number > 0"),
        ({"present": Present(gone=((2, 1),))}, "gone=2: expected an integer <= 1"),
        ({"delay": 2, **CORRECT}, "delay=2 with correct='scaffold'"),
        ({"delay": 2, "present": 0.5}, "delay=2 with workers that are away"),
        ({"norm": "global"}, "norm='global': expected one of"),
    ],
)
def test_bad_values_are_answered(options, message):
    with pytest.raises(ValueError, match=message):
        simulate(lambda g: Run(g, **options) if "norm" not in options else _normed(g), 2)


def _normed(group):
    opt = codauc.PPDSG(nn.Linear(3, 1), codauc.MinMaxAUCLoss(0.5))
    codauc.CoDA(opt, group, norm="global")


def test_sites_that_differ_are_told_apart():
    def work(group):
        Run(group, present=Present(0.5, seed=group.rank))

    with pytest.raises(ValueError, match="differ in sites present seed"):
        simulate(work, 2)


def test_an_unknown_ratio_and_averages_in_between_need_workers_that_count_alike():
    def unknown(group):
        opt = codauc.PPDSG(nn.Linear(3, 1), codauc.MinMaxAUCLoss())
        codauc.CoDA(opt, group, present=0.5)

    with pytest.raises(ValueError, match="a pos_ratio that is not known"):
        simulate(unknown, 2)
    stage = codauc.Stage(0.3, 20, 10, 8, local_every=5)
    with pytest.raises(ValueError, match="local_every=5 with workers that do not count alike"):
        simulate(lambda g: Run(g, present=0.5).train(stage), 2)


def test_skip_is_for_workers_that_are_away():
    with pytest.raises(RuntimeError, match="not away"):
        simulate(lambda g: Run(g).coda.skip(), 2)


def test_everybody_gone_is_an_error():
    with pytest.raises(ValueError, match="after 2 rounds all workers with samples are gone"):
        Sites(0, 2, present=Present(gone=((0, 1), (1, 2)))).present.draw(2, range(2))
