"""What `codauc reproduce` does, from typed options to what is printed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codauc._internal.checks import choice, listed, real, whole
from codauc._internal.files import whole_file
from codauc._internal.imports import is_import_path
from codauc._internal.progress import note
from codauc.data.image_sources import holds
from codauc.models.registry import IN_CHANNELS
from codauc.reproduce.figure_definitions import FIGURES, catalogue, figures
from codauc.reproduce.overview import OVERVIEW, write_overview
from codauc.reproduce.preparation import placed, prepare
from codauc.reproduce.reproduction import TUNING, Reproduction
from codauc.reproduce.study import DATA, Study
from codauc.reproduce.study_output import Shown, write
from codauc.reproduce.study_results import Link
from codauc.runs.settings import RunSettings

if TYPE_CHECKING:
    from codauc.workers.group import Group

Say = Callable[[str], object]


def reproduce(options: dict[str, Any], say: Say) -> int:
    """List, plan, try or run; returns the exit code."""
    if options["list"]:
        return _list(say)
    if options["name"] == OVERVIEW:
        say(f"Page: {write_overview(options['out'])}")
        return 0
    made = _made(options)
    quiet = options["quiet"] or options["json"]
    given = options["pretrained"] or options["pretrain"] or options["dry_run"]
    if made.study.scale == "paper" and not given:
        raise ValueError(
            "--scale paper without --pretrained: expected the file of torchvision's resnet50 "
            "weights, with which the paper begins; or --pretrained none to begin with random ones."
        )
    try:
        if made.study.pretraining:
            made.claim()  # before weights are written there
        prepare(made.study, options["out"], options["pretrain"], quiet=quiet)
        if options["dry_run"]:
            return _try(made, options, say)
        if options["plan"]:
            return _plan(made, say)
        if not quiet:
            note(made.said(options["jobs"]))
        failed = made.run(options["jobs"], None if quiet else options["name"])
        made.measure_constants(quiet=quiet)
    except KeyboardInterrupt:
        note(f"Interrupted; the runs are kept in {made.folder}. Resume with the same command.")
        return 130
    if not any(name.startswith(TUNING) for name in failed):
        _show(made, options, say)
    if failed:
        note(_not_finished(failed))
    return 1 if failed else 0


def _list(say: Say) -> int:
    say(f"{OVERVIEW:25s}one page of all studies in --out, from their tables")
    for name, (data, percent, some) in catalogue().items():
        if len(some) > 1:
            say(f"{name:25s}all of {DATA[data].title} with {percent}% positives:")
        else:
            say(f"  {name:23s}{FIGURES[some[0]]}")
    return 0


def _made(options: dict[str, Any]) -> Reproduction:
    names = catalogue()
    if options["name"] is None:
        raise ValueError("NAME is missing: expected one of those that --list prints.")
    data, percent, wanted = names[choice("NAME", options["name"], (*names, OVERVIEW))]
    expected = f"expected {DATA[data].archive}: {DATA[data].where}"
    if options["data"] is None:
        raise ValueError(f"--data is missing: {expected}.")
    if not Path(options["data"]).exists():
        raise ValueError(f"--data {options['data']} does not exist: {expected}.")
    if not holds(Path(options["data"]), data):
        raise ValueError(f"--data {options['data']} holds no {DATA[data].title}: {expected}.")
    _link(options)
    for name in ("jobs", "seeds", "steps"):
        if options[name] is not None:
            whole(f"--{name}", options[name], least=1, remedy="leave it out for the default")
    pretrained, model = options["pretrained"], options["model"]
    if model is not None and not is_import_path(model):
        choice("--model", model, ("convnet", *IN_CHANNELS))
    if pretrained is not None and options["pretrain"] is not None:
        raise ValueError("--pretrained with --pretrain: expected one of them; leave one out.")
    study = Study(
        data,
        percent,
        options["scale"],
        source=str(Path(options["data"]).absolute()),
        pretrained=None if pretrained in (None, "none") else str(Path(pretrained).absolute()),
        device=options["device"],
        processes=options["processes"] or options["plan"],
        lr=options["lr"],
        steps=options["steps"],
        start=options["start"],
        model=model,
    )
    if study.pretrained is not None and not Path(study.pretrained).is_file():
        raise ValueError(f"--pretrained {pretrained} is no file: expected weights, or none.")
    trying = options["dry_run"]
    on = None if trying else options["pretrain"]
    study = placed(study, options["out"], on, keep_files=trying)
    return Reproduction(study, wanted, options["out"], seeds=options["seeds"])


def _link(options: dict[str, Any]) -> Link:
    remedy = "it is that of the link whose time is modelled"
    latency = real("--latency", options["latency"], least=0, remedy=remedy)
    bandwidth = real("--bandwidth", options["bandwidth"], above=0, remedy=remedy)
    return Link(latency / 1e3, bandwidth * 125e3)


def _show(made: Reproduction, options: dict[str, Any], say: Say) -> None:
    """Write and print all of the study that is finished, whichever figures were asked for."""
    link, study = _link(options), made.study
    whole = Reproduction(study, figures(study.percent), options["out"], seeds=options["seeds"])
    shown = Shown(
        study=study,
        results=whole.results(link),
        tried={name: found for name in whole.objectives if (found := whole.tried(name))},
        chosen=whole.chosen(),
        link=link,
        step_seconds=whole.step_seconds(),
        commits=whole.commits(),
        constants=whole.constants(),
        cpu_seconds=whole.cpu_seconds(),
        runs=whole.runs(),
        tuning_seeds=len(whole.seeds),
        command=_command(options, study),
        whole=all(job.done for job in whole.jobs()),
    )
    write(shown, made.folder)
    page = write_overview(options["out"])
    if options["json"]:
        say(json.dumps([finding._asdict() for finding in shown.found]))
        return
    for each in shown.found:
        say(f"{each.claim}: {each.measured} (expected: {each.expected}): {each.verdict}.")
    say(f"Page: {page}")


def _command(options: dict[str, Any], study: Study) -> str:
    """What was typed, but for where the data are."""
    parts = ["codauc reproduce", options["name"], "--data", DATA[study.data].archive]
    parts += ["--scale", study.scale]
    usual: dict[str, Any] = {"seeds": None, "lr": None, "start": "zero", "device": "cpu"}
    usual |= {"steps": None, "latency": 0.1, "bandwidth": 10000.0, "model": None}
    parts += [f"--{name} {options[name]}" for name in usual if options[name] != usual[name]]
    if study.pretraining:
        parts.append(f"--pretrain {Path(options['pretrain']).name}")
    elif study.pretrained is not None:
        parts.append(f"--pretrained {Path(study.pretrained).name}")
    return " ".join(parts)


def _not_finished(failed: dict[str, str]) -> str:
    names: dict[str, list[str]] = {}
    for name, reason in failed.items():
        names.setdefault(reason, []).append(name)
    lines = [f"{listed(some)}: {reason}" for reason, some in names.items()]
    return "\n".join(["Not finished:", *lines, "After fixing that, the same command resumes."])


def _plan(made: Reproduction, say: Say) -> int:
    """Write the configurations of all runs; what was tuned is used as far as it is known."""
    made.claim()
    jobs = [*made.tuning_jobs(), *made.jobs()]
    for job in jobs:
        path = job.out.with_name(f"{job.name}.toml")
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial:
            partial.write_text(job.settings.to_toml(), encoding="utf-8")
        workers = job.settings.communication.size
        how = f"torchrun --nproc-per-node {workers} -m codauc" if workers > 1 else "codauc"
        paths = (shlex.quote(str(p)) for p in (path, job.out))
        say("{} train --config {} --out {} --resume".format(how, *paths))
    note(
        f"{len(jobs)} configurations are written. Run the tuning ones first, then --plan again, "
        "until it names no new ones: then the others have the chosen values. When they have run, "
        "codauc reproduce times two short runs here and draws."
    )
    return 0


def _try(made: Reproduction, options: dict[str, Any], say: Say) -> int:
    """Does every configuration build, load and train?"""
    jobs = made.jobs() or [made.tuning_job("auc", made.study.grid[0])]
    runs = {job.name.rpartition("-seed")[0]: job.settings for job in jobs}
    for name, settings in runs.items():
        text = _few_steps(settings)
        if not options["quiet"]:
            note(f"{name}: {text}")
    say(f"{len(runs)} configurations build, load and train.")
    return 0


def _few_steps(settings: RunSettings) -> str:
    """Train for a few steps of few samples, without evaluations or files; say what was done."""
    from codauc.data.opening import open_data
    from codauc.training.build import resolve_settings
    from codauc.training.loop import fit
    from codauc.workers.launcher import launch

    asked = settings.communication
    workers = min(asked.size, 2)  # simulated, as good as sixteen here
    short = settings.with_changes("communication", workers=workers, simulate=True).with_changes(
        "recipe", steps=2, stages=2, factor=1.0, batch_size=4, dual_samples=8
    )

    def work(group: Group) -> tuple[int, int]:
        opened = open_data(short.data, group, short.seed)
        resolved = resolve_settings(short, opened, group.size)
        trained = fit(resolved, replace(opened, validation=None), group)
        return trained.steps, sum(p.numel() for p in trained.model.parameters())

    steps, parameters = launch(work, workers=workers, simulate=True, seed=short.seed)[0]
    return (
        f"K={asked.size} (here {workers}), I={asked.sync_every}, {settings.model.name} of "
        f"{parameters:,} parameters: {steps} steps."
    )
