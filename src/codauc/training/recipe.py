"""Recipes: what is chosen where nothing was said, and the stages that follow from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from codauc._internal.sync_periods import named_period
from codauc.algorithm.schedules import Stage, geometric
from codauc.runs.settings import CommunicationSettings, Recipe, RunSettings

SYNC_EVERY = 32
SYNC_OFTEN, _UNLIKE = 8, 0.05  # where labels differ between workers at least so far
_NEVER = 10**9  # steps between two rounds: a stage's end is the only one
_LONGEST = 1e9  # steps of a run
_WARM_UP = 0.05  # the share of the run in which the step size rises
_MANY = 1000  # positives with which cross-entropy counts as much as the min-max objective, and
# steps after the warm start are as large as before
_FEW = 100  # positives with which the AUC of a network is mostly chance
_IMAGE_EPOCHS, _IMAGE_DECAY, _IMAGE_WARM_START = 20, 0.5, 0.7
_EPOCHS, _LEAST_STEPS = 40, 1000
# At most as many steps, steps for each positive, and samples that are drawn: twice as many of each
# for tables from `_LONGER` rows on. A table of more samples is seen once all the same.
_MOST_STEPS, _STEPS_OF_POSITIVE, _MOST_SAMPLES = 3000, 5, 512_000
_WIDE = 2000  # numbers from which on a table's network has no pieces, most of its weights
_LONGER = 10_000  # samples from which on a table's run is longer,
_LARGE = 20_000  # from which on it has more of them, if positives are many,
_LARGER = 50_000  # and from which on passes are few
_LAST_SIDE = 4.5  # pixels after the last block of a network for images
_WIDTHS = (16, 32, 64, 128, 128)  # of its blocks
_INPUTS = 384  # pieces of all columns together

# The paper's experiments: section 5, with the smallest T_0 and the largest eta_0 of its grid.
PAPER = Recipe(
    name="paper",
    optimizer="sgd",
    lr=0.1,
    dual_lr=1.0,
    gamma=500.0,
    momentum=0.0,
    weight_decay=0.0,
    batch_size=32,
    steps=2000,
    stages=3,
    factor=3.0,
    warm_start=0.0,
    schedule="constant",
    average="stage",
    select="last",
    evaluations=50,
    initial_bias=False,
)


@dataclass(frozen=True)
class Facts:
    """What a recipe asks of the data: training samples, positives, and whether they are images.

    `linear` says whether the network has linear models, `crossable` whether its members can
    validate each other.
    """

    samples: int
    positives: int
    images: bool
    linear: bool = False
    crossable: bool = False

    @property
    def rarer(self) -> int:
        """Samples of the rarer class."""
        return min(self.positives, self.samples - self.positives)


@dataclass(frozen=True)
class Plan:
    """The stages of a run; the first `warm` of them are trained with cross-entropy."""

    stages: tuple[Stage, ...]
    warm: int

    @property
    def steps(self) -> int:
        """The steps of all stages."""
        return sum(stage.steps for stage in self.stages)


def resolve(recipe: Recipe, workers: int, facts: Facts) -> Recipe:
    """The recipe with a value for everything.

    >>> from codauc.runs.settings import RecipeSettings
    >>> resolve(RecipeSettings(name="paper", lr=0.01), 4, Facts(1000, 100, False)).stages
    3
    """
    if recipe.name == "bce" and recipe.warm_start not in (None, 1.0):
        raise ValueError(
            f"warm_start={recipe.warm_start:g} with recipe bce: expected 1, cross-entropy alone; "
            "leave it out, or use the default recipe."
        )
    usual = PAPER if recipe.name == "paper" else _default(recipe, workers, facts)
    return replace(usual, **{k: v for k, v in asdict(recipe).items() if v is not None})


def _default(recipe: Recipe, workers: int, facts: Facts) -> Recipe:
    plain = recipe.optimizer == "sgd"
    batch = recipe.batch_size or _batch_size(facts, workers)
    warm, linear = recipe.warm_start, facts.linear and recipe.linear_start is not False
    if warm is None:  # logistic regression is a warm start, too
        usual = _IMAGE_WARM_START if facts.images else Recipe.warm_start
        warm = 1.0 if recipe.name == "bce" else 0.0 if linear else usual
    decay = _IMAGE_DECAY if facts.images else _weight_decay(facts.rarer)
    crossed = facts.crossable and facts.rarer < _MANY
    total = _steps(facts, batch * _divisor(facts, workers))
    stages, factor = recipe.stages or Recipe.stages, recipe.factor or Recipe.factor
    geometric(1.0, 1, stages, factor=factor)  # refuses what could not be counted
    parts = sum(factor**s for s in range(stages))
    return Recipe(
        name=recipe.name,
        lr=0.1 if plain else Recipe.lr if facts.images else _step_size(facts.rarer),
        weight_decay=0.0 if plain else decay,
        batch_size=batch,
        steps=max(1, round(total * (1 - warm if warm < 1 else 1) / parts)),
        warm_start=warm,
        average="none" if facts.images else Recipe.average,  # BatchNorm's statistics would not fit
        augment="shift" if facts.images else "none",  # a mirrored letter is another one
        mix=min(1.0, round(facts.positives / _MANY, 4)),
        crossed=crossed,
        select="blend" if crossed and linear and facts.rarer < _FEW else Recipe.select,
        min_max_scale=1.0 if plain else math.sqrt(min(1.0, max(1, facts.positives) / _MANY)),
    )


def _steps(facts: Facts, batch: float) -> float:
    """All steps of a run with batches of this size."""
    much = 2 if facts.samples >= _LONGER and not facts.images else 1
    epochs = _IMAGE_EPOCHS if facts.images else _EPOCHS
    most = min(_MOST_STEPS, _STEPS_OF_POSITIVE * facts.rarer, _MOST_SAMPLES / batch)
    one_pass = facts.samples / batch
    return max(min(epochs * one_pass, much * most), _LEAST_STEPS, one_pass)


def _step_size(rarer: int) -> float:
    """Smaller where positives are few, and soon learned by heart."""
    return float(min(Recipe.lr, max(1e-3, Recipe.lr * math.sqrt(rarer / 300))))


def _weight_decay(rarer: int) -> float:
    """Less where positives are many, and say more than the prior does."""
    return min(Recipe.weight_decay, max(0.1, round(10 / math.sqrt(max(1, rarer)), 3)))


def image_network(side: int) -> dict[str, Any]:
    """The arguments of the network of images whose shorter side has so many pixels.

    Blocks halve the side until about five pixels are left; small images have three, if that many.

    >>> [len(image_network(side)["widths"]) for side in (4, 8, 28, 64, 224)]
    [2, 3, 3, 4, 5]
    """
    halvings = round(math.log2(side / _LAST_SIDE))
    blocks = min(side.bit_length() - 1, max(3, halvings))
    return {"widths": list(_WIDTHS[:blocks]), "residual": True}


def shift_of(sides: Sequence[int]) -> int:
    """By how many pixels images of these sides are shifted at most."""
    return max(1, round(min(sides) / 12))


def _divisor(facts: Facts, workers: int) -> float:
    """By what the batch of each worker is smaller than that of one; all take as many steps.

    A batch with hardly a positive says little, and its noise makes Adam's steps small beside the
    weight decay: on one worker, too, fewer samples cost AUC where positives are few.
    """
    many = facts.images or facts.rarer >= _MANY
    return math.sqrt(workers) if many else 1.0


def _batch_size(facts: Facts, workers: int) -> int:
    """More where there is more."""
    if facts.images:
        return 64
    sizes = ((_LARGE, 128), (_LARGER, 256), (1_000_000, 512))
    alone = next((size for limit, size in sizes if facts.samples < limit), 1024)
    return max(32, round(alone / _divisor(facts, workers)))


def plain_network(numbers: int) -> dict[str, Any]:
    """The arguments of a table's network without members."""
    return {"widths": [256, 256], "dropout": 0.2, "pieces": 0 if numbers > _WIDE else 8}


