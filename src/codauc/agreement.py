"""Whether all workers have the same settings, and which one differs."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from codauc.group import Group


def compare(group: Group, settings: dict[str, Any], device: torch.device) -> None:
    """Raise the same ValueError on every worker if one of them has another value of a setting.

    Only a hash is sent unless something differs.
    """
    text = json.dumps(settings, default=str).encode()
    digest = int.from_bytes(hashlib.sha256(text).digest()[:7], "big")
    digests = group.gather(torch.tensor([digest], device=device), "start").flatten().tolist()
    if len(set(digests)) == 1:
        return
    texts = gather_bytes(group, text, "start", device)
    odd = next(rank for rank, theirs in enumerate(digests) if theirs != digests[0])
    where, first, other = _difference(json.loads(texts[0]), json.loads(texts[odd]))
    raise ValueError(
        f"worker 0 and worker {odd} differ in {where} ({_short(first)} and {_short(other)}): "
        "expected the same on every worker; set it from the configuration or the whole data, not "
        "from a worker's own shard."
    )


def gather_bytes(group: Group, data: bytes, kind: str, device: torch.device) -> list[bytes]:
    """Every worker's bytes, of any length, in the order of ranks."""
    mine = torch.tensor([len(data)], device=device)
    lengths = group.gather(mine, kind).flatten().tolist()
    padded = bytearray(data.ljust(max(lengths) or 1))
    rows = group.gather(torch.frombuffer(padded, dtype=torch.uint8).to(device), kind)
    return [bytes(row[:n].tolist()) for row, n in zip(rows, lengths, strict=True)]


def _difference(first: Any, other: Any, where: str = "") -> tuple[str, Any, Any]:
    """The first place in which two nested values differ."""
    if isinstance(first, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*first, *other]):
            a, b = first.get(key, _ABSENT), other.get(key, _ABSENT)
            if a != b:
                return _difference(a, b, f"{where} {key}".strip())
    if isinstance(first, list) and isinstance(other, list):
        for index in range(max(len(first), len(other))):
            a, b = (part[index] if index < len(part) else _ABSENT for part in (first, other))
            if a != b:
                return _difference(a, b, f"{where}[{index}]")
    return where, first, other


_ABSENT = "absent"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
