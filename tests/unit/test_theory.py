"""The constants bound what they claim to bound; corrected ones where the printed ones fail."""

import math

import numpy as np
import pytest
import torch

from codauc.algorithm import theory

RATIOS = [0.03, 0.3, 0.5, 0.71, 0.9]
SIGMOID_CURVATURE = 1 / (6 * math.sqrt(3))  # the largest |sigmoid''|


def dual_bound(p):
    """Lemma 7: the largest |alpha|, D."""
    return max(p, 1 - p) / (p * (1 - p))


def loss(v, alpha, x, positive, p, link):
    """F of one sample, v = (w, a, b), written out again for autograd."""
    w, a, b = v[:-2], v[-2], v[-1]
    h = link(w @ x)
    if positive:
        value = (1 - p) * (h - a) ** 2 - 2 * (1 + alpha) * (1 - p) * h
    else:
        value = p * (h - b) ** 2 + 2 * (1 + alpha) * p * h
    return value - p * (1 - p) * alpha**2


def boxes(p, link, radius, n, seed=0, dim=3):
    """Random (v, alpha, x, positive): |x| = radius, h in [0, 1], |a|, |b| <= 1, |alpha| <= D.

    Half of the values are at the ends of their boxes, where the bounds are closest.
    """
    rng = np.random.default_rng(seed)
    D = dual_bound(p)
    for _ in range(n):
        x = rng.normal(size=dim)
        x *= radius / np.linalg.norm(x)
        logit = rng.uniform(0, 1) if link is identity else rng.normal() * 2
        w = x * logit / radius**2
        a, b, unit = np.where(rng.random(3) < 0.5, rng.choice([-1, 1], 3), rng.uniform(-1, 1, 3))
        v = torch.tensor([*w, a, b])
        yield v, torch.tensor(D * unit), torch.tensor(x), bool(rng.random() < 0.5)


def identity(z):
    return z


def smoothness(link, radius):
    """(G_h, L_h) of h = link(w.x) with |x| = radius."""
    return (radius, 0.0) if link is identity else (radius / 4, radius**2 * SIGMOID_CURVATURE)


def largest_hessian(p, link, radius, n=60):
    def norm(v, alpha, x, positive):
        hessian = torch.autograd.functional.hessian(
            lambda v: loss(v, alpha, x, positive, p, link), v
        )
        return torch.linalg.matrix_norm(hessian, ord=2).item()

    return max(norm(*sample) for sample in boxes(p, link, radius, n))


