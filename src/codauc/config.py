"""What commands run, as frozen data; known without torch, so that help comes at once.

A run is data, a network, a recipe (how it is trained) and communication. Each is a table of
config.toml. `None` means that the recipe or the data decide; what they decided is written down.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from codauc.checks import choice, known_arguments, real, whole
from codauc.schedules import geometric

CONFIG = "config.toml"  # the name under which a run's directory has it
RECIPES = ("default", "paper", "bce")
OPTIMIZERS = ("adam", "sgd")
SCHEDULES = ("cosine", "constant")
CHOICES = ("steady", "best", "last")
WATCHES = ("validation", "test")
AVERAGES = ("window", "stage", "none")
PERIODS = ("theorem", "growing", "once")
NOT_FINITE = ("reduce", "stop")
STARTS = ("zero", "estimate")
_GROWING = 8  # the first stage's I, if it grows


@dataclass(frozen=True)
class DemoSettings:
    """What the demonstration runs; the defaults take about a minute on two cores."""

    workers: int = 4
    sync_every: tuple[int, ...] = (8, 64)
    lr: float = 0.5
    steps: int = 64
    stages: int = 3
    gamma: float = 500.0
    seed: int = 0
    out: Path = Path("runs/demo")

    @property
    def iterations(self) -> int:
        """Steps of each worker in one run."""
        return sum(stage.steps for stage in geometric(self.lr, self.steps, self.stages))


@dataclass(frozen=True)
class DataSettings:
    """Where the samples come from, which are positive, and how they are parted.

    `images` with a CSV as source is the directory of the files that its `file_column` names.
    `negative` is written by a run on images: the other classes that it met. With `own` the source
    may hold {rank}, the worker's number. `watch` is the set that a run looks at as it goes: with
    "test" none is held out for validation, and the last model is kept, not one that is chosen.
    """

    source: str = ""
    target: str | None = None
    positive: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()
    keep_negatives: float = 1.0
    test: str | None = None
    test_fraction: float = 0.2
    validation_fraction: float = 0.15
    watch: str = "validation"
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    nan: str = "error"
    silo: str | None = None
    skew: float | None = None
    own: bool = False
    images: str | None = None
    file_column: str | None = None
    image_size: int | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        _check_types(self)
        _tuples(self, "positive", "negative", "drop", "categories")
        _check_text("source", self.source)
        remedy = "it is the share of samples, such as 0.2"
        real("test_fraction", self.test_fraction, least=0, below=1, remedy=remedy)
        real("validation_fraction", self.validation_fraction, least=0, below=1, remedy=remedy)
        keep = real("keep_negatives", self.keep_negatives, above=0, remedy="use 1 to keep all")
        if keep > 1:
            raise ValueError(f"keep_negatives={keep:g}: expected at most 1, which keeps all.")
        choice("nan", self.nan, ("error", "missing"))
        choice("watch", self.watch, WATCHES)
        for name in ("image_size", "channels"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), least=1, remedy="leave it out for the default")

    @property
    def validation(self) -> float:
        """The share that is held out for validation."""
        return 0.0 if self.watch == "test" else self.validation_fraction


@dataclass(frozen=True)
class ModelSettings:
    """The network: a name of `codauc.models`, or an import path; "auto" fits it to the data."""

    name: str = "auto"
    arguments: dict[str, Any] = field(default_factory=dict)
    pretrained: str | None = None

    def __post_init__(self) -> None:
        _check_types(self)


@dataclass(frozen=True)
class RecipeSettings:
    """How a network is trained.

    `warm_start` is the share of all steps in which cross-entropy trains first. `balance` is the
    least share of either class in a batch, 0 for the data's own. `mix` is how much cross-entropy is
    added to the min-max objective after the warm start. `schedule` is how the step size
    falls within the run, and `select` what becomes of the evaluations: "steady" takes the latest
    one that is not worse than the best by more than its standard error, "best" the best, "last"
    the last. `average` is what is evaluated: the mean of the models since the last evaluation
    ("window"), a stage's last model ("none"), or, when it ends, the mean of its iterates ("stage").
    `start` is what a, b and alpha are at the beginning: 0, or the estimate for the first weights.
    """

    name: str = "default"
    optimizer: str | None = None
    lr: float | None = None
    dual_lr: float | None = None
    gamma: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    batch_size: int | None = None
    steps: int | None = None
    stages: int | None = None
    factor: float | None = None
    warm_start: float | None = None
    balance: float | None = None
    mix: float | None = None
    schedule: str | None = None
    average: str | None = None
    select: str | None = None
    evaluations: int | None = None
    dual_samples: int | None = None
    initial_bias: bool | None = None
    start: str | None = None

    def __post_init__(self) -> None:
        _check_types(self)
        choice("recipe", self.name, RECIPES)
        for name, options in _RECIPE_CHOICES.items():
            if getattr(self, name) is not None:
                choice(name, getattr(self, name), options)
        for name, (least, remedy) in _RECIPE_COUNTS.items():
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), least=least, remedy=remedy)
        for name, (limits, remedy) in _RECIPE_NUMBERS.items():
            if getattr(self, name) is not None:
                real(name, getattr(self, name), **limits, remedy=remedy)
        if self.warm_start is not None and self.warm_start > 1:
            raise ValueError(
                f"warm_start={self.warm_start:g}: expected at most 1, cross-entropy alone."
            )


@dataclass(frozen=True)
class Recipe(RecipeSettings):
    """A recipe in which everything is decided: the default's values, some of which data change."""

    optimizer: str = "adam"
    lr: float = 1e-3
    dual_lr: float = 0.1
    gamma: float = math.inf
    momentum: float = 0.9
    weight_decay: float = 1.0
    batch_size: int = 128
    steps: int = 700
    stages: int = 1
    factor: float = 1.0
    warm_start: float = 0.3
    balance: float = 0.0
    mix: float = 0.0
    schedule: str = "cosine"
    average: str = "window"
    select: str = "steady"
    evaluations: int = 25
    dual_samples: int = 1024
    initial_bias: bool = True
    start: str = "zero"


