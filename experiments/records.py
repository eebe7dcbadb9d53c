"""Bytes to a fixed AUC on CIFAR-10 with 16 workers: what each way to save communication brings.

    python experiments/records.py --data DIR [--seeds 0 1 2] [--variants NAME ...] [--jobs 1]
    python experiments/records.py --data DIR --write           # and docs/records.md from what is there

The setting is that of `codauc reproduce cifar10-71 --scale small`: PatchNet, 71% positives, T_0 =
2048, eta_0 = 0.9, two stages. The target is one worker's final AUC of the same seed, less 0.01. A
run that was interrupted continues; finished ones are not run again. `results.jsonl` in --out has a
line for each finished run. Settings were chosen on seed 9, and are reported on seeds 0, 1 and 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from records_page import write_page

from codauc.reproduce.jobs import MADE_BY, RunJob, run_side_by_side
from codauc.reproduce.reproduction import made_by
from codauc.reproduce.study import Study, StudyPoint, Tuned
from codauc.reproduce.study_results import MARGIN
from codauc.runs.directory import RunFolder

TUNED = Tuned(2048, 0.9)  # as `codauc reproduce` tunes it, for one worker
SINGLE = "single"


class Variant(NamedTuple):
    """A way to communicate: changes of the settings' table `communication`, and the start."""

    communication: dict[str, Any]
    workers: int = 16
    start: str = "zero"


def _ways(every: int | str, **more: Any) -> Variant:
    return Variant({"sync_every": every, **more})


VARIANTS = {
    SINGLE: Variant({}, workers=1),
    "i1": _ways(1),
    "i64": _ways(64),
    "i64-int4": _ways(64, compress="int4"),
    "i64-int2": _ways(64, compress="int2"),
    "i64-outer-0.7-0.9": _ways(64, outer="0.7,0.9"),
    "i64-outer-1-0.5": _ways(64, outer="1,0.5"),
    "i96-int2": _ways(96, compress="int2"),
    "i128-int2": _ways(128, compress="int2"),
    "i128-int2-outer-1-0.5": _ways(128, compress="int2", outer="1,0.5"),
    "i96-int2-outer-1-0.5": _ways(96, compress="int2", outer="1,0.5"),
    "i64-int2-outer-1-0.5": _ways(64, compress="int2", outer="1,0.5"),
    "i64-int2-outer-0.7-0.9": _ways(64, compress="int2", outer="0.7,0.9"),
    "growing64-int2": _ways("growing:64", compress="int2"),
    "growing64-int2-outer-1-0.5": _ways("growing:64", compress="int2", outer="1,0.5"),
    "growing32-int2-outer-1-0.5": _ways("growing:32", compress="int2", outer="1,0.5"),
}


def job(source: Path, out: Path, name: str, seed: int) -> RunJob:
    """The run of a variant."""
    variant = VARIANTS[name]
    study = Study("cifar10", 71, source=str(source), lr=TUNED.lr, start=variant.start)
    settings = study.settings(StudyPoint(variant.workers), TUNED, seed)
    settings = settings.with_changes("communication", **variant.communication)
    run = f"{name}-seed{seed}"
    return RunJob(run, settings, out / run)


def results(source: Path, out: Path) -> list[dict[str, Any]]:
    """Every finished run: its curve, and what it needed to the target where that is known."""
    found = []
    for path in sorted(out.glob("*-seed*")):
        name, seed = path.name.rsplit("-seed", 1)
        folder = RunFolder(path)
        if name in VARIANTS and folder.finished:
            made = json.loads((path / MADE_BY).read_text(encoding="utf-8"))
            curve = [(r.step, r.rounds, r.bytes, r.auc) for r in folder.records()]
            found.append({"variant": name, "seed": int(seed), "commit": made["commit"]}
                         | {"auc": curve[-1][3], "curve": curve})  # fmt: skip
    targets = {r["seed"]: r["auc"] - MARGIN for r in found if r["variant"] == SINGLE}
    for result in found:
        target = targets.get(result["seed"])
        hits = [] if target is None else [p for p in result["curve"] if p[3] >= target]
        result |= {"target": target, "hit": hits[0] if hits else None}
    return found


def save(source: Path, out: Path) -> list[dict[str, Any]]:
    """Write what is finished."""
    found = results(source, out)
    text = "".join(json.dumps(result) + "\n" for result in found)
    (out / "results.jsonl").write_text(text, encoding="utf-8")
    return found


def show(found: list[dict[str, Any]]) -> None:
    """A line for each run."""
    for r in found:
        step, rounds, sent, _ = r["hit"] or (0, 0, 0, 0)
        reached = f"{step:5d} steps {rounds:5d} rounds {sent / 1e6:8.3f} MB" if step else "never"
        print(f"{r['variant']:28} {r['seed']} final {r['auc']:.4f} to the target: {reached}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, then show all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="CIFAR-10's archive or folder")
    parser.add_argument("--out", type=Path, default=Path("runs/records"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side (%(default)s)")
    parser.add_argument("--write", action="store_true", help="write docs/records.md")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    jobs = [job(options.data.resolve(), options.out.resolve(), name, seed)
            for seed in options.seeds for name in options.variants]  # fmt: skip
    ended = [0]

    def progress(running: Sequence[RunJob]) -> None:
        done = sum(each.done for each in jobs)
        if done > ended[0]:
            ended[0] = done
            save(options.data, options.out)
            print(f"{done} of {len(jobs)} runs", flush=True)

    try:
        failed = run_side_by_side(jobs, options.jobs, progress, made_by())
    except KeyboardInterrupt:
        return 130
    found = save(options.data, options.out)
    show(found)
    print("".join(f"{name}: {reason}\n" for name, reason in failed.items()), end="")
    if options.write:
        write_page(found)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
