"""A study: one data set at one share of positives, and the runs that the paper made of it.

Known without torch, so that `codauc reproduce --list` comes at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from codauc._internal.checks import choice, whole
from codauc.algorithm.theory import step_limits
from codauc.data.data_settings import DataSettings
from codauc.runs.settings import (
    CommunicationSettings,
    ModelSettings,
    Recipe,
    RunSettings,
    SafetySettings,
)
from codauc.training.recipe import PAPER

WORKERS = (1, 4, 16)  # K
FACTOR = 3  # of T_s, of 1/eta_s and of what eta_0's grid is extended by
KEEP = {71: 0.4, 50: 1.0}  # the share of negatives that is kept, by the per cent of positives
FIXED = 8  # the I of figures that vary K: one that costs nothing at K=16
_BETWEEN_EVALUATIONS = 32  # steps, at least
_EXTENSIONS = 4  # of the grid of eta_0 in one direction, at most


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
        if self.objective == "bce":
            return f"bce-k{self.workers}"
        period = f"-i{self.sync_every}{'x3' * self.growing}" if self.workers > 1 else ""
        return f"k{self.workers}{period}"

    @property
    def label(self) -> str:
        """For legends."""
        if self.objective == "bce":
            return f"cross-entropy, K={self.workers}"
        if self.workers == 1:
            return "K=1 (PPD-SG)"
        return f"K={self.workers}, {'I_0' if self.growing else 'I'}={self.sync_every}"


class Scale(NamedTuple):
    """How large a study is: the network, the side of ImageNet's images, the grid of (T_0, eta_0),
    the I's, stages, evaluations.
    """

    model: str
    side: int
    steps: tuple[int, ...]
    lrs: tuple[float, ...]
    periods: tuple[int, ...]
    stages: int
    evaluations: int


_LRS = (0.1, 0.01, 0.001)
_PERIODS = (1, 8, 64, 512, 1024)
SCALES = {
    "tiny": Scale("patchnet", 32, (64,), _LRS[:1], (1, 8, 32), stages=2, evaluations=16),
    "small": Scale("patchnet", 64, (2048,), _LRS, _PERIODS, stages=2, evaluations=64),
    "paper": Scale("resnet50", 224, (2000, 5000, 10000), _LRS, _PERIODS, stages=3, evaluations=64),
}


class Tuned(NamedTuple):
    """The first stage's length T_0 and step size eta_0."""

    steps: int
    lr: float


