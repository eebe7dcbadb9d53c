"""What codauc predict reads, says and writes."""

import csv
import json
import os
import pty
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from codauc.cli._large_csv import write_large
from codauc.cli.score_files import write_csv
from codauc.metrics.evaluation import logits_of
from codauc.models import TabularNet
from codauc.models.model_file import load_model

PIL = pytest.importorskip("PIL.Image")
pa = pytest.importorskip("pyarrow")


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path, text):
    path.write_text(text)
    return path


NEW = 'id,country,age,note,amount\n007,DE,40,"a, b",100\nNA,FR,50,"say ""x""",\nn/a,DE,20,,5\n'


def test_extra_columns_are_ignored_with_a_note(run, codauc, tmp_path):
    new = write(tmp_path / "new.csv", NEW)
    code, _, error = codauc("predict", run, new, "--out", tmp_path / "s.csv")
    assert code == 0, error
    assert "Note: columns that training did not have are ignored: 'id', 'note'" in error
    plain = write(tmp_path / "plain.csv", "country,age,amount\nDE,40,100\nFR,50,\nDE,20,5\n")
    code, _, error = codauc("predict", run, plain, "--out", tmp_path / "p.csv")
    assert (code, error) == (0, "")
    scores = [[row["score"] for row in rows_of(tmp_path / name)] for name in ("s.csv", "p.csv")]
    assert scores[0] == scores[1]
    codauc("predict", run, new, "--out", tmp_path / "q.csv", "--quiet")
    assert (tmp_path / "q.csv").read_bytes() == (tmp_path / "s.csv").read_bytes()


def test_all_missing_columns_are_named_at_once(run, codauc, tmp_path):
    new = write(tmp_path / "new.csv", "id,Country\n1,DE\n")
    code, _, error = codauc("predict", run, new, "--out", tmp_path / "s.csv")
    assert code == 2
    assert "lacks 'age', 'amount', 'country' and has also 'id', 'Country'" in error


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_kept_columns_are_copied_as_they_are_written(suffix, run, codauc, tmp_path):
    new, out = write(tmp_path / "new.csv", NEW), tmp_path / f"s{suffix}"
    code, _, error = codauc("predict", run, new, "--keep", "id,note,age", "--out", out)
    assert code == 0, error
    if suffix == ".csv":
        rows = rows_of(out)
        assert list(rows[0]) == ["row", "id", "note", "age", "score", "probability"]
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(out).to_pylist()
    assert [row["id"] for row in rows] == ["007", "NA", "n/a"]
    assert [row["note"] for row in rows] == ["a, b", 'say "x"', ""]
    assert [row["age"] for row in rows] == ["40", "50", "20"]


def test_columns_of_parquet_are_kept_with_their_types(run, codauc, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"id": [3, None], "tags": [["a"], []], "age": [40.0, 50.0],
                      "amount": [1.0, 2.0], "country": ["DE", "FR"]})  # fmt: skip
    parquet.write_table(table, tmp_path / "new.parquet")
    out = tmp_path / "s.parquet"
    code, _, error = codauc("predict", run, tmp_path / "new.parquet", "--keep", "id,tags",
                            "--out", out)  # fmt: skip
    assert code == 0, error
    assert parquet.read_table(out).select(["id", "tags"]).to_pydict() == {
        "id": [3, None],
        "tags": [["a"], []],
    }
    code, _, error = codauc("predict", run, tmp_path / "new.parquet", "--keep", "id,tags",
                            "--out", tmp_path / "s.csv")  # fmt: skip
    assert code == 0, error
    assert [row["tags"] for row in rows_of(tmp_path / "s.csv")] == ["['a']", "[]"]


@pytest.mark.parametrize(
    ("keep", "words"),
    [("Id", "has no column 'Id': it has 'id', 'country'"), ("score", "has a column of its own")],
)
def test_a_column_that_cannot_be_kept_is_refused(keep, words, run, codauc, tmp_path):
    new = write(tmp_path / "new.csv", NEW.replace("note", "score"))
    code, _, error = codauc("predict", run, new, "--keep", keep, "--out", tmp_path / "s.csv")
    assert (code, words in error) == (2, True), error
    assert not (tmp_path / "s.csv").exists()


