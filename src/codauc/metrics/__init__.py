"""How good scores are: AUC with its interval, differences, calibration, evaluation over a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from codauc.metrics.auc_difference import Difference, paired_auc_difference
from codauc.metrics.auc_values import AUC, auc, auc_interval
from codauc.metrics.calibration import Calibration, average_precision, calibrate
from codauc.metrics.thresholds import Threshold, choose_threshold
from codauc.metrics.weighted_auc import weighted_auc_interval

if TYPE_CHECKING:
    from codauc.metrics.evaluation import evaluate, group_auc, predict

__all__ = [
    "AUC",
    "Calibration",
    "Difference",
    "Threshold",
    "auc",
    "auc_interval",
    "average_precision",
    "calibrate",
    "choose_threshold",
    "evaluate",
    "group_auc",
    "paired_auc_difference",
    "predict",
    "weighted_auc_interval",
]


def __getattr__(name: str) -> Any:
    """What needs torch is imported when it is first used: a report does without."""
    if name in ("evaluate", "group_auc", "predict"):
        from codauc.metrics import evaluation

        return getattr(evaluation, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