_RECIPE_CHOICES = {
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "select": CHOICES,
    "average": AVERAGES,
    "start": STARTS,
}
_RECIPE_COUNTS = {
    "batch_size": (1, "use for example 128"),
    "steps": (1, "it is the number of steps of the first stage"),
    "stages": (1, "use 1 for a single stage"),
    "evaluations": (1, "it is how often the validation set is looked at"),
    "dual_samples": (1, "alpha is estimated from samples"),
}
_RECIPE_NUMBERS: dict[str, tuple[dict[str, Any], str]] = {
    "lr": ({"above": 0}, "use a positive step size, such as 0.001"),
    "dual_lr": ({"above": 0}, "use for example 0.1"),
    "gamma": ({"above": 0, "infinite": True}, "use inf for no pull to the anchor"),
    "momentum": ({"least": 0, "below": 1}, "use 0 for none"),
    "weight_decay": ({"least": 0}, "use 0 for none"),
    "factor": ({"least": 1}, "use 1 for equal stages, 3 as the paper does"),
    "warm_start": ({"least": 0}, "it is a share of the steps, 0 for none"),
    "mix": ({"least": 0}, "use 0 for the min-max objective alone"),
    "balance": ({"least": 0, "below": 0.51}, "it is the least share of a class in a batch"),
}


@dataclass(frozen=True)
class CommunicationSettings:
    """How many workers there are, and how often and how they average.

    `sync_every` is a number of steps I, "theorem" (Theorem 1's), "once" (a stage's end), or
    "growing:I": I 3^(s-1) in stage s; "growing" begins with 8. `averages` is "weights", or
    "gradients" for data parallel training: a message at every step.
    `timeout` is how long a worker waits for another; unless given, by how long rounds take.
    """

    workers: int = 1
    simulate: bool = False
    sync_every: int | str | None = None
    compress: str | None = None
    delay: int = 0
    timeout: float | None = None
    averages: str = "weights"

    def __post_init__(self) -> None:
        _check_types(self)
        whole("workers", self.workers, least=1, remedy="it is the number K of workers")
        every = self.sync_every
        if isinstance(every, str):
            choice("sync_every", "growing" if first_period(every) else every, PERIODS)
        elif every is not None:
            whole("sync_every", every, least=1, remedy="use 1 to average after every step")
        whole("delay", self.delay, least=0, remedy="use 0 to wait for every round")
        choice("averages", self.averages, ("weights", "gradients"))
        if self.timeout is not None:
            real("timeout", self.timeout, above=0, remedy="it is in seconds")


@dataclass(frozen=True)
class SafetySettings:
    """How a run is saved, and what it does about faults.

    Checkpoints are written every `checkpoint_minutes`, or `checkpoint_rounds`, whichever is first;
    0 and None for never. `keep` of them are kept. Where a worker's numbers are not finite,
    `not_finite` says what to do: "reduce" goes back to the last look and halves the step size,
    "stop" ends the run.
    """

    checkpoint_minutes: float = 2.0
    checkpoint_rounds: int | None = None
    keep: int = 2
    max_restarts: int = 0
    not_finite: str = "reduce"

    def __post_init__(self) -> None:
        _check_types(self)
        remedy = "use 0 for no checkpoints by time"
        real("checkpoint_minutes", self.checkpoint_minutes, least=0, remedy=remedy)
        if self.checkpoint_rounds is not None:
            whole("checkpoint_rounds", self.checkpoint_rounds, least=1, remedy="leave it out")
        whole("keep", self.keep, least=1, remedy="use 2, so that one is left if one is damaged")
        whole("max_restarts", self.max_restarts, least=0, remedy="use 0 to end at the first fault")
        choice("not_finite", self.not_finite, NOT_FINITE)


