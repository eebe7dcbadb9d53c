"""Settings as options, typed options as settings, and messages that name options."""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from codauc._internal.files import read_text
from codauc._internal.setting_types import Setting
from codauc._internal.sync_periods import PERIODS, named_period
from codauc.runs.named_settings import TABLES, settings_with_options
from codauc.runs.settings import CONFIG, RecipeSettings, RunSettings


def add_setting(group: Any, each: Setting, dest: str, *, hidden: bool = False) -> None:
    """Add the option of a setting, parsed as `dest`; one that is not typed is not among the parsed.

    A `hidden` option is not in the help.
    """
    known: dict[str, Any] = {
        "default": argparse.SUPPRESS,
        "help": argparse.SUPPRESS if hidden else each.text.replace("%", "%%"),
    }
    if not each.option.startswith("-"):
        group.add_argument(dest, metavar=each.option, nargs="?", **known)
        return
    if each.kind == "bool" and each.metavar is None:
        both = each.default is None  # it may be said, denied, or left open
        known["action"] = argparse.BooleanOptionalAction if both else "store_true"
    else:
        known |= {"type": _READERS[each.kind], "metavar": each.metavar}
        known["action"] = _Once
    if each.kind == "tuple[int, ...]":
        known["nargs"] = "+"
    group.add_argument(each.option, dest=dest, **known)


