"""A round of data parallel training: the mean of the gradients, in place of that of the state."""

from __future__ import annotations

import torch

from codauc.algorithm.ppdsg import PPDSG
from codauc.algorithm.round_costs import REQUESTS
from codauc.algorithm.round_message import FiniteCheck, RoundRequests
from codauc.workers.group import Group


def average_gradients(
    opt: PPDSG, group: Group, requests: RoundRequests, finite: FiniteCheck
) -> None:
    """Replace the gradients by their mean, in one message with the requests."""
    found = [p.grad for options in opt.param_groups for p in options["params"]]
    gradients = [gradient for gradient in found if gradient is not None]
    asking = gradients[0].new_tensor(requests.values())
    message = torch.cat([*(gradient.flatten() for gradient in gradients), asking])
    bad = float(not finite.is_finite(message))
    message = torch.cat([message, message.new_tensor([bad])])
    group.sum_(message.div_(group.size), "round")
    *means, asking, bads = torch.split(
        message, [*(gradient.numel() for gradient in gradients), len(REQUESTS), 1]
    )
    requests.hear(asking)
    finite.refuse(float(bads))
    for gradient, mean in zip(gradients, means, strict=True):
        gradient.copy_(mean.view_as(gradient))
