"""Noise must not look like success: rows of one patient on both sides of a split."""

import json

import numpy as np
import pandas as pd
import pytest

SMALL = ("--target", "ill", "--steps", "100")


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """250 patients with 8 rows each, near copies of each other with one label, by chance."""
    random, path = np.random.default_rng(0), tmp_path_factory.mktemp("noise") / "visits.csv"
    who = np.repeat(np.arange(250), 8)
    frame = pd.DataFrame(random.normal(size=(250, 5))[who], columns=list("abcde"))
    frame += 0.01 * random.normal(size=frame.shape)
    frame["patient"] = random.permutation(100_000)[:250][who]
    frame["ill"] = (random.random(250) < 0.3).astype(int)[who]
    frame.sample(frac=1, random_state=0).to_csv(path, index=False)
    return path


def test_without_a_group_the_program_names_the_column_and_the_remedy(noise, codauc, tmp_path):
    code, output, _ = codauc("train", noise, *SMALL, "--out", tmp_path / "run", "--quiet")
    assert code == 0
    assert "Note: Column 'patient' has 250 values that repeat, also across the split" in output
    assert "keep its rows together with --group patient." in output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["auc_low"] > 0.6  # of noise: this is what the note is about
    assert "keep its rows together" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("seed", [0, 2])
def test_with_the_group_the_interval_holds_one_half(noise, codauc, tmp_path, seed):
    run = tmp_path / "run"
    code, output, _ = codauc(
        "train", noise, *SMALL, "--group", "patient", "--seed", seed, "--out", run, "--quiet"
    )
    assert code == 0
    assert "Column 'patient'" not in output
    summary = json.loads((run / "summary.json").read_text())
    assert summary["auc_low"] < 0.5 < summary["auc_high"]
    table = pd.read_csv(noise)
    table.drop(columns=["patient", "ill"]).to_csv(tmp_path / "new.csv", index=False)
    for data in (noise, tmp_path / "new.csv"):  # the column is no input
        assert codauc("predict", run, data, "--out", tmp_path / f"{data.stem}.npy")[0] == 0
    scores = [np.load(tmp_path / f"{name}.npy") for name in ("visits", "new")]
    assert np.array_equal(*scores)


def test_errors_name_options(noise, codauc, tmp_path):
    code, _, errors = codauc("train", noise, "--target", "ill", "--group", "patients")
    assert (code, "did you mean 'patient'?" in errors) == (2, True)
    code, _, errors = codauc("train", noise, "--target", "ill", "--group", "ill")
    assert (code, "--group ill: negatives are in 1 of its 2 groups" in errors) == (2, True)
    code, _, errors = codauc("train", noise, *SMALL, "--group", "patient", "--test", noise)
    assert (code, "--group patient with a test set of its own" in errors) == (2, True)
