"""The report of a run: one page that holds everything it shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from codauc._internal import formats
from codauc.report.baseline_cards import as_good, baselines_card
from codauc.report.explanation_cards import columns_card, importance_card, mistakes_card
from codauc.report.history_cards import cost_cards, profile_cards, training_cards
from codauc.report.rendering import CardTable, render
from codauc.report.run_material import Material, texts
from codauc.report.site_cards import (
    left_out_card,
    left_out_table_card,
    site_sizes_card,
    sites_card,
    sites_table_card,
)
from codauc.report.test_set_cards import score_cards, threshold_card
from codauc.runs.directory import RunFolder

FEW_POSITIVES = 30
SUSPICIOUS = 0.999  # a test AUC above it
_Form = Callable[[float], str]


def page(run: RunFolder) -> str:
    """The report of `run` as one HTML file that needs nothing else.

    What the run did not leave behind is left out. Raises ValueError if `run` is not the directory
    of a run, or a file in it was changed.
    """
    found = Material(run)
    auc = found.value("test_auc")
    return render(
        "run.html",
        name=found.name,
        subject=_subject(found),
        tiles=list(_tiles(found)),
        meaning="" if auc is None else meaning(auc),
        warnings=list(warnings(found)),
        test_cards=[*score_cards(found), importance_card(found), mistakes_card(found)],
        wide_cards=[threshold_card(found), baselines_card(found)],
        site_cards=[site_sizes_card(found), sites_card(found), left_out_card(found)],
        site_tables=[sites_table_card(found), left_out_table_card(found)],
        columns_card=columns_card(found),
        not_measured=str(found.importance.get("reason") or ""),
        training_cards=training_cards(found),
        cost_cards=cost_cards(found),
        profile_cards=profile_cards(found),
        faults=_faults(found),
        settings=_settings(found),
    )


def _subject(run: Material) -> str:
    """Data, classes and model in a line."""
    model = run.summary.get("model")
    model = model if isinstance(model, Mapping) else {"name": run.setting("model", "name")}
    parameters = formats.number(model.get("parameters"))
    size = f" ({formats.count(parameters)} parameters)" if parameters else ""
    parts = {
        "Data": run.summary.get("data") or run.setting("data", "source"),
        "target": run.summary.get("target") or run.setting("data", "target"),
        "positive": _listed(run.summary.get("positive")),
        "negative": _listed(run.summary.get("negative")),
        "model": f"{model['name']}{size}" if model.get("name") else "",
    }
    return "; ".join(f"{name}: {value}" for name, value in parts.items() if value)


def _listed(values: Any, most: int = 6) -> str:
    found = texts(values)
    return ", ".join(found[:most]) + (f", ... ({len(found)} in all)" if len(found) > most else "")


def _tiles(run: Material) -> Iterator[tuple[str, str, str]]:
    """The numbers of the headline: the name above each, the number, a remark below."""
    value, count = run.value, formats.count
    auc, samples, positives = map(value, ("test_auc", "test_samples", "test_positives"))
    interval = formats.interval_text(value("auc_low"), value("auc_high"))
    below = f"95% interval: {interval}" if interval and auc is not None else "no test set"
    below = below if run.summary else "not tested"
    yield "Test AUC", formats.auc_text(auc), below
    precision, chance = value("average_precision"), None
    if samples and positives is not None:
        chance = positives / samples
    best = value("validation_auc") if run.watched == "validation" else None
    rounds = value("rounds") if run.communicates else None
    tiles: list[tuple[str, float | None, _Form, float | None, _Form]] = [
        ("Average precision", precision, "{:.4f}".format, chance, "by chance: {:.3g}".format),
        ("Validation AUC", best, formats.auc_text, value("best_step"),
         "of the kept model, step {:,.0f}".format),
        ("Time", value("seconds"), formats.duration, value("steps"), "{:,.0f} iterations".format),
        ("Rounds", rounds, count, value("bytes_per_worker"),
         lambda sent: f"{formats.size(sent)} sent by each worker"),
        ("Training samples", value("train_samples"), count, value("pos_ratio"),
         lambda ratio: f"{formats.share(ratio)} positive"),
    ]  # fmt: skip
    for name, found, form, more, remark in tiles:
        if found is not None:
            yield name, form(found), "" if more is None else remark(more)


def meaning(auc: float) -> str:
    """What an AUC says, in words.

    >>> meaning(0.9312)
    'A random positive scores above a random negative in 93 of 100 pairs (ties count half).'
    >>> meaning(0.9991)
    'A random positive scores above a random negative in 999 of 1,000 pairs (ties count half).'
    """
    if auc in (0.0, 1.0):
        often = "in every pair" if auc else "in no pair"
    elif 0.005 <= auc < 0.995:
        often = f"in {round(100 * auc)} of 100 pairs"
    elif 0.0005 <= auc < 0.9995:
        often = f"in {round(1000 * auc)} of 1,000 pairs"
    else:
        often = f"in {'more than 999' if auc > 0.5 else 'less than 1'} of 1,000 pairs"
    return f"A random positive scores above a random negative {often} (ties count half)."


def too_good(auc: float | None, drop: str = "--drop COLUMN", group: str = "--group COLUMN") -> str:
    """What to check where the test AUC is higher than honest data usually allow; else nothing.

    >>> too_good(0.98), "unusual" in too_good(0.9995)
    ('', True)
    """
    if auc is None or auc <= SUSPICIOUS:
        return ""
    return (
        f"A test AUC of {formats.auc_text(auc)} is unusual. Check whether a column tells the label "
        f"itself, or is known only after it (leave it out with {drop}), and whether rows of "
        "the same person, device or event are on both sides of the split (keep them together with "
        f"{group})."
    )


def warnings(run: Material) -> Iterator[str]:
    """What a reader must know before believing the numbers."""
    if not run.summary:
        yield "The run has no summary: it was killed, or it is still running. This is its history."
    elif run.summary.get("interrupted") is True:
        yield "The run was interrupted: the numbers are those of the training so far."
    elif run.summary.get("finished") is False:
        yield "The run did not finish: the numbers are those of the training so far."
    if doubt := too_good(run.value("test_auc")):
        yield doubt
    positives = run.value("test_positives")
    if positives is not None and positives < FEW_POSITIVES:
        yield (
            f"The test set has only {formats.count(positives)} positives: the interval is wide, "
            "and a few other samples could change the AUC a lot."
        )
    if run.scores is not None and (missing := int(np.isnan(run.scores.scores).sum())):
        yield f"{formats.count(missing)} test scores are not numbers and are left out of the plots."
    if run.scores is not None and run.points is None:
        yield "The test set has samples of one class only: there is no ROC curve and no AUC."
    yield from as_good(run)
    yield from texts(run.summary.get("notes"))


def _faults(run: Material) -> CardTable:
    """When the run was interrupted, lost a worker or could not write, and resumed."""
    lines = []
    for fault in run.faults:
        facts = {k: v for k, v in fault.items() if k not in ("time", "event", "step")}
        said = ", ".join(f"{name}: {value}" for name, value in facts.items())
        lines.append([str(fault.get(name, "")) for name in ("time", "event", "step")] + [said])
    return CardTable(["time", "what happened", "step", ""], lines, words=True)


def _settings(run: Material) -> list[tuple[str, CardTable]]:
    plain = {k: v for k, v in run.summary.items() if k not in ("workers", "notes", "sites")}
    tables = {"Configuration": run.config, "Summary": plain}
    return [
        (name, CardTable(["name", "value"], rows(values), words=True))
        for name, values in tables.items()
        if values
    ]


def rows(values: Mapping[str, Any], before: str = "") -> list[list[str]]:
    """Nested tables as rows of a dotted name and a value.

    >>> rows({"seed": 0, "data": {"source": "a.csv", "columns": ["x", "y"]}})
    [['seed', '0'], ['data.source', 'a.csv'], ['data.columns', '["x", "y"]']]
    """
    found = []
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found += rows(value, f"{before}{name}.")
        elif isinstance(value, str):
            found.append([before + name, value])
        else:
            found.append([before + name, json.dumps(value, default=str, ensure_ascii=False)])
    return found
