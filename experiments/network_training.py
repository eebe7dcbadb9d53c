"""What one worker of the network experiment does: data, methods, training by the clock."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hosts import HostsError, my_counters
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import codauc
from codauc.data import Batches, Task, binary_task, cifar10
from codauc.metrics.evaluation import evaluate
from codauc.models import MLP, ConvNet
from codauc.workers import Group

KEEP_NEGATIVES = 0.4
BATCH_SIZE = 32
DUAL_SAMPLES = 512
_PATIENCE = 900.0  # seconds; at the end the others wait while worker 0 evaluates
POINTS = {"mlp": (40, 60), "convnet": (10, 16)}  # evaluating a ConvNet takes longer
TUNED = Path(__file__).with_name("network-tuned.json")


@dataclass(frozen=True)
class Method:
    """A way to train on K workers.

    `sync_every` is I; None is data parallel training, an exchange of gradients at each step.
    `like` names the method whose tuned numbers it takes, `coda` further arguments of `CoDA`.
    """

    label: str
    sync_every: int | None = None
    like: str = ""
    coda: dict[str, Any] = field(default_factory=dict)


_MILD, _STRONG = codauc.Nesterov(1.0, 0.5), codauc.Nesterov(0.7, 0.9)
METHODS = {
    "ddp": Method("data parallel (DDP)"),
    "np-ppd-sg": Method("NP-PPD-SG, I=1", sync_every=1),
    "coda": Method("CoDA, I=64", sync_every=64),
    "coda-bf16": Method("CoDA, bf16", 64, "coda", {"compress": "bf16"}),
    "coda-int8": Method("CoDA, int8", 64, "coda", {"compress": "int8"}),
    "coda-int4": Method("CoDA, int4", 64, "coda", {"compress": "int4"}),
    "coda-int2": Method("CoDA, int2", 64, "coda", {"compress": "int2"}),
    "coda-int2-mild": Method(
        "CoDA, int2, outer step (1, 0.5)", 64, "coda", {"compress": "int2", "outer": _MILD}
    ),
    "coda-int2-strong": Method(
        "CoDA, int2, outer step (0.7, 0.9)", 64, "coda", {"compress": "int2", "outer": _STRONG}
    ),
    "coda-int2-128": Method("CoDA, I=128, int2", 128, "coda", {"compress": "int2"}),
    "coda-int2-128-mild": Method(
        "CoDA, I=128, int2, outer step (1, 0.5)", 128, "coda", {"compress": "int2", "outer": _MILD}
    ),
    "coda-overlap": Method("CoDA, overlap", 64, "coda", {"delay": 56}),
    "coda-128": Method("CoDA, I=128", 128, "coda"),
    "coda-128-overlap": Method("CoDA, I=128, overlap", 128, "coda", {"delay": 80}),
    "coda-int8-overlap": Method(
        "CoDA, int8 and overlap", 64, "coda", {"compress": "int8", "delay": 16}
    ),
}


@dataclass(frozen=True)
class Numbers:
    """What is tuned: eta_0 `lr`, T_0 `steps`, how many `stages`, and the optimizer's options.

    Every method has the stages of `geometric(lr, steps, stages)` and `momentum` on the weights;
    data parallel training has neither `gamma` nor `average`.
    """

    lr: float
    steps: int
    stages: int
    momentum: float = 0.9
    gamma: float = 500.0
    average: bool = False

    def schedule(self, sync_every: int | None) -> list[codauc.Stage]:
        """The stages, with rounds every `sync_every` steps."""
        return codauc.geometric(
            self.lr, self.steps, self.stages, sync_every or 1, dual_samples=DUAL_SAMPLES
        )


def tuned(model: str, method: str) -> dict[str, Any]:
    """The numbers that `--tune` chose for a method."""
    name = METHODS[method].like or method
    chosen = json.loads(TUNED.read_text(encoding="utf-8")) if TUNED.is_file() else {}
    if name not in chosen.get(model, {}):
        raise ValueError(f"{TUNED.name} has no {name} for {model}: run --tune --model {model}.")
    return dict(chosen[model][name])


def load(directory: Path, seed: int) -> Task:
    """CIFAR-10: five classes against five, 40% of the training negatives kept, all test images."""
    return binary_task(cifar10(directory), "half", KEEP_NEGATIVES, seed)


def build(model: str, seed: int) -> nn.Module:
    """The network: 1.1 million parameters as "mlp", 24 thousand as "convnet"."""
    torch.manual_seed(seed)
    return MLP(3 * 32 * 32, (320, 320)) if model == "mlp" else ConvNet(in_channels=3)


class Joined(Iterator[tuple[Tensor, Tensor]]):
    """The batches of K workers at the same step, as one: for methods that agree at every step."""

    def __init__(self, parts: list[Batches]) -> None:
        self.parts = parts

    def __next__(self) -> tuple[Tensor, Tensor]:
        x, y = zip(*(next(part) for part in self.parts), strict=True)
        return torch.cat(x), torch.cat(y)


def batches(data: Task, workers: int, rank: int, seed: int) -> Batches:
    """A worker's endless batches, from its own shard."""
    shard = data.shard(rank, workers, seed)
    return Batches(data.x, data.y, BATCH_SIZE, rows=shard, seed=seed, worker=rank)


