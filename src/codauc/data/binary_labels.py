"""From many classes to two, and from balanced to imbalanced."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codauc._internal.checks import known_arguments, listed, real, whole
from codauc._internal.random_streams import generator


@known_arguments
def binarise(
    labels: Tensor | Sequence[str], positive: Collection[int | str] | Literal["half"]
) -> Tensor:
    """True where the label is one of the classes in `positive`, False elsewhere.

    Labels are numbers, or texts as `image_table` gives them.

    `positive="half"` names the first half of the classes that occur, in ascending order: 0 to 4 of
    ten classes, 0 to 49 of a hundred. Of an odd number, the middle class is negative.

    >>> binarise(torch.tensor([0, 1, 2, 1]), positive={1, 2})
    tensor([False,  True,  True,  True])
    >>> binarise(["benign", "malignant"], positive=["malignant"])
    tensor([False,  True])
    >>> binarise(torch.tensor([0, 1, 2, 1]), positive="half")
    tensor([ True, False, False, False])
    """
    present, which = _classes(labels)
    chosen = _chosen(positive, present)
    missing = list(chosen.difference(present))
    if missing:
        raise ValueError(
            f"positive names {listed(missing)}: expected classes that occur in the labels, "
            f"which are {listed(present)}; name only these."
        )
    if len(chosen) in (0, len(present)):
        shown = positive if isinstance(positive, str) else list(positive)
        raise ValueError(
            f"positive={shown!r}: expected some but not all of the classes "
            f"{listed(present)}; AUC needs both positives and negatives."
        )
    return torch.tensor([name in chosen for name in present], device=which.device)[which]


def _classes(labels: Tensor | Sequence[str]) -> tuple[list[Any], Tensor]:
    """The classes in their order, and which of them each label is."""
    if isinstance(labels, Tensor):
        if bool(labels.isnan().any()):
            raise ValueError("labels hold NaN: expected a class for each sample; leave those out.")
        classes, which = torch.unique(labels, return_inverse=True)
        return classes.tolist(), which
    names, places = np.unique(one_kind("labels", labels), return_inverse=True)
    return names.tolist(), torch.from_numpy(places)


def one_kind(name: str, values: Any) -> NDArray[Any]:
    """Names as an array; an error if texts and numbers are mixed, or one is missing."""
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise ValueError(f"{name}={values!r}: expected a list, one for each sample.")
    if isinstance(values, np.ndarray) and values.dtype.kind != "O":
        return values
    kinds = {type(value) for value in (values.tolist() if hasattr(values, "tolist") else values)}
    if len(kinds) > 1 or type(None) in kinds:
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(
            f"{name} hold {found}: expected one kind, such as texts, and none missing."
        )
    return np.asarray(values)


def _chosen(positive: Collection[int | str] | str, present: list[Any]) -> set[Any]:
    if isinstance(positive, str):
        if positive != "half":
            near = difflib.get_close_matches(positive.lower(), ["half"])
            hint = "did you mean 'half'?" if near else "name the classes by their numbers, as [1]."
            raise ValueError(
                f"positive={positive!r}: expected a collection of classes or 'half'; {hint}"
            )
        return set(present[: len(present) // 2])
    if hasattr(positive, "tolist"):
        positive = positive.tolist()
    if not isinstance(positive, Collection):
        raise ValueError(
            f"positive={positive!r}: expected a collection of classes; write [{positive!r}]."
        )
    return set(positive)


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
    positive = known_positives(labels)
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


def known_positives(labels: Tensor) -> Tensor:
    """Which labels [N] are positive; an error unless they are bool, 0/1 or -1/+1."""
    values = torch.unique(labels).tolist()
    if labels.dim() != 1 or not (set(values) <= {0, 1} or set(values) <= {-1, 1}):
        raise ValueError(
            f"labels of shape {list(labels.shape)} hold {listed(values)}: expected shape "
            "[N] and values bool, 0/1 or -1/+1; use binarise to choose the positive classes."
        )
    return labels > 0
