"""From a name to a network."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import reduce
from typing import Any

from torch import nn

from codauc.checks import choice
from codauc.models.resnet import ResNet18, ResNet20, ResNet50
from codauc.models.small import MLP, ConvNet, PatchNet
from codauc.models.tabular import TabularNet

MODELS: dict[str, Callable[..., nn.Module]] = {
    model.model_name: model
    for model in (ConvNet, MLP, PatchNet, ResNet18, ResNet20, ResNet50, TabularNet)
}
IN_CHANNELS = ("patchnet", "resnet18", "resnet20", "resnet50")  # take the images' channels


def build(name: str, /, **arguments: Any) -> nn.Module:
    """The network called `name`, made with `arguments`.

    `name` is one of "convnet", "mlp", "patchnet", "resnet18", "resnet20", "resnet50" and
    "tabular", or an import path "package.module:Name" of a class or function that returns an
    `nn.Module`. Whatever that raises becomes a ValueError, which says what it was.
    For the first kind `build(model.model_name, **model.arguments)` is the same architecture again.

    >>> build("mlp", inputs=3, widths=[4]).arguments
    {'inputs': 3, 'widths': [4], 'outputs': 1}
    >>> build("torch.nn:Linear", in_features=3, out_features=1)
    Linear(in_features=3, out_features=1, bias=True)
    """
    maker = _imported(name) if isinstance(name, str) and ":" in name else _own(name)
    try:
        model = maker(**arguments)
    except Exception as error:  # a class or function of others may fail in any way
        if name in MODELS and isinstance(error, ValueError):  # of our own, already explained
            raise
        raise ValueError(
            f"model={name!r} could not be made with {_listed(arguments)}: "
            f"{type(error).__name__}: {error}; give the arguments it takes."
        ) from error
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model={name!r} returned {type(model).__name__}: expected a torch.nn.Module; "
            "name a class or function that makes one."
        )
    return model


def _own(name: str) -> Callable[..., nn.Module]:
    try:
        return MODELS[choice("model", name, tuple(MODELS))]
    except ValueError as error:
        path = 'For a network of your own give its import path, "package.module:Name".'
        raise ValueError(f"{error} {path}") from None


def _imported(path: str) -> Callable[..., Any]:
    """What the import path leads to; importing runs the module, as any import does."""
    module, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # a module may fail in any way while it is imported
        raise ValueError(
            f"model={path!r}: importing {module!r} failed with {type(error).__name__}: {error}; "
            "expected a module that Python finds here: install it, or add its folder to PYTHONPATH."
        ) from error
    try:
        found = reduce(getattr, attribute.split("."), found)
    except AttributeError as error:
        raise ValueError(
            f"model={path!r}: {module!r} has no {attribute!r}; expected the name of a class or "
            "function in it."
        ) from error
    if isinstance(found, nn.Module) or not callable(found):
        raise ValueError(
            f"model={path!r} is an object of type {type(found).__name__}: expected a class or "
            "function that makes the network; write a function that returns it."
        )
    return found  # type: ignore[no-any-return]  # callable, which is all that is known


def _listed(arguments: dict[str, Any]) -> str:
    return f"the arguments {', '.join(arguments)}" if arguments else "no arguments"
