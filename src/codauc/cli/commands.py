"""What the commands do, from typed options to what is printed."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from codauc._internal.checks import listed
from codauc._internal.files import free_name, whole_file
from codauc._internal.imports import imported_class, importing_from_here
from codauc._internal.progress import note
from codauc._internal.terminal import printable
from codauc._internal.text_table import table
from codauc.cli.each_site import each_site
from codauc.cli.options import parsers
from codauc.cli.output import say, say_json
from codauc.cli.setting_options import in_options, settings_of
from codauc.runs.directory import MODEL, PROFILE, REPORT, SUMMARY, VALIDATION, RunFolder
from codauc.runs.named_settings import settings_with_options
from codauc.runs.settings import CONFIG, RunSettings

Options = dict[str, Any]


def train(options: Options) -> int:
    """Train, print the result, and name the report."""
    from codauc.training.train_call import train as run

    settings = settings_of(options)
    if settings.data.test_site == "each":
        return each_site(settings, options)
    with importing_from_here([settings.model.name, *options["callback"]]):
        summary = run(
            settings,
            options["out"],
            resume=options["resume"],
            overwrite=options["overwrite"],
            quiet=options["quiet"] or options["json"],
            tensorboard=options["tensorboard"],
            profile=options["profile"],
            callbacks=[_callback(path) for path in options["callback"]],
            words=partial(in_options, known=parsers()[1]["train"].options),
        )
    if not summary:  # under torchrun: another worker prints
        return 0
    if options["json"]:
        say_json(summary)
    elif summary.get("stopped"):
        say(_stopped(summary))
    else:
        folder = RunFolder(summary["run"])
        profile = _profile(folder) if options["profile"] else []
        say("\n".join([*profile, *_result(summary), f"Report: {folder / REPORT}"]))
    if summary.get("stopped"):
        return 0 if summary["saved"] else 1
    return 130 if summary.get("interrupted") else 0


def inspect(options: Options) -> int:
    """Print how every column of a table would be read, and what is unusual."""
    from codauc.data.column_record import record_rows, to_json
    from codauc.data.opening import open_data
    from codauc.metrics.single_columns import with_deciding_columns
    from codauc.workers.group import LocalGroup

    settings = settings_of(options)
    opened = with_deciding_columns(open_data(settings.data, LocalGroup(), settings.seed))
    records = opened.train.columns
    parts = {"train": opened.train, "validation": opened.validation, "test": opened.test}
    rows = {name: part.samples for name, part in parts.items() if part is not None}
    if options["json"]:
        target = {"positive": opened.positive, "negative": opened.negative[:20]}
        say_json({**to_json(records), **target, "rows": rows, "notes": opened.hints})
        return 0
    known = parsers()[1]["train"].options
    text = [table(*record_rows(records), left=(0, 1, 4, 5)), ""] if records else []
    counts = ", ".join(f"{count:,} {name}" for name, count in rows.items())
    text.append(f"Rows: {counts}; {opened.train.pos_ratio:.2%} of the training rows positive.")
    text.append(f"Positive: {listed(opened.positive)}; negative: {listed(opened.negative)}.")
    say(in_options("\n".join([*text, *(f"Note: {hint}" for hint in opened.hints)]), known))
    return 0


def _profile(folder: RunFolder) -> list[str]:
    """Where the time went, above the result; nothing of a run that had ended without a profile."""
    from codauc.training.profiler import profile_table

    profile = folder.profile()
    try:
        return [] if profile is None else [profile_table(profile, folder.path), ""]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(
            f"{folder / PROFILE} cannot be read ({type(error).__name__}: {error}): it was changed."
        ) from error


def _stopped(summary: dict[str, Any]) -> str:
    if summary["steps"] is None:
        return "Asked to leave before the training began; nothing is lost."
    how = "saved" if summary["saved"] else "NOT SAVED, so the last checkpoint is what is left,"
    return (
        f"Asked to leave: {how} at step {summary['steps']}. Resume with: codauc train --resume "
        f"--out {summary['run']}"
    )


def _callback(path: str) -> Any:
    from codauc.training.callbacks import Callback

    try:
        return imported_class("callback", path, Callback)()
    except Exception as error:  # of others; it may fail in any way
        raise ValueError(
            f"--callback {path}: {error}; expected package.module:Class of a codauc.Callback."
        ) from error


def _result(summary: dict[str, Any]) -> list[str]:
    from codauc.report.run_page import FEW_POSITIVES, too_good
    from codauc.report.run_summary import few_positives, outcome_lines

    known = [each.option for _, each in settings_with_options()]
    lines = [printable(f"Note: {in_options(note, known)}") for note in summary["notes"]]
    if 0 < summary["test_positives"] < FEW_POSITIVES:
        lines.append(f"Note: {few_positives(summary['test_positives'])}")
    if doubt := too_good(summary["test_auc"]):
        lines.append(f"Note: {doubt}")
    return [*lines, *outcome_lines(summary), *_threshold_lines(summary)]


def _threshold_lines(summary: dict[str, Any]) -> list[str]:
    from codauc.metrics.thresholds import Threshold

    found = summary.get("threshold")
    return [] if found is None else [f"Threshold: {Threshold.from_dict(found)}."]


def evaluate(options: Options) -> int:
    """Print the AUC of a run's model on other data."""
    from codauc.cli.confusion import confusion_text
    from codauc.cli.scored_data import loaded, scored
    from codauc.metrics.auc_values import auc_interval
    from codauc.metrics.calibration import average_precision

    settings, saved = loaded(options)
    found = scored(settings, saved, options)
    scores, labels = found.scores, found.labels
    if labels is None:
        raise ValueError(
            f"{options['source']} has no labels: expected the column of training, or --target; "
            "codauc predict does without."
        )
    auc = auc_interval(scores, labels)
    result: dict[str, Any] = {
        "auc": auc.value,
        "auc_low": auc.low,
        "auc_high": auc.high,
        "average_precision": average_precision(scores, labels),
        "samples": len(scores),
        "positives": int(labels.sum()),
    }
    table_at = None if saved.threshold is None else saved.threshold.confusion(scores, labels)
    if saved.threshold is not None and table_at is not None:
        result |= {"threshold": saved.threshold.to_dict(), "confusion": asdict(table_at)}
    if options["json"]:
        say_json(result)
    else:
        say(
            f"AUC {auc.value:.4f} (95% interval {auc.low:.4f} to {auc.high:.4f}), average "
            f"precision {result['average_precision']:.4f}; {len(scores)} samples, "
            f"{result['positives']} positive."
        )
        if saved.threshold is not None and table_at is not None:
            say(confusion_text(saved.threshold, table_at))
    return 0


