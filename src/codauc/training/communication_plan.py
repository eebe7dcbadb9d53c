"""Before a run: rounds, bytes and hours of several ways to train on several workers."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import torch
from torch import nn

from codauc._internal.sync_periods import named_period
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.ppdadam import PPDAdam
from codauc.algorithm.ppdsg import PPDSG
from codauc.algorithm.round_costs import (
    NUMBER,
    MessageSizes,
    RoundCost,
    estimate_cost,
    round_cost,
    start_cost,
)
from codauc.algorithm.round_costs import Network as Network
from codauc.algorithm.round_periods import Measured, measured_period, quadratic_rounds
from codauc.algorithm.same_start import tensors_outside_rounds
from codauc.algorithm.schedules import Stage
from codauc.algorithm.theory import step_limits
from codauc.runs.settings import Recipe
from codauc.training.recipe import factor_of

PERIODS = (8, 64, 512)
QUADRATIC = "qsr:32"
CODECS = (None, "int8", "int2")
SHARE = 0.05  # of the time, that communication may take in the plan that is recommended
HARMLESS = 64  # the largest period without a loss of AUC in the paper, for 16 workers
_DUAL_SAMPLES = 1024


@dataclass(frozen=True)
class Workload:
    """What is trained: its size, how long a step takes, and how many steps there are."""

    parameters: int
    step_seconds: float
    steps: int
    statistics: int = 0  # of BatchNorm
    adaptive: bool = True  # PPDAdam, as the default recipe: its second moments are sent, too
    corrected: bool = False  # whether control variates are sent
    outside: int = 0  # dtypes of tensors that no round averages


@dataclass(frozen=True)
class PlannedRun:
    """One way to train: what it sends and how long it takes."""

    method: str
    period: int | str
    compress: str | None
    rounds: int
    bytes_per_worker: int
    computing: float
    communicating: float

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return self.computing + self.communicating

    @property
    def share(self) -> float:
        """Of the time that is communication."""
        return self.communicating / self.seconds


def workload_of(
    model: nn.Module, steps: int, step_seconds: float, *, adaptive: bool, corrected: bool = False
) -> Workload:
    """A network's parameters that are trained, its statistics, and what is neither."""
    opt = PPDSG(model, MinMaxAUCLoss(pos_ratio=0.5))
    return Workload(
        opt.trained.weight_size,
        step_seconds,
        steps,
        sum(tensor.numel() for tensor in opt.trained.statistics),
        adaptive,
        corrected,
        len(tensors_outside_rounds(opt)),
    )


