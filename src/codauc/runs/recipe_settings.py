"""How a network is trained, as frozen data; known without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from codauc._internal.setting_types import check, setting

RECIPES = ("default", "paper", "bce")


@dataclass(frozen=True)
class RecipeSettings:
    """What is requested of a recipe; None where it is left to the recipe and the data.

    `Recipe` declares the settings and says what they mean.
    """

    name: str = "default"
    optimizer: str | None = None
    lr: float | None = None
    dual_lr: float | None = None
    gamma: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    batch_size: int | None = None
    steps: int | None = None
    stages: int | None = None
    factor: float | None = None
    warm_start: float | None = None
    balance: float | None = None
    mix: float | None = None
    min_max_scale: float | None = None
    schedule: str | None = None
    average: str | None = None
    select: str | None = None
    evaluations: int | None = None
    dual_samples: int | None = None
    initial_bias: bool | None = None
    start: str | None = None

    def __post_init__(self) -> None:
        check(self, Recipe)
        if self.warm_start is not None and self.warm_start > 1:
            raise ValueError(
                f"warm_start={self.warm_start:g}: expected at most 1, cross-entropy alone."
            )


@dataclass(frozen=True)
class Recipe(RecipeSettings):
    """A recipe in which everything is decided: the default's values, some of which data change.

    `min_max_scale` multiplies the step size after the warm start: less than 1 where positives are
    few. `average` is what is evaluated: the mean of the models since the last evaluation
    ("window"), a stage's last model ("none"), or, when it ends, the mean of its iterates ("stage").
    `select` is the model that is kept: "steady" takes the latest one that is not worse than the
    best by more than its standard error, "best" the best, "last" the last.
    """

    # fmt: off
    name: str = setting(
        "default", "default; paper: the paper's own settings; bce: cross-entropy alone",
        option="--recipe", choices=RECIPES, common=True)
    optimizer: str = setting(
        "adam", "adaptive or plain gradient steps ({default})", choices=("adam", "sgd"))
    lr: float = setting(
        1e-3, "step size of the first stage ({default}; sgd: 0.1)", metavar="ETA", above=0,
        remedy="use a positive step size, such as 0.001")
    dual_lr: float = setting(
        0.1,
        "with adam: share of the way to their optimum that a, b and alpha move per step "
        "({default})", metavar="ETA", above=0, remedy="use for example 0.1")
    gamma: float = setting(
        math.inf,
        "the pull to the first weights of the stage is 1/gamma ({default}: none; paper: 500)",
        metavar="GAMMA", above=0, below=None, remedy="use inf for no pull to the anchor")
    momentum: float = setting(
        0.9, "momentum of the gradients of the weights ({default})", metavar="BETA", least=0,
        below=1, remedy="use 0 for none")
    weight_decay: float = setting(
        1.0, "decoupled weight decay (tables: {default}; images: 0)", metavar="LAMBDA", least=0,
        remedy="use 0 for none")
    batch_size: int = setting(
        128, "samples per step of each worker (by the data)", metavar="N", least=1,
        remedy="use for example 128")
    steps: int = setting(
        700, "steps of the first stage, after the warm start (by the data)", metavar="T0",
        common=True, least=1, remedy="it is the number of steps of the first stage")
    stages: int = setting(
        1, "stages after the warm start ({default}; paper: 3)", metavar="S", least=1,
        remedy="use 1 for a single stage")
    factor: float = setting(
        1.0, "each stage is this many times as long as the one before ({default}; paper: 3)",
        metavar="F", least=1, remedy="use 1 for equal stages, 3 as the paper does")
    warm_start: float = setting(
        0.3, "share of all steps that train with cross-entropy first ({default}; 0: none)",
        metavar="SHARE", least=0, remedy="it is a share of the steps, 0 for none")
    balance: float = setting(
        0.0, "least share of either class in a batch ({default}: as in the data)", metavar="SHARE",
        least=0, below=0.51, remedy="it is the least share of a class in a batch")
    mix: float = setting(
        0.0,
        "weight of cross-entropy added to the min-max objective (positives/1000, at most 1; "
        "paper: 0)", metavar="LAMBDA", least=0, remedy="use 0 for the min-max objective alone")
    min_max_scale: float = setting(
        1.0, above=0, remedy="leave it out for one by the number of positives")
    schedule: str = setting(
        "cosine", "how the step size falls during the run ({default})",
        choices=("cosine", "constant"))
    average: str = setting(
        "window", "average of models that is evaluated ({default}; images: none; paper: stage)",
        choices=("window", "stage", "none"))
    select: str = setting(
        "steady", "which evaluated model is kept ({default})", choices=("steady", "best", "last"))
    evaluations: int = setting(
        25, "evaluations on the validation set during the run ({default})", metavar="N", least=1,
        remedy="it is the number of evaluations on the validation set")
    dual_samples: int = setting(1024, least=1, remedy="alpha is estimated from samples")
    initial_bias: bool = True
    start: str = setting(
        "zero",
        "first values of a, b and alpha: 0 as in the paper, or estimated for the first weights "
        "({default})", choices=("zero", "estimate"))
    # fmt: on
