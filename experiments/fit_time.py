"""Seconds and memory of one fit of a table, in turn with other ways on the same rows.

    python experiments/fit_time.py --rows 100000 1000000 --before OTHER/src --repeats 2

`codauc` is `AUCClassifier()`, `before` that of another commit's package, `hist` scikit-learn's
HistGradientBoostingClassifier with early stopping as it is. Each fit has a process of its own, all
cores, and 30 columns of `make_classification`, of which 12 say something; 3.5% positives. Memory is
the most the process held, less what it held before the fit. Beside other work seconds mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from codauc._internal.text_table import table as as_table

TEST = 50_000  # rows to test on


def held(peak: bool) -> float:
    """The memory of this process in MB: now, or the most so far."""
    name = "VmHWM" if peak else "VmRSS"
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def fit(method: str, rows: int) -> dict[str, Any]:
    """One fit: seconds of the fit alone, MB, and the test AUC."""
    from sklearn.datasets import make_classification
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    from codauc import AUCClassifier

    x, y = make_classification(rows + TEST, n_features=30, n_informative=12, n_redundant=6,
                               weights=[0.97], flip_y=0.01, random_state=0)  # fmt: skip
    x = x.astype(np.float32)
    hist = HistGradientBoostingClassifier(random_state=0)
    model = hist if method == "hist" else AUCClassifier(random_state=0)
    Path("/proc/self/clear_refs").write_text("5")  # the most so far begins anew
    before, begin, cpu = held(peak=False), time.perf_counter(), time.process_time()
    model.fit(x[:rows], y[:rows])
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    most = held(peak=True) - before
    scores = model.predict_proba(x[rows:])[:, 1]
    return {
        "seconds": seconds,
        "cpu": cpu,
        "mb": most,
        "auc": float(roc_auc_score(y[rows:], scores)),
    }


def in_a_process(method: str, rows: int, before: Path | None) -> dict[str, Any]:
    """The same in a process of its own, `before` with that package on its path."""
    path = {"PYTHONPATH": str(before)} if method == "before" else {}
    command = [sys.executable, "-W", "ignore", __file__, "--one", method, "--rows", str(rows)]
    done = subprocess.run(command, env=os.environ | path, capture_output=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Fit all in turn, and print medians with ratios to HistGradientBoosting."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--rows", type=int, nargs="+", default=[100_000])
    add("--repeats", type=int, default=1)
    add("--before", type=Path, help="src of another commit's package")
    add("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(fit(options.one, options.rows[0])))
        return
    methods = ["hist", "codauc", *(["before"] if options.before else [])]
    lines = []
    for rows in options.rows:
        found: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
        for _ in range(options.repeats):
            for method in methods:
                found[method].append(in_a_process(method, rows, options.before))
                print(rows, method, found[method][-1], flush=True)
        median = {m: {name: float(np.median([one[name] for one in each])) for name in each[0]}
                  for m, each in found.items()}  # fmt: skip
        for method, one in median.items():
            ratios = [one[name] / max(median["hist"][name], 0.1) for name in ("seconds", "mb")]
            times = [f"{one['seconds']:.1f}", f"{ratios[0]:.2f}", f"{one['cpu']:.1f}"]
            memory = [f"{one['mb']:.0f}", f"{ratios[1]:.2f}"]
            lines.append([f"{rows}", method, *times, *memory, f"{one['auc']:.4f}"])
    header = ["rows", "method", "seconds", "/ hist", "CPU s", "MB", "/ hist", "test AUC"]
    print(as_table(header, lines, left=(1,)))


if __name__ == "__main__":
    main()
