"""Settings: each is declared once, with its default, help text, option and allowed values.

A settings class is a frozen dataclass whose fields are made by `setting`. The command builds its
options from them, and `check` compares values with them: files may hold anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, TypeVar, cast

from codauc._internal.checks import choice, real, shown, whole

T = TypeVar("T")

_DECLARED = "setting"  # the key of a field's metadata

_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "bool": (bool,),
    "int": (Integral,),
    "float": (Real,),
    "dict[str, Any]": (dict,),
    "tuple[str, ...]": (tuple, list, str, int),
    "None": (type(None),),
}


@dataclass(frozen=True)
class Setting:
    """A declared setting; `option` is "" for one that the command does not have."""

    name: str
    kind: str  # its type as written, without None
    default: Any
    help: str
    option: str
    metavar: str | None
    choices: tuple[str, ...]
    common: bool  # shown by --help, not by --help-all alone
    limits: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The help text with the default in it."""
        default = self.default
        if isinstance(default, float):
            default = f"{default:g}"
        elif isinstance(default, tuple):
            default = " ".join(map(str, default))
        return self.help.format(default=default)


def setting(
    default: T,
    help: str = "",
    *,
    option: str | None = None,
    metavar: str | None = None,
    choices: tuple[str, ...] = (),
    common: bool = False,
    **limits: Any,
) -> T:
    """A field of a settings class.

    Args:
        default: Its value unless another is given.
        help: What it means, for the command's help; {default} stands for the default. Without a
            text the command has no option for it.
        option: Its option, if that is not its name with dashes.
        metavar: What the help shows for the value; the choices, if there are any.
        choices: The values that are allowed.
        common: Whether `--help` shows it; `--help-all` shows all.
        limits: Arguments of `checks.whole` or `checks.real`: `least`, `above`, `below`, `remedy`.
    """
    names = metavar or "|".join(choices) or None
    about = Setting("", "", default, help, option or "", names, choices, common, limits)
    if isinstance(default, dict):
        return cast(T, field(default_factory=dict, metadata={_DECLARED: about}))
    return field(default=default, metadata={_DECLARED: about})


def declared(kind: type) -> Iterator[Setting]:
    """The settings that a class declares, in order."""
    for each in fields(kind):
        about: Setting | None = each.metadata.get(_DECLARED)
        if about is not None:
            dashed = f"--{each.name.replace('_', '-')}" if about.help else ""
            written = str(each.type).removesuffix(" | None")
            yield replace(about, name=each.name, kind=written, option=about.option or dashed)


def check(settings: Any, kind: type | None = None) -> None:
    """Raise where a value is not of its field's type, or not among the declared values.

    `kind` is the class that declares the values, if that is not the settings' own.
    """
    _check_types(settings)
    for each in declared(kind or type(settings)):
        value = getattr(settings, each.name)
        if value is None:
            continue
        if each.choices:
            choice(each.name, value, each.choices)
        elif each.limits and isinstance(value, int | float):
            (whole if "int" in each.kind.split(" | ") else real)(each.name, value, **each.limits)


def _check_types(settings: Any) -> None:
    for each in fields(settings):
        value, names = getattr(settings, each.name), str(each.type).split(" | ")
        kinds = tuple(kind for name in names for kind in _KINDS.get(name, (object,)))
        doubtful = isinstance(value, bool) and not {"bool", "tuple[str, ...]"} & set(names)
        if not isinstance(value, kinds) or doubtful:
            raise ValueError(
                f"{each.name}={shown(value)}: expected "
                f"{' or '.join(n for n in names if n != 'None')}."
            )
        if isinstance(value, Real) and not isinstance(value, bool | int | float):  # numpy's
            plain = int(value) if isinstance(value, Integral) else float(value)
            object.__setattr__(settings, each.name, plain)


def check_text(name: str, text: str) -> None:
    """Raise where a text cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name}={text!r} cannot be written as UTF-8 ({error.reason}): rename it."
        ) from None


def as_tuples(settings: Any, *names: str) -> None:
    """Turn these settings into tuples of texts; a single value becomes a tuple of one."""
    for name in names:
        value = getattr(settings, name)
        parts = (value,) if isinstance(value, str | int | bool) else tuple(value)
        object.__setattr__(settings, name, tuple(str(part) for part in parts))
