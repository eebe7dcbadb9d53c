"""`codauc inspect`, and what `codauc train` says of columns before it trains."""

import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from codauc.cli.main import main
from codauc.data import read_table
from codauc.data.data_settings import DataSettings
from codauc.data.opening import open_data
from codauc.metrics.single_columns import deciding_columns
from codauc.runs.directory import RunFolder
from codauc.workers.group import LocalGroup


def loans(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    risk = rng.normal(size=rows)
    bad = risk + rng.normal(size=rows) > 1.2
    return pd.DataFrame(
        {
            "loan_id": rng.permutation(rows) + 5000,
            "risk": [f"{value:.3f}".replace(".", ",") for value in risk],
            "letter": [f"letter {i}" for i in range(rows)],
            "reminders": np.where(bad, "some", "none"),
            "noise": rng.integers(0, 50, rows),
            "state": np.where(bad, "bad", "good"),
        }
    )


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loans().to_csv("loans.csv", index=False, sep=";")
    return "loans.csv"


def test_inspect_shows_every_column_and_trains_nothing(file, tmp_path, capsys):
    assert main(["inspect", file, "--target", "state"]) == 0
    said = capsys.readouterr().out
    lines = {line.split()[0]: line for line in said.splitlines() if line}
    assert "id, left out" in lines["loan_id"]
    assert "decimal comma" in lines["risk"]
    assert "text, left out" in lines["letter"]
    assert "AUC alone 1.0000" in lines["reminders"]
    assert "--positive good" in said
    assert "leave it out: --drop reminders." in said
    assert [path.name for path in tmp_path.iterdir()] == ["loans.csv"]


def test_inspect_as_json(file, capsys):
    assert main(["inspect", file, "--target", "state", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kinds = {column["name"]: column["kind"] for column in found["columns"]}
    assert kinds["risk"] == "number"
    assert found["positive"] == ["bad"]
    assert sum(found["rows"].values()) == 400


def test_train_says_how_columns_were_read_and_keeps_it(file, capsys):
    assert main(["train", file, "--target", "state", "--steps", "20", "--out", "run"]) == 0
    said = capsys.readouterr()
    assert "Columns: 2 numbers, 1 category." in said.err
    assert "Read as decimal comma: 'risk'." in said.err
    assert "Left out, as every value is another integer: 'loan_id'." in said.err
    assert "Warning: column 'reminders' alone gives AUC 1.0000" in said.err
    assert "POSITIVE is 'bad'" in said.out
    assert "--drop reminders" in said.out
    kinds = {record.name: record.kind for record in RunFolder("run").columns()}
    assert kinds["loan_id"] == "id"
    assert main(["predict", "run", file, "--out", "scores.csv"]) == 0
    assert len(pd.read_csv("scores.csv")) == 400


def test_a_target_given_twice_is_an_error(file, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", file, "--target", "state", "--target", "risk"])
    assert ended.value.code == 2
    assert "--target was given twice: expected it once." in capsys.readouterr().err


def test_errors_of_reading_name_options(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("when;n;y\n" + "01/02/2024;1.234;0\n03/04/2024;2.345;1\n" * 20)
    assert main(["inspect", "a.csv", "--target", "y"]) == 2
    said = capsys.readouterr().err
    assert "say --decimal . or --decimal ," in said
    assert "say --dayfirst or --no-dayfirst" in said
    options = ["--decimal", ",", "--no-dayfirst"]
    assert main(["inspect", "a.csv", "--target", "y", *options]) == 0


@pytest.mark.parametrize("rare", [0.5, 0.004])
def test_columns_that_decide_alone_are_found_and_others_not(rare):
    rng = np.random.default_rng(0)
    y = (rng.random(6000) < rare).astype(float)
    data = pd.DataFrame(
        {
            "leak": y + rng.normal(0, 0.1, 6000),
            "against": -y + rng.normal(0, 0.1, 6000),
            "gap": np.where(y > 0, np.nan, rng.normal(size=6000)),
            "text": np.where(y > 0, rng.choice(["a", "b"], 6000), rng.choice(["c", "d"], 6000)),
            "good": y + rng.normal(0, 0.6, 6000),
            "names": rng.choice([f"n{i}" for i in range(900)], 6000),
            "y": y,
        }
    )
    assert deciding_columns(read_table(data, "y")).keys() == {"leak", "against", "gap", "text"}


def test_parts_that_are_read_together_lack_what_was_left_out(file):
    settings = DataSettings(file, target="state")
    opened = open_data(settings, LocalGroup())
    assert [part.x.shape[1] for part in (opened.train, opened.validation, opened.test)] == [3] * 3


def test_a_csv_of_images_with_labels_0_and_1_needs_no_positive(tmp_path):
    for i in range(20):
        Image.new("RGB", (8, 8), (10 * i, 0, 0)).save(tmp_path / f"{i}.png")
    table = pd.DataFrame({"file": [f"{i}.png" for i in range(20)], "ill": [0, 0, 0, 1] * 5})
    table.to_csv(tmp_path / "labels.csv", index=False)
    settings = DataSettings(
        str(tmp_path / "labels.csv"),
        target="ill",
        images=str(tmp_path),
        file_column="file",
        validation_fraction=0.2,
    )
    opened = open_data(settings, LocalGroup())
    assert opened.positive == ("1",)
    assert opened.hints == ()