def threshold(options: Options) -> int:
    """Choose a run's threshold anew, by the scores of its validation set."""
    from codauc.metrics.thresholds import choose_threshold
    from codauc.models.model_file import save_threshold

    folder = RunFolder(options["run"])
    kept = folder.scores(VALIDATION)
    if kept is None:
        folder.config()  # no run at all is another mistake
        raise ValueError(
            f"{folder.path} has no {VALIDATION}: expected a run that held out a validation set and "
            "came to its end; train again, with --threshold."
        )
    chosen = choose_threshold(*kept, options["threshold"])
    save_threshold(folder / MODEL, chosen)
    if options["json"]:
        say_json(chosen.to_dict())
    else:
        say(f"Threshold: {chosen}.\nKept in {folder / MODEL}")
    return 0


def predict(options: Options) -> int:
    """Write every row's score and probability, beside the columns that are kept."""
    from codauc.cli.score_files import check_name, write_scores
    from codauc.cli.scored_data import loaded, scored

    out: Path = options["out"]
    check_name(out)
    _check_free(out, options)
    settings, saved = loaded(options)
    found = scored(settings, saved, options)
    columns: dict[str, Any] = {
        "row": found.rows,
        **found.copied,
        "score": found.scores,
        "probability": 1 / (1 + np.exp(-np.clip(found.scores, -700, 700))),
    }
    if saved.threshold is not None:
        columns["predicted"] = saved.threshold.positive(found.scores).astype(np.int8)
    if found.labels is not None:
        columns["label"] = found.labels
    write_scores(out, columns)
    if options["json"]:
        say_json({"out": str(out), "rows": len(found.rows)})
    elif not options["quiet"]:
        say(f"{len(found.rows)} rows: {out}")
    return 0


def _check_free(out: Path, options: Options) -> None:
    if out.exists() and not options["overwrite"]:
        raise ValueError(f"{out} exists: expected another name, or --overwrite to replace it.")


def compare(options: Options) -> int:
    """Print the table of several runs and write their page."""
    from codauc.report.comparison import comparison_page

    every = [RunFolder(path) for path in options["runs"]]
    runs = [run for run in every if not run.failed] or every
    for run in every:
        if run not in runs:
            note(f"Note: {run.path} is left out: it failed before its first evaluation.")
    out = options["out"] or free_name(Path("comparison.html"))
    text = comparison_page(runs)
    with whole_file(out, "the page") as partial:
        partial.write_text(text, encoding="utf-8")
    _say_compared(runs, out, options)
    return 0


