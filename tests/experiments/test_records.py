"""Claims about the records of bytes: what was needed to the target, and the page."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import records
from records_page import _line


def kept(folder, variant, seed, curve, finished=True):
    record = {"variant": variant, "seed": seed, "commit": "abc-dirty", "finished": finished}
    text = json.dumps({**record, "curve": curve})
    (folder / f"{variant}-seed{seed}.json").write_text(text)


def test_the_target_is_the_single_workers_of_the_same_seed_less_the_margin(tmp_path):
    kept(tmp_path, "single", 0, [(128, 128, 0, 0.6), (256, 256, 0, 0.75)])
    kept(tmp_path, "i64", 0, [(128, 2, 600, 0.7), (192, 3, 900, 0.7401), (256, 4, 1200, 0.76)])
    kept(tmp_path, "i64", 1, [(128, 2, 600, 0.8)])
    found = {(r["variant"], r["seed"]): r for r in records.results(tmp_path)}
    assert found["i64", 0]["target"] == pytest.approx(0.74)
    assert found["i64", 0]["hit"] == [192, 3, 900, 0.7401]
    assert found["i64", 1]["hit"] is None  # no single worker with this seed
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 3


def test_a_trial_that_was_ended_early_has_no_final_auc_in_the_table(tmp_path):
    runs = [
        {"seed": s, "hit": (100 * (s + 1), 2, 5e5, 0.7), "auc": 0.7 + s / 10, "finished": s == 0,
         "commit": "abc-dirty"} for s in (0, 1)]  # fmt: skip
    line = _line("i64", runs)
    assert "0.7000 (1)" in line
    assert "| 0, 1 | 141 |" in line
    assert line.endswith("| abc |")


def test_workers_that_are_made_alike_send_next_to_nothing_at_the_start():
    assert records.start_bytes(4) < 200
