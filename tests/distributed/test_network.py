"""Across hosts: network namespaces joined by slow links, one torchrun agent in each."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import workers as w

import codauc

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

from hosts import Hosts  # noqa: E402

REASON = Hosts.reason()


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What four hosts at 100 Mbit/s measured."""
    if REASON is not None:
        pytest.skip(f"no hosts can be made here: {REASON}")
    out = tmp_path_factory.mktemp("link")
    options = ["--rounds=3", "--repeats=1", "--sync-every=8", "--delay=6", f"--out={out}"]
    done = subprocess.run(
        [sys.executable, EXPERIMENTS / "link.py", *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((out / "link.json").read_text(encoding="utf-8"))


def test_the_ledgers_bytes_are_those_that_pass_the_interface(measured):
    """All that comes on top is the headers of TCP and the answers to what was received."""
    for name, found in measured["bytes"].items():
        assert 1.0 <= found["interface"] / found["ledger"] < 1.03, name


def test_compressed_rounds_send_a_half_and_a_quarter_by_the_interface(measured):
    counted = {name: found["interface"] for name, found in measured["bytes"].items()}
    assert counted["bf16"] <= 0.51 * counted["None"]
    assert counted["int8"] <= 0.27 * counted["None"]


def test_rounds_under_way_are_hidden_behind_steps(measured):
    """Times mean little here, but what a delayed round hides is not nothing."""
    (overlap,) = measured["timed"]["overlap"]
    (plain,) = measured["timed"]["plain"]
    assert overlap["hidden"] > 0.01 > plain["hidden"]


def test_a_late_worker_makes_others_wait_and_does_not_wait_itself():
    early, late = codauc.launch(w.one_is_slow, workers=2, timeout=60)
    assert early["waiting"] > 0.4  # three rounds of 0.2 s are told of
    assert late["waiting"] < 0.2
    assert late["computing"] > 0.7
    assert abs(early["communicating"] - late["communicating"]) < 0.6
