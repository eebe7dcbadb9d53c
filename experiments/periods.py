"""Periods that set themselves against fixed ones, and the plan's hours against the clock.

    sudo python experiments/periods.py --data DIR --rate 1000mbit --fixed 1 8 64 512
    sudo python experiments/periods.py --data DIR --rate 100mbit
    python experiments/periods.py --data DIR --show        # AUC of what was kept, and the tables

Four hosts, the MLP and data of network.py, float32. What a fixed I needs to the target is the same
over any link: it is trained once (`--fixed`), and its time elsewhere is its steps times the seconds
of a step, plus its rounds times those of a round, both measured over that link. "auto" is trained
over every link. The plan is compared with runs of I = 64, float32 and int2, by the clock.
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

MOST = {1: 512, 8: 768, 64: 1152, 512: 2048, "auto": 1152}  # steps that are enough
LR, MOMENTUM, TARGET, HOSTS = 0.01, 0.9, 0.73, 4
EVERY = 16  # steps between copies of the weights, which are taken after rounds


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
        self.group.sum_(torch.zeros(1), "start")
        stage, began = codauc.Stage(LR, steps, period, DUAL_SAMPLES), time.perf_counter()
        for x, y in self.coda.stage(stage, self.source):
            self.opt.zero_grad()
            self.opt.loss(self.opt.model(x), y).backward()
            self.opt.step()
            at, last = self.opt.steps, self.kept[-1][0] if self.kept else 0
            if self.coda.schedule.synced_at == at and at - last >= EVERY and not self.group.rank:
                state = self.opt.model.state_dict()
                weights = {name: tensor.clone() for name, tensor in state.items()}
                rounds = self.group.ledger.rounds
                self.kept.append((at, time.perf_counter() - began, rounds, weights))
        return time.perf_counter() - began


def work(options: argparse.Namespace) -> None:
    """One host's part."""
    with codauc.distributed(timeout=300) as group:
        data = load(options.data, options.seed)
        found: dict[str, Any] = {"rate": options.rate, "seed": options.seed, "runs": {}}
        found["step"] = seconds_of_step(group, data)
        found["round"] = seconds_of_round(group, data)
        found["plan"] = [against_plan(group, data, codec, options, found["step"])
                         for codec in (None, "int2")]  # fmt: skip
        kept = {}
        for period in [*options.fixed, "auto"]:
            before = group.ledger.rounds
            run = Run(group, data, options.seed)
            seconds = run.train(period, MOST[period])
            kept[str(period)] = [(s, t, r - before, w) for s, t, r, w in run.kept]
            found["runs"][str(period)] = {"seconds": seconds, "steps": MOST[period]}
            if period == "auto":
                found["decisions"] = [list(d[:3]) for d in run.coda.schedule.periods.decisions]
            if group.rank == 0:
                print(f"{options.rate} {period}: {seconds:.1f} s", flush=True)
        if group.rank == 0:
            torch.save(kept, options.out / f"{options.rate}.pt")
            text = json.dumps(found, indent=1) + "\n"
            (options.out / f"{options.rate}.json").write_text(text, encoding="utf-8")
        group.sum_(torch.zeros(1), "end")


def seconds_of_step(group: Group, data: Any) -> float:
    """Of a step while all compute, the mean over the workers."""
    run = Run(group, data, 0)
    seconds = run.train(10_000, 128)
    alone = torch.tensor([(seconds - seconds_of(group, "round") - seconds_of(group, "dual")) / 128])
    return float(group.sum_(alone, "start") or alone) / group.size


def seconds_of(group: Group, kind: str) -> float:
    """What communication of a kind took so far."""
    return group.ledger.seconds(kind)


def seconds_of_round(group: Group, data: Any) -> float:
    """Of a round when all come at once, the median of five."""
    run, times = Run(group, data, 0), []
    for _ in range(5):
        group.sum_(torch.zeros(1), "start")
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
    before = group.ledger.rounds, group.ledger.bytes_sent
    run = Run(group, data, 0, codec)
    start = group.ledger.bytes_sent
    seconds = run.train(64, steps)
    network = Network(group.size, quantity("rate", options.rate, _RATES, ""), 0.001)
    plans = planned_runs(Workload(parameters, step, steps, adaptive=False), network)
    (plan,) = [p for p in plans if (p.method, p.period, p.compress) == ("CoDA", 64, codec)]
    return {
        "compress": codec,
        "steps": steps,
        "seconds": seconds,
        "planned": plan.seconds,
        "rounds": [group.ledger.rounds - before[0], plan.rounds],
        "bytes": [group.ledger.bytes_sent - start, plan.bytes_per_worker],
    }


def show(options: argparse.Namespace) -> None:
    """Time to the target of every period over every link."""
    data, hits = load(options.data, options.seed), {}
    found = {path.stem: json.loads(path.read_text()) for path in options.out.glob("*bit.json")}
    model = build("mlp", options.seed)

    def first_hit(history: list[Any]) -> tuple[int, float, int] | None:
        for step, seconds, rounds, weights in history:
            model.load_state_dict(weights)
            if evaluate(model, data.test_x, data.test_y).value >= options.target:
                return step, seconds, rounds
        return None

    for rate in found:
        for period, history in torch.load(options.out / f"{rate}.pt").items():
            hits[rate, period] = first_hit(history)
            print(rate, period, "reached", hits[rate, period], flush=True)
    fixed = {period: hit for (_, period), hit in hits.items() if period != "auto" and hit}
    for rate, each in found.items():
        times = {p: hit[0] * each["step"] + hit[2] * each["round"] for p, hit in fixed.items()}
        auto = hits[rate, "auto"]
        text = ", ".join(f"I={p}: {seconds:.1f} s" for p, seconds in times.items())
        print(f"{rate}: step {1e3 * each['step']:.1f} ms, round {each['round']:.3f} s; {text}")
        if auto:
            print(f"  auto: {auto[1]:.1f} s, {auto[1] / min(times.values()):.2f} of the best; "
                  f"{each['decisions']}")  # fmt: skip
        for plan in each["plan"]:
            codec, counted = plan["compress"] or "float32", f"{plan['rounds']}, {plan['bytes']}"
            print(f"  plan, {codec}: {plan['planned']:.2f} s, the clock {plan['seconds']:.2f} s; "
                  f"rounds and bytes {counted}")  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the hosts and run the workers, or show what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="CIFAR-10's binary archive")
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--fixed", type=int, nargs="*", choices=[1, 8, 64, 512], default=[])
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
