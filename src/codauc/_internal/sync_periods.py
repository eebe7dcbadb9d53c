"""What settings say of rounds in words: the steps between two of them, and the outer step."""

from __future__ import annotations

import math

from codauc._internal.checks import choice

PERIODS = ("theorem", "growing", "once", "qsr", "auto")
_FIRST = {"growing": 8, "qsr": 32}  # I where it begins, unless it is given


def named_period(text: str, names: tuple[str, ...] = PERIODS) -> tuple[str, int]:
    """The name of a period, and the I with which it begins; 1 for names that take none.

    >>> named_period("qsr"), named_period("growing:64"), named_period("once")
    (('qsr', 32), ('growing', 64), ('once', 1))
    """
    name, colon, first = text.partition(":")
    choice("sync_every", name, names)
    if not colon:
        return name, _FIRST.get(name, 1)
    if name not in _FIRST:
        raise ValueError(f"sync_every={text!r}: expected {name} alone; it takes no number.")
    if not first.isascii() or not first.isdigit() or int(first) < 1:
        raise ValueError(
            f"sync_every={text!r}: expected {name}:I with a number of steps, such as "
            f"{name}:{_FIRST[name]}."
        )
    return name, int(first)


def outer_step(text: str) -> tuple[float, float]:
    """The step size and the momentum of an outer step.

    >>> outer_step("0.7,0.9")
    (0.7, 0.9)
    """
    try:
        lr, momentum = map(float, text.split(","))
    except ValueError:
        lr, momentum = math.nan, math.nan
    if not (0 < lr < math.inf and 0 <= momentum < 1):
        raise ValueError(
            f"outer={text!r}: expected a step size above 0 and a momentum from 0 to below 1 with a "
            "comma between; use 0.7,0.9, or leave it out for plain averaging."
        )
    return lr, momentum
