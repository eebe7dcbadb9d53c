"""scikit-learn's way in: a classifier with fit, predict_proba and partial_fit."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

try:
    from sklearn.base import BaseEstimator, ClassifierMixin  # type: ignore[import-untyped]
    from sklearn.utils import check_random_state  # type: ignore[import-untyped]
    from sklearn.utils.validation import (  # type: ignore[import-untyped]
        check_is_fitted,
        column_or_1d,
    )
except ImportError as error:
    raise ImportError(
        "AUCClassifier needs scikit-learn 1.6 or later: pip install 'codauc[sklearn]'."
    ) from error

from codauc._internal.checks import listed
from codauc.data import Encoder
from codauc.data.dataset import DataSet
from codauc.data.rows import as_rows
from codauc.data.shards import ShardCount
from codauc.data.tables import read_table
from codauc.integrations.estimator_fit import (
    Array,
    checked_targets,
    fit_worker,
    launch_until_interrupted,
    module_maker,
    per_row,
    positives,
    run_settings,
    two_classes,
    validation_split,
    with_own_randomness,
    with_warnings,
)
from codauc.integrations.estimator_rows import (
    as_names,
    checked_rows,
    first_encoder,
    frame_columns,
    in_own_order,
    read_rows,
)
from codauc.integrations.online_learner import Learner
from codauc.metrics.auc_values import auc
from codauc.metrics.calibration import Calibration
from codauc.metrics.evaluation import logits_of
from codauc.metrics.thresholds import Threshold
from codauc.metrics.weighted_auc import weighted_auc_interval
from codauc.models import build
from codauc.models.base import Model
from codauc.training.build import (
    make_model,
    resolve_device,
    resolve_settings,
    usable_device,
)


class AUCClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A network trained for the largest AUC, with scikit-learn's interface.

    `X` is an array, a sparse matrix or a list of numbers [N, features], images [N, channels, H, W],
    or a frame of pandas, polars, Arrow or any library with `__dataframe__`, whose columns may also
    be texts, categories or dates. NaN is a missing value. `y` has two classes; the second of
    `classes_`, in sorted order, is the positive one.

    `model` is "auto" (which fits the data), a name of `codauc.models`, an import path
    "package.module:Class", a class or function that makes an `nn.Module` (each with
    `model_arguments`), or an `nn.Module`, of which a copy is trained. `recipe` is "default",
    "paper" or "bce"; what is None is for it to decide. `steps` are those of the first stage,
    without the warm start. `recipe_arguments` are further values of
    `codauc.runs.settings.RecipeSettings`, such as `{"evaluations": 50}`.

    `validation_fraction` of each class is set aside: it chooses the weights that are kept, and
    makes log-odds of logits. Where a class is too small for it, or with 0, the last weights are
    kept and the training data are used for the log-odds.

    With `workers` K the rows are shared out to K processes of this machine, or with `simulate=True`
    to K workers in this process; `sync_every` is the number of steps between two averagings.
    `categories` and `drop` name columns of a frame: numbers to be taken for texts, and what is to
    be left out. `device` is "auto" (cuda or mps if available, else cpu) or a name of torch; the
    fitted network is kept on the CPU. The same `random_state` gives the same model; torch's and
    numpy's own random states are left alone. `verbose=1` shows the progress.

    `threshold` is from where on `predict` gives the positive class: "recall=0.9", "precision=0.5",
    "fpr=0.01", "f1" or "cost=FP:FN", chosen on the validation rows (`choose_threshold`); None for
    the more probable class. One that is not reached is a warning that says what is.

    Ctrl-C ends `fit` with the best model so far and a warning; a second one within two seconds
    raises KeyboardInterrupt.

    After `fit`: `classes_`, `n_features_in_`, `feature_names_in_` (of a frame), `module_` (the
    network, in evaluation mode), `encoder_` (how rows become its inputs), `calibration_`,
    `history_` (one dict for each evaluation), `n_iter_` (steps), `best_step_`,
    `validation_auc_` (None without validation) and `threshold_` (None unless asked for).

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
    threshold_: Threshold | None
    history_: list[dict[str, Any]]
    _columns: list[str] | None  # of a frame, with those that are dropped

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
        threshold: str | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        given = locals()
        self.__dict__.update({name: given[name] for name in given if name != "self"})

    def __sklearn_tags__(self) -> Any:
        """Two classes, dense or sparse input, NaN allowed."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Train anew on all of `X` and `y`.

        With `sample_weight` a row counts as often as its weight says, also in the validation AUC;
        one of weight 0 is left out. Rows of one of the `groups`, such as a patient, stay on one
        side of the validation split.
        """
        self.__dict__.pop("module_", None)  # one that fails is not fitted
        x = self._rows(X, reset=True)
        labels = self._labels(x, y, reset=True)
        sample = per_row(sample_weight, groups, labels)
        numbers, repeated = in_own_order(x, labels, sample.weights)
        if repeated or (numbers[:-1] > numbers[1:]).any():  # large arrays are not copied
            x, labels, sample = x[numbers], labels[numbers], sample.of(numbers, repeated=repeated)
        seed = self._seed()
        settings = run_settings(self, seed)
        ways, maker = settings.communication, module_maker(self)
        work = partial(
            fit_worker,
            settings=settings,
            rows=(x, labels, sample.weights),
            split=validation_split(self, labels, sample, seed),
            maker=maker,
        )
        results = launch_until_interrupted(work, ways, seed, verbose=self.verbose > 0)
        weights, model, attributes = results[0]
        make = maker or partial(build, model.name, **model.arguments)
        self.module_ = with_own_randomness(make, seed)
        self.module_.load_state_dict(weights)
        self.module_.eval()
        self.__dict__.update(with_warnings(attributes))
        self._stream = Learner(seed, counts=_counts(labels))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Continue training: one pass over these rows in batches, at the recipe's first step size.

        The first call, unless after `fit`, makes the network, and what it learns of the columns
        (means, categories) stays as it is. It may hold one class only if `classes` names both. The
        share of positives is that of all rows so far; a, b, alpha and the optimizer continue.
        A random sample of the rows so far, at most 1024, is kept for the log-odds: from 10 of each
        class on it sets `calibration_`. One worker does it, without a validation set.
        """
        first = not hasattr(self, "module_")
        x = self._rows(X, reset=first)
        labels = self._labels(x, y, classes, reset=first)
        if first:
            self._stream = Learner(self._seed())
            self.encoder_ = first_encoder(x, labels, as_names(self.categories))
            self.calibration_, self.history_, self.n_iter_ = Calibration(), [], 0
            self.threshold_ = None
        stream = self._stream
        part = read_rows(x, labels, encoder=self.encoder_)
        seen, stream.counts = stream.counts, stream.counts + _counts(labels)
        so_far = replace(part, counts=[ShardCount(int(stream.counts.sum()), int(stream.counts[0]))])
        opened = DataSet.of_table(so_far)
        own = module_maker(self) is not None
        settings = resolve_settings(run_settings(self, stream.seed), opened, 1, own_model=own)
        if first:
            rows = as_rows(part.x).gather(torch.arange(len(part.x)))
            make = module_maker(self) or partial(make_model, settings, rows, stream.ratio)
            module = with_own_randomness(make, stream.seed)
        else:
            module = self.module_
        try:
            learn = partial(stream.learn, module, part, settings.recipe)
            self.n_iter_ += with_own_randomness(learn, stream.seed + stream.calls)
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
        x = read_table(self._rows(X, reset=False), encoder=self.encoder_, nan="missing").x
        module = _to_predict(self.module_, self.encoder_, str(self.device))
        return self.calibration_.log_odds(logits_of(module, x))

    def predict_proba(self, X: Any) -> Array:
        """The probabilities of both classes, shape [N, 2], in the order of `classes_`."""
        positive = torch.from_numpy(self.decision_function(X))
        return torch.stack([(-positive).sigmoid(), positive.sigmoid()], dim=1).numpy()

    def predict(self, X: Any) -> Array:
        """The more probable class of each row; with a `threshold`, the class by that."""
        scores = self.decision_function(X)
        positive = scores > 0 if self.threshold_ is None else self.threshold_.positive(scores)
        return np.asarray(self.classes_[positive.astype(int)])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The AUC, not the accuracy; with `sample_weight` the weighted one."""
        scores, labels = self.decision_function(X), positives(column_or_1d(y), self.classes_)
        if sample_weight is None:
            return float(auc(scores, labels))
        return weighted_auc_interval(scores, labels, sample_weight).value

    def _rows(self, X: Any, *, reset: bool) -> Any:
        columns = frame_columns(X) if reset else self._columns
        x = checked_rows(self, X, columns, reset=reset)
        if reset:
            self._columns = columns
        return x

    def _labels(self, x: Any, y: Any, classes: Any = None, *, reset: bool) -> Array:
        """1 where `y` is the positive class, else 0; with `reset` the classes are set."""
        y = checked_targets(x, y)
        found = self.classes_ if classes is None and not reset else np.unique(y)
        if classes is not None:
            found = np.unique(column_or_1d(classes))
        if reset:
            self.classes_ = two_classes(found)
        elif not np.array_equal(found, self.classes_):
            raise ValueError(
                f"classes are {listed(found.tolist())}: expected those of the first call, "
                f"{listed(self.classes_.tolist())}; leave classes out."
            )
        return positives(y, self.classes_)

    def _seed(self) -> int:
        if self.random_state is None:  # numpy's global state is left alone
            return int(np.random.default_rng().integers(2**31 - 1))
        return int(check_random_state(self.random_state).randint(2**31 - 1))


def _counts(labels: Array) -> Tensor:
    """How many positives and negatives, shape [2, 1]."""
    positives = int(labels.sum())
    return torch.tensor([[positives], [len(labels) - positives]])


def _to_predict(module: nn.Module, encoder: Encoder, device: str) -> nn.Module:
    """The network on the device; where that costs little a copy in float64.

    In float64 a row's score does not depend on the rows beside it. It costs little for the
    package's networks for tables.
    """
    place = usable_device(resolve_device(device, processes=False))
    exact = isinstance(module, Model) and not encoder.shape
    if not exact:
        return module if place.type == "cpu" else copy.deepcopy(module).to(place)
    place = torch.device("cpu") if place.type == "mps" else place  # which has no float64
    copied = copy.deepcopy(module).double().to(place)
    copied.register_forward_pre_hook(lambda _, inputs: tuple(x.double() for x in inputs))
    return copied
