"""What the commands do, from typed options to what is printed."""

from __future__ import annotations

import csv
import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codauc.checks import listed
from codauc.config import RunSettings
from codauc.options import settings_of
from codauc.report.comparison import comparison_page, comparison_rows
from codauc.report.page import page
from codauc.report.table import table
from codauc.runs import MODEL, REPORT, SUMMARY, RunFolder
from codauc.writing import whole_file

Options = dict[str, Any]

_FEW = 30  # test positives below which an interval says little


def train(options: Options) -> int:
    """Train, print the result, and name the report."""
    from codauc.running import train as run

    settings = settings_of(options)
    _look_here(settings, options)
    summary = run(
        settings,
        options["out"],
        resume=options["resume"],
        overwrite=options["overwrite"],
        quiet=options["quiet"] or options["json"],
        tensorboard=options["tensorboard"],
        profile=options["profile"],
        callbacks=[_callback(path) for path in options["callback"]],
    )
    if not summary:  # under torchrun: another worker tells
        return 0
    if options["json"]:
        say(json.dumps(summary))
    elif summary.get("stopped"):
        say(_stopped(summary))
    else:
        folder = RunFolder(summary["run"])
        profile = _profile(folder) if options["profile"] else []
        say("\n".join([*profile, *_told(summary), f"Report: {folder / REPORT}"]))
    if summary.get("stopped"):
        return 0 if summary["saved"] else 1
    return 130 if summary.get("interrupted") else 0


def _profile(folder: RunFolder) -> list[str]:
    """Where the time went, above the result; nothing of a run that had ended without a profile."""
    from codauc.profiling import told

    profile = folder.profile()
    return [] if profile is None else [told(profile, folder.path), ""]


def _stopped(summary: dict[str, Any]) -> str:
    if summary["steps"] is None:
        return "Asked to leave before the training began; nothing is lost."
    how = "saved" if summary["saved"] else "NOT SAVED, so the last checkpoint is what is left,"
    return (
        f"Asked to leave: {how} at step {summary['steps']}. Go on with: codauc train --resume "
        f"--out {summary['run']}"
    )


def say(text: str) -> None:
    """Print the result; the reader of a pipe may have enough."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _look_here(settings: RunSettings, options: Options) -> None:
    """Let modules of the current directory be found, here and by workers, if some are named."""
    named = [settings.model.name, *options.get("callback", [])]
    if any(":" in name for name in named) and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def _callback(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"--callback {path}: {error}; expected package.module:Name of a codauc.Callback."
        ) from error


def _told(summary: dict[str, Any]) -> list[str]:
    lines = [f"Note: {note}" for note in summary["notes"]]
    if 0 < summary["test_positives"] < _FEW:
        lines.append(f"Note: only {summary['test_positives']} test positives: a wide interval.")
    if summary["interrupted"]:
        lines.append(f"Interrupted after {summary['steps']} steps; the best model is kept.")
    if summary["test_auc"] is None:
        auc = summary["validation_auc"]
        text = "no validation set either" if auc is None else f"validation AUC {auc:.4f}"
        return [*lines, f"No test set; {text}."]
    cost = f"{summary['steps']} steps, {summary['seconds']:.0f} s"
    if len(summary["workers"]) > 1:
        cost += f", {summary['rounds']} rounds, {summary['bytes_per_worker'] / 1e6:.1f} MB a worker"
    return [
        *lines,
        f"Test AUC {summary['test_auc']:.4f} (95% interval {summary['auc_low']:.4f} to "
        f"{summary['auc_high']:.4f}), average precision {summary['average_precision']:.4f}; "
        f"{summary['test_samples']} samples, {summary['test_positives']} positive.",
        f"Trained on {summary['train_samples']} samples, {summary['pos_ratio']:.2%} positive: "
        f"{cost}.",
    ]


def evaluate(options: Options) -> int:
    """Print the AUC of a run's model on other data."""
    from codauc.metrics import auc_interval
    from codauc.ranking import average_precision

    rows, scores, labels = _scored(options)
    if labels is None:
        raise ValueError(
            f"{options['source']} has no labels: expected the column of training, or --target; "
            "codauc predict does without."
        )
    auc = auc_interval(scores, labels)
    result = {
        "auc": auc.value,
        "auc_low": auc.low,
        "auc_high": auc.high,
        "average_precision": average_precision(scores, labels),
        "samples": len(rows),
        "positives": int(labels.sum()),
    }
    if options["json"]:
        say(json.dumps(result))
    else:
        say(
            f"AUC {auc.value:.4f} (95% interval {auc.low:.4f} to {auc.high:.4f}), average "
            f"precision {result['average_precision']:.4f}; {len(rows)} samples, "
            f"{result['positives']} positive."
        )
    return 0


def predict(options: Options) -> int:
    """Write every row's score and probability."""
    out: Path = options["out"]
    write = _WRITERS.get(out.suffix)
    if write is None:
        raise ValueError(f"--out {out}: expected a name that ends in {listed(_WRITERS)}.")
    if out.exists() and not options["overwrite"]:
        raise ValueError(f"{out} exists: expected another name, or --overwrite to replace it.")
    rows, scores, labels = _scored(options)
    columns: dict[str, NDArray[Any]] = {
        "row": rows,
        "score": scores,
        "probability": 1 / (1 + np.exp(-np.clip(scores, -700, 700))),
    }
    if labels is not None:
        columns["label"] = labels
    with whole_file(out, "the scores") as partial:
        write(partial, columns)
    if options["json"]:
        say(json.dumps({"out": str(out), "rows": len(rows)}))
    elif not options["quiet"]:
        say(f"{len(rows)} rows: {out}")
    return 0


