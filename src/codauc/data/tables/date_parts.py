"""The parts of a date that come again: each as the sine and the cosine of its place in its cycle.

A network sees that 23:00 is near 01:00, which a number of microseconds does not show.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

PARTS = ("hour", "weekday", "month", "day of year")
WAVES = ("sin", "cos")

_DAY = 86_400e6  # microseconds


def cycle(times: Tensor, part: str) -> Tensor:
    """The sine and the cosine [N, 2] of one part of dates [N], in microseconds since 1970 (UTC).

    NaN stays NaN. The day of the year is counted from 1 March, so that leap years do not matter.

    >>> noon_on_a_thursday = torch.tensor([_DAY / 2], dtype=torch.float64)
    >>> cycle(noon_on_a_thursday, "hour").round().tolist()
    [[0.0, -1.0]]
    >>> round(float(_phase(noon_on_a_thursday, "weekday")) * 7)  # Monday is 0
    3
    """
    angle = 2 * math.pi * _phase(times, part)
    return torch.stack([angle.sin(), angle.cos()], dim=-1)


def _phase(times: Tensor, part: str) -> Tensor:
    """The place in the cycle, from 0 to 1."""
    days = (times / _DAY).floor()
    if part == "hour":
        return times / _DAY - days
    if part == "weekday":
        return _rest(days + 3, 7) / 7
    day = _day_from_march(days)
    if part == "day of year":
        return day / 365.25
    return _rest(((5 * day + 2) / 153).floor() + 2, 12) / 12


def _day_from_march(days: Tensor) -> Tensor:
    """The day of the year from 1 March, of days since 1970 (Hinnant's civil_from_days)."""
    day = _rest(days + 719_468, 146_097)  # of 400 years
    leaps = (day / 1460).floor() - (day / 36_524).floor() + (day / 146_096).floor()
    year = ((day - leaps) / 365).floor()
    return day - (365 * year + (year / 4).floor() - (year / 100).floor())


def _rest(values: Tensor, size: int) -> Tensor:
    return values - size * (values / size).floor()
