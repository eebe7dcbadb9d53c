"""codauc train and what follows it, as a person runs them."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib

import numpy as np
import pytest
import torch

from codauc.metrics.auc_values import auc
from codauc.runs.directory import RunFolder
from codauc.runs.settings import RunSettings

COMMAND = [sys.executable, "-m", "codauc"]
QUICK = ("--target", "fraud", "--positive", "yes", "--steps", "84")
ONE_STAGE = ("--stages", "1", "--warm-start", "0", "--select", "best")  # which ends as asked
SMALL = ("--target", "fraud", "--positive", "yes", "--model", "tabular", *ONE_STAGE)
FILES = {
    "columns.json",
    "config.toml",
    "importance.json",
    "metrics.jsonl",
    "mistakes.json",
    "model.safetensors",
    "report.html",
    "summary.json",
    "test_scores.npz",
    "validation_scores.npz",
}


def test_a_run_leaves_its_settings_history_model_summary_and_report(run):
    assert {path.name for path in run.iterdir()} == FILES
    summary = json.loads((run / "summary.json").read_text())
    for name in ("test_auc", "auc_low", "auc_high", "average_precision", "pos_ratio", "seconds"):
        assert isinstance(summary[name], float), name
    for name in ("steps", "rounds", "bytes_per_worker", "best_step"):
        assert isinstance(summary[name], int), name
    assert summary["auc_low"] < summary["test_auc"] < summary["auc_high"]
    assert summary["test_auc"] > 0.7
    assert (summary["steps"], summary["rounds"], summary["bytes_per_worker"]) == (84, 0, 0)
    assert (
        summary["train_samples"] + summary["validation_samples"] + summary["test_samples"] == 1500
    )
    scores = RunFolder(run).scores()
    assert auc(scores.scores, scores.labels) == pytest.approx(summary["test_auc"], abs=1e-6)


def test_the_report_names_the_columns_that_the_model_goes_by(run, table, codauc, tmp_path):
    found = json.loads((run / "importance.json").read_text())
    lost = {column["name"]: column["lost"] for column in found["columns"]}
    assert set(lost) == {"age", "amount", "country"}
    assert min(lost["age"], lost["amount"]) > 0.02 > abs(lost["country"])
    assert codauc("report", run, "--out", tmp_path / "again.html")[0] == 0  # without the data
    for text in ((run / "report.html").read_text(), (tmp_path / "again.html").read_text()):
        assert "Importance of columns" in text
        assert "The most confident mistakes" in text


def test_a_leak_is_called_unusual_with_what_to_do(codauc, tmp_path):
    rng = np.random.default_rng(0)
    y = rng.random(800) < 0.2
    x = np.stack([rng.normal(size=800), y + 0.01 * rng.normal(size=800)], axis=1)
    np.savez(tmp_path / "leak.npz", X=x, y=y)
    code, output, _ = codauc(
        "train", tmp_path / "leak.npz", "--target", "y", "--steps", "84", "--out", tmp_path / "r"
    )
    assert code == 0
    for said in ("is unusual", "--drop", "--group"):
        assert said in output
        assert said in (tmp_path / "r/report.html").read_text()


def test_what_is_logged_is_on_a_scale_people_can_read(run):
    records = RunFolder(run).records()
    assert len(records) >= 20
    assert records[-1].step == 84
    assert all(record.loss >= 0 for record in records)
    assert all(0 <= r.auc_low <= r.auc <= r.auc_high <= 1 for r in records)
    assert all(0 < r.negative_mean < 1 and 0 < r.positive_mean < 1 for r in records)
    assert {record.stage for record in records} == {1}
    last = records[-1]  # a, b and alpha are what they are called
    assert last.a == pytest.approx(last.positive_mean, abs=0.15)
    assert last.b == pytest.approx(last.negative_mean, abs=0.15)


def test_the_settings_run_it_again_bit_for_bit(run, codauc, tmp_path):
    code, *_ = codauc("train", "--config", run / "config.toml", "--out", tmp_path / "b", "--quiet")
    assert code == 0
    for name in ("model.safetensors", "config.toml"):
        assert (run / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    first, second = RunFolder(run).scores(), RunFolder(tmp_path / "b").scores()
    assert np.array_equal(first.scores, second.scores)


def test_the_device_that_was_chosen_is_written_down(run):
    device = tomllib.loads((run / "config.toml").read_text())["device"]
    assert device == ("cuda" if torch.cuda.is_available() else "cpu")


def test_a_finished_run_is_not_overwritten_unless_told(run, codauc, table):
    before = (run / "summary.json").read_bytes()
    code, _, error = codauc("train", table, *QUICK, "--out", run)
    assert code == 2
    assert "already holds a run" in error
    assert "--overwrite" in error
    assert (run / "summary.json").read_bytes() == before


def test_overwrite_replaces_the_run(codauc, table, tmp_path):
    for steps in ("7", "14"):
        options = ("--steps", steps, "--out", tmp_path, "--overwrite", "--quiet")
        assert codauc("train", table, *SMALL, *options)[0] == 0
    assert RunFolder(tmp_path).summary()["steps"] == 14


def test_workers_simulated_and_real_give_the_same_run(codauc, table, tmp_path):
    options = (*QUICK[:4], "--steps", "36", "--evaluations", "4", "--sync-every", "8", "--quiet")
    code, *_ = codauc("train", table, *options, "--simulate", "2", "--out", tmp_path / "s")
    assert code == 0
    result = subprocess.run(
        [*COMMAND, "train", table, *options, "--workers", "2", "--out", tmp_path / "p"],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "rounds" in result.stdout
    simulated, real = RunFolder(tmp_path / "s"), RunFolder(tmp_path / "p")
    for name in ("test_auc", "rounds", "bytes_per_worker", "best_step", "workers"):
        assert simulated.summary()[name] == real.summary()[name], name
    assert (tmp_path / "s/model.safetensors").read_bytes() == (
        tmp_path / "p/model.safetensors"
    ).read_bytes()
    assert simulated.summary()["rounds"] == 5  # ceil(36 / 8)
    assert all(record.drift is not None for record in real.records())


def test_the_split_does_not_depend_on_the_number_of_workers(run, codauc, table, tmp_path):
    options = (*QUICK[:4], "--steps", "7", "--quiet", "--out", tmp_path)
    assert codauc("train", table, *options, "--simulate", "3")[0] == 0
    one, three = RunFolder(run).scores(), RunFolder(tmp_path).scores()
    assert np.array_equal(one.labels, three.labels)


def test_a_run_under_torchrun_is_written_once(table, tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         "-m", "codauc", "train", table, *SMALL, "--steps", "8", "--out", tmp_path / "r",
         "--quiet"],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Test AUC") == 1
    assert len(RunFolder(tmp_path / "r").summary()["workers"]) == 2


@pytest.mark.parametrize("workers", [(), ("--workers", "2"), ("--simulate", "2")])
def test_ctrl_c_leaves_a_usable_run_and_its_profile(workers, table, tmp_path):
    out = tmp_path / "r"
    command = [*COMMAND, "train", table, *SMALL, "--steps", "200000", "--evaluations", "2000"]
    process = subprocess.Popen(
        [*command, *workers, "--out", out, "--profile"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while not (out / "model.safetensors").exists():
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "Interrupted after" in output
    summary = RunFolder(out).summary()
    assert summary["interrupted"]
    assert summary["test_auc"] > 0.6
    assert (out / "report.html").exists()
    profile = RunFolder(out).profile()
    assert f"Where the time went: {profile['steps']:,} steps" in output
    assert profile["steps"] == summary["steps"]
    assert sum(row["seconds"] for row in profile["rows"]) == pytest.approx(profile["seconds"])
    assert profile["seconds"] == pytest.approx(summary["seconds"], rel=0.01, abs=0.2)
    assert len(profile["by_worker"]) == (2 if "--workers" in workers else 0)


def test_a_profile_is_printed_and_changes_neither_model_nor_settings(run, codauc, table, tmp_path):
    out = tmp_path / "r"
    code, output, error = codauc("train", table, *QUICK, "--out", out, "--quiet", "--profile")
    assert (code, error) == (0, "")
    assert "Where the time went: 84 steps" in output
    assert f"open {out / 'trace.json'} in https://ui.perfetto.dev" in output
    assert {path.name for path in out.iterdir()} == {*FILES, "profile.json", "trace.json"}
    for name in ("model.safetensors", "config.toml"):
        assert (run / name).read_bytes() == (out / name).read_bytes()


def test_a_killed_run_can_still_be_used(table, codauc, tmp_path):
    out = tmp_path / "r"
    command = [*COMMAND, "train", table, *SMALL, "--steps", "200000", "--evaluations", "2000"]
    process = subprocess.Popen(
        [*command, "--out", out], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 120
        while not (out / "model.safetensors").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    assert codauc("report", out)[0] == 0
    code, text, _ = codauc("evaluate", out, table)
    assert code == 0
    assert text.startswith("AUC 0.")


def test_json_is_all_that_is_printed(codauc, table, tmp_path):
    code, output, error = codauc(
        "train", table, *SMALL, "--steps", "84", "--json", "--out", tmp_path / "r"
    )
    assert (code, error) == (0, "")
    assert json.loads(output)["steps"] == 84


def test_progress_in_a_pipe_is_plain_lines(table, tmp_path):
    result = subprocess.run(
        [*COMMAND, "train", table, *SMALL, "--steps", "84", "--out", tmp_path / "r"],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    lines = result.stderr.splitlines()
    assert "\r" not in result.stderr
    assert len(lines) <= 12
    assert "100% stage 1 step 84 AUC" in lines[-1]


def test_runs_without_a_name_are_numbered(codauc, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        code, output, _ = codauc("train", table, *SMALL, "--steps", "3", "--quiet")
        assert code == 0
        assert f"runs/payments-{number}/report.html" in output


def test_a_test_file_of_its_own(codauc, table, tmp_path):
    other = tmp_path / "march.csv"
    lines = table.read_text().splitlines(keepends=True)
    other.write_text("".join(lines[:401]))
    code, output, error = codauc(
        "train",
        table,
        *QUICK[:4],
        "--steps",
        "9",
        "--test",
        other,
        "--json",
        "--out",
        tmp_path / "r",
    )
    assert code == 0, error
    summary = json.loads(output)
    assert (summary["test_samples"], summary["train_samples"]) == (400, 1500)


@pytest.mark.parametrize("recipe", ["paper", "bce"])
def test_recipes(recipe, codauc, table, tmp_path):
    options = ("--recipe", recipe, "--steps", "20", "--stages", "2", "--quiet", "--json")
    code, output, error = codauc("train", table, *QUICK[:4], *options, "--out", tmp_path)
    assert code == 0, error
    config = tomllib.loads((tmp_path / "config.toml").read_text())
    if recipe == "paper":
        assert config["recipe"]["gamma"] == 500.0
        assert config["recipe"]["average"] == "stage"
        assert json.loads(output)["steps"] == 20 + 60
    else:
        assert config["recipe"]["warm_start"] == 1.0
        assert json.loads(output)["steps"] == 40


@pytest.mark.parametrize(
    ("every", "rounds"), [("theorem", 4), ("growing", 4), ("7", 6), ("once", 2)]
)
def test_sync_every(every, rounds, codauc, table, tmp_path):
    options = ("--steps", "21", "--stages", "2", "--warm-start", "0", "--sync-every", every)
    code, output, error = codauc(
        "train", table, *QUICK[:4], *options, "--simulate", "2", "--json", "--out", tmp_path
    )
    assert code == 0, error
    assert json.loads(output)["rounds"] == rounds


def test_tensorboard_events_and_callbacks(codauc, table, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from codauc import Callback\n"
        "class Seen(Callback):\n"
        "    def on_record(self, record):\n"
        "        with open('seen.txt', 'a') as file:\n"
        "            file.write(f'{record.step}\\n')\n"
    )
    options = ("--tensorboard", "--callback", "mine:Seen", "--quiet", "--out", tmp_path / "r")
    code, _, error = codauc("train", table, *SMALL, "--steps", "84", *options)
    assert code == 0, error
    steps = [int(line) for line in (tmp_path / "seen.txt").read_text().split()]
    assert steps == [record.step for record in RunFolder(tmp_path / "r").records()]
    events = list((tmp_path / "r/tensorboard").glob("events.*"))
    assert len(events) == 1
    assert events[0].stat().st_size > 1000


def test_settings_survive_toml():
    text = RunSettings().with_changes(
        "model", arguments={"widths": [3, 4], "odd name": 'a "b"\n\\ü\x7f'}
    ).to_toml()  # fmt: skip
    assert RunSettings.from_toml(text).to_toml() == text


def test_images_of_the_package_train(codauc, tmp_path):
    options = ("--positive", "6", "--steps", "20", "--batch-size", "16", "--json")
    code, output, error = codauc("train", "fashion-tiny", *options, "--out", tmp_path)
    assert code == 0, error
    summary = json.loads(output)
    assert summary["model"]["name"] == "convnet"
    assert summary["test_samples"] == 500
    code, output, error = codauc("evaluate", tmp_path, "fashion-tiny", "--json")
    assert json.loads(output)["auc"] == pytest.approx(summary["test_auc"], abs=1e-6)


def test_torchs_random_state_is_left_alone(codauc, table, tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    codauc("train", table, *SMALL, "--steps", "3", "--quiet", "--out", tmp_path)
    assert torch.equal(before, torch.get_rng_state())
