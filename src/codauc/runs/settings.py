"""What commands run, as frozen data; known without torch, so that help comes at once.

A run is data, a network, a recipe (how it is trained) and communication. Each is a table of
config.toml. `None` means that the recipe or the data decide; what they decided is written down.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

import tomli_w

from codauc._internal.checks import choice, known_arguments, shown
from codauc._internal.imports import is_import_path
from codauc._internal.setting_types import check, setting
from codauc._internal.sync_periods import named_period, outer_step
from codauc._internal.threshold_rules import threshold_rule
from codauc.data.data_settings import DataSettings

CONFIG = "config.toml"  # its name in the directory of a run
RECIPES = ("default", "paper", "bce")


T = TypeVar("T")


# fmt: off

class _Checked:
    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class ModelSettings(_Checked):
    """The network: a name of `codauc.models`, or an import path; "auto" fits it to the data.

    Made in Python, an import path is the program's own choice. From a file it is refused unless the
    file is trusted; see `RunSettings.from_toml`.
    """

    name: str = setting(
        "auto",
        "convnet, mlp, patchnet, resnet8, resnet18, resnet20, resnet50, tabular, tabular-ensemble, "
        "or package.module:Class "
        "({default}: by the data)", option="--model", metavar="NAME", common=True)
    arguments: dict[str, Any] = setting(
        {}, "arguments of the network, such as widths=[64,64],dropout=0.1",
        option="--model-arguments", metavar="NAME=VALUE[,...]")
    pretrained: str | None = setting(None, "file of weights to begin with", metavar="FILE")


@dataclass(frozen=True)
class Recipe:
    """A recipe in which everything is decided: the default's values, some of which data change.

    `min_max_scale` multiplies the step size after the warm start: less than 1 where positives are
    few. `average` is what is evaluated: the mean of the models since the last evaluation
    ("window"), a stage's last model ("none"), or, when it ends, the mean of its iterates ("stage").
    `select` is the model that is kept: "steady" takes the latest one that is not worse than the
    best by more than its standard error, "blend" the best, blended with logistic regression, "best"
    the best, "last" the last. With `linear_start` the linear models of a table's network begin as
    logistic regression, which is the first model evaluated. With `crossed` no row is held out for
    validation: each is held out of one member of the network. With "steady" and "blend" the run
    ends when the models of `patience` evaluations in succession were not kept.
    """

    name: str = setting(
        "default", "default; paper: the paper's own settings; bce: cross-entropy alone",
        option="--recipe", choices=RECIPES, common=True)
    optimizer: str = setting(
        "adam", "adaptive or plain gradient steps ({default})", choices=("adam", "sgd"))
    lr: float = setting(
        3e-3, "step size of the first stage ({default}; sgd: 0.1)",
        metavar="ETA", above=0, remedy="use a positive step size, such as 0.001")
    dual_lr: float = setting(
        0.1,
        "with adam: share of the way to their optimum that a, b and alpha move per step "
        "({default})", metavar="ETA", above=0, remedy="use for example 0.1")
    gamma: float = setting(
        math.inf,
        "the pull to the first weights of the stage is 1/gamma ({default}: none; paper: 500)",
        metavar="GAMMA", above=0, below=None, remedy="use inf for no pull to the anchor")
    momentum: float = setting(
        0.9, "momentum of the gradients of the weights ({default})", metavar="BETA", least=0,
        below=1, remedy="use 0 for none")
    weight_decay: float = setting(
        1.0, "decoupled weight decay (tables: at most {default}; images: 0.5; sgd: 0)",
        metavar="LAMBDA", least=0, remedy="use 0 for none")
    batch_size: int = setting(
        128, "samples per step of each worker (by the data)", metavar="N", least=1,
        remedy="use for example 128")
    steps: int = setting(
        700, "steps of the first stage, after the warm start (by the data)", metavar="T0",
        common=True, least=1, remedy="it is the number of steps of the first stage")
    stages: int = setting(
        1, "stages after the warm start ({default}; paper: 3)", metavar="S", least=1,
        remedy="use 1 for a single stage")
    factor: float = setting(
        1.0, "each stage is this many times as long as the one before ({default}; paper: 3)",
        metavar="F", least=1, remedy="use 1 for equal stages, 3 as the paper does")
    warm_start: float = setting(
        0.3,
        "share of all steps that train with cross-entropy first ({default}; images: 0.7; 0: none)",
        metavar="SHARE", least=0, remedy="it is a share of the steps, 0 for none")
    balance: float = setting(
        0.0, "least share of either class in a batch ({default}: as in the data)", metavar="SHARE",
        least=0, below=0.51, remedy="it is the least share of a class in a batch")
    mix: float = setting(
        0.0,
        "weight of cross-entropy added to the min-max objective (positives/1000, at most 1; "
        "paper: 0)", metavar="LAMBDA", least=0, remedy="use 0 for the min-max objective alone")
    min_max_scale: float = setting(
        1.0, above=0, remedy="leave it out for one by the number of positives")
    augment: str = setting(
        "none", "random change of the images of a batch: shift moves them by up to a twelfth of "
        "their side, flip also mirrors half of them (images: shift; paper: none)",
        choices=("none", "shift", "flip"))
    schedule: str = setting(
        "cosine", "how the step size falls during the run ({default})",
        choices=("cosine", "constant"))
    average: str = setting(
        "window", "average of models that is evaluated ({default}; images: none; paper: stage)",
        choices=("window", "stage", "none"))
    select: str = setting(
        "steady", "which evaluated model is kept ({default}; tables of few positives: blend)",
        choices=("steady", "blend", "best", "last"))
    evaluations: int = setting(
        25, "evaluations on the validation set during the run ({default})", metavar="N", least=1,
        remedy="it is the number of evaluations on the validation set")
    dual_samples: int = setting(1024, least=1, remedy="alpha is estimated from samples")
    initial_bias: bool = True
    linear_start: bool = True
    crossed: bool = False
    patience: int = setting(8, least=1, remedy="it is a number of evaluations")
    time_budget: float = setting(
        math.inf, "seconds that the training may take: fewer steps if needed ({default})",
        metavar="SECONDS", above=0, below=None, remedy="use inf for no limit")
    start: str = setting(
        "zero",
        "first values of a, b and alpha: 0 as in the paper, or estimated for the first weights "
        "({default})", choices=("zero", "estimate"))

    def __post_init__(self) -> None:
        check(self)
        if self.warm_start is not None and self.warm_start > 1:
            raise ValueError(
                f"warm_start={self.warm_start:g}: expected at most 1, cross-entropy alone."
            )


def _left_open(kind: type[T]) -> type[T]:
    """Let each setting of a recipe but its name be None, which is then the default."""
    others = [each for each in fields(Recipe) if each.name != "name"]
    kind.__annotations__ = {each.name: f"{each.type} | None" for each in others}
    for each in others:
        setattr(kind, each.name, field(default=None, metadata=each.metadata))
    return dataclass(frozen=True)(kind)


@_left_open
class RecipeSettings(Recipe):
    """What is requested of a recipe; None where it is left to the recipe and the data."""


@dataclass(frozen=True)
class CommunicationSettings:
    """How many workers there are, and how often and how they average.

    `sync_every` is a number of steps I, "theorem" (Theorem 1's), "once" (a stage's end),
    "growing:I": I 3^(s-1) in stage s, "qsr:I": I at the peak of the step size, then as the inverse
    of its square, or "auto": by measured times and drift. `outer` is the step size and the
    momentum of Nesterov's steps along the averaged change of the weights. `averages` is "weights",
    or "gradients" for data parallel training: a message at every step. `correct`, `worker_weight`,
    `present`, `dual` and `norm` are for workers whose data differ; see `codauc.CoDA`.
    """

    workers: int | None = setting(
        None, "workers, as processes; torchrun starts its own (1; with --silo one for each site, "
        "simulated)", metavar="K", common=True, least=1, remedy="it is the number K of workers")
    simulate: bool = setting(
        False, "workers simulated in this process, one after the other", metavar="K", common=True)
    sync_every: int | str | None = setting(
        None, "steps between two communication rounds, or theorem, growing[:I], once, qsr[:I], "
        "auto (32; 8 where labels differ between workers)",
        metavar="I", common=True, least=1, remedy="use 1 to average after every step")
    compress: str | None = setting(
        None, "send fewer bytes per round: weights and moments in 16, 8, 4 or 2 bits",
        metavar="bf16|int8|int4|int2", choices=("bf16", "int8", "int4", "int2"))
    delay: int = setting(
        0, "hide each round behind this many further steps ({default})", metavar="D", least=0,
        remedy="use 0 to wait for every round")
    outer: str | None = setting(
        None, "outer step of each round on the averaged change of the weights, such as 0.7,0.9 "
        "(none)", metavar="LR,MOMENTUM")
    correct: str = setting(
        "auto", "keep workers whose data differ in one direction, by control variates: scaffold, "
        "none, or auto: where labels differ between workers ({default})",
        choices=("auto", "scaffold", "none"))
    worker_weight: str = setting(
        "auto", "whether workers count alike (equal), by their samples, or auto: by samples where "
        "labels differ between workers ({default})", choices=("auto", "equal", "samples"))
    present: float | None = setting(
        None, "share of the workers that take part in each period between two rounds, drawn by the "
        "seed (all)", metavar="SHARE", above=0, below=None, remedy="use for example 0.7")
    dual: str = setting(
        "auto", "estimate of alpha: the mean of the workers', pooled, or auto: pooled where labels "
        "differ between workers ({default})", choices=("auto", "mean", "pooled"))
    norm: str = setting(
        "mean", "BatchNorm's statistics: the mean of the workers', or local, each worker's own "
        "({default})", choices=("mean", "local"))
    timeout: float | None = setting(
        None, "longest wait for another worker (ten times the duration of rounds)",
        metavar="SECONDS", above=0, remedy="it is in seconds")
    averages: str = setting("weights", choices=("weights", "gradients"))

    @property
    def size(self) -> int:
        """How many workers there are: one where it was left open."""
        return 1 if self.workers is None else self.workers

    def __post_init__(self) -> None:
        check(self)
        every = self.sync_every
        if isinstance(every, str):
            named_period(every)
        if self.present is not None and self.present > 1:
            raise ValueError(f"present={self.present:g}: expected at most 1, which is all workers.")
        if self.outer is not None:
            outer_step(self.outer)
        for name in ("outer", "correct", "worker_weight", "present", "norm"):
            value = getattr(self, name)
            plain = value in (None, "auto", "none", "equal", "mean")
            if not plain and self.averages == "gradients":
                raise ValueError(
                    f"{name}={value!r} where gradients are averaged: expected averages of the "
                    "weights, which it is for; leave it out."
                )


@dataclass(frozen=True)
class SafetySettings(_Checked):
    """How a run is saved, and what it does about faults.

    Checkpoints are written every `checkpoint_minutes`, or `checkpoint_rounds`, whichever is first.
    Where a worker's numbers are not finite, `not_finite` says what to do: "reduce" goes back to the
    last evaluation and halves the step size, "stop" ends the run.
    """

    checkpoint_minutes: float = setting(
        2.0, "minutes between two checkpoints ({default}; 0: none)", metavar="M", least=0,
        remedy="use 0 for no checkpoints by time")
    checkpoint_rounds: int | None = setting(
        None, "rounds between two checkpoints (with one worker: steps)", metavar="N", least=1,
        remedy="leave it out")
    keep: int = setting(
        2, "number of checkpoints to keep ({default})", option="--checkpoints", metavar="N",
        least=1, remedy="use 2, so that one is left if one is damaged")
    max_restarts: int = setting(
        0, "how often to restart all workers after one is lost ({default})", metavar="N", least=0,
        remedy="use 0 to end at the first fault")
    not_finite: str = setting(
        "reduce", "after NaN or infinity: halve the step size, or stop ({default})",
        choices=("reduce", "stop"))


# fmt: on


class ConfigError(ValueError):
    """A settings file is wrong; the message names the file, and its settings as written there."""


class ImportPathError(ConfigError):
    """A settings file names a network by an import path, and the file is not trusted."""

    def __init__(self, file: str, name: str) -> None:
        super().__init__(
            f"{file} names the network {shown(name)}, an import path, and importing it runs its "
            "code: expected a name of codauc.models; pass trust=True if you trust the file."
        )
        self.name = name


@dataclass(frozen=True)
class RunSettings(_Checked):
    """Everything that is needed to run it again."""

    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    recipe: Recipe = field(default_factory=RecipeSettings)
    communication: CommunicationSettings = field(default_factory=CommunicationSettings)
    safety: SafetySettings = field(default_factory=SafetySettings)
    seed: int = setting(
        0, "seed of splits, shards, weights and batches ({default})", metavar="N", common=True,
        least=0, remedy="any whole number gives another run")  # fmt: skip
    device: str = setting(
        "auto", "cpu, cuda, mps, ... ({default}: cuda or mps if available, else cpu)",
        metavar="DEVICE", common=True)  # fmt: skip
    threshold: str | None = setting(
        None,
        "from which score on a row counts as positive, chosen on the validation set: recall=0.9, "
        "precision=0.5, fpr=0.01, f1, or cost=FP:FN", metavar="RULE")  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None:
            threshold_rule(self.threshold)

    def with_changes(self, table: str, **values: Any) -> RunSettings:
        """The same with other values in one of its tables.

        >>> RunSettings().with_changes("recipe", lr=0.1).recipe.lr
        0.1
        """
        return replace(self, **{table: replace(getattr(self, table), **values)})

    def to_toml(self) -> str:
        """As the text of a config.toml."""
        try:
            text = tomli_w.dumps(_without_none(asdict(self)))
        except TypeError as error:
            raise ValueError(f"{error}: expected plain values for {CONFIG}.") from error
        # control characters, which tomli-w leaves in texts, would act on the terminal of a reader
        shown = (c if c.isprintable() or c == "\n" else f"\\U{ord(c):08x}" for c in text)
        return "".join(shown)

    @staticmethod
    def from_toml(
        text: str, path: str = "the configuration", *, trust: bool = False
    ) -> RunSettings:
        """What `to_toml` wrote, or a person; unknown names are errors.

        Settings from a file run no code: an import path in them is refused, unless `trust` says
        that whoever wrote them may choose what is imported.
        """
        try:
            plain = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(f"{path} is not TOML ({error}): correct it.") from error
        return RunSettings.from_dict(plain, path, trust=trust)

    @staticmethod
    def from_dict(
        plain: Mapping[str, Any], path: str = "the configuration", *, trust: bool = False
    ) -> RunSettings:
        """From nested names and values; `trust` is as for `from_toml`."""
        try:
            choices = tuple(each.name for each in fields(RunSettings))
            for name in plain:
                choice("the name", name, choices)
            tables = {name: _table(name, plain[name]) for name in _TABLES if name in plain}
            settings = RunSettings(**{**plain, **tables})
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from error
        if is_import_path(settings.model.name) and not trust:
            raise ImportPathError(path, settings.model.name)
        return settings


_TABLES: dict[str, Any] = {
    each.name: each.default_factory
    for each in fields(RunSettings)
    if each.default_factory is not MISSING
}


def _table(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {shown(value)}: expected a table, [{name}].")
    kind = _TABLES[name]
    for key in value:
        choice(f"the name in [{name}]", key, tuple(each.name for each in fields(kind)))
    return known_arguments(kind)(**value)


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no null: what is None is left out."""
    return {
        name: _without_none(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value is not None
    }
