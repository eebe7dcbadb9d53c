"""`codauc.train` on what a program has in memory: frames, arrays, sparse matrices."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from scipy import sparse

import codauc
from codauc import Callback, RunSettings
from codauc.cli.main import main
from codauc.data import read_table
from codauc.data.data_settings import DataSettings
from codauc.runs.settings import RecipeSettings

FEW = {"steps": 20, "evaluations": 4}


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    colour, size = rng.choice(["red", "green", "blue"], 400), rng.normal(size=400)
    y = (colour == "red") * 2.0 + size + rng.normal(size=400) > 2
    return pd.DataFrame({"colour": colour, "size": size, "note": range(400), "y": y.astype(int)})


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def weights(summary):
    return codauc.load_model(f"{summary['run']}/model.safetensors").model.state_dict()


def assert_same(one, other):
    one, other = weights(one), weights(other)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_frame_gives_the_run_of_its_file(frame, here):
    frame.to_parquet("data.parquet")
    expected = codauc.train(
        RunSettings(
            DataSettings("data.parquet", target="y", drop=("note",)),
            recipe=RecipeSettings(**FEW),
        )
    )
    summary = codauc.train(frame, target="y", drop=["note"], **FEW)
    assert summary["run"] == "runs/memory-1"
    assert summary["test_auc"] == expected["test_auc"]
    assert_same(summary, expected)
    assert_same(codauc.train("data.parquet", target="y", drop=["note"], **FEW), expected)


def frames():
    polars = pytest.importorskip("polars", reason="polars is not installed")
    yield "polars", polars.from_arrow
    yield "arrow", lambda table: table
    yield "arrow batch", lambda table: table.to_batches()[0]


@pytest.mark.parametrize(("name", "convert"), list(frames()))
def test_frames_of_polars_and_arrow(frame, here, name, convert):
    made = convert(pa.Table.from_pandas(frame, preserve_index=False))
    summary = codauc.train(made, target="y", drop="note", **FEW)
    assert_same(summary, codauc.train(frame, target="y", drop="note", **FEW))


def test_arrays_and_sparse_matrices_take_their_labels_as_target(here):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)) * (rng.random((300, 4)) < 0.5)
    y = X[:, 0] + 0.3 * rng.normal(size=300) > 0.8
    by_array = codauc.train(X, target=y, **FEW)
    assert by_array["target"] == "labels"
    assert_same(codauc.train(torch.from_numpy(X), target=y, **FEW), by_array)
    by_sparse = [
        codauc.train(kind(X), target=y, **FEW) for kind in (sparse.csr_array, sparse.csc_matrix)
    ]
    assert_same(*by_sparse)
    by_frame = codauc.train(pd.DataFrame(X), target=pd.Series(y, name="ill"), **FEW)
    assert by_frame["target"] == "ill"
    with pytest.raises(ValueError, match=r"out is of type ndarray.*train\(X, target=y\)"):
        codauc.train(X, y)
    with pytest.raises(ValueError, match="expected the labels, one per row, target=y"):
        codauc.train(X)


def test_a_test_set_of_its_own_may_be_in_memory(frame, here):
    rows, test = frame[:300], frame[300:]
    summary = codauc.train(rows, target="y", test=test, **FEW)
    assert (summary["test_samples"], summary["train_samples"]) == (100, 300)
    beside = codauc.train(
        rows.drop(columns="y"), target=rows["y"], test=(test.drop(columns="y"), test["y"]), **FEW
    )
    assert beside["test_auc"] == summary["test_auc"]


def test_simulated_workers_share_a_frame_out(frame, here):
    ways = {"workers": 3, "simulate": True, "sync_every": 4}
    summary = codauc.train(frame, target="y", drop=["note"], **ways, **FEW)
    assert len(summary["workers"]) == 3
    assert summary["rounds"] > 0
    assert summary["train_samples"] == sum(worker["samples"] for worker in summary["workers"])


class Failing(Callback):
    """Ends the run with an error at a step, as a lost machine would."""

    def on_step(self, step, stage, rounds):
        if step == 15:
            raise RuntimeError("lost")


def begun(frame, **more):
    with pytest.raises(RuntimeError, match="lost"):
        codauc.train(
            frame, "run", target="y", checkpoint_rounds=5, callbacks=[Failing()], **FEW, **more
        )


@pytest.mark.parametrize("ways", [{}, {"workers": 2, "simulate": True, "sync_every": 2}])
def test_a_run_on_a_frame_is_resumed_with_the_frame_given_again(frame, here, ways):
    expected = codauc.train(frame, target="y", checkpoint_rounds=5, **FEW, **ways)
    begun(frame, **ways)
    other = frame.assign(size=frame["size"] + 1)
    with pytest.raises(ValueError, match=r"other data: training inputs"):
        codauc.train(other, "run", target="y", checkpoint_rounds=5, resume=True, **FEW, **ways)
    resumed = codauc.train(
        frame, "run", target="y", checkpoint_rounds=5, resume=True, **FEW, **ways
    )
    faults = [json.loads(line) for line in (here / "run/faults.jsonl").read_text().splitlines()]
    assert next(f["step"] for f in faults if f["event"] == "resumed") > 0
    assert_same(resumed, expected)


@pytest.fixture
def command(capsys):
    """The command, in this process; it knows nothing of frames that were here before."""

    def call(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return call


def test_the_command_cannot_find_a_frame_again_and_resumes_with_its_file(frame, here, command):
    expected = codauc.train(frame, target="y", checkpoint_rounds=5, **FEW)
    begun(frame)
    code, _, error = command("train", "--resume", "--out", "run")
    assert code == 2
    assert error.count("\n") == 1
    for words in ("in memory", "codauc.train again", "as Parquet"):
        assert words in error
    frame.to_parquet("saved.parquet")
    options = ["--target", "y", "--steps", "20", "--evaluations", "4", "--checkpoint-rounds", "5"]
    code, said, error = command(
        "train", "saved.parquet", *options, "--resume", "--out", "run", "--json"
    )
    assert code == 0, error
    assert_same(json.loads(said), expected)


def test_the_command_predicts_and_reports_with_a_run_on_a_frame(frame, here, command):
    summary = codauc.train(frame, target="y", drop=["note"], **FEW)
    frame.drop(columns="y").to_csv("new.csv", index=False)
    code, _, error = command("predict", summary["run"], "new.csv", "--out", "scores.csv")
    assert code == 0, error
    assert len(pd.read_csv("scores.csv")) == 400
    saved = codauc.load_model(f"{summary['run']}/model.safetensors")
    scores = codauc.predict(saved.model, read_table(frame, encoder=saved.encoder).x)
    assert scores.shape == (400,)
    code, _, error = command("train", "--config", f"{summary['run']}/config.toml")
    assert code == 2
    assert "in memory" in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "target is missing: expected the column of labels, one of 'colour', 'size'"),
        ({"target": "yy"}, "did you mean 'y'"),
        ({"target": "y", "step": 3}, "unknown setting 'step': did you mean 'steps'"),
        ({"target": [0, 1]}, "400 rows and the target 2 labels"),
        ({"target": "y", "silo": "z"}, "no column 'z'"),
        ({"target": "y", "own": True, "workers": 2, "simulate": True}, "own with <memory>"),
        ({"target": "y", "images": "."}, "images with data in memory"),
    ],
)
def test_what_is_wrong_is_one_clear_error(frame, here, arguments, words):
    with pytest.raises(ValueError, match=words):
        codauc.train(frame, **arguments)
    assert not (here / "runs").exists()


def test_other_mistakes(frame, here):
    with pytest.raises(ValueError, match="target beside RunSettings"):
        codauc.train(RunSettings(), target="y")
    with pytest.raises(ValueError, match="data of type dict: expected RunSettings, a path"):
        codauc.train({"a": [1]}, target="a")
    with pytest.raises(ValueError, match="0 rows"):
        codauc.train(frame[:0], target="y")
    with pytest.raises(ValueError, match=r"one class|expected both|class"):
        codauc.train(frame.assign(y=0), target="y")


def test_columns_of_a_frame_that_arrow_does_not_have(frame, here):
    flag = np.arange(400) % 3 == 0
    by_sparse = frame.assign(flag=pd.arrays.SparseArray(flag))
    expected = codauc.train(frame.assign(flag=flag), target="y", **FEW)
    assert_same(codauc.train(by_sparse, target="y", **FEW), expected)
    mixed = frame.assign(odd=[1, "a"] * 200)
    with pytest.raises(ValueError, match=r"failed for column odd .*leave others out with drop="):
        codauc.train(mixed, target="y", **FEW)
    assert_same(codauc.train(mixed, target="y", drop=["odd", "note"], **FEW),
                codauc.train(frame, target="y", drop=["note"], **FEW))  # fmt: skip


def test_the_summary_shows_itself_as_text_and_as_html(frame, here):
    summary = codauc.train(frame, target="y", drop=["note"], **FEW)
    text, html = repr(summary), summary._repr_html_()
    assert text.splitlines()[-1] == "Report: runs/memory-1/report.html"
    for shown in (text, html):
        assert f"Test AUC {summary['test_auc']:.4f}" in shown
        assert f"95% interval {summary['auc_low']:.4f} to {summary['auc_high']:.4f}" in shown
    assert "<svg" in html
    assert 'href="runs/memory-1/report.html"' in html
    assert "Network tabular" in html
    assert json.loads((here / "runs/memory-1/summary.json").read_text()) == summary
    assert "<script" not in html


def test_a_summary_escapes_what_comes_from_data(frame, here):
    summary = codauc.train(frame, "a<b>&c", target="y", drop=["note"], **FEW)
    summary["notes"].append("<img src=x onerror=alert(1)>\x1b[31m")
    html = summary._repr_html_()
    assert "<img" not in html
    assert "\x1b" not in html
    assert "\x1b" not in repr(summary)
    assert 'href="a%3Cb%3E%26c/report.html"' in html


def test_no_progress_outside_a_notebook_unless_asked_for(frame, here, capfd):
    codauc.train(frame, target="y", drop=["note"], **FEW)
    assert capfd.readouterr() == ("", "")
    codauc.train(frame, target="y", drop=["note"], quiet=False, **FEW)
    assert "train 100%" in capfd.readouterr().err
