"""evaluate, predict, compare, report, export, baselines and completion."""

import csv
import json
import subprocess
import sys

import numpy as np
import pytest

from codauc.metrics import auc
from codauc.runs import RunFolder


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


def test_baselines_are_six_runs_with_one_budget(table, codauc, tmp_path):
    code, output, error = codauc(
        "baselines", table, "--target", "fraud", "--positive", "yes", "--simulate", "2",
        "--steps", "14", "--sync-every", "4", "--out", tmp_path / "b", "--quiet",
    )  # fmt: skip
    assert code == 0, error
    found = {f.name: RunFolder(f).summary() for f in (tmp_path / "b").iterdir() if f.is_dir()}
    assert set(found) == {
        "bce-data-parallel", "bce-local-steps", "ppd-sg", "np-ppd-sg", "one-shot", "coda",
    }  # fmt: skip
    assert {summary["steps"] for summary in found.values()} == {20}
    rounds = {name: summary["rounds"] for name, summary in found.items()}
    assert rounds == {
        "bce-data-parallel": 20 + 1, "bce-local-steps": 5, "ppd-sg": 0, "np-ppd-sg": 20,
        "one-shot": 2, "coda": 2 + 4,
    }  # fmt: skip
    assert all(name in output for name in found)
    assert (tmp_path / "b/comparison.html").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_options(shell, codauc):
    code, output, _ = codauc("completion", shell)
    assert code == 0
    assert "train" in output
    assert "keep-negatives" in output


def test_bash_completes():
    script = (
        f"source <({sys.executable} -m codauc completion bash); "
        "COMP_WORDS=(codauc train x --keep); COMP_CWORD=3; _codauc; echo ${COMPREPLY[@]}"
    )
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "--keep-negatives"


def test_help_takes_no_torch():
    """In a process of its own, since this one has torch already."""
    program = (
        "import sys, codauc.cli\n"
        "for words in (['--help'], ['train', '--help'], ['train', '--nope']):\n"
        "    try: codauc.cli.main(words)\n"
        "    except SystemExit: pass\n"
        "assert not {'torch', 'numpy', 'pyarrow'} & set(sys.modules), sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


@pytest.mark.parametrize(
    "command",
    ["train", "evaluate", "predict", "compare", "report", "export", "baselines", "completion"],
)
def test_every_command_has_help_with_an_example(command, codauc):
    code, output, _ = codauc(command, "--help")
    assert code == 0
    assert "example" in output
    assert f"codauc {command}" in output
