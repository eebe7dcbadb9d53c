"""Lemmas 6, 7 and 8 along trajectories of random problems."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import codauc
import vectors
from codauc.algorithm.objective import gradients
from codauc.algorithm.theory import constants, step_limits

DTYPE = torch.float64
SIZE = 3  # features


def random_problem(seed, p):
    """A shard: unit inputs with random labels, so that G_h = 1/4 and one-class batches happen."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(60, SIZE, dtype=DTYPE, generator=generator)
    y = torch.rand(60, generator=generator) < p
    return x / x.norm(dim=1, keepdim=True), y


def trajectory(seed, p, workers, lr, sync_every, steps=24, gamma=5.0):
    """The points (w, a, b, alpha) of each worker after each step, rounds included."""
    points = [[] for _ in range(workers)]

    def train(group):
        x, y = random_problem(1000 * seed + group.rank, p)
        model = nn.Linear(SIZE, 1, bias=False, dtype=DTYPE)
        loss = codauc.MinMaxAUCLoss(pos_ratio=p).double()
        opt = codauc.PPDSG(model, loss, lr=lr, gamma=gamma)
        coda = codauc.CoDA(opt, group, dual="pooled")
        opt.register_step_post_hook(lambda opt, *_: points[group.rank].append(vectors.state(opt)))
        batches = [(x[i : i + 2], y[i : i + 2]) for i in range(0, 60, 2)]
        stage = codauc.Stage(lr=lr, steps=steps, sync_every=sync_every, dual_samples=60)
        for inputs, labels in coda.stage(stage, batches):
            opt.zero_grad()
            loss(model(inputs), labels).backward()
            opt.step()

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="lr=")
        warnings.filterwarnings(
            "ignore", message=r"worker . drew no|no worker has drawn|pos_ratio="
        )
        codauc.launch(train, workers=workers, simulate=True, seed=seed)
    return torch.stack([torch.stack(path) for path in points])  # [worker, step, w a b alpha]


problems = {
    "seed": st.integers(0, 10**6),
    "p": st.floats(0.02, 0.98),
    "fraction": st.floats(0.05, 1.0),
}


@settings(max_examples=25)
@given(**problems, sync_every=st.sampled_from([1, 2, 8]))
def test_lemma_7_alpha_stays_in_its_box_up_to_the_refused_step_size(seed, p, fraction, sync_every):
    lr = fraction * step_limits(p).refuse
    alpha = trajectory(seed, p, 2, lr, sync_every)[..., -1]
    assert alpha.abs().max() <= max(p, 1 - p) / (p * (1 - p)) + 1e-12


@settings(max_examples=25)
@given(**problems, sync_every=st.sampled_from([1, 2, 8]))
def test_lemma_8_a_and_b_stay_in_the_unit_box_up_to_the_warned_step_size(
    seed, p, fraction, sync_every
):
    lr = fraction * step_limits(p).warn
    ab = trajectory(seed, p, 2, lr, sync_every)[..., -3:-1]
    assert ab.abs().max() <= 1 + 1e-12


@settings(max_examples=25)
@given(**problems, sync_every=st.sampled_from([1, 2, 6, 8]), workers=st.sampled_from([2, 3]))
def test_lemma_6_drift_is_bounded_zero_after_a_round_and_positive_between(
    seed, p, fraction, sync_every, workers
):
    lr = fraction * step_limits(p).warn
    known = constants(p, G_h=0.25, L_h=0.1)
    points = trajectory(seed, p, workers, lr, sync_every)
    drift = points - points.mean(0)
    for step in range(1, points.shape[1]):  # the last step's round is the closing one
        v = drift[:, step - 1, :-1].norm(dim=1)
        alpha = drift[:, step - 1, -1].abs()
        if step % sync_every == 0:
            assert torch.equal(points[0, step - 1], points[1, step - 1])
            assert max(v.max(), alpha.max()) < 1e-14
        else:
            assert v.max() > 0
            assert v.max() <= 2 * lr * sync_every * known.B_v
            assert alpha.max() <= 2 * lr * sync_every * known.B_alpha


def test_above_the_warned_step_size_the_papers_steps_leave_the_box_and_ours_end_at_its_edge():
    """The tests of the lemmas can fail: batches with more positives than usual push a out."""
    p = 0.05
    lr = 0.9 * step_limits(p).refuse
    _, y = random_problem(3000, p)
    assert y.any()
    a, zero = torch.zeros((), dtype=DTYPE), torch.zeros((), dtype=DTYPE)
    for row in range(0, 60, 2):
        labels = y[row : row + 2]
        h = torch.full((2,), 0.5, dtype=DTYPE)
        a = a - lr * gradients(h, labels, (a, zero, zero), p).a.mean()
    assert a.abs() > 1
    ab = trajectory(3, p, 1, lr=lr, sync_every=1, gamma=1e6)[..., -3:-1]
    assert ab.min() >= 0
    assert ab.max() <= 1


def make(p=0.3, lr=0.1):
    return codauc.PPDSG(nn.Linear(2, 1), codauc.MinMaxAUCLoss(pos_ratio=p), lr=lr)


@pytest.mark.parametrize("p", [0.01, 0.3, 0.5, 0.9])
def test_step_size_above_1_over_2pq_is_refused_with_the_number(p):
    limit = step_limits(p).refuse
    with pytest.raises(ValueError, match=rf"lr={limit * 1.01:g}.*= {limit:g}"):
        make(p, limit * 1.01)


def test_step_size_above_1_over_2_max_is_warned_about_once():
    limit = step_limits(0.3).warn
    with pytest.warns(UserWarning, match=f"= {limit:g}"):
        opt = make(0.3, limit * 1.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            opt.begin_stage()
            opt.step()
