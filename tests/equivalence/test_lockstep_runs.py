"""Claims about whole runs in lockstep: the directory of a run one worker after the other."""

import numpy as np
import pytest
import torch

import codauc
from codauc.data.standard_images import fashion_tiny
from codauc.reproduce.lockstep_runs import STATE, begun_otherwise, perform, possible
from codauc.reproduce.study import Study, StudyPoint, Tuned
from codauc.runs.directory import RunFolder


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A CIFAR-10 of the real images that come with the package."""
    root, images = tmp_path_factory.mktemp("cifar") / "cifar-10-batches-bin", fashion_tiny()
    root.mkdir()

    def records(x, y):
        x = torch.nn.functional.pad(x[:, 0].clamp(-1, 2).add(1).mul(85), (2, 2, 2, 2))
        x = x.to(torch.uint8)[:, None].expand(-1, 3, -1, -1).reshape(len(y), -1)
        return np.concatenate([y[:, None].numpy().astype(np.uint8), x.numpy()], axis=1).tobytes()

    for i, rows in enumerate(np.array_split(np.arange(2000), 5), start=1):
        part = records(images.train_x[rows], images.train_y[rows])
        (root / f"data_batch_{i}.bin").write_bytes(part)
    (root / "test_batch.bin").write_bytes(records(images.test_x, images.test_y))
    return root


def settings_of(source, start="estimate", *, growing=False):
    study = Study("cifar10", 71, "tiny", source=str(source), start=start)
    made = study.settings(StudyPoint(4, 8, growing=growing), Tuned(40, 0.3), seed=2)
    return made.with_changes("recipe", evaluations=8)


def curve(folder):
    return [(r.step, r.stage, r.rounds, r.bytes, r.stage_end) for r in RunFolder(folder).records()]


@pytest.mark.parametrize(("start", "growing"), [("zero", False), ("estimate", True)])
def test_a_run_in_lockstep_is_the_run_of_the_engine(source, tmp_path, start, growing):
    settings = settings_of(source, start, growing=growing)
    assert possible(settings)
    codauc.train(settings, tmp_path / "plain")
    assert perform(settings, tmp_path / "lockstep")
    assert curve(tmp_path / "lockstep") == curve(tmp_path / "plain")
    plain, found = (RunFolder(tmp_path / name).records() for name in ("plain", "lockstep"))
    for name in ("auc", "auc_low", "auc_high", "loss", "a", "b", "alpha", "lr", "positive_mean"):
        values = [[getattr(each, name) for each in some] for some in (found, plain)]
        assert values[0] == pytest.approx(values[1], abs=2e-4), name
    first, second = (RunFolder(tmp_path / name).summary() for name in ("plain", "lockstep"))
    assert second["bytes_per_worker"] == first["bytes_per_worker"]
    assert second["test_auc"] == pytest.approx(first["test_auc"], abs=2e-4)


def test_a_run_in_lockstep_is_stopped_and_resumed_as_if_it_had_not_been(
    source, tmp_path, monkeypatch
):
    settings = settings_of(source)
    assert perform(settings, tmp_path / "whole")
    for after in (3, 60):
        asked = iter([False] * after + [True])
        assert not perform(settings, tmp_path / "parts", lambda asked=asked: next(asked))
        assert not RunFolder(tmp_path / "parts").finished
        assert (tmp_path / "parts" / STATE).exists()
        assert not begun_otherwise(tmp_path / "parts")
    monkeypatch.setattr("codauc.reproduce.lockstep_runs._OUTLIVED", 0.0)
    with RunFolder(tmp_path / "parts").locked(0, 0.0), pytest.raises(ValueError, match="parts"):
        perform(settings, tmp_path / "parts")  # as long as another has it
    assert perform(settings, tmp_path / "parts")
    assert not (tmp_path / "parts" / STATE).exists()
    whole, parts = (RunFolder(tmp_path / name).records() for name in ("whole", "parts"))
    assert [(r.step, r.auc, r.a) for r in parts] == [(r.step, r.auc, r.a) for r in whole]


def test_what_is_not_the_papers_plain_step_of_patchnet_is_left_to_the_engine(source):
    settings = settings_of(source)
    for table, change in (
        ("model", {"name": "resnet8"}),
        ("communication", {"workers": 1}),
        ("communication", {"compress": "int8"}),
        ("communication", {"averages": "gradients"}),
        ("communication", {"simulate": False}),
        ("recipe", {"name": "bce"}),
        ("data", {"watch": "validation"}),
    ):
        assert not possible(settings.with_changes(table, **change)), change
