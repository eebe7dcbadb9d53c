"""What the estimator takes for X: sparse matrices, frames of any library, on any device."""

import math
import os
import pickle
import signal
import threading
import warnings

import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from codauc.data import read_table
from codauc.data.tables.packed_rows import EncodedRows
from codauc.data.tables.sparse_arrays import SparseArray
from codauc.integrations import estimator_fit
from codauc.integrations.estimator import AUCClassifier


def small(**changes):
    return AUCClassifier(**{"steps": 10, "random_state": 0} | changes)


@pytest.fixture(scope="module")
def data():
    X, y = make_classification(300, 6, weights=[0.8], class_sep=1.5, random_state=0)
    return np.where(np.abs(X) < 0.7, 0.0, X), y


FORMATS = ["csr", "csc", "coo", "lil", "dok", "bsr"]


@pytest.mark.parametrize("kind", [f"{f}_{k}" for f in FORMATS for k in ("matrix", "array")])
def test_a_sparse_matrix_of_any_kind_gives_one_model_which_takes_dense_rows(data, kind):
    X, y = data
    made = getattr(sparse, kind)(X)
    model, expected = small().fit(made, y), small().fit(sparse.csr_array(X), y)
    np.testing.assert_array_equal(model.decision_function(made), expected.decision_function(X))
    np.testing.assert_array_equal(model.decision_function(made), model.decision_function(X))
    assert model.partial_fit(made, y).score(made, y) > 0.5


def test_without_zeros_a_sparse_matrix_gives_the_model_of_the_dense_array(data):
    X, y = data[0] + 10, data[1]
    by_sparse, by_array = small().fit(sparse.csr_array(X), y), small().fit(X, y)
    np.testing.assert_array_equal(by_sparse.decision_function(X), by_array.decision_function(X))


def test_a_rare_value_of_a_sparse_column_has_the_size_of_a_frequent_one():
    """Standardised, the rare one would be sqrt(100) times as large."""
    X = np.zeros((2000, 2))
    X[::2, 0], X[::200, 1] = 3.0, 0.5
    encoder = read_table(sparse.csr_array(X), np.arange(2000) % 2).encoder
    np.testing.assert_allclose(encoder.means(), X.mean(0))
    np.testing.assert_allclose(encoder.stds(), X.std(0) / np.sqrt([0.5, 0.005]))
    assert 0.9 < 0.5 / encoder.stds()[1] < 1.1


def test_rare_words_do_not_drown_the_others():
    """Here columns scaled by their standard deviations alone give an AUC of 0.838, these 0.915."""
    rng = np.random.default_rng(0)
    y = np.arange(1500) % 5 == 0
    often = 1 / np.arange(1, 3001)
    told = often * np.where((np.arange(3000) % 25 == 0) & (np.arange(3000) > 25), 6, 1)
    rows = [
        rng.multinomial(60, (told if up else often) / (told if up else often).sum()) for up in y
    ]
    X = sparse.csr_array(np.array(rows, float))
    assert small(steps=40).fit(X[:1000], y[:1000]).score(X[1000:], y[1000:]) > 0.88


def test_a_large_sparse_matrix_stays_sparse_and_gives_the_rows_of_the_dense_one(data):
    X, y = data
    large = read_table(sparse.csc_array(X), y, memory=1000)  # bytes, in place of 256 MB
    assert isinstance(large.x, EncodedRows)
    assert isinstance(large.x.matrix, SparseArray)
    order = torch.randperm(len(y))
    assert torch.equal(large.x.gather(order), read_table(sparse.csr_array(X), y).x[order])


def test_a_matrix_of_3_000_columns_has_a_network_that_fits():
    y = np.arange(400) % 4 == 0
    X = sparse.random_array((400, 3_000), density=1e-3, rng=np.random.default_rng(0)).tolil()
    X[y, 7] = 1.0
    model = small(steps=5).fit(X, y)
    assert model.module_.arguments["pieces"] == 0
    assert model.score(X, y) > 0.9
    assert small().fit(X[:, :9], y).module_.arguments["pieces"] == 8


