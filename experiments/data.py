"""What the paper's CIFAR-10 settings come to: classes, positives, shards.

python experiments/data.py --data DIR     # the archive, binary or python form, packed or not
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from codauc._internal.text_table import table
from codauc.data import binary_task, cifar10


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="where CIFAR-10 is")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    images = cifar10(options.data)
    print("training images of each class:", images.train_y.bincount().tolist())
    print("test images of each class:    ", images.test_y.bincount().tolist())
    lines = []
    for keep in (1.0, 0.4):
        task = binary_task(images, "half", keep, options.seed)
        positives = int(task.y[task.rows].sum())
        for workers in (1, 3, 4, 16):
            shards = [task.shard(rank, workers, options.seed) for rank in range(workers)]
            dealt = torch.cat(shards)
            complete = torch.equal(dealt.sort().values, task.rows)
            disjoint = len(dealt.unique()) == len(dealt)
            lines.append(
                [
                    f"{task.pos_ratio:.1%}",
                    str(positives),
                    str(len(task.rows) - positives),
                    f"{int(task.test_y.sum())} of {len(task.test_y)}",
                    str(workers),
                    f"{min(map(len, shards))}-{max(map(len, shards))}",
                    "yes" if disjoint else "NO",
                    "yes" if complete else "NO",
                ]
            )
    header = ["p", "positives", "negatives", "test positives", "K", "shard", "disjoint", "complete"]
    print("\n" + table(header, lines))


if __name__ == "__main__":
    main()