def measured_step(model: nn.Module, inputs: torch.Tensor, repeats: int = 10) -> float:
    """Seconds of a whole step on this machine: the median of some, on random inputs."""
    loss = MinMaxAUCLoss(pos_ratio=0.5)
    opt, labels = PPDAdam(model, loss), torch.arange(len(inputs)) % 2
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        opt.zero_grad()
        loss(model(inputs), labels).backward()
        opt.step()
        times.append(time.perf_counter() - start)
    return sorted(times[2:])[repeats // 2]


def planned_runs(work: Workload, network: Network) -> list[PlannedRun]:
    """Data parallel training, NP-PPD-SG, and CoDA with several periods and encodings.

    "qsr" is a period that grows as the step size falls; what "auto" would do is an estimate.

    Rounds and bytes of CoDA and NP-PPD-SG are those that the ledger of a run of one stage counts,
    with its start, its closing round and its estimate of alpha. On top come evaluations, and worker
    0's network where the others did not make it with the same seed.
    """
    found = [_data_parallel(work, network), _rounds("NP-PPD-SG", work, network, 1, None)]
    for period in PERIODS:
        found += [_rounds("CoDA", work, network, period, codec) for codec in CODECS]
    found += [_rounds("CoDA", work, network, QUADRATIC, codec) for codec in CODECS]
    return [*found, *(_estimated(work, network, codec) for codec in CODECS)]


def _data_parallel(work: Workload, network: Network) -> PlannedRun:
    sent, seconds = network.sum_bytes(work.parameters), network.sum_seconds(work.parameters)
    computing = work.steps * work.step_seconds
    return PlannedRun(
        "data parallel", 1, None, work.steps, work.steps * sent, computing, work.steps * seconds
    )


def _rounds(
    method: str,
    work: Workload,
    network: Network,
    period: int | str,
    compress: str | None,
    *,
    measuring: bool = False,
) -> PlannedRun:
    rounds = Stage(lr=0.1, steps=work.steps, sync_every=period, dual_samples=_DUAL_SAMPLES).rounds
    if isinstance(period, str) and work.adaptive:  # the default recipe's step size falls
        factor = factor_of(Recipe(), work.steps)
        rounds = sum(1 for _ in quadratic_rounds(work.steps, named_period(period)[1], factor))
    cost = _round_cost(work, network, compress, measuring=measuring)
    once = start_cost(network, 1, work.outside), estimate_cost(network, work.statistics)
    return PlannedRun(
        method=method,
        period=period,
        compress=compress,
        rounds=rounds,
        bytes_per_worker=rounds * cost.bytes + sum(part.bytes for part in once),
        computing=work.steps * work.step_seconds,
        communicating=rounds * cost.seconds + sum(part.seconds for part in once),
    )


def _round_cost(
    work: Workload, network: Network, compress: str | None, *, measuring: bool = False
) -> RoundCost:
    sizes = MessageSizes(
        work.parameters,
        work.statistics,
        moments=work.adaptive,
        variates=work.corrected,
        measuring=measuring,
    )
    return round_cost(network, sizes, compress)


def _estimated(work: Workload, network: Network, compress: str | None) -> PlannedRun:
    """What "auto" would do if times were as given here and drift small, after its first rounds."""
    seconds = _round_cost(work, network, compress, measuring=True).seconds
    period = min(work.steps, measured_period(1, 1, Measured(work.step_seconds, seconds, 0.0)))
    run = _rounds("CoDA", work, network, period, compress, measuring=True)
    return replace(run, period=f"auto ~{period}")


def recommended(runs: list[PlannedRun]) -> PlannedRun:
    """The smallest period up to the harmless one whose communication is a small share of the time.

    Plain messages before compressed ones; where none is enough, the fastest.
    """
    harmless = [run for run in runs if isinstance(run.period, int) and run.period <= HARMLESS]
    fine = [run for run in harmless if run.share <= SHARE and run.method != "data parallel"]
    if not fine:
        return min(harmless, key=lambda run: run.seconds)
    return min(fine, key=lambda run: (CODECS.index(run.compress), run.period))


def memory_per_worker(work: Workload, run: PlannedRun) -> int:
    """Bytes of weights, gradients, average, two moments and message; compression keeps five more.

    With moments in the message it keeps six. Control variates are five, and three where they are
    compressed. Activations come on top.
    """
    copies = 5 + (run.method != "data parallel") + (5 + work.adaptive if run.compress else 0)
    if work.corrected and run.method != "data parallel":
        copies += 8 if run.compress else 5
    return copies * work.parameters * NUMBER


def speed_up(work: Workload, run: PlannedRun, workers: int) -> float:
    """How many times as many samples per second as one worker alone."""
    return workers * work.steps * work.step_seconds / run.seconds


def most_workers(work: Workload, network: Network, period: int | str) -> int:
    """With how many workers latency alone takes half of the time: a ring has 2 (K - 1) steps."""
    if network.latency == 0 or isinstance(period, str):
        return 10**6
    return 1 + math.floor(period * work.step_seconds / (2 * network.latency))


def harmless_period(lr: float, workers: int) -> int:
    """Theorem 1's I <= 1/sqrt(K eta), at least 1, without its constants.

    >>> harmless_period(0.001, 16)
    7
    """
    return max(1, math.floor(1 / math.sqrt(workers * lr) + 1e-9))


def largest_step(pos_ratio: float) -> float:
    """The step size 1/(2p(1-p)), above which alpha diverges and `PPDSG` refuses to step.

    >>> largest_step(0.5)
    2.0
    """
    return step_limits(pos_ratio).refuse


@dataclass(frozen=True)
class Averaging:
    """A way to average over many workers: what a round costs, and the I at which it takes 5%."""

    name: str
    latencies: int  # messages that wait for one another
    bytes_per_worker: int  # of the worker that sends most
    seconds: float
    period: int


def ways_to_average(work: Workload, network: Network, compress: str = "int2") -> list[Averaging]:
    """Of a compressed message: straight to each worker as here, a ring, a tree, two levels.

    A ring and the two levels send a message's parts, 2 (K - 1) and 2 (g - 1) + 2 (K/g - 1) times
    one after the other, in groups of g, about the square root of K. A tree sends all of it up and
    then down, 2 log2 K times. Groups may be on one site: their latency is then less than here.
    """
    k = network.workers
    direct = _round_cost(work, network, compress)
    message = direct.bytes * k // (2 * (k - 1))
    group = 2 ** round(math.log2(k) / 2)
    groups, levels = -(-k // group), math.ceil(math.log2(k))
    parts = (group - 1) / group + (groups - 1) / (groups * group)
    ways = {
        "straight to each (codauc)": (k, direct.bytes),
        "ring": (2 * (k - 1), direct.bytes),
        "tree": (2 * levels, 2 * message),
        f"two levels, groups of {group}": (2 * (group + groups - 2), round(2 * parts * message)),
    }
    found = []
    for name, (latencies, sent) in ways.items():
        bulk = latencies * message if name == "tree" else sent  # a tree's steps are whole messages
        seconds = latencies * network.latency + bulk / network.bandwidth
        period = math.ceil(seconds * (1 - SHARE) / (SHARE * work.step_seconds))
        found.append(Averaging(name, latencies, sent, seconds, max(1, period)))
    return found
