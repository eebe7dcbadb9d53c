"""What commands run, as frozen data; known without torch, so that help comes at once.

A run is data, a network, a recipe (how it is trained) and communication. Each is a table of
config.toml. `None` means that the recipe or the data decide; what they decided is written down.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import tomli_w

from codauc._internal.checks import choice, known_arguments, shown
from codauc._internal.imports import is_import_path
from codauc._internal.setting_types import check, setting
from codauc.data.data_settings import DataSettings
from codauc.runs.recipe_settings import Recipe as Recipe
from codauc.runs.recipe_settings import RecipeSettings as RecipeSettings

CONFIG = "config.toml"  # its name in the directory of a run
PERIODS = ("theorem", "growing", "once")
_GROWING = 8  # the first stage's I, if it grows


# fmt: off

@dataclass(frozen=True)
class ModelSettings:
    """The network: a name of `codauc.models`, or an import path; "auto" fits it to the data.

    Made in Python, an import path is the program's own choice. From a file it is refused unless the
    file is trusted; see `RunSettings.from_toml`.
    """

    name: str = setting(
        "auto",
        "convnet, mlp, patchnet, resnet18, resnet20, resnet50, tabular, or package.module:Class "
        "({default}: by the data)", option="--model", metavar="NAME", common=True)
    arguments: dict[str, Any] = setting(
        {}, "arguments of the network, such as widths=[64,64],dropout=0.1",
        option="--model-arguments", metavar="NAME=VALUE[,...]")
    pretrained: str | None = setting(None, "file of weights to begin with", metavar="FILE")

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class CommunicationSettings:
    """How many workers there are, and how often and how they average.

    `sync_every` is a number of steps I, "theorem" (Theorem 1's), "once" (a stage's end), or
    "growing:I": I 3^(s-1) in stage s; "growing" begins with 8. `averages` is "weights", or
    "gradients" for data parallel training: a message at every step.
    """

    workers: int = setting(
        1, "workers, as processes of this machine; torchrun starts its own ({default})",
        metavar="K", common=True, least=1, remedy="it is the number K of workers")
    simulate: bool = setting(
        False, "workers simulated in this process, one after the other", metavar="K", common=True)
    sync_every: int | str | None = setting(
        None, "steps between two communication rounds, or theorem, growing[:I], once (32)",
        metavar="I", common=True, least=1, remedy="use 1 to average after every step")
    compress: str | None = setting(
        None, "send fewer bytes per round: bfloat16, or 8-bit integers", metavar="bf16|int8")
    delay: int = setting(
        0, "hide each round behind this many further steps ({default})", metavar="D", least=0,
        remedy="use 0 to wait for every round")
    timeout: float | None = setting(
        None, "longest wait for another worker (ten times the duration of rounds)",
        metavar="SECONDS", above=0, remedy="it is in seconds")
    averages: str = setting("weights", choices=("weights", "gradients"))

    def __post_init__(self) -> None:
        check(self)
        every = self.sync_every
        if isinstance(every, str):
            choice("sync_every", "growing" if first_period(every) else every, PERIODS)


@dataclass(frozen=True)
class SafetySettings:
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

    def __post_init__(self) -> None:
        check(self)


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
class RunSettings:
    """Everything that is needed to run it again."""

    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    recipe: RecipeSettings = field(default_factory=RecipeSettings)
    communication: CommunicationSettings = field(default_factory=CommunicationSettings)
    safety: SafetySettings = field(default_factory=SafetySettings)
    seed: int = setting(
        0, "seed of splits, shards, weights and batches ({default})", metavar="N", common=True,
        least=0, remedy="any whole number gives another run")  # fmt: skip
    device: str = setting(
        "auto", "cpu, cuda, mps, ... ({default}: cuda or mps if available, else cpu)",
        metavar="DEVICE", common=True)  # fmt: skip

    def __post_init__(self) -> None:
        check(self)

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
        return "".join(map(_escaped, text))

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


_TABLES = {
    "data": DataSettings,
    "model": ModelSettings,
    "recipe": RecipeSettings,
    "communication": CommunicationSettings,
    "safety": SafetySettings,
}


def _table(name: str, value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {shown(value)}: expected a table, [{name}].")
    kind = _TABLES[name]
    for key in value:
        choice(f"the name in [{name}]", key, tuple(each.name for each in fields(kind)))
    return known_arguments(kind)(**value)


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


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no null: what is None is left out."""
    return {
        name: _without_none(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value is not None
    }


def _escaped(character: str) -> str:
    """Control characters, which tomli-w leaves in texts, would act on the terminal of a reader."""
    if character.isprintable() or character == "\n":
        return character
    return f"\\U{ord(character):08x}"
