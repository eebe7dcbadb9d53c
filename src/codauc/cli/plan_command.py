"""`codauc plan`: from typed sizes, times and rates to a table and a suggested command."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from typing import Any

from codauc._internal.checks import real
from codauc._internal.formats import duration, size
from codauc._internal.text_table import table

_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
_TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0}
_MANY = 32  # workers from which on ways to average are compared
_RATES = {"bit": 1 / 8, "kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}


def quantity(name: str, text: str, units: dict[str, float], example: str) -> float:
    """A number with a unit.

    >>> quantity("step_time", "20ms", _TIMES, "20ms")
    0.02
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*([a-z]*?)(?:/s|ps)?\s*", text.lower())
    if found is None or found[2] not in units or not float(found[1]) > 0:
        expected = ", ".join(unit for unit in units if unit)
        raise ValueError(
            f"{name}={text!r}: expected a number above 0 with {expected}; use {example}, say."
        )
    return float(found[1]) * units[found[2]]


def plan_text(options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """What the command prints, and the same as plain values."""
    from codauc.training import communication_plan as plans

    network = plans.Network(
        _workers(options["workers"]),
        quantity("bandwidth", options["bandwidth"], _RATES, "100mbit"),
        quantity("latency", options["latency"], _TIMES, "1ms"),
    )
    work = _workload(options)
    runs = plans.planned_runs(work, network)
    best = plans.recommended(runs)
    rows = [
        [
            ("> " if run == best else "  ") + run.method,
            str(run.period),
            run.compress or "float32",
            f"{run.rounds:,}",
            size(run.bytes_per_worker),
            duration(run.seconds),
            f"{run.share:.0%}",
            size(plans.memory_per_worker(work, run)),
        ]
        for run in runs
    ]
    heads = ["method", "I", "weights", "rounds", "sent/worker", "time", "communicating", "memory"]
    gain = plans.speed_up(work, best, network.workers)
    two = replace(network, workers=2)
    second = plans.speed_up(work, plans.recommended(plans.planned_runs(work, two)), 2)
    command = _command(best if gain > 1 else None, network.workers, work)  # nor are two faster then
    ways = plans.ways_to_average(work, network) if network.workers >= _MANY else []
    notes = [
        *_notes(gain, network.workers, second, plans.most_workers(work, network, best.period)),
        *_of_theory(options, network.workers),
        *_of_correction(work),
        *_of_many(ways),
    ]
    first = (
        f"{network.workers} workers, {work.parameters:,} parameters, {work.steps:,} steps of "
        f"{1000 * work.step_seconds:.3g} ms each."
    )
    text = "\n".join(
        [
            first,
            "",
            table(heads, rows),
            "",
            *notes,
            f"Use: {command}",
        ]
    )
    values = {
        "workload": asdict(work),
        "network": asdict(network),
        "command": command,
    }
    lists = {"runs": [asdict(run) for run in runs], "averaging": [asdict(way) for way in ways]}
    return text, {**values, **lists, "speed_up": gain, "speed_up_of_two": second}


def _workers(count: int) -> int:
    if count < 2:
        raise ValueError(f"workers={count}: expected at least 2; one worker sends nothing.")
    return count


def _workload(options: dict[str, Any]) -> Any:
    from codauc.training import communication_plan as plans

    for name, usual in (("steps", 4000), ("batch_size", 32), ("image_size", 32)):
        if options[name] < 1:
            raise ValueError(f"{name}={options[name]}: expected at least 1; use {usual}, say.")
    if (options["model"] is None) == (options["parameters"] is None):
        raise ValueError(
            "--model and --parameters: expected one of them; use --parameters 1.1m, say."
        )
    if (options["step_time"] is None) != bool(options["measure"]):
        raise ValueError("--step-time and --measure: expected one of them; use --step-time 20ms.")
    seconds = 0.0
    if options["step_time"] is not None:
        seconds = quantity("step_time", options["step_time"], _TIMES, "20ms")
    if options["model"] is None:
        if options["measure"]:
            raise ValueError("--measure without --model: expected one, such as --model resnet20.")
        count = quantity("parameters", options["parameters"], _COUNTS, "1.1m")
        return plans.Workload(round(count), seconds, options["steps"], **_of_recipe(options))
    return _of_model(options, seconds)


def _of_model(options: dict[str, Any], seconds: float) -> Any:
    import torch

    from codauc.models.registry import build
    from codauc.training import communication_plan as plans

    pixels, name = options["image_size"], options["model"]
    inputs = torch.randn(options["batch_size"], 3, pixels, pixels)
    arguments = {"inputs": 3 * pixels * pixels} if name == "mlp" else {}
    if name in ("tabular", "tabular-ensemble"):
        raise ValueError(f"model={name!r}: its size follows from the table; give parameters.")
    model = build(name, **arguments)
    if options["measure"]:
        seconds = plans.measured_step(model, inputs)
    return plans.workload_of(model, options["steps"], seconds, **_of_recipe(options))


def _of_recipe(options: dict[str, Any]) -> dict[str, bool]:
    return {"adaptive": options["recipe"] != "paper", "corrected": options["correct"] is not None}


def _notes(gain: float, workers: int, second: float, most: int) -> list[str]:
    notes = [_worth(f"{workers} workers process", gain)]
    if workers > 2:
        notes.append(_worth("A second machine alone: two process", second))
    if most < 1000:
        notes.append(
            f"Beyond {most} workers a ring spends more time on latency than on computing: average "
            "inside machines more often than across (local_every), or use a larger I."
        )
    return notes


def _worth(who: str, gain: float) -> str:
    worth = "worth it" if gain > 1.5 else "hardly worth it" if gain > 1 else "slower than one alone"
    return f"{who} {gain:.2g} times the samples of one per second: {worth}."


def _of_theory(options: dict[str, Any], workers: int) -> list[str]:
    """What is harmless by Theorem 1 for a step size, and what a share of positives asks for."""
    from codauc.training.communication_plan import HARMLESS, harmless_period, largest_step

    notes, lr, p = [], options["lr"], options["pos_ratio"]
    if lr is not None:
        lr = real("lr", lr, above=0, remedy="use the step size of the first stage")
        notes.append(
            f"Harmless by Theorem 1 with a step size of {lr:g}: I up to "
            f"{harmless_period(lr, workers)}, and more as it falls (--sync-every theorem). In the "
            f"experiments {HARMLESS} cost 0.003 of AUC or less."
        )
    if p is not None:
        p = real("pos_ratio", p, above=0, below=1, remedy="use the share of positives")
        rare = options["batch_size"] * min(p, 1 - p)
        notes.append(
            f"With {p:.3g} positives a batch of {options['batch_size']} has {rare:.2g} samples of "
            "the rarer class; with recipe paper the step size is at most "
            f"{largest_step(p):.3g}."
        )
    return notes


def _of_correction(work: Any) -> list[str]:
    """What control variates are for asks for more rounds."""
    from codauc.training.recipe import SYNC_OFTEN

    if not work.corrected:
        return []
    return [
        f"Periods above {SYNC_OFTEN} are for workers that are alike: where labels differ much, "
        f"codauc train --correct scaffold averages every {SYNC_OFTEN} steps (--sync-every "
        f"{SYNC_OFTEN})."
    ]


def _of_many(ways: list[Any]) -> list[str]:
    """What a round of many workers costs, the message in 2 bits."""
    if not ways:
        return []
    rows = [
        [
            way.name,
            f"{way.latencies:,}",
            size(way.bytes_per_worker),
            duration(way.seconds),
            f"{way.period:,}",
        ]
        for way in ways
    ]
    heads = [
        "a round of 2-bit messages",
        "latencies",
        "sent/worker",
        "time",
        "I for 5% of the time",
    ]
    return [
        "",
        table(heads, rows),
        "Trees and levels are not in codauc: they say what a larger network would need.",
        "",
    ]


def _command(run: Any, workers: int, work: Any) -> str:
    """Of a run of several workers; of none, that of one, which sends nothing."""
    words = ["codauc train DATA", "" if work.adaptive else "--recipe paper"]
    if run is not None:
        words += [f"--workers {workers} --sync-every {run.period}"]
        words += [f"--compress {run.compress}" if run.compress else ""]
        words += ["--correct scaffold" if work.corrected else ""]
    return " ".join(word for word in words if word)
