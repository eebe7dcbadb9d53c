"""The guide's warm start beside its two parts: cross-entropy alone, and the AUC objective alone.

    python experiments/warm_start.py --seeds 10
    python experiments/warm_start.py --seeds 10 --lr 0.001

The data, the network and the numbers are those of docs/guide.md ("Steps that need no tuning"): 200
steps of four simulated workers, the first 60 of a warm start with cross-entropy. AUC is that of
20,000 further samples. With the second step size 200 steps are too few for any of the three.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn

import codauc
from codauc._internal.text_table import table
from codauc.data import Batches, even_shards
from codauc.workers import Group

WAYS = {"warm start": 60, "cross-entropy alone": 200, "AUC alone": 0}  # steps of cross-entropy


def samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """The guide's data: about 10% positives."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 20, generator=source)
    return x, x[:, :3].sum(1) + torch.randn(count, generator=source) > 2.5


def trained(x: Tensor, y: Tensor, warm: int, lr: float, seed: int) -> nn.Module:
    """A model after 200 steps, of which the first `warm` are of cross-entropy."""
    stages = [codauc.Stage(lr=lr, steps=warm, sync_every=16, estimate_ab=True)] if warm else []
    stages += codauc.constant(lr=lr, steps=200 - warm, sync_every=16) if warm < 200 else []

    def work(group: Group) -> nn.Module:
        mine = even_shards(len(x), group.size, seed=seed)[group.rank]
        batches = Batches(x[mine], y[mine], batch_size=32, seed=seed, worker=group.rank)
        model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 1))
        loss = codauc.MinMaxAUCLoss(pos_ratio=y.float().mean())
        opt = codauc.PPDAdam(model, loss, lr=lr, average=False)
        coda = codauc.CoDA(opt, group)
        for number, stage in enumerate(stages):
            objective = loss.cross_entropy if warm and not number else loss
            for inputs, labels in coda.stage(stage, batches):
                opt.zero_grad()
                objective(model(inputs), labels).backward()
                opt.step()
        return model

    return codauc.launch(work, workers=4, simulate=True, seed=seed)[0]


def main() -> None:
    """Train all ways with each seed, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.01)
    options = parser.parse_args()
    count: int = options.seeds
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in range(count):
        x, y = samples(2000, seed)
        others = samples(20_000, 10_000 + seed)
        for way, warm in WAYS.items():
            found[way].append(codauc.evaluate(trained(x, y, warm, options.lr, seed), *others).value)
    better = np.maximum(found["cross-entropy alone"], found["AUC alone"])
    gaps = np.array(found["warm start"]) - better
    rows = [[way, f"{np.mean(aucs):.4f}", f"{np.min(aucs):.4f}"] for way, aucs in found.items()]
    print(table(["200 steps", "mean AUC", "least"], rows))
    error = gaps.std(ddof=1) / count**0.5 if count > 1 else float("nan")
    print(f"warm start - the better of its parts: {gaps.mean():+.4f} (standard error {error:.4f})")


if __name__ == "__main__":
    main()
