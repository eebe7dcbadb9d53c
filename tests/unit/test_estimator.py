"""scikit-learn's interface: its own suite of checks, and what users lean on."""

import builtins
import importlib
import pickle
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import codauc.integrations.estimator
from codauc.integrations.estimator import AUCClassifier
from codauc.models import MLP, ConvNet

STEPS = 40  # after a warm start of 17; the default's 1000 and more pass too, in minutes


def small(**changes):
    return AUCClassifier(**{"steps": STEPS, "random_state": 0} | changes)


@pytest.fixture(scope="module")
def data():
    return make_classification(600, 6, weights=[0.85], class_sep=1.5, flip_y=0.02, random_state=0)


@pytest.fixture(scope="module")
def fitted(data):
    return small().fit(*data)


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    colour = rng.choice(["red", "green", "blue"], 400)
    size = rng.normal(size=400)
    y = ((colour == "red") * 2.0 + size + rng.normal(size=400) > 2).astype(int)
    size[::7] = np.nan
    colour = pd.Series(colour).where(rng.random(400) > 0.1, None)
    day = pd.date_range("2024-01-01", periods=400)
    return pd.DataFrame(
        {"colour": colour, "size": size, "day": day, "zip": rng.integers(3, size=400)}
    ), y


@pytest.mark.filterwarnings("ignore:the scores do not rise")  # some checks have random labels
@parametrize_with_checks([AUCClassifier(steps=STEPS)])  # its whole suite
def test_scikit_learn_s_own_checks_pass(estimator, check):
    check(estimator)


def test_the_order_of_the_rows_of_a_small_array_does_not_count(data):
    X, y = data
    X, y = X[:200], y[:200]
    other = np.random.default_rng(0).permutation(200)
    one = AUCClassifier(steps=STEPS, random_state=0).fit(X, y)
    two = AUCClassifier(steps=STEPS, random_state=0).fit(X[other], y[other])
    assert np.array_equal(one.decision_function(X), two.decision_function(X))


def test_the_score_is_the_auc_and_the_order_is_that_of_the_logits(fitted, data):
    X, y = data
    odds = fitted.decision_function(X)
    assert fitted.score(X, y) == pytest.approx(roc_auc_score(y, odds), abs=1e-12)
    assert fitted.score(X, y) > 0.9
    logits = codauc.predict(fitted.module_, codauc.data.read_table(X, encoder=fitted.encoder_).x)
    scale, shift = fitted.calibration_
    np.testing.assert_allclose(odds, scale * logits.double().numpy() + shift, atol=1e-4)
    assert scale > 0


def test_probabilities_are_calibrated(data):
    X, y = make_classification(3000, 6, weights=[0.9], flip_y=0.1, random_state=1)
    model = small(steps=150).fit(X[:2000], y[:2000])
    p = model.predict_proba(X[2000:])
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-15)
    assert p[:, 1].mean() == pytest.approx(y[2000:].mean(), abs=0.04)
    base = np.full(1000, y[:2000].mean())
    assert log_loss(y[2000:], p[:, 1]) < log_loss(y[2000:], base)
    np.testing.assert_array_equal(
        model.predict(X), model.classes_[model.predict_proba(X).argmax(1)]
    )


def test_what_fit_tells(fitted):
    assert fitted.n_iter_ == STEPS  # tables begin with logistic regression, not a warm start
    assert fitted.best_step_ in [record["step"] for record in fitted.history_]
    kept = next(r for r in fitted.history_ if r["step"] == fitted.best_step_)
    assert fitted.validation_auc_ == kept["auc"]
    assert fitted.n_features_in_ == 6
    assert not fitted.module_.training


def test_the_same_random_state_gives_the_same_model(data):
    X, y = data
    states = [3, 3, np.random.RandomState(5), np.random.RandomState(5), None, None]
    a, b, c, d, e, f = (
        small(random_state=s, steps=5).fit(X, y).decision_function(X) for s in states
    )
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(c, d)
    assert (e != f).any()
    assert (a != c).any()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_global_random_states_and_threads_are_left_alone(data, workers, method):
    for model in (
        small(random_state=None),
        small(),
        small(model=MLP, model_arguments={"inputs": 6}),
    ):
        model.set_params(steps=3, workers=workers, simulate=True)
        torch.manual_seed(7)
        np.random.seed(7)
        expected = torch.rand(1), np.random.rand()
        torch.manual_seed(7)
        np.random.seed(7)
        threads = torch.get_num_threads()
        getattr(model, method)(*data).predict(data[0])
        assert (torch.rand(1), np.random.rand()) == expected
        assert torch.get_num_threads() == threads


