"""The measurement of `experiments/reading.py`, on a small file."""

import importlib.util
from pathlib import Path

import pytest

_PATH = Path(__file__).parents[2] / "experiments" / "reading.py"
_spec = importlib.util.spec_from_file_location("reading_experiment", _PATH)
reading = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reading)


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts the bytes read, on Linux")
def test_a_csv_is_scanned_once(tmp_path):
    """The first 2 MB are read twice, to find out what the columns are."""
    path = tmp_path / "a.csv"
    reading.write_numbers(path, 25_000, 30)
    ratio, _ = reading.bytes_read(path)
    assert 1 <= ratio < 1 + 2.3e6 / path.stat().st_size