@pytest.mark.parametrize("link", [torch.sigmoid, identity])
@pytest.mark.parametrize("radius", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("p", RATIOS)
def test_corrected_l2_bounds_every_random_hessian(p, radius, link):
    bound = theory.constants(p, *smoothness(link, radius)).L_2
    largest = largest_hessian(p, link, radius)
    assert largest <= bound * (1 + 1e-12)
    assert largest > 0.3 * bound  # and is not idle


@pytest.mark.parametrize("p", RATIOS)
def test_corrected_l2_is_attained_by_a_linear_score(p):
    assert largest_hessian(p, identity, 2.0, 30) == pytest.approx(theory.constants(p, 2, 0).L_2)


def test_printed_l2_is_too_small():
    printed = theory.constants(0.9, 1, 0, printed=True).L_2
    assert printed == pytest.approx(2.86, abs=5e-3)
    assert largest_hessian(0.9, identity, 1.0, 30) == pytest.approx(3.6)


def gradients(p, link, radius, n=100):
    for v, alpha, x, positive in boxes(p, link, radius, n):
        v.requires_grad_()
        alpha.requires_grad_()
        yield torch.autograd.grad(loss(v, alpha, x, positive, p, link), (v, alpha))


@pytest.mark.parametrize("link", [torch.sigmoid, identity])
@pytest.mark.parametrize("p", RATIOS)
def test_b_v_and_b_alpha_bound_every_random_gradient(p, link):
    k = theory.constants(p, *smoothness(link, 2.0))
    pairs = [(g.norm().item(), abs(d.item())) for g, d in gradients(p, link, 2.0)]
    largest_v, largest_alpha = np.max(pairs, axis=0)
    assert 0.15 * k.B_v < largest_v <= k.B_v
    assert 0.3 * k.B_alpha < largest_alpha <= k.B_alpha


def mixed_derivatives(p, link, radius, n=60):
    """|d grad_v F / d alpha|, which bounds both Lipschitz constants across (v, alpha)."""
    for v, alpha, x, positive in boxes(p, link, radius, n):

        def dual_gradient(v, alpha=alpha, x=x, positive=positive):
            alpha = alpha.clone().requires_grad_()
            value = loss(v, alpha, x, positive, p, link)
            return torch.autograd.grad(value, alpha, create_graph=True)[0]

        yield torch.autograd.functional.jacobian(dual_gradient, v).norm().item()


@pytest.mark.parametrize("radius", [0.5, 3.0])
@pytest.mark.parametrize("link", [torch.sigmoid, identity])
@pytest.mark.parametrize("p", RATIOS)
def test_corrected_g_alpha_and_g_v_bound_the_mixed_derivative(p, link, radius):
    k = theory.constants(p, *smoothness(link, radius))
    largest = max(mixed_derivatives(p, link, radius))
    assert k.G_alpha == k.G_v
    assert 0.8 * k.G_v < largest <= k.G_v * (1 + 1e-12)


def test_printed_g_alpha_is_too_small_when_g_h_is_above_1():
    printed = theory.constants(0.3, 3, 0, printed=True)
    assert printed.G_alpha == pytest.approx(1.4)
    assert max(mixed_derivatives(0.3, identity, 3.0, 20)) == pytest.approx(3 * printed.G_alpha)


@pytest.mark.parametrize("link", [torch.sigmoid, identity])
@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_corrected_l1_bounds_the_hessian_of_the_primal_function(p, link):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    x = 2 * x / x.norm(dim=1, keepdim=True)
    positive = torch.arange(50) < 50 * p
    k = theory.constants(p, *smoothness(link, 2.0))

    def primal(v):
        h = link(x @ v[:-2])
        gap = h[~positive].mean() - h[positive].mean()  # alpha*
        up, down = h[positive], h[~positive]
        square = ((up - v[-2]) ** 2).mean() + ((down - v[-1]) ** 2).mean()
        return p * (1 - p) * (square + 2 * (1 + gap) * gap - gap**2)

    for _ in range(20):
        v = torch.randn(5, generator=generator, dtype=torch.float64).clamp(-1, 1) * 0.5
        hessian = torch.autograd.functional.hessian(primal, v)
        assert torch.linalg.matrix_norm(hessian, ord=2) <= k.L_1
    assert pytest.approx(k.L_2 + k.G_alpha * k.G_v / k.mu_alpha) == k.L_1


def test_constants_by_hand():
    k = theory.constants(0.5, 1, 0)  # P = 1/2, D = 2
    assert (k.mu_alpha, k.L_alpha, k.G_alpha, k.G_v) == (0.5, 0.5, 1, 1)
    assert k.B_v == pytest.approx(math.sqrt(100 + 4 + 4))
    assert k.B_alpha == 4
    assert (k.L_2, k.L_1, k.L_v) == (2, 4, 4)
    assert pytest.approx(math.sqrt(21)) == theory.constants(0.5, 1, 0, printed=True).L_1


@pytest.mark.parametrize("p", RATIOS)
def test_alpha_stays_below_the_dual_bound_up_to_the_refused_step_size(p):
    refuse, D = theory.step_limits(p).refuse, dual_bound(p)
    rng = np.random.default_rng(0)

    def largest(lr, steps=400):
        alpha, top = 0.0, 0.0
        for positive, h in zip(rng.random(steps) < p, rng.random(steps), strict=True):
            drive = -(1 - p) * h if positive else p * h
            alpha += lr * 2 * (drive - p * (1 - p) * alpha)
            top = max(top, abs(alpha))
        return top

    assert largest(refuse) <= D * (1 + 1e-12)
    assert largest(2.2 * refuse) > 100 * D  # above 1/(p(1-p)) it diverges


@pytest.mark.parametrize("p", RATIOS)
def test_a_and_b_stay_within_1_up_to_the_warned_step_size(p):
    def after_one_step(lr, weight):
        return -1 + 2 * lr * weight * (1 - -1)  # from -1, on a sample with h = 1

    warn = theory.step_limits(p).warn
    assert max(after_one_step(warn, 1 - p), after_one_step(warn, p)) == pytest.approx(1)
    assert max(after_one_step(1.01 * warn, 1 - p), after_one_step(1.01 * warn, p)) > 1


@pytest.mark.parametrize("gamma", [0.5, math.inf])
def test_drift_of_the_proximal_step_is_below_lemma_6(gamma):
    p, lr, every, workers, rng = 0.3, 0.2, 8, 5, np.random.default_rng(1)
    k = theory.constants(p, *smoothness(torch.sigmoid, 2.0))
    v, alpha = torch.zeros(workers, 5, dtype=torch.float64), torch.zeros(workers).double()
    for t in range(1, every + 1):
        for j, (_, _, x, _) in enumerate(boxes(p, torch.sigmoid, 2.0, workers, seed=t)):
            vj, aj = v[j].clone().requires_grad_(), alpha[j].clone().requires_grad_()
            value = loss(vj, aj, x, bool(rng.random() < p), p, torch.sigmoid)
            gv, ga = torch.autograd.grad(value, (vj, aj))
            v[j] = (v[j] - lr * gv) / (1 + lr / gamma)  # the anchor is 0
            alpha[j] += lr * ga
        assert (v - v.mean(0)).norm(dim=1).max() <= 2 * lr * max(t, 2) * k.B_v
        assert (alpha - alpha.mean()).abs().max() <= 2 * lr * max(t, 2) * k.B_alpha
    assert (v - v.mean(0)).norm(dim=1).max() > 0.01


def test_dual_samples_by_hand():
    C = 3 * 0.5 ** (1 / math.log(2)) / (2 * math.log(2))  # as printed
    assert theory.dual_samples(0.1, 100, 0.5, 1) == math.ceil((1 + C) * 16)
    C = 3 * 0.9 ** (1 / math.log(1 / 0.9)) / (2 * math.log(1 / 0.9))
    for p in (0.1, 0.9):
        assert theory.dual_samples(0.01, 5000, p, 8) == math.ceil((1 + C) / (0.5 * 0.0081))
    assert theory.dual_samples(1, 1e9, 0.9, 16) == math.ceil(math.log(16) / math.log(1 / 0.9))
    assert theory.dual_samples(1, 1e9, 0.5, 1) == 1


def test_theorem1_by_hand():
    plan = theory.theorem1(0.01, 4, 3, mu=0.5, L=2.0, G_h=2.0, pos_ratio=0.3)
    c = 0.25 / 5.25
    assert (plan.c, plan.gamma) == (pytest.approx(c), 0.25)
    for s in (1, 2, 3):
        lr, lr_next = (0.04 * math.exp(-k * c) for k in (s - 1, s))
        steps, steps_next = (32 / 0.08 * math.exp(k * c) for k in (s - 1, s))
        assert plan.lr[s - 1] == pytest.approx(lr)
        assert plan.steps[s - 1] == math.ceil(steps - 1e-9)
        assert plan.sync_every[s - 1] == math.ceil(1 / math.sqrt(4 * lr))
        assert plan.dual_samples[s - 1] == theory.dual_samples(lr_next, steps_next, 0.3, 4)
    assert plan.lr_limit == pytest.approx(1 / (2 + 3 * 2.8**2 / 0.42))


@pytest.mark.parametrize(
    ("L", "G_h", "p", "limit"),
    [
        (4.0, 1.0, 0.5, 1 / (4 + 3 / 0.5)),
        (1e5, 100.0, 0.9, 1 / (1e5 + 3 * 180**2 / 0.18)),
        (1e-9, 1e-9, 0.1, 1 / 1.8),  # only the limit of a and b is left
        (0.1, 0.4, 0.5, 1 / (0.5 + 3 * 0.16 / 0.1)),
    ],
)
def test_lemma2_step_limit_is_the_least_of_its_terms(L, G_h, p, limit):
    plan = theory.theorem1(1e-6, 1, 1, mu=L / 10, L=L, G_h=G_h, pos_ratio=p)
    assert plan.lr_limit == pytest.approx(limit)


def test_theorem1_averages_after_every_step_when_the_step_size_is_large():
    plan = theory.theorem1(0.5, 16, 2, mu=0.1, L=1.0, G_h=1.0, pos_ratio=0.5)
    assert plan.sync_every == (1, 1)


def test_table_1_by_hand():
    table = theory.table1(workers=5, mu=0.01, epsilon=1e-4)
    assert table["PPD-SG"] == (pytest.approx(1e8), 0)
    assert table["NP-PPD-SG"] == (pytest.approx(2e7), pytest.approx(2e7))
    assert table["CoDA"] == (pytest.approx(2e7), pytest.approx(1e5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.step_limits(0), r"pos_ratio=0: expected a number > 0 and < 1; give the"),
        (lambda: theory.constants(0.5, 0, 0), r"G_h=0: expected a number > 0; give a bound"),
        (lambda: theory.constants(0.5, 1, -1), r"L_h=-1: expected a number >= 0; give 0"),
        (lambda: theory.table1(4, 2, 0.1), r"mu=2.0: expected at most 1"),
        (lambda: theory.dual_samples(0.1, 10, 0.5, 0), r"workers=0: expected an integer >= 1"),
        (
            lambda: theory.theorem1(0.1, 1, 2, mu=3, L=2, G_h=1, pos_ratio=0.5),
            r"mu=3.0: expected at most L=2.0",
        ),
        (
            lambda: theory.theorem1(0.1, 1, 9999, mu=1, L=2, G_h=1, pos_ratio=0.5),
            r"stages=9999: expected at most 1100",
        ),
        (lambda: theory.constants(0.5, G_g=1, L_h=0), r"did you mean 'G_h'"),
    ],
)
def test_errors_say_what_was_got_and_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()
