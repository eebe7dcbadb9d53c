"""The exact AUC of many scores, and its interval."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import codauc
from benchmarks.measuring import Benchmark, Options, Pairs, alternate
from benchmarks.peers import POSITIVE, peer, torchmetrics

Arrays = tuple[Any, Any]
Way = Callable[[Any, Any], Any]


def sample(options: Options) -> Arrays:
    """Sigmoids of normal numbers in float32, those of positives higher, and labels as int8."""
    size = 100_000 if options.short else 10_000_000
    rng = np.random.default_rng(0)
    labels = (rng.random(size, dtype=np.float32) < POSITIVE).astype(np.int8)
    logits = rng.standard_normal(size, dtype=np.float32) + labels
    return 1 / (1 + np.exp(-logits)), labels


def interval(scores: Any, labels: Any) -> float:
    """The AUC, its interval being computed."""
    return codauc.auc_interval(scores, labels).value


def sklearn() -> Way:
    """Scikit-learn's, which takes the labels first."""
    score = peer("sklearn.metrics").roc_auc_score
    return lambda scores, labels: score(labels, scores)


def binary_auroc() -> Way:
    """Torchmetrics', exact; it takes tensors, which share the memory of the arrays."""
    score = torchmetrics().binary_auroc
    return lambda scores, labels: score(torch.from_numpy(scores), torch.from_numpy(labels))


def measure(
    options: Options, theirs: Callable[[], Way], ours: Callable[[], Way] = lambda: codauc.auc
) -> Pairs:
    """Both on the same scores; that they agree is looked at first."""
    way, other, arrays = ours(), theirs(), sample(options)
    values = [float(way(*arrays)), float(other(*arrays))]
    if abs(values[0] - values[1]) > 1e-4:
        raise AssertionError(f"ours and theirs give {values}: not the same thing")
    return alternate(lambda: way(*arrays), lambda: other(*arrays), options.times(5))


_AUC = "codauc.auc of 10 million float32 scores"
_INTERVAL = _AUC.replace("auc of", "auc_interval of")

BENCHMARKS = [
    Benchmark(
        "auc/sklearn", _AUC, "sklearn.metrics.roc_auc_score", partial(measure, theirs=sklearn), 0.08
    ),
    Benchmark(
        "auc/interval",
        _INTERVAL,
        "codauc.auc of the same",
        partial(measure, ours=lambda: interval, theirs=lambda: codauc.auc),
        3.0,
    ),
    Benchmark(
        "auc/torchmetrics",
        _AUC,
        "torchmetrics binary_auroc, exact",
        partial(measure, theirs=binary_auroc),
    ),
]
