"""What small messages cost the default recipe: four simulated workers, real tables.

    python experiments/codecs.py --folder DIR [--tasks spam default ...] [--seeds 0 1 2]

Differences are paired by split. Bytes are the ledger's, of one worker and round, without start and
evaluations. The data are those of tasks.py. Every fit is kept in codecs.jsonl, so that a second
call goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from task_data import TASKS, load
from task_files import divide, fetch

import codauc
from codauc.reproduce.reproduction import made_by
from codauc.runs.directory import RunFolder

CODECS = ("float32", "int8", "int4", "int2")
USUAL = ("spam", "digits", "default", "page-blocks0", "bank")
WORKERS = 4


def fit(folder: Path, task: str, codec: str, seed: int) -> dict[str, Any]:
    """Train on 70% of a table, and evaluate on the rest."""
    began, data = time.process_time(), load(folder, task)
    train, test = (data.take(rows) for rows in divide(data, 0.3, seed))
    with tempfile.TemporaryDirectory() as place:
        summary = codauc.train(
            train.x,
            Path(place) / "run",
            target=train.y,
            test=(test.x, test.y),
            seed=seed,
            workers=WORKERS,
            simulate=True,
            compress=None if codec == "float32" else codec,
        )
        first, *_, last = RunFolder(Path(place) / "run").records()
    return {
        "task": task,
        "codec": codec,
        "seed": seed,
        "auc": summary["test_auc"],
        "message": (last.bytes - first.bytes) / (last.rounds - first.rounds),
        "rounds": last.rounds,
        "positives": int(test.y.sum()),
        "cpu_seconds": round(time.process_time() - began, 1),
        "commit": made_by()["commit"],
    }


def show(found: list[dict[str, Any]]) -> None:
    """A line for each task and codec: bytes, AUC by seed, and the difference to float32."""
    by = {(r["task"], r["codec"], r["seed"]): r for r in found}
    for task in dict.fromkeys(r["task"] for r in found):
        for codec in CODECS:
            both = [(by[task, codec, s], by[task, "float32", s])
                    for s in sorted({r["seed"] for r in found})
                    if (task, codec, s) in by and (task, "float32", s) in by]  # fmt: skip
            if not both:
                continue
            gaps = [own["auc"] - plain["auc"] for own, plain in both]
            share = both[0][0]["message"] / both[0][1]["message"]
            error = statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else float("nan")
            aucs = " ".join(f"{own['auc']:.4f}" for own, _ in both)
            print(f"{task:16} {codec:8} {share:.3f} {aucs}  {statistics.mean(gaps):+.4f}"
                  f" (se {error:.4f})")  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit what is missing, then show all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="where the data are kept")
    parser.add_argument("--out", type=Path, default=Path("runs/codecs"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=USUAL)
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=CODECS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    fetch(options.folder)
    path = options.out / "codecs.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(r["task"], r["codec"], r["seed"]) for r in found}
    for seed in options.seeds:
        for task in options.tasks:
            for codec in options.codecs:
                if (task, codec, seed) not in done:
                    found.append(fit(options.folder, task, codec, seed))
                    print(found[-1], flush=True)
                    with path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(found[-1]) + "\n")
    show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
