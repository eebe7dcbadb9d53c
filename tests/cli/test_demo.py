"""The command, as a person runs it."""

import json
import signal
import subprocess
import sys
import time
from xml.etree import ElementTree

import pytest
from safetensors.torch import load_file

from codauc.models import ConvNet

COMMAND = [sys.executable, "-m", "codauc"]


def listen():
    """Let a child hear SIGINT even where the parent ignores it, as background jobs do."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(*arguments, **options):
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=280, **options
    )


def test_demo_loses_less_than_a_hundredth_of_auc_with_8_times_fewer_rounds(tmp_path):
    result = run("demo", "--workers", "2", "--stages", "2", "--out", str(tmp_path))
    assert result.returncode == 0, result.stderr
    rows = {
        (r["method"], r["sync_every"]): r
        for r in json.loads((tmp_path / "results.json").read_text())
    }
    naive, coda = rows["NP-PPD-SG", 1], rows["CoDA", 8]
    assert naive["test_auc"] > 0.9
    assert coda["test_auc"] > naive["test_auc"] - 0.01
    assert naive["iterations"] == coda["iterations"] == naive["rounds"] == 64 + 192
    assert coda["rounds"] == 8 + 24
    assert rows["CoDA", 64]["rounds"] == 1 + 3
    assert rows["PPD-SG", 1]["rounds"] == rows["PPD-SG", 1]["bytes_sent"] == 0
    assert all(r["auc_low"] < r["test_auc"] < r["auc_high"] for r in rows.values())
    assert f"Picture: {tmp_path / 'demo.svg'}; page: {tmp_path / 'demo.html'}" in result.stdout
    picture = ElementTree.parse(tmp_path / "demo.svg").getroot()
    assert len(picture.findall("{*}svg")) == 2  # against iterations, against rounds
    page = (tmp_path / "demo.html").read_text()
    for row in rows.values():
        assert f"<td>{row['test_auc']:.4f}</td>" in page
    assert "8.0 times fewer rounds" in result.stdout
    assert "100%" in result.stderr
    assert "\r" not in result.stderr
    ConvNet(widths=(8, 16, 32)).load_state_dict(load_file(tmp_path / "coda-i8.safetensors"))


SMALL = ("demo", "--workers", "2", "--steps", "4", "--stages", "1", "--sync-every", "2")


def test_quiet_demo_shows_no_progress_and_repeats_exactly(codauc, tmp_path):
    def curves(out):
        return [r["curve"] for r in json.loads((out / "results.json").read_text())]

    result = run(*SMALL, "--quiet", "--out", str(tmp_path / "one"))
    assert result.returncode == 0
    assert result.stderr == ""
    assert "CoDA I=2" in result.stdout
    assert codauc(*SMALL, "--quiet", "--out", tmp_path / "two")[0] == 0  # in another process
    assert curves(tmp_path / "one") == curves(tmp_path / "two")


def test_interrupted_demo_keeps_what_is_finished(tmp_path):
    command = [*COMMAND, "demo", "--workers", "4", "--steps", "24", "--out", str(tmp_path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listen
    )
    try:
        for line in process.stderr:
            if "NP-PPD-SG" in line:
                break
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        output, errors = process.communicate(timeout=120)
        assert time.monotonic() - start < 60
    finally:
        process.kill()
    assert process.returncode == 130
    assert "PPD-SG" in output
    assert "what was finished is kept" in errors
    assert "Traceback" not in errors
    assert len(json.loads((tmp_path / "results.json").read_text())) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sync-every", "0"), "--sync-every 0"),
        (("--workers", "0"), "--workers 0"),
        (("--workers", "5000"), "at most 1400 workers"),
        (("--lr", "-1"), "--lr -1"),
        (("--lr", "5"), "alpha diverges"),
        (("--stages", "0"), "--stages 0"),
        (("--steps", "x"), "invalid int"),
        (("--wrkers", "2"), "did you mean '--workers'"),
    ],
)
def test_bad_options_end_with_one_line_and_exit_code_2(arguments, message, codauc, tmp_path):
    code, _, error = codauc("demo", *arguments, "--out", tmp_path)
    assert code == 2
    assert message in error
    assert not list(tmp_path.iterdir())


def test_unwritable_directory_is_an_error_before_the_work(tmp_path):
    """In a process of its own, as it is typed."""
    blocker = tmp_path / "file"
    blocker.write_text("")
    start = time.monotonic()
    result = run("demo", "--out", str(blocker / "out"))
    assert result.returncode == 2
    assert "file" in result.stderr
    assert time.monotonic() - start < 100


def test_help_and_version():
    assert "codauc demo --workers 8" in run("demo", "--help").stdout
    assert run("--version").stdout.startswith("codauc 0.")
    assert "demo" in run().stdout
