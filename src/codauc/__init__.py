"""Train deep networks for the largest AUC, with few communications."""

from codauc.coda import CoDA
from codauc.evaluation import evaluate, group_auc, predict
from codauc.group import Group, LocalGroup
from codauc.group.distributed import distributed
from codauc.launch import launch
from codauc.loss import MinMaxAUCLoss
from codauc.metrics import auc, auc_interval
from codauc.optim import PPDSG
from codauc.saved import load_model, save_model
from codauc.schedules import Stage, constant, geometric, np_ppd_sg, one_shot, theorem
from codauc.version import __version__ as __version__

__all__ = [
    "PPDSG",
    "CoDA",
    "Group",
    "LocalGroup",
    "MinMaxAUCLoss",
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
]
