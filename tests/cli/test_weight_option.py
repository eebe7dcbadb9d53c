"""Claims about --weight on the command line."""

import json

import numpy as np
import pandas as pd
import pytest

from codauc.data.data_settings import DataSettings
from codauc.data.opening import open_data
from codauc.metrics import weighted_auc_interval
from codauc.workers import LocalGroup

SMALL = ("--target", "ill", "--steps", "30", "--quiet")


@pytest.fixture(scope="module")
def survey(tmp_path_factory):
    random, path = np.random.default_rng(0), tmp_path_factory.mktemp("survey") / "survey.csv"
    frame = pd.DataFrame(random.normal(size=(900, 3)), columns=list("abc"))
    frame["people"] = random.integers(0, 5, 900)
    frame["ill"] = (frame.a + random.normal(size=900) > 1).astype(int)
    frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("workers", [1, 2])
def test_the_test_auc_is_weighted(survey, codauc, tmp_path, workers):
    run = tmp_path / "run"
    options = (*SMALL, "--weight", "people", "--simulate", workers, "--out", run)
    code, output, errors = codauc("train", survey, *options)
    assert code == 0, errors
    assert "weighted by 'people'" in output
    summary, frame = json.loads((run / "summary.json").read_text()), pd.read_csv(survey)
    assert summary["train_samples"] + summary["validation_samples"] + summary["test_samples"] == (
        (frame.people > 0).sum()
    )
    frame.drop(columns=["people", "ill"]).to_csv(tmp_path / "new.csv", index=False)
    assert codauc("predict", run, tmp_path / "new.csv", "--out", tmp_path / "s.npy")[0] == 0
    with np.load(run / "test_scores.npz") as kept:
        scores, labels = kept["scores"], kept["labels"]
    data = DataSettings(source=str(survey), target="ill", weight="people")
    rows = open_data(data, LocalGroup()).test.rows.numpy()
    weights = frame.people.to_numpy()[rows]
    assert np.array_equal(frame.ill.to_numpy()[rows] == 1, labels)
    expected = weighted_auc_interval(scores, labels, weights)
    assert summary["test_auc"] == pytest.approx(expected.value, abs=1e-6)
    assert summary["auc_low"] == pytest.approx(expected.low, abs=1e-6)


def test_equal_weights_are_the_plain_run_bit_for_bit(survey, codauc, tmp_path):
    frame = pd.read_csv(survey)
    frame.assign(people=3).to_csv(tmp_path / "equal.csv", index=False)
    frame.drop(columns="people").to_csv(tmp_path / "none.csv", index=False)
    summaries = []
    for name, more in (("equal", ("--weight", "people")), ("none", ())):
        out = tmp_path / f"run {name}"
        assert codauc("train", tmp_path / f"{name}.csv", *SMALL, *more, "--out", out)[0] == 0
        summaries.append(json.loads((out / "summary.json").read_text()))
    for name in ("test_auc", "auc_low", "average_precision", "validation_auc", "pos_ratio"):
        assert summaries[0][name] == summaries[1][name]
    scores = [np.load(tmp_path / f"run {name}" / "test_scores.npz") for name in ("equal", "none")]
    assert np.array_equal(scores[0]["scores"], scores[1]["scores"])


@pytest.mark.parametrize(
    ("value", "message"), [(-1, "the weight is -1"), ("", "the weight is missing")]
)
def test_bad_weights_name_the_line(survey, codauc, tmp_path, value, message):
    frame = pd.read_csv(survey).astype({"people": object})
    frame.loc[10, "people"] = value
    frame.to_csv(tmp_path / "bad.csv", index=False)
    code, _, errors = codauc("train", tmp_path / "bad.csv", *SMALL, "--weight", "people")
    assert code == 2
    assert f"column 'people', line 12: {message}" in errors
