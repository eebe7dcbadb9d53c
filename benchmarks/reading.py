"""What reading costs: from memory, and from files larger than a worker's memory should be.

    python -m benchmarks.reading                              # from memory, a minute
    python -m benchmarks.reading --folder DIR --gigabytes 5   # and from Parquet and NPY files there

1. A batch from memory against torch's DataLoader with default collation over the same tensors.
2. Reading as a share of a training step (an MLP of 100 thousand parameters, batch 128).
3. Two workers, as processes, on a large Parquet and NPY file: their anonymous memory at its peak,
   and the share of reading in the step.

Times alternate in one run; a share is the time in `next(batches)` over the time of the whole step.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

import codauc
from benchmarks.measuring import Benchmark, Options, Pairs, alternate, status
from codauc._internal.text_table import table
from codauc.algorithm.stage_loop import endless
from codauc.data import Batches, read_table
from codauc.models import TabularNet

COLUMNS, BATCH, WIDTHS = 100, 128, (270, 270)


def against_dataloader(options: Options, rows: int = 100_000) -> Pairs:
    """Seconds of a batch, ours and a DataLoader's with its default collation."""
    x, y = torch.randn(rows, COLUMNS), torch.rand(rows) < 0.1
    ours = Batches(x, y, BATCH)
    theirs = endless(DataLoader(TensorDataset(x, y), BATCH, shuffle=True))
    return alternate(lambda: next(ours), lambda: next(theirs), options.times(100))


BENCHMARKS = [
    Benchmark(
        "reading/dataloader",
        f"a batch of {BATCH} x {COLUMNS} from codauc.data.Batches, in memory",
        "a batch of torch's DataLoader over the same tensors",
        against_dataloader,
    )
]


class Watch(threading.Thread):
    """The largest anonymous memory of this process, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.over = 0, threading.Event()

    def run(self) -> None:
        """Look every 20 ms."""
        while not self.over.wait(0.02):
            self.peak = max(self.peak, status("RssAnon"))


def train(batches: Any, steps: int, pos_ratio: float, group: Any = None) -> tuple[float, float]:
    """Train for some steps; seconds in reading and seconds in all, medians over the steps."""
    torch.manual_seed(0)
    model = TabularNet(COLUMNS, widths=WIDTHS)
    loss = codauc.MinMaxAUCLoss(pos_ratio=pos_ratio)
    opt = codauc.PPDSG(model, loss, lr=0.1)
    coda = codauc.CoDA(opt, group)
    reading, whole = [], []
    timed = Timed(batches)
    start = time.perf_counter()
    for x, y in coda.stage(codauc.Stage(lr=0.1, steps=steps, sync_every=64, dual_samples=1), timed):
        opt.zero_grad()
        loss(model(x), y).backward()
        opt.step()
        now = time.perf_counter()
        reading.append(timed.seconds)
        whole.append(now - start)
        start = now
    skip = len(whole) // 10  # the first steps warm up
    return sum(reading[skip:]) / len(reading[skip:]), sum(whole[skip:]) / len(whole[skip:])


class Timed:
    """Batches, and how long the last one took."""

    def __init__(self, batches: Any) -> None:
        self.batches, self.seconds = batches, 0.0

    def __iter__(self) -> Timed:
        return self

    def __next__(self) -> Any:
        start = time.perf_counter()
        batch = next(self.batches)
        self.seconds = time.perf_counter() - start
        return batch


def forget(path: str) -> None:
    """Drop a file from the page cache, as if it were larger than memory."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def worker(group: Any, path: str, target: str, steps: int, cold: bool) -> dict[str, float]:
    """One worker's part: read its share, train, tell."""
    torch.set_num_threads(1)
    watch = Watch()
    watch.start()
    start = time.perf_counter()
    data = read_table(path, target, group=group)
    opening = time.perf_counter() - start
    if cold:
        forget(path)
    batches = Batches(data.x, data.y, BATCH, seed=0, worker=group.rank)
    reading, step = train(batches, steps, data.pos_ratio, group)
    watch.over.set()
    return {"opening": opening, "reading": reading, "step": step, "peak": watch.peak}


def make_files(folder: Path, gigabytes: float) -> dict[str, tuple[str, str]]:
    """A Parquet and an NPY file of random numbers with 10% positives; kept for another run."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, chunk = int(gigabytes * 1e9 / (4 * COLUMNS)), 100_000
    parquet, features = folder / f"{gigabytes:g}.parquet", folder / f"{gigabytes:g}.npy"
    labels = folder / f"{gigabytes:g}-labels.npy"
    found = {"Parquet": (str(parquet), "y"), "NPY": (str(features), str(labels))}
    if parquet.exists() and labels.exists():
        return found
    rng = np.random.default_rng(0)
    names = [f"x{i}" for i in range(COLUMNS)]
    schema = pa.schema([*((name, pa.float32()) for name in names), ("y", pa.int8())])
    array = np.lib.format.open_memmap(features, "w+", np.float32, (rows, COLUMNS))
    y = (rng.random(rows) < 0.1).astype(np.int8)
    with pq.ParquetWriter(parquet, schema) as writer:
        for group in range(0, rows, 1_000_000):
            columns = []
            for start in range(group, min(group + 1_000_000, rows), chunk):
                block = rng.standard_normal((min(chunk, rows - start), COLUMNS), np.float32)
                block[:, :5] += y[start : start + len(block), None]
                array[start : start + len(block)] = block
                columns.append(block)
            block = np.concatenate(columns)
            parts = [
                *(pa.array(column) for column in block.T),
                pa.array(y[group : group + len(block)]),
            ]
            writer.write_table(pa.table(parts, schema=schema), row_group_size=1_000_000)
    np.save(labels, y)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the large files are, or are made")
    parser.add_argument("--gigabytes", type=float, default=5.0, help="size of each (default: 5)")
    parser.add_argument("--steps", type=int, default=6000, help="steps of each run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ratios = against_dataloader(Options()).ratios
    times = 1 / ratios[len(ratios) // 2]
    print(f"DataLoader / Batches, a batch of {BATCH} x {COLUMNS}: {times:.1f}")
    x, y = torch.randn(100_000, COLUMNS), torch.rand(100_000) < 0.1
    reading, step = train(Batches(x, y, BATCH), arguments.steps, 0.1)
    print(f"from memory: reading {reading / step:.1%} of a step of {step * 1e3:.2f} ms")
    if arguments.folder is None:
        return
    lines = []
    files = make_files(arguments.folder, arguments.gigabytes)
    files["NPY, not in the page cache"] = files["NPY"]
    for kind, (path, target) in files.items():
        cold = "not" in kind
        work = partial(worker, path=path, target=target, steps=arguments.steps, cold=cold)
        for rank, told in enumerate(codauc.launch(work, workers=2)):
            lines.append(
                [
                    kind,
                    str(rank),
                    f"{told['opening']:.0f}",
                    f"{told['step'] * 1e3:.2f}",
                    f"{told['reading'] / told['step']:.1%}",
                    f"{told['peak'] / 1e6:.0f}",
                ]
            )
    header = ["file", "worker", "s to open", "ms a step", "reading", "MB anonymous"]
    print(table(header, lines))


if __name__ == "__main__":
    main()
