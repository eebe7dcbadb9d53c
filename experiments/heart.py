"""Four hospitals: one model that never brings their data together, or a model for each of them?

    python experiments/heart.py --data heart/ --out data/heart
    python experiments/heart.py --data heart/ --out data/heart --ways own together
    python experiments/heart.py --data heart/ --out data/heart --table

The data are the four processed.*.data files of UCI's heart disease set (CC BY 4.0), which the
package does not bring. Each of the splits holds out a quarter of the patients of each hospital and
class; all ways see the same split. Every fit is kept in results.jsonl, so that a second call goes
on.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from codauc._internal.text_table import table as as_table

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = [
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
]
HELD_OUT = 0.25  # of the patients of each hospital and class

# Who trains on what. "own": each hospital alone; the others: one model for all.
_SITES = {"silo": "hospital", "workers": len(HOSPITALS), "simulate": True}
_PLAIN = {"correct": "none", "worker_weight": "equal", "sync_every": 32}
WAYS: dict[str, dict[str, Any]] = {
    "own": {},
    "together": {"drop": ["hospital"]},
    "plain": {**_SITES, **_PLAIN},
    "sites": _SITES,
}


class Patients(NamedTuple):
    """Rows as texts, what each has, and where."""

    rows: list[list[str]]
    sick: np.ndarray
    hospital: np.ndarray


def load(folder: Path) -> Patients:
    """The four files; positive is a `num` above 0."""
    rows, sick, hospital = [], [], []
    for number, name in enumerate(HOSPITALS):
        with (folder / f"processed.{name}.data").open(newline="") as file:
            for line in filter(None, csv.reader(file)):
                rows.append(line[: len(COLUMNS)])
                sick.append(float(line[len(COLUMNS)]) > 0)
                hospital.append(number)
    return Patients(rows, np.array(sick), np.array(hospital))


def held_out(patients: Patients, seed: int) -> np.ndarray:
    """Which rows are for the test: a quarter of each hospital's patients of each class."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(23,)))
    test = np.zeros(len(patients.rows), bool)
    for number in range(len(HOSPITALS)):
        for sick in (False, True):
            members = np.flatnonzero((patients.hospital == number) & (patients.sick == sick))
            count = max(1, round(HELD_OUT * len(members)))
            test[rng.permutation(members)[:count]] = True
    return test


def scores(patients: Patients, train: np.ndarray, test: np.ndarray, **how: Any) -> np.ndarray:
    """The log-odds of the test rows, in their order, by a model trained on the others."""
    import codauc
    from codauc.runs.directory import RunFolder

    with tempfile.TemporaryDirectory() as place:
        for name, rows in (("train", train), ("test", test)):
            _write(Path(place, f"{name}.csv"), patients, np.flatnonzero(rows))
        given = {"target": "sick", "test": f"{place}/test.csv", **how}
        codauc.train(f"{place}/train.csv", out=f"{place}/run", **given)
        found = RunFolder(f"{place}/run").scores()
    assert found is not None
    assert (found.labels == patients.sick[test]).all()
    return found.scores


def _write(path: Path, patients: Patients, rows: np.ndarray) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, "hospital", "sick"])
        for row in rows:
            where = HOSPITALS[patients.hospital[row]]
            writer.writerow([*patients.rows[row], where, int(patients.sick[row])])


def fits(patients: Patients, way: str, seed: int) -> Iterator[dict[str, Any]]:
    """The test AUC of each hospital under one way to train, on one split."""
    import codauc

    test = held_out(patients, seed)
    if way != "own":
        every = scores(patients, ~test, test, seed=seed, **WAYS[way])
    for number, name in enumerate(HOSPITALS):
        here = patients.hospital == number
        if way == "own":
            mine = scores(patients, ~test & here, test & here, seed=seed, drop=["hospital"])
        else:
            mine = every[here[test]]
        auc = codauc.auc(mine, patients.sick[test & here])
        yield {"way": way, "seed": seed, "hospital": name, "auc": auc, "commit": commit()}


def commit() -> str:
    """The commit that computes, with a + if files differ from it."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + "+" * bool(git("status", "--short", "../src"))


Results = dict[tuple[str, str], dict[int, float]]  # of a way and a hospital, by seed


def read(path: Path) -> Results:
    """What was computed so far; the last line of a fit counts."""
    found: Results = defaultdict(dict)
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.endswith("}"):  # the last may have been cut off
            plain = json.loads(line)
            found[plain["way"], plain["hospital"]][plain["seed"]] = plain["auc"]
    return found


def mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error.

    Test sets of different splits share patients, so that this is the error of the mean over splits
    of these patients, and too small for other patients.
    """
    array = np.array(values)
    return float(array.mean()), float(array.std(ddof=1) / math.sqrt(len(array)))


def compared(ways: Sequence[str]) -> list[str]:
    """Those whose difference to the own models is known."""
    return [way for way in ways if way != "own"] if "own" in ways else []


def rows(results: Results, ways: Sequence[str]) -> Iterator[list[str]]:
    """A row for each hospital and one for their mean: AUCs, then differences to the own model."""
    others = compared(ways)
    every = {
        way: set.intersection(*(set(results[way, name]) for name in HOSPITALS)) for way in ways
    }
    seeds = sorted(set.intersection(*every.values()))
    values = {
        way: np.array([[results[way, name][seed] for seed in seeds] for name in HOSPITALS])
        for way in ways
    }
    for place, name in [*enumerate(HOSPITALS), (None, "mean of the four")]:
        line = {w: v.mean(0) if place is None else v[place] for w, v in values.items()}
        cells = ["{:.4f} ({:.4f})".format(*mean(line[way])) for way in ways]
        gaps = ["{:+.4f} ({:.4f})".format(*mean(line[way] - line["own"])) for way in others]
        yield [name, *cells, *gaps]


def main() -> None:
    """Compute what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the four files")
    parser.add_argument("--out", type=Path, required=True, help="folder of results.jsonl")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--table", action="store_true", help="print what was computed so far")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "results.jsonl"
    patients, results = load(given.data), read(path)
    for seed in range(given.splits):
        for way in () if given.table else given.ways:
            if all(seed in results[way, name] for name in HOSPITALS):
                continue
            lines = [json.dumps(found) + "\n" for found in fits(patients, way, seed)]
            with path.open("a") as file:
                file.write("".join(lines))
    results = read(path)
    ways = [way for way in WAYS if any(results[way, name] for name in HOSPITALS)]
    print(as_table(["hospital", *ways, *(f"{way} - own" for way in compared(ways))],
                   list(rows(results, ways))))  # fmt: skip


if __name__ == "__main__":
    main()
