"""What a slow link sees: bytes by its own counters, and how much of the time overlap hides.

    sudo python experiments/link.py [--hosts 4] [--rate 100mbit] [--out runs/link]

makes hosts on links of that rate, starts one torchrun agent in each, and measures with an MLP
3072-320-320-1 at batch 32:

- bytes of a round of the default recipe (PPDAdam, whose second moments travel, too) in float32,
  bf16, int8, int4 and int2, by the interface's counters beside the ledger's;
- seconds of the same steps without rounds, with plain rounds every `--sync-every` steps, and with
  rounds that take effect `--delay` steps later: the share of the communication that is hidden.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from hosts import Hosts, HostsError, my_counters

import codauc
from codauc.algorithm.compression import COMPRESSIONS
from codauc.models import MLP
from codauc.workers import Group

ENCODINGS = (None, "bf16", "int8", "int4", "int2")
MODES = ("none", "plain", "overlap")


def make(
    group: Group, kind: type[codauc.PPDSG] = codauc.PPDSG, **options: Any
) -> tuple[codauc.CoDA, codauc.PPDSG]:
    """A network and its engine; the data are noise, since only time and bytes are measured."""
    torch.manual_seed(group.rank)
    model, loss = MLP(3072, (320, 320)), codauc.MinMaxAUCLoss(pos_ratio=0.71)
    opt = kind(model, loss, lr=0.01)
    return codauc.CoDA(opt, group, **options), opt


def batch(group: Group) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One batch, to be used again and again."""
    generator = torch.Generator().manual_seed(group.rank)
    return [(torch.randn(32, 3072, generator=generator), torch.arange(32) % 3 > 0)]


def count_bytes(group: Group, compress: str | None, rounds: int) -> dict[str, float]:
    """Bytes that one host sends in a round, by the ledger and by the interface."""
    coda, _ = make(group, codauc.PPDAdam, compress=compress)
    meet(group)
    time.sleep(0.2)  # what is under way arrives
    before, ledger = my_counters().sent, group.ledger.bytes_sent
    meet(group)
    for _ in range(rounds):
        coda.averager.round()
    computed = (group.ledger.bytes_sent - ledger) / rounds
    meet(group)
    time.sleep(0.2)
    return {"interface": (my_counters().sent - before) / rounds, "ledger": computed}


def meet(group: Group) -> None:
    """Wait for all."""
    group.sum_(torch.zeros(1), "start")


def seconds_of(group: Group, mode: str, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of the steps of a stage, its end excluded, and where they went."""
    every, delay = options.sync_every, options.delay if mode == "overlap" else 0
    coda, opt = make(group, delay=delay, compress=options.compress)
    steps = options.rounds * every + every - 1
    stage = codauc.Stage(0.01, steps, steps if mode == "none" else every, 32)
    start = 0.0
    before: dict[str, float] = {}
    for x, y in coda.stage(stage, batch(group)):
        if not opt.steps:
            meet(group)
            start, before = time.perf_counter(), group.ledger.record()
        opt.zero_grad()
        opt.loss(opt.model(x), y).backward()
        opt.step()
        if opt.steps == steps:
            taken = time.perf_counter() - start
            after = group.ledger.record()
    parts = ("communicating", "waiting", "hidden")
    return {"seconds": taken, **{name: after[name] - before[name] for name in parts}}


def work(options: argparse.Namespace) -> None:
    """One host's part."""
    with codauc.distributed(timeout=120) as group:
        counted = {str(e): count_bytes(group, e, options.rounds) for e in ENCODINGS}
        timed: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
        for _ in range(options.repeats):
            for mode in MODES:
                found = seconds_of(group, mode, options)
                timed[mode].append(found)
                if group.rank == 0:
                    print(f"{mode}: {found['seconds']:.2f} s", flush=True)
        if group.rank == 0:
            result = {"options": vars(options) | {"out": str(options.out)}, "bytes": counted}
            result["hidden"] = hidden(timed)
            result["timed"] = timed
            options.out.mkdir(parents=True, exist_ok=True)
            text = json.dumps(result, indent=1)
            (options.out / "link.json").write_text(text + "\n", encoding="utf-8")


def hidden(timed: dict[str, list[dict[str, float]]]) -> float:
    """The share of the rounds' time that no longer lengthens the run."""
    none, plain, overlap = (
        statistics.median(found["seconds"] for found in timed[mode]) for mode in MODES
    )
    return 1 - (overlap - none) / (plain - none)


def show(result: dict[str, Any]) -> str:
    """What was found, to read."""
    counted = result["bytes"]
    lines = [
        f"{name:5} {found['interface']:12,.0f} bytes a round by the interface "
        f"({found['interface'] / counted['None']['interface']:.3f} of float32), "
        f"{found['ledger']:12,.0f} by the ledger"
        for name, found in counted.items()
    ]
    for mode, runs in result["timed"].items():
        lines.append(f"{mode:8} {statistics.median(r['seconds'] for r in runs):7.2f} s")
    lines.append(f"hidden   {result['hidden']:.3f} of the communication")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the hosts, run the workers, show the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sync-every", type=int, default=64)
    parser.add_argument("--delay", type=int, default=56)
    parser.add_argument("--compress", choices=COMPRESSIONS, help="for the timed rounds")
    parser.add_argument("--out", type=Path, default=Path("runs/link"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        work(options)
        return 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1"]
    program = [__file__, "--worker", *(sys.argv[1:] if arguments is None else arguments)]
    try:
        with Hosts(options.hosts, options.rate) as hosts:
            codes = hosts.run(lambda i: [*torchrun, *hosts.torchrun(i), *program])
    except HostsError as error:
        parser.exit(2, f"link.py: {error}\n")
    if any(codes):
        return 1
    print(show(json.loads((options.out / "link.json").read_text(encoding="utf-8"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
