"""Train deep networks for the largest AUC, with few communications."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from codauc.version import __version__ as __version__

if TYPE_CHECKING:
    from codauc.algorithm.engine import CoDA
    from codauc.algorithm.loss import MinMaxAUCLoss
    from codauc.algorithm.outer_step import Nesterov
    from codauc.algorithm.ppdadam import PPDAdam
    from codauc.algorithm.ppdsg import PPDSG
    from codauc.algorithm.schedules import Stage, constant, geometric, np_ppd_sg, one_shot, theorem
    from codauc.algorithm.sites import Present
    from codauc.integrations.estimator import AUCClassifier
    from codauc.metrics.auc_values import auc, auc_interval
    from codauc.metrics.evaluation import evaluate, group_auc, predict
    from codauc.models.model_file import load_model, save_model
    from codauc.runs.settings import RunSettings
    from codauc.training.callbacks import Callback
    from codauc.training.train_call import train
    from codauc.workers.group import Group, LocalGroup
    from codauc.workers.launcher import launch
    from codauc.workers.torch_distributed import distributed

__all__ = [
    "PPDSG",
    "AUCClassifier",
    "Callback",
    "CoDA",
    "Group",
    "LocalGroup",
    "MinMaxAUCLoss",
    "Nesterov",
    "PPDAdam",
    "Present",
    "RunSettings",
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
    "theorem",
    "train",
]

# Names come from their modules when they are first asked for: torch takes seconds to import, and
# `codauc --help` does without it.
_HOMES = {
    "AUCClassifier": "integrations.estimator",
    "Callback": "training.callbacks",
    "CoDA": "algorithm.engine",
    "Group": "workers.group",
    "LocalGroup": "workers.group",
    "MinMaxAUCLoss": "algorithm.loss",
    "Nesterov": "algorithm.outer_step",
    "PPDAdam": "algorithm.ppdadam",
    "PPDSG": "algorithm.ppdsg",
    "Present": "algorithm.sites",
    "RunSettings": "runs.settings",
    "auc": "metrics.auc_values",
    "auc_interval": "metrics.auc_values",
    "distributed": "workers.torch_distributed",
    "evaluate": "metrics.evaluation",
    "group_auc": "metrics.evaluation",
    "launch": "workers.launcher",
    "load_model": "models.model_file",
    "predict": "metrics.evaluation",
    "save_model": "models.model_file",
    "train": "training.train_call",
    **dict.fromkeys(
        ("Stage", "constant", "geometric", "np_ppd_sg", "one_shot", "theorem"),
        "algorithm.schedules",
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
