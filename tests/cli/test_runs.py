"""evaluate, predict, compare, report, export, baselines and help."""

import csv
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from codauc.cli.main import main
from codauc.cli.options import parsers
from codauc.cli.setting_options import in_options
from codauc.metrics.auc_values import auc
from codauc.models.model_file import load_model, save_model
from codauc.reproduce.other_libraries import OTHER_MODELS
from codauc.runs.directory import RunFolder
from codauc.runs.named_settings import settings_with_options


def test_evaluate_gives_the_auc_of_labelled_data(run, table, codauc):
    code, output, error = codauc("evaluate", run, table, "--json")
    assert code == 0, error
    result = json.loads(output)
    assert (result["samples"], result["auc_low"] < result["auc"] < result["auc_high"]) == (
        1500,
        True,
    )
    code, output, _ = codauc("evaluate", run, table)
    assert f"AUC {result['auc']:.4f}" in output


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".npy"])
def test_predict_writes_a_score_for_every_row_in_its_order(suffix, run, table, codauc, tmp_path):
    out = tmp_path / f"scores{suffix}"
    code, _, error = codauc("predict", run, table, "--out", out)
    assert code == 0, error
    if suffix == ".npy":
        scores = np.load(out)
    elif suffix == ".csv":
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [int(row["row"]) for row in rows] == list(range(1500))
        scores = np.array([float(row["score"]) for row in rows])
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        columns = parquet.read_table(out).to_pydict()
        scores, chance = np.array(columns["score"]), np.array(columns["probability"])
        assert np.allclose(chance, 1 / (1 + np.exp(-scores)))
        assert chance.mean() == pytest.approx(0.12, abs=0.03)  # calibrated
    labels = np.array([line.endswith("yes") for line in table.read_text().splitlines()[1:]])
    assert auc(scores, labels) > 0.7


def test_predict_needs_no_labels_and_takes_other_columns_orders(run, codauc, tmp_path):
    plain = tmp_path / "new.csv"
    plain.write_text("country,age,amount\nDE,40,100\nXX,50,\nFR,20,5\n")
    code, _, error = codauc("predict", run, plain, "--out", tmp_path / "s.csv")
    assert code == 0, error
    with (tmp_path / "s.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    assert "label" not in rows[0]


def test_scores_of_the_test_rows_are_those_of_the_run(run, table, codauc, tmp_path):
    codauc("predict", run, table, "--out", tmp_path / "s.npy", "--quiet")
    known = RunFolder(run).scores().scores
    assert np.isin(known.astype(np.float32), np.load(tmp_path / "s.npy").astype(np.float32)).all()


def test_compare_prints_one_table_and_draws_one_page(run, table, codauc, tmp_path):
    other = tmp_path / "other"
    codauc("train", "--config", run / "config.toml", "--seed", "0", "--lr", "0.01",
           "--out", other, "--quiet")  # fmt: skip
    page = tmp_path / "c.html"
    code, output, error = codauc("compare", run, other, "--out", page)
    assert code == 0, error
    assert output.count("0.") > 4
    assert "first" in output
    assert page.read_text().startswith("<!")


def test_report_is_made_anew(run, codauc, tmp_path):
    code, *_ = codauc("report", run, "--out", tmp_path / "r.html")
    assert code == 0
    assert "Test AUC" in (tmp_path / "r.html").read_text()


class Overflows(nn.Linear):
    """A network whose score of a large input is infinity minus infinity."""

    def __init__(self, inputs=1):
        super().__init__(inputs, 1)

    def forward(self, x):
        large = x.abs().amax(1, keepdim=True).square().square()
        return super().forward(x) + (large * 1e30 - large * 1e30)


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory):
    """A run of such a network, and its table."""
    folder = tmp_path_factory.mktemp("overflowing")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    rows = [f"{a:.4f},{b:.4f},{int(a > 1)}" for a, b in x]
    (folder / "t.csv").write_text("\n".join(["first,second,y", *rows]) + "\n")
    options = ("--target", "y", "--steps", "7", "--quiet", "--out", folder / "run")
    model = ("--model", f"{__name__}:Overflows", "--model-arguments", "inputs=2")
    assert main([str(a) for a in ("train", folder / "t.csv", *options, *model)]) == 0
    return folder


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".parquet"])
def test_rows_without_a_finite_score_are_named_and_nothing_is_written(
    suffix, overflowing, codauc, tmp_path
):
    lines = (overflowing / "t.csv").read_text().splitlines()
    for line in (18, 42):
        lines[line] = "0.5,1e7,0"
    (tmp_path / "new.csv").write_text("\n".join(lines) + "\n")
    model = ("--model", f"{__name__}:Overflows")
    out = tmp_path / f"s{suffix}"
    for command in (("predict", "--out", out), ("evaluate",)):
        code, said, error = codauc(
            command[0], overflowing / "run", tmp_path / "new.csv", *command[1:], *model
        )
        assert (code, said) == (2, "")
        assert "2 of 300 rows have no finite score, the first is row 17 with nan" in error
        assert "its 'second' is" in error
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


