"""What `codauc reproduce` does, from typed options to what is printed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from codauc.checks import choice, listed, real, whole
from codauc.data.any_images import holds
from codauc.experiments import tuning
from codauc.experiments.jobs import Failure
from codauc.experiments.output import Shown, write
from codauc.experiments.reproduce import Reproduction, catalogue, figures, panels
from codauc.experiments.results import Link
from codauc.experiments.study import DATA, Study
from codauc.progress import note
from codauc.writing import whole_file

Say = Callable[[str], object]
_KINDS = {
    "workers": "fixed I, K in {1, 4, 16}",
    "period": "fixed K=16, I in {1, 8, 64, 512, 1024}",
    "period-k4": "fixed K=4, the same I",
    "growing": "K=16, I_s = I_0 3^(s-1)",
    "headline": "rounds and bytes to a target AUC: NP-PPD-SG, CoDA, data parallel cross-entropy",
    "table1": "iterations and rounds to a target AUC, beside the theory's",
    "tuning": "the grid of T_0 and eta_0, for one worker",
}


def reproduce(options: dict[str, Any], say: Say) -> int:
    """List, plan, try or run; returns the exit code."""
    if options["list"]:
        say("\n".join(_listed()))
        return 0
    made = _made(options)
    if options["plan"]:
        return _plan(made, say)
    if options["dry_run"]:
        return _try(made, options, say)
    if made.study.scale == "paper" and made.study.pretrained is None:
        raise ValueError(
            "--scale paper without --pretrained: expected the file of torchvision's resnet50 "
            "weights, with which the paper begins; or --pretrained none to begin with random ones."
        )
    try:
        chosen, failed = made.run()
    except KeyboardInterrupt:
        note(f"Interrupted; all runs are saved in {made.folder}. Go on with the same command.")
        return 130
    if not chosen:
        say(_told(failed))
        return 1
    shown = _shown(made, chosen, options)
    pages = write(shown, made.folder)
    if options["json"]:
        say(json.dumps([finding._asdict() for finding in shown.found]))
    else:
        for each in shown.found:
            say(f"{each.claim}: {each.measured} (expected: {each.expected}): {each.verdict}.")
        say(f"Page: {pages[0]}")
    if failed:
        note(_told(failed))
    return 1 if failed else 0


def _listed() -> list[str]:
    lines = []
    for name, (data, percent, some) in catalogue().items():
        if len(some) > 1:
            lines.append(f"{name:25s}all of {DATA[data].title} with {percent}% positives:")
        else:
            lines.append(f"  {name:23s}{_KINDS[some[0]]}")
    return lines


def _made(options: dict[str, Any]) -> Reproduction:
    names = catalogue()
    if options["name"] is None:
        raise ValueError("NAME is missing: expected one of those that --list prints.")
    data, percent, wanted = names[choice("NAME", options["name"], tuple(names))]
    expected = f"expected {DATA[data].archive}: {DATA[data].where}"
    if options["data"] is None:
        raise ValueError(f"--data is missing: {expected}.")
    if not Path(options["data"]).exists():
        raise ValueError(f"--data {options['data']} does not exist: {expected}.")
    if not holds(Path(options["data"]), data):
        raise ValueError(f"--data {options['data']} holds no {DATA[data].title}: {expected}.")
    _link(options)
    for name in ("jobs", "seeds"):
        if options[name] is not None:
            whole(f"--{name}", options[name], least=1, remedy="leave it out for the default")
    pretrained = options["pretrained"]
    study = Study(
        data,
        percent,
        options["scale"],
        source=str(Path(options["data"]).absolute()),
        pretrained=None if pretrained in (None, "none") else str(Path(pretrained).absolute()),
        device=options["device"],
        processes=options["processes"] or options["plan"],
        lr=options["lr"],
        start=options["start"],
    )
    quiet = options["quiet"] or options["json"]
    return Reproduction(
        study, wanted, options["out"], seeds=options["seeds"], jobs=options["jobs"], quiet=quiet
    )


def _link(options: dict[str, Any]) -> Link:
    remedy = "it is that of the link whose time is modelled"
    latency = real("--latency", options["latency"], least=0, remedy=remedy)
    bandwidth = real("--bandwidth", options["bandwidth"], above=0, remedy=remedy)
    return Link(latency / 1e3, bandwidth * 125e3)


def _shown(made: Reproduction, chosen: Any, options: dict[str, Any]) -> Shown:
    link = _link(options)
    archive, scale = DATA[made.study.data].archive, made.study.scale
    more = "" if made.study.lr is None else f" --lr {made.study.lr:g}"
    more += " --start estimate" * (made.study.start == "estimate")
    return Shown(
        study=made.study,
        panels=panels(made.study, made.wanted),
        results=made.results(chosen, link),
        tried={name: made.tuned(name) for name in made.objectives},
        chosen=chosen,
        link=link,
        step_seconds=made.step_seconds(chosen),
        commits=made.commits(chosen),
        command=f"codauc reproduce {options['name']} --data {archive} --scale {scale}{more}",
        whole=made.wanted == figures(made.study.percent),
    )


def _told(failed: list[Failure]) -> str:
    names: dict[str, list[str]] = {}
    for failure in failed:
        names.setdefault(failure.reason, []).append(failure.name)
    lines = [f"{listed(some)}: {reason}" for reason, some in names.items()]
    return "\n".join(["Not finished:", *lines, "Give the same command again to go on."])


def _plan(made: Reproduction, say: Say) -> int:
    """Write the configurations of all runs; what was tuned is used as far as it is known."""
    chosen = {name: made.likely(name) for name in made.objectives}
    tasks = [*made.tuning_tasks(), *made.tasks(chosen)]
    for task in tasks:
        task.out.mkdir(parents=True, exist_ok=True)
        with whole_file(task.out.with_suffix(".toml")) as partial:
            partial.write_text(task.settings.to_toml(), encoding="utf-8")
        workers = task.settings.communication.workers
        how = f"torchrun --nproc-per-node {workers} -m codauc" if workers > 1 else "codauc"
        paths = (shlex.quote(str(p)) for p in (task.out.with_suffix(".toml"), task.out))
        say("{} train --config {} --out {} --resume".format(how, *paths))
    note(
        f"{len(tasks)} configurations are written. Run the tuning ones first, and --plan again, so "
        "that the others get what was chosen; when they have run, codauc reproduce draws them."
    )
    return 0


def _try(made: Reproduction, options: dict[str, Any], say: Say) -> int:
    from codauc.experiments.dry_run import dry_run

    first = tuning.grid(made.study)[0]
    tasks = made.tasks(dict.fromkeys(made.objectives, first)) or made.tuning_tasks()[:1]
    runs = {task.name.rpartition("-seed")[0]: task.settings for task in tasks}
    dry_run(list(runs.items()), (lambda _: None) if options["quiet"] else note)
    say(f"{len(runs)} configurations build, load and train.")
    return 0
