"""Algorithms 1 and 2 in plain loops, and CODASCA: slow, short, and the oracle of the tests.

Nothing here is shared with the fast code but the formula of F, differentiated by autograd.
`score(w, x)` gives h in terms of the flat weights w; `batches[k]` is worker k's iterator of (x, y).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from codauc.algorithm.objective import objective, positives
from codauc.algorithm.schedules import Stage

Score = Callable[[Tensor, Tensor], Tensor]
Batches = Iterator[tuple[Tensor, Tensor]]


class Point(NamedTuple):
    """v = (w, a, b) and alpha."""

    w: Tensor
    a: Tensor
    b: Tensor
    alpha: Tensor


def gradient(score: Score, point: Point, x: Tensor, y: Tensor, p: float) -> Point:
    """The gradient of the batch's mean F at `point`, by autograd."""
    leaves = [part.detach().requires_grad_() for part in point]
    w, a, b, alpha = leaves
    value = objective(score(w, x), y, (a, b, alpha), p).mean()
    return Point(*torch.autograd.grad(value, leaves))


def proximal_step(v: Tensor, g: Tensor, anchor: Tensor, eta: float, gamma: float) -> Tensor:
    """argmin_u <g, u> + |u - v|^2/(2 eta) + |u - anchor|^2/(2 gamma)."""
    return (gamma * (v - eta * g) + eta * anchor) / (eta + gamma)


def mean(points: list[Point]) -> Point:
    """The average over workers."""
    return Point(*(torch.stack(parts).mean(0) for parts in zip(*points, strict=True)))


def dsg(
    score: Score, start: Point, batches: list[Batches], stage: Stage, gamma: float, p: float
) -> Point:
    """Algorithm 2: T local steps on K workers, averaged every I steps; the mean of all iterates."""
    workers, eta = range(len(batches)), stage.lr
    points = [start for _ in workers]
    total = [Point(*(torch.zeros_like(part) for part in start)) for _ in workers]
    for t in range(1, stage.steps + 1):
        for k in workers:
            x, y = next(batches[k])
            g, now = gradient(score, points[k], x, y, p), points[k]
            w, a, b = (proximal_step(now[i], g[i], start[i], eta, gamma) for i in range(3))  # v
            points[k] = Point(w, a, b, now.alpha + eta * g.alpha)
        if t % stage.least_period == 0:
            points = [mean(points) for _ in workers]
        for k in workers:
            total[k] = Point(*(s + part for s, part in zip(total[k], points[k], strict=True)))
    averages = [Point(*(part / stage.steps for part in total[k])) for k in workers]
    return mean(averages)._replace(alpha=mean(points).alpha)


def dual_estimate(score: Score, w: Tensor, batches: list[Batches], samples: int) -> Tensor:
    """The mean over workers of (mean h over negatives - mean h over positives), m samples each."""
    terms = []
    for source in batches:
        drawn: list[tuple[Tensor, Tensor]] = []
        while sum(len(y) for _, y in drawn) < samples:
            drawn.append(next(source))
        h = torch.cat([score(w, x) for x, _ in drawn])[:samples]
        positive = positives(torch.cat([y for _, y in drawn]))[:samples]
        terms.append(h[~positive].mean() - h[positive].mean())
    return torch.stack(terms).mean()


def coda(
    score: Score, start: Point, batches: list[Batches], stages: list[Stage], gamma: float, p: float
) -> Point:
    """Algorithm 1: stages of DSG, each followed by a new estimate of alpha."""
    point = start
    for stage in stages:
        point = dsg(score, point, batches, stage, gamma, p)
        point = point._replace(alpha=dual_estimate(score, point.w, batches, stage.dual_samples))
    return point


def corrected_dsg(
    score: Score,
    start: Point,
    batches: list[Batches],
    stage: Stage,
    setting: tuple[float, float],
    own: list[Point],
) -> tuple[Point, list[Point]]:
    """Algorithm 2 with control variates; `own` are the workers' of before, `setting` gamma and p.

    Each step takes grad F_k - c_k + c. After a period c_k is the mean of its grad F_k, and c that
    of the c_k; a stage's last period does not count if it is shorter than half of the others.
    """
    (gamma, p), workers, eta = setting, range(len(batches)), stage.lr
    points, zero = [start for _ in workers], Point(*(torch.zeros_like(part) for part in start))
    total, sums, common, last = [zero for _ in workers], [zero for _ in workers], mean(own), 0
    for t in range(1, stage.steps + 1):
        for k in workers:
            found, now = gradient(score, points[k], *next(batches[k]), p), points[k]
            sums[k] = Point(*(s + g for s, g in zip(sums[k], found, strict=True)))
            g = Point(*(g - c_k + c for g, c_k, c in zip(found, own[k], common, strict=True)))
            w, a, b = (proximal_step(now[i], g[i], start[i], eta, gamma) for i in range(3))
            points[k] = Point(w, a, b, now.alpha + eta * g.alpha)
        whole = t % stage.least_period == 0
        if whole or (t == stage.steps and 2 * (t - last) >= stage.least_period):
            own = [Point(*(part / (t - last) for part in sums[k])) for k in workers]
            common, sums, last = mean(own), [zero for _ in workers], t
        points = [mean(points) for _ in workers] if whole else points
        for k in workers:
            total[k] = Point(*(s + part for s, part in zip(total[k], points[k], strict=True)))
    averages = [Point(*(part / stage.steps for part in total[k])) for k in workers]
    return mean(averages)._replace(alpha=mean(points).alpha), own


def codasca(
    score: Score, start: Point, batches: list[Batches], stages: list[Stage], gamma: float, p: float
) -> Point:
    """Algorithm 1 with control variates, which begin as zero and are kept from stage to stage."""
    point, own = start, [Point(*(torch.zeros_like(part) for part in start)) for _ in batches]
    for stage in stages:
        point, own = corrected_dsg(score, point, batches, stage, (gamma, p), own)
        point = point._replace(alpha=dual_estimate(score, point.w, batches, stage.dual_samples))
    return point
