"""From a name to a network."""

from __future__ import annotations

from typing import Any

from torch import nn

from codauc._internal.checks import choice
from codauc._internal.imports import imported_class, is_import_path
from codauc.models.resnet import ResNet8, ResNet18, ResNet20, ResNet50
from codauc.models.small_networks import MLP, ConvNet, PatchNet
from codauc.models.tabular import TabularNet
from codauc.models.tabular_ensemble import TabularEnsemble

MODELS: dict[str, type[nn.Module]] = {
    model.model_name: model
    for model in (
        *(ConvNet, MLP, PatchNet, ResNet8, ResNet18, ResNet20, ResNet50),
        *(TabularNet, TabularEnsemble),
    )
}
IN_CHANNELS = (
    "patchnet",
    "resnet8",
    "resnet18",
    "resnet20",
    "resnet50",
)  # take the images' channels


def build(name: str, /, **arguments: Any) -> nn.Module:
    """The network called `name`, made with `arguments`.

    `name` is one of "convnet", "mlp", "patchnet", "resnet8", "resnet18", "resnet20", "resnet50",
    "tabular" and "tabular-ensemble", or the import path "package.module:Class" of an `nn.Module`.
    Importing a module runs it, so take such names from people you trust. What the class raises
    becomes a ValueError.
    For the first kind `build(model.model_name, **model.arguments)` is the same architecture again.

    >>> build("mlp", inputs=3, widths=[4]).arguments
    {'inputs': 3, 'widths': [4], 'outputs': 1}
    >>> build("torch.nn:Linear", in_features=3, out_features=1)
    Linear(in_features=3, out_features=1, bias=True)
    """
    made = imported_class("model", name, nn.Module) if is_import_path(name) else _own(name)
    try:
        return made(**arguments)
    except Exception as error:  # a class of others may fail in any way
        if name in MODELS and isinstance(error, ValueError):  # of our own, already explained
            raise
        given = f"the arguments {', '.join(arguments)[:200]}" if arguments else "no arguments"
        raise ValueError(
            f"model={name!r} could not be made with {given}: "
            f"{type(error).__name__}: {error}; give the arguments it takes."
        ) from error


def _own(name: str) -> type[nn.Module]:
    try:
        return MODELS[choice("model", name, tuple(MODELS))]
    except ValueError as error:
        path = 'For a network of your own give its import path, "package.module:Class".'
        raise ValueError(f"{error} {path}") from None
