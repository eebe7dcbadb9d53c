"""Logistic regression and boosted trees of other libraries, on the rows that a network has.

Each takes the inputs of the network: numbers standardised, missing ones filled and marked, and
categories as codes, which logistic regression has as one column per value. Settings are the
library's defaults; the number of trees is chosen by the AUC of the validation rows. One thread,
as codauc has for tables.
"""

from __future__ import annotations

import importlib
import inspect
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from codauc.data.dataset import DataSet, Part
from codauc.data.rows import as_rows

MOST_TREES, PATIENCE = 1000, 50
MOST_BYTES = 4_000_000_000  # of the inputs of all parts
_MOST_CATEGORIES = 255  # which scikit-learn's trees take as such
_ITERATIONS = 1000  # of logistic regression

Matrix = NDArray[Any]


class Side(NamedTuple):
    """Inputs, labels and weights of one part, in the order of the source."""

    x: Matrix
    y: NDArray[np.bool_]
    weights: NDArray[np.float64] | None = None


class Sides(NamedTuple):
    """The rows of a table as other libraries take them; `sizes` are the codes of each category."""

    train: Side
    validation: Side | None
    test: Side
    sizes: tuple[int, ...]

    @property
    def categories(self) -> list[int]:
        """The places of the categories: the last."""
        inputs = self.train.x.shape[1]
        return list(range(inputs - len(self.sizes), inputs))


class Fitted(NamedTuple):
    """The scores of the test rows, the seconds of fitting, and the trees or iterations used."""

    scores: NDArray[np.float64]
    seconds: float
    steps: int


_Fit = Callable[[Any, Sides, int], tuple[Callable[[Matrix], Any], int]]


class OtherModel(NamedTuple):
    """A model of another library: its name, the module, what to install, and how it is fitted."""

    name: str
    title: str
    module: str
    install: str
    fit: _Fit

    def fitted(self, sides: Sides, seed: int) -> Fitted:
        """Fit it and score the test rows; ImportError where its library is not there."""
        library = importlib.import_module(self.module)
        begin = time.perf_counter()
        with _alone():
            score, steps = self.fit(library, sides, seed)
            seconds = time.perf_counter() - begin
            scores = np.asarray(score(sides.test.x), np.float64)
        return Fitted(scores, seconds, steps)

    def missing(self, error: Exception) -> str:
        """What to say where the library is not there, or does not load."""
        return f"{self.title} is left out ({error}): pip install '{self.install}' adds it."


@contextmanager
def _alone() -> Iterator[None]:
    """One thread, and no warnings about names of columns and the like."""
    limits = importlib.import_module("threadpoolctl").threadpool_limits(1)
    with limits, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def sides_of(opened: DataSet) -> Sides:
    """All rows of an opened table; raise where they are too many for memory."""
    encoder, train, test = opened.encoder, opened.train, opened.test
    assert encoder is not None
    assert test is not None
    parts = [part for part in (train, opened.validation, test) if part is not None]
    size = 4 * encoder.inputs * sum(len(part.x) for part in parts)
    if size > MOST_BYTES:
        raise ValueError(
            f"{size / 1e9:.1f} GB of inputs: expected at most {MOST_BYTES / 1e9:.0f} GB for models "
            "of other libraries, which take them at once; compare on a part of the rows."
        )
    validation = None if opened.validation is None else _side(opened.validation)
    sizes = tuple(category.size for category in encoder.categories)
    return Sides(_side(train), validation, _side(test), sizes)


def _side(part: Part) -> Side:
    assert part.y is not None
    order = torch.argsort(part.rows, stable=True)
    x, y = as_rows(part.x).gather(order).numpy(), part.y[order].numpy().astype(np.bool_)
    return Side(x, y, None if part.weights is None else part.weights[order].double().numpy())


def _logistic(library: Any, sides: Sides, seed: int) -> tuple[Callable[[Matrix], Any], int]:
    sparse = importlib.import_module("scipy.sparse")
    first = sides.train.x.shape[1] - len(sides.sizes)

    def inputs(x: Matrix) -> Any:
        if not sides.sizes:
            return x
        codes = x[:, first:].astype(np.int64)
        wide = [sparse.csr_matrix(x[:, :first])]
        for codes_of, size in zip(codes.T, sides.sizes, strict=True):
            rows = np.arange(len(x))
            ones = np.ones(len(x), np.float32)
            wide.append(sparse.csr_matrix((ones, (rows, codes_of)), (len(x), size)))
        return sparse.hstack(wide, format="csr")

    model = library.LogisticRegression(max_iter=_ITERATIONS, random_state=seed)
    model.fit(inputs(sides.train.x), sides.train.y, sample_weight=sides.train.weights)
    return lambda x: model.decision_function(inputs(x)), int(np.max(model.n_iter_))


