"""The grid of (T_0, eta_0), tuned for one worker and kept for all, as the paper does.

What the paper leaves open: a tenth of the training data, held out, decides, and where the best
eta_0 is the largest or the smallest of the grid, the grid is extended by the factor 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from codauc.reproduce.study import FACTOR, Study, Tuned

_MOST = 4  # extensions in one direction


def grid(study: Study) -> list[Tuned]:
    """What is tried first: the paper's, or what was said."""
    lrs = study.size.lrs if study.lr is None else (study.lr,)
    return [Tuned(steps, lr) for steps in study.size.steps for lr in lrs]


def best(found: Mapping[Tuned, float]) -> Tuned:
    """The one with the largest AUC; of equals, the first.

    >>> best({Tuned(2000, 0.1): 0.8, Tuned(2000, 0.01): 0.7})
    Tuned(steps=2000, lr=0.1)
    """
    return max(found, key=lambda tuned: -1.0 if math.isnan(found[tuned]) else found[tuned])


def extension(study: Study, found: Mapping[Tuned, float]) -> list[Tuned]:
    """What is to be tried next: nothing, unless the best eta_0 is at an edge of those tried."""
    if study.lr is not None:
        return []
    chosen = best(found)
    lrs = sorted(tuned.lr for tuned in found if tuned.steps == chosen.steps)
    if chosen.lr == lrs[-1]:
        more = _rounded(chosen.lr * FACTOR)
        allowed = more <= study.largest_lr and more <= max(study.size.lrs) * FACTOR**_MOST
    elif chosen.lr == lrs[0]:
        more = _rounded(chosen.lr / FACTOR)
        allowed = more >= min(study.size.lrs) / FACTOR**_MOST
    else:
        return []
    return [chosen._replace(lr=more)] if allowed else []


def _rounded(lr: float) -> float:
    return float(f"{lr:.3g}")
