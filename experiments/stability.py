"""Do a, b and alpha stay where they belong, for any share of positives, batch and shards?

    python experiments/stability.py

For p from 0.5 to 1e-5, batches of 8 to 1,024, K = 1 and 8 workers, and three kinds of shards
(equal; positives shared out by a Dirichlet distribution of 0.1; one class only) a small network is
trained for 96 steps with a round every 16. After each step it is noted how far a and b are outside
of all scores so far, and how large alpha is. Labels are drawn with each worker's own share of
positives. PPDAdam has its defaults; PPDSG has the largest step size that is not warned about.
"""

from __future__ import annotations

import argparse
import itertools
import math
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import codauc
from codauc._internal.progress import Progress
from codauc._internal.text_table import table
from codauc.workers import Group

RATIOS = (0.5, 0.1, 0.01, 1e-3, 1e-4, 1e-5)
BATCHES = (8, 64, 256, 1024)
SHARDS = ("equal", "Dirichlet 0.1", "one class only")
STEPS, EVERY = 96, 16


class Seen(NamedTuple):
    """The worst of a run: how far a or b were outside of the scores, and |alpha|."""

    outside: float
    alpha: float


def shares(kind: str, p: float, workers: int, seed: int) -> list[float]:
    """Each worker's share of positives."""
    if kind == "equal":
        return [p] * workers
    if kind == "one class only":
        some = max(1, round(p * workers)) if workers > 1 else seed % 2
        return [float(rank < some) for rank in range(workers)]
    parts = np.random.default_rng(seed).dirichlet([0.1] * workers)
    return [min(1.0, float(p * workers * part)) for part in parts]


def batches(share: float, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Samples whose first number tells the classes apart, somewhat."""
    source = torch.Generator().manual_seed(seed)
    while True:
        y = torch.rand(size, generator=source) < share
        x = torch.randn(size, 4, generator=source)
        x[:, 0] += y
        yield x, y


def run(kind: type[codauc.PPDSG], p: float, size: int, parts: list[float]) -> Seen:
    """Train; the worst of all workers and steps."""
    seen: list[Seen] = []
    scores = [0.0, 0.0]  # the least and the largest so far; a and b begin there

    def work(group: Group) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        loss = codauc.MinMaxAUCLoss(pos_ratio=p)
        lr = 0.01 if kind is codauc.PPDAdam else 1 / (2 * max(p, 1 - p))
        opt = kind(model, loss, lr=lr)
        coda = codauc.CoDA(opt, group, dual="pooled")
        stage = codauc.Stage(lr=lr, steps=STEPS, sync_every=EVERY, dual_samples=size)
        for x, y in coda.stage(stage, batches(parts[group.rank], size, group.rank)):
            opt.zero_grad()
            logits = model(x)
            loss(logits, y).backward()
            opt.step()
            h = logits.detach().sigmoid()
            scores[:] = min(scores[0], float(h.min())), max(scores[1], float(h.max()))
            a, b, alpha = (float(t) for t in (loss.a, loss.b, loss.alpha))
            if not all(map(math.isfinite, (a, b, alpha, float(logits.detach().sum())))):
                seen.append(Seen(math.inf, math.inf))
                return
            outside = max(scores[0] - min(a, b), max(a, b) - scores[1], 0.0)
            seen.append(Seen(outside, abs(alpha)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of shards without a class, of labels unlike pos_ratio
        codauc.launch(work, workers=len(parts), simulate=True)
    return Seen(max(s.outside for s in seen), max(s.alpha for s in seen))


def main() -> None:
    """All runs, and the worst of each kind of shards and ratio."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--optimizers", nargs="+", default=["PPDAdam", "PPDSG"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 8])
    options = parser.parse_args()
    torch.set_num_threads(1)
    grid = list(itertools.product(options.optimizers, SHARDS, RATIOS, BATCHES, options.workers))
    worst: dict[Any, list[Seen]] = {}
    with Progress(len(grid), label="runs") as progress:
        for done, (name, shards, p, size, workers) in enumerate(grid, 1):
            found = run(getattr(codauc, name), p, size, shares(shards, p, workers, seed=done))
            worst.setdefault((name, shards, p), []).append(found)
            progress.update(done, f"{name} {shards} p={p:g}")
    rows = [
        [*map(str, key), f"{max(s.outside for s in of):.2g}", f"{max(s.alpha for s in of):.3g}"]
        for key, of in worst.items()
    ]
    print(table(["step", "shards", "p", "a, b outside of scores", "largest |alpha|"], rows))


if __name__ == "__main__":
    main()