class _Once(argparse.Action):
    """Keeps a value; a second one is an error, as one of the two would be lost in silence."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        """Called by the parser."""
        if getattr(namespace, self.dest, None) not in (None, parser.get_default(self.dest)):
            joined = " with commas between" if self.type is read_list else ""
            parser.error(f"{option} was given twice: expected it once{joined}.")
        setattr(namespace, self.dest, values)


def settings_of(options: dict[str, Any]) -> RunSettings:
    """The settings that typed options mean, on top of those of --config or of an existing run."""
    typed: dict[str, dict[str, Any]] = {table: {} for table in TABLES}
    for name, value in options.items():
        table, dot, setting = name.partition(".")
        if dot:
            typed[table][setting] = value
    settings, path = RunSettings(), options.get("config") or _existing(options)
    if path is not None:
        # with --model the file's network is replaced by what was typed
        trust = options["trust_config"] or "name" in typed["model"]
        settings = _from_file(path, trust=trust)
        _check_here(settings, options)
        if typed["recipe"].get("name", settings.recipe.name) != settings.recipe.name:
            settings = replace(settings, recipe=RecipeSettings())  # its values are another's
    _workers(typed["communication"])
    for table, values in typed.items():
        if values and table != "run":
            settings = settings.with_changes(table, **values)
    settings = replace(settings, **typed["run"])
    if not settings.data.source:
        raise ValueError(
            "DATA is missing: expected a file or a directory; see codauc train --help."
        )
    return settings


def _from_file(path: Path, *, trust: bool) -> RunSettings:
    """The settings in a file; one that names a network to import is refused unless trusted."""
    try:
        # what the shell has opened, as in --config <(...), is the person's own
        opened = str(path).startswith(("/dev/fd/", "/proc/self/fd/", "/dev/stdin"))
        text = path.read_text(encoding="utf-8") if opened else read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read ({error}): expected a config.toml.") from error
    return RunSettings.from_toml(text, str(path), trust=trust)


def _check_here(settings: RunSettings, options: dict[str, Any]) -> None:
    """Raise if the data of a run that is to be resumed cannot be found from here."""
    source = settings.data.source
    if options.get("resume") and "data.source" not in options and "{rank}" not in source:
        path = Path(source)
        if not path.is_absolute() and not path.exists() and len(path.suffixes):
            raise ValueError(
                f"{source}, the data of the run in {options['out']}, is not here: change to the "
                "directory where the run was started, or give DATA and the other options again."
            )


def _existing(options: dict[str, Any]) -> Path | None:
    """The settings of the run to resume."""
    if not options.get("resume"):
        return None
    if options["overwrite"]:
        raise ValueError("--resume and --overwrite: expected one of them.")
    if options["out"] is None:
        raise ValueError("--resume without --out: expected the run's directory.")
    path = Path(options["out"]) / CONFIG
    # with DATA the whole command is given again, and compared with what was saved
    return path if "data.source" not in options and path.exists() else None


def _workers(values: dict[str, Any]) -> None:
    """--simulate K is K workers in this process."""
    if "simulate" in values:
        if "workers" in values:
            raise ValueError("--workers and --simulate: expected one of them.")
        values["workers"], values["simulate"] = values["simulate"], True
    elif "workers" in values:
        values["simulate"] = False


def read_list(text: str) -> tuple[str, ...]:
    """Values with commas between."""
    return tuple(part for part in text.split(",") if part)


def _period(text: str) -> int | str:
    try:
        if not text[:1].isalpha():
            return int(text)
        named_period(text)
        return text
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a number of steps, {', '.join(PERIODS)}"
        ) from None


def _arguments(text: str) -> dict[str, Any]:
    """K=V with commas between; values as in TOML, or else texts.

    >>> _arguments("widths=[64,64],dropout=0.1,name=abc")
    {'widths': [64, 64], 'dropout': 0.1, 'name': 'abc'}
    """
    found: dict[str, Any] = {}
    for part in re.split(r",(?=\s*\w+\s*=)", text):
        name, equals, value = part.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(f"{part!r}: expected NAME=VALUE")
        try:
            found[name.strip()] = tomllib.loads(f"v = {value}")["v"]
        except tomllib.TOMLDecodeError:
            found[name.strip()] = value
    return found


_READERS: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": int,  # --simulate K: the number of workers
    "Path": Path,
    "int | str": _period,
    "tuple[str, ...]": read_list,
    "tuple[int, ...]": int,
    "dict[str, Any]": _arguments,
}


_QUALIFIED = rf"(?P<table>{'|'.join(TABLES)})\.(?P<field>[a-z_]+)\b=?"
_PLAIN = r"(?P<argument>[a-z_]+)="
_TEXT = r"'(?:[^'\\]|\\.)*'|" + r'"(?:[^"\\]|\\.)*"'
_LIST = rf"\[(?:(?:{_TEXT})(?:, )?)*\]|\((?:(?:{_TEXT}),? ?)*\)"
_VALUE = rf"(?P<value>True\b|False\b|{_TEXT}|{_LIST})?"
_NAMED = re.compile(rf"(?<![\w./-])(?:{_QUALIFIED}|{_PLAIN}){_VALUE}")


def in_options(
    message: str, known: Collection[str], positionals: Mapping[str, str] | None = None
) -> str:
    """A message of the library, in which ARGUMENT=VALUE is `--option VALUE` if that is `known`.

    `positionals` are arguments that are typed without an option, with the names of the help.

    >>> in_options("test_fraction=1.2: expected a number < 1", ["--test-fraction"])
    '--test-fraction 1.2: expected a number < 1'
    >>> in_options("pass resume=True, or change data.positive", ["--resume", "--positive"])
    'pass --resume, or change --positive'
    >>> in_options("leave them out with drop=['a', 'b c']", ["--drop"])
    "leave them out with --drop 'a,b c'"
    """
    options = _options_by_name()

    def translated(found: re.Match[str]) -> str:
        named = found["argument"] or f"{found['table']}.{found['field']}"
        candidates = [*options.get(named, []), f"--{named.replace('_', '-')}"]
        option = next((each for each in candidates if each in known), None)
        option = option or (positionals or {}).get(named.rpartition(".")[2])
        if option is None:
            return found[0]
        if found["value"] is None:
            return f"{option} " if found[0].endswith("=") else option
        if found["value"] == "False":
            opposite = option.replace("--", "--no-", 1)
            return opposite if opposite in known else f"{option} False"
        return option if found["value"] == "True" else f"{option} {_typed(found['value'])}"

    return _NAMED.sub(translated, message)


def _options_by_name() -> dict[str, list[str]]:
    """The options of each setting, by its name alone and with its table before it."""
    options = {"trust": ["--trust-config"]}
    for table, each in settings_with_options():
        options[f"{table}.{each.name}"] = [each.option]
        if each.name != "name":
            options.setdefault(each.name, []).append(each.option)
    return options


def _typed(value: str) -> str:
    """A text, or several, of Python as they are typed after an option."""
    plain = ast.literal_eval(value)
    return shlex.quote(plain if isinstance(plain, str) else ",".join(plain))
