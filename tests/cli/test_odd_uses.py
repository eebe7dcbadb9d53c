"""Uses that once went wrong: each would lose a run, or tell of another than was meant."""

import json
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from PIL import Image

from codauc.runs.directory import RunFolder

COMMAND = [sys.executable, "-m", "codauc"]
TINY = ("--target", "fraud", "--positive", "yes", "--steps", "7", "--quiet")


@pytest.mark.parametrize("wrong", [("--target", "frod"), ("--model", "tabuler")])
def test_a_mistake_with_overwrite_loses_nothing(wrong, codauc, table, tmp_path):
    assert codauc("train", table, *TINY, "--out", tmp_path / "r")[0] == 0
    before = {p.name: p.read_bytes() for p in (tmp_path / "r").iterdir()}
    code, *_ = codauc("train", table, *TINY, *wrong, "--out", tmp_path / "r", "--overwrite")
    assert code == 2
    after = {p.name: p.read_bytes() for p in (tmp_path / "r").iterdir()}
    assert before == after


def test_a_failed_run_leaves_no_directory(codauc, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert codauc("train", table, "--target", "frod")[0] == 2
    assert codauc("train", "nope.csv", "--target", "y")[0] == 2
    assert not (tmp_path / "runs").exists()


def test_two_runs_cannot_share_a_directory(codauc, table, tmp_path):
    folder = RunFolder(tmp_path)
    with folder.locked():
        code, _, error = codauc("train", table, *TINY, "--out", tmp_path)
    assert code == 2
    assert "another run is being written" in error
    assert not list(tmp_path.iterdir())


def test_another_recipe_drops_the_values_of_the_configs(run, codauc, tmp_path):
    code, *_ = codauc(
        "train", "--config", run / "config.toml", "--recipe", "paper", "--steps", "5",
        "--out", tmp_path / "p", "--quiet",
    )  # fmt: skip
    assert code == 0
    recipe = tomllib.loads((tmp_path / "p/config.toml").read_text())["recipe"]
    assert (recipe["optimizer"], recipe["gamma"], recipe["warm_start"]) == ("sgd", 500.0, 0.0)


def test_cross_entropy_alone_has_no_other_warm_start(codauc, table):
    code, _, error = codauc("train", table, *TINY, "--recipe", "bce", "--warm-start", "0.2")
    assert (code, "expected 1" in error) == (2, True)


def test_a_file_for_each_worker(codauc, table, tmp_path):
    lines = table.read_text().splitlines(keepends=True)
    for rank in (0, 1):
        (tmp_path / f"h{rank}.csv").write_text("".join([lines[0], *lines[1 + rank :: 2]]))
    code, output, error = codauc(
        "train", tmp_path / "h{rank}.csv", *TINY[:-1], "--own", "--simulate", "2", "--json",
        "--out", tmp_path / "r",
    )  # fmt: skip
    assert code == 0, error
    summary = json.loads(output)
    parts = ("train_samples", "validation_samples", "test_samples")
    assert sum(summary[part] for part in parts) == 1500
    code, _, error = codauc("train", table, *TINY, "--own", "--simulate", "2")
    assert (code, "{rank}" in error) == (2, True)


def test_standard_error_that_cannot_be_written_to_does_not_stop_a_run(table, tmp_path):
    script = f"{' '.join(COMMAND)} train {table} {' '.join(TINY[:-1])} --out {tmp_path}/r 2> >(:)"
    result = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0
    assert (tmp_path / "r/summary.json").exists()


def test_arrays_are_scored_without_labels(codauc, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", (x[:, 0] > 0.8).astype(int))
    np.save(tmp_path / "new.npy", rng.normal(size=(40, 3)))
    options = ("--target", tmp_path / "y.npy", "--steps", "7", "--quiet", "--out", tmp_path / "r")
    assert codauc("train", tmp_path / "x.npy", *options)[0] == 0
    code, _, error = codauc(
        "predict", tmp_path / "r", tmp_path / "new.npy", "--out", tmp_path / "s.npy"
    )
    assert code == 0, error
    assert len(np.load(tmp_path / "s.npy")) == 40
    code, _, error = codauc("evaluate", tmp_path / "r", tmp_path / "new.npy")
    assert (code, "has no labels" in error) == (2, True)
    code, *_ = codauc(
        "evaluate", tmp_path / "r", tmp_path / "x.npy", "--target", tmp_path / "y.npy"
    )
    assert code == 0


def test_columns_that_training_did_not_have_can_be_dropped(run, table, codauc, tmp_path):
    lines = table.read_text().splitlines()
    wide = tmp_path / "wide.csv"
    wide.write_text("\n".join([f"{lines[0]},extra", *(f"{line},1" for line in lines[1:])]))
    code, _, error = codauc("evaluate", run, wide)
    assert (code, "are ignored: 'extra'" in error) == (0, True), error
    code, _, error = codauc("evaluate", run, wide, "--drop", "extra")
    assert (code, error) == (0, "")


def images(folder, classes, count=12):
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = np.full((9, 9, 3), 20 + 50 * number + i, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


SCANS = ("--steps", "5", "--batch-size", "8", "--image-size", "8", "--quiet")


def test_classes_keep_their_meaning_after_training(codauc, tmp_path):
    images(tmp_path / "four", "abcd")
    options = (*SCANS, "--positive", "half", "--out", tmp_path / "r")
    assert codauc("train", tmp_path / "four", *options)[0] == 0
    data = tomllib.loads((tmp_path / "r/config.toml").read_text())["data"]
    assert (data["positive"], data["negative"]) == (["a", "b"], ["c", "d"])
    code, _, error = codauc("evaluate", tmp_path / "r", images(tmp_path / "two", "cd"))
    assert (code, "positive" in error) == (2, True)  # two negatives: no AUC
    code, _, error = codauc("evaluate", tmp_path / "r", images(tmp_path / "odd", ["a", "weird"]))
    assert (code, "'weird'" in error) == (2, True)
    out = tmp_path / "s.csv"
    assert codauc("predict", tmp_path / "r", tmp_path / "two", "--out", out)[0] == 0


def test_a_layout_of_train_and_test_is_evaluated_on_test(codauc, tmp_path):
    images(tmp_path / "data/train", "ab")
    images(tmp_path / "data/test", "ab", count=5)
    options = (*SCANS, "--positive", "b", "--out", tmp_path / "r")
    assert codauc("train", tmp_path / "data", *options)[0] == 0
    code, output, error = codauc("evaluate", tmp_path / "r", tmp_path / "data", "--json")
    assert code == 0, error
    assert json.loads(output)["samples"] == 10


def test_a_test_folder_of_its_own_is_used(codauc, tmp_path):
    images(tmp_path / "data", "ab")
    images(tmp_path / "other", "ab", count=4)
    options = (*SCANS, "--positive", "b", "--test", tmp_path / "other", "--out", tmp_path / "r")
    assert codauc("train", tmp_path / "data", *options)[0] == 0
    assert RunFolder(tmp_path / "r").summary()["test_samples"] == 8
    code, _, error = codauc(
        "train", "fashion-tiny", "--positive", "6", "--test", tmp_path / "other"
    )
    assert (code, "test set of its own" in error) == (2, True)


def test_a_table_of_images_is_scored_without_labels(codauc, tmp_path):
    folder = images(tmp_path / "files", "ab")
    rows = [f"{name}/{i}.png,{name}" for name in "ab" for i in range(12)]
    (tmp_path / "l.csv").write_text("\n".join(["file,y", *rows]))
    (tmp_path / "new.csv").write_text("\n".join(["file", *(row.split(",")[0] for row in rows[:7])]))
    options = ("--images", folder, "--file-column", "file", "--target", "y", "--positive", "b")
    assert codauc("train", tmp_path / "l.csv", *options, *SCANS, "--out", tmp_path / "r")[0] == 0
    out = tmp_path / "s.npy"
    code, _, error = codauc("predict", tmp_path / "r", tmp_path / "new.csv", "--out", out)
    assert code == 0, error
    assert len(np.load(out)) == 7


@pytest.mark.parametrize("option", ["--silo", "--own"])
def test_what_images_do_not_have_is_refused(option, codauc):
    words = (option, "x") if option == "--silo" else (option,)
    code, _, error = codauc("train", "fashion-tiny", "--positive", "6", *words)
    assert (code, "expected a table" in error) == (2, True)


@pytest.mark.parametrize(
    "text",
    [
        "[data]\nsource = 5", "[data]\npositive = 1.5", "[data]\ntest = 4", "[data]\nown = 'yes'",
        "[model]\narguments = 3", "[model]\npretrained = 3", "[recipe]\ninitial_bias = 'no'",
        "[recipe]\nlr = true", "[communication]\ncompress = 8", "seed = 'a'", "device = 3",
    ],
)  # fmt: skip
def test_values_of_another_kind_are_told(text, codauc, table, tmp_path):
    (tmp_path / "c.toml").write_text(text)
    code, _, error = codauc("train", table, *TINY, "--config", tmp_path / "c.toml")
    assert (code, "expected" in error) == (2, True), error


@pytest.mark.parametrize(
    "options", [("--stages", "700", "--factor", "3"), ("--warm-start", "0.9999999999")]
)
def test_runs_without_end_are_refused(options, codauc, table):
    code, _, error = codauc("train", table, *TINY, *options)
    assert (code, "expected" in error) == (2, True)


def test_weights_to_begin_with_stay_as_they_are(run, codauc, table, tmp_path):
    """A run of one step from a run's model begins where that ended."""
    code, _, error = codauc(
        "train", table, *TINY[:4], "--steps", "1", "--warm-start", "0", "--lr", "1e-12",
        "--average", "none", "--pretrained", run / "model.safetensors", "--quiet",
        "--out", tmp_path / "r",
    )  # fmt: skip
    assert code == 0, error
    first, second = RunFolder(run).summary(), RunFolder(tmp_path / "r").summary()
    assert second["test_auc"] == pytest.approx(first["test_auc"], abs=1e-4)


def test_suffixes_in_capital_letters(table, codauc, tmp_path):
    other = tmp_path / "UP.CSV"
    other.write_bytes(table.read_bytes())
    assert codauc("train", other, *TINY, "--out", tmp_path / "r")[0] == 0
