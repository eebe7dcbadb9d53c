"""Reading people's CSV files: how often the bytes are read, and what ways of writing cost in AUC.

    python experiments/reading.py bytes --rows 1000000 --columns 30   # a CSV is scanned once
    python experiments/reading.py auc                                 # locales, signs, date-times

`bytes` writes a CSV, reads it as `codauc train` does in a process of its own, and divides the bytes
that the process asked the system for (rchar of /proc/self/io) by the size of the file. `auc` writes
the same table in several ways, and trains on each with the same seed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

READ = """
import sys, time
from codauc.data.data_settings import DataSettings
from codauc.data.opening import open_data
from codauc.workers.group import LocalGroup

def read_so_far():
    with open("/proc/self/io") as file:
        return int(file.readline().split()[1])

open_data(DataSettings(sys.argv[2], target="y"), LocalGroup())  # imports what it needs
before, start = read_so_far(), time.perf_counter()
opened = open_data(DataSettings(sys.argv[1], target="y"), LocalGroup())
print(read_so_far() - before, time.perf_counter() - start, opened.train.samples)
"""


def write_numbers(path: Path, rows: int, columns: int) -> None:
    """A CSV of random numbers and a target of 0 and 1."""
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        file.write(",".join([*(f"c{i}" for i in range(columns - 1)), "y"]) + "\n")
        for start in range(0, rows, 20_000):
            count = min(20_000, rows - start)
            block = pd.DataFrame(rng.normal(size=(count, columns - 1)).round(4))
            block["y"] = rng.integers(0, 2, count)
            block.to_csv(file, header=False, index=False)


def bytes_read(path: Path) -> tuple[float, float]:
    """Bytes read per byte of the file, and seconds."""
    tiny = path.with_name("tiny.csv")
    write_numbers(tiny, 100, 3)
    command = [sys.executable, "-c", READ, str(path), str(tiny)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(found[0]) / path.stat().st_size, float(found[1])


def payments(rows: int = 6000, seed: int = 0) -> pd.DataFrame:
    """Amounts, shares and date-times whose hour and weekday matter."""
    rng = np.random.default_rng(seed)
    when = pd.Timestamp("2023-01-02") + pd.to_timedelta(rng.integers(0, 400 * 86400, rows), "s")
    amount, share = rng.lognormal(6, 1, rows).round(2), rng.integers(0, 101, rows)
    night = (when.hour < 6) | (when.hour > 21)
    risk = 0.9 * (np.log(amount) - 6) + 1.5 * (share / 100 - 0.5) + 1.2 * night
    risk = risk + 0.8 * (when.day_of_week > 4) + rng.normal(0, 0.8, rows)
    fraud = (risk > np.quantile(risk, 0.9)).astype(int)
    return pd.DataFrame({"amount": amount, "share": share, "when": when, "fraud": fraud})


def german(value: float) -> str:
    """A number as Germans write it."""
    return f"{value:,.2f}".translate(str.maketrans(",.", ".,"))


def ways(data: pd.DataFrame) -> dict[str, tuple[pd.DataFrame, str]]:
    """The same table in several ways of writing, with the mark between columns."""
    iso = data["when"].dt.strftime("%Y-%m-%d %H:%M:%S")
    plain = data.assign(when=iso)
    return {
        "dots and ISO dates": (plain, ","),
        "decimal commas and dd.mm.yyyy": (
            data.assign(
                amount=data["amount"].map(german),
                when=data["when"].dt.strftime("%d.%m.%Y %H:%M:%S"),
            ),
            ";",
        ),
        "$ and %": (
            plain.assign(
                amount=data["amount"].map("${:,.2f}".format), share=data["share"].map("{}%".format)
            ),
            ",",
        ),
        "the number of the date alone": (
            data.assign(when=data["when"].astype("int64") // 10**9),
            ",",
        ),
        "without the date": (data.drop(columns="when"), ","),
    }


def trained_auc(path: Path, out: Path) -> dict[str, float]:
    """What a run with the defaults gives."""
    command = [sys.executable, "-m", "codauc", "train", path, "--target", "fraud", "--out", out]
    found = subprocess.run(
        [*map(str, command), "--json"], capture_output=True, text=True, check=True
    )
    return dict(json.loads(found.stdout))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("bytes", "auc"))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "bytes":
            path = Path(folder, "numbers.csv")
            write_numbers(path, options.rows, options.columns)
            ratio, seconds = bytes_read(path)
            size = path.stat().st_size / 1e6
            print(f"{size:.0f} MB, {ratio:.3f} bytes read per byte of the file, {seconds:.1f} s")
            return
        for name, (table, mark) in ways(payments()).items():
            path, start = Path(folder, "a.csv"), time.perf_counter()
            table.to_csv(path, index=False, sep=mark)
            found = trained_auc(path, Path(folder, name.replace(" ", "-")))
            low, high, seconds = found["auc_low"], found["auc_high"], time.perf_counter() - start
            print(f"{found['test_auc']:.4f} ({low:.4f} to {high:.4f})  {seconds:4.0f} s  {name}")


if __name__ == "__main__":
    main()