def test_threads_are_put_back(data):
    torch.set_num_threads(2)
    try:
        small(steps=2, workers=2, simulate=True).fit(*data)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_texts_missing_values_dates_and_codes_of_a_frame(frame):
    X, y = frame
    model = small(categories=["zip"]).fit(X, y)
    assert model.score(X, y) > 0.75
    assert model.encoder_.kinds() == {
        "colour": "category", "size": "number", "day": "time", "zip": "category"
    }  # fmt: skip
    assert list(model.feature_names_in_) == ["colour", "size", "day", "zip"]
    strange = X.head(3).assign(colour=["violet", None, "red"])
    assert np.isfinite(model.decision_function(strange)).all()
    odds = model.decision_function(X)
    one = [model.decision_function(X.iloc[[i]])[0] for i in range(5)]
    np.testing.assert_allclose(one, odds[:5], rtol=1e-9)
    assert [c.name for c in small(steps=2, drop=["day", "zip"]).fit(X, y).encoder_.numbers] == [
        "size"
    ]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(X.rename(columns={"size": "length"}))


def test_a_frame_may_have_a_column_called_target_and_columns_without_texts_for_names(data):
    order = np.lexsort((data[1], *data[0].T))  # that of small arrays
    X, y = data[0][order], data[1][order]
    named = pd.DataFrame(X, columns=["target", "target_", "c", "d", "e", "f"])
    expected = small(steps=5).fit(X, y).decision_function(X)
    for other in (named, pd.DataFrame(X)):
        odds = small(steps=5).fit(other, pd.Series(y, index=range(5, 605))).decision_function(other)
        np.testing.assert_allclose(odds, expected, atol=1e-3)


def test_fitted_on_a_frame_it_takes_an_array_and_the_other_way_round(data):
    X, y = data
    framed = pd.DataFrame(X, columns=list("abcdef"))
    by_frame, by_array = small(steps=5).fit(framed, y), small(steps=5).fit(X, y)
    with pytest.warns(UserWarning, match="valid feature names"):
        odds = by_frame.decision_function(X)
    np.testing.assert_allclose(odds, by_frame.decision_function(framed))
    with pytest.warns(UserWarning, match="fitted without feature names"):
        odds = by_array.decision_function(framed)
    np.testing.assert_allclose(odds, by_array.decision_function(X))


def test_nan_is_missing_in_arrays_and_infinity_is_refused(data):
    X, y = data[0].copy(), data[1]
    X[::3, 0] = np.nan
    model = small().fit(X, y)
    assert model.encoder_.flagged == [0]
    assert np.isfinite(model.decision_function(X)).all()
    X[0, 0] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        model.predict(X)
    with pytest.raises(ValueError, match="inf"):
        small().fit(pd.DataFrame(X), y)


def test_images():
    rng = np.random.default_rng(0)
    y = np.arange(120) % 4 == 0
    X = rng.normal(size=(120, 1, 12, 12)).astype(np.float32) + y[:, None, None, None]
    model = small(steps=10).fit(X, y)
    assert isinstance(model.module_, ConvNet)
    assert model.score(X, y) > 0.9
    assert model.partial_fit(X, y).predict_proba(X[:3]).shape == (3, 2)
    with pytest.raises(ValueError, match="12"):
        model.predict(X[:, :, :10])
    with pytest.raises(ValueError, match=r"images \[N, channels, H, W\]"):
        model.fit(X[:, 0], y)


def test_labels_of_any_kind(data):
    X, y = data
    expected = small(steps=3).fit(X, y).decision_function(X)
    for kind in (y.astype(bool), np.where(y, 1.0, -1.0), np.where(y, "yes", "no"), list(y + 5)):
        model = small(steps=3).fit(X, kind)
        np.testing.assert_array_equal(model.decision_function(X), expected)
        assert set(model.predict(X)) <= set(np.unique(kind))
        assert model.score(X, kind) == pytest.approx(roc_auc_score(y, expected))
    series = pd.Series(np.where(y, "yes", "no"), dtype="category")
    assert small(steps=3).fit(X, series).classes_.tolist() == ["no", "yes"]


