"""Workers whose data differ: what control variates, and weights by samples, win back.

    python experiments/sites.py images --fashion DIR --cifar DIR --out images.jsonl
    python experiments/sites.py away --fashion DIR --cifar DIR --out images.jsonl
    python experiments/sites.py tables --folder data/tasks --out tables.jsonl
    python experiments/sites.py show --out images.jsonl

`images`: classes 0 to 4 of CIFAR-10 or Fashion-MNIST against the others, 40% of the negatives kept
(p = 71%), images at half their side, an MLP with 64 hidden units, 8 workers that average every 64
steps. Shards are even, or each of the ten classes ("classes"), or of the two labels ("labels"), is
shared out by Dirichlet(0.1). `away`: the same, where workers take no part in some rounds. `tables`:
the default recipe as `codauc train --simulate 8 --skew 0.1` has it. Every result is a line of the
file, so that an interrupted call goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from task_data import load
from torch import Tensor, nn

import codauc
from codauc._internal.text_table import table
from codauc.data import Batches, cifar10, fashion_mnist
from codauc.data.shards import even_shards, skewed_shards
from codauc.metrics.auc_values import auc

WORKERS, SYNC_EVERY, BATCH, HIDDEN, SPREAD = 8, 64, 32, 64, 0.1
STEP_SIZES = {"sgd": 0.7, "adam": 3e-3}  # chosen on even shards, seed 0
METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weighted": {"weight": "samples"},
    "corrected": {"correct": "scaffold"},
    "both": {"weight": "samples", "correct": "scaffold"},
}
# What is measured: an optimizer, shards, a method.
RUNS = [
    (optimizer, shards, method)
    for optimizer, shards, methods in (
        ("sgd", "even", ("plain", "both")),
        ("sgd", "classes", ("plain", "weighted", "both")),
        ("sgd", "labels", ("plain", "both")),
        ("adam", "even", ("plain", "both")),
        ("adam", "classes", ("plain", "weighted", "both")),
        ("adam", "labels", ("plain", "weighted", "both")),
    )
    for method in methods
]
AWAY: dict[str, codauc.Present | None] = {
    "all": None,
    "30% away": codauc.Present(0.7),
    "worker 1 gone after 5 rounds": codauc.Present(gone=((1, 5),)),
}
TABLES = ("spam", "digits", "page-blocks0", "car-good", "late loans")
_PLAIN = {"skew": SPREAD, "worker_weight": "equal", "correct": "none", "sync_every": 32}
_WEIGHTED, _CORRECTED = {"worker_weight": "samples"}, {"correct": "scaffold"}
TABLE_WAYS: dict[str, dict[str, Any]] = {
    "even": {},
    "plain": _PLAIN,
    "default": {"skew": SPREAD},
    "weighted": {**_PLAIN, **_WEIGHTED},
    "corrected": {**_PLAIN, **_CORRECTED},
    "both": {**_PLAIN, **_WEIGHTED, **_CORRECTED},
    "weighted, I = 8": {**_PLAIN, **_WEIGHTED, "sync_every": 8},
    "corrected, I = 8": {**_PLAIN, **_CORRECTED, "sync_every": 8},
    "both, I = 16": {**_PLAIN, **_WEIGHTED, **_CORRECTED, "sync_every": 16},
}


@lru_cache(maxsize=1)
def images(name: str, folder: Path, seed: int) -> dict[str, Tensor]:
    """Inputs, labels and classes for training, inputs and labels for testing."""
    found = (cifar10 if name == "cifar" else fashion_mnist)(folder)
    x, test = (_inputs(part) for part in (found.train_x, found.test_x))
    mean, scale = x.mean(0), x.std(0) + 0.1
    y, rng = found.train_y < 5, torch.Generator().manual_seed(seed)
    kept = y | (torch.rand(len(y), generator=rng) < 0.4)
    inputs = {"x": ((x - mean) / scale)[kept], "test_x": (test - mean) / scale}
    return {**inputs, "y": y[kept], "classes": found.train_y[kept], "test_y": found.test_y < 5}


def _inputs(pixels: Tensor) -> Tensor:
    """Images at half their side, as vectors."""
    x = pixels.float() / 255
    return nn.functional.avg_pool2d(x if x.dim() == 4 else x.unsqueeze(1), 2).flatten(1)


def shards_of(data: dict[str, Tensor], kind: str, seed: int) -> list[Tensor]:
    """Who gets which training images."""
    if kind == "even":
        return even_shards(len(data["y"]), WORKERS, seed)
    return skewed_shards(data["classes" if kind == "classes" else "y"], WORKERS, SPREAD, seed)


def stages_of(optimizer: str) -> list[codauc.Stage]:
    """The paper's form, or one stage whose step size falls as a half wave."""
    every = {"sync_every": SYNC_EVERY, "dual_samples": 512}
    if optimizer == "sgd":
        return codauc.geometric(STEP_SIZES["sgd"], 384, 2, **every)
    return [codauc.Stage(STEP_SIZES["adam"], 960, **every)]


