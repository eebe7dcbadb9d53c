"""The command's options and what they mean; known without torch, so that help comes at once."""

from __future__ import annotations

import argparse
import difflib
import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from codauc.config import (
    AVERAGES,
    CHOICES,
    CONFIG,
    NOT_FINITE,
    OPTIMIZERS,
    PERIODS,
    RECIPES,
    SCHEDULES,
    STARTS,
    WATCHES,
    DemoSettings,
    RecipeSettings,
    RunSettings,
    first_period,
)
from codauc.experiments.study import SCALES
from codauc.version import __version__

SHELLS = ("bash", "zsh", "fish")

# Option, table and name of the setting, type, metavar, help. "list" is values with commas between.
_SETTINGS: dict[str, list[tuple[str, str, str, Any, str | None, str]]] = {
    "data": [
        ("--target", "data", "target", str, "COLUMN", "the column of labels; for X.npy the file of labels, for an .npz the array"),
        ("--positive", "data", "positive", "list", "V[,V...]", "the labels that are positive, or half; not needed for 0 and 1"),
        ("--keep-negatives", "data", "keep_negatives", float, "SHARE", "train on this share of the negatives (1)"),
        ("--test", "data", "test", str, "FILE", "a test set of its own"),
        ("--test-fraction", "data", "test_fraction", float, "SHARE", "else this share is held out to test (0.2)"),
        ("--validation-fraction", "data", "validation_fraction", float, "SHARE", "and this one to choose the model (0.15)"),
        ("--watch", "data", "watch", str, "|".join(WATCHES), "the set that curves are of; test, as in papers, holds nothing out and needs --select last (validation)"),
        ("--drop", "data", "drop", "list", "COL[,COL...]", "columns to leave out"),
        ("--categories", "data", "categories", "list", "COL[,COL...]", "columns of numbers to take for categories"),
        ("--nan", "data", "nan", str, "error|missing", "what a NaN is (error)"),
        ("--silo", "data", "silo", str, "COLUMN", "such as the hospital: no silo is shared between workers"),
        ("--skew", "data", "skew", float, "ALPHA", "label-skewed shards (Dirichlet), to study workers that differ"),
        ("--own", "data", "own", None, None, "each worker names a file of its own and keeps all of it"),
        ("--images", "data", "images", str, "DIR", "the images that a CSV names"),
        ("--file-column", "data", "file_column", str, "COLUMN", "the CSV's column of file names"),
        ("--image-size", "data", "image_size", int, "PIXELS", "the side of images read from files (64)"),
        ("--channels", "data", "channels", int, "N", "3 (RGB) or 1 (grey), of images read from files"),
    ],
    "network": [
        ("--model", "model", "name", str, "NAME", "convnet, mlp, patchnet, resnet18, resnet20, resnet50, tabular, or package.module:Name (by the data)"),
        ("--model-arguments", "model", "arguments", "dict", "K=V[,K=V...]", "such as widths=[64,64],dropout=0.1"),
        ("--pretrained", "model", "pretrained", str, "FILE", "weights to begin with"),
    ],
    "training": [
        ("--recipe", "recipe", "name", str, "|".join(RECIPES), "default; the paper's own settings; or cross-entropy alone"),
        ("--optimizer", "recipe", "optimizer", str, "|".join(OPTIMIZERS), "adaptive or plain steps (adam)"),
        ("--lr", "recipe", "lr", float, "ETA", "the first stage's step size (0.001; sgd: 0.1)"),
        ("--dual-lr", "recipe", "dual_lr", float, "ETA", "with adam: the share of the way that a, b and alpha go in a step (0.1)"),
        ("--gamma", "recipe", "gamma", float, "GAMMA", "weight of the pull to the stage's beginning (inf: none; paper: 500)"),
        ("--momentum", "recipe", "momentum", float, "BETA", "of the weights' gradients (0.9)"),
        ("--weight-decay", "recipe", "weight_decay", float, "LAMBDA", "decoupled (tables: 1)"),
        ("--batch-size", "recipe", "batch_size", int, "N", "samples a step, of each worker (by the data)"),
        ("--steps", "recipe", "steps", int, "T0", "steps of the first stage, after the warm start (by the data)"),
        ("--stages", "recipe", "stages", int, "S", "stages after the warm start (1; paper: 3)"),
        ("--factor", "recipe", "factor", float, "F", "by which stages lengthen (1; paper: 3)"),
        ("--warm-start", "recipe", "warm_start", float, "SHARE", "share of all steps with cross-entropy first (0.3; 0: none)"),
        ("--balance", "recipe", "balance", float, "SHARE", "least share of either class in a batch (0: the data's own)"),
        ("--mix", "recipe", "mix", float, "LAMBDA", "cross-entropy added to the min-max objective (positives/1000, at most 1; paper: 0)"),
        ("--start", "recipe", "start", str, "|".join(STARTS), "a, b and alpha at the beginning: 0 as in the paper, or estimated for the first weights (zero)"),
        ("--schedule", "recipe", "schedule", str, "|".join(SCHEDULES), "how the step size falls (cosine)"),
        ("--average", "recipe", "average", str, "|".join(AVERAGES), "which mean of models is evaluated (window; images: none; paper: stage)"),
        ("--select", "recipe", "select", str, "|".join(CHOICES), "which model is kept (steady)"),
        ("--evaluations", "recipe", "evaluations", int, "N", "looks at the validation set (25)"),
        ("--seed", "", "seed", int, "N", "of splits, shards, weights and batches (0)"),
        ("--device", "", "device", str, "DEVICE", "cpu, cuda, ... (cpu)"),
    ],
    "workers": [
        ("--workers", "communication", "workers", int, "K", "as processes of this machine; torchrun brings its own (1)"),
        ("--simulate", "communication", "simulate", int, "K", "or in this process, one after the other"),
        ("--sync-every", "communication", "sync_every", "period", "I", "steps between two rounds, or theorem, growing[:I], once (32)"),
        ("--compress", "communication", "compress", str, "bf16|int8", "send fewer bytes"),
        ("--delay", "communication", "delay", int, "D", "steps that hide a round (0)"),
        ("--timeout", "communication", "timeout", float, "SECONDS", "longest wait for another worker (ten times what rounds took)"),
    ],
    "safety": [
        ("--checkpoint-minutes", "safety", "checkpoint_minutes", float, "M", "minutes between two checkpoints (2; 0: none)"),
        ("--checkpoint-rounds", "safety", "checkpoint_rounds", int, "N", "or rounds (of one worker: steps)"),
        ("--checkpoints", "safety", "keep", int, "N", "checkpoints to keep (2)"),
        ("--max-restarts", "safety", "max_restarts", int, "N", "how often to start all workers again when one is lost (0)"),
        ("--not-finite", "safety", "not_finite", str, "|".join(NOT_FINITE), "what to do about NaN: halve the step size, or end (reduce)"),
    ],
}  # fmt: skip
_TABLE_OF = {row[0]: row for rows in _SETTINGS.values() for row in rows}


