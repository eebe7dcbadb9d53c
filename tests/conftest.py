"""Settings of all tests: one thread a process, so that they may run side by side."""

import shutil

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile(
    "codauc", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("codauc")


@pytest.fixture
def c_compiler():
    """For tests of the compiled step."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("there is no C compiler (cc, gcc, clang)")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