def test_what_is_not_supported_is_said(data):
    X, y = data
    with pytest.raises(ValueError, match="Only binary classification is supported"):
        small().fit(X, np.arange(600) % 3)
    with pytest.raises(ValueError, match="one class alone"):
        small().fit(X, np.zeros(600))
    with pytest.raises(ValueError, match="expected the classes of training, 0, 1"):
        small(steps=2).fit(X, y).score(X, y + 1)
    with pytest.raises(ValueError, match="did you mean 'paper'"):
        small(recipe="papr").fit(X, y)
    with pytest.raises(ValueError, match="expected none; give its class"):
        small(model=nn.Linear(6, 1), model_arguments={"bias": False}).fit(X, y)
    with pytest.raises(ValueError, match="model=3: expected a name"):
        small(model=3).fit(X, y)
    with pytest.raises(ValueError, match="returned dict: expected a torch"):
        small(model=dict).fit(X, y)
    with pytest.raises(ValueError, match=r"logits of shape \[128, 2\]"):
        small(model=nn.Linear(6, 2)).fit(X, y)


def test_too_few_for_a_validation_set_is_trained_without():
    X, y = np.arange(12.0)[:, None], np.arange(12) > 8
    model = small().fit(X, y)
    assert (model.history_, model.validation_auc_) == ([], None)
    assert model.best_step_ == model.n_iter_
    assert model.score(X, y) == 1
    np.testing.assert_array_equal(model.predict(X), y)  # the training data set the threshold


def test_models_of_every_kind(data):
    X, y = data
    torch.manual_seed(0)
    instance = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    before = {name: t.clone() for name, t in instance.state_dict().items()}
    model = small(model=instance, lr=0.01).fit(X, y)
    assert all(torch.equal(t, before[name]) for name, t in instance.state_dict().items())
    assert model.module_ is not instance
    assert model.score(X, y) > 0.8
    np.testing.assert_array_equal(clone(model).fit(X, y).predict(X), model.predict(X))
    linear = {"in_features": 6, "out_features": 1}
    others = [
        ("mlp", {"widths": [8]}),
        ("torch.nn:Linear", linear),
        (nn.Linear, linear),
        ("auto", {"widths": [4]}),
    ]
    for name, arguments in others:
        assert small(model=name, model_arguments=arguments, steps=3).fit(X, y).score(X, y) > 0.2


@pytest.mark.parametrize("recipe", ["paper", "bce"])
def test_other_recipes(data, recipe):
    model = small(recipe=recipe, steps=20, stages=2, select="best", balance=0.3).fit(*data)
    assert model.score(*data) > 0.6
    model.partial_fit(*data)


