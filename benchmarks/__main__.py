"""Measure ratios against peers; print one table, and write it as JSON.

    python -m benchmarks                       # all, half an hour; writes benchmarks/results.json
    python -m benchmarks --short               # whether all of them run, half a minute
    python -m benchmarks --only optimizer loss/bce-1024

What each line means, and how to read it: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import sys
import traceback
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is there; processes inherit it

import torch

from benchmarks.measuring import Benchmark, Missing, Options
from benchmarks.telling import facts, line, show

TOPICS = (
    "optimizer",
    "loss",
    "whole_step",
    "simulated",
    "auc",
    "reading",
    "scaling",
    "round",
    "memory",
    "time_to_auc",
)
RESULTS = Path(__file__).with_name("results.json")


def known() -> list[Benchmark]:
    """All benchmarks, topic by topic."""
    topics = (importlib.import_module(f"benchmarks.{name}") for name in TOPICS)
    return [benchmark for topic in topics for benchmark in topic.BENCHMARKS]


def picked(names: list[str] | None) -> list[Benchmark]:
    """Those of the names, each a benchmark's or a topic's; an unknown one is an error."""
    found = known()
    for name in names or []:
        if not any(_is_of(benchmark, name) for benchmark in found):
            raise SystemExit(f"no benchmark {name!r}: --list shows them.")
    return [b for b in found if not names or any(_is_of(b, name) for name in names)]


def _is_of(benchmark: Benchmark, name: str) -> bool:
    return name in (benchmark.name, benchmark.name.partition("/")[0])


def run(benchmarks: list[Benchmark], options: Options) -> dict[str, Any]:
    """Results, what was skipped and what is broken, with the reasons."""
    results, skipped, broken = [], [], []
    for number, benchmark in enumerate(benchmarks, 1):
        print(f"{number}/{len(benchmarks)} {benchmark.name} ...", file=sys.stderr, flush=True)
        try:
            results.append(benchmark.run(options))
            print(f"    {line(results[-1])}", file=sys.stderr, flush=True)
        except Missing as missing:
            skipped.append({"name": benchmark.name, "reason": str(missing)})
            print(f"    skipped: {missing}", file=sys.stderr, flush=True)
        except Exception as error:
            traceback.print_exc()
            broken.append({"name": benchmark.name, "reason": f"{type(error).__name__}: {error}"})
    return {**facts(options), "results": results, "skipped": skipped, "broken": broken}


def finite(value: Any) -> Any:
    """With None for what was never reached: JSON knows no infinity."""
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--short", action="store_true", help="small sizes, two repetitions: only that all runs")
    add("--only", nargs="+", metavar="NAME", help="benchmarks, or whole topics")
    add("--list", action="store_true", help="one line each, and nothing is run")
    add("--json", action="store_true", help="print JSON in place of the table")
    add("--data", type=Path, help="folder with Fashion-MNIST and the wheel aif360-0.2.3")
    add("--out", type=Path, help=f"where JSON goes (a run of all of them: {RESULTS.name})")
    return parser.parse_args()


def main() -> int:
    """Run what was asked for; 1 if a benchmark is broken, whatever the times."""
    asked = arguments()
    benchmarks = picked(asked.only)
    if asked.list:
        for b in benchmarks:
            goal = "" if b.goal is None else f" (goal: {'>=' if b.higher else '<='} {b.goal:g})"
            print(f"{b.name}: {b.ours} / {b.theirs}{goal}")
        return 0
    out = asked.out or (None if asked.only or asked.short else RESULTS)
    if out is not None and not out.parent.is_dir():
        sys.exit(f"--out {out}: there is no folder {out.parent}.")
    torch.set_num_threads(1)
    found = run(benchmarks, Options(asked.short, asked.data))
    text = json.dumps(finite(found), indent=1, allow_nan=False)
    print(text if asked.json else show(found))
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
    return 1 if found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
