"""Periods that set themselves against fixed ones by the clock, and the plan's hours.

    sudo python experiments/periods.py --data DIR --rate 100mbit --runs auto:704 64:640
    sudo python experiments/periods.py --data DIR --rate 10mbit --plan
    python experiments/periods.py --data DIR --show        # AUC of what was kept, and the tables

Four hosts, the MLP and data of network.py, float32. `--runs` names periods and the steps of each,
which period_curves.py finds with other seeds; AUC is that of the run's end. The plan is compared
with runs of I = 64, float32 and int2: hours by the clock, rounds and bytes with the ledger.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from hosts import Hosts, HostsError
from network_training import DUAL_SAMPLES, batches, build, load
from torch import Tensor

import codauc
from codauc.cli.plan_command import _RATES, quantity
from codauc.metrics.evaluation import evaluate
from codauc.training.communication_plan import Network, Workload, planned_runs
from codauc.workers import Group

LR, MOMENTUM, TARGET, HOSTS = 0.01, 0.9, 0.73, 4
EVERY = 16  # steps between copies of the weights, which are taken after rounds
MEETING = "meeting"  # what the clock needs, and no run


class Run:
    """One training of a worker, from the weights of a seed."""

    def __init__(self, group: Group, data: Any, seed: int, compress: str | None = None) -> None:
        self.group, model = group, build("mlp", seed)
        loss = codauc.MinMaxAUCLoss(pos_ratio=data.pos_ratio, link="identity")
        self.opt = codauc.PPDSG(model, loss, lr=LR, momentum=MOMENTUM, average=False)
        self.coda = codauc.CoDA(self.opt, group, compress=compress)
        self.source = batches(data, group.size, group.rank, seed)
        self.kept: list[tuple[int, float, int, dict[str, Tensor]]] = []

    def train(self, period: int | str, steps: int) -> float:
        """Train; returns the seconds. Worker 0 keeps weights after rounds."""
        self.group.sum_(torch.zeros(1), MEETING)
        stage, began = codauc.Stage(LR, steps, period, DUAL_SAMPLES), time.perf_counter()
        for x, y in self.coda.stage(stage, self.source):
            self.opt.zero_grad()
            self.opt.loss(self.opt.model(x), y).backward()
            self.opt.step()
            at, last = self.opt.steps, self.kept[-1][0] if self.kept else 0
            if self.coda.schedule.synced_at == at and at - last >= EVERY and not self.group.rank:
                self.keep(at, time.perf_counter() - began)
        seconds = time.perf_counter() - began
        if not self.group.rank:
            self.keep(steps, seconds)
        return seconds

    def keep(self, step: int, seconds: float) -> None:
        """A copy of the weights, to be evaluated when the clock has stopped."""
        state = self.opt.model.state_dict()
        weights = {name: tensor.clone() for name, tensor in state.items()}
        self.kept.append((step, seconds, self.group.ledger.rounds, weights))


def work(options: argparse.Namespace) -> None:
    """One host's part."""
    with codauc.distributed(timeout=300) as group:
        data = load(options.data, options.seed)
        found: dict[str, Any] = {"rate": options.rate, "seed": options.seed, "runs": {}}
        found["step"] = seconds_of_step(group, data)
        found["round"] = seconds_of_round(group, data)
        found["plan"] = [against_plan(group, data, codec, options, found["step"])
                         for codec in (None, "int2") if options.plan]  # fmt: skip
        kept = {}
        for period, steps in options.runs:
            before = group.ledger.rounds
            run = Run(group, data, options.seed)
            seconds = run.train(period, steps)
            name = f"{period}:{steps}"
            kept[name] = [(s, t, r - before, w) for s, t, r, w in run.kept]
            decided = [list(d[1:3]) for d in run.coda.schedule.periods.decisions]
            found["runs"][name] = {"seconds": seconds, "decisions": decided}
            if group.rank == 0:
                print(f"{options.rate} {name}: {seconds:.1f} s {decided}", flush=True)
        if group.rank == 0:
            name = f"{options.rate}-seed{options.seed}{'-plan' * options.plan}"
            torch.save(kept, options.out / f"{name}.pt")
            text = json.dumps(found, indent=1) + "\n"
            (options.out / f"{name}.json").write_text(text, encoding="utf-8")
        group.sum_(torch.zeros(1), "end")


