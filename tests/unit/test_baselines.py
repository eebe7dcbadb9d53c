"""Claims about models of other libraries beside a network: the same rows, honest comparisons."""

import importlib.util
import sys

import numpy as np
import pytest

from codauc.cli.main import main
from codauc.data.data_settings import DataSettings
from codauc.data.opening import open_data
from codauc.metrics import auc
from codauc.report.comparison import against
from codauc.reproduce import baselines as module
from codauc.reproduce.baselines import Baselines, seed_rows
from codauc.reproduce.other_libraries import OTHER_MODELS, sides_of
from codauc.runs.directory import BASELINES, SUMMARY, RunFolder
from codauc.runs.settings import RecipeSettings, RunSettings
from codauc.workers.group import LocalGroup

ALONE = LocalGroup()
pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install scikit-learn")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Numbers that matter as a product, a category, missing values; 15% positives."""
    rng = np.random.default_rng(0)
    n, out = 3000, tmp_path_factory.mktemp("data") / "t.csv"
    x, kind = rng.normal(size=(n, 3)), rng.choice(list("abcd"), n)
    y = 2 * x[:, 0] * x[:, 1] + x[:, 2] + 1.5 * (kind == "b") + rng.logistic(size=n) > 3
    gone = rng.random((n, 3)) < 0.03
    rows = ["a,b,c,kind,y"]
    for i in range(n):
        numbers = ("" if gone[i, j] else f"{x[i, j]:.4f}" for j in range(3))
        rows.append(",".join([*numbers, kind[i], str(int(y[i]))]))
    out.write_text("\n".join(rows))
    return out


def settings_of(path, **data):
    recipe = RecipeSettings(steps=7, evaluations=2)
    return RunSettings(data=DataSettings(str(path), target="y", **data), recipe=recipe)


@pytest.mark.parametrize("validation", [0.15, 0.0])
@pytest.mark.parametrize("model", OTHER_MODELS, ids=lambda model: model.name)
def test_each_library_learns_from_the_training_rows_alone(path, model, validation):
    library = model.module.split(".")[0]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install {library}")
    if validation == 0 and library == "catboost":
        pytest.skip("1,000 trees take 4 seconds")
    data = DataSettings(str(path), target="y", validation_fraction=validation)
    sides = sides_of(open_data(data, ALONE))
    found = model.fitted(sides, 0)
    least = 0.65 if model.name == "logistic-regression" else 0.75
    assert auc(found.scores, sides.test.y) > least
    assert found.seconds > 0
    assert found.steps < 1000
    again = model.fitted(sides, 0)
    assert np.array_equal(found.scores, again.scores)
    flipped = sides._replace(test=sides.test._replace(y=~sides.test.y))
    assert np.array_equal(
        model.fitted(flipped, 0).scores, found.scores
    )  # the test labels are not seen


@pytest.mark.parametrize("model", OTHER_MODELS, ids=lambda model: model.name)
def test_weights_count_in_every_library(path, tmp_path, model):
    """Of half of the rows the labels are wrong, but they hardly count."""
    pytest.importorskip(model.module, reason=f"{model.module} is not installed")
    lines = path.read_text().splitlines()
    rows = [f"{lines[0]},w"]
    for i, line in enumerate(lines[1:]):
        rows.append(f"{line},1" if i % 2 else f"{line[:-1]}{1 - int(line[-1])},0.001")
    weighted = tmp_path / "w.csv"
    weighted.write_text("\n".join(rows))
    sides = sides_of(open_data(DataSettings(str(weighted), target="y", weight="w"), ALONE))
    counted = sides.test.weights > 0.5 * sides.test.weights.max()
    assert 0.4 < counted.mean() < 0.6
    scores = model.fitted(sides, 0).scores
    assert auc(scores[counted], sides.test.y[counted]) > 0.62
    assert auc(scores[~counted], sides.test.y[~counted]) < 0.5


@pytest.mark.parametrize("model", OTHER_MODELS[1:], ids=lambda model: model.name)
def test_the_trees_end_where_the_validation_rows_say(path, model):
    """Where their labels say the opposite, what is learnt makes it worse: few trees are left."""
    pytest.importorskip(model.module, reason=f"{model.module} is not installed")
    sides = sides_of(open_data(DataSettings(str(path), target="y"), ALONE))
    opposite = sides._replace(validation=sides.validation._replace(y=~sides.validation.y))
    few, usual = (model.fitted(each, 0) for each in (opposite, sides))
    assert few.steps <= 5 < usual.steps
    assert auc(few.scores, sides.test.y) < auc(usual.scores, sides.test.y)


