"""Weights from a file into a network; reading the file never runs code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from codauc.checks import known_arguments

Weights: TypeAlias = dict[str, Tensor]

SAFE_TORCH = "2.10"  # before, a torch file could run code in spite of weights_only
WRAPPINGS = ("state_dict", "model_state_dict", "model")
PREFIXES = ("module.", "_orig_mod.")  # of DataParallel and of torch.compile
SHOWN = 3


@known_arguments
def load_pretrained(model: nn.Module, path: str | os.PathLike[str]) -> list[str]:
    """Load the weights in the file `path` into `model`; returns the names it kept as they were.

    The file is `.safetensors`, or one of `torch.save` with a state_dict in it, as it is or under
    the key "state_dict", "model_state_dict" or "model"; names may begin with "module.". Torch files
    are read with `weights_only=True`, and by torch 2.10 or later only: in earlier ones such a file
    could still run code (CVE-2025-32434, CVE-2026-24747).

    Every weight must be there with its shape, but for the head: the last `nn.Linear` of the model
    (`fc` or `head` in the package's). If the file has it in another shape, or not at all, it stays
    as it was initialised and its names are returned: such a head is still to be trained. Counters
    of batches (`num_batches_tracked`), which old files lack, may be missing. Anything else that is
    missing, unexpected or of another shape is an error, and the model is left untouched.

    >>> from tempfile import TemporaryDirectory
    >>> from safetensors.torch import save_file
    >>> from codauc.models import MLP
    >>> with TemporaryDirectory() as folder:
    ...     save_file(MLP(3, outputs=10).state_dict(), f"{folder}/ten.safetensors")
    ...     load_pretrained(MLP(3, outputs=1), f"{folder}/ten.safetensors")
    ['head.weight', 'head.bias']
    """
    path = Path(path)
    expected = {n: t for n, t in model.state_dict().items() if isinstance(t, Tensor)}
    found = _without_prefixes(_state_dict(_read(path), path), expected)
    head = _other_head(_head_names(model), found, expected)
    body = {name: tensor for name, tensor in found.items() if name not in head}
    wanted = {name: tensor for name, tensor in expected.items() if name not in head}
    problems = _problems(body, wanted)
    if not problems and not body:
        problems = ["it has nothing of the model but its head"]
    if problems:
        raise ValueError(
            f"{path} does not fit {type(model).__name__}: {'; '.join(problems)}. "
            "Expected the weights of the same architecture; make the model as it was made then."
        )
    model.load_state_dict(body, strict=False)
    return [name for name in expected if name in head]


def _read(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"{path}: no such file; expected .safetensors, or one of torch.save.")
    safe = path.suffix == ".safetensors"
    if not safe and torch.__version__ < SAFE_TORCH:
        raise ValueError(
            f"{path} is not .safetensors, and torch {torch.__version__} may run code in other "
            f"files: expected .safetensors, or torch >= {SAFE_TORCH}; convert the file or update."
        )
    try:
        return load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken file may fail in any way
        raise ValueError(
            f"{path} could not be read as weights ({type(error).__name__}): expected .safetensors, "
            "or the file of torch.save(model.state_dict(), path); what holds more than tensors and "
            "plain data is refused, since opening it could run code."
        ) from error


def _state_dict(content: Any, path: Path) -> Weights:
    """The state_dict in the file, out of its wrapping."""
    if isinstance(content, Mapping):
        inner = (content.get(key) for key in WRAPPINGS)
        content = next((value for value in inner if isinstance(value, Mapping)), content)
    if not isinstance(content, Mapping):
        raise ValueError(
            f"{path} holds a {type(content).__name__}: expected a state_dict; "
            "save model.state_dict()."
        )
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ValueError(
                f"{path} holds {name!r} of type {type(value).__name__}: expected names and "
                "tensors; save model.state_dict()."
            )
    return dict(content)


def _without_prefixes(found: Weights, expected: Weights) -> Weights:
    for prefix in PREFIXES:
        wrapped = any(name.startswith(prefix) for name in expected)
        if not wrapped and all(name.startswith(prefix) for name in found):
            found = {name.removeprefix(prefix): tensor for name, tensor in found.items()}
    return found


def _head_names(model: nn.Module) -> list[str]:
    linear = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        return []
    return [f"{linear[-1]}.{name}".lstrip(".") for name in ("weight", "bias")]


def _other_head(names: list[str], found: Weights, expected: Weights) -> set[str]:
    """The names of the head if the file has another one or none; a head goes as a whole."""
    held = [name for name in names if name in found]
    same = all(found[name].shape == expected[name].shape for name in held if name in expected)
    return set() if held and same else set(names)


def _problems(found: Weights, expected: Weights) -> list[str]:
    missing = [
        name
        for name in expected
        if name not in found and name.rpartition(".")[2] != "num_batches_tracked"
    ]
    unexpected = sorted(found.keys() - expected.keys())
    misshapen = [
        f"{name} (got {list(found[name].shape)}, expected {list(tensor.shape)})"
        for name, tensor in expected.items()
        if name in found and found[name].shape != tensor.shape
    ]
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape": misshapen}
    return [f"{len(names)} {kind}: {_first(names)}" for kind, names in kinds.items() if names]


def _first(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
