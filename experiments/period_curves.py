"""Periods by a given clock: AUC against steps of four simulated workers, and the time to a target.

    python experiments/period_curves.py --data DIR --seeds 0 1 2 --periods 8 64 512 auto
    python experiments/period_curves.py --small ...        # small images, a small MLP

Workers' arithmetic follows from the seed and the periods alone, and the seconds from the link: so
AUC is taken from simulations, over several seeds, and seconds are steps times those of a step plus
rounds times those of a round, both given for each link (LINKS). "auto" gets these seconds in place
of measured ones, and decides by them and by the drift of its own run.

A run may end at any step with a closing round, so AUC is that of the mean of the workers' weights
every EVERY steps. The time to the target is that at which the mean curve of the seeds first passes
it; between two of its points the curve is a straight line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from network_training import batches, load
from network_training import build as build_network
from periods import HOSTS, LR, MOMENTUM, TARGET
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

import codauc
from codauc.algorithm import round_schedule
from codauc.algorithm.round_periods import Measured
from codauc.metrics.evaluation import evaluate
from codauc.models import MLP
from codauc.reproduce.reproduction import made_by
from codauc.workers import Group

EVERY = 32
# seconds of a step and of a round over links of 10, 100 and 1000 Mbit/s: about those of periods.py
LINKS = {"10mbit": (0.0095, 5.6), "100mbit": (0.0095, 0.52), "1000mbit": (0.0095, 0.075)}


def small(data: Any) -> Any:
    """The task with images of 16 pixels, on which constants may be chosen in seconds."""
    x, test_x = avg_pool2d(data.x, 2), avg_pool2d(data.test_x, 2)
    return data._replace(x=x, test_x=test_x)


def build(data: Any, seed: int) -> nn.Module:
    """The network of network.py, or for small images a small one."""
    if data.x.shape[-1] == 32:
        return build_network("mlp", seed)
    torch.manual_seed(seed)
    return MLP(data.x[0].numel(), (64,))


class GivenClock:
    """Says of every step that it took as long as given."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def start(self) -> None:
        """A step begins."""

    def stop(self) -> None:
        """It has ended."""


def train(data: Any, seed: int, period: int | str, steps: int, rate: str) -> dict[str, Any]:
    """AUC of the mean weights every EVERY steps, and the rounds until then with a closing one."""
    sums: dict[int, dict[str, Tensor]] = {}
    rounds: dict[int, int] = {}
    decided: list[list[int]] = []
    drifts: list[tuple[int, float]] = []  # of worker 0 at its rounds

    def work(group: Group) -> None:
        model = build(data, seed)
        loss = codauc.MinMaxAUCLoss(pos_ratio=data.pos_ratio, link="identity")
        opt = codauc.PPDSG(model, loss, lr=LR, momentum=MOMENTUM, average=False)
        coda = codauc.CoDA(opt, group)
        coda.watch_drift()
        if period == "auto":
            step_seconds, round_seconds = LINKS[rate]
            coda.schedule.clock = GivenClock(step_seconds)
            ledger = group.ledger
            ledger.seconds = lambda *kinds: ledger.calls(kinds[0]) * round_seconds
            known = Measured(step_seconds, round_seconds, 0.0)
            round_schedule.try_link = lambda *_: known
        for x, y in coda.stage(codauc.Stage(LR, steps, period, 32),
                               batches(data, group.size, group.rank, seed)):  # fmt: skip
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
            if not group.rank and coda.schedule.synced_at == opt.steps:
                drifts.append((opt.steps, coda.averager.drift or 0.0))
            if opt.steps % EVERY == 0:
                total = sums.setdefault(opt.steps, {})
                for name, weight in model.state_dict().items():
                    total[name] = total.get(name, 0) + weight / group.size
                open_round = coda.schedule.synced_at != opt.steps
                rounds[opt.steps] = group.ledger.rounds + open_round
        decided[:] = [list(each[1:3]) for each in coda.schedule.periods.decisions]

    codauc.launch(work, workers=HOSTS, simulate=True, seed=seed)
    model, curve = build(data, seed), []
    for step in sorted(sums):
        model.load_state_dict(sums[step])
        curve.append([step, rounds[step], evaluate(model, data.test_x, data.test_y).value])
    return {"curve": curve, "decisions": decided, "drifts": drifts}


def passing(runs: Sequence[dict[str, Any]], link: tuple[float, float], target: float) -> Any:
    """Seconds, steps and rounds at which the mean AUC of the runs passes the target; or None."""
    before = None
    for points in zip(*(run["curve"] for run in runs), strict=False):
        auc, rounds, step = mean(p[2] for p in points), mean(p[1] for p in points), points[0][0]
        here = (step * link[0] + rounds * link[1], step, rounds, auc)
        if auc >= target:
            if before is None:
                return here
            share = (target - before[3]) / (auc - before[3])
            return tuple(b + share * (h - b) for b, h in zip(before, here, strict=True))
        before = here
    return None


def show(found: list[dict[str, Any]], seeds: Sequence[int], targets: Sequence[float]) -> None:
    """For each target and link the seconds of every period, and of "auto" over the best."""
    for target in targets:
        for rate, link in LINKS.items():
            hits: dict[str, Any] = {}
            for period in dict.fromkeys(str(r["period"]) for r in found):
                own = [r for r in found if str(r["period"]) == period and r["seed"] in seeds
                       and r["rate"] in ("", rate)]  # fmt: skip
                if own:
                    hits[period] = passing(own, link, target), len(own)
            fixed = [hit[0] for name, (hit, _) in hits.items() if hit and name != "auto"]
            text = ", ".join(f"{name}: {hit[0]:.1f} s ({hit[1]:.0f} steps, {hit[2]:.1f} rounds; "
                             f"{n} seeds)" if hit else f"{name}: never ({n} seeds)"
                             for name, (hit, n) in hits.items())  # fmt: skip
            own = hits.get("auto", (None, 0))[0]
            ratio = f"; auto {own[0] / min(fixed):.2f} of the best" if own and fixed else ""
            print(f"AUC {target}, {rate}: {text}{ratio}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, then show all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="CIFAR-10's binary archive; without: no runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--periods", nargs="+", default=["8", "64", "512", "auto"])
    parser.add_argument("--rates", nargs="+", choices=LINKS, default=list(LINKS))
    parser.add_argument("--small", action="store_true", help="images of 16 pixels, a small MLP")
    parser.add_argument("--steps", type=int, default=1536)
    parser.add_argument("--targets", type=float, nargs="+", default=[TARGET])
    parser.add_argument("--out", type=Path, default=Path("runs/period-curves"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "curves.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for seed in options.seeds if options.data else []:
        data = load(options.data, seed)
        data = small(data) if options.small else data
        for name in options.periods:
            period = name if name == "auto" else int(name)
            for rate in options.rates if period == "auto" else [""]:
                key = {"period": period, "seed": seed, "rate": rate}
                if not any(all(r[k] == v for k, v in key.items()) for r in found):
                    run = train(data, seed, period, options.steps, rate)
                    found.append({**key, "commit": made_by()["commit"], **run})
                    print(key, run["curve"][-1], run["decisions"], flush=True)
                    with path.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(found[-1]) + "\n")
    show(found, options.seeds, options.targets)
    return 0


if __name__ == "__main__":
    sys.exit(main())
