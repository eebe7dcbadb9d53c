"""An estimator's parameters, X and y as the settings and the data of a run; a worker's part."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import (  # type: ignore[import-untyped]
    assert_all_finite,
    check_consistent_length,
)
from sklearn.utils.multiclass import check_classification_targets  # type: ignore[import-untyped]
from sklearn.utils.validation import column_or_1d, validate_data  # type: ignore[import-untyped]
from torch import Tensor, nn

from codauc._internal.checks import known_arguments, listed
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.data import Batches, Encoder
from codauc.data.data_settings import DataSettings
from codauc.data.dataset import DataSet, Part
from codauc.data.rows import as_rows
from codauc.data.splits import Split
from codauc.data.tables import read_table
from codauc.metrics.calibration import Calibration, calibrate
from codauc.metrics.evaluation import logits_of
from codauc.runs.settings import (
    CommunicationSettings,
    ModelSettings,
    Recipe,
    RecipeSettings,
    RunSettings,
)
from codauc.training.build import make_optimizer, resolve_settings
from codauc.training.callbacks import Callback, ProgressBar
from codauc.training.loop import fit
from codauc.training.validation import gathered
from codauc.workers.group import Group
from codauc.workers.launcher import launch

Array = NDArray[Any]
ModuleMaker = Callable[[], nn.Module]

_LEAST = 2  # validation samples of a class, with fewer there is no validation
_KEPT, _KEPT_BYTES = 1024, 1 << 24  # the sample of a stream that calibrates: rows, bytes
_ENOUGH = 10  # of each class in it, to calibrate


def run_settings(estimator: Any, seed: int) -> RunSettings:
    """The settings that an estimator's parameters stand for."""
    e = estimator
    own = {each.name for each in fields(RecipeSettings)} - {"warm_start"}
    model = ModelSettings()
    if isinstance(e.model, str):
        model = ModelSettings(e.model, dict(e.model_arguments or {}))
    return RunSettings(
        DataSettings(
            validation_fraction=e.validation_fraction,
            test_fraction=0.0,
            categories=as_names(e.categories),
            nan="missing",
        ),
        model,
        known_arguments(RecipeSettings)(
            name=e.recipe,
            # scikit-learn's own warm_start is a bool, and its tools may set it to False
            warm_start=0.0 if e.warm_start is False else e.warm_start,
            **{name: value for name, value in e.get_params(deep=False).items() if name in own},
            **_further(e),
        ),
        CommunicationSettings(e.workers, e.simulate, e.sync_every),
        seed=seed,
        device="cpu",
    )


def _further(estimator: Any) -> dict[str, Any]:
    """`recipe_arguments`, none of which may be a parameter of its own."""
    given = estimator.recipe_arguments or {}
    if not isinstance(given, dict):
        raise ValueError(f"recipe_arguments={given!r}: expected a dict of names and values.")
    twice = sorted(set(given) & set(estimator.get_params(deep=False)))
    if twice:
        raise ValueError(
            f"recipe_arguments has {listed(twice)}: expected names that are no parameters of "
            "AUCClassifier; give these directly."
        )
    return dict(given)


def module_maker(estimator: Any) -> ModuleMaker | None:
    """What makes the network, unless it goes by a name."""
    if isinstance(estimator.model, str):
        return None
    if isinstance(estimator.model, nn.Module):
        if estimator.model_arguments:
            raise ValueError(
                "model_arguments with a model that is already made: expected none; give its "
                "class as model, or leave them out."
            )
        return partial(copy.deepcopy, estimator.model)
    return partial(_made, estimator.model, estimator.model_arguments or {})


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


def validation_split(estimator: Any, labels: Array, seed: int) -> Split | None:
    """How validation rows are set aside; None where there are too few."""
    if not estimator.validation_fraction:
        return None
    split, positive = Split(0.0, estimator.validation_fraction, seed), torch.from_numpy(labels == 1)
    try:
        rows = split.rows(positive, "validation")
    except ValueError:  # a class of one sample
        return None
    ups = int(positive[rows].sum())
    enough = min(ups, len(rows) - ups) >= _LEAST and len(rows) >= estimator.workers
    return split if enough else None