def seconds_of_step(group: Group, data: Any) -> float:
    """Of a step while all compute, the mean over the workers."""
    run = Run(group, data, 0)
    seconds = run.train(10_000, 128)
    alone = torch.tensor([(seconds - group.ledger.seconds("round", "dual")) / 128])
    group.sum_(alone, MEETING)
    return float(alone) / group.size


def seconds_of_round(group: Group, data: Any) -> float:
    """Of a round when all come at once, the median of five."""
    run, times = Run(group, data, 0), []
    for _ in range(5):
        group.sum_(torch.zeros(1), MEETING)
        began = time.perf_counter()
        run.coda.averager.round()
        times.append(time.perf_counter() - began)
    return median(times)


def against_plan(
    group: Group, data: Any, codec: str | None, options: argparse.Namespace, step: float
) -> dict[str, Any]:
    """Seconds of a run of I = 64 and what the plan says of it."""
    steps = 512 if quantity("rate", options.rate, _RATES, "") > 5e6 else 256
    parameters = sum(p.numel() for p in build("mlp", 0).parameters())
    before = group.ledger.rounds, sent(group)
    seconds = Run(group, data, 0, codec).train(64, steps)
    network = Network(group.size, quantity("rate", options.rate, _RATES, ""), 0.001)
    plans = planned_runs(Workload(parameters, step, steps, adaptive=False), network)
    (plan,) = [p for p in plans if (p.method, p.period, p.compress) == ("CoDA", 64, codec)]
    return {
        "compress": codec,
        "steps": steps,
        "seconds": seconds,
        "planned": plan.seconds,
        "rounds": [group.ledger.rounds - before[0], plan.rounds],
        "bytes": [sent(group) - before[1], plan.bytes_per_worker],
    }


def sent(group: Group) -> int:
    """Bytes that this worker sent, but for those of the clock."""
    return group.ledger.bytes_sent - group.ledger.of(MEETING).sent


def show(options: argparse.Namespace) -> None:
    """Of every run its seconds, rounds and last AUC, and when it was first at the target."""
    for path in sorted(options.out.glob("*.json")):
        found = json.loads(path.read_text())
        data, model = load(options.data, found["seed"]), build("mlp", 0)
        print(f"{found['rate']}, seed {found['seed']}: step {1e3 * found['step']:.1f} ms, round "
              f"{found['round']:.3f} s")  # fmt: skip
        for name, history in torch.load(path.with_suffix(".pt")).items():
            curve = []
            for step, seconds, rounds, weights in history:
                model.load_state_dict(weights)
                value = evaluate(model, data.test_x, data.test_y).value
                curve.append((step, seconds, rounds, value))
            hit = next((point for point in curve if point[3] >= options.target), None)
            at = f"{hit[1]:.1f} s, {hit[0]} steps" if hit else "not"
            step, seconds, rounds, value = curve[-1]
            print(f"  {name}: {seconds:.1f} s, {rounds} rounds, AUC {value:.4f}; at "
                  f"{options.target}: {at}; {found['runs'][name]['decisions']}")  # fmt: skip
        for plan in found["plan"]:
            codec, counted = plan["compress"] or "float32", f"{plan['rounds']}, {plan['bytes']}"
            print(f"  plan, {codec}: {plan['planned']:.2f} s, the clock {plan['seconds']:.2f} s; "
                  f"rounds and bytes {counted}")  # fmt: skip


def period_and_steps(text: str) -> tuple[int | str, int]:
    """Of "auto:1152" or "64:640"."""
    period, steps = text.split(":")
    return period if period == "auto" else int(period), int(steps)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the hosts and run the workers, or show what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="CIFAR-10's binary archive")
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--runs", type=period_and_steps, nargs="*", default=[], metavar="I:STEPS")
    parser.add_argument("--plan", action="store_true", help="compare the plan with two runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, default=TARGET)
    parser.add_argument("--out", type=Path, default=Path("runs/periods"))
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.show or options.worker:
        show(options) if options.show else work(options)
        return 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1"]
    program = [__file__, "--worker", *(sys.argv[1:] if arguments is None else arguments)]
    try:
        with Hosts(HOSTS, options.rate) as hosts:
            codes = hosts.run(lambda i: [*torchrun, *hosts.torchrun(i), *program])
    except HostsError as error:
        parser.exit(2, f"periods.py: {error}\n")
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
