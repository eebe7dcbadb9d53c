"""The sites of a run: what each brought, and how well the model does on its own test rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from codauc._internal.formats import auc_text, count, interval_text, number, share
from codauc.report.charts import interval_chart, row_chart
from codauc.report.rendering import Card, CardTable
from codauc.report.run_material import Material, dicts

MOST_SITES = 60  # in the picture; the table has all up to
MOST_ROWS = 500
SITE_HEADER = (
    *("site", "worker", "samples", "positive"),
    *("test samples", "test AUC", "95% interval", "drift"),
)


def site_rows(sites: Sequence[Mapping[str, Any]], hidden: str = "few") -> list[list[str]]:
    """A row of text for each site of a summary; `hidden` stands for a count that is not told."""
    return [_row(each, hidden) for each in sites]


def _row(site: Mapping[str, Any], hidden: str) -> list[str]:
    values = {name: number(site.get(name)) for name in _NUMBERS}
    samples, positives, tested = (values[name] for name in _NUMBERS[:3])
    rate = "-" if not samples else hidden if positives is None else share(positives / samples)
    return [
        str(site.get("name")),
        count(number(site.get("worker")) or 0),
        hidden if samples is None else count(samples),
        rate,
        hidden if tested is None else count(tested),
        _auc(values, hidden),
        interval_text(number(site.get("auc_low")), number(site.get("auc_high"))) or "-",
        "-" if values["drift"] is None else f"{values['drift']:.3f}",
    ]


_NUMBERS = ("samples", "positives", "test_samples", "test_positives", "auc", "drift")


def _auc(values: Mapping[str, float | None], hidden: str) -> str:
    """The AUC, or why there is none."""
    tested, positives, auc = values["test_samples"], values["test_positives"], values["auc"]
    if tested == 0:
        return "no test rows"
    if auc is not None:
        return auc_text(auc)
    if positives == tested and tested is not None:
        return "all positive"
    if positives == 0:
        return "all negative"
    return hidden


def sites_card(run: Material) -> Card:
    """The AUC of each site with its interval, beside that of all; and the table of sites."""
    sites = dicts(run.summary.get("sites"))
    if not sites:
        return Card()
    title, overall = "Test AUC of each site", run.value("test_auc")
    drawn = [row for each in sites if (row := _interval(each))][:MOST_SITES]
    picture = interval_chart(title, drawn, overall or 0.0)
    mean = "" if overall is None else " The vertical line is the AUC of all test rows together."
    caption = (
        "The AUC of the model on each site's own test rows, with DeLong's 95% interval: wide where "
        f"the rarer class has few.{mean} That also counts pairs of a positive of one site and a "
        "negative of another, so it may be higher or lower than the AUC of every site."
    )
    return Card(title, caption, picture)


def site_sizes_card(run: Material) -> Card:
    """How many rows each site has, and how many of them are positive."""
    rows = []
    for site in dicts(run.summary.get("sites"))[:MOST_SITES]:
        samples, positives = (number(site.get(name)) for name in ("samples", "positives"))
        if samples:
            rate = "" if positives is None else f", {share(positives / samples)}"
            rows.append((str(site.get("name")), samples, f"{count(samples)}{rate}"))
    caption = "The rows of each site, for training, validation and test, and the positive share."
    return Card("Rows of each site", caption, row_chart("Rows of each site", rows))


def sites_table_card(run: Material) -> Card:
    """The table of sites."""
    sites = dicts(run.summary.get("sites"))
    if not sites:
        return Card()
    lines = site_rows(sites)
    rest = len(lines) - MOST_ROWS
    more = f" {count(rest)} more sites are not listed." if rest > 0 else ""
    caption = (
        "Samples are the rows of training, validation and test together. Drift is how far the "
        "weights of the site's worker were from the mean of all when they were averaged, relative "
        f"to it: a site that differs pulls farther.{_told(run)}{more}"
    )
    return Card("Sites", caption, table=CardTable(SITE_HEADER, lines[:MOST_ROWS], stack=True))


def _told(run: Material) -> str:
    least = number(run.setting("data", "least_samples"))
    if not least:
        return ""
    return f" Few: 1 to {least - 1:.0f} samples would be told of, and at least {least:.0f} must be."


def _interval(site: Mapping[str, Any]) -> tuple[str, float, float, float, str] | None:
    auc, low, high = (number(site.get(name)) for name in ("auc", "auc_low", "auc_high"))
    if auc is None or low is None or high is None or not low <= auc <= high:
        return None
    return str(site.get("name")), auc, low, high, auc_text(auc)


LEFT_OUT_HEADER = (
    *("site left out", "rows", "compared on", "took part"),
    *("left out", "cost (95% interval)", "left out, all rows"),
)


def left_out_rows(sites: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A row of text for each site: what it costs it not to take part."""
    return [_left_out_row(each) for each in sites]


def _left_out_row(site: Mapping[str, Any]) -> list[str]:
    part, out, whole = (number(site.get(name)) for name in ("took_part", "left_out", "whole"))
    cost, low, high = (number(site.get(name)) for name in _COST)
    gap = ""
    if cost is not None and low is not None and high is not None:
        gap = f"{cost:+.4f} ({low:+.4f} to {high:+.4f})"
    return [
        str(site.get("site")),
        count(number(site.get("rows")) or 0),
        count(number(site.get("test_rows")) or 0),
        auc_text(part),
        auc_text(out),
        gap or str(site.get("reason") or "-"),
        auc_text(whole),
    ]


_COST = ("cost", "cost_low", "cost_high")


def left_out_card(run: Material) -> Card:
    """The AUC that each site loses if it does not take part."""
    title, rows = "What leaving a site out costs", []
    for site in dicts(run.left_out.get("sites"))[:MOST_SITES]:
        cost, low, high = (number(site.get(name)) for name in _COST)
        if cost is not None and low is not None and high is not None and low <= cost <= high:
            rows.append((str(site.get("site")), cost, low, high, f"{cost:+.3f}"))
    caption = (
        "The AUC on a site's test rows when it took part in the training, less that of a model "
        "trained without it, with DeLong's paired 95% interval. Where the line reaches 0 (the "
        "vertical one) the two cannot be told apart on these rows. Above 0 it pays to take part."
    )
    return Card(title, caption, interval_chart(title, rows)) if rows else Card()


def left_out_table_card(run: Material) -> Card:
    """The same as a table."""
    sites = dicts(run.left_out.get("sites"))
    if not sites:
        return Card()
    caption = (
        "Both models are compared on the same rows: the site's test rows of this run, on which "
        "neither was trained. The last column is the AUC of the model without the site on all of "
        "its rows."
    )
    rows = left_out_rows(sites)[:MOST_ROWS]
    return Card("A site left out", caption, table=CardTable(LEFT_OUT_HEADER, rows, stack=True))
