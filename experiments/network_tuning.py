"""The choice of every method's numbers: one grid for all, in one process, without a network."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from network_report import MARGIN, reached
from network_training import METHODS, TUNED, Numbers, build, curve, load, simulate

from codauc.data import Task

# Step sizes times schedules of one length: constant, divided by 3 once, and twice.
GRIDS: dict[str, tuple[tuple[float, ...], tuple[tuple[int, int], ...]]] = {
    "mlp": ((0.003, 0.01, 0.03, 0.1), ((3072, 1), (768, 2), (256, 3))),
    "convnet": ((0.01, 0.03, 0.1), ((1024, 1),)),
}
SEED = 1  # the experiment's own seed is another
POINTS = (1, 48)


def tune(directory: Path, model: str, methods: Sequence[str], workers: int, out: Path) -> None:
    """Try the whole grid with each method and keep, of each, what reaches the target first.

    The target is the best AUC of data parallel training anywhere on the grid, less 0.005; where
    a method never reaches it, its best AUC decides. Results are kept in `out`, so that an
    interrupted call goes on where it was.
    """
    data, path = load(directory, SEED), out / f"tuning-{model}.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    names = list(dict.fromkeys(METHODS[name].like or name for name in methods))
    for name, (lr, schedule) in product(names, product(*GRIDS[model])):
        numbers = {"lr": lr, "steps": schedule[0], "stages": schedule[1]}
        key = {"method": name, "workers": workers, **numbers}
        if not any(entry["key"] == key for entry in done):
            done.append({"key": key, "history": attempt(data, model, name, numbers, workers)})
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[-1]) + "\n")
    choose(done, model, names)


def attempt(
    data: Task, model: str, name: str, numbers: dict[str, Any], workers: int
) -> list[dict[str, Any]]:
    """Steps and AUC of one run; it ends where the run diverges."""
    start = time.perf_counter()
    try:
        watch = simulate(data, model, METHODS[name], Numbers(**numbers), workers, SEED, POINTS)
        history = curve(watch, build(model, SEED), data)
    except (ValueError, RuntimeError) as error:
        print(f"{name} {numbers}: {str(error)[:80]}", flush=True)
        return []
    best = max(history, key=lambda point: point["auc"])
    took = time.perf_counter() - start
    print(
        f"{name} {numbers}: best AUC {best['auc']:.4f} at step {best['step']}, "
        f"last {history[-1]['auc']:.4f} ({took:.0f} s)",
        flush=True,
    )
    return [{"step": point["step"], "auc": point["auc"]} for point in history]


def choose(results: list[dict[str, Any]], model: str, names: Sequence[str]) -> None:
    """Write the best numbers of each method beside those of other models."""
    best = {
        name: max(p["auc"] for r in results if r["key"]["method"] == name for p in r["history"])
        for name in names
    }
    target = best.get("ddp", max(best.values())) - MARGIN
    chosen = json.loads(TUNED.read_text(encoding="utf-8")) if TUNED.is_file() else {}
    for name in names:
        mine = [r for r in results if r["key"]["method"] == name and r["history"]]
        first = min(mine, key=lambda result: _rank(result["history"], target))
        hit = reached(first["history"], target)
        numbers = {key: first["key"][key] for key in ("lr", "steps", "stages")}
        chosen.setdefault(model, {})[name] = numbers
        where = f"at step {hit['step']}" if hit else "never"
        print(f"{name}: {numbers} reaches {target:.4f} {where}; best of the grid {best[name]:.4f}")
    TUNED.write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")
    print(f"Written: {TUNED}")


def _rank(history: list[dict[str, Any]], target: float) -> tuple[float, float]:
    hit = reached(history, target)
    return (hit["step"] if hit else math.inf, -max(point["auc"] for point in history))
