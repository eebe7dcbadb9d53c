"""The tasks of `experiments/tasks.py`, as far as nothing need be downloaded."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
pd = pytest.importorskip("pandas")
pytest.importorskip("sklearn")

import task_data  # noqa: E402
import task_files  # noqa: E402
import task_results  # noqa: E402
import task_tables  # noqa: E402
import tasks  # noqa: E402


def _grouped(rows=2000, groups=150):
    random = np.random.default_rng(0)
    y = (random.random(rows) < 0.05).astype(int)
    x = pd.DataFrame({"a": random.normal(size=rows) + y, "b": random.choice(["u", "v"], rows)})
    return task_files.Task(x, y, random.integers(groups, size=rows))


def test_the_parts_are_disjoint_and_hold_every_task():
    parts = (task_data.CHOSEN, task_data.HELD_OUT, task_data.FRESH)
    assert sorted(name for part in parts for name in part) == sorted(task_data.TASKS)
    assert abs(len(task_data.CHOSEN) - len(task_data.HELD_OUT)) <= 1
    assert len(task_data.FRESH) > 20


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
    out = tmp_path / "results.csv"
    task_results.append(out, {**line, "commit": "abc"})
    (known,) = task_results.read(out)
    assert known["auc"] == pytest.approx(line["auc"], abs=1e-6)
    assert (known["positives"], known["commit"]) == (line["positives"], "abc")
    assert tasks.run(tmp_path, [job], out, 1) == [known]


def _results(aucs, positives=30):
    """Lines of {task: {method: AUC of each split}}."""
    return [
        {"task": task, "method": method, "split": split, "auc": auc, "rows": 30_000,
         "positives": positives, "step": 100, "rounds": 4, "bytes": 2_000_000}
        for task, methods in aucs.items()
        for method, found in methods.items()
        for split, auc in enumerate(found)
    ]  # fmt: skip


def test_a_table_pairs_the_splits_that_two_methods_share():
    results = _results({
        "spam": {"codauc": [0.81, 0.93, 0.85], "bce": [0.80, 0.90]},
        "adult": {"codauc": [0.8, 0.9], "bce": [0.8, 0.9]},
    })  # fmt: skip
    lines = task_tables.all_tasks(task_tables.Found(results)).splitlines()
    assert lines[2].split()[:5] == ["spam", "30000", "0.10%", "3", "0.8633"]
    assert "+0.0200 (0.0100) [2]" in lines[2]
    assert "+0.0000 (0.0000)" in lines[3]
    assert "+0.0100 (0.0100)" in lines[4]  # the mean over tasks
    assert lines[-1] == "chosen, bce: +0.0100 (0.0100) over 2 tasks; level or above on 2"


@pytest.mark.parametrize(
    ("ours", "other", "far"),
    [
        ([0.88, 0.90], [0.90, 0.92], True),
        ([0.88, 0.96], [0.90, 0.99], True),  # -0.025, se 0.005
        ([0.90, 0.90], [0.90, 0.98], False),  # -0.04, se 0.04
        ([0.895, 0.895], [0.90, 0.90], False),
        ([0.92, 0.92], [0.90, 0.90], False),
    ],
)
def test_a_task_is_behind_if_a_simpler_method_is_better_by_more_than_errors(ours, other, far):
    found = task_tables.Found(_results({"spam": {"codauc": ours, "logistic": other}}))
    assert ("None of 1 tasks" not in task_tables.behind(found)) == far


def test_trees_are_not_among_the_simpler_methods():
    found = task_tables.Found(_results({"spam": {"codauc": [0.8, 0.8], "catboost": [0.9, 0.9],
                                                 "bce": [0.8, 0.8]}}))  # fmt: skip
    assert "None of 1 tasks" in task_tables.behind(found)


def test_changes_are_paired_with_the_recipe_and_workers_with_one():
    results = _results({"spam": {"codauc": [0.90, 0.92], "codauc:no dropout": [0.88, 0.92],
                                 "bce": [0.90, 0.91], "codauc:4 workers": [0.90, 0.90]},
                        "digits": {"codauc": [0.90, 0.92], "codauc:no dropout": [0.87],
                                   "bce": [0.90]}})  # fmt: skip
    change = task_tables.ablation(task_tables.Found(results)).splitlines()
    assert len(change) == 4
    assert change[2].startswith("no dropout           -0.0200 (0.0100)         2, 3")
    assert change[3].startswith("cross-entropy alone  -0.0025 (0.0025)         2, 3")
    several = task_tables.workers(results).splitlines()
    assert several[2].split() == ["spam", "4", "0.9000", "-0.0100", "(0.0100)", "2", "100", "4",
                                  "2.0"]  # fmt: skip


def test_the_tables_of_the_page_are_those_of_the_results():
    page = Path(__file__).parents[2] / "docs" / "defaults.md"
    text = page.read_text(encoding="utf-8")
    assert task_tables.inserted(text, task_results.read()) == text
    # the others are of an earlier commit, which they name
    assert all(f"<!-- table: {name} -->" in text for name in ("all", "behind", "rare"))


def test_results_of_one_package_are_not_kept_as_those_of_another(monkeypatch):
    tasks.check_package(["codauc", "bce"])
    with pytest.raises(SystemExit, match="expected `before` alone"):
        tasks.check_package(["before"])
    monkeypatch.setattr(tasks, "_package", lambda: Path("/another/src/codauc"))
    tasks.check_package(["before"])
    with pytest.raises(SystemExit, match="expected `before` alone"):
        tasks.check_package(["codauc"])


def test_a_round_of_splits_comes_before_the_next():
    jobs = tasks.jobs_of({"a": 2, "b": 1}, {"codauc": {}})
    assert [(job["task"], job["split"]) for job in jobs] == [("a", 0), ("b", 0), ("a", 1)]


def test_rare_tasks_have_more_splits(monkeypatch):
    labels = {"rare": np.eye(1, 500)[0], "large": np.tile([0, 1], 50_000)}
    monkeypatch.setattr(tasks, "load", lambda folder, name: task_files.Task(None, labels[name]))
    assert tasks.plan(Path(), labels, None, rare=False) == {"rare": 10, "large": 3}
    assert tasks.plan(Path(), labels, None, rare=True) == {"rare": 20}
    assert tasks.plan(Path(), labels, 2, rare=False) == {"rare": 2, "large": 2}
