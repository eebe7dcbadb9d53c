"""scikit-learn's way in: a classifier with fit, predict_proba and partial_fit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from codauc.checks import known_arguments, listed
from codauc.config import (
    CommunicationSettings,
    DataSettings,
    ModelSettings,
    Recipe,
    RecipeSettings,
    RunSettings,
)
from codauc.data import Encoder
from codauc.data.opening import Opened, Part
from codauc.data.rows import as_rows
from codauc.data.shards import ShardCount
from codauc.data.splits import Split
from codauc.data.tables import Table, read_table
from codauc.evaluation import logits_of
from codauc.group import Group
from codauc.launching import launch
from codauc.making import make_model, settle
from codauc.metrics import auc
from codauc.models import build
from codauc.models.base import Model
from codauc.ranking import Calibration, calibrate
from codauc.streaming import Learner
from codauc.trainer import fit
from codauc.watching import gathered

try:
    from sklearn.base import BaseEstimator, ClassifierMixin  # type: ignore[import-untyped]
    from sklearn.utils import (  # type: ignore[import-untyped]
        assert_all_finite,
        check_consistent_length,
        check_random_state,
    )
    from sklearn.utils.multiclass import (  # type: ignore[import-untyped]
        check_classification_targets,
    )
    from sklearn.utils.validation import (  # type: ignore[import-untyped]
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError as error:
    raise ImportError(
        "codauc.estimator needs scikit-learn 1.6 or later: pip install 'codauc[sklearn]'."
    ) from error

Array = NDArray[Any]
Maker = Callable[[], nn.Module]

_LEAST = 2  # validation samples of a class, with fewer there is no validation


class AUCClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A network trained for the largest AUC, with scikit-learn's interface.

    `X` is an array or a list of numbers [N, features], images [N, channels, H, W], or a pandas
    frame, whose columns may also be texts, categories or dates. NaN is a missing value. `y` has two
    classes; the second of `classes_`, in sorted order, is the positive one.

    `model` is "auto" (which fits the data), a name of `codauc.models`, an import path
    "package.module:Name", a class or function that makes an `nn.Module` (each with
    `model_arguments`), or an `nn.Module`, of which a copy is trained. `recipe` is "default",
    "paper" or "bce"; what is None is for it to decide. `steps` are those of the first stage,
    without the warm start. `recipe_arguments` are further values of
    `codauc.config.RecipeSettings`, such as `{"evaluations": 50}`.

    `validation_fraction` of each class is set aside: it chooses the weights that are kept, and
    makes log-odds of logits. Where a class is too small for it, or with 0, the last weights are
    kept and the training data are used for the log-odds.

    With `workers` K the rows are shared out to K processes of this machine, or with `simulate=True`
    to K workers in this process; `sync_every` is the number of steps between two averagings.
    `categories` and `drop` name columns of a frame: numbers to be taken for texts, and what is to
    be left out. The same `random_state` gives the same model; torch's and numpy's own random states
    are left alone. `verbose=1` shows the progress.

    After `fit`: `classes_`, `n_features_in_`, `feature_names_in_` (of a frame), `module_` (the
    network, in evaluation mode), `encoder_` (how rows become its inputs), `calibration_`,
    `history_` (one dict for each look at the validation set), `n_iter_` (steps), `best_step_` and
    `validation_auc_` (None without validation).

    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> y = np.where(X[:, 0] > 1, "rare", "common")
    >>> model = AUCClassifier(steps=50, random_state=0).fit(X, y)
    >>> model.classes_.tolist(), model.predict_proba(X).shape
    (['common', 'rare'], (200, 2))
    >>> model.score(X, y) > 0.9
    True
    """

    classes_: Array
    module_: nn.Module
    encoder_: Encoder
    calibration_: Calibration
    _columns: list[str] | None  # of a frame
    _all_columns: list[str] | None  # with those that are dropped

    def __init__(
        self,
        model: Any = "auto",
        *,
        model_arguments: dict[str, Any] | None = None,
        recipe: str = "default",
        optimizer: str | None = None,
        lr: float | None = None,
        gamma: float | None = None,
        weight_decay: float | None = None,
        batch_size: int | None = None,
        steps: int | None = None,
        stages: int | None = None,
        warm_start: float | None = None,
        balance: float | None = None,
        select: str | None = None,
        recipe_arguments: dict[str, Any] | None = None,
        validation_fraction: float = 0.15,
        workers: int = 1,
        simulate: bool = False,
        sync_every: int | str | None = None,
        categories: Sequence[str] | None = None,
        drop: Sequence[str] | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.model = model
        self.model_arguments = model_arguments
        self.recipe = recipe
        self.optimizer = optimizer
        self.lr = lr
        self.gamma = gamma
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.steps = steps
        self.stages = stages
        self.warm_start = warm_start
        self.balance = balance
        self.select = select
        self.recipe_arguments = recipe_arguments
        self.validation_fraction = validation_fraction
        self.workers = workers
        self.simulate = simulate
        self.sync_every = sync_every
        self.categories = categories
        self.drop = drop
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        """Two classes, dense input, NaN allowed."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Train anew on all of `X` and `y`."""
        self.__dict__.pop("module_", None)  # one that fails is not fitted
        x = self._checked(X, reset=True)
        labels = self._labels(x, y, reset=True)
        seed = self._seed()
        settings = self._settings(seed)
        job = _Job(settings, x, labels, self._split(labels, seed), self._maker(), self.verbose > 0)
        ways = settings.communication
        work = partial(_work, job=job)
        fitted = launch(work, workers=ways.workers, simulate=ways.simulate, seed=seed)[0]
        make = job.maker or partial(build, fitted.model.name, **fitted.model.arguments)
        self.module_ = _quietly(make, seed)
        self.module_.load_state_dict(fitted.weights)
        self.module_.eval()
        self.encoder_, self.calibration_ = fitted.encoder, fitted.calibration
        self.history_, self.n_iter_ = fitted.history, fitted.steps
        self.best_step_, self.validation_auc_ = fitted.step, fitted.validation_auc
        self._stream = Learner(seed, counts=_counts(labels))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Go on training: one pass over these rows in batches, at the recipe's first step size.

        The first call, unless after `fit`, makes the network, and what it learns of the columns
        (means, categories) stays as it is. It may hold one class only if `classes` names both. The
        share of positives is that of all rows so far; a, b, alpha and the optimizer's state go on.
        A random sample of the rows so far, at most 1024, is kept for the log-odds: from 10 of each
        class on it sets `calibration_`. One worker does it, without a validation set.
        """
        first = not hasattr(self, "module_")
        x = self._checked(X, reset=first)
        labels = self._labels(x, y, classes, reset=first)
        if first:
            self._stream = Learner(self._seed())
            self.encoder_ = _encoder(x, labels, _names(self.categories))
            self.calibration_, self.history_, self.n_iter_ = Calibration(), [], 0
        stream = self._stream
        part = _part(_read(x, labels, encoder=self.encoder_))
        seen, stream.counts = stream.counts, stream.counts + _counts(labels)
        so_far = replace(part, counts=[ShardCount(int(stream.counts.sum()), int(stream.counts[0]))])
        settled = settle(self._settings(stream.seed), _opened(so_far, None, self.encoder_), 1)
        assert isinstance(settled.recipe, Recipe)
        if first:
            rows = as_rows(part.x).gather(torch.arange(len(part.x)))
            make = self._maker() or partial(make_model, settled, rows, stream.ratio)
            module = _quietly(make, stream.seed)
        else:
            module = self.module_
        try:
            learn = partial(stream.learn, module, part, settled.recipe)
            self.n_iter_ += _quietly(learn, stream.seed + stream.calls)
        except BaseException:
            stream.counts = seen
            raise
        self.module_ = module
        self.calibration_ = stream.calibrated(self.module_) or self.calibration_
        self.best_step_, self.validation_auc_ = self.n_iter_, None
        return self

    def decision_function(self, X: Any) -> Array:
        """The log-odds of the positive class, shape [N]; AUC and order are those of the logits."""
        check_is_fitted(self, "module_")
        x = read_table(self._checked(X, reset=False), encoder=self.encoder_, nan="missing").x
        return self.calibration_.log_odds(logits_of(_exact(self.module_, self.encoder_), x))

    def predict_proba(self, X: Any) -> Array:
        """The probabilities of both classes, shape [N, 2], in the order of `classes_`."""
        positive = torch.from_numpy(self.decision_function(X))
        return torch.stack([(-positive).sigmoid(), positive.sigmoid()], dim=1).numpy()

    def predict(self, X: Any) -> Array:
        """The more probable class of each row."""
        positive = self.decision_function(X) > 0
        return np.asarray(self.classes_[positive.astype(int)])

    def score(self, X: Any, y: Any) -> float:
        """The AUC, not the accuracy."""
        scores = self.decision_function(X)
        return float(auc(scores, self._positives(column_or_1d(y))))

    def _checked(self, X: Any, *, reset: bool) -> Any:
        """`X` as an array of numbers, or as a frame whose columns have texts for names."""
        framed = _is_frame(X) if reset else self._columns is not None
        if framed and _is_frame(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            x = X.set_axis([str(name) for name in X.columns], axis=1)
            x = _without(x, _names(self.drop))
        else:
            options = {"allow_nd": True, "ensure_all_finite": "allow-nan"}
            x = validate_data(self, X, reset=reset, **options)
        if reset:
            self._columns = list(x.columns) if framed else None
            self._all_columns = [str(name) for name in X.columns] if framed else None
        elif framed and not _is_frame(x):
            x = import_module("pandas").DataFrame(x, columns=self._all_columns)
            x = _without(x, _names(self.drop))
        return x

    def _labels(self, x: Any, y: Any, classes: Any = None, *, reset: bool) -> Array:
        """1 where `y` is the positive class, else 0; with `reset` the classes are set."""
        if y is None:
            raise ValueError("AUCClassifier requires y to be passed, but the target y is None.")
        y = column_or_1d(y, warn=True)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        check_consistent_length(x, y)
        found = self.classes_ if classes is None and not reset else np.unique(y)
        if classes is not None:
            found = np.unique(column_or_1d(classes))
        if reset:
            self.classes_ = _two(found)
        elif not np.array_equal(found, self.classes_):
            raise ValueError(
                f"classes are {listed(found.tolist())}: expected those of the first call, "
                f"{listed(self.classes_.tolist())}; leave classes out."
            )
        return self._positives(y)

    def _positives(self, y: Array) -> Array:
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(
                f"y has {listed(unknown.tolist())}: expected the classes of training, "
                f"{listed(self.classes_.tolist())}."
            )
        return np.asarray(y == self.classes_[1], np.int64)

    def _seed(self) -> int:
        if self.random_state is None:  # numpy's global state is left alone
            return int(np.random.default_rng().integers(2**31 - 1))
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _settings(self, seed: int) -> RunSettings:
        named = isinstance(self.model, str)
        return RunSettings(
            DataSettings(
                validation_fraction=self.validation_fraction,
                test_fraction=0.0,
                categories=_names(self.categories),
                nan="missing",
            ),
            ModelSettings(self.model, dict(self.model_arguments or {}))
            if named
            else ModelSettings(),
            known_arguments(RecipeSettings)(
                name=self.recipe,
                optimizer=self.optimizer,
                lr=self.lr,
                gamma=self.gamma,
                weight_decay=self.weight_decay,
                batch_size=self.batch_size,
                steps=self.steps,
                stages=self.stages,
                # scikit-learn's own warm_start is a bool, and its tools may set it to False
                warm_start=0.0 if self.warm_start is False else self.warm_start,
                balance=self.balance,
                select=self.select,
                **self._further(),
            ),
            CommunicationSettings(self.workers, self.simulate, self.sync_every),
            seed=seed,
        )

    def _further(self) -> dict[str, Any]:
        """`recipe_arguments`, none of which may be a parameter of its own."""
        given = self.recipe_arguments or {}
        if not isinstance(given, dict):
            raise ValueError(f"recipe_arguments={given!r}: expected a dict of names and values.")
        twice = sorted(set(given) & set(self.get_params(deep=False)))
        if twice:
            raise ValueError(
                f"recipe_arguments has {listed(twice)}: expected names that are no parameters of "
                "AUCClassifier; give these directly."
            )
        return dict(given)

    def _maker(self) -> Maker | None:
        """What makes the network, unless it goes by a name."""
        if isinstance(self.model, str):
            return None
        if isinstance(self.model, nn.Module):
            if self.model_arguments:
                raise ValueError(
                    "model_arguments with a model that is already made: expected none; give its "
                    "class as model, or leave them out."
                )
            return partial(copy.deepcopy, self.model)
        return partial(_made, self.model, self.model_arguments or {})

    def _split(self, labels: Array, seed: int) -> Split | None:
        """How validation rows are set aside; None where there are too few."""
        if not self.validation_fraction:
            return None
        split, positive = Split(0.0, self.validation_fraction, seed), torch.from_numpy(labels == 1)
        try:
            rows = split.rows(positive, "validation")
        except ValueError:  # a class of one sample
            return None
        ups = int(positive[rows].sum())
        enough = min(ups, len(rows) - ups) >= _LEAST and len(rows) >= self.workers
        return split if enough else None


def _names(columns: Any) -> tuple[str, ...]:
    """Names of columns, given as one, several or none."""
    if columns is None:
        return ()
    return (columns,) if isinstance(columns, str) else tuple(str(name) for name in columns)


def _without(frame: Any, drop: tuple[str, ...]) -> Any:
    """A frame without some of its columns."""
    missing = [name for name in drop if name not in frame.columns]
    if missing:
        raise ValueError(
            f"drop has {listed(missing)}: expected columns of the frame, {listed(frame.columns)}."
        )
    return frame.drop(columns=list(drop))


def _is_frame(X: Any) -> bool:
    return hasattr(X, "columns") and hasattr(X, "set_axis")


def _two(classes: Array) -> Array:
    if len(classes) > 2:
        raise ValueError(
            "Only binary classification is supported. The type of the target is multiclass: got "
            f"the classes {listed(classes.tolist())}; use OneVsRestClassifier for more than two."
        )
    if len(classes) < 2:
        raise ValueError(
            f"y has one class alone, {listed(classes.tolist())}: expected two classes; AUC needs "
            "both."
        )
    return classes


def _counts(labels: Array) -> Tensor:
    """How many positives and negatives, shape [2, 1]."""
    positives = int(labels.sum())
    return torch.tensor([[positives], [len(labels) - positives]])


def _quietly(function: Callable[[], Any], seed: int) -> Any:
    """Call it with random streams of its own."""
    return launch(lambda group: function(), simulate=True, seed=seed)[0]  # noqa: ARG005


def _made(maker: Any, arguments: dict[str, Any]) -> nn.Module:
    if not callable(maker):
        raise ValueError(
            f"model={maker!r}: expected a name, an import path, an nn.Module, or a class or "
            'function that makes one; use "auto" if in doubt.'
        )
    model = maker(**arguments)
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model={maker!r} returned {type(model).__name__}: expected a torch.nn.Module; give a "
            "class or function that makes one."
        )
    return model


def _read(x: Any, labels: Array, **options: Any) -> Table:
    """Rows with their labels: beside an array, in a further column of a frame."""
    if isinstance(x, np.ndarray):
        return read_table(x, labels, nan="missing", **options)
    name = "target"
    while name in x.columns:
        name += "_"
    return read_table(x.assign(**{name: labels}), name, nan="missing", **options)


def _part(table: Table) -> Part:
    return Part(table.x, table.y, table.rows, table.counts)


def _opened(train_part: Part, validation: Part | None, encoder: Encoder) -> Opened:
    target = encoder.target
    shape = (len(encoder.numbers), *encoder.shape) if encoder.shape else ()
    return Opened(train_part, validation, None, target.positive, target.negative, encoder, shape)


class _Exact(nn.Module):
    """A copy in float64: a row's score then does not depend on the rows beside it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = copy.deepcopy(module).double()

    def forward(self, x: Tensor) -> Tensor:
        """Logits, in float64."""
        logits: Tensor = self.module(x.double())
        return logits


def _exact(module: nn.Module, encoder: Encoder) -> nn.Module:
    """In float64 where that costs little: the package's networks for tables."""
    return _Exact(module) if isinstance(module, Model) and not encoder.shape else module


@dataclass(frozen=True)
class _Job:
    """What each worker of `fit` is given."""

    settings: RunSettings
    x: Any = field(repr=False)
    labels: Array = field(repr=False)
    split: Split | None
    maker: Maker | None
    verbose: bool


@dataclass(frozen=True)
class _Fitted:
    """What comes back from a worker; it can be sent between processes."""

    weights: dict[str, Tensor]
    model: ModelSettings
    encoder: Encoder
    calibration: Calibration
    history: list[dict[str, Any]]
    step: int
    steps: int
    validation_auc: float | None


def _work(group: Group, job: _Job) -> _Fitted:
    """One worker's part of `fit`."""
    data, options = job.settings.data, {"group": group, "seed": job.settings.seed}
    if job.split is not None:
        options["split"] = job.split
    columns = {"categories": data.categories}
    table = _read(job.x, job.labels, **options, **columns)
    encoder, validation = table.encoder, None
    if job.split is not None:
        rest = _read(job.x, job.labels, **options, part="validation", encoder=encoder)
        validation = _part(rest)
    opened = _opened(_part(table), validation, encoder)
    settings = settle(job.settings, opened, group.size)
    bars = _bars() if job.verbose and group.rank == 0 else []
    model = None if job.maker is None else job.maker()
    trained = fit(settings, opened, group, bars, model=model)
    for bar in bars:
        bar.on_end({})
    calibration = trained.calibration
    if validation is None:
        calibration = _own_calibration(trained.model, opened.train, group)
    return _Fitted(
        {name: t.detach().cpu().clone() for name, t in trained.model.state_dict().items()},
        settings.model,
        encoder,
        calibration,
        [asdict(record) for record in trained.records],
        trained.step,
        trained.steps,
        trained.validation_auc,
    )


def _bars() -> list[Any]:
    from codauc.running import Bar

    return [Bar()]


def _own_calibration(model: nn.Module, part: Part, group: Group) -> Calibration:
    """From the training data, for want of others."""
    assert part.y is not None
    scores = gathered(logits_of(model, part.x), group)
    return calibrate(scores, gathered(part.y.numpy().astype(np.bool_), group))


def _encoder(x: Any, labels: Array, categories: tuple[str, ...]) -> Encoder:
    """What the first rows of a stream tell of the columns, also where they are of one class."""
    if 0 < labels.sum() < len(labels):
        return _read(x, labels, categories=categories).encoder
    twice = np.tile(np.arange(len(labels)), 2)
    both = np.repeat([0, 1], len(labels))
    rows = x[twice] if isinstance(x, np.ndarray) else x.iloc[twice]
    return _read(rows, both, categories=categories).encoder