def test_nan_that_is_stored_is_missing_and_infinity_is_refused(data):
    X, y = data[0].copy(), data[1]
    X[::4, 2] = np.nan
    model = small().fit(sparse.csr_array(X), y)
    assert model.encoder_.flagged == [2]
    X[0, 2] = np.inf
    with pytest.raises(ValueError, match="infinity"):
        model.predict(sparse.csr_array(X))


def test_values_of_one_place_are_their_sum():
    matrix = sparse.csr_array((np.array([1.0, 2.0, 5.0]), np.array([0, 0, 1]), np.array([0, 2, 3])))
    table = read_table(matrix, np.array([0, 1]))
    np.testing.assert_array_equal(table.encoder.means(), [1.5, 2.5])
    with pytest.raises(ValueError, match=r"expected \[N, features\]"):
        read_table(sparse.coo_array(np.arange(3)), np.array([0, 1, 1]))


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    colour, size = rng.choice(["red", "green", "blue"], 300), rng.normal(size=300)
    y = ((colour == "red") * 2.0 + size > 1.5).astype(int)
    size[::7] = np.nan
    columns = {"colour": colour, "size": size, "day": pd.date_range("2024-01-01", periods=300)}
    return pd.DataFrame(columns), y


class Exchanged:
    """A frame of a library that offers the interchange protocol alone."""

    def __init__(self, table):
        self.table = table

    def __dataframe__(self, **options):
        return self.table.__dataframe__(**options)


def frames():
    polars = pytest.importorskip("polars", reason="polars is not installed")
    yield (
        "polars",
        lambda frame: polars.from_arrow(pa.Table.from_pandas(frame, preserve_index=False)),
    )
    yield (
        "polars categories",
        lambda frame: polars.from_arrow(pa.Table.from_pandas(frame, preserve_index=False)).cast(
            {"colour": polars.Categorical}
        ),
    )
    yield "arrow", lambda frame: pa.Table.from_pandas(frame, preserve_index=False)
    yield (
        "arrow dictionary",
        lambda frame: pa.Table.from_pandas(
            frame.astype({"colour": "category"}), preserve_index=False
        ),
    )
    yield "exchange", lambda frame: Exchanged(pa.Table.from_pandas(frame, preserve_index=False))


@pytest.mark.parametrize(("name", "convert"), list(frames()))
def test_frames_of_every_library_give_the_model_of_pandas(frame, name, convert):
    X, y = frame
    expected = small().fit(X, y)
    model = small().fit(convert(X), y)
    assert model.encoder_ == expected.encoder_
    np.testing.assert_array_equal(
        model.decision_function(convert(X)), expected.decision_function(X)
    )
    assert small(drop=["day"]).fit(convert(X), y).encoder_.names[0] == "size"
    streamed = small().partial_fit(convert(X), y)
    negative = small().partial_fit(convert(X[y == 0]), y[y == 0], classes=[0, 1])
    assert streamed.n_features_in_ == negative.n_features_in_ == 3