def _scored(options: Options) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Row numbers, log-odds and labels of the data, by a run's model."""
    from codauc.data.opening import open_whole
    from codauc.group import LocalGroup
    from codauc.watching import scores_of

    settings, saved = _loaded(options)
    data = replace(settings.data, source=options["source"], own=False, test=None)
    target = options["target"]
    if target is None and settings.data.images is not None:
        target = settings.data.target
    data = replace(data, target=target, drop=options["drop"] or ())
    part = open_whole(data, LocalGroup(), saved.encoder)
    scores = saved.calibration.log_odds(scores_of(saved.model, part))
    order = np.argsort(part.rows.numpy(), kind="stable")
    labels = None if part.y is None else part.y.numpy().astype(bool)[order]
    return part.rows.numpy()[order], scores[order], labels


def _loaded(options: Options) -> tuple[RunSettings, Any]:
    """A run's settings and its model."""
    from codauc.models import build
    from codauc.saved import load_model

    folder = RunFolder(options["run"])
    settings = RunSettings.from_dict(folder.config(), str(folder.path))
    if not (folder / MODEL).exists():
        raise ValueError(f"{folder.path} has no {MODEL}: the run ended before its first look.")
    name, given = settings.model.name, options.get("model")
    if ":" not in name:
        return settings, load_model(folder / MODEL)
    if given != name:  # a directory from elsewhere must not decide what is imported
        raise ValueError(
            f"{folder.path} was trained with {name}, which is not of codauc: say --model {name} "
            "to import it."
        )
    return settings, load_model(folder / MODEL, build(name, **settings.model.arguments))


def _parquet(path: Path, columns: dict[str, NDArray[Any]]) -> None:
    from codauc.data.tables.files import arrow

    arrow("pyarrow.parquet").write_table(arrow().table(columns), path)


def _csv(path: Path, columns: dict[str, NDArray[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))


def _npy(path: Path, columns: dict[str, NDArray[Any]]) -> None:
    with path.open("wb") as file:
        np.save(file, columns["score"])


_WRITERS: dict[str, Callable[[Path, dict[str, NDArray[Any]]], None]] = {
    ".parquet": _parquet,
    ".csv": _csv,
    ".npy": _npy,
}


def compare(options: Options) -> int:
    """Print the table of several runs and write their page."""
    runs = [RunFolder(path) for path in options["runs"]]
    header, rows = comparison_rows(runs)
    text = comparison_page(runs)
    out: Path = options["out"]
    with whole_file(out, "the page") as partial:
        partial.write_text(text, encoding="utf-8")
    if options["json"]:
        say(json.dumps([run.summary() for run in runs]))
    else:
        say(table(header, rows))
        if not options["quiet"]:
            say(f"Picture: {out}")
    return 0


def report(options: Options) -> int:
    """Write a run's report anew."""
    folder = RunFolder(options["run"])
    text = page(folder)
    out: Path | None = options["out"]
    if out is None:
        out = folder.write(REPORT, text)
    else:
        with whole_file(out, "the report") as partial:
            partial.write_text(text, encoding="utf-8")
    say(f"Report: {out}")
    return 0


def export(options: Options) -> int:
    """Write a run's model as ONNX."""
    from codauc.onnx_export import export_onnx

    out: Path = options["onnx"]
    if out.exists() and not options["overwrite"]:
        raise ValueError(f"{out} exists: expected another name, or --overwrite to replace it.")
    _, saved = _loaded(options)
    shape = RunFolder(options["run"]).summary().get("shape") or None
    export_onnx(saved, out, shape=None if shape is None else tuple(shape))
    say(f"ONNX: {out}")
    return 0


def baselines(options: Options) -> int:
    """Train in six ways, print one table."""
    from codauc.baselines import run_baselines
    from codauc.running import made_free

    settings = settings_of(options)
    _look_here(settings, options)
    name = Path(settings.data.source).name.split(".")[0]
    out = options["out"] or made_free(f"{name}-baselines")
    quiet = options["quiet"] or options["json"]
    folders = run_baselines(
        settings,
        Path(out),
        resume=options["resume"],
        overwrite=options["overwrite"],
        quiet=quiet,
    )
    runs = [RunFolder(folder) for folder in folders]
    if not (runs[-1] / SUMMARY).exists():
        say(f"Asked to leave: saved. Go on with the same command, --out {out} and --resume.")
        return 0
    cut = not runs[-1].finished
    runs = runs[:-1] if cut and len(runs) > 1 else runs
    if options["json"]:
        say(json.dumps([run.summary() for run in runs]))
    else:
        say(table(*comparison_rows(runs)))
    target = Path(out) / "comparison.html"
    target.write_text(comparison_page(runs), encoding="utf-8")
    if not quiet:
        say(f"Picture: {target}")
    return 130 if cut else 0


def reproduce(options: Options) -> int:
    """A figure of the paper: its runs, or a plan or a trial of them; then what they show."""
    from codauc.experiments.command import reproduce as run

    return run(options, say)


def demo(options: Options) -> int:
    """The demonstration."""
    from codauc.config import DemoSettings
    from codauc.demo import run, set_up

    set_up()
    quiet = options.pop("quiet")
    run(DemoSettings(**{**options, "sync_every": tuple(options["sync_every"])}), quiet=quiet)
    return 0


COMMANDS: dict[str, Callable[[Options], int]] = {
    "train": train,
    "evaluate": evaluate,
    "predict": predict,
    "compare": compare,
    "report": report,
    "export": export,
    "baselines": baselines,
    "reproduce": reproduce,
    "demo": demo,
}