def test_arrays_have_no_columns_to_keep(run, codauc, tmp_path):
    X, y = np.random.default_rng(0).normal(size=(300, 3)), np.arange(300) % 5 == 0
    np.savez(tmp_path / "a.npz", X=X, y=y)
    np.save(tmp_path / "new.npy", X)
    options = ("--target", "y", "--steps", "7", "--out", tmp_path / "r", "--quiet")
    assert codauc("train", tmp_path / "a.npz", *options)[0] == 0
    words = ("predict", tmp_path / "r", tmp_path / "new.npy", "--out", tmp_path / "s.csv")
    code, _, error = codauc(*words, "--keep", "id")
    assert (code, "--keep id with" in error) == (2, True), error
    np.save(tmp_path / "wide.npy", np.zeros((3, 4)))  # which of them would be extra?
    code, _, error = codauc(
        "predict", tmp_path / "r", tmp_path / "wide.npy", "--out", tmp_path / "w"
    )
    assert code == 2


def test_unseen_and_missing_values_are_mentioned_and_counted(run, codauc, tmp_path):
    def notes(text):
        new = write(tmp_path / "new.csv", text)
        out = tmp_path / "s.csv"
        code, _, error = codauc("predict", run, new, "--out", out, "--overwrite")
        assert code == 0, error
        assert all(np.isfinite(float(row["score"])) for row in rows_of(out))
        return error

    header = "country,age,amount\n"
    error = notes(header + "de,1,\nfr,2,\nxx,2,\n")
    assert "column 'country': no value was seen in training (3 different, such as 'de')" in error
    assert "column 'amount': every value is missing" in error
    assert notes(header + "DE,1,2\nXX,2,3\nXX,3,4\n,4,5\n").splitlines() == [
        "Note: column 'country': 2 of 4 values (1 different, such as 'XX') were not seen in "
        "training, or were rare there."
    ]
    assert "column 'country': every value is missing" in notes(header + ",1,2\n,2,3\n")
    assert notes(header + "DE,1,2\n,2,\n") == ""


def test_a_control_character_of_a_file_does_not_reach_the_terminal(run, codauc, tmp_path):
    new = write(tmp_path / "new.csv", "country,age,amount,\x1b[31mred\nD\x1b[2JE,1,2,3\n")
    code, _, error = codauc("predict", run, new, "--out", tmp_path / "s.csv")
    assert (code, "\x1b" in error) == (0, False)


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """A run on images of two classes, dark and bright, and some images to score."""
    from codauc.cli.main import main

    folder, rng = tmp_path_factory.mktemp("scans"), np.random.default_rng(0)

    def image(path, level):
        path.parent.mkdir(parents=True, exist_ok=True)
        PIL.fromarray(rng.integers(level, level + 60, (16, 16), np.uint8)).save(path)

    for i in range(24):
        image(folder / "data" / "bright" / f"{i}.png", 180)
        image(folder / "data" / "dark" / f"{i}.png", 10)
    for name, level in (("b.png", 180), ("a.png", 10), ("deep/c.JPG", 180)):
        image(folder / "new" / name, level)
    (folder / "new" / "read.txt").write_text("no image")
    words = ("train", folder / "data", "--positive", "bright", "--image-size", "16", "--steps", "3",
             "--model", "mlp", "--out", folder / "run", "--quiet")  # fmt: skip
    assert main([str(word) for word in words]) == 0
    return folder


@pytest.mark.parametrize(
    ("data", "files"),
    [
        ("new/b.png", ["new/b.png"]),
        ("new/*.png", ["new/a.png", "new/b.png"]),
        ("new/*", ["new/a.png", "new/b.png"]),
        ("new/**/*.[jJ]*", ["new/deep/c.JPG"]),
    ],
)
def test_images_are_scored_alone_or_by_a_pattern(data, files, scans, codauc, tmp_path):
    out = tmp_path / "s.csv"
    code, _, error = codauc("predict", scans / "run", scans / data, "--out", out)
    assert code == 0, error
    rows = rows_of(out)
    assert [row["file"] for row in rows] == [str(scans / name) for name in files]
    assert "label" not in rows[0]


