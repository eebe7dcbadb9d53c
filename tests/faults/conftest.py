"""A table, once for all."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from runs import make_table


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    return make_table(tmp_path_factory.mktemp("faults") / "table.csv")
