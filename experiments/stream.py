"""A stream with unknown p against a known one: does the estimate cost anything?

    python experiments/stream.py [--seeds 3] [--workers 4] [--steps 600] [--data fashion]

K simulated workers read endless streams of fresh samples: positives, with probability p, come from
one of two clusters, negatives from the middle between them, so that a network is needed. Once the
loss is told p, once it is not and follows the labels of all workers. The same streams, the same
start. AUC is that of 50,000 further samples. With `--data fashion` the stream is Fashion-MNIST's
sample, shirts against the rest, shifted by a random pixel or two, and AUC that of its 500 test
images.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import codauc
from codauc._internal.text_table import table
from codauc.data import Stream, fashion_tiny
from codauc.models import MLP, ConvNet

SHIRT, FEATURES = 6, 10


class Setting(NamedTuple):
    """A stream for each worker, a network, and data to test it on."""

    stream: Iterator[tuple[Tensor, int]]
    model: nn.Module
    test_x: Tensor
    test_y: Tensor


def sample(p: float, source: torch.Generator) -> tuple[Tensor, int]:
    """A positive from one of two clusters, or a negative from between them."""
    y = int(torch.rand((), generator=source) < p)
    side = 2 * int(torch.rand((), generator=source) < 0.5) - 1
    x = torch.randn(FEATURES, generator=source)
    x[:3] += 1.2 * side * y
    return x, y


def clusters(p: float, seed: int, rank: int) -> Setting:
    """Endless fresh samples, and 50,000 to test on."""
    source = torch.Generator().manual_seed(1000 * seed + rank)
    test = torch.Generator().manual_seed(999_999)
    x, y = zip(*(sample(p, test) for _ in range(50_000)), strict=True)
    endless = iter(lambda: sample(p, source), None)
    return Setting(endless, MLP(FEATURES, (64, 64)), torch.stack(x), torch.tensor(y))


def fashion(p: float, seed: int, rank: int) -> Setting:
    """Shirts, with probability p, among other things to wear."""
    source, images = torch.Generator().manual_seed(1000 * seed + rank), fashion_tiny()
    shirt = images.train_y == SHIRT
    kinds = [(~shirt).nonzero().flatten(), shirt.nonzero().flatten()]

    def stream() -> Iterator[tuple[Tensor, int]]:
        while True:
            y = int(torch.rand((), generator=source) < p)
            pick = int(torch.randint(len(kinds[y]), (), generator=source))
            moves = torch.randint(-2, 3, (2,), generator=source).tolist()
            yield images.train_x[kinds[y][pick]].roll(moves, (1, 2)), y

    return Setting(stream(), ConvNet(widths=(8, 16, 32)), images.test_x, images.test_y == SHIRT)


def train(group: Any, data: str, known: bool, p: float, seed: int, steps: int) -> dict[str, Any]:
    """One worker's part; tells p, alpha and the test AUC at the end, and p on the way."""
    torch.manual_seed(seed)
    setting = {"clusters": clusters, "fashion": fashion}[data](p, seed, group.rank)
    source, model = Stream(setting.stream, 32), setting.model
    loss = codauc.MinMaxAUCLoss(pos_ratio=p if known else None)
    opt = codauc.PPDSG(model, loss, lr=0.5, momentum=0.9)
    coda = codauc.CoDA(opt, group)
    path = []
    for stage in codauc.geometric(lr=0.5, steps=steps, stages=2, sync_every=16, dual_samples=4096):
        for x, y in coda.stage(stage, source):
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
            if opt.steps % 16 == 0:
                path.append(loss.pos_ratio.item())
    told = {"p": loss.pos_ratio.item(), "alpha": loss.alpha.item(), "path": path}
    if group.rank:
        return told
    return {**told, "auc": codauc.evaluate(model, setting.test_x, setting.test_y).value}


def main() -> None:
    """Run all and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=600, help="of the first stage (default: 600)")
    parser.add_argument("--pos-ratio", type=float, default=0.1, help="the true p (default: 0.1)")
    parser.add_argument("--data", choices=("clusters", "fashion"), default="clusters")
    parser.add_argument("--out", type=Path, default=Path("runs/stream.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results, lines = [], []
    for seed in range(options.seeds):
        for known in (True, False):
            work = partial(
                train,
                data=options.data,
                known=known,
                p=options.pos_ratio,
                seed=seed,
                steps=options.steps,
            )
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
