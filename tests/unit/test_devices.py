"""Claims about the device that "auto" stands for."""

import pytest
import torch

from codauc.training.build import resolve_device, trains


def having(monkeypatch, *, gpus=0, mps=False):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


def test_a_given_device_stays(monkeypatch):
    having(monkeypatch, gpus=1, mps=True)
    assert resolve_device("cpu", processes=False) == "cpu"


def test_auto_is_cuda_then_the_cpu(monkeypatch):
    having(monkeypatch, gpus=1)
    assert resolve_device("auto", processes=False) == "cuda"
    having(monkeypatch)
    assert resolve_device("auto", processes=False) == "cpu"


@pytest.mark.parametrize(("works", "processes", "device"), [
    (True, False, "mps"), (False, False, "cpu"), (True, True, "cpu"),
])  # fmt: skip
def test_auto_is_mps_only_where_a_training_step_works(works, processes, device, monkeypatch):
    having(monkeypatch, mps=True)
    monkeypatch.setattr("codauc.training.build.trains", lambda device: works)
    assert resolve_device("auto", processes=processes) == device


def test_auto_is_the_cpu_where_processes_would_share_a_gpu(monkeypatch):
    having(monkeypatch, gpus=1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert resolve_device("auto", processes=True) == "cpu"
    having(monkeypatch, gpus=2)
    assert resolve_device("auto", processes=True) == "cuda"


def test_the_cpu_trains_and_a_device_that_is_not_here_does_not():
    assert trains(torch.device("cpu"))
    if not torch.backends.mps.is_available():
        assert not trains(torch.device("mps"))
