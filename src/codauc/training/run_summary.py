"""The test set at the end of a run, and what summary.json holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from codauc.data.dataset import DataSet
from codauc.metrics.auc_values import auc_interval
from codauc.metrics.calibration import average_precision
from codauc.training.loop import Trained
from codauc.training.validation import gathered, scores_of
from codauc.version import __version__
from codauc.workers.group import Group


def scores_of_test_set(trained: Trained, opened: DataSet, group: Group) -> tuple[Any, Any] | None:
    """The test set's log-odds and labels, in the order of the source, on every worker.

    Where a sample has no finite score there is a note in place of test results.
    """
    part = opened.test
    if part is None:
        return None
    assert part.y is not None
    scores = gathered(scores_of(trained.model, part), group)
    labels = gathered(part.y.numpy().astype(np.bool_), group)
    rows = gathered(part.rows.numpy(), group)
    bad = ~np.isfinite(scores)
    if bad.any():
        trained.notes.append(
            f"No test AUC: {int(bad.sum())} of {len(bad)} test samples have no finite score, the "
            f"first is row {int(rows[bad].min())}."
        )
        return None
    order = np.argsort(rows, kind="stable")
    return trained.calibration.log_odds(scores)[order], labels[order]


def summary_of(trained: Trained, opened: DataSet, test: tuple[Any, Any] | None) -> dict[str, Any]:
    """What summary.json holds."""
    train_part = opened.train
    auc = None if test is None else auc_interval(*test)
    return {
        "test_auc": None if auc is None else auc.value,
        "auc_low": None if auc is None else auc.low,
        "auc_high": None if auc is None else auc.high,
        "average_precision": None if test is None else average_precision(*test),
        "validation_auc": trained.validation_auc,
        "steps": trained.steps,
        "best_step": trained.step,
        "rounds": int(trained.ledger["rounds"]),
        "bytes_per_worker": int(trained.ledger["bytes_sent"]),
        "seconds": trained.seconds,
        "computing": trained.ledger["computing"],
        "communicating": trained.ledger["communicating"],
        "waiting": trained.ledger["waiting"],
        "pos_ratio": train_part.positives / train_part.samples,
        "train_samples": train_part.samples,
        "validation_samples": 0 if opened.validation is None else opened.validation.samples,
        "test_samples": 0 if opened.test is None else opened.test.samples,
        "test_positives": 0 if opened.test is None else opened.test.positives,
        "workers": [count._asdict() for count in train_part.counts],
        "data": trained.settings.data.source,
        "target": trained.settings.data.target,
        "positive": list(opened.positive),
        "negative": list(opened.negative[:20]),
        "model": {
            "name": trained.settings.model.name,
            "parameters": sum(p.numel() for p in trained.model.parameters()),
        },
        "shape": list(opened.shape),
        "calibration": trained.calibration._asdict(),
        "recipe": trained.settings.recipe.name,
        "sync_every": trained.settings.communication.sync_every,
        "notes": trained.notes,
        "finished": not trained.interrupted,
        "interrupted": trained.interrupted,
        "version": __version__,
    }
