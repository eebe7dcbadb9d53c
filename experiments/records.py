"""Bytes to a fixed AUC on CIFAR-10 with 16 workers: what each way to save communication brings.

    python experiments/records.py --data DIR [--seeds 0 1 2] [--variants NAME ...]
    python experiments/records.py --write                 # docs/records.md from what is there

The setting is that of `codauc reproduce cifar10-71 --scale small`: PatchNet, 71% positives, T_0 =
2048, eta_0 = 0.9, two stages; workers compute in lockstep (codauc.reproduce._lockstep). The target
is one worker's final AUC of the same seed, less 0.01. Each run has a file in --out that grows as it
trains; finished runs are not run again. `results.jsonl` has a line for each.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from records_page import write_page

import codauc
from codauc._internal.files import whole_file
from codauc.algorithm.schedules import geometric
from codauc.data import Batches, binary_task, cifar10
from codauc.metrics.auc_values import auc
from codauc.models import PatchNet
from codauc.reproduce._lockstep import Lockstep, LockstepProgress, patches
from codauc.reproduce.reproduction import made_by
from codauc.workers import Group

LR, STEPS, STAGES = 0.9, 2048, 2  # as `codauc reproduce` tunes them, for one worker
EVERY = 128  # steps between evaluations, which are after rounds
MARGIN = 0.01
SINGLE = "single"


class Variant(NamedTuple):
    """A way to communicate; `sync_every` is I of each stage."""

    sync_every: tuple[int, int]
    compress: str | None = None
    outer: codauc.Nesterov | None = None
    workers: int = 16


_STRONG, _MILD = codauc.Nesterov(0.7, 0.9), codauc.Nesterov(1.0, 0.5)
VARIANTS = {
    SINGLE: Variant((1, 1), workers=1),
    "i1": Variant((1, 1)),
    "i64": Variant((64, 64)),
    "i64-int4": Variant((64, 64), "int4"),
    "i64-int2": Variant((64, 64), "int2"),
    "i64-strong": Variant((64, 64), None, _STRONG),
    "i64-mild": Variant((64, 64), None, _MILD),
    "i64-int2-strong": Variant((64, 64), "int2", _STRONG),
    "i64-int2-mild": Variant((64, 64), "int2", _MILD),
    "i96-int2": Variant((96, 96), "int2"),
    "i96-int2-mild": Variant((96, 96), "int2", _MILD),
    "i128-int2": Variant((128, 128), "int2"),
    "i128-int2-mild": Variant((128, 128), "int2", _MILD),
    "i128-int2-strong": Variant((128, 128), "int2", _STRONG),
    "i64-192-int2": Variant((64, 192), "int2"),
    "i128-64-int2": Variant((128, 64), "int2"),
    "i128-64-int2-mild": Variant((128, 64), "int2", _MILD),
    "i192-64-int2": Variant((192, 64), "int2"),
    "i192-64-int2-mild": Variant((192, 64), "int2", _MILD),
}


def perform(source: Path, path: Path, name: str, seed: int, most: int | None) -> None:
    """Train, and write the curve to `path` as it comes; `most` steps are enough for a trial."""
    began, variant = time.process_time(), VARIANTS[name]
    task = binary_task(cifar10(source), "half", 0.4, seed)
    rows, tests = patches(task.x, 4), patches(task.test_x, 4)
    torch.manual_seed(seed)
    run = Lockstep(
        PatchNet(), task.pos_ratio, variant.workers, compress=variant.compress, outer=variant.outer
    )
    sources = [
        Batches(rows, task.y, 32, rows=task.shard(k, variant.workers, seed), seed=seed, worker=k)
        for k in range(variant.workers)
    ]
    record = {"variant": name, "seed": seed, "commit": made_by()["commit"], "finished": False}
    curve: list[tuple[int, int, int, float]] = []
    start = start_bytes(variant.workers)

    def save() -> None:
        seconds = time.process_time() - began
        with whole_file(path) as partial:
            text = json.dumps({**record, "cpu_seconds": round(seconds, 1), "curve": curve})
            partial.write_text(text, encoding="utf-8")

    def look(at: LockstepProgress, weights: torch.Tensor) -> None:
        if at.stage_end or at.steps // EVERY > (curve[-1][0] // EVERY if curve else 0):
            value = float(auc(run.scores(weights, tests), task.test_y))
            curve.append((at.steps, at.rounds, at.bytes + start, value))
            save()

    stages = geometric(LR, STEPS, STAGES, dual_samples=1024)
    for s, (stage, every) in enumerate(zip(stages, variant.sync_every, strict=True)):
        steps = stage.steps if most is None else max(1, min(stage.steps, most - s * STEPS))
        run.stage(replace(stage, sync_every=every, steps=steps), sources, look)
    record["finished"] = most is None
    save()


def start_bytes(workers: int) -> int:
    """What the worker that sends most sends before the first step, and at the start of stages."""

    def work(group: Group) -> int:
        torch.manual_seed(0)
        coda = codauc.CoDA(codauc.PPDSG(PatchNet(), codauc.MinMaxAUCLoss(pos_ratio=0.71)), group)
        for stage in geometric(0.1, STEPS, STAGES):
            coda.begin(stage)
            coda.current = None
        return group.ledger.bytes_sent

    return max(codauc.launch(work, workers=workers, simulate=True))


def results(out: Path) -> list[dict[str, Any]]:
    """Every run so far: its curve, and what it needed to the target where that is known."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*.json"))]
    singles = [r for r in found if r["variant"] == SINGLE and r["finished"]]
    targets = {r["seed"]: r["curve"][-1][3] - MARGIN for r in singles}
    for result in found:
        target, curve = targets.get(result["seed"]), result["curve"]
        hits = [] if target is None else [point for point in curve if point[3] >= target]
        result |= {"auc": curve[-1][3], "target": target, "hit": hits[0] if hits else None}
    text = "".join(json.dumps(result) + "\n" for result in found)
    (out / "results.jsonl").write_text(text, encoding="utf-8")
    return found


def show(found: list[dict[str, Any]]) -> None:
    """A line for each run."""
    for r in found:
        step, rounds, sent, _ = r["hit"] or (0, 0, 0, 0)
        reached = f"{step:5d} steps {rounds:5d} rounds {sent / 1e6:8.3f} MB" if step else "never"
        last = f"{r['curve'][-1][0]:5d} steps, AUC {r['auc']:.4f}"
        print(f"{r['variant']:24} {r['seed']} {last}; to the target: {reached}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then show all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="CIFAR-10's archive or folder; without: no runs")
    parser.add_argument("--out", type=Path, default=Path("runs/records"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--most", type=int, help="steps after which a trial ends")
    parser.add_argument("--write", action="store_true", help="write docs/records.md")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    runs = [(name, seed) for name in options.variants for seed in options.seeds]
    for name, seed in runs if options.data else []:
        path = options.out / f"{name}-seed{seed}.json"
        if not (path.exists() and json.loads(path.read_text(encoding="utf-8"))["finished"]):
            perform(options.data, path, name, seed, options.most)
            results(options.out)
    found = results(options.out)
    show(found)
    if options.write:
        write_page(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
