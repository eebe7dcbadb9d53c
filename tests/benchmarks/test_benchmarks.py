"""That all benchmarks run, whatever their times are."""

import doctest
import json
import math
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def bench(*arguments, **environment):
    command = [sys.executable, "-m", "benchmarks", *arguments]
    environment = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.fixture
def measuring(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return import_module("benchmarks.measuring")


@pytest.mark.long
def test_every_benchmark_runs_or_is_skipped_by_name(tmp_path):
    out = tmp_path / "results.json"
    ended = bench("--short", "--json", "--out", str(out))
    assert ended.returncode == 0, ended.stderr[-5000:]
    found = json.loads(ended.stdout)
    assert found == json.loads(out.read_text(encoding="utf-8"))
    assert found["broken"] == []
    listed = [line.partition(":")[0] for line in bench("--list").stdout.splitlines()]
    told = [each["name"] for each in [*found["results"], *found["skipped"]]]
    assert len(listed) > 30
    assert sorted(told) == sorted(listed)
    assert all(each["reason"] for each in found["skipped"])
    assert found["versions"]["torch"]
    assert found["threads"] == 1


def test_a_missing_peer_is_a_reason_to_skip(tmp_path):
    (tmp_path / "libauc.py").write_text("raise ImportError('not for this test')", encoding="utf-8")
    ended = bench("--short", "--only", "optimizer/mlp-libauc", PYTHONPATH=str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert "skipped: optimizer/mlp-libauc: libauc" in ended.stdout


def test_an_unknown_name_is_refused():
    ended = bench("--only", "optimiser")
    assert ended.returncode == 1
    assert "no benchmark 'optimiser'" in ended.stderr


def test_a_goal_is_met_from_the_right_side(measuring):
    def result(*, higher, ours):
        pairs = measuring.Pairs([ours] * 3, [1.0] * 3)
        benchmark = measuring.Benchmark("", "", "", lambda _: pairs, 2.0, higher=higher)
        return benchmark.run(measuring.Options())["met"]

    assert result(higher=False, ours=1.9)
    assert not result(higher=False, ours=2.1)
    assert result(higher=True, ours=2.1)
    assert not result(higher=True, ours=1.9)
    assert not result(higher=False, ours=math.inf)


def test_both_are_called_in_turn_and_often_enough(measuring):
    calls = []
    pairs = measuring.alternate(lambda: calls.append("a"), lambda: calls.append("b"), repeats=3)
    assert len(pairs.ours) == len(pairs.theirs) == 3
    text = "".join(calls).lstrip("a").lstrip("b")  # what warms up comes first
    order = "".join(one for one, before in zip(text, " " + text, strict=False) if one != before)
    assert order == "abab"  # a b, b a, a b
    assert text.count("a") > 100


def test_what_the_modules_show_is_so(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    for name in ("measuring", "telling"):
        assert doctest.testmod(import_module(f"benchmarks.{name}")).failed == 0
