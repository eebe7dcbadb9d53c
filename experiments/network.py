"""CoDA and data parallel training on hosts joined by slow links: AUC by the clock and by the byte.

    sudo python experiments/network.py --data DIR

makes 4 hosts on links of 100 Mbit/s (see hosts.py), trains a network on CIFAR-10 with each method
through torchrun, one after the other, and writes the histories, a table and a picture to
runs/network. DIR holds CIFAR-10's binary archive. A second call runs only what is missing.
`--tune` chooses every method's numbers, in this process, without any network.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from hosts import Hosts, HostsError
from network_report import as_table, plot, summarise
from network_training import (
    METHODS,
    Numbers,
    build,
    curve,
    load,
    over_network,
    settings,
    simulate,
    tuned,
)

import codauc

DEFAULT = ("ddp", "np-ppd-sg", "coda")
SIMULATED = (1, 32)  # copies of the weights: evaluating them takes as long as training


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR", help="CIFAR-10's binary archive")
    add("--out", type=Path, default=Path("runs/network"), metavar="DIR")
    add("--model", choices=("mlp", "convnet"), default="mlp")
    add("--rate", default="100mbit", help="of each link, in tc's notation (%(default)s)")
    add("--hosts", type=int, default=4, help="how many, one worker on each (%(default)s)")
    add("--methods", nargs="+", choices=METHODS, default=DEFAULT, metavar="METHOD")
    add("--seed", type=int, default=0)
    add("--first", type=int, metavar="STEPS", help="only so many steps, to time them")
    add("--force", action="store_true", help="run again what is there")
    add("--simulate", action="store_true", help="only steps to the target, without a network")
    add("--tune", action="store_true", help="choose the numbers of each method, and stop")
    add("--worker", choices=METHODS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.data, options.out = options.data.resolve(), options.out.resolve()
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment, or one worker of it."""
    options = parse(arguments)
    torch.set_num_threads(1)
    if options.worker:
        work(options)
        return 0
    try:
        if options.tune:
            from network_tuning import tune

            tune(options.data, options.model, options.methods, options.hosts, options.out)
        elif options.simulate:
            simulated(options)
        else:
            experiment(options)
    except (HostsError, ValueError) as error:
        print(f"network.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def experiment(options: argparse.Namespace) -> None:
    """Run the methods that have no history yet, then tell what was found."""
    options.out.mkdir(parents=True, exist_ok=True)
    todo = [name for name in options.methods if options.force or not complete(options, name)]
    if todo:  # raise now what every worker would raise
        load(options.data, options.seed)
        [header(options, name) for name in todo]
    for name in todo:
        print(f"{name}: {options.hosts} hosts, links of {options.rate} ...", flush=True)
        start = time.perf_counter()
        run(options, name)
        print(f"{name}: done in {time.perf_counter() - start:.0f} s, all included", flush=True)
        tell(options)
    if not todo:
        tell(options)


def simulated(options: argparse.Namespace) -> None:
    """The same training in this process, for steps and bytes; histories are kept in a folder."""
    options.out = options.out / f"simulated-seed{options.seed}"
    options.out.mkdir(parents=True, exist_ok=True)
    data = load(options.data, options.seed)
    for name in options.methods:
        if options.force or not complete(options, name):
            numbers, method = Numbers(**tuned(options.model, name)), METHODS[name]
            points = SIMULATED
            watch = simulate(
                data, options.model, method, numbers, options.hosts, options.seed, points
            )
            write(options, name, curve(watch, build(options.model, options.seed), data))
    histories = {name: read(history_path(options, name))[1:] for name in options.methods}
    if "ddp" in histories:
        summary = summarise(histories)
        for name, found in summary["methods"].items():
            steps = (found["to_target"] or {}).get("step")
            print(
                f"{name}: best AUC {found['best_auc']:.4f}, {steps} steps to the target", flush=True
            )


def run(options: argparse.Namespace, name: str) -> None:
    """Train with one method: an agent of torchrun in each host, with one worker."""
    script = [str(Path(__file__).resolve()), "--worker", name, "--data", str(options.data)]
    script += ["--out", str(options.out), "--model", options.model, "--rate", options.rate]
    script += ["--hosts", str(options.hosts), "--seed", str(options.seed)]
    script += ["--first", str(options.first)] if options.first else []
    history_path(options, name).unlink(missing_ok=True)
    logs = [options.out / f"{name}-host{i}.log" for i in range(options.hosts)]
    with ExitStack() as stack:
        hosts = stack.enter_context(Hosts(options.hosts, options.rate))
        errors = [stack.enter_context(log.open("w", encoding="utf-8")) for log in logs]

        def command(host: int) -> list[str]:
            agent = [sys.executable, "-m", "torch.distributed.run", *hosts.torchrun(host, name)]
            return [*agent, "--nproc-per-node=1", *script]

        codes = hosts.run(command, errors=errors)
    if any(codes) or not complete(options, name):
        raise HostsError(f"{name} failed (exit codes {codes}): {_last_error(logs)}")


def _last_error(logs: list[Path]) -> str:
    """The last line of the first worker's traceback, and where all of it is."""
    for log in logs:
        lines = [line for line in log.read_text(encoding="utf-8").splitlines() if "[rank" in line]
        if lines:
            return f"{lines[-1]}; see {log} and its neighbours."
    return f"see {logs[0]} and its neighbours."


def work(options: argparse.Namespace) -> None:
    """One worker; worker 0 writes the history when it is complete."""
    name, last = options.worker, [0.0]

    def progress(point: Any) -> None:
        if point.seconds - last[0] >= 10:
            last[0] = point.seconds
            sent = f"{point.bytes / 1e6:.0f} MB sent"
            print(f"{name}: step {point.step}, {point.seconds:.0f} s, {sent}", flush=True)

    history = over_network(options.data, options.model, name, options.seed, progress, options.first)
    if history is not None:
        write(options, name, history)


def write(options: argparse.Namespace, name: str, history: list[dict[str, Any]]) -> None:
    """Keep a history, with its settings before it."""
    path = history_path(options, name)
    lines = [header(options, name), *history]
    draft = path.with_suffix(".tmp")
    draft.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    os.replace(draft, path)


def history_path(options: argparse.Namespace, name: str) -> Path:
    """Where the history of a method is; it exists only when it is complete."""
    return Path(options.out / f"{name}.jsonl")


def header(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """The first line of a history: all that decides it."""
    network = {"hosts": options.hosts, "rate": options.rate}
    if options.first is not None:
        network["first"] = options.first
    return {**settings(options.model, name, options.seed), **network}


def complete(options: argparse.Namespace, name: str) -> bool:
    """Whether a history is there; one of other settings is refused."""
    path = history_path(options, name)
    if not path.is_file():
        return False
    saved, wanted = read(path)[0], header(options, name)
    if saved != wanted:
        differ = [key for key in {**saved, **wanted} if saved.get(key) != wanted.get(key)]
        raise ValueError(
            f"{path} has other settings ({', '.join(differ)}): expected those of this call; "
            "use --force to run it again, or another --out."
        )
    return True


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a history."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def tell(options: argparse.Namespace) -> None:
    """Print the table; write the summary and the picture of all methods that are complete."""
    there = [name for name in METHODS if history_path(options, name).is_file()]
    histories = {name: read(history_path(options, name))[1:] for name in there}
    if "ddp" not in histories:
        print("No table: ddp, which sets the target, has not been run.", flush=True)
        return
    labels = {name: METHODS[name].label for name in there}
    summary = summarise(histories)
    print(f"\n{as_table(summary, labels)}\ntarget: {summary['target']:.4f}\n", flush=True)
    about = {
        "settings": {name: read(history_path(options, name))[0] for name in there},
        "versions": {"codauc": codauc.__version__, "torch": torch.__version__},
        "machine": {"cores": os.cpu_count(), "processor": platform.machine()},
    }
    path = options.out / "network.json"
    path.write_text(json.dumps({**summary, **about}, indent=1) + "\n", encoding="utf-8")
    rate = options.rate.replace("bit", "bit/s")
    title = f"CIFAR-10, five classes against five, {options.model}; {options.hosts} hosts at {rate}"
    picture = options.out / "network.svg"
    picture.write_text(plot(histories, summary, labels, title), encoding="utf-8")
    print(f"Numbers: {path}; picture: {picture}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
