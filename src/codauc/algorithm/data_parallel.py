"""DistributedDataParallel around the model: a, b and alpha follow the batches of all its ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from codauc.algorithm.loss import MinMaxAUCLoss


class DataParallelWrapper:
    """Finds the `DistributedDataParallel` around a model, made before or after the optimizer."""

    def __init__(self, model: nn.Module) -> None:
        self.found = model if isinstance(model, DistributedDataParallel) else None
        distributed = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if self.found is None and distributed:
            model.register_forward_pre_hook(self._look)

    def _look(self, *_: Any) -> None:
        """Before a forward pass: torch notes which wrapper runs it."""
        if self.found is None:
            self.found = getattr(DistributedDataParallel, "_active_ddp_module", None)

    def share(self, loss: MinMaxAUCLoss) -> None:
        """Average over the ranks what a, b and alpha need of the batch, as DDP does gradients.

        New labels are added up in the same message, so that an estimated p is equal on all ranks.
        """
        if self.found is None or loss.sums.grad is None:
            return
        group, needed = self.found.process_group, loss.sums.grad
        seen = loss.seen.clone()
        fresh = (seen - loss.reported).to(needed.dtype)
        message = torch.cat([needed.flatten(), fresh.flatten()])
        dist.all_reduce(message, group=group)
        needed.copy_(message[: needed.numel()].view_as(needed) / dist.get_world_size(group))
        total = message[needed.numel() :].view_as(fresh).round()
        loss.agree(total.to(torch.int64), seen)
