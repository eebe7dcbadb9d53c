"""What can be typed; known without torch, so that help comes at once."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from codauc._internal.setting_types import declared
from codauc._internal.terminal import message_lines
from codauc.cli.setting_options import (
    add_setting,
    add_settings,
    read_list,
    settings_with_options,
)
from codauc.reproduce.demo_settings import DemoSettings
from codauc.reproduce.study import SCALES
from codauc.version import __version__

Add = Callable[..., Any]  # adds an option: its name, its help text, and what argparse is told

# The tables of settings and the titles of their groups.
_TITLES = {"data": "data", "model": "network", "recipe": "training", "communication": "workers"}
_TITLES |= {"safety": "safety", "run": "run"}


class Parser(argparse.ArgumentParser):
    """Says what to do about a wrong option."""

    def error(self, message: str) -> NoReturn:
        """End with code 2 and one line."""
        wrong = message.removeprefix("unrecognized arguments: ").split()
        if message.startswith("unrecognized arguments") and wrong[0].startswith("-"):
            typed = wrong[0].split("=")[0]
            near = difflib.get_close_matches(typed, self.options, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"see {self.prog} --help."
            message = f"unknown option {typed}; {hint}"
        self.exit(2, message_lines(f"{self.prog}: {message}") + "\n")

    @property
    def options(self) -> list[str]:
        """The options that it knows."""
        return [name for action in self._actions for name in action.option_strings]

    def add(self, name: str, help: str, metavar: str | None = None, **how: Any) -> None:
        """Add an option; one without a metavar is a flag, and files and directories are paths."""
        add_option(self, name, help, metavar, **how)


def add_option(group: Any, name: str, help: str, metavar: str | None = None, **how: Any) -> None:
    """As `Parser.add`, for a group of options."""
    if metavar is None:
        how["action"] = "store_true"
    else:
        kind = Path if metavar in ("FILE", "DIR", "RUN") else str
        how = {"metavar": metavar, **({} if "action" in how else {"type": kind}), **how}
    group.add_argument(name, help=help, **how)


def parser() -> Parser:
    """The parser with every option in its help, as tools that complete commands need it."""
    return parsers(full=True)[0]


def parsers(*, full: bool = False) -> tuple[Parser, dict[str, Parser]]:
    """The parser, and those of its commands by name; `full`: help shows every option."""
    top = Parser(
        prog="codauc",
        description="Train deep networks for the largest AUC, with few communications.",
        epilog="begin with: codauc train FILE.csv --target COLUMN    (codauc COMMAND --help)",
    )
    top.add_argument("--version", action="version", version=f"codauc {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for add in (_train, _baselines):
        add(commands, full)
    for add_more in (_scoring, _pages, _export, _reproduce, _demo):
        add_more(commands)
    return top, dict(commands.choices)


def _command(commands: Any, name: str, help: str, description: str, *examples: str) -> Parser:
    made: Parser = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return made


def _train(commands: Any, full: bool) -> None:
    command = _command(
        commands,
        "train",
        "train a network on your data",
        "Train a network for the largest AUC on a table, arrays, or images. The directory of the\n"
        "run holds the settings, the history, the model, the AUC of the test set and a report.",
        "codauc train fraud.csv --target is_fraud",
        "codauc train scans/ --positive malignant --image-size 128 --workers 2",
        "codauc train cifar-10-binary.tar.gz --positive half --keep-negatives 0.4 --simulate 4",
        "codauc train --config runs/fraud-1/config.toml --seed 1 --out runs/again",
        "codauc train --resume --out runs/fraud-1",
    )
    add = _training(command, full)
    add("--tensorboard", "also write events for TensorBoard")
    add("--profile", "measure where the time goes: a table, profile.json, a part of the report, "
        "and trace.json of a few steps; the model stays the same")  # fmt: skip
    own = {"action": "append", "default": []}
    add("--callback", "a codauc.Callback of your own", "MODULE:CLASS", **own)


def _baselines(commands: Any, full: bool) -> None:
    command = _command(
        commands,
        "baselines",
        "train the same network in six ways and compare",
        "Train with cross-entropy (data parallel; local steps), PPD-SG on one worker, NP-PPD-SG,\n"
        "one-shot averaging and CoDA, on simulated workers; print one table.",
        "codauc baselines fraud.csv --target is_fraud --simulate 4",
    )
    _training(command, full)


def _training(command: Parser, full: bool) -> Add:
    """Add what commands that train have in common; return what adds further options."""
    command.usage = f"{command.prog} [DATA] [options]"
    command.add("--help-all", "show all options and exit")
    groups = {table: command.add_argument_group(title) for table, title in _TITLES.items()}
    add_settings(command, groups, full=full)

    def common(name: str, help: str, *rest: Any, **how: Any) -> None:
        add_option(groups["run"], name, help, *rest, **how)

    def add(name: str, help: str, *rest: Any, **how: Any) -> None:
        common(name, help if full else argparse.SUPPRESS, *rest, **how)

    common("--out", "directory of the results (runs/NAME-N)", "DIR")
    common("--resume", "continue an interrupted run in --out, or begin it")
    add("--overwrite", "replace the existing results in --out")
    add("--config", "settings to begin with; options change them", "FILE")
    _trust(add)
    _output(add)
    return add


def _trust(add: Add) -> None:
    add("--trust-config", "import the network that the settings file or the run names as "
        "MODULE:CLASS, which runs its code")  # fmt: skip


def _quiet(add: Add) -> None:
    add("--quiet", "show no progress")


def _output(add: Add) -> None:
    _quiet(add)
    add("--json", "print the result as JSON")


def _replace(add: Add) -> None:
    add("--overwrite", "replace the file if it exists")


def _network(add: Add) -> None:
    add("--model", "the network, if it is your own", "MODULE:CLASS")


def _run(add: Add) -> None:
    add("run", "directory that codauc train wrote", "RUN")


def _scoring(commands: Any) -> None:
    evaluate = _command(
        commands,
        "evaluate",
        "the AUC of a run's model on other data",
        "Score labelled data with a run's model; print the AUC with its interval.",
        "codauc evaluate runs/fraud-1 march.csv",
    )
    predict = _command(
        commands,
        "predict",
        "score data with a run's model",
        "Write a score (log-odds) and a probability for each row of DATA, in its order.",
        "codauc predict runs/fraud-1 april.csv --out scores.parquet",
    )
    drop: dict[str, Any] = {"metavar": "COLUMN[,...]", "type": read_list}
    for command in (evaluate, predict):
        _run(command.add)
        command.add("source", "as for codauc train", "DATA")
        _network(command.add)
        command.add("--target", "column of labels, if it has another name now", "COLUMN")
        command.add("--drop", "columns that the training data did not have", **drop)
        _trust(command.add)
        _output(command.add)
    predict.add("--out", ".parquet, .csv or .npy", "FILE", required=True)
    _replace(predict.add)


def _pages(commands: Any) -> None:
    compare = _command(
        commands,
        "compare",
        "runs side by side: a table and a page",
        "Print one table of several runs and draw their curves on one page. Where runs have the\n"
        "same test set, the difference of AUC to the first comes with its 95% interval.",
        "codauc compare runs/fraud-1 runs/fraud-2 --out comparison.html",
    )
    compare.add("runs", "directories of runs", "RUN", nargs="+")
    compare.add("--out", "the page (%(default)s)", "FILE", default=Path("comparison.html"))
    _output(compare.add)
    report = _command(
        commands,
        "report",
        "write the report of a run again",
        "Write report.html from what a run's directory holds, also of a run that was killed.",
        "codauc report runs/fraud-1",
    )
    _run(report.add)
    report.add("--out", "the page (RUN/report.html)", "FILE")


def _export(commands: Any) -> None:
    export = _command(
        commands,
        "export",
        "a run's model as ONNX",
        "Write the model with its scaling of numbers and its calibration as one ONNX file.",
        "codauc export runs/fraud-1 --onnx fraud.onnx",
    )
    _run(export.add)
    export.add("--onnx", "the file to write", "FILE", required=True)
    _network(export.add)
    _replace(export.add)
    _trust(export.add)


def _reproduce(commands: Any) -> None:
    command = _command(
        commands,
        "reproduce",
        "the paper's figures and tables, from your own runs",
        "Run what a figure or a table of the paper needs, side by side, and draw it. Give the\n"
        "same command again to resume after an interruption; finished runs are not repeated.",
        "codauc reproduce --list",
        "codauc reproduce cifar10-71 --data cifar-10-binary.tar.gz",
        "codauc reproduce cifar10-71-workers --data cifar-10-binary.tar.gz --scale tiny",
        "codauc reproduce imagenet-71 --data train/ --scale paper --dry-run",
    )
    add = command.add
    add("name", "what to reproduce; see --list", "NAME", nargs="?")
    add("--list", "print the names and what they are")
    add("--data", "archive or directory of the data set", "PATH")
    add("--scale", "tiny: minutes, to see that it works; small: hours, on two cores; paper: its "
        "own setting, for GPUs (%(default)s)", "|".join(SCALES), choices=tuple(SCALES),
        default="small")  # fmt: skip
    add("--out", "runs and results (%(default)s)", "DIR", default=Path("runs/reproduce"))
    add("--jobs", "runs at the same time (one per core)", "N", type=int)
    add("--seeds", "runs of each configuration (3; at 50%%: 1)", "N", type=int)
    add("--lr", "first step size, instead of tuning it", "ETA", type=float)
    add("--device", "cpu or cuda (%(default)s)", "DEVICE", default="cpu")
    for _, each in settings_with_options():
        if each.name in ("start", "pretrained"):
            add_setting(command, each, each.name)
    command.set_defaults(start="zero", pretrained=None)
    add("--processes", "one process per worker, not one per run")
    number = {"type": float}
    add("--latency", "milliseconds of the modelled link (%(default)s)", "MS", default=0.1, **number)
    add("--bandwidth", "Mbit/s of the modelled link (%(default)s)", "MBIT", default=1e4, **number)
    add("--plan", "write all configurations and how to run them on a cluster")
    add("--dry-run", "train each configuration for a few steps of four samples")
    _output(add)


def _demo(commands: Any) -> None:
    demo = _command(
        commands,
        "demo",
        "train in four ways on real images and compare",
        "Train a small network on a sample of Fashion-MNIST with PPD-SG, NP-PPD-SG and CoDA on\n"
        "simulated workers; print a table and draw AUC against iterations and rounds.",
        "codauc demo --workers 8 --sync-every 4 32 --out runs/eight",
    )
    for each in declared(DemoSettings):
        add_setting(demo, each, each.name)
    _quiet(demo.add)
