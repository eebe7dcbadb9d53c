"""The tables of docs/defaults.md, from the results of `tasks.py`.

Printed, and with a page as argument put into it:

    python experiments/task_tables.py docs/defaults.md
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from task_data import CHOSEN, FRESH, HELD_OUT, SMALL
from task_results import RESULTS, Result, read

from codauc._internal.text_table import table as as_table

OURS = "codauc"
OTHERS = ("before", "bce", "logistic", "catboost")
SIMPLER = ("before", "bce", "logistic")  # no task may be far below the best of these
RARE = 50  # with fewer positives the AUC of a split is mostly chance: more splits
_ALL = (*CHOSEN, *HELD_OUT, *FRESH)
_FAR = 0.01  # below which a loss does not count, whatever its error


class Found:
    """The AUC of each task, method and split."""

    def __init__(self, results: Iterable[Result], measure: str = "auc") -> None:
        self.aucs: dict[str, dict[str, dict[int, float]]] = {}
        self.facts: dict[str, Result] = {}
        for line in results:
            of_task = self.aucs.setdefault(line["task"], {})
            of_task.setdefault(line["method"], {})[line["split"]] = line[measure]
            self.facts[line["task"]] = line

    def tasks(self, names: Iterable[str]) -> list[str]:
        """Those of `names` on which the default was fitted."""
        return [name for name in names if self.aucs.get(name, {}).get(OURS)]

    def rare(self) -> list[str]:
        """Tasks with fewer than 50 positives."""
        names = self.tasks(_ALL)
        return [name for name in names if self.facts[name]["positives"] < RARE]

    def mean(self, task: str, method: str) -> float:
        """The mean over its splits; NaN if there is none."""
        values = list(self.aucs[task].get(method, {}).values())
        return float(np.mean(values)) if values else float("nan")

    def gaps(self, task: str, other: str, method: str = OURS) -> Any:
        """`method` minus `other` on each split that both have."""
        a, b = (self.aucs[task].get(name, {}) for name in (method, other))
        return np.array([a[split] - b[split] for split in sorted(a.keys() & b.keys())])


def error(gaps: Any) -> float:
    """The standard error of their mean; NaN of one."""
    return float(gaps.std(ddof=1) / len(gaps) ** 0.5) if len(gaps) > 1 else float("nan")


def gap_text(gaps: Any, expected: int = 0) -> str:
    """Their mean with its standard error, and how many, if not as many as `expected`."""
    if not len(gaps):
        return ""
    count = f" [{len(gaps)}]" if expected and len(gaps) != expected else ""
    se = f" ({error(gaps):.4f})" if len(gaps) > 1 else ""
    return f"{gaps.mean():+.4f}{se}{count}"


def percent(share: float) -> str:
    """A share with two digits that count."""
    return f"{share:.1%}" if share >= 0.01 else f"{share:.2%}"


def comparison(
    found: Found, names: Iterable[str], methods: Sequence[str] = OTHERS, last: str = "mean"
) -> list[list[str]]:
    """A row for each task: the default, and what it wins or loses; then the mean over tasks."""
    tasks, rows = found.tasks(names), []
    for task in tasks:
        facts, count = found.facts[task], len(found.aucs[task][OURS])
        row = [task, str(facts["rows"]), percent(facts["positives"] / facts["rows"]), str(count)]
        gaps = [gap_text(found.gaps(task, method), count) for method in methods]
        rows.append([*row, f"{found.mean(task, OURS):.4f}", *gaps])
    means = [_task_means(found, tasks, method) for method in methods]
    rows.append([last, "", "", "", "", *map(gap_text, means)])
    return rows


def _task_means(found: Found, tasks: Iterable[str], other: str) -> Any:
    """The mean difference to a method on each task that has both."""
    gaps = (found.gaps(task, other) for task in tasks)
    return np.array([each.mean() for each in gaps if len(each)])


def _header(methods: Sequence[str]) -> list[str]:
    return ["task", "rows", "positive", "splits", OURS, *(f"- {m} (se)" for m in methods)]


def all_tasks(found: Found) -> str:
    """All parts, and what is asked of them."""
    parts = {"chosen": CHOSEN, "held out": HELD_OUT, "fresh": FRESH}
    rows = []
    for name, tasks in parts.items():
        if found.tasks(tasks):
            rows += comparison(found, tasks, last=f"mean of {name}")
    lines = [as_table(_header(OTHERS), rows), ""]
    for name, tasks in {"all": _ALL, **parts}.items():
        lines += _level(found, name, found.tasks(tasks))
    return "\n".join(lines)


def _level(found: Found, name: str, tasks: Iterable[str]) -> list[str]:
    """The mean difference to each method, and on how many tasks the default is level or above."""
    lines = []
    for method in OTHERS:
        gaps = _task_means(found, tasks, method)
        if len(gaps):
            level = int((gaps >= -0.00005).sum())
            lines.append(f"{name}, {method}: {gap_text(gaps)} over {len(gaps)} tasks; level or "
                         f"above on {level}")  # fmt: skip
    return lines


def behind(found: Found, names: Iterable[str] = _ALL) -> str:
    """Tasks on which the default is more than max(0.01, two se) below the best simpler method.

    Which is the best is said by the means over the splits that it shares with the default. Of one
    split no error is known: 0.01 counts.
    """
    rows = []
    tasks = found.tasks(names)
    for task in tasks:
        gaps = {m: found.gaps(task, m) for m in SIMPLER}
        gaps = {method: each for method, each in gaps.items() if len(each)}
        if not gaps:
            continue
        best = min(gaps, key=lambda method: gaps[method].mean())
        allowed = max(_FAR, np.nan_to_num(2 * error(gaps[best])))
        if gaps[best].mean() < -allowed:
            rows.append([task, best, gap_text(gaps[best]), f"{-allowed:+.4f}",
                         str(len(gaps[best]))])  # fmt: skip
    if not rows:
        return f"None of {len(tasks)} tasks is further behind than max(0.01, two se)."
    header = ["behind by more than max(0.01, 2 se)", "best", "gap (se)", "allowed", "splits"]
    told = f"{len(rows)} of {len(tasks)} tasks; the best of {', '.join(SIMPLER)} is meant."
    return f"{as_table(header, rows, left=(0, 1))}\n\n{told}"


def few_positives(found: Found) -> str:
    """Tasks with fewer than 50 positives beside logistic regression and the default of before."""
    methods = ("logistic", "before")
    rows = comparison(found, found.rare(), methods)
    below = []
    for task in found.rare():
        gaps = found.gaps(task, "logistic")
        if len(gaps) > 1 and gaps.mean() < -error(gaps):
            below.append(task)
    told = ", ".join(below) or "none"
    return f"{as_table(_header(methods), rows)}\n\nmore than one se below logistic: {told}"


def ablation(found: Found) -> str:
    """Each change of the recipe: the mean over tasks of paired differences, best and worst."""
    tasks = found.tasks(SMALL)
    changes = {method for task in tasks for method in found.aucs[task] if _is_change(method)}
    rows = []
    for change in [*sorted(changes), *(["bce"] if changes else [])]:
        gaps = {task: found.gaps(task, OURS, change) for task in tasks}
        means = {task: each.mean() for task, each in gaps.items() if len(each)}
        count = sum(map(len, gaps.values()))
        worst, best = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        rows.append([change.partition(":")[2] or "cross-entropy alone",
                     gap_text(np.array([*means.values()])), f"{len(means)}, {count}",
                     f"{means[worst]:+.4f} {worst}", f"{means[best]:+.4f} {best}"])  # fmt: skip
    return as_table(["changed", "change (se)", "tasks, fits", "most lost", "most won"], rows)


def _is_change(method: str) -> bool:
    return method.startswith(f"{OURS}:") and not method.endswith(" workers")


def workers(results: Sequence[Result]) -> str:
    """The AUC of several workers beside that of one, with what each of them sent."""
    found, rows = Found(results), []
    several = [line for line in results if line["method"].endswith(" workers")]
    for task, method in dict.fromkeys((line["task"], line["method"]) for line in several):
        lines = [line for line in several if (line["task"], line["method"]) == (task, method)]
        steps, rounds, sent = (np.mean([line[name] for line in lines])
                               for name in ("step", "rounds", "bytes"))  # fmt: skip
        rows.append([task, method.split(":")[1].split()[0], f"{found.mean(task, method):.4f}",
                     gap_text(found.gaps(task, OURS, method)), str(len(lines)), f"{steps:.0f}",
                     f"{rounds:.0f}", f"{sent / 1e6:.1f}"])  # fmt: skip
    header = ["task", "workers", "AUC", "- 1 worker (se)", "splits", "steps", "rounds",
              "MB of each"]  # fmt: skip
    return as_table(header, rows)


def tables(results: Sequence[Result]) -> dict[str, Callable[[], str]]:
    """The tables of the page by name."""
    found = Found(results)
    return {
        "all": lambda: all_tasks(found),
        "behind": lambda: behind(found),
        "rare": lambda: few_positives(found),
        "ablation": lambda: ablation(found),
        "workers": lambda: workers(results),
    }


def inserted(page: str, results: Sequence[Result]) -> str:
    """The page with each block after `<!-- table: NAME -->` made anew."""
    made = tables(results)

    def block(match: re.Match[str]) -> str:
        return f"{match[1]}\n```\n{made[match[2]]()}\n```\n"

    return re.sub(r"(<!-- table: (\w+) -->)\n```\n.*?\n?```\n", block, page, flags=re.DOTALL)


def main() -> None:
    """Print the tables, and put them into a page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("page", type=Path, nargs="?", help="to put them into")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    results = read(options.results)
    for name, make in tables(results).items():
        print(f"{name}\n{make()}\n")
    if options.page is not None:
        page: Path = options.page
        page.write_text(inserted(page.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
