"""Settings by the names of their options: `steps` is in the table of the recipe, `drop` of data."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from codauc._internal.checks import UnknownArgumentError, shown
from codauc._internal.setting_types import Setting, declared
from codauc.runs.settings import Recipe, RunSettings

# The tables of config.toml and the classes that declare them; "run" is what is above the tables.
_CLASSES: dict[str, Any] = {each.name: each.default_factory for each in fields(RunSettings)}
TABLES = {name: kind for name, kind in _CLASSES.items() if isinstance(kind, type)}
TABLES |= {"recipe": Recipe, "run": RunSettings}


def settings_with_options() -> Iterator[tuple[str, Setting]]:
    """Every setting that has an option, with the name of its table."""
    for table, kind in TABLES.items():
        yield from ((table, each) for each in declared(kind) if each.option)


def settings_by_name(source: str, given: Mapping[str, Any]) -> RunSettings:
    """The settings of a run on `source`; names are those of options, without their dashes.

    >>> settings = settings_by_name("fraud.csv", {"target": "fraud", "model": "mlp", "seed": 3})
    >>> settings.data.target, settings.model.name, settings.seed
    ('fraud', 'mlp', 3)
    """
    places = {_name(each): (table, each.name) for table, each in settings_with_options()}
    del places["data"]  # which is the source
    tables: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
    for name, value in given.items():
        if name not in places:
            raise UnknownArgumentError(_unknown(name, list(places)))
        table, field = places[name]
        tables[table][field] = value
    settings = replace(RunSettings(), **tables.pop("run"))
    tables["data"]["source"] = source
    for table, values in tables.items():
        settings = settings.with_changes(table, **values)
    return settings


def _name(each: Setting) -> str:
    return each.option.lstrip("-").replace("-", "_").lower()


def _unknown(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    hint = f": did you mean {near[0]!r}?" if near else "."
    return (
        f"train() got an unknown setting {shown(name)}{hint} Settings have the names of the "
        "options of `codauc train`, see `codauc train --help-all`."
    )
