"""The demonstration: one network trained in four ways on real images, side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from tempfile import TemporaryFile

from safetensors.torch import save_file

from codauc._internal.progress import Progress
from codauc._internal.text_table import table
from codauc.algorithm.engine import CoDA
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.ppdsg import PPDSG
from codauc.algorithm.schedules import Stage, geometric
from codauc.data import Batches, Task, binary_task, fashion_tiny
from codauc.metrics.evaluation import evaluate
from codauc.models import ConvNet
from codauc.report.charts import Series, auc_chart, chart_card, side_by_side
from codauc.report.rendering import Card, CardTable, render
from codauc.reproduce.demo_settings import DemoSettings
from codauc.workers.group import Group
from codauc.workers.launcher import launch

KEEP_NEGATIVES = 0.4
BATCH_SIZE = 32
EVALUATE_EVERY = 64
DUAL_SAMPLES = 512
_HEADER = ["method", "K", "test AUC", "95% interval", "iterations", "rounds", "dual est."]
_HEADER += ["MB sent/worker", "seconds"]


@dataclass(frozen=True)
class Method:
    """K workers that average every I steps."""

    method: str
    workers: int
    sync_every: int

    @property
    def label(self) -> str:
        """The name in tables and plots."""
        return self.method if self.workers == 1 else f"{self.method} I={self.sync_every}"

    def stages(self, settings: DemoSettings) -> list[Stage]:
        """The paper's stages."""
        first = (settings.lr, settings.steps, settings.stages)
        return geometric(*first, self.sync_every, dual_samples=DUAL_SAMPLES)


@dataclass(frozen=True)
class Outcome(Method):
    """What a method achieved, and what it cost each worker: an entry of results.json."""

    test_auc: float
    auc_low: float
    auc_high: float
    iterations: int
    rounds: int
    dual_estimates: int
    bytes_sent: int
    seconds: float
    curve: list[dict[str, float]]

    @property
    def row(self) -> list[str]:
        """For a table."""
        return [
            self.label,
            str(self.workers),
            f"{self.test_auc:.4f}",
            f"{self.auc_low:.4f}-{self.auc_high:.4f}",
            str(self.iterations),
            str(self.rounds),
            str(self.dual_estimates),
            f"{self.bytes_sent / 1e6:.2f}",
            f"{self.seconds:.0f}",
        ]


def run(settings: DemoSettings, *, quiet: bool = False) -> None:
    """Run all methods, print the table, save everything; an interrupt keeps the finished ones."""
    data = binary_task(fashion_tiny(), "half", KEEP_NEGATIVES, settings.seed)
    todo = [Method("PPD-SG", 1, 1), Method("NP-PPD-SG", settings.workers, 1)]
    todo += [Method("CoDA", settings.workers, every) for every in settings.sync_every]
    _check(settings, data, todo)
    print(
        f"Fashion-MNIST sample, 5 classes against 5: {len(data.rows)} training images, "
        f"{data.pos_ratio:.1%} positive; {len(data.test_y)} test images."
    )
    total = sum(m.workers * stage.steps for m in todo for stage in m.stages(settings))
    outcomes: list[Outcome] = []
    try:
        with nullcontext() if quiet else Progress(total, label="demo") as progress:
            for method in todo:
                done = sum(outcome.workers * outcome.iterations for outcome in outcomes)
                worker = partial(train, method=method, data=data, settings=settings)
                worker = partial(worker, progress=progress, done=done)
                results = launch(worker, workers=method.workers, simulate=True, seed=settings.seed)
                outcomes += filter(None, results)
    finally:
        if outcomes:
            _show(outcomes, settings)


def train(
    group: Group,
    method: Method,
    data: Task,
    settings: DemoSettings,
    progress: Progress | None,
    done: int,
) -> Outcome | None:
    """One worker's part of one method; worker 0 evaluates, saves and returns the outcome."""
    start, seed = time.perf_counter(), settings.seed
    shard = data.shard(group.rank, group.size, seed)
    batches = Batches(data.x, data.y, BATCH_SIZE, rows=shard, seed=seed, worker=group.rank)
    opt, model, loss = _optimizer(data, settings)
    coda, curve = CoDA(opt, group), []
    for step in _steps(coda, method.stages(settings), batches, model, loss):
        if group.rank == 0:
            auc = evaluate(model, data.test_x, data.test_y)
            curve.append({"step": step, "round": group.ledger.rounds, "auc": auc.value})
            if progress is not None:
                progress.update(done + step * group.size, f"{method.label}: AUC {auc.value:.3f}")
    if group.rank:
        return None
    name = method.label.lower().replace(" i=", "-i")
    save_file(model.state_dict(), settings.out / f"{name}.safetensors")
    return Outcome(
        **asdict(method),
        test_auc=auc.value,
        auc_low=auc.low,
        auc_high=auc.high,
        iterations=step,
        rounds=group.ledger.rounds,
        dual_estimates=group.ledger.calls("dual"),
        bytes_sent=group.ledger.bytes_sent,
        seconds=time.perf_counter() - start,
        curve=curve,
    )