def worker(group: codauc.Group, data: dict[str, Tensor], run: dict[str, Any]) -> list[float]:
    """One worker's training; the test AUC after every round."""
    shards = shards_of(data, run["shards"], run["seed"])
    mine, labels = shards[group.rank], data["y"]
    torch.manual_seed(run["seed"])
    model = nn.Sequential(nn.Linear(data["x"].shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
    loss = codauc.MinMaxAUCLoss(pos_ratio=float(labels.float().mean()), validate=False)
    opt: codauc.PPDSG
    if run["optimizer"] == "sgd":
        opt = codauc.PPDSG(model, loss, lr=STEP_SIZES["sgd"], gamma=500.0)
    else:
        opt = codauc.PPDAdam(model, loss, lr=STEP_SIZES["adam"], average=False)
    counts = [(len(shard), int(labels[shard].sum())) for shard in shards]
    ways = {**METHODS[run["method"]], "present": AWAY[run.get("away", "all")]}
    coda = codauc.CoDA(opt, group, dual="auto", shards=counts, **ways)
    source, found = Batches(data["x"][mine], labels[mine], BATCH, seed=run["seed"]), list[float]()
    for stage in stages_of(run["optimizer"]):
        for x, y in coda.stage(stage, source):
            opt.zero_grad()
            loss(model(x).squeeze(1), y).backward()
            _set_step_size(opt, run["optimizer"], stage)
            opt.step()
            if group.rank == 0 and coda.alike:
                found.append(_test_auc(model, data))
        found.append(_test_auc(model, data) if group.rank == 0 else 0.0)
    return found


def _set_step_size(opt: codauc.PPDSG, optimizer: str, stage: codauc.Stage) -> None:
    if optimizer == "adam":
        place = opt.steps / stage.steps
        wave = min(1.0, place / 0.05 + 0.01) * 0.5 * (1 + math.cos(math.pi * place))
        opt.param_groups[0]["lr"] = opt.base_lr * max(wave, 1e-6)


@torch.no_grad()
def _test_auc(model: nn.Module, data: dict[str, Tensor]) -> float:
    return float(auc(model(data["test_x"]).squeeze(1).numpy(), data["test_y"].numpy()))


def image_result(data: dict[str, Tensor], run: dict[str, Any]) -> dict[str, Any]:
    """A run, its AUC at the end and after every round."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = codauc.launch(lambda g: worker(g, data, run), workers=WORKERS, simulate=True)[0]
    return {**run, "auc": found[-1], "rounds": [round(value, 5) for value in found]}


def table_result(folder: Path, run: dict[str, Any]) -> dict[str, Any]:
    """The default recipe on one split of a task, eight workers."""
    task = load(folder, run["task"])
    frame = task.x.assign(label_of_the_task=task.y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = codauc.train(
            frame,
            run["out"],
            target="label_of_the_task",
            overwrite=True,
            quiet=True,
            workers=WORKERS,
            simulate=True,
            nan="missing",
            seed=run["seed"],
            steps=run["steps"],
            **TABLE_WAYS[run["way"]],
        )
    sizes = [count["samples"] for count in found["workers"]]
    told = {name: found[name] for name in ("best_step", "rounds", "bytes_per_worker")}
    return {**run, "auc": found["test_auc"], "samples": sizes, **told}


def image_runs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What is to be measured on images."""
    for seed in options.seeds:
        for name in options.data:
            if options.what == "images":
                for optimizer, shards, method in RUNS:
                    if optimizer in options.optimizers and method in options.methods:
                        yield {"data": name, "optimizer": optimizer, "shards": shards,
                               "method": method, "seed": seed}  # fmt: skip
            else:
                for away in AWAY:
                    yield {"data": name, "optimizer": "adam", "shards": "classes",
                           "method": "both", "seed": seed, "away": away}  # fmt: skip


def table_runs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What is to be measured on tables."""
    for seed in options.seeds:
        for task in options.tables:
            for way in options.ways:
                yield {"task": task, "way": way, "seed": seed, "steps": options.steps}


def lines(path: Path) -> list[dict[str, Any]]:
    """The finished runs."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def show(found: list[dict[str, Any]]) -> str:
    """Means over seeds, and the difference from the first of each kind with its standard error."""
    keys = [k for k in ("data", "optimizer", "shards", "task", "method", "way", "away")
            if any(k in line for line in found)]  # fmt: skip
    groups: dict[tuple[str, ...], dict[int, dict[str, Any]]] = {}
    for line in found:
        groups.setdefault(tuple(str(line.get(k, "")) for k in keys), {})[line["seed"]] = line
    rows = []
    for key, runs in groups.items():
        first = next(g for k, g in groups.items() if k[: len(key) - 1] == key[:-1])
        gaps = np.array([runs[s]["auc"] - first[s]["auc"] for s in runs.keys() & first.keys()])
        error = gaps.std(ddof=1) / len(gaps) ** 0.5 if len(gaps) > 1 else float("nan")
        mean = np.mean([line["auc"] for line in runs.values()])
        gap = "" if runs is first else f"{gaps.mean():+.4f} ({error:.4f})"
        rows.append([*key, str(len(runs)), f"{mean:.4f}", gap, _rounds_to(runs, first)])
    return table([*keys, "seeds", "AUC", "- first (se)", "rounds to its AUC"], rows)


def _rounds_to(runs: dict[int, dict[str, Any]], first: dict[int, dict[str, Any]]) -> str:
    """In the mean, the first round with the AUC at which the first of the kind ended."""
    found = []
    for seed in sorted(runs.keys() & first.keys()):
        aucs = runs[seed].get("rounds")
        if isinstance(aucs, list):
            reached = [i for i, value in enumerate(aucs, 1) if value >= first[seed]["rounds"][-1]]
            found.append(f"{reached[0] if reached else '-'}/{len(aucs)}")
    return " ".join(found)


def main() -> None:
    """Measure what the file lacks, and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("what", choices=("images", "away", "tables", "show"))
    add("--fashion", type=Path, help="Fashion-MNIST")
    add("--cifar", type=Path, help="CIFAR-10")
    add("--folder", type=Path, help="for the wheels of the tables")
    add("--out", type=Path, required=True, help="file of results")
    add("--seeds", type=int, nargs="+", default=[1, 2, 3])
    add("--data", nargs="+", default=["cifar", "fashion"], choices=["cifar", "fashion"])
    add("--optimizers", nargs="+", default=["sgd", "adam"], choices=["sgd", "adam"])
    add("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    add("--tables", nargs="+", default=list(TABLES))
    add("--steps", type=int, help="of tables: fewer than the recipe's, for a quick look")
    add("--ways", nargs="+", default=list(TABLE_WAYS), choices=list(TABLE_WAYS), metavar="WAY")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = lines(options.out)
    if options.what != "show":
        todo = (table_runs if options.what == "tables" else image_runs)(options)
        for run in todo:
            if any(
                run.items()
                <= {k: v for k, v in line.items() if k != "rounds" and k != "samples"}.items()
                for line in known
            ):
                continue
            if options.what == "tables":
                place = str(options.out.with_suffix(".run"))
                result = table_result(options.folder, {**run, "out": place})
            else:
                folder = options.cifar if run["data"] == "cifar" else options.fashion
                result = image_result(images(run["data"], folder, run["seed"]), run)
            known.append(result)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            print(json.dumps(result), flush=True)
    for kind in ([x for x in known if "away" not in x], [x for x in known if "away" in x]):
        if kind:
            print(show(kind))


if __name__ == "__main__":
    main()
