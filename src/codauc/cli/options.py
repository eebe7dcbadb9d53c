"""What can be typed; known without torch, so that help comes at once."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import Any, NoReturn

from codauc._internal.setting_types import declared
from codauc._internal.terminal import message_lines
from codauc.cli.setting_options import add_setting, read_list
from codauc.reproduce.demo_settings import DemoSettings
from codauc.reproduce.study import SCALES
from codauc.runs.named_settings import TABLES, settings_with_options
from codauc.version import __version__

# Groups of options are called as their tables of settings, but for these.
_TITLES = {"model": "network", "recipe": "training", "communication": "workers"}

# Of each command: a line for the list of commands; the description; examples after an empty line.
_TEXTS = {
    "train": """train a network on your data
Train a network for the largest AUC on a table, arrays, or images. The directory of the
run holds the settings, the history, the model, the AUC of the test set and a report.

  codauc train fraud.csv --target is_fraud
  codauc train scans/ --positive malignant --image-size 128 --workers 2
  codauc train cifar-10-binary.tar.gz --positive half --keep-negatives 0.4 --simulate 4
  codauc train --config runs/fraud-1/config.toml --seed 1 --out runs/again
  codauc train --resume --out runs/fraud-1""",
    "inspect": """how the columns of a table are read, without training
Print for each column what it is taken for, the share of missing values, examples and
what is unusual: ids and texts that are left out, columns that decide alone.

  codauc inspect fraud.csv --target is_fraud""",
    "baselines": """compare with other ways to train and with other libraries
Train the same network with CoDA, PPD-SG on one worker, NP-PPD-SG, one-shot averaging and
cross-entropy (data parallel; local steps), on simulated workers; fit logistic regression,
HistGradientBoosting and, where installed, LightGBM, CatBoost and XGBoost to the same rows
of a table; print one table with paired intervals.

  codauc baselines fraud.csv --target is_fraud --simulate 4
  codauc baselines fraud.csv --target is_fraud --seeds 5
  codauc baselines --run runs/fraud-1""",
    "evaluate": """the AUC of a run's model on other data
Score labelled data with a run's model; print the AUC with its interval.

  codauc evaluate runs/fraud-1 march.csv""",
    "predict": """score data with a run's model
Write a score (log-odds) and a probability for each row of DATA, in its order.

  codauc predict runs/fraud-1 april.csv --keep id --out scores.parquet
  codauc predict runs/scans-1 'new/*.png' --out scores.csv""",
    "threshold": """from which score on a row counts as positive