def with_own_randomness(function: Callable[[], Any], seed: int) -> Any:
    """Call it with random streams of its own."""
    return launch(lambda group: function(), simulate=True, seed=seed)[0]  # noqa: ARG005


def fit_worker(
    group: Group,
    *,
    settings: RunSettings,
    rows: tuple[Any, Array],
    split: Split | None,
    maker: ModuleMaker | None,
    verbose: bool,
) -> tuple[dict[str, Tensor], ModelSettings, dict[str, Any]]:
    """One worker's part of `fit`: the weights, the network, and the estimator's attributes."""
    options: dict[str, Any] = {"group": group, "seed": settings.seed}
    if split is not None:
        options["split"] = split
    table = read_rows(*rows, **options, categories=settings.data.categories)
    encoder, validation = table.encoder, None
    assert encoder is not None
    assert table.y is not None
    if split is not None:
        validation = read_rows(*rows, **options, part="validation", encoder=encoder)
    opened = DataSet.of_table(table, validation)
    settings = resolve_settings(settings, opened, group.size)
    callbacks: list[Callback] = [ProgressBar()] if verbose and group.rank == 0 else []
    model = None if maker is None else maker()
    trained = fit(settings, opened, group, callbacks, model=model)
    for callback in callbacks:
        callback.on_end({})
    calibration = trained.calibration
    if validation is None:  # from the training data, for want of others
        scores = gathered(logits_of(trained.model, table.x), group)
        calibration = calibrate(scores, gathered(table.y.numpy().astype(np.bool_), group))
    weights = {name: t.detach().cpu().clone() for name, t in trained.model.state_dict().items()}
    attributes = {
        "encoder_": encoder,
        "calibration_": calibration,
        "history_": [asdict(record) for record in trained.records],
        "n_iter_": trained.steps,
        "best_step_": trained.step,
        "validation_auc_": trained.validation_auc,
    }
    return weights, settings.model, attributes


def first_encoder(x: Any, labels: Array, categories: tuple[str, ...]) -> Encoder:
    """What the columns hold, by the first rows of a stream; also if they are of one class."""
    if not 0 < labels.sum() < len(labels):
        twice = np.tile(np.arange(len(labels)), 2)
        labels = np.repeat([0, 1], len(labels))
        x = x[twice] if isinstance(x, np.ndarray) else x.iloc[twice]
    encoder = read_rows(x, labels, categories=categories).encoder
    assert encoder is not None
    return encoder


def frame_columns(X: Any) -> list[str] | None:
    """The names of the columns of a pandas frame, or something like it; None for an array."""
    frame = hasattr(X, "columns") and hasattr(X, "set_axis")
    return [str(name) for name in X.columns] if frame else None


def checked_rows(estimator: Any, X: Any, columns: list[str] | None, *, reset: bool) -> Any:
    """`X` as an array of numbers, or as a frame without the columns to be dropped.

    `columns` are those of the frame of training, None if that was an array. With `reset` it is `X`
    that the estimator is trained on.
    """
    given = frame_columns(X)
    if columns is not None and given is not None:
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        return _without(X.set_axis(given, axis=1), as_names(estimator.drop))
    options = {"allow_nd": True, "ensure_all_finite": "allow-nan"}
    x = validate_data(estimator, X, reset=reset, **options)
    if columns is None:
        return x
    frame = import_module("pandas").DataFrame(x, columns=columns)
    return _without(frame, as_names(estimator.drop))


def as_names(columns: Any) -> tuple[str, ...]:
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


def checked_targets(x: Any, y: Any) -> Array:
    """`y` as one label for each row of `x`."""
    if y is None:
        raise ValueError("AUCClassifier requires y to be passed, but the target y is None.")
    y = column_or_1d(y, warn=True)
    assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    check_consistent_length(x, y)
    return np.asarray(y)


def two_classes(classes: Array) -> Array:
    """The classes, if they are two."""
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


