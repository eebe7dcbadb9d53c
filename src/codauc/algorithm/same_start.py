"""Workers begin equal: their settings are compared, and they take the state of worker 0."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from codauc.algorithm.ppdsg import PPDSG
from codauc.workers.group import Group


def settings_to_compare(opt: PPDSG) -> dict[str, Any]:
    """What must be equal on all workers."""
    loss = opt.loss
    groups = [{k: v for k, v in group.items() if k != "params"} for group in opt.param_groups]
    others = tensors_outside_rounds(opt)
    return {
        **{k: v for k, v in opt.settings().items() if k != "groups"},
        "tensors": {name: " ".join(rest) for name, *rest in opt.trained.layout()},
        "other_tensors": [[str(t.dtype), *t.shape] for tensors in others for t in tensors],
        "tasks": loss.tasks,
        "mix": loss.mix,
        "gamma": opt.gamma,
        "max_grad_norm": opt.max_grad_norm,
        "param_groups": groups,
    }


def tensors_outside_rounds(opt: PPDSG) -> list[list[Tensor]]:
    """Frozen parameters and buffers that no round averages, by dtype: equal only at the start."""
    averaged = {id(slot.tensor) for slot in opt.trained.slots}
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in [*opt.model.parameters(), *opt.model.buffers()]:
        if id(tensor) not in averaged:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
    return list(by_dtype.values())


def take_first(group: Group, tensor: Tensor) -> None:
    """Give every worker the tensor of worker 0; where all have the same, only hashes are sent.

    That is the case where all made the network with the same seed. The root of a broadcast's tree
    sends the tensor log2(K) times: as much as 30 rounds of 2-bit messages.
    """
    found = group.gather(torch.tensor([_hash(tensor)], device=tensor.device), "start")
    if len(set(found.flatten().tolist())) > 1:
        group.broadcast_(tensor, "start")


def _hash(tensor: Tensor) -> int:
    """Of a tensor's bytes."""
    values = tensor.detach().contiguous().flatten().view(torch.uint8).cpu().numpy()
    return int.from_bytes(hashlib.sha256(values.data).digest()[:7], "big")


def broadcast_outside_rounds(opt: PPDSG, group: Group) -> None:
    """Give every worker those tensors of worker 0, in one message for each dtype."""
    for tensors in tensors_outside_rounds(opt):
        joined = torch.cat([tensor.flatten() for tensor in tensors])
        take_first(group, joined)
        parts = torch.split(joined, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