def test_a_model_that_is_damaged_predicts_nothing(run, table, codauc, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-3] ^= 0x40  # the exponent of a weight
    (copy / "model.safetensors").write_bytes(data)
    code, _, error = codauc("predict", copy, table, "--out", tmp_path / "s.csv")
    assert (code, error.count("\n")) == (2, 1)
    assert "model.safetensors is damaged: its checksum" in error
    assert not (tmp_path / "s.csv").exists()


def test_weights_that_are_not_finite_are_named(run, table, codauc, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    model, encoder, calibration, _ = load_model(copy / "model.safetensors")
    with torch.no_grad():
        next(model.parameters()).fill_(torch.inf)
    save_model(copy / "model.safetensors", model, encoder, calibration)
    code, _, error = codauc("predict", copy, table, "--out", tmp_path / "s.csv")
    assert (code, "weights that are not finite" in error) == (2, True)
    assert not (tmp_path / "s.csv").exists()


def test_a_test_set_without_finite_scores_costs_its_auc_not_the_run(overflowing, codauc, tmp_path):
    lines = (overflowing / "t.csv").read_text().splitlines()
    lines[5] = "0.5,1e7,0"
    (tmp_path / "test.csv").write_text("\n".join(lines) + "\n")
    options = ("--target", "y", "--steps", "7", "--quiet", "--test", tmp_path / "test.csv")
    model = ("--model", f"{__name__}:Overflows", "--model-arguments", "inputs=2")
    out = tmp_path / "run"
    code, said, _ = codauc("train", overflowing / "t.csv", *options, *model, "--out", out)
    assert code == 0
    assert "No test AUC: 1 of 300 test samples have no finite score, the first is row 4." in said
    assert json.loads((out / "summary.json").read_text())["test_auc"] is None
    assert (out / "report.html").exists()


def test_export_scores_equal_predictions_in_onnxruntime(run, table, codauc, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    code, _, error = codauc("export", run, "--onnx", tmp_path / "m.onnx")
    assert code == 0, error
    codauc("predict", run, table, "--out", tmp_path / "s.npy", "--quiet")
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    values = [[row["age"], row["amount"] or "nan"] for row in rows]
    about = json.loads(session.get_modelmeta().custom_metadata_map["codauc"])
    countries = next(c["values"] for c in about["categories"] if c["name"] == "country")
    codes = [[countries.index(row["country"]) + 2] for row in rows]
    found = session.run(
        ["score"], {"numbers": np.array(values, np.float64), "categories": np.array(codes)}
    )[0]
    assert np.abs(found - np.load(tmp_path / "s.npy")).max() < 1e-5


NETWORKS = {"bce-data-parallel", "bce-local-steps", "ppd-sg", "np-ppd-sg", "one-shot", "coda"}


def test_baselines_are_six_runs_with_one_budget_and_models_of_other_libraries(
    table, codauc, tmp_path
):
    code, output, error = codauc(
        "baselines", table, "--target", "fraud", "--positive", "yes", "--simulate", "2",
        "--steps", "14", "--sync-every", "4", "--out", tmp_path / "b", "--quiet",
    )  # fmt: skip
    assert code == 0, error
    found = {f.name: RunFolder(f).summary() for f in (tmp_path / "b").iterdir() if f.is_dir()}
    assert set(found) >= NETWORKS | {"logistic-regression", "hist-gradient-boosting"}
    assert {found[name]["steps"] for name in NETWORKS} == {14}
    rounds = {name: found[name]["rounds"] for name in NETWORKS}
    assert rounds == {
        "bce-data-parallel": 14 + 1, "bce-local-steps": 4, "ppd-sg": 0, "np-ppd-sg": 14,
        "one-shot": 1, "coda": 4,
    }  # fmt: skip
    assert all(name in output for name in found)
    assert output.splitlines()[2].startswith("coda ")  # what the others are compared with
    assert "AUC - first (95% interval)" in output
    for name in ("lightgbm", "catboost", "xgboost"):
        assert (name in found) != ("codauc[baselines]" in error and name in error.lower())
    page = (tmp_path / "b/comparison.html").read_text()
    assert "logistic-regression" in page
    report = (tmp_path / "b/coda/report.html").read_text()
    assert "Models of other libraries" in report
    assert "on the same test set: AUC" in report  # 20 steps: a simpler model is as good
    assert found["logistic-regression"]["test_auc"] > 0.7
    scores = [RunFolder(tmp_path / "b" / name).scores() for name in found]
    assert all((each.labels == scores[0].labels).all() for each in scores)


def test_a_run_is_compared_with_other_libraries_and_its_report_says_so(
    run, table, codauc, tmp_path, monkeypatch
):
    monkeypatch.setattr("codauc.reproduce.baselines.OTHER_MODELS", OTHER_MODELS[:1])
    mine = tmp_path / "mine"
    shutil.copytree(run, mine)
    code, output, error = codauc("baselines", "--run", mine, "--quiet")
    assert code == 0, error
    assert "logistic-regression" in output
    assert "Models of other libraries" in (mine / "report.html").read_text()
    assert RunFolder(mine).found("baselines.json")["models"][0]["auc"] > 0.7
    code, _, error = codauc("baselines", table, "--run", mine)
    assert code == 2
    assert "expected neither DATA" in error
    other = tmp_path / "other.csv"
    other.write_text("\n".join(table.read_text().splitlines()[:1400]))
    text = (mine / "config.toml").read_text().replace(str(table), str(other))
    (mine / "config.toml").write_text(text)
    code, _, error = codauc("baselines", "--run", mine, "--overwrite")
    assert code == 2
    assert "are not those of" in error


def test_help_takes_no_torch():
    """In a process of its own, since this one has torch already."""
    program = (
        "import sys, codauc.cli.main\n"
        "for words in ('--help', 'train --help', 'train --help-all', 'train --nope'):\n"
        "    try: codauc.cli.main.main(words.split())\n"
        "    except SystemExit: pass\n"
        "assert not {'torch', 'numpy', 'pyarrow'} & set(sys.modules), sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


@pytest.mark.parametrize(
    "command",
    ["train", "evaluate", "predict", "compare", "report", "export", "baselines", "demo"],
)
def test_every_command_has_help_with_an_example(command, codauc):
    code, output, _ = codauc(command, "--help")
    assert code == 0
    assert "example" in output
    assert f"codauc {command}" in output


@pytest.mark.parametrize("command", ["train", "baselines"])
def test_help_shows_the_common_options_and_help_all_every_one(command, codauc):
    code, short, _ = codauc(command, "--help")
    assert code == 0
    shown = set(re.findall(r"^  (--[a-z-]+)", short, re.M))
    assert shown == {
        "--help-all", "--target", "--positive", "--test", "--model", "--recipe", "--steps",
        "--workers", "--simulate", "--sync-every", "--seed", "--device", "--out", "--resume",
    }  # fmt: skip
    code, full, _ = codauc(command, "--help-all")
    assert code == 0
    every = {setting.option for _, setting in settings_with_options()} - {"DATA"}
    assert every | shown <= set(re.findall(r"^  (--[a-z-]+)", full, re.M))


def test_every_declared_setting_is_an_option_with_a_text_and_its_default():
    for table, setting in settings_with_options():
        assert setting.text, (table, setting.name)
        assert "{" not in setting.text.replace("{rank}", "")
    texts = {f"{table}.{setting.name}": setting.text for table, setting in settings_with_options()}
    assert texts["recipe.lr"] == ("step size of the first stage (0.003; sgd: 0.1)")
    assert len(set(texts.values())) == len(texts)


@pytest.mark.parametrize(
    ("message", "worded"),
    [
        ("lr=-1.0: expected a number > 0", "--lr -1.0: expected a number > 0"),
        ("keep=0: expected an integer", "--checkpoints 0: expected an integer"),
        ("model.name='a b': unknown", "--model 'a b': unknown"),
        ("pass own=True; data.target is missing", "pass --own; --target is missing"),
        ("x.lr=3 in /data/lr=3.csv, width=3, name=4", "x.lr=3 in /data/lr=3.csv, width=3, name=4"),
    ],
)
def test_messages_name_options_in_the_place_of_arguments(message, worded):
    assert in_options(message, parsers()[1]["train"].options) == worded


def test_messages_of_a_command_name_only_its_own_options():
    assert in_options("silo='a', target='y'", parsers()[1]["evaluate"].options) == (
        "silo='a', --target y"
    )


def test_a_mistake_in_a_settings_file_is_named_as_it_stands_there(codauc, table, tmp_path):
    (tmp_path / "c.toml").write_text("[safety]\nkeep = 0\n")
    code, _, error = codauc("train", table, "--config", tmp_path / "c.toml")
    assert code == 2
    assert f"{tmp_path / 'c.toml'}: keep=0: expected an integer" in error


@pytest.mark.parametrize(
    "words",
    [("--device", "gpu"), ("--pretrained", "nope.pt"), ("--max-restarts", "1", "--device", "gpu"),
     ("--out", "mine", "--device", "gpu")],
)  # fmt: skip
def test_a_run_that_fails_before_its_first_step_leaves_no_directory(
    words, table, codauc, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, _, _ = codauc("train", table, "--target", "fraud", "--positive", "yes", *words)
    assert code == 2
    assert not [path for path in tmp_path.rglob("*") if path.name != "runs"]


def test_a_directory_that_was_there_stays_after_a_failure(table, codauc, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    words = ("--target", "fraud", "--positive", "yes", "--device", "gpu")
    assert codauc("train", table, *words, "--out", tmp_path / "mine")[0] == 2
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


def test_compare_overwrites_nothing_and_leaves_failed_runs_out(run, codauc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "comparison.html").write_text("mine")
    failed = tmp_path / "failed"
    failed.mkdir()
    (failed / "metrics.jsonl").write_text("")
    code, output, error = codauc("compare", run, failed)
    assert code == 0, error
    assert "Picture: comparison-2.html" in output
    assert "failed is left out: it failed before its first evaluation" in error
    assert (tmp_path / "comparison.html").read_text() == "mine"
    assert "Picture: comparison-3.html" in codauc("compare", run)[1]
    assert codauc("compare", run, "--out", "mine.html")[0] == 0
    assert (tmp_path / "mine.html").exists()