def _histogram(library: Any, sides: Sides, seed: int) -> tuple[Callable[[Matrix], Any], int]:
    kind = library.HistGradientBoostingClassifier
    if "X_val" not in inspect.signature(kind.fit).parameters:
        raise ImportError("it needs scikit-learn 1.7 or later, to stop by given rows")
    pairs = zip(sides.categories, sides.sizes, strict=True)
    places = [place for place, size in pairs if size <= _MOST_CATEGORIES]
    known: dict[str, Any] = {"categorical_features": places or None, "random_state": seed}
    given: dict[str, Any] = {}
    if sides.validation is not None:
        stop = {"max_iter": MOST_TREES, "n_iter_no_change": PATIENCE, "scoring": "roc_auc"}
        known |= {**stop, "early_stopping": True}
        x, y, weights = sides.validation
        given = {"X_val": x, "y_val": y, "sample_weight_val": weights}
    else:
        known["early_stopping"] = False
    model = kind(**known).fit(*sides.train, **given)  # x, y, weights
    best = int(model.n_iter_)
    if sides.validation is not None:  # those after the best are kept, but not used
        best = max(1, int(np.argmax(model.validation_score_)))
    return lambda x: next(islice(model.staged_decision_function(x), best - 1, None)), best


def _lightgbm(library: Any, sides: Sides, seed: int) -> tuple[Callable[[Matrix], Any], int]:
    stop = {} if sides.validation is None else {"n_estimators": MOST_TREES, "metric": "auc"}
    model = library.LGBMClassifier(random_state=seed, n_jobs=1, verbose=-1, **stop)
    given: dict[str, Any] = {"categorical_feature": sides.categories or "auto"}
    if sides.validation is not None:
        given["eval_set"] = [sides.validation[:2]]
        given["eval_sample_weight"] = [sides.validation.weights]
        given["callbacks"] = [library.early_stopping(PATIENCE, verbose=False)]
    model.fit(*sides.train, **given)
    steps = int(model.best_iteration_ or model.n_estimators_)
    return lambda x: model.predict(x, raw_score=True), steps


def _catboost(library: Any, sides: Sides, seed: int) -> tuple[Callable[[Matrix], Any], int]:
    first = sides.train.x.shape[1] - len(sides.sizes)

    def pool(x: Matrix, y: Any = None, weights: Any = None) -> Any:
        codes = x[:, first:].astype(np.int64).astype("S").astype(object)
        numbers = np.ascontiguousarray(x[:, :first])
        data = library.FeaturesData(numbers if first else None, codes if sides.sizes else None)
        return library.Pool(data, None if y is None else y.astype(np.int64), weight=weights)

    stop = {} if sides.validation is None else {"eval_metric": "AUC"}
    fixed = {"allow_writing_files": False, "thread_count": 1, "verbose": False}
    model = library.CatBoostClassifier(random_seed=seed, **fixed, **stop)
    given: dict[str, Any] = {}
    if sides.validation is not None:
        given = {"eval_set": pool(*sides.validation), "early_stopping_rounds": PATIENCE}
    model.fit(pool(*sides.train), **given)
    return lambda x: model.predict(pool(x), prediction_type="RawFormulaVal"), int(model.tree_count_)


def _xgboost(library: Any, sides: Sides, seed: int) -> tuple[Callable[[Matrix], Any], int]:
    kinds = np.array(["q"] * sides.train.x.shape[1])
    kinds[sides.categories] = "c"
    known: dict[str, Any] = {"feature_types": kinds.tolist(), "enable_categorical": True}
    if sides.validation is not None:
        stop = {"n_estimators": MOST_TREES, "early_stopping_rounds": PATIENCE}
        known |= {**stop, "eval_metric": "auc"}
    model = library.XGBClassifier(random_state=seed, n_jobs=1, **known)
    given: dict[str, Any] = {"sample_weight": sides.train.weights}
    if sides.validation is not None:
        given["eval_set"] = [sides.validation[:2]]
        if sides.validation.weights is not None:
            given["sample_weight_eval_set"] = [sides.validation.weights]
    model.fit(*sides.train[:2], verbose=False, **given)
    steps = model.get_booster().num_boosted_rounds()
    if sides.validation is not None:
        steps = model.best_iteration + 1
    return lambda x: model.predict(x, output_margin=True), int(steps)


_ALL = "codauc[baselines]"
OTHER_MODELS = (
    OtherModel(
        "logistic-regression", "Logistic regression", "sklearn.linear_model", _ALL, _logistic
    ),
    OtherModel(
        "hist-gradient-boosting", "HistGradientBoosting", "sklearn.ensemble", _ALL, _histogram
    ),
    OtherModel("lightgbm", "LightGBM", "lightgbm", _ALL, _lightgbm),
    OtherModel("catboost", "CatBoost", "catboost", _ALL, _catboost),
    OtherModel("xgboost", "XGBoost", "xgboost", _ALL, _xgboost),
)
