"""A study: one data set at one share of positives, and the runs that the paper made of it.

Known without torch, so that `codauc reproduce --list` comes at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from codauc._internal.checks import choice
from codauc.algorithm.theory import step_limits
from codauc.data.data_settings import DataSettings
from codauc.runs.settings import (
    CommunicationSettings,
    ModelSettings,
    RecipeSettings,
    RunSettings,
    SafetySettings,
)

WORKERS = (1, 4, 16)  # K
FACTOR = 3  # of T_s, of 1/eta_s and of what eta_0's grid is extended by
GAMMA = 500.0
BATCH = 32
KEEP = {71: 0.4, 50: 1.0}  # the share of negatives that is kept, by the per cent of positives
FIXED = 8  # the I of figures that vary K: one that costs nothing at K=16


@dataclass(frozen=True)
class StudyPoint:
    """What a figure varies: K, I, whether I grows by 3 from stage to stage, and the objective.

    >>> StudyPoint(16, 8).name, StudyPoint(16, 8, growing=True).label
    ('k16-i8', 'K=16, I_0=8')
    >>> StudyPoint(16, objective="bce").name
    'bce-k16'
    """

    workers: int
    sync_every: int = 1
    growing: bool = False
    objective: str = "auc"

    @property
    def name(self) -> str:
        """For directories."""
        name = f"k{self.workers}"
        if self.objective == "bce":
            return f"bce-{name}"
        if self.workers > 1:
            name += f"-i{self.sync_every}{'x3' * self.growing}"
        return name

    @property
    def label(self) -> str:
        """For legends."""
        if self.objective == "bce":
            return f"cross-entropy, K={self.workers}"
        if self.workers == 1:
            return "K=1 (PPD-SG)"
        return f"K={self.workers}, {'I_0' if self.growing else 'I'}={self.sync_every}"


class Scale(NamedTuple):
    """How large a study is: the network, the grid of (T_0, eta_0), the I's, stages, evaluations."""

    model: str
    steps: tuple[int, ...]
    lrs: tuple[float, ...]
    periods: tuple[int, ...]
    stages: int
    evaluations: int


_LRS = (0.1, 0.01, 0.001)
_PERIODS = (1, 8, 64, 512, 1024)
SCALES = {
    "tiny": Scale("patchnet", (64,), _LRS[:1], (1, 8, 32), stages=2, evaluations=16),
    "small": Scale("patchnet", (2048,), _LRS, _PERIODS, stages=2, evaluations=64),
    "paper": Scale("resnet50", (2000, 5000, 10000), _LRS, _PERIODS, stages=3, evaluations=64),
}


class Tuned(NamedTuple):
    """The first stage's length T_0 and step size eta_0."""

    steps: int
    lr: float


@dataclass(frozen=True)
class Study:
    """A data set ("cifar10", ...), the per cent of positives, the scale, and where the data are."""

    data: str
    percent: int
    scale: str = "small"
    source: str = ""
    pretrained: str | None = None
    device: str = "cpu"
    processes: bool = False  # a process for each worker, not one for all
    lr: float | None = None  # eta_0, where it is not to be tuned
    start: str = "zero"  # what a, b and alpha are at the beginning

    def __post_init__(self) -> None:
        choice("data", self.data, tuple(DATA))
        choice("scale", self.scale, tuple(SCALES))
        if self.lr is not None and not 0 < self.lr <= self.largest_lr:
            raise ValueError(
                f"lr={self.lr:g}: expected above 0 and at most {self.largest_lr:.3g}, 1/(2p(1-p)), "
                "above which alpha may diverge."
            )

    @property
    def name(self) -> str:
        """As it is typed."""
        return f"{self.data}-{self.percent}"

    @property
    def folder(self) -> str:
        """For its directory."""
        lr = "" if self.lr is None else f"-eta{self.lr:g}"
        return f"{self.name}-{self.scale}{lr}{'-estimated' * (self.start == 'estimate')}"

    @property
    def title(self) -> str:
        """As the paper's captions have it."""
        return f"{DATA[self.data].title}, positive ratio = {self.percent}%"

    @property
    def size(self) -> Scale:
        """What the scale means."""
        return SCALES[self.scale]

    def iterations(self, steps: int) -> int:
        """Those of a run whose first stage has so many."""
        return sum(steps * FACTOR**s for s in range(self.size.stages))

    @property
    def largest_lr(self) -> float:
        """The largest eta_0 with which the proofs keep alpha bounded."""
        return step_limits(self.ratio).refuse

    @property
    def ratio(self) -> float:
        """The share of positives in the training data."""
        return 1 / (1 + KEEP[self.percent])

    def settings(
        self, point: StudyPoint, tuned: Tuned, seed: int, *, tuning: bool = False
    ) -> RunSettings:
        """The run of a point; to tune, a tenth of the training data is held out to choose by."""
        return RunSettings(
            data=DATA[self.data].settings(self, tuning=tuning),
            model=ModelSettings(name=self.size.model, pretrained=self.pretrained),
            recipe=self._recipe(point, tuned),
            communication=_communication(point, simulate=not self.processes),
            safety=SafetySettings(not_finite="stop"),  # a smaller step size would be another run
            seed=seed,
            device=self.device,
        )

    def _recipe(self, point: StudyPoint, tuned: Tuned) -> RecipeSettings:
        bce = point.objective == "bce"
        return RecipeSettings(
            name="bce" if bce else "paper",
            optimizer="sgd",
            lr=tuned.lr,
            dual_lr=1.0,
            gamma=math.inf if bce else GAMMA,
            momentum=0.0,
            weight_decay=0.0,
            batch_size=BATCH,
            steps=tuned.steps,
            stages=self.size.stages,
            factor=float(FACTOR),
            warm_start=1.0 if bce else 0.0,
            balance=0.0,
            mix=0.0,
            schedule="constant",
            average="none" if bce else "stage",
            select="last",
            evaluations=self.size.evaluations,
            initial_bias=False,
            start=self.start,
        )


def _communication(point: StudyPoint, *, simulate: bool) -> CommunicationSettings:
    workers = point.workers
    every: int | str = f"growing:{point.sync_every}" if point.growing else point.sync_every
    bce = point.objective == "bce"
    return CommunicationSettings(
        workers=workers,
        simulate=simulate or workers == 1,
        sync_every="once" if bce else every,
        averages="gradients" if bce else "weights",
    )


class StudySource(NamedTuple):
    """A data set: its name for people, its files, their origin, its images' side, a test share."""

    title: str
    archive: str
    where: str
    image_size: int | None = None  # of files; an archive has its own
    test_fraction: float = 0.2

    def settings(self, study: Study, *, tuning: bool) -> DataSettings:
        """How a study reads it: all positives, the share of negatives, the test set watched."""
        small = self.image_size is not None and study.scale != "paper"
        return DataSettings(
            source=study.source,
            positive=("half",),
            keep_negatives=KEEP[study.percent],
            watch="validation" if tuning else "test",
            validation_fraction=0.1,
            test_fraction=self.test_fraction,
            image_size=32 if small else self.image_size,
        )


_TORONTO = "that of https://www.cs.toronto.edu/~kriz/cifar.html, or unpacked"
DATA = {
    "cifar10": StudySource("CIFAR-10", "cifar-10-binary.tar.gz", _TORONTO),
    "cifar100": StudySource("CIFAR-100", "cifar-100-binary.tar.gz", _TORONTO),
    "imagenet": StudySource(
        "ImageNet",
        "ILSVRC2012/train",
        "the directory of the class folders of ILSVRC2012's training images (n01440764, ...)",
        image_size=224,
        test_fraction=0.01,
    ),
}
