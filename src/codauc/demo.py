"""The demonstration: four ways to train the same network on real images, side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryFile

import torch
from safetensors.torch import save_file
from torch import Tensor

from codauc.coda import CoDA
from codauc.config import DemoSettings
from codauc.data import Batches, Task, binary_task, fashion_tiny
from codauc.evaluation import evaluate
from codauc.group import Group
from codauc.launching import launch
from codauc.loss import MinMaxAUCLoss
from codauc.metrics import AUC
from codauc.models import ConvNet
from codauc.optim import PPDSG
from codauc.progress import Progress
from codauc.report.plots import Curve, can_plot, plot_curves
from codauc.report.table import table
from codauc.schedules import geometric

KEEP_NEGATIVES = 0.4
BATCH_SIZE = 32
EVALUATE_EVERY = 64
DUAL_SAMPLES = 512


@dataclass(frozen=True)
class Method:
    """K workers that average every I steps."""

    name: str
    workers: int
    sync_every: int

    @property
    def label(self) -> str:
        """The name in tables and plots."""
        return self.name if self.workers == 1 else f"{self.name} I={self.sync_every}"


@dataclass
class Outcome:
    """What one method achieved, and what it cost each worker."""

    method: Method
    auc: AUC
    iterations: int
    rounds: int
    dual_estimates: int
    bytes_sent: int
    seconds: float
    curve: list[tuple[int, int, float]] = field(repr=False)
    stage_ends: list[int] = field(repr=False)
    weights: dict[str, Tensor] = field(repr=False)


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
    """One worker's part of one method; worker 0 looks at the test set and tells the outcome."""
    start = time.perf_counter()
    seed, shard = settings.seed, data.shard(group.rank, group.size, settings.seed)
    batches = Batches(data.x, data.y, BATCH_SIZE, rows=shard, seed=seed, worker=group.rank)
    model, loss = _model(), _loss(data)
    opt = PPDSG(model, loss, lr=settings.lr, gamma=settings.gamma)
    coda = CoDA(opt, group)
    curve: list[tuple[int, int, float]] = []
    stage_ends: list[int] = []
    step = 0

    def look() -> None:
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
                look()
        look()
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
    """Run all methods, print the table and save everything; an interrupt keeps what is done."""
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
                worker = partial(
                    train,
                    method=method,
                    data=data,
                    settings=settings,
                    progress=progress,
                    done=done,
                )
                results = launch(
                    worker,
                    workers=method.workers,
                    simulate=True,
                    seed=settings.seed,
                )
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


def show(outcomes: Sequence[Outcome], settings: DemoSettings) -> None:
    """Print the table and the comparison, save numbers, weights and picture, name the paths."""
    header = ["method", "K", "test AUC", "95% interval", "iterations", "rounds", "dual est."]
    header += ["MB sent/worker", "seconds"]
    print("\n" + table(header, [_row(outcome) for outcome in outcomes]))
    print("\n".join(_findings(outcomes)))
    out = settings.out
    records = [_record(outcome) for outcome in outcomes]
    (out / "results.json").write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    for outcome in outcomes:
        name = outcome.method.label.lower().replace(" i=", "-i")
        save_file(outcome.weights, out / f"{name}.safetensors")
    print(f"Numbers: {out / 'results.json'}; weights: {out}/*.safetensors")
    if not can_plot():
        print("No picture: matplotlib is missing; pip install 'codauc[plot]' brings it.")
        return
    curves = [Curve(o.method.label, o.curve, o.stage_ends) for o in outcomes]
    title = f"Fashion-MNIST sample, {settings.workers} workers"
    print(f"Picture: {plot_curves(curves, out / 'demo.png', title)}")


def _row(outcome: Outcome) -> list[str]:
    auc, method = outcome.auc, outcome.method
    return [
        method.label,
        str(method.workers),
        f"{auc.value:.4f}",
        f"{auc.low:.4f}-{auc.high:.4f}",
        str(outcome.iterations),
        str(outcome.rounds),
        str(outcome.dual_estimates),
        f"{outcome.bytes_sent / 1e6:.2f}",
        f"{outcome.seconds:.0f}",
    ]


def _findings(outcomes: Sequence[Outcome]) -> list[str]:
    """CoDA against NP-PPD-SG: rounds saved, AUC won or lost."""
    naive = next((o for o in outcomes if o.method.name == "NP-PPD-SG"), None)
    return [
        f"{o.method.label}: {naive.rounds / o.rounds:.1f} times fewer rounds than NP-PPD-SG, "
        f"AUC {o.auc.value - naive.auc.value:+.4f}."
        for o in outcomes
        if naive is not None and o.method.name == "CoDA" and o.rounds
    ]


def _record(outcome: Outcome) -> dict[str, object]:
    return {
        "method": outcome.method.name,
        "workers": outcome.method.workers,
        "sync_every": outcome.method.sync_every,
        "test_auc": outcome.auc.value,
        "auc_low": outcome.auc.low,
        "auc_high": outcome.auc.high,
        "iterations": outcome.iterations,
        "rounds": outcome.rounds,
        "dual_estimates": outcome.dual_estimates,
        "bytes_sent": outcome.bytes_sent,
        "seconds": outcome.seconds,
        "curve": [
            dict(zip(("step", "round", "auc"), point, strict=True)) for point in outcome.curve
        ],
    }


def set_up() -> None:
    """One thread: with simulated workers more threads only get in each other's way."""
    torch.set_num_threads(1)
