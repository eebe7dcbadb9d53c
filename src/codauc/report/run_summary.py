"""What a run ended with, as a dict that shows itself: text, or HTML in a notebook."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from codauc._internal import formats
from codauc._internal.terminal import printable_lines
from codauc._internal.text_table import table
from codauc.report.history_cards import training_cards
from codauc.report.rendering import render
from codauc.report.run_material import Material
from codauc.report.run_page import FEW_POSITIVES, too_good
from codauc.report.site_cards import SITE_HEADER, site_rows
from codauc.runs.directory import REPORT, RunFolder

_SITES = 20  # that are printed


class RunSummary(dict[str, Any]):
    """What summary.json holds, with "run", the directory.

    Printed it is a few lines; in a notebook it shows the AUC with its interval, the settings in
    short, the AUC curve and a link to the report.

    >>> RunSummary(run="runs/a", stopped=True, steps=40, saved=True)
    Asked to leave at step 40; the state is saved. Resume with resume=True and out='runs/a'.
    """

    def __repr__(self) -> str:
        """The outcome in a few lines."""
        if self.get("stopped") is True or not self:
            return printable_lines(_stopped(self))
        notes = [f"Note: {note}" for note in self._notes()]
        return printable_lines(
            "\n".join([*notes, *outcome_lines(self), f"Report: {Path(self['run']) / REPORT}"])
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        if self.get("stopped") is True or not self:
            return render("summary.html", headline=_stopped(self), lines=[], notes=[])
        headline, *lines = outcome_lines(self)
        report = Path(self["run"]) / REPORT
        return render(
            "summary.html",
            headline=headline,
            lines=[*lines, _in_short(self)],
            notes=self._notes(),
            curve=_curve(self["run"]),
            link=quote(os.path.relpath(report)) if report.exists() else "",
            report=report,
        )

    def _notes(self) -> list[str]:
        notes = [str(note) for note in self["notes"]]
        if 0 < self["test_positives"] < FEW_POSITIVES:
            notes.append(few_positives(self["test_positives"]))
        words = {"drop": "drop=[COLUMN]", "group": "group=COLUMN"}
        doubt = too_good(self["test_auc"], **words)
        return [*notes, doubt] if doubt else notes


def few_positives(positives: int) -> str:
    """The note on a test set of few positives."""
    return f"only {positives} test positives: a wide interval."


def outcome_lines(summary: Mapping[str, Any]) -> list[str]:
    """The AUC with its interval, and on what and how long the model was trained."""
    lines = []
    if summary["interrupted"]:
        lines.append(f"Interrupted after {summary['steps']} steps; the best model is kept.")
    if summary["test_auc"] is None:
        auc = summary["validation_auc"]
        text = "no validation set either" if auc is None else f"validation AUC {auc:.4f}"
        return [*lines, f"No test {'AUC' if summary['test_samples'] else 'set'}; {text}."]
    cost = f"{summary['steps']} steps, {summary['seconds']:.0f} s"
    if len(summary["workers"]) > 1:
        cost += (
            f", {summary['rounds']} rounds, {summary['bytes_per_worker'] / 1e6:.1f} MB per worker"
        )
    return [
        *lines,
        f"Test AUC {summary['test_auc']:.4f} (95% interval {summary['auc_low']:.4f} to "
        f"{summary['auc_high']:.4f}), average precision {summary['average_precision']:.4f}; "
        f"{summary['test_samples']} samples, {summary['test_positives']} positive."
        f"{_counted(summary)}",
        f"Trained on {summary['train_samples']} samples, {summary['pos_ratio']:.2%} positive: "
        f"{cost}.",
        *_site_lines(summary),
    ]


def _counted(summary: Mapping[str, Any]) -> str:
    """By how much the AUC may be off, where scores left their workers as counts alone."""
    bound = summary.get("auc_bound")
    if bound is None:
        return ""
    return (
        f" By counts of scores the AUC is off by at most {bound:.2g}, which the interval includes."
    )


def _site_lines(summary: Mapping[str, Any]) -> list[str]:
    """A short table of the sites, if there are any."""
    sites = summary.get("sites") or []
    if not sites:
        return []
    lines = table(SITE_HEADER, site_rows(sites[:_SITES])).split("\n")
    more = len(sites) - _SITES
    return [*lines, *([f"... and {more} sites more, in the report."] if more > 0 else [])]


def _in_short(summary: Mapping[str, Any]) -> str:
    """The settings in a line."""
    model, workers = summary["model"], len(summary["workers"])
    parts = [
        f"Network {model['name']} ({formats.count(model['parameters'])} parameters)",
        f"recipe {summary['recipe']}",
        f"model of step {formats.count(summary['best_step'])} kept",
        "one worker" if workers == 1 else f"{workers} workers, averaged {_period(summary)}",
    ]
    return ", ".join(parts) + "."


def _period(summary: Mapping[str, Any]) -> str:
    """How often workers are averaged, and between what bounds the period set itself."""
    every, changes = summary["sync_every"], summary.get("periods")
    if not changes:
        return f"every {every} steps"
    found = [change["period"] for change in changes]
    return f"every {min(found)} to {max(found)} steps ({every}, {len(found)} changes)"


def _stopped(summary: Mapping[str, Any]) -> str:
    if not summary:
        return "Another worker has the summary of this run."
    if summary["steps"] is None:
        return "Asked to leave before the training began; nothing is lost."
    how = "the state is saved" if summary["saved"] else "the state is NOT saved"
    return (
        f"Asked to leave at step {summary['steps']}; {how}. Resume with resume=True and "
        f"out={summary['run']!r}."
    )


def _curve(run: str) -> Markup:
    """The AUC against iterations; nothing where the run's files are no longer there."""
    try:
        return training_cards(Material(RunFolder(run)))[0].picture
    except (ValueError, OSError):
        return Markup()