def test_files_of_a_folder_are_named_and_their_labels_known(scans, codauc, tmp_path):
    out = tmp_path / "s.csv"
    code, _, error = codauc("predict", scans / "run", scans / "data", "--out", out)
    assert code == 0, error
    rows = rows_of(out)
    assert {row["file"]: row["label"] for row in rows} == {
        f"{name}/{i}.png": str(name == "bright") for name in ("bright", "dark") for i in range(24)
    }


def test_a_pattern_without_images_is_refused_in_one_line(scans, codauc, tmp_path):
    for data, words in (("new/*.gif", "stands for no file"), ("new/*.txt", "no images")):
        code, _, error = codauc("predict", scans / "run", scans / data, "--out", tmp_path / "s.csv")
        assert (code, words in error, error.count("\n")) == (2, True, 1), error
    code, _, error = codauc("train", scans / "new" / "*.png", "--positive", "x")
    assert (code, "expected a directory with a folder" in error) == (2, True)


def test_a_pattern_that_the_shell_has_expanded_gets_a_hint(scans, codauc):
    code, _, error = codauc("predict", scans / "run", "a.png", "b.png", "--out", "s.csv")
    assert (code, "in quotes" in error) == (2, True), error


def test_the_bar_is_drawn_on_a_terminal_alone(run, table, tmp_path):
    words = [sys.executable, "-m", "codauc", "predict", run, table, "--out", tmp_path / "s.csv"]
    plain = subprocess.run(words, capture_output=True, text=True)
    assert (plain.returncode, plain.stderr) == (0, "")
    main, side = pty.openpty()
    drawn = subprocess.run([*words, "--overwrite"], stdout=subprocess.PIPE, stderr=side, text=True)
    os.close(side)
    seen = os.read(main, 1 << 16).decode()
    os.close(main)
    assert drawn.returncode == 0
    assert "score 100%" in seen
    assert "read 1,500" in seen


def test_large_files_of_scores_hold_what_small_ones_hold(tmp_path):
    columns = {
        "row": np.arange(5),
        'a "name", quoted': pa.chunked_array([["x", "y,z", 'q"r', "l\nm", None]]),
        "score": np.array([1e-5, -3.0, 1e20, 0.1, 2**0.5]),
        "label": np.array([True, False] * 2 + [True]),
        "kind": pa.chunked_array([pa.array(["u", "v", "u", None, "v"]).dictionary_encode()]),
    }
    for chosen in (columns, {k: v for k, v in columns.items() if k != 'a "name", quoted'}):
        write_csv(tmp_path / "small.csv", chosen)
        write_large(tmp_path / "large.csv", chosen)
        small, large = rows_of(tmp_path / "small.csv"), rows_of(tmp_path / "large.csv")
        for one, other in zip(small, large, strict=True):
            assert float(one.pop("score")) == float(other.pop("score"))
        assert small == large


def test_batches_side_by_side_give_the_same_scores_bit_for_bit():
    torch.manual_seed(0)
    model, x = TabularNet(numbers=5, pieces=4).eval(), torch.randn(5000, 5)
    seen, before = [], torch.get_num_threads()
    side = logits_of(model, x, 600, threads=3, progress=seen.append)
    assert torch.get_num_threads() == before
    torch.set_num_threads(1)
    try:
        plain = logits_of(model, x, 600)
    finally:
        torch.set_num_threads(before)
    assert (side == plain).all()
    assert (seen[-1], seen == sorted(seen)) == (5000, True)


