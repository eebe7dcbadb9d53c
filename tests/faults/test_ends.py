"""Claims about the end of a run: it never fails, and killed anywhere in it, it can be completed."""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from ending import apart, forked, many_ends, trained_until_struck
from runs import assert_same, end, make_table, run, start, wait_for

import codauc
from codauc._internal.files import PARTIAL, whole_file
from codauc.data.data_settings import DataSettings
from codauc.runs.checkpoints import Checkpoints
from codauc.runs.directory import RunFolder
from codauc.runs.settings import (
    CommunicationSettings,
    ModelSettings,
    RecipeSettings,
    RunSettings,
    SafetySettings,
)
from codauc.workers import LocalGroup

TRACES = {"faults.jsonl"}  # what a run may have that was killed and resumed


def names(out):
    return {path.name for path in Path(out).iterdir()}


def assert_complete(out, whole):
    """Every file is there, the same as those of a run that nothing disturbed, and no other."""
    assert names(out) - TRACES == names(whole)
    assert_same(whole, out)
    assert Path(out, "report.html").read_text().rstrip().endswith("</html>")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A short run's settings, and the directory of one that nothing disturbed."""
    folder = tmp_path_factory.mktemp("small")
    settings = RunSettings(
        DataSettings(str(make_table(folder / "table.csv", 600)), target="y"),
        model=ModelSettings(name="mlp"),
        recipe=RecipeSettings(steps=6, evaluations=2, dual_samples=32),
        communication=CommunicationSettings(workers=2, simulate=True, sync_every=2),
        safety=SafetySettings(checkpoint_minutes=0, checkpoint_rounds=1),
    )
    codauc.train(settings, folder / "whole")
    return settings, folder / "whole"


def test_killed_before_any_use_of_its_directory_at_the_end_it_is_completed(small, tmp_path):
    settings, whole = small
    place, seen = 1, set()
    while True:
        out = tmp_path / str(place)
        code = apart(trained_until_struck, settings, out, place)
        there = names(out)
        seen.add(("summary.json" in there, "report.html" in there))
        codauc.train(settings, out, resume=True)
        assert_complete(out, whole)
        if code == 0:
            break
        assert code == -9
        place += 14
    assert place > 30
    assert seen == {(False, False), (True, False), (True, True)}


def test_a_finished_run_without_its_report_gets_it_without_the_data(small, tmp_path):
    settings, whole = small
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    (out / "report.html").unlink()
    (out / "checkpoints").mkdir()
    for name in ("checkpoints/000000009-0-of-2-0123abcd.safetensors", ".lock", ".lock-3"):
        (out / name).touch()
    (out / f"{PARTIAL}0").write_bytes(b"half")
    (out / "notes.txt").write_text("mine")
    gone = settings.with_changes("data", source="nowhere.csv")
    codauc.train(gone, out, resume=True)
    assert names(out) == {*names(whole), "notes.txt"}


def test_a_finished_run_is_not_written_to(small, tmp_path):
    settings, whole = small
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    before = {path: path.stat().st_mtime_ns for path in [out, *out.iterdir()]}
    codauc.train(settings, out, resume=True)
    assert {path: path.stat().st_mtime_ns for path in [out, *out.iterdir()]} == before


def test_workers_killed_between_summary_and_report_are_completed(table, tmp_path):
    options = (table, "--target", "y", "--steps", "16", "--sync-every", "8", "--quiet")
    options = (*options, "--checkpoint-minutes", "0", "--checkpoint-rounds", "1")
    options = (*options, "--model", "tabular", "--select", "best")
    run(tmp_path / "whole", *options, "--simulate", "2")
    out = tmp_path / "killed"
    strike = {"STRIKE_PLACE": "1", "STRIKE_AFTER": "summary.json", "STRIKE_LAUNCHER": "1"}
    env = {**strike, "STRIKE_OUT": str(out), "PYTHONPATH": os.pathsep.join(sys.path)}
    process = start(out, *options, "--workers", "2", "--callback", "ending:Strike", env=env)
    code, _, error = end(process)
    assert code == -9, error
    there = wait_for(lambda: names(out) if "report.html" not in names(out) else None)
    assert {"summary.json", "checkpoints", ".lock", ".lock-1"} <= there
    run(out)
    assert_complete(out, tmp_path / "whole")


def test_what_is_half_written_goes_when_an_unfinished_run_goes_on(small, tmp_path):
    settings, whole = small
    (tmp_path / f"{PARTIAL}0").write_bytes(b"half")
    (tmp_path / ".lock-7").touch()
    codauc.train(settings, tmp_path, resume=True)
    assert_complete(tmp_path, whole)


def test_what_another_process_writes_or_holds_is_not_swept(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.locked(3), whole_file(tmp_path / "scores.csv") as half:
        half.write_text("1")
        assert forked(folder.sweep) == 0
        assert names(tmp_path) == {".lock-3", half.name}
    assert names(tmp_path) == {"scores.csv"}


def test_what_a_killed_process_began_to_write_goes_with_the_next_try(tmp_path):
    def half():
        with whole_file(tmp_path / "scores.csv") as path:
            path.write_text("half")
            os.kill(os.getpid(), 9)

    assert forked(half) == -9
    other = tmp_path / f"{PARTIAL}of-another-file"
    other.touch()
    assert len(names(tmp_path)) == 2
    with whole_file(tmp_path / "scores.csv") as path:
        path.write_text("whole")
    assert names(tmp_path) == {"scores.csv", other.name}


def test_a_directory_that_goes_while_it_is_listed_is_empty(tmp_path):
    """Another worker removes it, after a look whether it is there and before it is listed."""
    folder = tmp_path / "checkpoints"
    store = Checkpoints(folder, LocalGroup(), 2, print)

    def another_worker(event, arguments):
        listed = event in ("os.listdir", "os.scandir") and arguments[0] is not None
        if listed and Path(arguments[0]) == folder:
            subprocess.run(["rm", "-r", folder], check=False, stderr=subprocess.DEVNULL)

    def clear():
        sys.addaudithook(another_worker)
        store.clear()

    def begun():
        sys.addaudithook(another_worker)
        return int(RunFolder(tmp_path).begun)

    for work in (clear, begun):
        store.save(8, {})
        store.wait()
        assert forked(work) == 0
        assert not folder.exists()


def test_ends_of_real_workers_do_not_fail(tmp_path):
    assert codauc.launch(partial(many_ends, str(tmp_path), 40), workers=2) == [40, 40]
