"""A file larger than what a worker may keep in memory trains all the same."""

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from workers import anonymous_memory_of_reading

import codauc

COLUMNS, ROWS = 100, 500_000  # 200 MB


def write(path):
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32)
    y = (x[:, 0] > 1.3).astype(np.int8)
    if path.suffix == ".npy":
        np.save(path, x)
        np.save(path.with_name("y.npy"), y)
        return
    table = pa.table([*(pa.array(c) for c in x.T), pa.array(y)], [*map(str, range(COLUMNS)), "y"])
    pa.parquet.write_table(table, path, row_group_size=25_000, use_dictionary=False)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc, as Linux has it")
@pytest.mark.parametrize(("name", "target"), [("x.parquet", "y"), ("x.npy", "y.npy")])
def test_a_worker_does_not_keep_its_rows_in_memory(tmp_path, name, target):
    """Each of two workers has 100 MB of rows, and keeps less than half of that."""
    write(tmp_path / name)
    target = str(tmp_path / target) if target.endswith(".npy") else target
    work = partial(anonymous_memory_of_reading, path=str(tmp_path / name), target=target)
    for grown, samples in codauc.launch(work, workers=2):
        assert samples == ROWS // 2
        assert grown < 50e6
