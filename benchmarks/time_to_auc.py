"""Seconds of training until the best test AUC that LibAUC reaches with its tutorials' settings.

Both train the same network from the same seed on batches of the same size and reader, in turn, a
fifth of an epoch each, so that a busy machine slows both; evaluations are not counted. LibAUC: the
sigmoid of the logits into AUCMLoss, PESG with momentum 0.9, epoch_decay 2e-3, weight_decay 1e-4, 20
epochs, lr / 10 and a new regularizer after 10 and 15; of `SETTINGS` the best for the first seed.
Ours is what `codauc train` does by default, but for the network and the batch size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, binary_cross_entropy_with_logits
from torch.optim.lr_scheduler import LambdaLR

import codauc
from benchmarks.adult import read_adult
from benchmarks.measuring import Benchmark, Missing, Options, Pairs, no_collector, seconds
from benchmarks.peers import libauc, pesg
from codauc._internal.progress import Progress
from codauc.data import Batches, fashion_mnist
from codauc.models import MLP, ConvNet
from codauc.runs.settings import CommunicationSettings, Recipe, RecipeSettings
from codauc.training.build import make_optimizer
from codauc.training.recipe import Facts, Plan, factor_of, plan, resolve
from codauc.training.validation import Window

BATCH, EPOCHS, LOOKS, SEEDS, SHIRT = 128, 20, 5, (0, 1, 2), 6
DEBIAN = Path("/usr/share/datasets/fashion-mnist")


class Task(NamedTuple):
    """Training and test data, the network for it, and LibAUC's epochs."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    network: Callable[[], nn.Module]
    epochs: int = EPOCHS

    @property
    def epoch(self) -> int:
        """The steps of one."""
        return math.ceil(len(self.x) / BATCH)

    @property
    def pos_ratio(self) -> float:
        """The share of positives in training."""
        return float(self.y.float().mean())

    def batches(self, seed: int, share: float | None = None) -> Batches:
        """In the order of the seed; with a share of positives that is not the data's own."""
        return Batches(self.x, self.y, BATCH, seed=seed, balanced=share)

    def recipe(self) -> Recipe:
        """Our default for these data, at this batch size."""
        facts = Facts(len(self.y), int(self.y.sum()), self.x.dim() == 4)
        return resolve(RecipeSettings(batch_size=BATCH), 1, facts)

    def plan(self) -> Plan:
        """Its stages."""
        return plan(self.recipe(), CommunicationSettings())

    def score(self, model: nn.Module) -> float:
        """The test AUC."""
        return codauc.evaluate(model, self.test_x, self.test_y).value


class Setting(NamedTuple):
    """How LibAUC trains: its step size, and the share of positives that its sampler draws."""

    lr: float
    share: float | None = None

    def __str__(self) -> str:
        return f"libauc {self.lr:g}" + ("" if self.share is None else f" sampled {self.share:g}")


SETTINGS = (Setting(0.1), Setting(0.02), Setting(0.1, 0.2))


class Look(NamedTuple):
    """Seconds of training so far, and the test AUC after them."""

    seconds: float
    auc: float


Curve = list[Look]


def adult(options: Options) -> Task:
    """Income above 50,000 (24%), its 48,842 people split as published; an MLP."""
    x, y, test_x, test_y = read_adult(options.data)
    return Task(x, y, test_x, test_y, partial(MLP, x.shape[1], widths=(256, 256)))


def shirts(options: Options) -> Task:
    """Fashion-MNIST's shirts against all other clothes (10%); a small ConvNet.

    The images are halved to 14 x 14: LibAUC's 20 epochs of all 60,000 are then a minute, not four.
    """
    folders = [folder for folder in (options.data, DEBIAN) if folder is not None]
    for folder in folders:
        if any(folder.rglob("train-images*")):
            images = fashion_mnist(folder)
            break
    else:
        raise Missing("no Fashion-MNIST: apt install dataset-fashion-mnist, or give --data")
    x, test_x = (avg_pool2d(part, 2) for part in (images.train_x, images.test_x))
    y, test_y = images.train_y == SHIRT, images.test_y == SHIRT
    return Task(x, y, test_x, test_y, partial(ConvNet, 1, widths=(8, 16, 32)))


