"""Results as a table, and where and with what they were measured."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.measuring import Options
from codauc._internal.text_table import table

PACKAGES = ("codauc", "torch", "numpy", "libauc", "scikit-learn", "torchmetrics")
_ROOT = Path(__file__).parents[1]


def facts(options: Options) -> dict[str, Any]:
    """Versions, the machine, the commit and the date."""
    return {
        "versions": {"python": platform.python_version(), **{p: _version(p) for p in PACKAGES}},
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "short": options.short,
    }


def show(found: dict[str, Any]) -> str:
    """The table, what was skipped, and what is broken."""
    header = ["benchmark", "ours", "theirs", "ratio", "middle half", "goal", "met"]
    rows = [[result["name"], *_cells(result)] for result in found["results"]]
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    place = f"{found['cpu']}, {found['threads']} thread, load {found['load']:.1f}"
    lines = [table(header, rows), "", f"{versions}; {place}; {found['commit']}, {found['date']}"]
    for kind in ("skipped", "broken"):
        lines += [f"{kind}: {each['name']}: {each['reason']}" for each in found[kind]]
    return "\n".join(lines)


def line(result: dict[str, Any]) -> str:
    """One result in a line."""
    ours, theirs, ratio, spread, goal, met = _cells(result)
    end = f", goal {goal}: {met}" if met else ""
    return f"{ours} / {theirs} = {ratio} ({spread}){end}"


def _cells(result: dict[str, Any]) -> list[str]:
    low, high = result["spread"]
    sign = ">=" if result["better"] == "higher" else "<="
    return [
        quantity(result["ours"], result["unit"]),
        quantity(result["theirs"], result["unit"]),
        f"{result['ratio']:.3f}",
        f"{low:.3f}-{high:.3f}",
        "" if result["met"] is None else f"{sign} {result['goal']:g}",  # none in the short form
        {None: "", True: "yes", False: "no"}[result["met"]],
    ]


def quantity(value: float, unit: str) -> str:
    """A number with its unit, in a size to read.

    >>> quantity(0.0123, "s"), quantity(2.5e9, "bytes"), quantity(1234.5, "samples/s")
    ('12.3 ms', '2.5 GB', '1234 samples/s')
    """
    if math.isinf(value):
        return "never"
    scales = {
        "s": [(1, "s"), (1e-3, "ms"), (0, "us")],
        "bytes": [(1e9, "GB"), (1e6, "MB"), (0, "kB")],
    }.get(unit)
    if scales is None:
        return f"{value:.0f} {unit}"
    least, name = next(scale for scale in scales if value >= scale[0])
    return f"{value / (least or {'us': 1e-6, 'kB': 1e3}[name]):.3g} {name}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line)
    return next(names, platform.machine())


def _commit() -> str | None:
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=9"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