def test_a_frame_of_another_library_may_follow_and_its_names_are_compared(frame):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    X, y = frame
    model = small().fit(X, y)
    other = polars.from_arrow(pa.Table.from_pandas(X))
    np.testing.assert_array_equal(model.predict_proba(other), model.predict_proba(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(other.rename({"size": "length"}))
    labels = polars.Series("y", np.where(y, "yes", "no"))
    assert small(steps=2).fit(other, labels).classes_.tolist() == ["no", "yes"]


def test_what_no_table_can_be_made_of_is_one_clear_error(frame):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    X, y = frame
    lazy = polars.from_arrow(pa.Table.from_pandas(X)).lazy()
    with pytest.raises(ValueError, match=r"LazyFrame.*collect\(\)"):
        small().fit(lazy, y)
    lists = pa.table({"a": [[1]] * 300})
    with pytest.raises(ValueError, match=r"column 'a' holds list.*drop="):
        small().fit(lists, y)
    with pytest.raises(ValueError, match="0 sample"):
        small().fit(X, y).predict(X[:0])


def test_pandas_output_of_a_transformer_goes_in_and_arrays_come_out(data):
    """A classifier has no set_output: probabilities are arrays, as all of scikit-learn's are."""
    X, y = data
    pipeline = make_pipeline(StandardScaler(), small()).set_output(transform="pandas")
    pipeline.fit(pd.DataFrame(X, columns=list("abcdef")), y)
    assert pipeline[-1].feature_names_in_.tolist() == list("abcdef")
    assert isinstance(pipeline.predict_proba(pd.DataFrame(X, columns=list("abcdef"))), np.ndarray)
    assert not hasattr(small(), "set_output")


def test_parameters_clones_and_files(data, tmp_path):
    X, y = data
    model = small().set_params(steps=4, device="cpu", model_arguments={"widths": [8]})
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(ValueError, match="Invalid parameter 'step'"):
        model.set_params(step=3)
    model.fit(sparse.csr_array(X), y)
    joblib.dump(model, tmp_path / "model.joblib")
    for again in (joblib.load(tmp_path / "model.joblib"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert clone(model).fit(X, y).n_iter_ == model.n_iter_


def test_a_device_is_used_and_one_that_is_not_here_is_refused(data):
    X, y = data
    model = small(device="cpu").fit(X, y)
    np.testing.assert_array_equal(model.predict(X), small().fit(X, y).predict(X))
    assert {p.device.type for p in model.module_.parameters()} == {"cpu"}
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"device='cuda' cannot be used here.*cpu"):
            small(device="cuda").fit(X, y)
        with pytest.raises(ValueError, match="device='cuda' cannot be used here"):
            model.set_params(device="cuda").predict(X)
        assert model.partial_fit(X, y).set_params(device="cpu").score(X, y) > 0.5


def test_few_warnings(data):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small(steps=2).fit(sparse.csr_array(data[0].astype(np.float32)), data[1]).score(*data)


class Pressing(nn.Linear):
    """A network in whose forward pass number `at` somebody presses Ctrl-C, and in the next ones."""

    calls = 0

    def __init__(self, at, times=1):
        super().__init__(6, 1)
        self.at, self.times = at, times

    def forward(self, x):
        Pressing.calls += 1
        if self.at <= Pressing.calls < self.at + self.times:
            os.kill(os.getpid(), signal.SIGINT)
        return super().forward(x).squeeze(1)


@pytest.fixture
def no_earlier_interrupt(monkeypatch):
    monkeypatch.setattr(estimator_fit, "_interrupted", -math.inf)
    monkeypatch.setattr(Pressing, "calls", 0)
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals need the main thread")


@pytest.mark.usefixtures("no_earlier_interrupt")
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_in_fit_keeps_the_best_model_so_far(data, workers):
    X, y = data
    ways = {"workers": workers, "simulate": True, "sync_every": 4}
    often = {"select": "best", "recipe_arguments": {"evaluations": 10_000}}
    model = small(steps=100_000, model=Pressing(at=400), lr=0.1, **often, **ways)
    words = r"interrupted after \d+ of \d+ steps.*fitted.*validation AUC 0\.\d+"
    with pytest.warns(UserWarning, match=words):
        model.fit(X, y)
    assert 0 < model.best_step_ <= model.n_iter_ < 100_000
    assert model.validation_auc_ == max(record["auc"] for record in model.history_)
    assert model.score(X, y) > 0.6
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert model.partial_fit(X, y).n_iter_ > 0


@pytest.mark.usefixtures("no_earlier_interrupt")
@pytest.mark.filterwarnings("ignore:fit was interrupted")
def test_ctrl_c_twice_ends_a_search(data):
    network = Pressing(at=50, times=30)
    search = GridSearchCV(small(model=network, steps=100_000), {"lr": [1e-3] * 20}, cv=2)
    with pytest.raises(KeyboardInterrupt):
        search.fit(*data)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("no_earlier_interrupt")
def test_a_handler_of_somebody_else_is_left_alone(data):
    pressed = []
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
    try:
        assert small(model=Pressing(at=10), steps=30).fit(*data).n_iter_ == 43
    finally:
        signal.signal(signal.SIGINT, before)
    assert pressed == [1]
