"""Weights from a file into a network; reading the file never runs code."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from codauc._internal.checks import known_arguments

Weights: TypeAlias = dict[str, Tensor]

SAFE_TORCH = "2.10"  # before, a torch file could run code in spite of weights_only
WRAPPINGS = ("state_dict", "model_state_dict", "model")
PREFIXES = ("module.", "_orig_mod.")  # of DataParallel and of torch.compile
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHOWN = 3


@known_arguments
def load_pretrained(
    model: nn.Module, path: str | os.PathLike[str], head: str | None = None
) -> list[str]:
    """Load the weights in the file `path` into `model`; returns the names it kept as they were.

    The file is `.safetensors`, or one of `torch.save` with a state_dict in it, as it is or under
    the key "state_dict", "model_state_dict" or "model"; names may begin with "module." and
    "_orig_mod.", in any order. Torch files are read with `weights_only=True`, and by torch 2.10 or
    later only: in earlier ones such a file could still run code (CVE-2025-32434, CVE-2026-24747).

    Every weight must be there with its shape, but for the head: the module called `head`, by
    default the last `nn.Linear` that the model registered (`fc` or `head` in the package's). If the
    file has it in another shape, or not at all, it stays as it was initialised and its names are
    returned: such a head is still to be trained. Counters of batches (`num_batches_tracked`), which
    old files lack, may be missing. Weights of float16, bfloat16, float32 and float64 are cast to
    the model's dtype. Anything else that is missing, unexpected, of another shape, not of such
    floats where the model has floats, or not an ordinary tensor (sparse, quantised, without
    values) is an error, and the model is left untouched.

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
    kept = _other_head(model, head, found, expected)
    body = {name: tensor for name, tensor in found.items() if name not in kept}
    wanted = {name: tensor for name, tensor in expected.items() if name not in kept}
    problems = _problems(body, wanted)
    if not problems and not body:
        problems = ["it has nothing of the model but its head"]
    if problems:
        raise ValueError(
            f"{path} does not fit {type(model).__name__}: {'; '.join(problems)}. "
            "Expected the weights of the same architecture, as floats of 16 to 64 bits; make the "
            "model as it was made then, and name its head by head=... if that is not the last "
            "nn.Linear."
        )
    model.load_state_dict(body, strict=False)
    return [name for name in expected if name in kept]


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
        # others cannot be copied into a weight, such as the parts that FSDP saves
        plain = type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided
        if not plain or value.is_meta or value.is_quantized or value.is_nested:
            raise ValueError(
                f"{path} holds {name!r}, a {type(value).__name__} of {value.dtype} and "
                f"{value.layout} on the device {value.device}: expected ordinary dense tensors; "
                "save the weights of the model before it was changed so, or convert them."
            )
    return dict(content)


def _without_prefixes(found: Weights, expected: Weights) -> Weights:
    # What the model's own names begin with is no wrapper's.
    prefixes = [p for p in PREFIXES if not any(name.startswith(p) for name in expected)]
    while found:
        shared = [p for p in prefixes if all(name.startswith(p) for name in found)]
        if not shared:
            break
        found = {name.removeprefix(shared[0]): tensor for name, tensor in found.items()}
    return found


def _other_head(model: nn.Module, head: str | None, found: Weights, expected: Weights) -> set[str]:
    """The names in the module `head`, or the last linear one, if the file has another or none."""
    modules = dict(model.named_modules())
    if head is None:
        linear = [name for name, part in modules.items() if isinstance(part, nn.Linear)]
        if not linear:
            return set()
        head = linear[-1]
    elif not any(name.startswith(f"{head}.") for name in expected):
        holders = [m for m in modules if m and any(n.startswith(f"{m}.") for n in expected)]
        near = difflib.get_close_matches(str(head), holders, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"such as {', '.join(holders[-1:])}."
        raise ValueError(
            f"head={head!r}: expected the name of a module of {type(model).__name__} that holds "
            f"weights, of model.named_modules(); {hint}"
        )
    prefix = f"{head}." if head else ""  # a model may be its own head
    names = {name for name in {**expected, **found} if name.startswith(prefix)}
    held = [name for name in names if name in found and name in expected]
    same = all(found[name].shape == expected[name].shape for name in held)
    return set() if held and same else names  # a head goes as a whole


def _problems(found: Weights, expected: Weights) -> list[str]:
    kinds: dict[str, list[str]] = {
        "missing": [],
        "unexpected": sorted(found.keys() - expected.keys()),
        "of another shape": [],
        "of a dtype that is not cast to floats": [],  # int8 without its scale means something else
    }
    missing, _, misshapen, uncast = kinds.values()
    for name, tensor in expected.items():
        got = found.get(name)
        if got is None:
            if name.rpartition(".")[2] != "num_batches_tracked":
                missing.append(name)
        elif got.shape != tensor.shape:
            misshapen.append(f"{name} (got {list(got.shape)}, expected {list(tensor.shape)})")
        elif tensor.is_floating_point() and got.dtype not in (*FLOATS, tensor.dtype):
            uncast.append(f"{name} (got {got.dtype}, expected {tensor.dtype})")
    return [
        f"{len(names)} {kind}: {', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"
        for kind, names in kinds.items()
        if names
    ]