Choose it by the scores of the run's validation set, and keep it in the model: predict then
writes a column of 0 and 1, and evaluate a confusion table.

  codauc threshold runs/fraud-1 recall=0.9
  codauc threshold runs/fraud-1 cost=1:20        # a missed positive costs 20 false ones""",
    "compare": """runs side by side: a table and a page
Print one table of several runs and draw their curves on one page. Where runs have the
same test set, the difference of AUC to the first comes with its 95% interval.

  codauc compare runs/fraud-1 runs/fraud-2 --out comparison.html""",
    "report": """write the report of a run again
Write report.html from what a run's directory holds, also of a run that was killed.

  codauc report runs/fraud-1""",
    "export": """a run's model as ONNX
Write the model with its scaling of numbers and its calibration as one ONNX file.

  codauc export runs/fraud-1 --onnx fraud.onnx""",
    "plan": """before a run: rounds, bytes and hours on several workers
Compute what data parallel training, NP-PPD-SG and CoDA with several periods would send
and how long they would take over a given link, and suggest a command. Nothing is run.

  codauc plan --workers 4 --parameters 1.1m --step-time 20ms --bandwidth 100mbit
  codauc plan --workers 16 --model resnet50 --image-size 64 --measure --bandwidth 1gbit""",
    "reproduce": """the paper's figures and tables, from your own runs
Run what a figure or a table of the paper needs, side by side, and draw it. Give the
same command again to resume after an interruption; finished runs are not repeated.

  codauc reproduce --list
  codauc reproduce cifar10-71 --data cifar-10-binary.tar.gz
  codauc reproduce cifar10-71-workers --data cifar-10-binary.tar.gz --scale tiny
  codauc reproduce imagenet-71 --data train/ --scale paper --dry-run""",
    "demo": """train in four ways on real images and compare
Train a small network on a sample of Fashion-MNIST with PPD-SG, NP-PPD-SG and CoDA on
simulated workers; print a table and draw AUC against iterations and rounds.

  codauc demo --workers 8 --sync-every 4 32 --out runs/eight""",
}


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
        elif message.startswith("unrecognized arguments"):
            message += "; write a pattern for several files in quotes, as in 'scans/*.png'."
        self.exit(2, message_lines(f"{self.prog}: {message}") + "\n")

    @property
    def options(self) -> list[str]:
        """The options that it knows."""
        return [name for action in self._actions for name in action.option_strings]

    @property
    def positionals(self) -> dict[str, str]:
        """What is typed without an option: its name, and what the help calls it."""
        return {
            action.dest.partition(".")[2] or action.dest: str(action.metavar)
            for action in self._actions
            if not action.option_strings and action.metavar
        }


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
    made = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, text in _TEXTS.items():
        about, _, examples = text.partition("\n\n")
        made.add_parser(
            name,
            help=about.partition("\n")[0],
            description=about.partition("\n")[2],
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
    commands: dict[str, Parser] = dict(made.choices)
    for name in ("train", "baselines"):
        _training(commands[name], full=full, baselines=name == "baselines")
    _inspect(commands["inspect"])
    _reproduce(commands["reproduce"])
    for each in declared(DemoSettings):
        add_setting(commands["demo"], each, each.name)
    _using_runs(commands)
    _plan(commands["plan"])
    return top, commands


def _plan(parser: Parser) -> None:
    """Options of a plan."""
    _add(parser, "--workers", "how many workers", "K", type=int, required=True)
    _add(parser, "--parameters", "trained parameters, such as 1100000 or 1.1m", "N")
    _add(parser, "--model", "a network by name, in place of --parameters", "NAME")
    _add(parser, "--image-size", "pixels of its images (default: 32)", "N", type=int, default=32)
    _add(parser, "--batch-size", "samples per step (default: 32)", "N", type=int,
         default=32)  # fmt: skip
    _add(parser, "--step-time", "seconds of one step, such as 20ms", "TIME")
    _add(parser, "--measure", "measure a step of --model on this machine instead")
    _add(parser, "--bandwidth", "of each worker's link (default: 100mbit)", "RATE",
         default="100mbit")  # fmt: skip
    _add(parser, "--latency", "of each message (default: 1ms)", "TIME", default="1ms")
    _add(parser, "--steps", "steps of the run (default: 4000)", "N", type=int, default=4000)
    _add(parser, "--lr", "step size, for the I that Theorem 1 calls harmless", "ETA", type=float)
    _add(parser, "--pos-ratio", "share of positives, for what it asks for", "P", type=float)
    _add(parser, "--recipe", "default, whose adaptive steps send second moments, or paper", "NAME",
         choices=("default", "paper"), default="default")  # fmt: skip
    _add(parser, "--correct", "control variates for workers whose data differ, which are sent, too",
         "NAME", choices=("scaffold",))  # fmt: skip
    _add(parser, *_JSON)


_TRUST = ("--trust-config", "import the network that the settings file or the run names as "
          "MODULE:CLASS, which runs its code")  # fmt: skip
_QUIET, _JSON = ("--quiet", "show no progress"), ("--json", "print the result as JSON")


def _add(group: Any, name: str, help: str, metavar: str | None = None, **how: Any) -> None:
    """Add an option; one without a metavar is a flag, and files and directories are paths."""
    if metavar is None:
        how["action"] = "store_true"
    else:
        kind = Path if metavar in ("FILE", "DIR", "RUN") else str
        how = {"metavar": metavar, "type": kind, **how}
    group.add_argument(name, help=help, **how)


def _training(command: Parser, *, full: bool, baselines: bool) -> None:
    """The options of a command that trains: those of settings, and what is no setting."""
    command.usage = f"{command.prog} [DATA] [options]"
    _add(command, "--help-all", "show all options and exit")
    groups = {table: command.add_argument_group(_TITLES.get(table, table)) for table in TABLES}
    for table, each in settings_with_options():
        group = groups[table] if each.option.startswith("-") else command
        add_setting(group, each, f"{table}.{each.name}", hidden=not (full or each.common))

    def add(option: str, help: str, *rest: Any, **how: Any) -> None:
        shown = full or option in ("--out", "--resume")
        _add(groups["run"], option, help if shown else argparse.SUPPRESS, *rest, **how)

    add("--out", "directory of the results (runs/NAME-N)", "DIR")
    add("--resume", "continue an interrupted run in --out, or begin it")
    add("--overwrite", "replace the existing results in --out")
    add("--config", "settings to begin with; options change them", "FILE")
    for shared in (_TRUST, _QUIET, _JSON):
        add(*shared)
    if baselines:
        add("--seeds", "repeat with so many seeds, each with splits of its own (%(default)s)", "N",
            type=int, default=1)  # fmt: skip
        add("--run", "fit only models of other libraries, to the rows of this run; its report then "
            "compares them", "RUN")  # fmt: skip
    else:
        add("--tensorboard", "also write events for TensorBoard")
        add("--profile", "measure where the time goes: a table, profile.json, a part of the "
            "report, and trace.json of a few steps; the model stays the same")  # fmt: skip
        own = {"action": "append", "default": []}
        add("--callback", "a codauc.Callback of your own", "MODULE:CLASS", **own)


def _inspect(command: Parser) -> None:
    """The options that say how data are read."""
    for table, each in settings_with_options():
        if table == "data" or each.name == "seed":
            add_setting(command, each, f"{table}.{each.name}")
    _add(command, *_JSON)


def _using_runs(commands: dict[str, Parser]) -> None:
    """The options of commands that take runs, and those that most commands have."""

    def add(names: str, option: str, help: str, *rest: Any, **how: Any) -> None:
        for name in names.split():
            _add(commands[name], option, help, *rest, **how)

    for name in ("evaluate", "predict", "threshold", "report", "export"):
        add(name, "run", "directory that codauc train wrote", "RUN")
    add("evaluate predict", "source", "as for codauc train, or an image, or a pattern in quotes "
        "such as 'scans/*.png'", "DATA")  # fmt: skip
    add("evaluate predict export", "--model", "the network, if it is your own", "MODULE:CLASS")
    add("evaluate predict export", *_TRUST)
    add("evaluate predict", "--target", "column of labels, if it has another name now", "COLUMN")
    add("evaluate predict", "--positive", "labels of the positive class, others being negative, "
        "if they have other names now", "LABEL[,...]", type=read_list)  # fmt: skip
    add("evaluate predict", "--drop", "columns to leave out; others that training did not have are "
        "ignored, with a note", "COLUMN[,...]", type=read_list)  # fmt: skip
    add("threshold", "threshold", "recall=R, precision=P, fpr=F, f1, or cost=FP:FN", "RULE")
    add("predict", "--keep", "columns to copy beside the scores, such as an id", "COLUMN[,...]",
        type=read_list)  # fmt: skip
    add("predict", "--out", ".parquet, .csv or .npy", "FILE", required=True)
    add("export", "--onnx", "the file to write", "FILE", required=True)
    add("predict export", "--overwrite", "replace the file if it exists")
    add("compare", "runs", "directories of runs", "RUN", nargs="+")
    add("compare", "--out", "the page (comparison.html, or comparison-2.html ... if there is one)",
        "FILE")  # fmt: skip
    add("report", "--out", "the page (RUN/report.html)", "FILE")
    add("evaluate predict compare reproduce demo", *_QUIET)
    add("evaluate predict threshold compare reproduce", *_JSON)


def _reproduce(command: Parser) -> None:
    def add(*what: str, **how: Any) -> None:
        _add(command, *what, **how)

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
    add("--steps", "T_0, the steps of the first stage (the scale's)", "T", type=int)
    add("--device", "cpu or cuda (%(default)s)", "DEVICE", default="cpu")
    for _, each in settings_with_options():
        if each.name in ("start", "pretrained"):
            add_setting(command, each, each.name)
    command.set_defaults(start="zero", pretrained=None)
    add("--pretrain", "images of another data set, whose classes the network learns first", "PATH")
    add("--model", "another network than the scale's, such as resnet8, which has BatchNorm", "NAME")
    add("--processes", "one process per worker, not one per run")
    number = {"type": float}
    add("--latency", "milliseconds of the modelled link (%(default)s)", "MS", default=0.1, **number)
    add("--bandwidth", "Mbit/s of the modelled link (%(default)s)", "MBIT", default=1e4, **number)
    add("--plan", "write all configurations and how to run them on a cluster")
    add("--dry-run", "train each configuration for a few steps of four samples")
