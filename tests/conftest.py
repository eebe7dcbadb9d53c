"""Settings of all tests: one thread a process, so that they may run side by side."""

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).parent))  # for vectors.py
settings.register_profile(
    "codauc", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("codauc")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
