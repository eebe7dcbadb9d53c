"""Whether all workers have the same settings, and which one differs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch

from codauc.workers.group import Group

T = TypeVar("T")

_TEXT = 2000  # bytes of a worker's error that the others get


def compare(
    group: Group, settings: dict[str, Any], device: torch.device, kind: str = "start"
) -> None:
    """Raise the same ValueError on every worker if one of them has another value of a setting.

    Only a hash is sent unless something differs.
    """
    text = _canonical(plain(settings)).encode()
    digest = int.from_bytes(hashlib.sha256(text).digest()[:7], "big")
    digests = group.gather(torch.tensor([digest], device=device), kind).flatten().tolist()
    if len(set(digests)) == 1:
        return
    texts = gather_bytes(group, text, kind, device)
    odd = next(rank for rank, theirs in enumerate(digests) if theirs != digests[0])
    where, first, other = _difference(json.loads(texts[0]), json.loads(texts[odd]))
    raise ValueError(
        f"worker 0 and worker {odd} differ in {where} ({_short(first)} and {_short(other)}): "
        "expected the same on every worker; set it from the configuration or the whole data, not "
        "from a worker's own shard."
    )


def plain(value: Any, where: str = "") -> Any:
    """A value as JSON has it: numbers, texts, lists and dicts; of arrays their hash."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): plain(part, f"{where} {key}".strip()) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part, f"{where}[{index}]") for index, part in enumerate(value)]
    if isinstance(value, set | frozenset):
        return sorted((plain(part, where) for part in value), key=_canonical)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().to(torch.float64 if value.is_floating_point() else value.dtype)
        value = value.numpy()
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufSU":
        if value.ndim == 0:
            return plain(value.item())
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"{value.dtype} {list(value.shape)} {digest[:12]}"
    raise ValueError(
        f"{where}: got {type(value).__name__}, which cannot be compared over the workers; expected "
        "numbers, texts, lists, dicts or arrays."
    )


def together(group: Group, work: Callable[[], T], kind: str) -> T:
    """Each worker's own result of its own work; what fails on one is an error on all."""
    result, error = None, None
    try:
        result = work()
    except Exception as problem:  # the others wait: they get it first
        error = problem
    flags = group.gather(torch.tensor([int(error is not None)], device="cpu"), kind)
    failed = flags.flatten().nonzero().flatten().tolist()
    if failed:
        raise_everywhere(group, error, failed, kind)
    return result  # type: ignore[return-value]


def raise_everywhere(
    group: Group, error: Exception | None, failed: list[int], kind: str
) -> NoReturn:
    """Raise this worker's error, or else those of the workers that failed."""
    name = "" if error is None or isinstance(error, ValueError) else f"{type(error).__name__}: "
    text = f"{name}{error}".encode(errors="replace")[:_TEXT]
    texts = gather_bytes(group, text, kind, torch.device("cpu"))
    if error is not None:
        raise error
    lines = (f"worker {k}: {texts[k].decode(errors='ignore')}" for k in failed)
    raise ValueError("\n".join(lines))


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def gather_bytes(group: Group, data: bytes, kind: str, device: torch.device) -> list[bytes]:
    """Every worker's bytes, of any length, in the order of ranks."""
    mine = torch.tensor([len(data)], device=device)
    lengths = group.gather(mine, kind).flatten().tolist()
    padded = bytearray(data.ljust(max(lengths) or 1))
    rows = group.gather(torch.frombuffer(padded, dtype=torch.uint8).to(device), kind)
    return [row[:n].cpu().numpy().tobytes() for row, n in zip(rows, lengths, strict=True)]


def _difference(first: Any, other: Any, where: str = "") -> tuple[str, Any, Any]:
    """The first place in which two nested values differ."""
    if isinstance(first, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*first, *other]):
            a, b = first.get(key, _ABSENT), other.get(key, _ABSENT)
            if _canonical(a) != _canonical(b):
                return _difference(a, b, f"{where} {key}".strip())
    if isinstance(first, list) and isinstance(other, list):
        for index in range(max(len(first), len(other))):
            a, b = (part[index] if index < len(part) else _ABSENT for part in (first, other))
            if _canonical(a) != _canonical(b):
                return _difference(a, b, f"{where}[{index}]")
    return where, first, other


_ABSENT = "absent"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
