"""What the columns of a table are for."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codauc._internal.checks import choice, listed, real, whole
from codauc.data.row_sites import RowSites
from codauc.data.splits import Split
from codauc.data.tables.columnar_files import TableSource
from codauc.data.tables.date_parts import PARTS
from codauc.data.tables.encoder import Columns, DatePart, Encoder
from codauc.data.tables.locale import Locale

_TIMES = ("time", "duration")  # kinds that are microseconds

LARGE = 1 << 28  # bytes from which on a worker keeps rows on disk and reads only its own blocks

Progress = Callable[[int], object]  # called with the number of rows read so far


@dataclass(frozen=True)
class TableRequest:
    """How a source is read, shared out and split; see `read_table`."""

    target: Any = None
    positive: Any = None
    encoder: Encoder | None = None
    categories: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    keep_negatives: float = 1.0
    silo: str | None = None
    test_site: str | None = None
    trained: RowSites | None = None  # the sites of training, where other rows of theirs are read
    least_samples: int | None = None  # behind whatever leaves a worker
    skew: float | None = None
    own: bool = False
    scale: str = "all"
    split: Split | None = None
    seed: int = 0
    nan: str = "error"
    unlabelled: str = "error"
    decimal: str | None = None
    dayfirst: bool | None = None
    na_values: tuple[str, ...] = ()
    encoding: str | None = None
    memory: int = LARGE
    folder: Path | None = None
    progress: Progress | None = None
    weight: Any = None
    examine: bool = False  # whether to look for rows that belong together

    def __post_init__(self) -> None:
        whole("seed", self.seed, least=0, remedy="use 0 if any seed will do")
        remedy = "use 1 to keep all negatives"
        if real("keep_negatives", self.keep_negatives, above=0, remedy=remedy) > 1:
            raise ValueError(
                f"keep_negatives={self.keep_negatives!r}: expected at most 1, which keeps all."
            )
        ways = {"silo": self.silo, "skew": self.skew, "own": self.own or None}
        given = [f"{name}={value!r}" for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)}: expected at most one way to share out the rows."
            )
        if self.encoder is None and self.target is None:
            raise ValueError("target is missing: expected the name of the column of labels.")
        for name in ("categories", "drop", "na_values"):
            value = getattr(self, name)
            if isinstance(value, str) or value is None:
                what = "texts" if name == "na_values" else "columns"
                raise ValueError(f"{name}={value!r}: expected a list of {what}; write [{value!r}].")
            object.__setattr__(self, name, tuple(value))
        choice("nan", self.nan, ("error", "missing"))
        choice("unlabelled", self.unlabelled, ("error", "drop"))
        if self.decimal is not None:
            choice("decimal", self.decimal, (".", ","))
        whole("memory", self.memory, least=0, remedy="it is in bytes")

    @property
    def locale(self) -> Locale:
        """How values are written in a CSV, as far as it is asked for."""
        return Locale(self.decimal, self.dayfirst, self.na_values, self.encoding)

    @property
    def need_labels(self) -> bool:
        """Whether the labels of all rows must be known before a row is chosen."""
        asked = (self.skew, self.split, self.test_site)
        return self.keep_negatives < 1 or any(each is not None for each in asked)

    @property
    def row_columns(self) -> list[str]:
        """Columns that choose or weigh rows, read as they are: silo, group, time, weight."""
        by = None if self.split is None else self.split.by
        return [name for name in (self.silo, by, self.weight) if isinstance(name, str)]

    @property
    def no_inputs(self) -> list[str]:
        """Those of them that are no inputs."""
        time = None if self.split is None else self.split.time
        return [name for name in self.row_columns if not isinstance(time, str) or name != time]


def columns_of(table: TableSource, options: TableRequest) -> Columns:
    """Which columns are numbers, categories, the target and none of these."""
    kinds, path, encoder, target = table.kinds, table.path, options.encoder, options.target
    named = [*options.drop, *options.categories, *options.row_columns]
    for name in [*named, *([target] if encoder is None else [])]:
        if name not in kinds:
            raise ValueError(no_column(path, str(name), list(kinds)))
    for name in options.categories:
        if kinds[name] in _TIMES:
            raise ValueError(
                f"{path}, column {name!r} holds dates: expected numbers or texts for a category; "
                "write them as texts, or take them as the numbers they are."
            )
    out = {*options.drop, target, *options.no_inputs}
    if encoder is not None:
        out |= {*encoder.dropped, encoder.target.name}
    used = {name: kind for name, kind in kinds.items() if name not in out}
    known = used if encoder is None else encoder.kinds()
    extra = tuple(name for name in used if name not in known)
    used = {name: kind for name, kind in used.items() if name in known}
    if used or encoder is None:
        _usable(path, used, out)
    texts = _texts(used, options)
    numbers = tuple(name for name in used if name not in texts)
    dropped = tuple(name for name in kinds if name in out and name != target)
    columns = Columns(
        numbers,
        tuple(texts),
        target if target in kinds else None,
        dropped,
        numeric=frozenset(name for name in texts if _is_numeric(name, options)),
        times=frozenset(name for name in numbers if kinds[name] in _TIMES),
        open=frozenset(name for name in used if kinds[name] == "null"),
        extra=extra,
        parts=tuple(
            DatePart(name, part) for name in numbers if kinds[name] == "time" for part in PARTS
        ),
    )
    return columns if encoder is None else same_columns(path, encoder, columns)


def _usable(path: str, used: dict[str, str], out: set[Any]) -> None:
    if "" in used:
        raise ValueError(
            f"{path} has a column without a name: expected a name for each; if it is a frame's row "
            "number, save it with index=False."
        )
    for name, kind in used.items():
        if kind not in ("number", *_TIMES, "category", "null"):
            raise ValueError(
                f"{path}, column {name!r} holds {kind}: expected numbers or texts; leave it out "
                f"with drop=[{name!r}]."
            )
    if not used:
        names = ", ".join(repr(name) for name in out if name is not None)
        raise ValueError(f"{path} has no columns beside {names}: expected some to learn from.")


def _texts(used: dict[str, str], options: TableRequest) -> list[str]:
    """The columns of texts: by their type, by name, or as in training where the type is open."""
    texts = {name for name, kind in used.items() if kind == "category"} | {*options.categories}
    for category in options.encoder.categories if options.encoder is not None else ():
        if category.numeric or used.get(category.name) == "null":
            texts.add(category.name)
    return [name for name in used if name in texts]


def _is_numeric(name: str, options: TableRequest) -> bool:
    """Whether a column of texts is one of numbers, now or in training."""
    if options.encoder is None:
        return name in options.categories
    return any(c.numeric for c in options.encoder.categories if c.name == name)


def same_columns(
    path: str, encoder: Encoder, columns: Columns, shape: tuple[int, ...] = ()
) -> Columns:
    """The columns in the encoder's order, if they are its columns, whatever else there is."""
    known = encoder.kinds()
    here = {name: "time" if name in columns.times else "number" for name in columns.numbers}
    here |= dict.fromkeys(columns.categories, "category")
    missing = [name for name in known if name not in here]
    new = [*columns.extra, *(name for name in here if name not in known)]
    if missing or len(new) > len(columns.extra):
        differing = {"lacks": missing, "has also": new}
        parts = [f"{what} {listed(names, most=50)}" for what, names in differing.items() if names]
        raise ValueError(f"{path} {' and '.join(parts)}: expected the columns of training.")
    for name, kind in known.items():
        if here[name] != kind and name not in columns.open:
            raise ValueError(
                f"{path}, column {name!r} is a {here[name]}: expected a {kind} as in training."
            )
    if tuple(encoder.shape) != shape:
        raise ValueError(
            f"{path} has images of {list(shape)} pixels: expected {list(encoder.shape)} as in "
            "training."
        )
    return encoder.chosen(columns)


def no_column(path: str, name: str, names: Sequence[str]) -> str:
    """The message for a column that is not there, with the nearest that is."""
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {listed(names)}."
    return f"{path} has no column {name!r}: {hint}"