class Parser(argparse.ArgumentParser):
    """Says what to do about a wrong option."""

    def error(self, message: str) -> NoReturn:
        """End with code 2 and one line."""
        wrong = message.removeprefix("unrecognized arguments: ").split()
        if message.startswith("unrecognized arguments") and wrong[0].startswith("-"):
            typed = wrong[0].split("=")[0]
            known = [name for action in self._actions for name in action.option_strings]
            near = difflib.get_close_matches(typed, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"see {self.prog} --help."
            message = f"unknown option {typed}; {hint}"
        self.exit(2, f"{self.prog}: {message}\n")


def parser() -> Parser:
    """Everything that can be typed."""
    top = Parser(
        prog="codauc",
        description="Train deep networks for the largest AUC, with few communications.",
        epilog="begin with: codauc train FILE.csv --target COLUMN    (codauc COMMAND --help)",
    )
    top.add_argument("--version", action="version", version=f"codauc {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    _train(commands)
    _on_runs(commands)
    _baselines(commands)
    _reproduce(commands)
    _demo(commands)
    _completion(commands)
    return top


def _command(commands: Any, name: str, help: str, description: str, *examples: str) -> Parser:
    text = "examples:\n" + "\n".join(f"  {example}" for example in examples)
    made: Parser = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return made


def _train(commands: Any) -> None:
    command = _command(
        commands,
        "train",
        "train a network on your data",
        "Train a network for the largest AUC on a table, arrays, or images. The run's directory\n"
        "gets the settings, the history, the model, the test set's AUC and a report to look at.",
        "codauc train fraud.csv --target is_fraud",
        "codauc train scans/ --positive malignant --image-size 128 --workers 2",
        "codauc train cifar-10-binary.tar.gz --positive half --keep-negatives 0.4 --simulate 4",
        "codauc train --config runs/fraud-1/config.toml --seed 1 --out runs/again",
        "codauc train --resume --out runs/fraud-1",
    )
    command.add_argument("source", metavar="DATA", nargs="?", help="a table (.csv, .parquet, .arrow), arrays (.npy, .npz), a directory of images or of CIFAR's, MNIST's or ImageNet's, or fashion-tiny")  # fmt: skip
    _settings(command)
    output = command.add_argument_group("output")
    output.add_argument("--config", type=Path, metavar="FILE", help="settings to begin from; options change them")  # fmt: skip
    output.add_argument("--out", type=Path, metavar="DIR", help="the run's directory (runs/NAME-N)")
    output.add_argument("--resume", action="store_true", help="go on with the run that is there, or begin it")  # fmt: skip
    output.add_argument("--overwrite", action="store_true", help="lose the run that is there")
    output.add_argument("--tensorboard", action="store_true", help="also write TensorBoard's events")  # fmt: skip
    output.add_argument("--profile", action="store_true", help="tell where the time goes: a table, profile.json, a part of the report, and trace.json of a few steps; the model stays the same")  # fmt: skip
    output.add_argument("--callback", metavar="MODULE:NAME", action="append", default=[], help="a codauc.Callback of your own")  # fmt: skip
    _output(output)


def _settings(command: Parser) -> None:
    for title, rows in _SETTINGS.items():
        group = command.add_argument_group(title)
        for option, _, _, kind, metavar, text in rows:
            if kind is None:
                group.add_argument(option, action="store_true", default=argparse.SUPPRESS, help=text)  # fmt: skip
            else:
                plain = kind if kind in (int, float, str) else _READERS[kind]
                group.add_argument(option, type=plain, metavar=metavar, default=argparse.SUPPRESS, help=text)  # fmt: skip


def _output(group: Any) -> None:
    group.add_argument("--quiet", action="store_true", help="no progress")
    group.add_argument("--json", action="store_true", help="the result as JSON")


def _on_runs(commands: Any) -> None:
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
    for command in (evaluate, predict):
        command.add_argument("run", metavar="RUN", type=Path, help="a directory of codauc train")
        command.add_argument("source", metavar="DATA", help="as for codauc train")
        command.add_argument("--model", metavar="MODULE:NAME", help="the network, if it is your own")  # fmt: skip
        command.add_argument("--target", metavar="COLUMN", help="labels, if they are elsewhere now")
        command.add_argument(
            "--drop",
            type=_listed,
            metavar="COL[,COL...]",
            help="columns that training did not have",
        )
    predict.add_argument("--out", metavar="FILE", type=Path, required=True, help=".parquet, .csv or .npy")  # fmt: skip
    predict.add_argument("--overwrite", action="store_true", help="replace the file")
    for command in (evaluate, predict):
        _output(command)
    compare = _command(
        commands,
        "compare",
        "runs side by side: a table and a picture",
        "Print one table of several runs and draw their curves on one page. Where runs have the\n"
        "same test set, the difference of AUC to the first comes with its 95% interval.",
        "codauc compare runs/fraud-1 runs/fraud-2 --out comparison.html",
    )
    compare.add_argument("runs", metavar="RUN", type=Path, nargs="+")
    compare.add_argument("--out", metavar="FILE", type=Path, default=Path("comparison.html"), help="the page (comparison.html)")  # fmt: skip
    _output(compare)
    report = _command(
        commands,
        "report",
        "make a run's report anew",
        "Write report.html from what a run's directory holds, also of a run that was killed.",
        "codauc report runs/fraud-1",
    )
    report.add_argument("run", metavar="RUN", type=Path)
    report.add_argument("--out", metavar="FILE", type=Path, help="elsewhere than RUN/report.html")
    export = _command(
        commands,
        "export",
        "a run's model as ONNX",
        "Write the model with its scaling of numbers and its calibration as one ONNX file.",
        "codauc export runs/fraud-1 --onnx fraud.onnx",
    )
    export.add_argument("run", metavar="RUN", type=Path)
    export.add_argument("--onnx", metavar="FILE", type=Path, required=True)
    export.add_argument("--model", metavar="MODULE:NAME", help="the network, if it is your own")
    export.add_argument("--overwrite", action="store_true", help="replace the file")


def _baselines(commands: Any) -> None:
    command = _command(
        commands,
        "baselines",
        "the same network and budget trained in six ways",
        "Train with cross-entropy (data parallel; local steps), PPD-SG on one worker, NP-PPD-SG,\n"
        "one-shot averaging and CoDA, on simulated workers; print one table.",
        "codauc baselines fraud.csv --target is_fraud --simulate 4",
    )
    command.add_argument("source", metavar="DATA", nargs="?", help="as for codauc train")
    _settings(command)
    output = command.add_argument_group("output")
    output.add_argument("--config", type=Path, metavar="FILE", help="settings to begin from")
    output.add_argument("--out", type=Path, metavar="DIR", help="one run in each of its directories")  # fmt: skip
    output.add_argument("--resume", action="store_true", help="go on where they were cut off; finished ones are kept")  # fmt: skip
    output.add_argument("--overwrite", action="store_true", help="lose the runs that are there")
    _output(output)


def _reproduce(commands: Any) -> None:
    command = _command(
        commands,
        "reproduce",
        "the paper's figures and tables, from your own runs",
        "Run what a figure or a table of the paper needs, side by side, and draw it. What is\n"
        "finished is not run again, and what was cut off goes on: give the same command again.",
        "codauc reproduce --list",
        "codauc reproduce cifar10-71 --data cifar-10-binary.tar.gz",
        "codauc reproduce cifar10-71-workers --data cifar-10-binary.tar.gz --scale tiny",
        "codauc reproduce imagenet-71 --data train/ --scale paper --dry-run",
    )
    command.add_argument("name", metavar="NAME", nargs="?", help="what to reproduce; see --list")
    command.add_argument("--list", action="store_true", help="print the names, and what they are")
    command.add_argument("--data", metavar="PATH", help="the archive, or the directory, of the data set")  # fmt: skip
    command.add_argument("--scale", metavar="|".join(SCALES), choices=tuple(SCALES), default="small", help="tiny: minutes, to see that it works; small: hours, on two cores; paper: its own setting, for GPUs (small)")  # fmt: skip
    command.add_argument("--out", type=Path, metavar="DIR", default=Path("runs/reproduce"), help="runs and results (runs/reproduce)")  # fmt: skip
    command.add_argument("--jobs", type=int, metavar="N", help="runs side by side (one a core)")
    command.add_argument("--seeds", type=int, metavar="N", help="runs of each configuration (3; at 50%% one)")  # fmt: skip
    command.add_argument("--lr", type=float, metavar="ETA", help="the first stage's step size, instead of tuning it")  # fmt: skip
    command.add_argument("--start", metavar="|".join(STARTS), choices=STARTS, default="zero", help="a, b and alpha at the beginning (zero, as in the paper)")  # fmt: skip
    command.add_argument("--pretrained", metavar="FILE", help="weights to begin with; the paper's are torchvision's of resnet50")  # fmt: skip
    command.add_argument("--device", default="cpu", metavar="DEVICE", help="cpu, cuda, ... (cpu)")
    command.add_argument("--processes", action="store_true", help="a process for each worker, not one for all of a run")  # fmt: skip
    command.add_argument("--latency", type=float, default=0.1, metavar="MS", help="of the modelled link, in milliseconds (0.1)")  # fmt: skip
    command.add_argument("--bandwidth", type=float, default=10000.0, metavar="MBIT", help="of the modelled link, in Mbit/s (10000)")  # fmt: skip
    command.add_argument("--plan", action="store_true", help="write every configuration and print how to run it on a cluster")  # fmt: skip
    command.add_argument("--dry-run", action="store_true", help="train each configuration for a few steps of four samples")  # fmt: skip
    _output(command)


def _demo(commands: Any) -> None:
    demo = commands.add_parser(
        "demo",
        help="train four ways on real images and compare",
        description="Train a small network on Fashion-MNIST's sample with PPD-SG, NP-PPD-SG and "
        "CoDA on simulated workers; print a table and draw AUC against iterations and rounds.",
        epilog="example: codauc demo --workers 8 --sync-every 4 32 --out runs/eight",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add, default = demo.add_argument, DemoSettings()
    add("--workers", type=int, metavar="K", default=default.workers, help="simulated workers")
    add(
        "--sync-every",
        type=int,
        nargs="+",
        metavar="I",
        default=list(default.sync_every),
        help="CoDA's steps between two rounds; one run for each",
    )
    add("--lr", type=float, default=default.lr, help="first stage's step size")
    add("--steps", type=int, metavar="T0", default=default.steps, help="first stage's steps")
    add("--stages", type=int, metavar="S", default=default.stages, help="number of stages")
    add("--gamma", type=float, default=default.gamma, help="weight of the pull to the anchor")
    add("--seed", type=int, default=default.seed, help="of data, shards and weights")
    add("--out", type=Path, metavar="DIR", default=default.out, help="where results go")
    add("--quiet", action="store_true", help="no progress bar")


def _completion(commands: Any) -> None:
    command = _command(
        commands,
        "completion",
        "completion for your shell",
        "Print a script that completes commands and options.",
        "source <(codauc completion bash)",
        "codauc completion fish > ~/.config/fish/completions/codauc.fish",
    )
    command.add_argument("shell", choices=SHELLS)


def settings_of(options: dict[str, Any]) -> RunSettings:
    """The settings that typed options mean, upon those of --config."""
    settings, path = RunSettings(), options.get("config") or _begun(options)
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read ({error}): expected a config.toml.") from error
        settings = RunSettings.from_toml(text, str(path))
        _check_here(settings, options)
        if options.get("recipe", settings.recipe.name) != settings.recipe.name:
            settings = replace(settings, recipe=RecipeSettings())  # its values are another's
    tables: dict[str, dict[str, Any]] = {}
    for option, (_, table, name, *_) in _TABLE_OF.items():
        dest = option.removeprefix("--").replace("-", "_")
        if dest in options:
            tables.setdefault(table, {})[name] = options[dest]
    if options.get("source") is not None:
        tables.setdefault("data", {})["source"] = options["source"]
    _workers(tables.get("communication", {}))
    for table, values in tables.items():
        if table:
            settings = settings.with_changes(table, **values)
    top = tables.get("", {})
    settings = RunSettings(**{**_plain(settings), **top})
    if not settings.data.source:
        raise ValueError(
            "DATA is missing: expected a file or a directory; see codauc train --help."
        )
    return settings


def _check_here(settings: RunSettings, options: dict[str, Any]) -> None:
    """Raise if a run is to go on whose data have a name that leads nowhere from here."""
    source = settings.data.source
    if options.get("resume") and options.get("source") is None and "{rank}" not in source:
        path = Path(source)
        if not path.is_absolute() and not path.exists() and len(path.suffixes):
            raise ValueError(
                f"{source}, the data of the run in {options['out']}, is not here: go to the "
                "directory where it was begun, or give DATA and the other options again."
            )


def _begun(options: dict[str, Any]) -> Path | None:
    """The settings of the run to go on with."""
    if not options.get("resume"):
        return None
    if options["overwrite"]:
        raise ValueError("--resume and --overwrite: expected one of them.")
    if options["out"] is None:
        raise ValueError("--resume without --out: expected the run's directory.")
    path = Path(options["out"]) / CONFIG
    # with DATA the whole command is given again, and compared with what was saved
    return path if options.get("source") is None and path.exists() else None


def _plain(settings: RunSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}


def _workers(values: dict[str, Any]) -> None:
    """--simulate K is K workers in this process."""
    if "simulate" in values:
        if "workers" in values:
            raise ValueError("--workers and --simulate: expected one of them.")
        values["workers"], values["simulate"] = values["simulate"], True
    elif "workers" in values:
        values["simulate"] = False


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _period(text: str) -> int | str:
    try:
        if text in PERIODS or first_period(text) is not None:
            return text
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected a number of steps, {', '.join(PERIODS)}"
        ) from None


def _arguments(text: str) -> dict[str, Any]:
    """K=V with commas between; values as in TOML, or else texts.

    >>> _arguments("widths=[64,64],dropout=0.1,name=abc")
    {'widths': [64, 64], 'dropout': 0.1, 'name': 'abc'}
    """
    found: dict[str, Any] = {}
    for part in re.split(r",(?=\s*\w+\s*=)", text):
        name, equals, value = part.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(f"{part!r}: expected NAME=VALUE")
        try:
            found[name.strip()] = tomllib.loads(f"v = {value}")["v"]
        except tomllib.TOMLDecodeError:
            found[name.strip()] = value
    return found


_READERS: dict[Any, Any] = {
    "list": _listed,
    "period": _period,
    "dict": _arguments,
}


def completion(shell: str, top: Parser) -> str:
    """A script for the shell, from the parser itself."""
    options = {name: _options(sub) for name, sub in subparsers(top).items()}
    if shell == "fish":
        lines = ["complete -c codauc -n __fish_use_subcommand -f -a " + _quoted(" ".join(options))]
        for name, flags in options.items():
            seen = f"-n '__fish_seen_subcommand_from {name}'"
            lines += [f"complete -c codauc {seen} -l {flag[2:]}" for flag in flags]
        return "\n".join(lines)
    cases = "\n".join(f"    {name}) words={_quoted(' '.join(o))} ;;" for name, o in options.items())
    script = f"""_codauc() {{
  local current words
  current="${{COMP_WORDS[COMP_CWORD]}}"
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W {_quoted(" ".join(options))} -- "$current"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  case "$current" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;
  esac
}}
complete -o default -F _codauc codauc"""
    return script if shell == "bash" else "autoload -U +X bashcompinit && bashcompinit\n" + script


def subparsers(top: Parser) -> dict[str, Parser]:
    """The parsers of the commands, by name."""
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _options(parser: Parser) -> Sequence[str]:
    return [name for a in parser._actions for name in a.option_strings if name.startswith("--")]


def _quoted(text: str) -> str:
    return f"'{text}'"
