"""What compression and overlap cost in AUC: the same training, K=4 simulated workers, some seeds.

    python experiments/compression.py --data DIR [--seeds 0 1 2] [--variants coda ...]

CIFAR-10 as in network.py, the MLP, I = 64 or 128. Each stage returns the average of its iterates,
so that the last model's AUC is not at the mercy of the last few steps. Finished runs are kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from network_training import METHODS, Numbers, build, curve, load, simulate

from codauc.data import Task
from codauc.reproduce.reproduction import made_by

VARIANTS = {  # and what each is compared with
    "coda": "coda",
    "coda-int2": "coda",
    "coda-int4": "coda",
    "coda-int8": "coda",
    "coda-overlap": "coda",
    "coda-bf16": "coda",
    "coda-int8-overlap": "coda",
    "coda-128": "coda",
    "coda-128-overlap": "coda-128",
}
NUMBERS = Numbers(lr=0.03, steps=256, stages=3, average=True)
WORKERS = 4


def final_auc(data: Task, variant: str, seed: int) -> float:
    """The AUC on the test images when training has ended."""
    watch = simulate(data, "mlp", METHODS[variant], NUMBERS, WORKERS, seed, points=(1, 1))
    return float(curve(watch, build("mlp", seed), data)[-1]["auc"])


def show(results: list[dict[str, Any]]) -> str:
    """A line for each variant: AUC by seed, and the difference to the one without it."""
    found = {(r["variant"], r["seed"]): r["auc"] for r in results}
    seeds = sorted({seed for _, seed in found})
    lines = []
    for variant, other in VARIANTS.items():
        pairs = [(found.get((variant, s)), found.get((other, s))) for s in seeds]
        values = [(a, b) for a, b in pairs if a is not None and b is not None]
        if values:
            aucs = " ".join(f"{a:.4f}" for a, _ in values)
            gaps = [a - b for a, b in values]
            error = statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else float("nan")
            mean = f"{statistics.mean(gaps):+.4f} (se {error:.4f})"
            lines.append(f"{variant:18} {aucs}   less {other}: {mean}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then show all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="CIFAR-10's binary archive")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=Path("runs/compression"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "compression.jsonl"
    for seed in options.seeds:
        data = load(options.data, seed)
        for variant in options.variants:
            if not any((r["variant"], r["seed"]) == (variant, seed) for r in read(path)):
                record = {"variant": variant, "seed": seed, "commit": made_by()["commit"]}
                record["auc"] = final_auc(data, variant, seed)
                print(record, flush=True)
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
    print(show(read(path)))
    return 0


def read(path: Path) -> list[dict[str, Any]]:
    """The finished runs."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    sys.exit(main())
