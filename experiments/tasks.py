"""Real tasks, no tuning: the default recipe beside cross-entropy, logistic regression, trees.

    python experiments/tasks.py --folder data/tasks
    python experiments/tasks.py --folder data/tasks --half held-out --methods codauc catboost
    python experiments/tasks.py --folder data/tasks --half all --rare
    python experiments/tasks.py --folder data/tasks --ablation --splits 3
    PYTHONPATH=OTHER/src python experiments/tasks.py --folder data/tasks --methods before

The data come from packages (see task_data.py). Every fit is kept in docs/defaults/results.csv, so
that a second call goes on; `task_tables.py` makes tables of it. `before` is what another commit's
package, which has to be on the path, does by default.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import time
import warnings
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
from task_data import CHOSEN, FRESH, HELD_OUT, SMALL, TASKS, load, splits
from task_files import Task, divide, fetch
from task_results import RESULTS, Result, append, key, read
from task_tables import RARE, tables

from codauc._internal.progress import Progress

METHODS = ("codauc", "bce", "logistic", "lightgbm", "catboost")
PARTS = {
    "chosen": CHOSEN,
    "held-out": HELD_OUT,
    "all": (*CHOSEN, *HELD_OUT),
    "fresh": FRESH,
}
# The default recipe with one thing changed. What is not of the recipe is of the network.
ABLATION: dict[str, dict[str, Any]] = {
    "codauc": {},
    "bce": {},
    "codauc:one member": {"model_arguments": {"members": 1}},
    "codauc:validation rows held out": {"recipe_arguments": {"crossed": False}},
    "codauc:cross-entropy first, in place of logistic regression": {
        "recipe_arguments": {"linear_start": False}
    },
    "codauc:no weight decay": {"weight_decay": 0.0},
    "codauc:no dropout": {"model_arguments": {"dropout": 0.0}},
    "codauc:standardised numbers alone": {"model_arguments": {"pieces": 0}},
    "codauc:no mean of a window": {"recipe_arguments": {"average": "none"}},
    "codauc:the best evaluation": {"select": "best"},
}
WORKERS = {
    "codauc": {},
    **{f"codauc:{k} workers": {"workers": k, "simulate": True} for k in (4, 16)},
}
SEVERAL = ("breast cancer", "default", "page-blocks0", "winequality-red-4", "yeast4")


def scores(
    method: str, options: dict[str, Any], train: Task, x: Any, seed: int
) -> tuple[Any, dict[str, Any]]:
    """The scores of `x` by a model trained on `train`, and what else there is to say of it."""
    if method in ("codauc", "bce", "before"):
        from codauc.integrations.estimator import AUCClassifier

        given = {"recipe": "bce" if method == "bce" else "default", **options}
        model = AUCClassifier(random_state=seed, **given).fit(train.x, train.y, groups=train.groups)
        last = model.history_[-1]
        told = {name: last[name] for name in ("step", "rounds", "bytes")}
        return model.decision_function(x), told
    if method == "logistic":
        return _logistic(train, x), {}
    return (_lightgbm if method == "lightgbm" else _catboost)(train, x, seed), {}


def _logistic(train: Task, x: Any) -> Any:
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    model = LogisticRegression(max_iter=2000)
    if isinstance(train.x, np.ndarray):
        flat = make_pipeline(StandardScaler(), model).fit(
            train.x.reshape(len(train.y), -1), train.y
        )
        return flat.decision_function(x.reshape(len(x), -1))
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    prepare = make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_exclude="number")),
    )
    return make_pipeline(prepare, model).fit(train.x, train.y).decision_function(x)


def _lightgbm(train: Task, x: Any, seed: int) -> Any:
    """With its defaults, but for early stopping on a seventh of the data."""
    import pandas as pd
    from lightgbm import LGBMClassifier, early_stopping

    def plain(x: Any) -> Any:
        texts = x.select_dtypes(exclude="number").columns
        return x.astype(dict.fromkeys(texts, "category"))

    if isinstance(x, np.ndarray):
        own, other = train.x.reshape(len(train.y), -1), x.reshape(len(x), -1)
    else:
        both = plain(pd.concat([train.x, x], ignore_index=True))
        own, other = both.iloc[: len(train.y)], both.iloc[len(train.y) :]
    known = Task(own, train.y, train.groups)
    a, b = (known.take(rows) for rows in divide(train, 0.15, seed))
    model = LGBMClassifier(n_estimators=2000, learning_rate=0.05, random_state=seed, verbose=-1,
                           n_jobs=1)  # fmt: skip
    stop = early_stopping(50, verbose=False)
    model.fit(a.x, a.y, eval_set=[(b.x, b.y)], eval_metric="auc", callbacks=[stop])
    return model.predict_proba(other)[:, 1]


def _catboost(train: Task, x: Any, seed: int) -> Any:
    """With its defaults, but for early stopping by AUC on a seventh of the data."""
    from catboost import CatBoostClassifier

    images = isinstance(x, np.ndarray)
    texts = [] if images else list(x.select_dtypes(exclude="number").columns)

    def plain(x: Any) -> Any:
        if images:
            return x.reshape(len(x), -1)
        return x.astype(dict.fromkeys(texts, object)).fillna(dict.fromkeys(texts, "missing"))

    a, b = (train.take(rows) for rows in divide(train, 0.15, seed))
    model = CatBoostClassifier(iterations=1000, eval_metric="AUC", od_type="Iter", od_wait=50,
                               use_best_model=True, cat_features=texts, random_seed=seed,
                               thread_count=1, allow_writing_files=False, verbose=0)  # fmt: skip
    model.fit(plain(a.x), a.y, eval_set=(plain(b.x), b.y))
    return model.predict_proba(plain(x))[:, 1]


def _peak(reset: bool = False) -> float:
    """The most memory this process held since the last `reset`, in MB; 0 where not known."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def fit(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """One method on one split of one task."""
    import torch
    from sklearn.metrics import average_precision_score

    from codauc.metrics.auc_values import auc

    torch.set_num_threads(1)
    task, seed = load(folder, job["task"]), job["split"]
    train, test = (task.take(rows) for rows in divide(task, 0.25, seed))
    _peak(reset=True)
    begin, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method = job["method"].split(":")[0]
        found, told = scores(method, job["options"], train, test.x, seed)
    return {
        **{name: job[name] for name in ("task", "method", "split")},
        **told,
        "auc": auc(found, test.y),
        "ap": float(average_precision_score(test.y, found)),
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mb": _peak(),
        "rows": len(task.y),
        "positives": int(task.y.sum()),
        "test_positives": int(test.y.sum()),
    }


def commit() -> str:
    """The commit of the package that is measured; nothing where it is not in a repository."""
    command = ["git", "-C", str(_package()), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def _package() -> Path:
    import codauc

    return Path(str(codauc.__file__)).parent


def run(folder: Path, jobs: list[Result], out: Path, processes: int) -> list[Result]:
    """All jobs that `out` does not hold yet, side by side; the results of all."""
    known = {key(line): line for line in read(out)}
    todo, measured = [job for job in jobs if key(job) not in known], commit()
    workers = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    with workers as pool, Progress(len(todo), label="tasks") as progress:
        futures = [pool.submit(fit, folder, job) for job in todo]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                line = {**future.result(), "commit": measured}
                known[key(line)] = line
                append(out, line)
                progress.update(done, f"{line['task']} {line['method']} {line['auc']:.4f}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [known[key(job)] for job in jobs]


def plan(folder: Path, names: Iterable[str], count: int | None, rare: bool) -> dict[str, int]:
    """How many splits of each task: `count`, or by its size; with `rare` only those tasks."""
    found = {}
    for name in names:
        y = load(folder, name).y
        if not rare or y.sum() < RARE:
            found[name] = count or (20 if rare else splits(len(y)))
    return found


def jobs_of(planned: dict[str, int], methods: dict[str, dict[str, Any]]) -> list[Result]:
    """The fits, by rounds of splits: what is interrupted has about as many of each task."""
    return [
        {"task": task, "method": method, "split": split, "options": chosen}
        for split in range(max(planned.values(), default=0))
        for task, count in planned.items()
        for method, chosen in methods.items()
        if split < count
    ]


def check_package(methods: Iterable[str]) -> None:
    """Refuse to keep results of one package as those of another."""
    own = _package().is_relative_to(Path(__file__).parents[1])
    if own == ("before" in methods):
        raise SystemExit(
            f"--methods {' '.join(methods)} with the package in {_package()}: expected `before` "
            "alone with that of another commit, and all else with that beside this script; set "
            "PYTHONPATH to its src."
        )


def main() -> None:
    """Fit, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--folder", type=Path, required=True, help="for the wheels")
    add("--splits", type=int, help="splits, 75%% for training (10, 5 or 3, by the rows of a task)")
    add("--half", choices=PARTS, default="chosen", help="of the tasks; all: both; or fresh ones")
    add("--tasks", nargs="+", choices=TASKS, metavar="TASK", help="these instead of a half")
    add("--rare", action="store_true", help=f"tasks of fewer than {RARE} positives; 20 splits")
    add("--ablation", action="store_true", help="the default recipe with one thing changed")
    add("--workers", action="store_true", help="one worker beside 4 and 16 simulated ones")
    add("--methods", nargs="+", choices=[*METHODS, "before"], default=list(METHODS))
    add("--results", type=Path, default=RESULTS, help="where fits are kept")
    add("--jobs", type=int, default=2, help="fits side by side")
    options = parser.parse_args()
    fetch(options.folder)
    names = options.tasks or PARTS[options.half]
    methods = {method: {} for method in options.methods}
    if options.ablation:
        names, methods = options.tasks or SMALL, ABLATION
    elif options.workers:
        names, methods = options.tasks or SEVERAL, WORKERS
    check_package(methods)
    planned = plan(options.folder, names, options.splits, options.rare)
    run(options.folder, jobs_of(planned, methods), options.results, options.jobs)
    results = [line for line in read(options.results) if line["task"] in planned]
    for make in tables(results).values():
        print(make(), end="\n\n")


if __name__ == "__main__":
    main()
