"""From an import path to a class: the only place where text becomes code.

Importing a module runs it. Whether a path may be imported is decided where it comes from: one that
a person typed or wrote in Python may, one in a file only if the person says so; see
`RunSettings.from_toml`.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")


def is_import_path(name: object) -> bool:
    """Whether a name is "package.module:Class", not one of this package's own."""
    return isinstance(name, str) and ":" in name


def imported_class(argument: str, path: str, base: type[T]) -> type[T]:
    """The class at `path`, "package.module:Class", a `base`; nothing is called but the import.

    `argument` is what errors call it. Only classes inside of classes are gone into, so that a path
    cannot lead from one module to another.

    >>> imported_class("model", "collections:OrderedDict", dict)
    <class 'collections.OrderedDict'>
    >>> imported_class("model", "os:system", dict)
    Traceback (most recent call last):
        ...
    ValueError: model='os:system' is an object of type builtin_function_or_method: expected a \
class, a dict; write one in a module and give "package.module:Class".
    """
    module, _, attribute = path.partition(":")
    found = _attribute(argument, path, _module(argument, path, module), attribute)
    if isinstance(found, type) and issubclass(found, base):
        return found
    kind = type(found).__name__
    what = f"the class {found.__name__}" if isinstance(found, type) else f"an object of type {kind}"
    raise ValueError(
        f"{argument}={path!r} is {what}: expected a class, a {_title(base)}; write one in a module "
        'and give "package.module:Class".'
    )


def _module(argument: str, path: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a module may fail in any way while it is imported
        raise ValueError(
            f"{argument}={path!r}: importing {name!r} failed with {type(error).__name__}: {error}; "
            "expected a module that Python finds here: install it, or add its folder to PYTHONPATH."
        ) from error


def _attribute(argument: str, path: str, module: ModuleType, names: str) -> Any:
    """What the names after the colon lead to, through classes alone."""
    first, *inner = names.split(".")
    try:
        found = getattr(module, first)
        for name in inner:
            if not isinstance(found, type):
                raise ValueError(
                    f"{argument}={path!r} leads through a {type(found).__name__}: expected "
                    '"package.module:Class", the module before the colon and classes after it.'
                )
            found = inspect.getattr_static(found, name)  # a plain getattr may call a property
    except AttributeError as error:
        home = getattr(module, "__file__", None) or "a part of Python"
        raise ValueError(
            f"{argument}={path!r}: {path.partition(':')[0]!r} has no {names!r}; expected the name "
            f"of a class in it. The module is {home}."
        ) from error
    return found


def _title(base: type) -> str:
    home = "" if base.__module__ == "builtins" else f"{base.__module__.split('.')[0]}."
    return "torch.nn.Module" if home == "torch." else home + base.__name__


@contextmanager
def importing_from_here(names: Iterable[str]) -> Iterator[None]:
    """Let modules of the current directory be found meanwhile if an import path is among `names`.

    They come last, so that none takes the place of an installed module. Processes that are started
    meanwhile find them too.
    """
    here = os.getcwd()
    if here in sys.path or not any(map(is_import_path, names)):
        yield
        return
    sys.path.append(here)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(here)


_SAFE_PATH, _OURS = "PYTHONSAFEPATH", "codauc"


@contextmanager
def safe_children() -> Iterator[None]:
    """Let processes that are started meanwhile not search the current directory first.

    Python does so until it gets the path of the process that started it, so that a file there
    could take the place of any module. `as_started` ends it in the new process.
    """
    if not os.environ.get(_SAFE_PATH):
        os.environ[_SAFE_PATH] = _OURS
    try:
        yield
    finally:
        as_started()


def as_started() -> None:
    """Let what this process starts be as usual."""
    if os.environ.get(_SAFE_PATH) == _OURS:
        del os.environ[_SAFE_PATH]