class Snapshot(NamedTuple):
    """Where a run was, in steps, seconds and bytes sent by worker 0, and its weights then."""

    step: int
    seconds: float
    bytes: int
    wire: int | None
    weights: dict[str, Tensor]


class Watch:
    """The clock of a run; worker 0 keeps copies of the weights, to be evaluated afterwards.

    Copies are taken at most once for each of `points`, at the first step asked about that is not
    before it. What they cost, a few ms each, stays in the clock. `sent(step)` is the bytes so far.
    """

    def __init__(
        self,
        group: Group,
        model: nn.Module,
        points: list[int],
        sent: Callable[[int], int],
        tell: Callable[[Snapshot], None],
    ) -> None:
        self.group, self.model, self.sent, self.tell = group, model, sent, tell
        self.points, self.snapshots = list(points), list[Snapshot]()

    def start(self) -> None:
        """Set the clock to 0 when all workers are here."""
        self.group.sum_(torch.zeros(1), "start")
        self.sent_before, self.wire_before = self.sent(0), _wire()
        self.began = time.perf_counter()

    def look(self, step: int) -> None:
        """Keep the weights if one of the points has come."""
        if self.group.rank or not self.points or step < self.points[0]:
            return
        seconds, wire = time.perf_counter() - self.began, _wire()
        self.points = [point for point in self.points if point > step]
        passed = None if wire is None or self.wire_before is None else wire - self.wire_before
        weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        sent = self.sent(step) - self.sent_before
        self.snapshots.append(Snapshot(step, seconds, sent, passed, weights))
        self.tell(self.snapshots[-1])


def points(total: int, logarithmic: int, even: int) -> list[int]:
    """Steps to look at: dense at the beginning, and evenly spread over the whole.

    >>> points(1000, 3, 4)
    [10, 100, 250, 500, 750, 1000]
    """
    early = (round(total ** (i / logarithmic)) for i in range(1, logarithmic + 1))
    late = (round(total * i / even) for i in range(1, even + 1))
    return sorted(set(early) | set(late))


@dataclass(frozen=True)
class Job:
    """One worker's part of a run; `pos_ratio` is that of all training data."""

    group: Group
    source: Iterator[Any]
    model: nn.Module
    method: Method
    numbers: Numbers
    pos_ratio: float
    tell: Callable[[Snapshot], None] = lambda _: None
    points: tuple[int, int] = (40, 60)
    first: int | None = None

    @property
    def schedule(self) -> list[codauc.Stage]:
        """The stages of the run; of one that is only timed its `first` steps."""
        stages = self.numbers.schedule(self.method.sync_every)
        return stages if self.first is None else [replace(stages[0], steps=self.first)]

    def watch(self, sent: Callable[[int], int]) -> Watch:
        """A clock for the run."""
        steps = sum(stage.steps for stage in self.schedule)
        return Watch(self.group, self.model, points(steps, *self.points), sent, self.tell)


def train(job: Job) -> Watch:
    """Train the model to the end of its schedule."""
    return data_parallel(job) if job.method.sync_every is None else coda(job)


