"""A stream with unknown p against a known one: does the estimate cost anything?

    python experiments/stream.py [--seeds 3] [--workers 4] [--steps 600]

K simulated workers read endless streams of Fashion-MNIST's sample, shirts against the rest, each
image shifted by a random pixel or two; positives are drawn with probability p. Once the loss is
told p, once it is not and follows the labels of all workers. The same streams, the same start.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import codauc
from codauc.data import Stream, fashion_tiny
from codauc.models import ConvNet
from codauc.report.table import table

SHIRT = 6


def stream(
    images: Tensor, labels: Tensor, p: float, seed: int, rank: int
) -> Iterator[tuple[Tensor, int]]:
    """Endless samples; nobody is told p."""
    source = torch.Generator().manual_seed(1000 * seed + rank)
    kinds = [(labels != SHIRT).nonzero().flatten(), (labels == SHIRT).nonzero().flatten()]
    while True:
        y = int(torch.rand((), generator=source) < p)
        pick = int(torch.randint(len(kinds[y]), (), generator=source))
        moves = torch.randint(-2, 3, (2,), generator=source).tolist()
        yield images[kinds[y][pick]].roll(moves, (1, 2)), y


def train(group: Any, known: bool, p: float, seed: int, steps: int) -> dict[str, Any]:
    """One worker's part; tells p, alpha and the test AUC at the end, and p on the way."""
    images = fashion_tiny()
    source = Stream(stream(images.train_x, images.train_y, p, seed, group.rank), 32)
    torch.manual_seed(seed)
    model = ConvNet(widths=(8, 16, 32))
    loss = codauc.MinMaxAUCLoss(pos_ratio=p if known else None)
    opt = codauc.PPDSG(model, loss, lr=0.5, momentum=0.9)
    coda = codauc.CoDA(opt, group)
    path = []
    for stage in codauc.geometric(lr=0.5, steps=steps, stages=2, sync_every=16, dual_samples=512):
        for x, y in coda.stage(stage, source):
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
            if opt.steps % 16 == 0:
                path.append(loss.pos_ratio.item())
    test = codauc.evaluate(model, images.test_x, images.test_y == SHIRT)
    return {"p": loss.pos_ratio.item(), "alpha": loss.alpha.item(), "auc": test.value, "path": path}


def main() -> None:
    """Run all and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=600, help="of the first stage (default: 600)")
    parser.add_argument("--pos-ratio", type=float, default=0.1, help="the true p (default: 0.1)")
    parser.add_argument("--out", type=Path, default=Path("runs/stream.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results, lines = [], []
    for seed in range(options.seeds):
        for known in (True, False):
            work = partial(train, known=known, p=options.pos_ratio, seed=seed, steps=options.steps)
            found = codauc.launch(work, workers=options.workers, simulate=True, seed=seed)[0]
            results.append({"seed": seed, "known": known, **found})
            name = "known" if known else "estimated"
            lines.append([str(seed), name, *(f"{found[key]:.4f}" for key in ("p", "alpha", "auc"))])
            print(f"seed {seed}, p {name}: AUC {found['auc']:.4f}", flush=True)
    print("\n" + table(["seed", "p", "at the end", "alpha", "test AUC"], lines))
    pairs = list(zip(results[::2], results[1::2], strict=True))
    for key in ("alpha", "auc"):
        apart = [other[key] - one[key] for one, other in pairs]
        between = [one[key] for one, _ in pairs]
        spread = statistics.stdev(between) if len(between) > 1 else float("nan")
        mean = statistics.mean(apart)
        print(f"{key}: estimated - known {mean:+.4f} in the mean; between seeds {spread:.4f}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
