"""Real tasks, no tuning: the default recipe beside cross-entropy, logistic regression, trees.

    python experiments/tasks.py --folder data/tasks
    python experiments/tasks.py --folder data/tasks --half held-out --methods codauc catboost
    python experiments/tasks.py --folder data/tasks --half all --rare --measure ap
    python experiments/tasks.py --folder data/tasks --ablation --splits 3

The data come from packages (see task_data.py). Every fit is kept in results.jsonl, so that a second
call goes on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
from task_data import CHOSEN, HELD_OUT, TASKS, TUNED, load, splits
from task_files import Task, divide, fetch

from codauc._internal.progress import Progress
from codauc._internal.text_table import table as as_table

METHODS = ("codauc", "bce", "logistic", "lightgbm", "catboost")
HALVES = {"chosen": CHOSEN, "held-out": HELD_OUT, "all": tuple(TASKS)}
RARE = 50  # with fewer positives the AUC of a split is mostly chance: more splits
# The default recipe with one thing changed. What is not of the recipe is of the network.
ABLATION: dict[str, dict[str, Any]] = {
    "codauc": {},
    "codauc:one member": {"model_arguments": {"members": 1}},
    "codauc:validation rows held out": {"recipe_arguments": {"crossed": False}},
    "codauc:cross-entropy first, in place of logistic regression": {
        "recipe_arguments": {"linear_start": False}
    },
    "codauc:cross-entropy after logistic regression": {"warm_start": 0.3},
    "codauc:step size 0.003 whatever the positives": {"lr": 3e-3},
    "codauc:weight decay 1 whatever the positives": {"weight_decay": 1.0},
    "codauc:no weight decay": {"weight_decay": 0.0},
    "codauc:no dropout": {"model_arguments": {"dropout": 0.0}},
    "codauc:standardised numbers alone": {"model_arguments": {"pieces": 0}},
    "codauc:32 pieces": {"model_arguments": {"pieces": 32}},
    "codauc:min-max alone": {"recipe_arguments": {"mix": 0.0}},
    "codauc:cross-entropy alone": {"recipe": "bce"},
    "codauc:no mean of a window": {"recipe_arguments": {"average": "none"}},
    "codauc:the best evaluation": {"select": "best"},
    "codauc:the last evaluation": {"select": "last"},
    "codauc:the paper's recipe": {"recipe": "paper"},
}
WORKERS = {
    "codauc": {},
    **{f"codauc:{k} workers": {"workers": k, "simulate": True} for k in (4, 16)},
}
SMALL = ("breast cancer", "digits", "spam", "caravan", "default", *TUNED)


def scores(
    method: str, options: dict[str, Any], train: Task, x: Any, seed: int
) -> tuple[Any, dict[str, Any]]:
    """The scores of `x` by a model trained on `train`, and what else there is to say of it."""
    if method in ("codauc", "bce"):
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
        **job,
        **told,
        "auc": auc(found, test.y),
        "ap": float(average_precision_score(test.y, found)),
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mb": _peak(),
        "rows": len(task.y),
        "positive": float(task.y.mean()),
        "test_positives": int(test.y.sum()),
    }


def run(
    folder: Path, jobs: list[dict[str, Any]], out: Path, processes: int
) -> list[dict[str, Any]]:
    """All jobs that `out` does not hold yet, side by side; the results of all."""
    known = {_key(line): line for line in _lines(out)}
    todo = [job for job in jobs if _key(job) not in known]
    workers = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
    with workers as pool, Progress(len(todo), label="tasks") as progress:
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


def show(results: list[dict[str, Any]], methods: list[str], measure: str = "auc") -> str:
    """The table: the mean of each method on the test rows, and what the first wins or loses.

    The error of a difference is that over splits, in the last row that over tasks.
    """
    tasks = list(dict.fromkeys(line["task"] for line in results))
    rows, means = [], []
    for task in tasks:
        lines = [line for line in results if line["task"] == task]
        found = {m: np.array([line[measure] for line in lines if line["method"] == m])
                 for m in methods}  # fmt: skip
        gaps = [_gap(found[methods[0]], found[m]) for m in methods[1:]]
        means.append([found[m].mean() for m in methods])
        rows.append([task, str(lines[0]["rows"]), _percent(lines[0]["positive"]),
                     *(f"{mean:.4f}" for mean in means[-1]), *gaps])  # fmt: skip
    columns = np.array(means).T
    gaps = [_gap(columns[0], column) for column in columns[1:]]
    rows.append(["mean", "", "", *(f"{column.mean():.4f}" for column in columns), *gaps])
    header = ["task", "rows", "positive", *methods, *(f"- {m} (se)" for m in methods[1:])]
    return as_table(header, rows)


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.01 else f"{share:.2%}"


def show_ablation(results: list[dict[str, Any]]) -> str:
    """The mean over tasks of each change, beside the recipe as it is, and where it hurts most."""
    tasks = list(dict.fromkeys(line["task"] for line in results))
    found: dict[str, Any] = {}
    for line in results:
        found.setdefault(line["method"], {}).setdefault(line["task"], []).append(line["auc"])
    rows = []
    for method in found:
        pairs = {t: np.subtract(found[method][t], found["codauc"][t]) for t in tasks}
        gaps = {t: pairs[t].mean() for t in tasks}
        worst, best = min(gaps, key=gaps.__getitem__), max(gaps, key=gaps.__getitem__)
        mean = np.mean([np.mean(found[method][task]) for task in tasks])
        told = [f"{gaps[worst]:+.4f} {worst}", f"{gaps[best]:+.4f} {best}"]
        name = method.partition(":")[2] or "the default recipe"
        errors = [pair.var(ddof=1) / len(pair) for pair in pairs.values() if len(pair) > 1]
        error = sum(errors) ** 0.5 / len(tasks) if errors else float("nan")
        gap = f"{np.mean(list(gaps.values())):+.4f} ({error:.4f})"
        rows.append([name, f"{mean:.4f}", gap, *(told if method != "codauc" else ["", ""])])
    return as_table(["changed", "mean AUC", "change (se)", "most lost", "most won"], rows)


def show_workers(results: list[dict[str, Any]]) -> str:
    """The AUC of several workers beside that of one, with what each of them sent."""
    rows = []
    for task in dict.fromkeys(line["task"] for line in results):
        found: dict[str, list[dict[str, Any]]] = {}
        for line in results:
            if line["task"] == task:
                found.setdefault(line["method"], []).append(line)
        alone = np.array([line["auc"] for line in found["codauc"]])
        for method, lines in found.items():
            aucs = np.array([line["auc"] for line in lines])
            steps, rounds, sent = (np.mean([line[key] for line in lines])
                                   for key in ("step", "rounds", "bytes"))  # fmt: skip
            name = method.partition(":")[2] or "1 worker"
            gap = "" if method == "codauc" else _gap(aucs, alone)
            rows.append([task, name, f"{aucs.mean():.4f}", gap, f"{steps:.0f}", f"{rounds:.0f}",
                         f"{sent / 1e6:.1f}"])  # fmt: skip
    header = ["task", "workers", "AUC", "- 1 worker (se)", "steps", "rounds", "MB of each"]
    return as_table(header, rows)


def _gap(first: Any, other: Any) -> str:
    gap = first - other
    error = gap.std(ddof=1) / len(gap) ** 0.5 if len(gap) > 1 else float("nan")
    return f"{gap.mean():+.4f} ({error:.4f})"


def plan(folder: Path, names: Iterable[str], count: int | None, rare: bool) -> dict[str, int]:
    """How many splits of each task: `count`, or by its size; with `rare` only those tasks."""
    found = {}
    for name in names:
        y = load(folder, name).y
        if not rare or y.sum() < RARE:
            found[name] = count or (20 if rare else splits(len(y)))
    return found


def main() -> None:
    """Fit, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--folder", type=Path, required=True, help="for the wheels and the results")
    add("--splits", type=int, help="splits, 75%% for training (10, 5 or 3, by the rows of a task)")
    add("--half", choices=HALVES, default="chosen", help="of the tasks")
    add("--tasks", nargs="+", choices=TASKS, metavar="TASK", help="these instead of a half")
    add("--rare", action="store_true", help=f"tasks of fewer than {RARE} positives; 20 splits")
    add("--ablation", action="store_true", help="the default recipe with one thing changed")
    add("--workers", action="store_true", help="one worker beside 4 and 16 simulated ones")
    add("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    add("--measure", choices=["auc", "ap"], default="auc", help="for the table")
    add("--jobs", type=int, default=2, help="fits side by side")
    options = parser.parse_args()
    folder: Path = options.folder
    fetch(folder)
    names = options.tasks or HALVES[options.half]
    methods = {method: {} for method in options.methods}
    if options.ablation:
        names, methods = options.tasks or SMALL, ABLATION
    elif options.workers:
        names, methods = options.tasks or SMALL, WORKERS
    planned = plan(folder, names, options.splits, options.rare)
    jobs = [
        {"task": task, "method": method, "split": split, "options": chosen}
        for task, count in planned.items()
        for split in range(count)
        for method, chosen in methods.items()
    ]
    results = run(folder, jobs, folder / "results.jsonl", options.jobs)
    if options.ablation or options.workers:
        print((show_ablation if options.ablation else show_workers)(results))
    else:
        print(show(results, list(methods), options.measure))


if __name__ == "__main__":
    main()
