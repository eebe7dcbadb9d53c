"""Numbers as people read them, and the little that is assumed of numbers read from files."""

from __future__ import annotations

import math
from typing import Any

_LARGE = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def number(value: Any) -> float | None:
    """`value` as a finite float; None for anything else, so that a report can leave it out.

    >>> number(3), number(None), number(float("nan")), number("3"), number(True)
    (3.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        plain = float(value)
    except OverflowError:
        return None
    return plain if math.isfinite(plain) else None


def unit(largest: float) -> tuple[float, str]:
    """The SI factor in which `largest` is at least 1, and its letter.

    >>> unit(2_500_000), unit(12)
    ((1000000.0, 'M'), (1.0, ''))
    """
    return next(((factor, name) for factor, name in _LARGE if largest >= factor), (1.0, ""))


def count(value: float) -> str:
    """A whole number with commas.

    >>> count(1234567.0)
    '1,234,567'
    """
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Bytes in SI units.

    >>> size(0), size(1500), size(123_456_789)
    ('0 B', '1.5 kB', '123 MB')
    """
    factor, letter = unit(abs(value))
    return f"{digits(value / factor, 3)} {letter}B"


def duration(seconds: float) -> str:
    """Seconds in the two largest units that matter.

    >>> duration(0.25), duration(12.34), duration(125), duration(3725), duration(90000)
    ('0.25 s', '12.3 s', '2 min 5 s', '1 h 2 min', '25 h 0 min')
    """
    if seconds < 60:
        return f"{digits(seconds, 3)} s"
    if round(seconds) < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {rest} min"


def digits(value: float, places: int) -> str:
    """`value` with `places` significant digits, without an exponent where that is readable.

    >>> digits(0.012345, 3), digits(1234.5, 3), digits(5.0, 3), digits(1e-9, 3)
    ('0.0123', '1,234', '5', '1e-09')
    """
    if abs(value) >= 10 ** (places - 1) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.{places}g}"


def share(value: float) -> str:
    """A share as per cent, small ones with more digits.

    >>> share(0.5), share(0.0123), share(0.00004), share(0.0)
    ('50%', '1.2%', '0.004%', '0%')
    """
    return f"{digits(100 * value, 3 if 0.1 < value < 1 else 2)}%"


def percent(value: float) -> str:
    """A share as per cent for a column of a table: one decimal, more for small ones.

    >>> percent(0.5), percent(0.0123), percent(0.00004), percent(0.0)
    ('50.0%', '1.2%', '0.004%', '0.0%')
    """
    return f"{digits(100 * value, 2)}%" if 0 < value < 0.01 else f"{100 * value:.1f}%"


def auc_text(value: float | None) -> str:
    """An AUC with four digits, or a dash; never rounded up to a perfect 1.

    >>> auc_text(0.93456), auc_text(None), auc_text(0.99999), auc_text(1.0)
    ('0.9346', '-', '0.9999', '1.0000')
    """
    if value is None:
        return "-"
    return f"{min(value, 0.9999) if value < 1 else value:.4f}"


def interval_text(low: float | None, high: float | None) -> str:
    """Both ends of an interval of AUC, or nothing if one is not known.

    >>> interval_text(0.9, 0.95), interval_text(None, 0.95)
    ('0.9000 to 0.9500', '')
    """
    return "" if low is None or high is None else f"{low:.4f} to {high:.4f}"


def shortened(text: str, most: int) -> str:
    """`text` with at most `most` characters, its middle left out if it has more.

    >>> shortened("abcdefghij", 5)
    'ab…ij'
    """
    if len(text) <= most:
        return text
    head = most // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"