def positives(y: Array, classes: Array) -> Array:
    """1 where `y` is the second class, 0 where it is the first."""
    unknown = np.setdiff1d(y, classes)
    if len(unknown):
        raise ValueError(
            f"y has {listed(unknown.tolist())}: expected the classes of training, "
            f"{listed(classes.tolist())}."
        )
    return np.asarray(y == classes[1], np.int64)


def read_rows(x: Any, labels: Array, **options: Any) -> Part:
    """Rows with their labels: beside an array, in a further column of a frame."""
    if isinstance(x, np.ndarray):
        return read_table(x, labels, nan="missing", **options)
    name = "target"
    while name in x.columns:
        name += "_"
    return read_table(x.assign(**{name: labels}), name, nan="missing", **options)


@dataclass
class Learner:
    """What `partial_fit` keeps: label counts, the optimizer's state, a random sample of rows."""

    seed: int
    counts: Tensor = field(default_factory=lambda: torch.zeros(2, 1, dtype=torch.int64))
    calls: int = 0
    optimizer: dict[str, Any] | None = None
    keys: Tensor = field(default_factory=lambda: torch.empty(0))  # the smallest are kept
    x: Tensor | None = None
    y: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))

    @property
    def ratio(self) -> float:
        """The share of positives so far, never 0 or 1."""
        return (float(self.counts[0]) + 0.5) / (float(self.counts.sum()) + 1)

    def learn(self, module: nn.Module, part: Part, recipe: Recipe) -> int:
        """One pass over the rows; returns the number of steps."""
        assert part.y is not None
        loss = MinMaxAUCLoss(mix=recipe.mix).eval()  # which does not count labels by itself
        opt = make_optimizer(module, loss, replace(recipe, average="none"))
        if self.optimizer is None:
            _start(loss, module, part)
        else:
            opt.load_state_dict(self.optimizer)
        loss.counts.copy_(self.counts)
        opt.begin_stage(recipe.lr)
        seed = self.seed + self.calls
        batches = Batches(part.x, part.y, recipe.batch_size, seed=seed)
        objective = loss.cross_entropy if recipe.warm_start == 1 else loss
        module.train()
        while batches.epoch == 0:
            x, y = next(batches)
            opt.zero_grad()
            objective(module(x), y).backward()
            opt.step()
        module.eval()
        steps, self.optimizer = opt.steps, opt.state_dict()
        opt.zero_grad()
        _apart(module)
        self._keep(part, seed)
        self.calls += 1
        return steps

    def _keep(self, part: Part, seed: int) -> None:
        """A random sample of all rows so far: those with the smallest of random keys."""
        assert part.y is not None
        size = 4 * as_rows(part.x).gather(torch.tensor([0])).numel()
        room = min(_KEPT, max(2 * _ENOUGH, _KEPT_BYTES // size))
        fresh = torch.rand(len(part.y), generator=torch.Generator().manual_seed(seed))
        few = fresh.argsort()[:room]
        x, y, keys = as_rows(part.x).gather(few), part.y[few], fresh[few]
        if self.x is not None:
            x, y = torch.cat([self.x, x]), torch.cat([self.y, y])
            keys = torch.cat([self.keys, keys])
        kept = keys.argsort()[:room]
        self.x, self.y, self.keys = x[kept], y[kept], keys[kept]

    def calibrated(self, module: nn.Module) -> Calibration | None:
        """The calibration by the sample; None while it has too few of a class."""
        labels = self.y.numpy()
        if min(labels.sum(), (~labels).sum()) < _ENOUGH:
            return None
        return calibrate(logits_of(module, self.x), labels)


@torch.no_grad()
def _start(loss: MinMaxAUCLoss, module: nn.Module, part: Part) -> None:
    """a, b and alpha from the mean scores of the classes that are there."""
    assert part.y is not None
    h, y = torch.from_numpy(logits_of(module, part.x)).sigmoid(), part.y
    for parameter, members in ((loss.a, h[y]), (loss.b, h[~y])):
        if len(members):
            parameter.fill_(float(members.mean()))
    loss.alpha.copy_(loss.b - loss.a)


def _apart(module: nn.Module) -> None:
    """Give each tensor memory of its own again: a copy of a view holds all that it is a view of."""
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data = tensor.data.clone()