@dataclass(frozen=True)
class Study:
    """A data set ("cifar10", ...), the per cent of positives, the scale, and where the data are.

    `decoded` is the directory in which images of folders are decoded, "" where they are not.
    `pretraining` is the data set, by name, on which the weights in `pretrained` were made by this
    package; "" for weights of others, and for none.
    """

    data: str
    percent: int
    scale: str = "small"
    source: str = ""
    pretrained: str | None = None
    device: str = "cpu"
    processes: bool = False  # a process for each worker, not one for all
    lr: float | None = None  # eta_0, where it is not to be tuned
    start: str = "zero"  # what a, b and alpha are at the beginning
    model: str | None = None  # a network that is not the scale's
    steps: int | None = None  # T_0, where it is not the scale's
    decoded: str = ""
    pretraining: str = ""

    def __post_init__(self) -> None:
        choice("data", self.data, tuple(DATA))
        choice("scale", self.scale, tuple(SCALES))
        if self.steps is not None:
            whole("steps", self.steps, least=1, remedy="leave it out for the scale's own")
        if self.lr is not None and not 0 < self.lr <= self.largest_lr:
            raise ValueError(
                f"lr={self.lr:g}: expected above 0 and at most {self.largest_lr:.3g}, 1/(2p(1-p)), "
                "above which alpha may diverge."
            )

    @property
    def folder(self) -> str:
        """For its directory."""
        lr = "" if self.lr is None else f"-eta{self.lr:g}"
        start = "-estimated" if self.start == "estimate" else ""
        tuned = "-finetuned" if self.pretraining else ""
        model = "" if self.model in (None, self.size.model) else f"-{self.model}"
        steps = "" if self.steps is None else f"-t{self.steps}"
        return f"{self.data}-{self.percent}-{self.scale}{model}{tuned}{steps}{lr}{start}"

    @property
    def title(self) -> str:
        """As the paper's captions have it."""
        return f"{DATA[self.data].title}, positive ratio = {self.percent}%"

    @property
    def label(self) -> str:
        """What tells it from other studies of one scale, in a few words."""
        words = [f"{DATA[self.data].title} {self.percent}%", self.network.name]
        words += ["fine-tuned"] * bool(self.pretraining) + ["estimated start"] * (
            self.start != "zero"
        )
        words += [] if self.steps is None else [f"T_0 = {self.steps}"]
        return ", ".join([*words, *([] if self.lr is None else [f"eta_0 = {self.lr:g}"])])

    @property
    def size(self) -> Scale:
        """What the scale means."""
        return SCALES[self.scale]

    @property
    def periods(self) -> tuple[int, ...]:
        """The I's of its figures: the scale's, without those longer than the first stage."""
        longest = min(self.size.steps) if self.steps is None else self.steps
        return tuple(every for every in self.size.periods if every <= longest)

    @property
    def network(self) -> ModelSettings:
        """The network, with patches that leave as many places of images of any side."""
        name, side = self.model or self.size.model, DATA[self.data].side(self.scale)
        larger = name == "patchnet" and side != _CIFAR_SIDE
        arguments = {"patch": 4 * side // _CIFAR_SIDE} if larger else {}
        return ModelSettings(name=name, arguments=arguments, pretrained=self.pretrained)

    @property
    def network_text(self) -> str:
        """The network, and what it begins with."""
        if self.pretraining:
            return f"{self.network.name}, pretrained on {DATA[self.pretraining].title}"
        return f"{self.network.name}{', pretrained' * (self.pretrained is not None)}"

    @property
    def largest_lr(self) -> float:
        """The largest eta_0 with which the proofs keep alpha bounded, by the share of positives."""
        return step_limits(1 / (1 + KEEP[self.percent])).refuse

    @property
    def grid(self) -> list[Tuned]:
        """What is tuned for one worker and kept for all, as the paper does; or the given eta_0."""
        lrs = self.size.lrs if self.lr is None else (self.lr,)
        lengths = self.size.steps if self.steps is None else (self.steps,)
        return [Tuned(steps, lr) for steps in lengths for lr in lrs]

    def extension(self, found: Mapping[Tuned, float]) -> list[Tuned]:
        """What is to be tried next: nothing, unless the best eta_0 is at an edge of those tried.

        The paper leaves it open; here the grid is extended by the factor 3.
        """
        chosen = best(found)
        lrs = sorted(tuned.lr for tuned in found if tuned.steps == chosen.steps)
        if self.lr is not None or lrs[0] < chosen.lr < lrs[-1]:
            return []
        factor = FACTOR if chosen.lr == lrs[-1] else 1 / FACTOR
        lr = float(f"{chosen.lr * factor:.3g}")
        furthest = FACTOR**_EXTENSIONS
        least, most = min(self.size.lrs) / furthest, max(self.size.lrs) * furthest
        return [chosen._replace(lr=lr)] if least <= lr <= min(most, self.largest_lr) else []

    def settings(
        self, point: StudyPoint, tuned: Tuned, seed: int, *, tuning: bool = False
    ) -> RunSettings:
        """The run of a point; to tune, a tenth of the training data is held out to choose by."""
        return RunSettings(
            data=DATA[self.data].settings(self, tuning=tuning),
            model=self.network,
            recipe=self._recipe(point, tuned),
            communication=self._communication(point),
            safety=SafetySettings(not_finite="stop"),  # a smaller step size would be another run
            seed=seed,
            device=self.device,
        )

    def _recipe(self, point: StudyPoint, tuned: Tuned) -> Recipe:
        recipe = replace(
            PAPER,
            **tuned._asdict(),
            stages=self.size.stages,
            evaluations=self._evaluations(tuned),
            start=self.start,
        )
        if point.objective == "auc":
            return recipe
        return replace(recipe, name="bce", gamma=math.inf, warm_start=1.0, average="none")

    def _evaluations(self, tuned: Tuned) -> int:
        """The scale's number; of short runs fewer, since evaluations take as long as they."""
        if self.steps is None:
            return self.size.evaluations
        steps: int = tuned.steps * sum(FACTOR**stage for stage in range(self.size.stages))
        return max(1, min(self.size.evaluations, steps // _BETWEEN_EVALUATIONS))

    def _communication(self, point: StudyPoint) -> CommunicationSettings:
        bce, every = point.objective == "bce", point.sync_every
        return CommunicationSettings(
            workers=point.workers,
            simulate=not self.processes or point.workers == 1,
            sync_every="once" if bce else f"growing:{every}" if point.growing else every,
            averages="gradients" if bce else "weights",
        )


def best(found: Mapping[Tuned, float]) -> Tuned:
    """The one with the largest AUC; of equals, the first.

    >>> best({Tuned(2000, 0.1): 0.8, Tuned(2000, 0.01): 0.7})
    Tuned(steps=2000, lr=0.1)
    """
    return max(found, key=lambda tuned: -1.0 if math.isnan(found[tuned]) else found[tuned])


class StudySource(NamedTuple):
    """A data set: its name for people, its files, their origin, its test images, a test share.

    Of images in `folders` the scale says the side; an archive's have their own. `tests` is the
    number of test images; 0 where it depends on the folders.
    """

    title: str
    archive: str
    where: str
    folders: bool = False
    tests: int = 10_000
    test_fraction: float = 0.2

    def side(self, scale: str) -> int:
        """The height and width of images, in pixels."""
        return SCALES[scale].side if self.folders else _CIFAR_SIDE

    def settings(self, study: Study, *, tuning: bool) -> DataSettings:
        """How a study reads it: all positives, the share of negatives, the test set watched."""
        files = self.folders and not study.decoded
        return DataSettings(
            source=study.decoded or study.source,
            positive=("half",),
            keep_negatives=KEEP[study.percent],
            watch="validation" if tuning else "test",
            validation_fraction=0.1,
            test_fraction=self.test_fraction,
            image_size=self.side(study.scale) if files else None,
        )


_CIFAR_SIDE = 32
_TORONTO = "that of https://www.cs.toronto.edu/~kriz/cifar.html, or unpacked"
DATA = {
    "cifar10": StudySource("CIFAR-10", "cifar-10-binary.tar.gz", _TORONTO),
    "cifar100": StudySource("CIFAR-100", "cifar-100-binary.tar.gz", _TORONTO),
    "imagenet": StudySource(
        "ImageNet",
        "ILSVRC2012/train",
        "the directory of the class folders of ILSVRC2012's training images (n01440764, ...), or "
        "of folders train and test with them, or a tar file of these",
        folders=True,
        tests=0,
        test_fraction=0.01,
    ),
}
