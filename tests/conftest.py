"""Settings of all tests: one thread a process, so that they may run side by side."""

import signal
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what is in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests interrupt what they start
sys.path.insert(0, str(Path(__file__).parent))  # for vectors.py
settings.register_profile(
    "codauc", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("codauc")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
