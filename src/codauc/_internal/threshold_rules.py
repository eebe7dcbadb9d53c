"""Requests for a threshold, as people write them; known without numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from codauc._internal.checks import shown

_EXPECTED = (
    "recall=R, precision=P or fpr=F with a share such as 0.9, f1, or cost=FP:FN with the cost of a "
    "false and of a missed positive, such as cost=1:20"
)


@dataclass(frozen=True)
class ThresholdRule:
    """What a threshold must reach: `measure` at least `share` (`fpr`: at most), or the best of it.

    `costs` are those of a false positive and of a missed one.
    """

    measure: str
    share: float | None = None
    costs: tuple[float, float] | None = None

    def __str__(self) -> str:
        """As it is written, such as recall=0.9."""
        if self.costs is not None:
            return f"{self.measure}={self.costs[0]:g}:{self.costs[1]:g}"
        return self.measure if self.share is None else f"{self.measure}={self.share:g}"


def threshold_rule(text: str) -> ThresholdRule:
    """The rule that a text is.

    >>> threshold_rule("recall=0.9"), str(threshold_rule("cost=1:20"))
    (ThresholdRule(measure='recall', share=0.9, costs=None), 'cost=1:20')
    >>> threshold_rule("recal=0.9")
    Traceback (most recent call last):
        ...
    ValueError: threshold='recal=0.9': expected recall=R, precision=P or fpr=F with a share such \
as 0.9, f1, or cost=FP:FN with the cost of a false and of a missed positive, such as cost=1:20.
    """
    name, _, value = text.strip().partition("=") if isinstance(text, str) else ("", "", "")
    if (name, value) == ("f1", ""):
        return ThresholdRule(name)
    try:
        numbers = [float(part) for part in value.split(":")]
    except ValueError:
        numbers = []
    if name == "cost" and len(numbers) == 2 and all(0 < n < math.inf for n in numbers):
        return ThresholdRule(name, costs=(numbers[0], numbers[1]))
    if len(numbers) == 1:
        share = numbers[0]
        if (name in ("recall", "precision") and 0 < share <= 1) or (
            name == "fpr" and 0 <= share <= 1
        ):
            return ThresholdRule(name, share)
    raise ValueError(f"threshold={shown(text)}: expected {_EXPECTED}.")