def data_parallel(job: Job) -> Watch:
    """SGD on the mean of all workers' gradients of the logistic loss, exchanged at every step."""
    group, model = job.group, job.model
    size = sum(w.nbytes for w in model.parameters())
    share = 2 * (group.size - 1) * size // group.size  # the two halves of a ring
    watch = job.watch(lambda step: step * share)
    replica = DistributedDataParallel(model) if group.size > 1 else model
    numbers = job.numbers
    opt = torch.optim.SGD(model.parameters(), lr=numbers.lr, momentum=numbers.momentum)
    loss, step = nn.BCEWithLogitsLoss(), 0
    watch.start()
    for stage in job.schedule:
        opt.param_groups[0]["lr"] = stage.lr
        for _ in range(stage.steps):
            x, y = next(job.source)
            opt.zero_grad()
            loss(replica(x), y.to(x.dtype)).backward()
            opt.step()
            step += 1
            watch.look(step)
    return watch


def coda(job: Job) -> Watch:
    """CoDA, or NP-PPD-SG where `sync_every` is 1; looks just after rounds and at ends of stages."""
    numbers, step = job.numbers, 0
    # Without the sigmoid h does not saturate, and a = b = alpha = 0 is the inner optimum of a new
    # model, whose scores are all near 0: with it CoDA took about 1.5 to 2.5 times the steps here.
    loss = codauc.MinMaxAUCLoss(pos_ratio=job.pos_ratio, link="identity")
    opt = codauc.PPDSG(
        job.model,
        loss,
        lr=numbers.lr,
        gamma=numbers.gamma,
        momentum=numbers.momentum,
        average=numbers.average,
    )
    engine = codauc.CoDA(opt, job.group, **job.method.coda)
    watch = job.watch(lambda _: job.group.ledger.bytes_sent)
    watch.start()
    for stage in job.schedule:
        for x, y in engine.stage(stage, job.source):
            opt.zero_grad()
            loss(job.model(x), y).backward()
            opt.step()
            step += 1
            if opt.steps % stage.sync_every == 0 and opt.steps < stage.steps:
                watch.look(step)
        watch.look(step)
    return watch


def simulate(
    data: Task,
    model: str,
    method: Method,
    numbers: Numbers,
    workers: int,
    seed: int,
    points: tuple[int, int],
) -> Watch:
    """The run of K workers in this process, without a network.

    Methods that agree at every step are one worker with the batches of all: the mean of K
    gradients of equal batches is the gradient of their union.
    """

    def worker(group: Group) -> Watch:
        ranks = [group.rank] if group.size == workers else range(workers)
        source = Joined([batches(data, workers, rank, seed) for rank in ranks])
        job = Job(group, source, build(model, seed), method, numbers, data.pos_ratio, points=points)
        return train(job)

    processes = 1 if method.sync_every in (None, 1) else workers
    return codauc.launch(worker, workers=processes, simulate=True, seed=seed)[0]


def curve(watch: Watch, model: nn.Module, data: Task) -> list[dict[str, Any]]:
    """The history of a run: its snapshots with the AUC of each on the test images."""
    history = []
    for snapshot in watch.snapshots:
        model.load_state_dict(snapshot.weights)
        auc = evaluate(model, data.test_x, data.test_y).value
        record = {**snapshot._asdict(), "auc": auc}
        del record["weights"]
        history.append(record)
    return history


def over_network(
    directory: Path,
    model: str,
    name: str,
    seed: int,
    tell: Callable[[Snapshot], None],
    first: int | None = None,
) -> list[dict[str, Any]] | None:
    """Do the part of this process in a run that torchrun started; worker 0 returns the history."""
    data, network = load(directory, seed), build(model, seed)
    with codauc.distributed(timeout=_PATIENCE) as group:
        source = batches(data, group.size, group.rank, seed)
        numbers = Numbers(**tuned(model, name))
        method, marks = METHODS[name], POINTS[model]
        job = Job(group, source, network, method, numbers, data.pos_ratio, tell, marks, first)
        watch = train(job)
        history = None if group.rank else curve(watch, build(model, seed), data)
        group.sum_(torch.zeros(1), "end")  # torchrun's agents complain of those who leave early
    return history


def settings(model: str, name: str, seed: int) -> dict[str, Any]:
    """What decides the history of a method, beside the network."""
    return {"model": model, "method": name, "seed": seed, **tuned(model, name)}


def _wire() -> int | None:
    """Bytes this host has sent, headers and all; None where no host was made."""
    with contextlib.suppress(HostsError, OSError):
        return my_counters().sent
    return None
