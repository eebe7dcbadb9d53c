"""The score from which on a sample counts as positive, and what that reaches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codauc._internal.checks import known_arguments, shown
from codauc._internal.threshold_rules import ThresholdRule, threshold_rule
from codauc.metrics.score_classes import checked, require_both
from codauc.metrics.shares import share_interval

Counts = NDArray[np.int64]


class UnreachableError(ValueError):
    """No threshold reaches what is asked for."""


@dataclass(frozen=True)
class Confusion:
    """How many samples of each class are on which side of a threshold."""

    found: int  # positives that count as positive
    missed: int
    false: int  # negatives that count as positive
    right: int

    @property
    def recall(self) -> float:
        """The share of the positives that are found."""
        return _ratio(self.found, self.found + self.missed)

    @property
    def precision(self) -> float:
        """The share of positives in what counts as positive."""
        return _ratio(self.found, self.found + self.false)

    @property
    def fpr(self) -> float:
        """The share of the negatives that count as positive."""
        return _ratio(self.false, self.false + self.right)

    @property
    def f1(self) -> float:
        """The harmonic mean of recall and precision."""
        return _ratio(2 * self.found, 2 * self.found + self.false + self.missed)


@dataclass(frozen=True)
class Threshold:
    """A sample counts as positive if its score is at least `value`.

    On the samples by which it was chosen, `positives` and `negatives`, the rule's measure is
    `reached`, with a 95% interval from `low` to `high`; see `choose_threshold`.
    """

    rule: str
    value: float
    reached: float
    low: float
    high: float
    found: int
    positives: int
    false: int
    negatives: int

    def __post_init__(self) -> None:
        numbers = [getattr(self, field.name) for field in fields(self) if field.name != "rule"]
        if not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers):
            raise ValueError(f"a threshold of {shown(numbers)}: expected numbers; it was changed.")
        threshold_rule(self.rule)

    def __str__(self) -> str:
        """What it is and what it reaches, on one line."""
        measure = threshold_rule(self.rule).measure
        name = "cost per sample" if measure == "cost" else measure
        return (
            f"score {self.value:.4g} for {self.rule}: {name} {self.reached:.4g} (95% interval "
            f"{self.low:.4g} to {self.high:.4g}) on the validation set; {self.found} of "
            f"{self.positives} positives found, {self.false} of {self.negatives} negatives beside"
        )

    def positive(self, scores: Any) -> NDArray[np.bool_]:
        """Which scores count as positive."""
        return np.asarray(np.asarray(scores) >= self.value)

    def confusion(self, scores: Any, labels: Any) -> Confusion:
        """The four counts of other samples."""
        labels, positive = np.asarray(labels, bool), self.positive(scores)
        found, false = int((positive & labels).sum()), int((positive & ~labels).sum())
        count = int(labels.sum())
        return Confusion(found, count - found, false, len(labels) - count - false)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(plain: Any) -> Threshold:
        """What `to_dict` gave."""
        try:
            return Threshold(**plain)
        except TypeError as error:
            raise ValueError(f"a threshold that cannot be read ({error})") from error


@known_arguments
def choose_threshold(scores: Any, labels: Any, rule: str) -> Threshold:
    """The threshold that follows a rule on samples that did not train the model.

    - `recall=R`: the highest with a recall of at least R, so with the fewest false positives.
    - `fpr=F`: the lowest at which at most a share F of the negatives count as positive.
    - `precision=P`: of those with a precision of at least P, the one with the largest recall.
    - `f1`: the largest F1. `cost=FP:FN`: the least FP (false positives) + FN (missed positives).

    Equal scores are on one side of it, and it lies in the middle between two different scores.

    The interval is Clopper and Pearson's, exact. For recall and fpr it also holds although the
    threshold is chosen by the same samples: beyond the k-th of n positives lies a share of all
    positives with the distribution Beta(n - k + 1, k), whose quantiles are its ends. For precision
    it is that of the samples that count as positive. F1 and cost rise or fall with recall and fpr:
    their intervals are the values at the ends of those two, each at 97.5%. The last three take the
    threshold as given, so they are a little too good where it was chosen by few samples.

    Raises:
        UnreachableError: no threshold reaches it; the message says what can be reached.

    >>> scores, labels = [0.1, 0.2, 0.3, 0.4, 0.6, 0.9], [0, 0, 1, 0, 1, 1]
    >>> chosen = choose_threshold(scores, labels, "recall=0.6")
    >>> chosen.value, chosen.found, chosen.false, round(chosen.low, 2), round(chosen.high, 2)
    (0.5, 2, 0, 0.09, 0.99)
    """
    asked = threshold_rule(rule)
    values, positive = checked(scores, labels, columns=False)
    require_both(int(positive.sum()), int((~positive).sum()))
    cuts = _Cuts(np.asarray(values, np.float64), positive)
    at = _best(asked, cuts)
    confusion = cuts.confusion(at)
    measured = _measured(asked, confusion)
    counts = {"found": confusion.found, "positives": cuts.positives}
    counts |= {"false": confusion.false, "negatives": cuts.negatives}
    return Threshold(str(asked), cuts.value(at), *measured, **counts)


class _Cuts:
    """Every way to divide sorted scores: place i has the i highest different scores above."""

    def __init__(self, scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> None:
        order = np.argsort(-scores, kind="stable")
        self.scores, marks = scores[order], positive[order]
        last = np.append(np.diff(self.scores) != 0, True)  # of equal scores
        self.ends = np.append(0, np.flatnonzero(last) + 1)
        self.found: Counts = np.append(0, np.cumsum(marks))[self.ends]
        self.false: Counts = self.ends - self.found
        self.positives, self.negatives = int(self.found[-1]), int(self.false[-1])

    def value(self, at: int) -> float:
        """A score that divides there."""
        end = int(self.ends[at])
        if end == 0:
            return float(np.nextafter(self.scores[0], np.inf))
        if end == len(self.scores):
            return float(self.scores[-1])
        high, low = float(self.scores[end - 1]), float(self.scores[end])
        middle = low + (high - low) / 2
        return middle if low < middle else high

    def confusion(self, at: int) -> Confusion:
        """The four counts there."""
        found, false = int(self.found[at]), int(self.false[at])
        return Confusion(found, self.positives - found, false, self.negatives - false)


def _best(rule: ThresholdRule, cuts: _Cuts) -> int:
    """The place that a rule chooses."""
    found, false = cuts.found, cuts.false
    if rule.costs is not None:
        return int(np.argmin(rule.costs[0] * false + rule.costs[1] * (cuts.positives - found)))
    if rule.measure == "f1":
        return int(np.argmax(2 * found / np.maximum(found + false + cuts.positives, 1)))
    assert rule.share is not None
    if rule.measure == "recall":
        return int(np.argmax(found >= rule.share * cuts.positives - 1e-9))
    if rule.measure == "fpr":
        at = int(np.flatnonzero(false <= rule.share * cuts.negatives + 1e-9)[-1])
    else:
        allowed = (found >= rule.share * (found + false) - 1e-9) & (found > 0)
        at = int(np.argmax(np.where(allowed, found, 0)))  # the first: the fewest false ones
    if at == 0:  # nothing would count as positive
        raise UnreachableError(_reachable(rule, cuts))
    return at


def _reachable(rule: ThresholdRule, cuts: _Cuts) -> str:
    there = np.flatnonzero(cuts.found > 0)
    if rule.measure == "fpr":
        at, word = int(there[0]), "lowest"
    else:
        precision = cuts.found[there] / (cuts.found[there] + cuts.false[there])
        at, word = int(there[np.argmax(precision)]), "highest"
    best = cuts.confusion(at)
    reached = best.fpr if rule.measure == "fpr" else best.precision
    # rounded to the side that can be asked for
    digits = math.ceil(reached * 1e4) if rule.measure == "fpr" else math.floor(reached * 1e4)
    return (
        f"{rule} is not reached with {cuts.positives} positives and "
        f"{cuts.negatives} negatives: the {word} {rule.measure} that finds a positive is "
        f"{reached:.4g}, with recall {best.recall:.4g}; ask for {rule.measure}={digits / 1e4:g}."
    )


def _measured(rule: ThresholdRule, confusion: Confusion) -> tuple[float, float, float]:
    """What a rule's measure reaches, and its interval."""
    c, measure = confusion, rule.measure
    pairs: Mapping[str, tuple[int, int]] = {
        "recall": (c.found, c.found + c.missed),
        "fpr": (c.false, c.false + c.right),
        "precision": (c.found, c.found + c.false),
    }
    if measure in pairs:
        return getattr(c, measure), *share_interval(*pairs[measure])
    recalls, rates = (share_interval(*pairs[name], level=0.975) for name in ("recall", "fpr"))
    ends = [_combined(rule, c, *ends) for ends in (*zip(recalls, reversed(rates), strict=True),)]
    return _combined(rule, c, c.recall, c.fpr), min(ends), max(ends)


def _combined(rule: ThresholdRule, c: Confusion, recall: float, fpr: float) -> float:
    """F1, or the cost per sample, of a recall and a share of false positives."""
    positives, negatives = c.found + c.missed, c.false + c.right
    found, false = recall * positives, fpr * negatives
    if rule.costs is None:
        return 2 * found / (found + false + positives)
    total = rule.costs[0] * false + rule.costs[1] * (positives - found)
    return total / (positives + negatives)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
