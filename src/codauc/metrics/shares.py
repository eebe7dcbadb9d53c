"""The exact interval of a share: of k out of n."""

from __future__ import annotations

import math


def share_interval(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share, of which `successes` of `trials` are known.

    Its ends are the shares under which so many, or more (fewer), come with a chance of
    (1 - level)/2. Without trials it is all of [0, 1].

    >>> [round(end, 4) for end in share_interval(3, 3)]
    [0.2924, 1.0]
    >>> [round(end, 4) for end in share_interval(0, 10)]
    [0.0, 0.3085]
    """
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else _quantile(tail, successes, trials - successes + 1)
    high = 1.0 if successes == trials else _quantile(1 - tail, successes + 1, trials - successes)
    return low, high


def _quantile(chance: float, a: float, b: float) -> float:
    """Of the beta distribution, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _beta(middle, a, b) < chance else (low, middle)
        if high - low <= 1e-15 * high:
            break
    return (low + high) / 2


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where it converges slowly
        return 1 - _beta(1 - x, b, a)
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log += a * math.log(x) + b * math.log1p(-x)
    return math.exp(log) * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """Lentz's method for the continued fraction of I_x(a, b)."""
    tiny = 1e-300
    c, d = 1.0, 1 / _apart(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _apart(1 + term * d, tiny)
            c = _apart(1 + term / c, tiny)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def _apart(value: float, tiny: float) -> float:
    """The value, or if it is 0 nearly that."""
    return value if abs(value) > tiny else tiny