def made_up(options: Options) -> Task:
    """A line through noise: only whether the code runs."""
    del options
    torch.manual_seed(0)
    x = torch.randn(1500, 8)
    y = x[:, 0] + 0.5 * torch.randn(1500) > 1.3
    return Task(x[:1000], y[:1000], x[1000:], y[1000:], partial(MLP, 8, widths=(16,)), epochs=4)


def libauc_steps(task: Task, model: nn.Module, seed: int, setting: Setting) -> Iterator[None]:
    """LibAUC's training, a step each."""
    loss = libauc().loss()
    opt, batches = pesg(model, loss, setting.lr), task.batches(seed, setting.share)
    for epoch in range(task.epochs):
        if epoch in (task.epochs // 2, task.epochs * 3 // 4):
            opt.update_regularizer(decay_factor=10)
        for x, y in islice(batches, task.epoch):
            opt.zero_grad()
            loss(model(x).sigmoid(), y.float()).backward()
            yield opt.step()


class Ours:
    """The default recipe in a plain loop: cross-entropy to warm up, then F and a share of it.

    Where the recipe says so, what is evaluated is the mean of the models since the last evaluation.
    """

    def __init__(self, task: Task, model: nn.Module, seed: int) -> None:
        self.task, self.model, self.seed = task, model, seed
        recipe, ratio = task.recipe(), task.pos_ratio
        nn.init.constant_(model.head.bias, math.log(ratio / (1 - ratio)))
        self.loss = codauc.MinMaxAUCLoss(pos_ratio=ratio, mix=recipe.mix, validate=False)
        self.opt = make_optimizer(model, self.loss, recipe)
        self.window = Window(self.opt) if recipe.average == "window" else None
        self.plan = task.plan()
        self.scheduler = self._scheduler(recipe)

    def _scheduler(self, recipe: Recipe) -> LambdaLR:
        """Of the weights' step size; a, b and alpha keep theirs."""
        return LambdaLR(self.opt, factor_of(recipe, self.plan.steps))

    def steps(self) -> Iterator[None]:
        """The training, a step each."""
        coda, batches = codauc.CoDA(self.opt), self.task.batches(self.seed)
        for number, stage in enumerate(self.plan.stages):
            value = self.loss.cross_entropy if number < self.plan.warm else self.loss
            for x, y in coda.stage(stage, batches):
                self.opt.zero_grad()
                value(self.model(x), y).backward()
                self.opt.step()
                self.scheduler.step()
                if self.window is not None:
                    self.window.add()
                yield

    def score(self) -> float:
        """The test AUC."""
        if self.window is None:
            return self.task.score(self.model)
        with self.window.as_weights():
            return self.task.score(self.model)


def adam_steps(task: Task, model: nn.Module, seed: int) -> Iterator[None]:
    """Torch's Adam and cross-entropy, as most would begin, for as many steps as ours; one each."""
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in islice(task.batches(seed), task.plan().steps):
        opt.zero_grad()
        binary_cross_entropy_with_logits(model(x), y.float()).backward()
        yield opt.step()


def ppdsg_steps(task: Task, model: nn.Module, seed: int) -> Iterator[None]:
    """The min-max objective alone, in the README's loop, for as many steps; one each."""
    loss = codauc.MinMaxAUCLoss(pos_ratio=task.pos_ratio)
    opt = codauc.PPDSG(model, loss, lr=0.5, gamma=500.0, momentum=0.9)
    coda, batches = codauc.CoDA(opt), task.batches(seed)
    for stage in codauc.geometric(lr=0.5, steps=task.plan().steps // 13, stages=3):  # 1 + 3 + 9
        for x, y in coda.stage(stage, batches):
            opt.zero_grad()
            loss(model(x), y).backward()
            yield opt.step()


def looks(steps: Iterator[None], every: int, score: Callable[[], float]) -> Iterator[Look]:
    """Train for `every` steps, look, and so on to the end."""
    spent, count = 0.0, every

    def train() -> None:
        nonlocal count
        count = sum(1 for _ in islice(steps, every))

    while count == every:
        spent += seconds(train)
        if count:
            yield Look(spent, score())


def runs(task: Task, seed: int, settings: Iterable[Setting]) -> dict[str, Iterator[Look]]:
    """All that train on a task, each by name, with networks of the same first weights."""

    def model() -> nn.Module:
        torch.manual_seed(seed)
        return task.network()

    def simple(steps: Callable[..., Iterator[None]], *more: Setting) -> Iterator[Look]:
        net = model()
        return looks(steps(task, net, seed, *more), every, partial(task.score, net))

    every, ours = max(1, task.epoch // LOOKS), Ours(task, model(), seed)
    return {
        **{str(setting): simple(libauc_steps, setting) for setting in settings},
        "adam": simple(adam_steps),
        "ppdsg": simple(ppdsg_steps),
        "codauc": looks(ours.steps(), every, ours.score),
    }


def in_turn(going: dict[str, Iterator[Look]], progress: Progress) -> dict[str, Curve]:
    """All curves, a look of each after the other."""
    curves: dict[str, Curve] = {name: [] for name in going}
    while going:
        for name, run in list(going.items()):
            look = next(run, None)
            if look is None:
                del going[name]
            else:
                curves[name].append(look)
        told = ", ".join(f"{name} {best(curve):.4f}" for name, curve in curves.items() if curve)
        progress.update(sum(map(len, curves.values())), told)
    return curves


@cache
def trained(load: Callable[[Options], Task], options: Options) -> list[dict[str, Curve]]:
    """The curves of every seed, LibAUC's being called so; once for all benchmarks."""
    libauc()
    task = load(options)
    settings = [each for each in SETTINGS if (each.share or 1) > task.pos_ratio]
    found = []
    for seed in SEEDS[: 1 if options.short else None]:
        total = (len(settings) + 3) * task.epochs * LOOKS
        with Progress(total, label=f"seed {seed}") as progress, no_collector():
            curves = in_turn(runs(task, seed, settings), progress)
        settings = [max(settings, key=lambda setting: best(curves[str(setting)]))]
        curves["libauc"] = curves[str(settings[0])]
        found.append(curves)
    return found


def best(curve: Curve) -> float:
    """The highest AUC."""
    return max(look.auc for look in curve)


def reach(curve: Curve, auc: float) -> float:
    """Seconds until an AUC is first reached; infinite if it never is."""
    return next((look.seconds for look in curve if look.auc >= auc), math.inf)


def measure(
    options: Options,
    load: Callable[[Options], Task],
    ours: str = "codauc",
    theirs: str = "libauc",
    less: float = 0.0,
) -> Pairs:
    """Seconds to LibAUC's best AUC, or to so much less, for every seed; the AUCs as notes."""
    seeds, names = trained(made_up if options.short else load, options), (ours, theirs)
    targets = [best(curves["libauc"]) - less for curves in seeds]
    found = [
        [reach(curves[name], target) for curves, target in zip(seeds, targets, strict=True)]
        for name in names
    ]
    notes = {
        "target AUC": targets,
        "libauc": {name: best(seeds[0][name]) for name in seeds[0] if name.startswith("libauc ")},
        "best AUC": {name: [best(curves[name]) for curves in seeds] for name in names},
        "seconds of all steps": {
            name: [curves[name][-1].seconds for curves in seeds] for name in names
        },
    }
    return Pairs(*found, notes)


def _benchmarks(name: str, load: Callable[[Options], Task]) -> list[Benchmark]:
    """Against LibAUC, with a lower target, without cross-entropy and Adam, and against these."""
    recipe = "training seconds of codauc's default recipe"
    best, them = "to LibAUC's best test AUC", "those of LibAUC's AUCMLoss and PESG"
    ppdsg = "training seconds of MinMaxAUCLoss and PPDSG in geometric stages"
    adam = "those of cross-entropy and torch's Adam, lr 0.001"
    title, run = f"time_to_auc/{name}", partial(measure, load=load)
    return [
        Benchmark(title, f"{recipe} {best}", them, run, 0.5),
        Benchmark(f"{title}-nearly", f"{recipe} to 0.001 less", them, partial(run, less=0.001)),
        Benchmark(f"{title}-ppdsg", f"{ppdsg} {best}", them, partial(run, ours="ppdsg")),
        Benchmark(f"{title}-adam", f"{recipe} {best}", adam, partial(run, theirs="adam")),
    ]


BENCHMARKS = [*_benchmarks("adult", adult), *_benchmarks("shirts", shirts)]