def _steps(
    coda: CoDA, stages: Sequence[Stage], batches: Batches, model: ConvNet, loss: MinMaxAUCLoss
) -> Iterator[int]:
    """Train; after so many steps, and at the end of each stage, the AUC is measured."""
    step = 0
    for stage in stages:
        for x, y in coda.stage(stage, batches):
            coda.opt.zero_grad()
            loss(model(x), y).backward()
            coda.opt.step()
            step += 1
            if step % EVALUATE_EVERY == 0 and coda.opt.steps < stage.steps:
                yield step
        yield step


def _check(settings: DemoSettings, data: Task, todo: Sequence[Method]) -> None:
    """Raise now what would otherwise be raised after minutes of work."""
    data.shard(0, settings.workers, settings.seed)
    for method in todo:
        method.stages(settings)
    _optimizer(data, settings)
    settings.out.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=settings.out):
        pass


def _optimizer(data: Task, settings: DemoSettings) -> tuple[PPDSG, ConvNet, MinMaxAUCLoss]:
    model, loss = ConvNet(widths=(8, 16, 32)), MinMaxAUCLoss(pos_ratio=data.pos_ratio)
    return PPDSG(model, loss, lr=settings.lr, gamma=settings.gamma), model, loss


def _show(outcomes: Sequence[Outcome], settings: DemoSettings) -> None:
    """Print the table and the comparison; save numbers, picture and page."""
    rows, findings, out = [each.row for each in outcomes], _findings(outcomes), settings.out
    print("\n" + table(_HEADER, rows))
    print("\n".join(findings))
    records = [asdict(outcome) for outcome in outcomes]
    (out / "results.json").write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    print(f"Numbers: {out / 'results.json'}; weights: {out}/*.safetensors")
    title, cards = f"Fashion-MNIST sample, {settings.workers} workers", _cards(outcomes, settings)
    pictures = side_by_side(title, [card.picture for card in cards])
    results = Card(caption=" ".join(findings), table=CardTable(_HEADER, rows))
    page = render(
        "study.html",
        title=title,
        over="Demonstration",
        sections=[("Results", [], [results]), ("Pictures", cards, [])],
    )
    (out / "demo.svg").write_text(pictures, encoding="utf-8")
    (out / "demo.html").write_text(page, encoding="utf-8")
    print(f"Picture: {out / 'demo.svg'}; page: {out / 'demo.html'}")


def _findings(outcomes: Sequence[Outcome]) -> list[str]:
    """CoDA against NP-PPD-SG: rounds saved, AUC won or lost."""
    naive = next((o for o in outcomes if o.method == "NP-PPD-SG"), None)
    return [
        f"{o.label}: {naive.rounds / o.rounds:.1f} times fewer rounds than NP-PPD-SG, "
        f"AUC {o.test_auc - naive.test_auc:+.4f}."
        for o in outcomes
        if naive is not None and o.method == "CoDA" and o.rounds
    ]


def _cards(outcomes: Sequence[Outcome], settings: DemoSettings) -> list[Card]:
    """AUC against iterations, and against rounds on a logarithmic axis."""
    steps, rounds = list[Series](), list[Series]()
    most = max(2, *(outcome.rounds for outcome in outcomes))
    for i, outcome in enumerate(outcomes):
        x, across, y = (
            [point[name] for point in outcome.curve] for name in ("step", "round", "auc")
        )
        steps.append(Series(outcome.label, x, y, colour=i, dash=i))
        of_rounds = Series(outcome.label, across, y, colour=i, dash=i)
        if not outcome.rounds:  # it never communicates: its final AUC, as a level line
            label = f"{outcome.label}, final"
            of_rounds = replace(of_rounds, label=label, x=[1, most], y=[y[-1], y[-1]])
        rounds.append(of_rounds)
    ends = list(accumulate(stage.steps for stage in outcomes[0].stages(settings)))[:-1]
    return [
        chart_card(
            auc_chart("test", "step", steps, lines=ends),
            "Higher is better. A dotted line is the end of a stage, where the iterates are "
            "averaged.",
        ),
        chart_card(
            auc_chart("test", "rounds", rounds, "communication rounds (log scale)", log_x=True),
            "The same curves, by how often the workers communicated: further left is cheaper.",
        ),
    ]
