"""A problem with a known answer: a linear score without bias and the identity link.

The pairwise square loss is then quadratic in w, with minimiser (S+ + S- + d d^T)^-1 d.
"""

import pytest
import torch
from torch import nn

import codauc
from codauc.algorithm.objective import saddle_point

DTYPE = torch.float64


def sample(size, dimensions, seed, p=0.3):
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(size) < round(p * size)
    noise = torch.randn(dimensions, dimensions, dtype=DTYPE, generator=generator)
    mixing = torch.eye(dimensions, dtype=DTYPE) + 0.2 * noise
    x = torch.randn(size, dimensions, dtype=DTYPE, generator=generator) @ mixing
    return x + 0.7 * y[:, None], y


def minimiser(x, y):
    """(S+ + S- + d d^T)^-1 d with the sample's own class moments."""
    positive, negative = x[y], x[~y]
    d = positive.mean(0) - negative.mean(0)
    spread = torch.cov(positive.T, correction=0) + torch.cov(negative.T, correction=0)
    spread = torch.atleast_2d(spread)
    return torch.linalg.solve(spread + torch.outer(d, d), d)


def smoothness(x, y):
    """The exact L: the largest eigenvalue of the Hessian in v = (w, a, b) of phi = max_alpha f."""
    p = y.double().mean()
    rows = torch.cat((x, -y[:, None].double(), -(~y)[:, None].double()), 1)
    weights = torch.where(y, 1 - p, p)
    hessian = 2 * (rows * weights[:, None]).T @ rows / len(x)
    d = x[y].mean(0) - x[~y].mean(0)
    hessian[: len(d), : len(d)] += 2 * p * (1 - p) * torch.outer(d, d)
    return torch.linalg.eigvalsh(hessian).max().item()


class Linear(nn.Module):
    def __init__(self, dimensions):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(dimensions, dtype=DTYPE))

    def forward(self, x):
        return x @ self.w


@pytest.mark.parametrize(("workers", "dimensions"), [(1, 1), (2, 5)])
def test_full_gradients_reach_the_pairwise_minimiser(dimensions, workers):
    x, y = sample(200, dimensions, seed=dimensions)
    best, L = minimiser(x, y), smoothness(x, y)
    p = y.double().mean().item()

    def train(group):
        model, loss = Linear(dimensions), codauc.MinMaxAUCLoss(pos_ratio=p, link="identity")
        loss.double()
        lr = min(1 / (2 * L), 0.5)
        opt = codauc.PPDSG(model, loss, lr=lr, gamma=1 / (2 * L))
        coda = codauc.CoDA(opt, group)
        for stage in codauc.constant(lr=lr, steps=10, stages=400, sync_every=5, dual_samples=200):
            for inputs, labels in coda.stage(stage, [(x, y)]):
                opt.zero_grad()
                loss(model(inputs), labels).backward()
                opt.step()
        return model.w.detach()

    for w in codauc.launch(train, workers=workers, simulate=True):
        assert (w - best).norm() < 1e-3 * max(1, best.norm())


def test_the_minimiser_formula_minimises_the_pairwise_loss():
    x, y = sample(80, 3, seed=0)
    w = minimiser(x, y).requires_grad_()
    h = x @ w
    ((1 - h[y][:, None] + h[~y][None, :]) ** 2).mean().backward()
    assert w.grad.abs().max() < 1e-12


@pytest.mark.long
def test_mean_squared_error_falls_as_one_over_k():
    """Fixed eta, equal steps, start at the optimum: what is left is noise, which K workers average.

    Ratios of mean squared errors for K = 1, 4, 16 are near 4 each; the seeds leave
    room of about 2.
    """
    x, y = sample(400, 2, seed=3)
    best, p = minimiser(x, y), y.double().mean().item()
    a, b, alpha = saddle_point(x @ best, y)
    stage = codauc.Stage(lr=0.1, steps=60, sync_every=10, dual_samples=8)
    errors = {}
    for workers, seeds in ((1, 48), (4, 24), (16, 12)):
        squares = []
        for seed in range(seeds):

            def train(group, seed=seed):
                model, loss = Linear(2), codauc.MinMaxAUCLoss(pos_ratio=p, link="identity")
                loss.double()
                with torch.no_grad():
                    for target, value in zip(
                        (model.w, loss.a, loss.b, loss.alpha), (best, a, b, alpha), strict=True
                    ):
                        target.copy_(value)
                opt = codauc.PPDSG(model, loss, lr=0.1, gamma=10.0)
                coda = codauc.CoDA(opt, group)
                draws = torch.Generator().manual_seed(1000 * seed + group.rank)
                index = torch.randint(len(x), (100, 8), generator=draws)
                batches = ((x[rows], y[rows]) for rows in index)
                steps = 0
                for inputs, labels in coda.stage(stage, batches):
                    opt.zero_grad()
                    loss(model(inputs), labels).backward()
                    opt.step()
                    steps += 1
                assert steps == stage.steps
                return model.w.detach()

            w = codauc.launch(train, workers=workers, simulate=True)[0]
            squares.append((w - best).square().sum().item())
        errors[workers] = sum(squares) / len(squares)
    assert 2 < errors[1] / errors[4] < 8, errors
    assert 2 < errors[4] / errors[16] < 8, errors
    assert 8 < errors[1] / errors[16] < 32, errors
