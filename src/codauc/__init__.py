"""Train deep networks for the largest AUC, with few communications."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from codauc.version import __version__ as __version__

if TYPE_CHECKING:
    from codauc.adaptive import PPDAdam
    from codauc.callbacks import Callback
    from codauc.coda import CoDA
    from codauc.config import RunSettings
    from codauc.estimator import AUCClassifier
    from codauc.evaluation import evaluate, group_auc, predict
    from codauc.group import Group, LocalGroup
    from codauc.group.distributed import distributed
    from codauc.launching import launch
    from codauc.loss import MinMaxAUCLoss
    from codauc.metrics import auc, auc_interval
    from codauc.optim import PPDSG
    from codauc.running import train
    from codauc.saved import load_model, save_model
    from codauc.schedules import Stage, constant, geometric, np_ppd_sg, one_shot, theorem
    from codauc.stack import Stack, stacked

__all__ = [
    "PPDSG",
    "AUCClassifier",
    "Callback",
    "CoDA",
    "Group",
    "LocalGroup",
    "MinMaxAUCLoss",
    "PPDAdam",
    "RunSettings",
    "Stack",
    "Stage",
    "auc",
    "auc_interval",
    "constant",
    "distributed",
    "evaluate",
    "geometric",
    "group_auc",
    "launch",
    "load_model",
    "np_ppd_sg",
    "one_shot",
    "predict",
    "save_model",
    "stacked",
    "theorem",
    "train",
]

# Names come from their modules when they are first asked for: torch takes seconds to import, and
# `codauc --help` does without it.
_HOMES = {
    "AUCClassifier": "estimator",
    "Callback": "callbacks",
    "RunSettings": "config",
    "train": "running",
    "PPDAdam": "adaptive",
    "PPDSG": "optim",
    "CoDA": "coda",
    "Group": "group",
    "LocalGroup": "group",
    "MinMaxAUCLoss": "loss",
    "auc": "metrics",
    "auc_interval": "metrics",
    "distributed": "group.distributed",
    "evaluate": "evaluation",
    "group_auc": "evaluation",
    "predict": "evaluation",
    "launch": "launching",
    "load_model": "saved",
    "save_model": "saved",
    "Stack": "stack",
    "stacked": "stack",
    **dict.fromkeys(
        ("Stage", "constant", "geometric", "np_ppd_sg", "one_shot", "theorem"), "schedules"
    ),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"codauc.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    try:
        return import_module(f"codauc.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"codauc.{name}":
            raise
        raise AttributeError(f"module 'codauc' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
