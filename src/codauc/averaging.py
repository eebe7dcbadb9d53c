"""What the workers average, in one message."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor

from codauc.group import Group
from codauc.optim import PPDSG

_BASE = 4096  # counts travel as two digits to this base, each exact in float32


class Averager:
    """Averages v, alpha, BatchNorm statistics and label counts over the group, in one collective.

    The message is a copy, so that a collective that fails leaves the worker as it was.
    """

    def __init__(self, opt: PPDSG, group: Group) -> None:
        self.opt, self.group = opt, group
        state, device = opt.flat, opt.flat.vectors[0].device
        self.message = torch.zeros(
            state.size + 2 * opt.loss.seen.numel(), dtype=state.dtype, device=device
        )

    @torch.no_grad()
    def start(self, **settings: Any) -> None:
        """Compare settings, then give every worker the state of worker 0."""
        self.compare(**_settings(self.opt), **settings)
        self.opt.flat.pack(self.message)
        self.group.broadcast_(self.message, "start")
        self.opt.flat.unpack(self.message)
        for tensors in _others(self.opt):
            joined = torch.cat([tensor.flatten() for tensor in tensors])
            self.group.broadcast_(joined, "start")
            parts = torch.split(joined, [tensor.numel() for tensor in tensors])
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    @torch.no_grad()
    def round(self, *, closing: bool = False) -> None:
        """Replace the state by its mean; a stage's closing round carries the stage's result."""
        flat, loss = self.opt.flat, self.opt.loss
        if self.group.size == 1 and not closing:  # a single state is its own mean
            loss.agree(loss.seen - loss.reported)
            return
        state, digits = self.message[: flat.size], self.message[flat.size :].view(2, 2, -1)
        flat.pack(state, self.opt.result if closing and self.opt.steps else None)
        fresh = loss.seen - loss.reported
        digits[0].copy_(fresh // _BASE)
        digits[1].copy_(fresh % _BASE)
        self.group.sum_(self.message, "round")
        flat.unpack(state.div_(self.group.size))
        high, low = digits.round().to(torch.int64)
        loss.agree(high * _BASE + low)

    def compare(self, **settings: Any) -> None:
        """Raise, on every worker, if one of them has another value of a setting."""
        device = self.message.device
        mine = torch.tensor([_digest(value) for value in settings.values()], device=device)
        for rank, theirs in enumerate(self.group.gather(mine, "start")):
            for name, same in zip(settings, (mine == theirs).tolist(), strict=True):
                if not same:
                    raise ValueError(
                        f"worker {rank} and worker {self.group.rank} differ in {name} (this one: "
                        f"{_short(settings[name])}): expected the same on every worker; set it "
                        "from the configuration or the whole data, not from a worker's own shard."
                    )


def _settings(opt: PPDSG) -> dict[str, Any]:
    """What must be equal on all workers."""
    loss = opt.loss
    groups = [{k: v for k, v in group.items() if k != "params"} for group in opt.param_groups]
    return {
        "tensors": opt.flat.layout(),
        "other_tensors": [[str(t.dtype), *t.shape] for tensors in _others(opt) for t in tensors],
        "pos_ratio": loss.known_ratio,
        "tasks": loss.tasks,
        "margin": loss.margin,
        "link": loss.link,
        "gamma": opt.gamma,
        "average": opt.average,
        "max_grad_norm": opt.max_grad_norm,
        "param_groups": groups,
    }


def _digest(value: Any) -> int:
    return int.from_bytes(hashlib.sha256(json.dumps(value).encode()).digest()[:7], "big")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _others(opt: PPDSG) -> list[list[Tensor]]:
    """Frozen parameters and buffers that no round averages, by dtype: equal only at the start."""
    averaged = {id(entry.tensor) for entry in opt.flat.entries}
    tensors = [*opt.model.parameters(), *opt.model.buffers()]
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        if id(tensor) not in averaged:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
    return list(by_dtype.values())