def table_network(samples: int, positives: int, numbers: int) -> dict[str, Any]:
    """The arguments of a table's network, beside its columns.

    Few positives get more members, of which each is trained without a fold; many more pieces.
    """
    few = min(positives, samples - positives) < _MANY
    much = not few and samples >= _LARGE
    pieces = min(48, _INPUTS // max(1, numbers)) if much else 8
    pieces = 0 if numbers > _WIDE else max(8, pieces)
    members, dropout = 5 if few else 2, 0.2
    if much:  # and a few passes
        dropout = 0.1 if samples < _LARGER else 0.0
    if numbers * (1 + pieces) > _WIDE:
        members = min(members, 3)
    return {"members": members, "widths": [128, 128], "dropout": dropout, "pieces": pieces}


def plan(recipe: Recipe, communication: CommunicationSettings) -> Plan:
    """The stages of a resolved recipe: a warm start, then the paper's shape.

    >>> from codauc.runs.settings import RecipeSettings
    >>> recipe = resolve(RecipeSettings(), 1, Facts(1000, 100, False))
    >>> [(stage.steps, stage.estimate_ab) for stage in plan(recipe, CommunicationSettings()).stages]
    [(300, True), (700, False)]
    """
    r = recipe
    falls = 1.0 if r.schedule == "cosine" else r.factor
    lr = r.lr * r.min_max_scale if 0 < r.warm_start < 1 else r.lr
    stages = []
    for s, stage in enumerate(geometric(lr, r.steps, r.stages, factor=r.factor)):
        period = _period(communication, lr / falls**s, 3**s)
        stages.append(Stage(lr / falls**s, stage.steps, period, r.dual_samples))
    if r.warm_start == 0:
        return Plan(tuple(stages), 0)
    if r.warm_start == 1:
        return Plan(tuple(replace(stage, estimate_ab=True) for stage in stages), len(stages))
    total = sum(stage.steps for stage in stages)
    if total / (1 - r.warm_start) > _LONGEST:
        raise ValueError(
            f"warm_start={r.warm_start:g} before {total} steps: expected a run of at most "
            f"{_LONGEST:g} steps in all; use less, or 1 for cross-entropy alone."
        )
    warm = replace(
        stages[0],
        lr=r.lr,
        steps=max(1, round(total * r.warm_start / (1 - r.warm_start))),
        sync_every=_period(communication, r.lr, 1),
        estimate_ab=True,
    )
    return Plan((warm, *stages), 1)


def communication_for(settings: RunSettings, workers: int, unlike: float) -> CommunicationSettings:
    """How workers communicate: what was left open follows from how far their labels differ.

    Between two rounds a worker follows its own labels, and the mean of such models is not that of
    all data; and workers of a few rows say little.
    """
    asked = settings.communication
    known = settings.recipe.name != "paper" and asked.averages == "weights" and not asked.delay
    differ = bool(unlike) and known and workers > 1
    usual = SYNC_OFTEN if differ and unlike >= _UNLIKE else SYNC_EVERY
    correct, weight = asked.correct, asked.worker_weight
    return replace(
        asked,
        workers=workers,
        sync_every=asked.sync_every or (usual if workers > 1 else None),
        correct=correct if correct != "auto" else "scaffold" if differ else "none",
        worker_weight=weight if weight != "auto" else "samples" if differ else "equal",
    )


def _period(communication: CommunicationSettings, lr: float, growth: int) -> int | str:
    every, workers = communication.sync_every, communication.size
    if workers == 1 and not isinstance(every, int):
        return 1
    if not isinstance(every, str):
        return SYNC_EVERY if every is None else every
    name, first = named_period(every)
    if name == "theorem":  # Theorem 1: I_s <= 1/sqrt(K eta_s)
        return max(1, math.floor(1 / math.sqrt(workers * lr)))
    if name == "once":
        return _NEVER
    return first * growth if name == "growing" else every


def factor_of(recipe: Recipe, steps: int) -> Callable[[int], float]:
    """By what the step size is multiplied at each of `steps` steps, counted from 0.

    With "cosine" it rises for a twentieth of the run, then falls to 0 as a half wave.
    """
    rise = max(1.0, _WARM_UP * steps)

    def factor(step: int) -> float:
        if recipe.schedule == "constant":
            return 1.0
        wave = 0.5 * (1 + math.cos(math.pi * min(step, steps) / steps))
        return max(min(1.0, (step + 1) / rise) * wave, 1e-6)

    return factor
