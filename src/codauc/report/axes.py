"""Where an axis goes and what is written on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codauc._internal.formats import digits, unit
from codauc.report.curves import sigmoid

Floats = NDArray[np.float64]
LIMIT = 1e200  # no axis goes further: the differences of larger numbers overflow


@dataclass(frozen=True)
class Axis:
    """A stretch of numbers `low < high` laid on pixels `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, values: Any) -> Floats:
        """The pixel of each value; those beyond the ends are at the edge."""
        low, high = self._scale(self.low), self._scale(self.high)
        share = (self._scale(np.clip(values, self.low, self.high)) - low) / (high - low)
        return np.asarray(self.start + share * (self.end - self.start), np.float64)

    def _scale(self, values: Any) -> Any:
        return np.log10(values) if self.log else np.asarray(values, np.float64)


def stretch(
    values: Floats,
    *,
    pad: float = 0.0,
    log: bool = False,
    limits: tuple[float, float] = (-LIMIT, LIMIT),
) -> tuple[float, float]:
    """The ends of an axis that holds all `values`, with room of `pad` times its length.

    The ends stay within `limits`, and are apart even if all values are equal.

    >>> stretch(np.array([2.0, 4.0])), stretch(np.array([3.0])), stretch(np.array([]))
    ((2.0, 4.0), (2.5, 3.5), (0.0, 1.0))
    >>> stretch(np.array([0.8, 0.98]), pad=0.5, limits=(0, 1))[1]
    1.0
    """
    values = np.clip(values[np.isfinite(values)], *limits)
    if log:
        values = values[values > 0]
        low, high = (values.min(), values.max()) if values.size else (1.0, 10.0)
        return (float(low), float(high)) if high > 1.01 * low else (float(low / 2), float(high * 2))
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    if high - low <= max(1e-9 * max(abs(low), abs(high)), 1 / LIMIT):
        half = max(abs(low) * 0.05, 0.5 if limits[1] > 1 else 0.02)
        low, high = low - half, high + half
    room = pad * (high - low)
    return max(low - room, float(limits[0])), min(high + room, float(limits[1]))


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most `most` round numbers from `low` to `high`, in steps of 1, 2 or 5 times a power of 10.

    >>> ticks(0, 10), ticks(0.87, 0.96)
    ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [0.88, 0.9, 0.92, 0.94, 0.96])
    """
    power = math.floor(math.log10((high - low) / most))
    for exponent, factor in ((power, 1), (power, 2), (power, 5), (power + 1, 1), (power + 1, 2)):
        step = factor * 10.0**exponent
        first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
        if last - first < most:
            break
    return [round(i * step, max(0, -exponent)) + 0.0 for i in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Powers of ten from `low` to `high`; also their 2- and 5-fold where there is room.

    >>> log_ticks(1, 1000), log_ticks(3, 60)
    ([1.0, 10.0, 100.0, 1000.0], [5.0, 10.0, 20.0, 50.0])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors, every in (((1, 2, 5), 1), ((1,), 1), ((1,), -(-(last - first + 1) // most))):
        values = [f * 10.0**e for e in range(first, last + 1, every) for f in factors]
        values = [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(values) <= most:
            break
    return values if len(values) > 1 or high / low > 10 else ticks(low, high, most)


def odds_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most `most` log-odds from `low` to `high` whose probabilities are round.

    >>> [round(float(sigmoid(value)), 6) for value in odds_ticks(-7.0, 3.0)]
    [0.001, 0.01, 0.1, 0.5, 0.9]
    """
    best: list[float] = []
    for shares in _ROUND_SHARES:
        values = [math.log(p / (1 - p)) for p in shares]
        values = [value for value in values if low <= value <= high]
        for every in (1, 2, 3, 4):
            kept = [v for v in values if every == 1 or round(_tens(v)) % every == 0]
            if len(kept) <= most:
                best = max(best, kept, key=len)
                break
    return best if len(best) > 1 else ticks(low, high, most)


def _tens(value: float) -> float:
    """How many tens of odds: -2 for 1%, 0 for 50%, 2 for 99%."""
    return value / math.log(10)


_SMALL = [10.0**-power for power in range(9, 0, -1)]
_ROUND_SHARES = (
    [*_SMALL, 0.5, *(1 - p for p in reversed(_SMALL))],
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99],
    [share / 20 for share in range(1, 20)],
)


def tick_labels(values: Sequence[float], kind: str) -> list[str]:
    """What is written at `values`.

    `kind` is "number", "count" (1,000 or 200k), "bytes", or "odds": log-odds as probabilities.

    >>> tick_labels([0, 5e5, 1e6], "bytes"), tick_labels([0, 2000], "count")
    (['0', '0.5 MB', '1 MB'], ['0', '2,000'])
    >>> tick_labels([0.0, 0.5], "number")
    ['0.0', '0.5']
    """
    if not values:
        return []
    largest = max(map(abs, values))
    if kind == "odds":
        return [odds_text(value) for value in values]
    if kind == "number":  # with the fewest decimals that do not round them
        exact = (d for d in range(6) if all(math.isclose(v, round(v, d)) for v in values))
        decimals = next(exact, 6)
        form = f",.{decimals}f" if largest < 1e6 and decimals <= 5 else ".6g"
        texts = [f"{value:{form}}" for value in values]
        return ["\u2212" + text[1:] if text.startswith("-") else text for text in texts]
    spread = max(values) >= 50 * min((value for value in values if value > 0), default=1.0)
    return [_scaled(value, value if spread else largest, kind) for value in values]


def odds_text(value: float) -> str:
    """Log-odds as a probability in per cent, with the digits that matter near 0% and 100%.

    >>> odds_text(0.0), odds_text(-6.9068), odds_text(9.21024), odds_text(1.0)
    ('50%', '0.1%', '99.99%', '73%')
    """
    p = float(sigmoid(value))
    near = min(p, 1 - p)
    if near <= 0 or abs(value) > 34:
        return "0%" if value < 0 else "100%"
    places = max(0, 1 - math.floor(math.log10(near) + 1e-6) - 2)
    text = f"{100 * p:.{min(places, 12)}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}%"


def _scaled(value: float, largest: float, kind: str) -> str:
    if value == 0:
        return "0"
    if kind == "count" and largest < 1e5:
        return digits(value, 4)
    factor, letter = unit(largest)
    return f"{value / factor:.6g}{' ' if kind == 'bytes' else ''}{letter}" + "B" * (kind == "bytes")
