"""What a round should take over this link, before there was one."""

from __future__ import annotations

from torch import Tensor

from codauc.algorithm.round_periods import Measured
from codauc.workers.group import Group

_NUMBERS = 1 << 14  # whose sum shows a link's rate


def try_link(group: Group, vector: Tensor, size: int, step_seconds: float) -> Measured:
    """What a step takes, and what a round should: by sums of a number and of 64 KB of zeros.

    `vector` is a message, and `size` the bytes of a sum that sends as much as its round. The first
    sum is also where workers wait for one another.
    """
    numbers, times = vector.new_zeros(min(_NUMBERS, len(vector))), list[float]()
    for part in (numbers[:1], numbers):
        before = group.ledger.seconds("start")
        group.sum_(part, "start")
        times.append(group.ledger.seconds("start") - before)
    mine = numbers.new_tensor([step_seconds, *times])
    steps, least, all_of_it = group.gather(mine, "start").unbind(1)
    short, long = float(least.min()), float(all_of_it.min())
    share = size / numbers.nbytes
    return Measured(float(steps.mean()), short + max(0.0, long - short) * share, 0.0)
