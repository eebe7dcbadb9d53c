"""The default for images beside what it was before, and beside cross-entropy with all else alike.

    python experiments/images.py --fashion DIR --cifar DIR --out images.jsonl
    python experiments/images.py ... --out images.jsonl --tasks "coats, 2%" --seeds 0 1 2

Each task is a class, or two, of Fashion-MNIST (28 x 28, grey) or CIFAR-10 (32 x 32, colour) against
the rest: 4,400 images drawn by the seed, positives thinned to a share, of which 15% choose the
model. AUC is that of the first 6,000 test images, all of which are kept. The recipe was chosen on
the tasks of `CHOSEN`. Every result is a line of the file, so that an interrupted call goes on;
seconds are those of one thread's processor time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from codauc import AUCClassifier
from codauc._internal.text_table import table
from codauc.data.standard_images import Images, cifar10, fashion_mnist

Array = NDArray[Any]


class Task(NamedTuple):
    """Classes of a data set against the rest, and the share of positives in training."""

    data: str
    classes: tuple[int, ...]
    share: float


CHOSEN = {
    "shirts, 10%": Task("fashion", (6,), 0.1),
    "cats and dogs, 30%": Task("cifar", (3, 5), 0.3),
    "pullovers, 2%": Task("fashion", (2,), 0.02),
    "ships, 2%": Task("cifar", (8,), 0.02),
}
HELD_OUT = {
    "coats, 2%": Task("fashion", (4,), 0.02),
    "deer and horses, 30%": Task("cifar", (4, 7), 0.3),
    "cars, 2%": Task("cifar", (1,), 0.02),
    "coats, 10%": Task("fashion", (4,), 0.1),
    "birds, 10%": Task("cifar", (2,), 0.1),
    "coats, 30%": Task("fashion", (4,), 0.3),
}
METHODS = ("new", "bce", "before")
SAMPLES, TESTED = 4400, 6000


def drawn(images: Images, task: Task, seed: int) -> tuple[Array, Array, Array, Array]:
    """Training images with their labels, and the test images with theirs."""
    rng = np.random.default_rng(seed)
    y, test_y = (np.isin(part.numpy(), task.classes) for part in (images.train_y, images.test_y))
    count = round(SAMPLES * task.share)
    positive, negative = (rng.permutation(np.flatnonzero(y == label)) for label in (True, False))
    rows = rng.permutation(np.concatenate([positive[:count], negative[: SAMPLES - count]]))
    return (
        images.train_x.numpy()[rows],
        y[rows],
        images.test_x.numpy()[:TESTED],
        test_y[:TESTED],
    )


def classifier(method: str, positives: int, seed: int) -> AUCClassifier:
    """The default, cross-entropy, or the default before this one (of 7d36df5)."""
    if method != "before":
        return AUCClassifier(recipe={"new": "default"}.get(method, method), random_state=seed)
    train = 0.85 * SAMPLES
    total = max(min(40 * train / 64, 3 * 0.85 * positives), 1000)
    arguments = {"augment": "none"}
    steps = round(0.7 * total)
    return AUCClassifier(
        "convnet",
        model_arguments={"residual": False},
        lr=1e-3,
        weight_decay=0.0,
        steps=steps,
        warm_start=0.3,
        recipe_arguments=arguments,
        random_state=seed,
    )


def result(images: Images, task: Task, method: str, seed: int) -> dict[str, Any]:
    """The test AUC of one method, its processor time and its steps."""
    x, y, test_x, test_y = drawn(images, task, seed)
    model = classifier(method, int(y.sum()), seed)
    began = time.process_time()
    model.fit(x, y)
    seconds = time.process_time() - began
    return {"auc": model.score(test_x, test_y), "seconds": seconds, "steps": model.n_iter_}


def lines(found: dict[tuple[str, str, int], dict[str, Any]]) -> Iterator[list[str]]:
    """Of each task: the mean AUC of each method, and the differences with their standard error."""
    for name in dict.fromkeys(name for name, _, _ in found):
        values = {m: {s: r["auc"] for (n, k, s), r in found.items() if (n, k) == (name, m)}
                  for m in METHODS}  # fmt: skip
        seconds = [found[name, "new", seed]["seconds"] for seed in values["new"]]
        yield [
            name,
            str(len(values["new"])),
            *(f"{np.mean(list(values[m].values())):.4f}" if values[m] else "" for m in METHODS),
            *(difference(values["new"], values[m]) for m in METHODS[1:]),
            f"{np.mean(seconds):.0f}" if seconds else "",
        ]


def difference(one: dict[int, float], other: dict[int, float]) -> str:
    """The mean difference over the seeds that both have."""
    gaps = [one[seed] - other[seed] for seed in one.keys() & other.keys()]
    if len(gaps) < 2:
        return f"{gaps[0]:+.4f}" if gaps else ""
    return f"{np.mean(gaps):+.4f} ({np.std(gaps, ddof=1) / len(gaps) ** 0.5:.4f})"


def main() -> None:
    """Measure what the file lacks, and print the table of all that it holds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fashion", type=Path, required=True, help="Fashion-MNIST")
    parser.add_argument("--cifar", type=Path, required=True, help="CIFAR-10")
    parser.add_argument("--out", type=Path, required=True, help="file of results")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    known = CHOSEN | HELD_OUT
    parser.add_argument("--tasks", nargs="+", default=list(HELD_OUT), choices=known, metavar="TASK",
                        help="expected: " + "; ".join(known).replace("%", "%%"))  # fmt: skip
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = {"fashion": fashion_mnist(options.fashion), "cifar": cifar10(options.cifar)}
    found = {}
    if options.out.exists():
        for line in map(json.loads, options.out.read_text().splitlines()):
            found[line["task"], line["method"], line["seed"]] = line
    for seed in options.seeds:
        for name in options.tasks:
            task = known[name]
            for method in options.methods:
                if (name, method, seed) in found:
                    continue
                line = {"task": name, "method": method, "seed": seed}
                line |= result(data[task.data], task, method, seed)
                found[name, method, seed] = line
                with options.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(json.dumps(line), flush=True)
    heads = ["task", "seeds", *METHODS, *(f"- {m} (se)" for m in METHODS[1:]), "seconds"]
    print(table(heads, list(lines(found))))


if __name__ == "__main__":
    main()
