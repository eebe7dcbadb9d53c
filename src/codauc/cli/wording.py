"""Messages of the library, which names arguments, in the words of the command: its options."""

from __future__ import annotations

import re
from collections.abc import Collection

from codauc.cli.setting_options import TABLES, settings_with_options

# Arguments of codauc.train and others that are no settings.
_ARGUMENTS = {
    "callback": "--callback",
    "out": "--out",
    "overwrite": "--overwrite",
    "profile": "--profile",
    "resume": "--resume",
    "tensorboard": "--tensorboard",
    "trust": "--trust-config",
}
_QUALIFIED = rf"(?P<table>{'|'.join(TABLES)})\.(?P<field>[a-z_]+)\b=?"
_PLAIN = r"(?P<argument>[a-z_]+)="
_NAMED = re.compile(rf"(?<![\w./-])(?:{_QUALIFIED}|{_PLAIN})(?P<true>True\b)?")


def in_options(message: str, known: Collection[str]) -> str:
    """A message in which ARGUMENT=VALUE is `--option VALUE`, for the options that are `known`.

    >>> in_options("test_fraction=1.2: expected a number < 1", ["--test-fraction"])
    '--test-fraction 1.2: expected a number < 1'
    >>> in_options("pass resume=True, or change data.positive", ["--resume", "--positive"])
    'pass --resume, or change --positive'
    """
    options = dict(_ARGUMENTS)
    for table, each in settings_with_options():
        options[f"{table}.{each.name}"] = each.option
        options.setdefault(each.option.removeprefix("--").replace("-", "_"), each.option)
        if each.name != "name":
            options[each.name] = each.option

    def translated(found: re.Match[str]) -> str:
        named = found["argument"] or f"{found['table']}.{found['field']}"
        option = options.get(named, "")
        if option not in known:
            return found[0]
        return option if found["true"] or not found[0].endswith("=") else f"{option} "

    return _NAMED.sub(translated, message)