def test_pipeline_grid_search_and_cross_validation(data):
    X, y = data
    pipeline = make_pipeline(StandardScaler(), small(steps=10, model="mlp"))
    grid = {"aucclassifier__lr": [1e-3, 1e-1], "aucclassifier__model_arguments": [{"widths": [16]}]}
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(X, y)
    assert search.best_params_["aucclassifier__lr"] == 1e-1
    one, two = (cross_val_score(pipeline, X, y, cv=2, n_jobs=jobs) for jobs in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_a_pickle_predicts_the_same_and_goes_on_the_same(fitted, data):
    X, y = data
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    streamed = small().partial_fit(X[:300], y[:300])
    weights = sum(t.numel() for t in streamed.module_.state_dict().values())
    assert len(pickle.dumps(streamed.module_)) < 5 * 4 * weights
    again = pickle.loads(pickle.dumps(streamed))
    odds = [model.partial_fit(X[300:], y[300:]).decision_function(X) for model in (again, streamed)]
    np.testing.assert_array_equal(*odds)


def test_partial_fit_learns_from_a_stream(data):
    X, y = data
    model = small(lr=3e-3, batch_size=32)
    for _ in range(4):
        for start in range(0, 600, 100):
            model.partial_fit(X[start : start + 100], y[start : start + 100])
    assert model.score(X, y) > 0.9
    assert model.n_iter_ == 4 * 6 * 4  # passes, calls, batches
    assert model.predict_proba(X)[:, 1].mean() == pytest.approx(y.mean(), abs=0.05)
    encoder = model.encoder_
    model.partial_fit(X + 100, y)
    assert model.encoder_ == encoder


def test_partial_fit_may_begin_with_one_class_and_one_row(data, frame):
    X, y = data
    with pytest.raises(ValueError, match="one class alone"):
        small().partial_fit(X[:1], y[:1])
    model = small().partial_fit(X[:1], y[:1], classes=[0, 1])
    model.partial_fit(X[y == 0], y[y == 0]).partial_fit(X[y == 1], y[y == 1])
    assert np.isfinite(model.decision_function(X)).all()
    with pytest.raises(ValueError, match="those of the first call, 0, 1"):
        model.partial_fit(X, y, classes=[1, 2])
    with pytest.raises(ValueError, match="y has 2: expected the classes of training"):
        model.partial_fit(X, y * 2)
    X, y = frame
    negative = y == 0
    model = small().partial_fit(X[negative], y[negative], classes=[0, 1]).partial_fit(X, y)
    assert len(model.predict(X)) == 400


def test_partial_fit_goes_on_after_fit_and_fit_begins_anew(data):
    X, y = data
    model = small().fit(X, y)
    before, score = model.n_iter_, model.score(X, y)
    model.partial_fit(X, y)
    assert model.n_iter_ == before + 5  # 600 rows in batches of 128
    assert model.score(X, y) > score - 0.01
    np.testing.assert_array_equal(
        model.fit(X, y).decision_function(X), small().fit(X, y).decision_function(X)
    )


def test_simulated_workers_and_processes_are_the_same(data):
    X, y = data
    ways = {"workers": 2, "sync_every": 4, "steps": 12}
    simulated = small(**ways, simulate=True).fit(X, y)
    processes = small(**ways).fit(X, y)
    assert simulated.history_[-1]["rounds"] > 0
    np.testing.assert_allclose(
        processes.decision_function(X), simulated.decision_function(X), atol=1e-5
    )


def test_verbose_shows_the_progress(data, capsys):
    small(steps=3, verbose=1).fit(*data)
    assert "100%" in capsys.readouterr().err
    small(steps=3).fit(*data)
    assert capsys.readouterr() == ("", "")


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def refuse(name, *args):
        if name.startswith("sklearn"):
            raise ModuleNotFoundError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.delitem(sys.modules, "codauc.integrations.estimator")
    with pytest.raises(ImportError, match=r"pip install 'codauc\[sklearn\]'"):
        importlib.import_module("codauc.integrations.estimator")


def test_workers_without_validation_calibrate_on_all_training_data(data):
    X, y = data
    model = small(workers=3, simulate=True, validation_fraction=0, sync_every=5).fit(X, y)
    assert model.validation_auc_ is None
    assert model.predict_proba(X)[:, 1].mean() == pytest.approx(y.mean(), abs=0.03)


def test_the_parts_can_be_saved_as_a_file_and_loaded(fitted, data, tmp_path):
    path = tmp_path / "model.safetensors"
    codauc.save_model(path, fitted.module_, fitted.encoder_, fitted.calibration_)
    saved = codauc.load_model(path)
    assert (saved.encoder, saved.calibration) == (fitted.encoder_, fitted.calibration_)


def test_numpys_numbers_are_numbers():
    x, y = np.random.default_rng(0).normal(size=(80, 2)), np.arange(80) % 4 == 0
    model = AUCClassifier(steps=np.int64(4), lr=np.float32(0.01), random_state=0).fit(x, y)
    assert model.n_iter_ == 4


def test_a_failed_fit_is_not_fitted():
    from sklearn.exceptions import NotFittedError

    x, y = np.random.default_rng(0).normal(size=(80, 2)), np.arange(80) % 4 == 0
    model = AUCClassifier(steps=4, random_state=0).fit(x, y)
    with pytest.raises(ValueError, match="one class"):
        model.fit(x, y * 0)
    with pytest.raises(NotFittedError):
        model.predict(x)


def test_partial_fit_of_a_network_with_two_outputs_is_refused_and_leaves_nothing():
    x, y = np.random.default_rng(0).normal(size=(80, 2)), np.arange(80) % 4 == 0
    model = AUCClassifier(torch.nn.Linear(2, 2), random_state=0)
    with pytest.raises(ValueError, match="logits"):
        model.partial_fit(x, y)
    assert not hasattr(model, "module_")
    assert int(model._stream.counts.sum()) == 0


@pytest.mark.parametrize("drop", ["odd", ["odd"], np.array(["odd"])])
def test_columns_that_no_table_can_hold_are_dropped(drop):
    frame = pd.DataFrame({"a": np.arange(80.0), "odd": [1, "a", 2.5, None] * 20})
    model = AUCClassifier(steps=4, drop=drop, random_state=0).fit(frame, np.arange(80) % 4 == 0)
    assert model.encoder_.names == ["a"]
    assert len(model.predict(frame)) == 80
    with pytest.raises(ValueError, match="drop has 'z'"):
        AUCClassifier(drop="z").fit(frame, np.arange(80) % 4 == 0)


@pytest.mark.parametrize(("given", "words"), [({"lr": 0.1}, "directly"), (3, "a dict")])
def test_recipe_arguments_are_checked(given, words):
    x, y = np.random.default_rng(0).normal(size=(80, 2)), np.arange(80) % 4 == 0
    with pytest.raises(ValueError, match=words):
        AUCClassifier(recipe_arguments=given).fit(x, y)
