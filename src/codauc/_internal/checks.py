"""Checks of arguments: each error says what was got, what is expected and what to do."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import operator
import warnings
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, get_args, get_type_hints

P = ParamSpec("P")
R = TypeVar("R")


class UnknownArgumentError(TypeError, ValueError):
    """An argument that does not exist, with the nearest one that does."""


def known_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse unknown keyword arguments with a "did you mean".

    >>> @known_arguments
    ... def f(lr): return lr
    >>> try: f(lrr=0.1)
    ... except ValueError as error: print(error)
    f() got an unknown argument 'lrr': did you mean 'lr'? It takes: lr.
    """
    names = _argument_names(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                raise UnknownArgumentError(_unknown(function, name, names))
        return function(*args, **kwargs)

    return checked


def _argument_names(function: Callable[..., Any]) -> list[str]:
    """The names of a function's arguments, and those of `**others: Unpack[SomeTypedDict]`."""
    names = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            (others,) = get_args(get_type_hints(function)[name])
            names += others.__annotations__
        elif name != "self":
            names.append(name)
    return names


def _unknown(function: Callable[..., Any], name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    hint = f": did you mean {near[0]!r}?" if near else "."
    owner = function.__qualname__.removesuffix(".__init__")
    return f"{owner}() got an unknown argument {shown(name)}{hint} It takes: {', '.join(names)}."


def whole(name: str, value: Any, *, least: int, most: int | None = None, remedy: str) -> int:
    """`value` as an int of at least `least`, and at most `most`.

    >>> whole("sync_every", 0, least=1, remedy="use 1 to average after every step")
    Traceback (most recent call last):
        ...
    ValueError: sync_every=0: expected an integer >= 1; use 1 to average after every step.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        bound = f">= {least}" if number is None or number < least else f"<= {most}"
        raise ValueError(f"{name}={shown(value)}: expected an integer {bound}; {remedy}.")
    return number


def real(
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float | None = math.inf,
    remedy: str,
) -> float:
    """`value` as a float with `above < value < below` and `value >= least`.

    It is finite, unless `below` is None.

    >>> real("gamma", -1, above=0, below=None, remedy="use math.inf for no pull to the anchor")
    Traceback (most recent call last):
        ...
    ValueError: gamma=-1: expected a number > 0; use math.inf for no pull to the anchor.
    """
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if not (above < number and least <= number and (below is None or number < below)):
        limits = [(">", above), (">=", least), ("<", math.inf if below is None else below)]
        bounds = " and ".join(f"{sign} {limit:g}" for sign, limit in limits if math.isfinite(limit))
        expected = f"a number {bounds}" if bounds else "a finite number"
        raise ValueError(f"{name}={shown(value)}: expected {expected}; {remedy}.")
    return number


def warn(message: str) -> None:
    """Warn at the line of the user's code: the first outside this package and torch."""
    frame, level, ours = inspect.currentframe(), 1, ("codauc", "torch", "contextlib")
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in ours:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level - (frame is None))


def shown(value: Any, most: int = 200) -> str:
    """A value for a message, which ends after `most` characters: files may hold anything.

    >>> shown("a" * 9, most=5)
    "'a..."
    """
    try:
        text = repr(value)
    except ValueError:  # of integers with very many digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def listed(values: Iterable[Any], most: int = 10) -> str:
    """Values for a message, the first `most` of them.

    >>> listed("abc", most=2)
    "'a', 'b', ... (3 in all)"
    """
    every = list(values)
    shown = ", ".join(map(repr, every[:most]))
    return f"{shown}, ... ({len(every)} in all)" if len(every) > most else shown or "none"


def choice(name: str, value: Any, options: tuple[str, ...]) -> str:
    """`value` if it is one of `options`.

    >>> choice("link", "sigmoyd", ("sigmoid", "identity"))
    Traceback (most recent call last):
        ...
    ValueError: link='sigmoyd': expected one of 'sigmoid', 'identity'; did you mean 'sigmoid'?
    """
    if value in options:
        return str(value)
    near = difflib.get_close_matches(str(value), options, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "choose one of them."
    every = ", ".join(map(repr, options))
    raise ValueError(f"{name}={shown(value)}: expected one of {every}; {hint}")