def test_loading_a_model_does_not_load_torch_s_compiler(run):
    code = (
        "import sys; from codauc.models.model_file import load_model\n"
        f"load_model({str(run / 'model.safetensors')!r})\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_training_does_not_load_torch_s_compiler(table, tmp_path):
    """It takes longer to import than a short run to train."""
    code = (
        "import sys, codauc\n"
        f"data, out = {str(table)!r}, {str(tmp_path / 'r')!r}\n"
        "codauc.train(data, out, target='fraud', positive='yes', steps=2)\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# thresholds


@pytest.fixture(scope="module")
def decided(table, tmp_path_factory):
    """A run with a threshold."""
    from codauc.cli.main import main

    out = tmp_path_factory.mktemp("runs") / "decided"
    words = ("train", table, "--target", "fraud", "--positive", "yes", "--steps", "30",
             "--threshold", "recall=0.8", "--out", out, "--quiet")  # fmt: skip
    assert main([str(word) for word in words]) == 0
    return out


def test_a_threshold_is_chosen_kept_and_honoured(decided, table, codauc, tmp_path):
    chosen = load_model(decided / "model.safetensors").threshold
    assert (chosen.rule, chosen.reached >= 0.8) == ("recall=0.8", True)
    assert json.loads((decided / "summary.json").read_text())["threshold"] == chosen.to_dict()
    out = tmp_path / "s.csv"
    assert codauc("predict", decided, table, "--out", out)[0] == 0
    rows = rows_of(out)
    assert list(rows[0]) == ["row", "score", "probability", "predicted", "label"]
    assert [row["predicted"] for row in rows] == [
        "1" if float(row["score"]) >= chosen.value else "0" for row in rows
    ]
    _, output, _ = codauc("evaluate", decided, table)
    found = sum(row["predicted"] == "1" and row["label"] == "True" for row in rows)
    missed = sum(row["label"] == "True" for row in rows) - found
    assert "At the threshold of recall=0.8" in output
    assert re.search(rf"positive +{found} +{missed}\n", output), output
    result = json.loads(codauc("evaluate", decided, table, "--json")[1])
    assert (result["confusion"]["found"], result["confusion"]["missed"]) == (found, missed)


def test_an_existing_run_gets_another_threshold(decided, run, table, codauc, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    before = load_model(copy / "model.safetensors")
    code, output, error = codauc("threshold", copy, "cost=1:5")
    assert code == 0, error
    assert output.startswith("Threshold: score ")
    after = load_model(copy / "model.safetensors")
    assert (before.threshold, after.threshold.rule) == (None, "cost=1:5")
    for name, weights in before.model.state_dict().items():
        assert torch.equal(weights, after.model.state_dict()[name])
    # chosen afterwards it is the same as in training
    other = tmp_path / "other"
    shutil.copytree(decided, other)
    assert codauc("threshold", other, "f1")[0] == 0
    chosen = json.loads(codauc("threshold", other, "recall=0.8", "--json")[1])
    assert chosen == load_model(decided / "model.safetensors").threshold.to_dict()


def test_a_threshold_that_is_wrong_or_not_reached_is_answered_in_one_line(run, codauc, tmp_path):
    for words, answer in (
        (("threshold", run, "recal=0.9"), "RULE recal=0.9: expected recall=R"),
        (("threshold", run, "precision=1"), "is not reached with"),
        (("threshold", tmp_path, "f1"), "has no config.toml"),
        (("threshold", run), "RULE"),
        (("train", "x.csv", "--threshold", "recall=2"), "--threshold recall=2: expected"),
    ):
        code, _, error = codauc(*words)
        assert (code, answer in error, error.count("\n")) == (2, True, 1), error
    assert load_model(run / "model.safetensors").threshold is None


def test_a_run_whose_threshold_is_not_reached_ends_with_a_note(table, codauc, tmp_path):
    code, output, error = codauc(
        "train", table, "--target", "fraud", "--positive", "yes", "--steps", "3",
        "--threshold", "precision=1", "--out", tmp_path / "r", "--quiet",
    )  # fmt: skip
    assert code == 0, error
    assert "Note: No threshold: precision=1 is not reached with" in output
    assert "ask for precision=0." in output
    code, _, error = codauc("train", table, "--target", "fraud", "--positive", "yes", "--watch",
                            "test", "--select", "last", "--threshold", "f1")  # fmt: skip
    assert (code, "--threshold f1 without a validation set" in error) == (2, True), error


def test_a_model_file_with_a_strange_threshold_is_refused(decided, table, codauc, tmp_path):
    from codauc.models import model_file

    copy = tmp_path / "copy"
    shutil.copytree(decided, copy)
    path = copy / "model.safetensors"
    saved = load_model(path)
    strange = saved.threshold.__class__.__new__(saved.threshold.__class__)
    for name, value in {**saved.threshold.to_dict(), "value": None}.items():
        object.__setattr__(strange, name, value)
    model_file.save_threshold(path, strange)
    code, _, error = codauc("predict", copy, table, "--out", tmp_path / "s.csv")
    assert (code, "cannot be read as a saved model" in error) == (2, True), error
