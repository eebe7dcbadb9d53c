"""From many classes to two, and from balanced to imbalanced."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor

from codauc.checks import known_arguments, real, whole
from codauc.data.seeds import generator


@known_arguments
def binarise(labels: Tensor, positive: Collection[int]) -> Tensor:
    """True where the label is one of the classes in `positive`, False elsewhere.

    >>> binarise(torch.tensor([0, 1, 2, 1]), positive={1, 2})
    tensor([False,  True,  True,  True])
    """
    if not isinstance(positive, Collection):
        raise ValueError(
            f"positive={positive!r}: expected a collection of classes; write [{positive!r}]."
        )
    classes, which = torch.unique(labels, return_inverse=True)
    present, chosen = classes.tolist(), set(positive)
    missing = list(chosen.difference(present))
    if missing:
        raise ValueError(
            f"positive names {_some(missing)}: expected classes that occur in the labels, "
            f"which are {_some(present)}; name only these."
        )
    if len(chosen) in (0, len(present)):
        raise ValueError(
            f"positive={list(positive)!r}: expected some but not all of the classes "
            f"{_some(present)}; AUC needs both positives and negatives."
        )
    return torch.tensor([name in chosen for name in present], device=labels.device)[which]


@known_arguments
def thin_negatives(labels: Tensor, keep: float, seed: int) -> Tensor:
    """Indices, in their original order, of all positives and a random part of the negatives.

    Of n negatives, `keep * n` rounded to the nearest integer remain, and at least one.
    The `seed` decides which. Labels are bool, 0/1 or -1/+1, of shape [N].

    >>> labels = torch.tensor([1, 0, 0, 0, 0, 1])
    >>> labels[thin_negatives(labels, keep=0.5, seed=0)].bincount().tolist()
    [2, 2]
    """
    remedy = "it is the part of the negatives to keep, and 1 keeps all"
    part = real("keep", keep, above=0, remedy=remedy)
    if part > 1:
        raise ValueError(f"keep={keep!r}: expected a number > 0 and <= 1; {remedy}.")
    seed = whole("seed", seed, least=0, remedy="use 0 if any seed will do")
    positive = _positive(labels)
    negatives = (~positive).nonzero().squeeze(1)
    if not len(negatives):
        raise ValueError(
            "labels hold 0 negatives: expected at least 1; name fewer classes positive."
        )
    source = generator(np.random.SeedSequence(seed, spawn_key=(1,)))
    shuffled = torch.randperm(len(negatives), generator=source)
    kept = shuffled[: max(1, round(part * len(negatives)))]
    chosen = positive.clone()
    chosen[negatives[kept.to(labels.device)]] = True
    return chosen.nonzero().squeeze(1)


def _positive(labels: Tensor) -> Tensor:
    values = torch.unique(labels).tolist()
    if labels.dim() != 1 or not (set(values) <= {0, 1} or set(values) <= {-1, 1}):
        raise ValueError(
            f"labels of shape {list(labels.shape)} hold {_some(values)}: expected shape "
            "[N] and values bool, 0/1 or -1/+1; use binarise to choose the positive classes."
        )
    return labels > 0


def _some(values: list[int]) -> str:
    shown = ", ".join(map(repr, values[:10]))
    return f"{shown}, ... ({len(values)} in all)" if len(values) > 10 else shown or "none"
