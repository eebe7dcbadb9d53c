"""Nested values as one file of safetensors and JSON, with a checksum; reading never runs code."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as as_bytes
from torch import Tensor

_TEXT, SUM = "codauc", "sha256"  # the entries of the file's metadata


def pack(value: Any) -> bytes:
    """Dicts, lists, tuples, texts, numbers, None, tensors and arrays, as bytes.

    >>> unpack(pack({"a": (1, 2.5, None), "b": torch.ones(2)}))
    {'a': (1, 2.5, None), 'b': tensor([1., 1.])}
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_plain(value, tensors, ""))
    return bytes(as_bytes(tensors, {_TEXT: text, SUM: checksum(text, tensors)}))


def unpack(data: bytes) -> Any:
    """What `pack` was given; a ValueError if a single bit of it is not as it was."""
    try:
        length = int.from_bytes(data[:8], "little")
        if length > len(data) - 8:
            raise ValueError("it is too short, or something else")
        about = json.loads(data[8 : 8 + length])["__metadata__"]
        text, expected = about[_TEXT], about[SUM]
        tensors = from_bytes(data)
        if checksum(text, tensors) != expected:
            raise ValueError("its checksum does not agree with what is in it")
        return _value(json.loads(text), tensors)
    except (SafetensorError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"not a whole snapshot ({reason})") from error


def _plain(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        found = {}
        for key, part in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where}: a key {key!r} cannot be saved: expected a text.")
            found[key] = _plain(part, tensors, f"{where}/{key}")
        return ["dict", found]
    if isinstance(value, list | tuple):
        parts = [_plain(part, tensors, f"{where}/{i}") for i, part in enumerate(value)]
        return ["tuple" if isinstance(value, tuple) else "list", parts]
    if isinstance(value, Tensor):
        tensors[where] = value.detach().cpu().contiguous().clone()  # none may share memory
        return ["tensor", where]
    if isinstance(value, np.ndarray):
        tensors[where] = torch.from_numpy(np.array(value))
        return ["array", where]
    raise ValueError(f"{where}: {type(value).__name__} cannot be saved.")


def _value(plain: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(plain, list):
        return plain
    word, inside = plain
    if word == "dict":
        return {key: _value(part, tensors) for key, part in inside.items()}
    if word in ("list", "tuple"):
        parts = [_value(part, tensors) for part in inside]
        return tuple(parts) if word == "tuple" else parts
    return tensors[inside].numpy() if word == "array" else tensors[inside]


def checksum(text: str, tensors: dict[str, Tensor]) -> str:
    """Of everything that is read, in whatever order the file has it."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
