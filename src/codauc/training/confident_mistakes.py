"""The test samples that a model is most wrong about, by their numbers and file names."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from codauc.data.dataset import Part
from codauc.data.image_files import ImageFiles
from codauc.workers.agreement import gather_bytes
from codauc.workers.group import Group

MOST = 5  # of each class


class ScoredRows(NamedTuple):
    """Log-odds, labels and numbers of the samples of a test set, in the order of the source.

    `own` are the scores of this worker's samples, as the network gives them. With a `bound` the
    scores are those of bins and `rows` is empty: the AUC is off by at most so much.
    """

    scores: NDArray[np.float64]
    labels: NDArray[np.bool_]
    rows: NDArray[np.int64]
    groups: NDArray[np.int64] | None = None  # which a split keeps together
    weights: NDArray[np.float64] | None = None
    own: NDArray[Any] | None = None
    bound: float | None = None


def confident_mistakes(test: ScoredRows, part: Part, group: Group) -> list[dict[str, Any]]:
    """The negatives with the highest scores and the positives with the lowest, on every worker.

    A sample is listed only if it is not on the right side of all of the other class; `beyond` is
    the share of that class which it is on the wrong side of. No inputs are kept, but the names of
    files of images.
    """
    if test.bound is not None:  # nobody knows the rows of the scores
        return []
    scores, labels, rows = test[:3]
    found = list[dict[str, Any]]()
    for positive in (False, True):
        sign = -1.0 if positive else 1.0
        mine, others = (np.flatnonzero(labels == which) for which in (positive, not positive))
        theirs = np.sort(sign * scores[others])
        for i in mine[np.argsort(-sign * scores[mine], kind="stable")][:MOST]:
            beyond = float(np.searchsorted(theirs, sign * scores[i], side="right")) / len(others)
            if beyond > 0:
                score = float(scores[i])
                facts = {"row": int(rows[i]), "positive": positive, "score": score}
                found.append({**facts, "beyond": beyond})
    names = _files(part, [mistake["row"] for mistake in found], group)
    return [mistake | {"file": names.get(mistake["row"])} for mistake in found]


def _files(part: Part, rows: list[int], group: Group) -> dict[int, str]:
    """The names of files by the number of the sample, of all workers; empty for other sources."""
    mine = {}
    if isinstance(part.x, ImageFiles):
        places = np.flatnonzero(np.isin(part.rows.numpy(), rows))
        mine = {int(part.rows[i]): part.x.name(int(i)) for i in places}
    text = json.dumps(list(mine.items())).encode()
    parts = (
        [text] if group.size == 1 else gather_bytes(group, text, "evaluate", torch.device("cpu"))
    )
    return {row: name for each in parts for row, name in json.loads(each)}