def _say_compared(runs: list[RunFolder], page: Path, options: Options) -> None:
    from codauc.report.comparison import comparison_rows

    if options["json"]:
        say_json([run.summary() for run in runs])
    else:
        say(table(*comparison_rows(runs)))
        if not options["quiet"]:
            say(f"Picture: {page}")


def plan(options: Options) -> int:
    """Print what ways to train on several workers would send, and how long they would take."""
    from codauc.cli.plan_command import plan_text

    text, values = plan_text(options)
    say_json(values) if options["json"] else say(text)
    return 0


def report(options: Options) -> int:
    """Write a run's report anew."""
    from codauc.report.run_page import page

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
    from codauc.cli.scored_data import loaded
    from codauc.models.onnx_export import export_onnx

    out: Path = options["onnx"]
    _check_free(out, options)
    _, saved = loaded(options)
    export_onnx(saved, out, shape=RunFolder(options["run"]).shape())
    say(f"ONNX: {out}")
    return 0


def baselines(options: Options) -> int:
    """Train in six ways and fit models of other libraries; print one table."""
    from codauc.report.comparison import comparison_page
    from codauc.reproduce.baselines import SEEDS_HEADER, Baselines, seed_rows
    from codauc.training.directory_claim import new_directory
    from codauc.training.site_choice import with_workers

    if options["run"] is not None:
        return _beside(options)
    settings, seeds = with_workers(settings_of(options)), options["seeds"]
    if seeds < 1:
        raise ValueError(f"--seeds {seeds}: expected at least 1.")
    name = Path(settings.data.source).name.split(".")[0]
    out = Path(options["out"] or new_directory(f"{name}-baselines"))
    how = {key: options[key] for key in ("resume", "overwrite")}
    how["quiet"], found = options["quiet"] or options["json"], list[list[Path]]()
    for seed in range(settings.seed, settings.seed + seeds):
        place = out if seeds == 1 else out / f"seed-{seed}"
        with importing_from_here([settings.model.name]):
            folders = Baselines(replace(settings, seed=seed), place, **how).run()
        runs = [RunFolder(folder) for folder in folders]
        if not (runs[-1] / SUMMARY).exists():
            say(f"Asked to leave: saved. Resume with the same command, --out {out} and --resume.")
            return 0
        cut = not runs[-1].finished
        runs = runs[:-1] if cut and len(runs) > 1 else runs
        page = RunFolder(place).write("comparison.html", comparison_page(runs))
        if seeds == 1 or cut:
            _say_compared(runs, page, options)
            return 130 if cut else 0
        found.append(folders)
    rows = seed_rows(found)
    if options["json"]:
        say_json([dict(zip(SEEDS_HEADER, row, strict=True)) for row in rows])
    else:
        say(table(SEEDS_HEADER, rows))
    return 0


def _beside(options: Options) -> int:
    """Fit models of other libraries to the rows of a run, whose report then compares them."""
    from codauc.reproduce.baselines import Baselines

    typed = sorted(name.rpartition(".")[2].replace("_", "-") for name in options if "." in name)
    if typed or options["config"] or options["out"] or options["seeds"] != 1:
        raise ValueError(
            f"--run {options['run']} has its own settings and directory: expected neither DATA nor "
            f"other settings with it{': got ' + ', '.join(typed) if typed else ''}; leave them out."
        )
    run = RunFolder(options["run"])
    settings = RunSettings.from_dict(run.config(), str(run / CONFIG), trust=True)  # builds nothing
    how = {key: options[key] for key in ("resume", "overwrite")}
    quiet = options["quiet"] or options["json"]
    others = Baselines(settings, run / "baselines", **how, quiet=quiet).beside(run)
    _say_compared([run, *map(RunFolder, others)], run / REPORT, options)
    return 0


def reproduce(options: Options) -> int:
    """A figure of the paper: its runs, or a plan or a trial of them; then what they show."""
    from codauc.reproduce.command import reproduce as run

    return run(options, say)


def demo(options: Options) -> int:
    """The demonstration."""
    import torch

    from codauc.reproduce.demo import run
    from codauc.reproduce.demo_settings import DemoSettings

    torch.set_num_threads(1)  # simulated workers run one at a time, on little data
    quiet = options.pop("quiet")
    if "sync_every" in options:
        options["sync_every"] = tuple(options["sync_every"])
    run(DemoSettings(**options), quiet=quiet)
    return 0
