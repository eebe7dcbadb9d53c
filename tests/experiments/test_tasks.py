"""The tasks of `experiments/tasks.py`, as far as nothing need be downloaded."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
pd = pytest.importorskip("pandas")
pytest.importorskip("sklearn")

import task_data  # noqa: E402
import task_files  # noqa: E402
import tasks  # noqa: E402


def _grouped(rows=2000, groups=150):
    random = np.random.default_rng(0)
    y = (random.random(rows) < 0.05).astype(int)
    x = pd.DataFrame({"a": random.normal(size=rows) + y, "b": random.choice(["u", "v"], rows)})
    return task_files.Task(x, y, random.integers(groups, size=rows))


def test_the_halves_are_disjoint_and_hold_every_task():
    assert not set(task_data.CHOSEN) & set(task_data.HELD_OUT)
    assert {*task_data.CHOSEN, *task_data.HELD_OUT} == set(task_data.TASKS)
    assert abs(len(task_data.CHOSEN) - len(task_data.HELD_OUT)) <= 1


def test_tasks_the_recipe_was_tuned_on_are_not_held_out():
    tuned = {"breast cancer", "digits", "shirts", "spam", "caravan", "default", "bank", "adult"}
    assert {*tuned, *task_data.TUNED} <= set(task_data.CHOSEN)
    assert set(task_data.MORE) <= set(task_data.HELD_OUT)


@pytest.mark.parametrize("share", [0.25, 0.15])
def test_a_group_is_on_one_side_of_a_split(share):
    task = _grouped()
    parts = []
    for seed in range(3):
        a, b = task_files.divide(task, share, seed)
        assert not set(task.groups[a]) & set(task.groups[b])
        assert sorted([*a, *b]) == list(range(len(task.y)))
        assert len(b) / len(task.y) == pytest.approx(share, abs=0.05)
        assert task.y[b].mean() == pytest.approx(task.y.mean(), rel=0.3)
        parts.append(frozenset(b))
    assert len(set(parts)) == 3
    assert parts[0] == frozenset(task_files.divide(task, share, 0)[1])


def test_splits_without_groups_are_those_of_before():
    from sklearn.model_selection import train_test_split

    task = _grouped()._replace(groups=None)
    rows = np.arange(len(task.y))
    expected = train_test_split(rows, test_size=0.25, stratify=task.y, random_state=3)
    for found, other in zip(task_files.divide(task, 0.25, 3), expected, strict=True):
        assert np.array_equal(found, other)


def test_columns_become_numbers_or_text_and_missing_stays_missing():
    frame = pd.DataFrame(
        {
            "n": [1, 2, 3],
            "code": [7.0, np.nan, 8.0],
            "kind": pd.Categorical(["a", None, "b"]),
            "flag": [True, False, True],
            "who": [5, 5, 6],
            "dead": [0, 1, 0],
        }
    )
    task = task_files.task(frame, frame["dead"] == 1, ["dead", "who"], ["code"], groups=["who"])
    assert list(task.x) == ["n", "code", "kind", "flag"]
    assert task.x["n"].dtype == float
    assert task.x["code"].dropna().tolist() == ["7", "8"]
    assert task.x["kind"].isna().tolist() == [False, True, False]
    assert task.x["flag"].tolist() == ["True", "False", "True"]
    assert task.y.tolist() == [0, 1, 0]
    assert task.groups[0] == task.groups[1] != task.groups[2]


def test_thinned_keeps_whose_rows_they_are():
    whole = _grouped()
    task = task_files.thinned(Path(), lambda folder: whole, 0.02)
    assert task.y.mean() == pytest.approx(0.02, abs=0.001)
    assert (task.y == 0).sum() == (whole.y == 0).sum()
    assert len(task.x) == len(task.y) == len(task.groups)


@pytest.mark.parametrize("method", ["codauc", "logistic", "lightgbm", "catboost"])
def test_a_fit_is_kept_and_not_done_again(method, tmp_path, monkeypatch):
    if method in ("lightgbm", "catboost"):
        pytest.importorskip(method)
    monkeypatch.setattr(tasks, "load", lambda folder, name: _grouped(800, 60))
    options = {"steps": 20, "stages": 1} if method == "codauc" else {}
    job = {"task": "own", "method": method, "split": 0, "options": options}
    line = tasks.fit(tmp_path, job)
    assert 0.5 < line["auc"] <= 1
    assert 0 < line["ap"] <= 1
    assert line["seconds"] > 0
    out = tmp_path / "results.jsonl"
    out.write_text(json.dumps(line) + "\n")
    assert tasks.run(tmp_path, [job], out, 1) == [line]


def test_the_table_pairs_the_splits():
    gaps = {"own": [0.01, 0.03], "other": [0.0, 0.0]}
    results = [
        {"task": task, "method": m, "split": i, "auc": 0.8 + (gap if m == "codauc" else 0) + i / 9,
         "rows": 99, "positive": 0.0007}
        for task, found in gaps.items() for i, gap in enumerate(found) for m in ("codauc", "bce")
    ]  # fmt: skip
    shown = tasks.show(results, ["codauc", "bce"]).splitlines()
    assert "+0.0200 (0.0100)" in shown[2]
    assert "0.07%" in shown[2]
    assert "+0.0000 (0.0000)" in shown[3]
    assert "+0.0100 (0.0100)" in shown[-1]


def test_rare_tasks_have_more_splits(monkeypatch):
    labels = {"rare": np.eye(1, 500)[0], "large": np.tile([0, 1], 50_000)}
    monkeypatch.setattr(tasks, "load", lambda folder, name: task_files.Task(None, labels[name]))
    assert tasks.plan(Path(), labels, None, rare=False) == {"rare": 10, "large": 3}
    assert tasks.plan(Path(), labels, None, rare=True) == {"rare": 20}
    assert tasks.plan(Path(), labels, 2, rare=False) == {"rare": 2, "large": 2}