def test_a_library_that_is_missing_is_named_with_how_to_install_it(
    path, tmp_path, monkeypatch, capsys
):
    for name in ("lightgbm", "catboost", "xgboost"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(module, "ways", lambda settings: {"coda": settings})
    folders = Baselines(settings_of(path), tmp_path / "b").run()
    assert [folder.name for folder in folders] == [
        "logistic-regression", "hist-gradient-boosting", "coda",
    ]  # fmt: skip
    said = capsys.readouterr().err
    for title in ("LightGBM", "CatBoost", "XGBoost"):
        assert f"{title} is left out" in said
    assert said.count("pip install 'codauc[baselines]'") == 3


def test_a_library_that_fails_does_not_end_the_comparison(path, tmp_path, monkeypatch, capsys):
    def fails(*_):
        raise RuntimeError("no such device")

    first, second = OTHER_MODELS[:2]
    monkeypatch.setattr(module, "OTHER_MODELS", (first._replace(fit=fails), second))
    monkeypatch.setattr(module, "ways", lambda settings: {"coda": settings})
    folders = Baselines(settings_of(path), tmp_path / "b").run()
    assert [folder.name for folder in folders] == ["hist-gradient-boosting", "coda"]
    assert "Logistic regression is left out, it failed" in capsys.readouterr().err


def test_the_report_of_a_run_says_when_a_simpler_model_is_as_good(path, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "OTHER_MODELS", OTHER_MODELS[:1])
    monkeypatch.setattr(module, "ways", lambda settings: {"coda": settings})
    Baselines(settings_of(path), tmp_path).run()
    coda, other = RunFolder(tmp_path / "coda"), RunFolder(tmp_path / "logistic-regression")
    (found,) = coda.found(BASELINES)["models"]
    mine, theirs = coda.summary()["test_auc"], other.summary()["test_auc"]
    assert found["difference"] == pytest.approx(theirs - mine, abs=1e-6)
    assert found["low"] < found["difference"] < found["high"]
    assert found == against(coda, [other])[0]
    scores, labels = coda.scores()
    up = np.flatnonzero(labels)[:1]  # one positive moved: hardly a difference
    changed = {
        "not clearly worse than": np.where(np.arange(len(scores)) == up, -99, scores),
        "as good as": np.where(np.arange(len(scores)) == up, 99, scores),
        "better than": scores + 3 * labels,
        None: -scores,
    }
    for how, values in changed.items():
        other.write_scores(values, labels)
        coda.write_json(BASELINES, {"models": against(coda, [other])})
        assert main(["report", str(coda.path)]) == 0
        text = (tmp_path / "coda/report.html").read_text()
        assert "Models of other libraries" in text
        assert ("Logistic regression is " in text) == (how is not None)
        assert how is None or f"Logistic regression is {how} this network" in text


def test_images_are_compared_in_codauc_s_own_ways_only(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(module, "ways", lambda settings: {"coda": settings})
    data = DataSettings("fashion-tiny", positive=("6",))
    settings = RunSettings(data=data, recipe=RecipeSettings(steps=2, evaluations=1))
    settings = settings.with_changes("communication", workers=2, simulate=True)
    folders = Baselines(settings, tmp_path).run()
    assert [folder.name for folder in folders] == ["coda"]
    assert "models of other libraries do not take images" in capsys.readouterr().err


def test_resume_repeats_nothing_and_overwrite_is_asked_for(path, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "OTHER_MODELS", OTHER_MODELS[:1])
    monkeypatch.setattr(module, "ways", lambda settings: {"coda": settings})
    settings = settings_of(path)
    Baselines(settings, tmp_path).run()
    before = (tmp_path / "logistic-regression" / SUMMARY).stat().st_mtime_ns
    Baselines(settings, tmp_path, resume=True).run()
    assert (tmp_path / "logistic-regression" / SUMMARY).stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="already holds a run"):
        Baselines(settings, tmp_path).run()
    Baselines(settings, tmp_path, overwrite=True).run()
    assert (tmp_path / "logistic-regression" / SUMMARY).stat().st_mtime_ns > before


def test_several_seeds_give_means_and_paired_intervals(tmp_path):
    aucs = {"coda": [0.8, 0.82, 0.9], "lightgbm": [0.81, 0.83, 0.91], "xgboost": [0.7, 0.9, 0.8]}
    seeds = []
    for i in range(3):
        for name, values in aucs.items():
            folder = RunFolder(tmp_path / str(i) / name)
            folder.path.mkdir(parents=True)
            facts = {"test_auc": values[i], "average_precision": 0.5, "seconds": 2.0}
            folder.write_json(SUMMARY, facts)
        seeds.append([tmp_path / str(i) / name for name in aucs])
    first, second, third = seed_rows(seeds)
    assert first[:3] == ["coda", "0.8400", ""]
    assert second[1:] == ["0.8500", "+0.0100 (+0.0100 to +0.0100)", "0.5000", "2"]
    assert third[2].startswith("-0.0400 (-0.")
    assert seed_rows(seeds[:2])[2][2] == "-0.0100 (-1.0000 to +1.0000)"  # two seeds say little


def test_inputs_that_do_not_fit_in_memory_are_refused(path, monkeypatch):
    from codauc.reproduce import other_libraries

    monkeypatch.setattr(other_libraries, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="expected at most 0 GB for models of other libraries"):
        sides_of(open_data(DataSettings(str(path), target="y"), ALONE))
