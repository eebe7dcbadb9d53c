"""The demonstration: one network trained in four ways on real images, side by side."""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from tempfile import TemporaryFile

from codauc._internal.progress import Progress
from codauc.algorithm.engine import CoDA
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.ppdsg import PPDSG
from codauc.algorithm.schedules import geometric
from codauc.data import Batches, Task, binary_task, fashion_tiny
from codauc.metrics.evaluation import evaluate
from codauc.models import ConvNet
from codauc.reproduce.demo_output import Method, Outcome, show
from codauc.reproduce.demo_settings import DemoSettings
from codauc.workers.group import Group
from codauc.workers.launcher import launch

KEEP_NEGATIVES = 0.4
BATCH_SIZE = 32
EVALUATE_EVERY = 64
DUAL_SAMPLES = 512


def load(seed: int) -> Task:
    """Fashion-MNIST's sample: five classes against five, 40% of the training negatives kept."""
    return binary_task(fashion_tiny(), "half", KEEP_NEGATIVES, seed)


def methods(settings: DemoSettings) -> list[Method]:
    """PPD-SG alone, NP-PPD-SG and CoDA on K workers."""
    workers = settings.workers
    return [
        Method("PPD-SG", 1, 1),
        Method("NP-PPD-SG", workers, 1),
        *(Method("CoDA", workers, every) for every in settings.sync_every),
    ]


def train(
    group: Group,
    method: Method,
    data: Task,
    settings: DemoSettings,
    progress: Progress | None,
    done: int,
) -> Outcome | None:
    """One worker's part of one method; worker 0 evaluates and returns the outcome."""
    start = time.perf_counter()
    seed, shard = settings.seed, data.shard(group.rank, group.size, settings.seed)
    batches = Batches(data.x, data.y, BATCH_SIZE, rows=shard, seed=seed, worker=group.rank)
    model, loss = _model(), _loss(data)
    opt = PPDSG(model, loss, lr=settings.lr, gamma=settings.gamma)
    coda = CoDA(opt, group)
    curve: list[tuple[int, int, float]] = []
    stage_ends: list[int] = []
    step = 0

    def record() -> None:
        if group.rank:
            return
        result = evaluate(model, data.test_x, data.test_y)
        curve.append((step, group.ledger.rounds, result.value))
        if progress is not None:
            progress.update(done + step * group.size, f"{method.label}: AUC {result.value:.3f}")

    for stage in geometric(
        settings.lr, settings.steps, settings.stages, method.sync_every, dual_samples=DUAL_SAMPLES
    ):
        for x, y in coda.stage(stage, batches):
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
            step += 1
            if step % EVALUATE_EVERY == 0 and opt.steps < stage.steps:
                record()
        record()
        stage_ends.append(len(curve) - 1)
    if group.rank:
        return None
    return Outcome(
        method=method,
        auc=evaluate(model, data.test_x, data.test_y),
        iterations=step,
        rounds=group.ledger.rounds,
        dual_estimates=group.ledger.calls("dual"),
        bytes_sent=group.ledger.bytes_sent,
        seconds=time.perf_counter() - start,
        curve=curve,
        stage_ends=stage_ends,
        weights={name: tensor.detach().clone() for name, tensor in model.state_dict().items()},
    )


def run(settings: DemoSettings, *, quiet: bool = False) -> list[Outcome]:
    """Run all methods, print the table, save everything; an interrupt keeps the finished ones."""
    data, outcomes, done = load(settings.seed), list[Outcome](), 0
    _check(settings, data)
    print(
        f"Fashion-MNIST sample, 5 classes against 5: {len(data.rows)} training images, "
        f"{data.pos_ratio:.1%} positive; {len(data.test_y)} test images."
    )
    todo = methods(settings)
    total = sum(method.workers for method in todo) * settings.iterations
    try:
        with nullcontext() if quiet else Progress(total, label="demo") as progress:
            for method in todo:
                worker = partial(train, data=data, settings=settings, progress=progress)
                worker = partial(worker, method=method, done=done)
                results = launch(worker, workers=method.workers, simulate=True, seed=settings.seed)
                outcomes.extend(outcome for outcome in results if outcome is not None)
                done += method.workers * settings.iterations
    finally:
        if outcomes:
            show(outcomes, settings)
    return outcomes


def _check(settings: DemoSettings, data: Task) -> None:
    """Raise now what would otherwise be raised after minutes of work."""
    data.shard(0, settings.workers, settings.seed)
    for method in methods(settings):
        geometric(settings.lr, settings.steps, settings.stages, method.sync_every)
    PPDSG(_model(), _loss(data), lr=settings.lr, gamma=settings.gamma)
    settings.out.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=settings.out):
        pass


def _model() -> ConvNet:
    return ConvNet(widths=(8, 16, 32))


def _loss(data: Task) -> MinMaxAUCLoss:
    return MinMaxAUCLoss(pos_ratio=data.pos_ratio)