@dataclass(frozen=True)
class RunSettings:
    """Everything that is needed to run it again."""

    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    recipe: RecipeSettings = field(default_factory=RecipeSettings)
    communication: CommunicationSettings = field(default_factory=CommunicationSettings)
    safety: SafetySettings = field(default_factory=SafetySettings)
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        whole("seed", self.seed, least=0, remedy="any whole number gives a run of its own")
        if not isinstance(self.device, str):
            raise ValueError(f"device={self.device!r}: expected a text such as cpu or cuda.")

    def with_changes(self, table: str, **values: Any) -> RunSettings:
        """The same with other values in one of its tables.

        >>> RunSettings().with_changes("recipe", lr=0.1).recipe.lr
        0.1
        """
        return replace(self, **{table: replace(getattr(self, table), **values)})

    def to_toml(self) -> str:
        """As the text of a config.toml."""
        tables = {name: part for name, part in asdict(self).items() if isinstance(part, dict)}
        lines = [f"seed = {self.seed}", f"device = {_value(self.device)}", ""]
        for name, part in tables.items():
            lines += [f"[{name}]", *_entries(part), ""]
        return "\n".join(lines)

    @staticmethod
    def from_toml(text: str, path: str = "the configuration") -> RunSettings:
        """What `to_toml` wrote, or a person; unknown names are errors."""
        try:
            plain = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path} is not TOML ({error}): correct it.") from error
        return RunSettings.from_dict(plain, path)

    @staticmethod
    def from_dict(plain: Mapping[str, Any], path: str = "the configuration") -> RunSettings:
        """From nested names and values."""
        known = {f.name: f for f in fields(RunSettings)}
        values: dict[str, Any] = {}
        for name, value in plain.items():
            choice(f"{path}: the name", name, tuple(known))
            values[name] = _table(path, name, value) if name in _TABLES else value
        return RunSettings(**values)


_TABLES = {
    "data": DataSettings,
    "model": ModelSettings,
    "recipe": RecipeSettings,
    "communication": CommunicationSettings,
    "safety": SafetySettings,
}


def _table(path: str, name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{path}: {name} is {value!r}: expected a table, [{name}].")
    kind = _TABLES[name]
    for key in value:
        choice(f"{path}: the name in [{name}]", key, tuple(f.name for f in fields(kind)))
    return known_arguments(kind)(**value)


_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (Integral,),
    "float": (Real,),
    "dict[str, Any]": (dict,),
    "tuple[str, ...]": (tuple, list, str, int),
    "None": (type(None),),
}


def first_period(text: str) -> int | None:
    """The first stage's I where it grows from stage to stage; None where it does not.

    >>> first_period("growing"), first_period("growing:64"), first_period("once")
    (8, 64, None)
    """
    name, _, first = text.partition(":")
    if name != "growing":
        return None
    if not first:
        return _GROWING
    if not first.isascii() or not first.isdigit() or int(first) < 1:
        raise ValueError(
            f"sync_every={text!r}: expected growing:I with a number of steps, such as growing:8."
        )
    return int(first)


def _check_types(settings: Any) -> None:
    """Raise where a value is of another kind than its field: files may hold anything."""
    for each in fields(settings):
        value, names = getattr(settings, each.name), str(each.type).split(" | ")
        kinds = tuple(kind for name in names for kind in _KINDS[name])
        doubtful = isinstance(value, bool) and not {"bool", "tuple[str, ...]"} & set(names)
        if not isinstance(value, kinds) or doubtful:
            raise ValueError(
                f"{each.name}={value!r}: expected {' or '.join(n for n in names if n != 'None')}."
            )
        if isinstance(value, Real) and not isinstance(value, bool | int | float):  # numpy's
            plain = int(value) if isinstance(value, Integral) else float(value)
            object.__setattr__(settings, each.name, plain)


def _check_text(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name}={text!r} is not of letters that UTF-8 has ({error.reason}): rename it."
        ) from None


def _tuples(settings: Any, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        parts = (value,) if isinstance(value, str | int | bool) else tuple(value)
        object.__setattr__(settings, name, tuple(str(part) for part in parts))


def _entries(part: Mapping[str, Any]) -> list[str]:
    return [f"{_key(name)} = {_value(value)}" for name, value in part.items() if value is not None]


def _key(name: str) -> str:
    plain = name.replace("_", "").replace("-", "")
    return name if plain.isascii() and plain.isalnum() else _value(str(name))


def _value(value: Any) -> str:
    """A value as TOML has it.

    >>> _value(["a", 1, True, math.inf, {"b": 2.0}])
    '["a", 1, true, inf, {b = 2.0}]'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{"".join(map(_escaped, value))}"'
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return "inf" if math.isinf(value) else repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(_entries(value)) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    raise ValueError(f"{value!r} cannot be written to config.toml: expected plain values.")


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"
