"""Cards that show the test set: ROC, precision and recall, scores, thresholds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from codauc._internal.formats import number, percent, share
from codauc.report.axes import LIMIT, Floats, stretch
from codauc.report.charts import Chart, Series, chart_card, outline
from codauc.report.curves import (
    Operating,
    reaching,
    score_groups,
    shares,
    sigmoid,
    thinned_points,
    wilson,
)
from codauc.report.rendering import Card, CardTable
from codauc.report.run_material import Material

RECALLS = (0.5, 0.8, 0.9, 0.95, 0.99)
BINS = 40
_UNIT, _TALL = (0.0, 1.0), 290.0
_LOW_PRECISION = 0.4  # at most: then the axis ends a little above it
_BULK = (0.002, 0.998)  # quantiles between which scores are drawn


def score_cards(run: Material) -> list[Card]:
    """The pictures of the test set, as far as there are scores."""
    found = run.points
    curves = [] if found is None else [_roc_card(found), _recall_card(found)]
    return [*curves, _histogram_card(run), _calibration_card(run)]


def _roc_card(points: Operating) -> Card:
    curve = thinned_points(points)
    low, high = wilson(curve.recall, points.positives)
    model = Series("model", curve.false_rate, curve.recall, low, high)
    return chart_card(
        roc_chart("ROC curve of the test set", [model]),
        "The nearer to the upper left corner the better; the area below is the AUC. The band is "
        "the 95% Wilson interval of the true positive rate at each false positive rate, taken as "
        "given.",
    )


def roc_chart(title: str, series: Sequence[Series], *, legend: bool = True) -> Chart:
    """Curves from (0, 0) to (1, 1) and the diagonal of chance; nothing without a curve."""
    titles = (title, "false positive rate", "true positive rate (recall)")
    drawn = [*series, Series("chance", _UNIT, _UNIT, colour=6, dash=2)] if series else []
    return Chart(*titles, drawn, x_range=_UNIT, y_range=_UNIT, legend=legend, height=_TALL)


def _recall_card(points: Operating) -> Card:
    found = points.at(slice(int(np.searchsorted(points.hits, 1)), None))
    curve = thinned_points(found)
    stairs = outline(np.append(0, curve.recall), curve.precision)
    x, y = (part[1:-1] for part in stairs)
    rate = points.positives / (points.positives + points.negatives)
    series = [
        Series("model", x, y, tips=(curve.recall, curve.precision)),
        Series("chance", _UNIT, [rate, rate], colour=6, dash=2),
    ]
    titles = (
        "Precision and recall of the test set",
        "recall: share of positives found",
        "precision: share of flagged that are positive",
    )
    peak = max(float(curve.precision.max()), rate)
    tall = _UNIT if peak > _LOW_PRECISION else (0.0, 1.2 * peak)
    return chart_card(
        Chart(*titles, series, x_range=_UNIT, y_range=tall, height=_TALL),
        "To find more of the positives (right) is to flag more negatives with them (down). "
        f"Chance is the share of positives, {share(rate)}; the area below is the average "
        "precision.",
    )


def _histogram_card(run: Material) -> Card:
    if run.scores is None:
        return Card()
    scores, labels = run.scores
    classes = (("negatives", ~labels, 1), ("positives", labels, 0))
    low, high = stretch(np.concatenate([_bulk(scores[mask]) for _, mask, _ in classes]), pad=0.03)
    edges = np.linspace(low, high, BINS + 1)
    series = []
    for label, mask, colour in classes:
        heights = 100 * shares(scores[mask], edges)
        if heights.any():
            tips = ((edges[1:] + edges[:-1]) / 2, heights)
            x, y = outline(edges, heights)
            series.append(Series(label, x, y, colour=colour, fill=True, tips=tips))
    titles = ("Scores of the test set", "score as a probability, on the scale of log-odds")
    return chart_card(
        Chart(*titles, "% of the class", series, "odds", x_range=(low, high), height=_TALL),
        "Each class is drawn as per cent of itself, so that a rare class is as visible as the "
        "other. The less they overlap the better. The scale is that of log-odds, on which scores "
        "near 0% and near 100% can be told apart; the few beyond its ends are in the last bars.",
    )


def _bulk(scores: Floats) -> Floats:
    """Where all but the most extreme scores of a class are."""
    finite = scores[np.isfinite(scores) & (np.abs(scores) < LIMIT)]
    return np.quantile(finite, _BULK) if len(finite) else finite


def _calibration_card(run: Material) -> Card:
    groups = [] if run.scores is None or run.points is None else score_groups(*run.scores)
    if len(groups) < 2:
        return Card()
    predicted, hits, counts = (np.array(part, float) for part in zip(*groups, strict=True))
    observed, (low, high) = hits / counts, wilson(hits / counts, counts)
    x = _log_odds(predicted, 1e9)
    y, low, high = (_log_odds(part, counts) for part in (observed, low, high))
    ends = stretch(np.concatenate([x, y]), pad=0.12)
    bars = [
        Series("test samples", x[[i]], y[[i]], low[[i]], high[[i]])  # one dot with its interval
        for i in range(len(groups))
    ]
    perfect = Series("as predicted", ends, ends, colour=6, dash=2)
    titles = ("Calibration", "predicted probability", "share of positives")
    chart = Chart(*titles, [perfect, *bars], "odds", "odds", x_range=ends, y_range=ends)
    return chart_card(
        replace(chart, height=_TALL),
        f"{_calibrated(run)} A dot is a group of samples of similar score, the vertical line the "
        "95% Wilson interval of its share of positives. Dots below the dotted line: the scores "
        "promise too much. The AUC does not depend on it.",
    )


def _log_odds(shares_of: Floats, counts: Floats | float) -> Floats:
    """Shares of `counts` samples as log-odds; 0 and 1 as half a sample from the end."""
    inside = np.clip(shares_of, 0.5 / counts, 1 - 0.5 / counts)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def _calibrated(run: Material) -> str:
    found = run.summary.get("calibration")
    if not isinstance(found, dict):
        return "Whether the scores were calibrated is not recorded."
    if (number(found.get("scale")), number(found.get("shift"))) == (1.0, 0.0):
        return "The scores were not calibrated: they are not probabilities."
    return "The scores were calibrated on the validation set (Platt)."


def threshold_card(run: Material) -> Card:
    """What it takes to find a given share of the positives."""
    if run.points is None:
        return Card()
    rows = [_row(run.points, recall) for recall in RECALLS]
    header = ["to find", "threshold", "log-odds", "finds", "precision"]
    header += ["false positive rate", "flagged of 1,000"]
    caption = (
        "Flag a sample if its score, as a probability, is at least the threshold; log-odds is the "
        "same threshold for raw scores. Both are rounded down. Precision is the share of flagged "
        "samples that are positive. All of it holds for data like the test set, "
        "and for few positives it is rough."
    )
    return Card(
        "Choose a threshold", caption, table=CardTable(header, rows, whole=True, stack=True)
    )


def _row(points: Operating, recall: float) -> list[str]:
    at = reaching(points, recall)
    score = float(at.thresholds[0])
    flagged = int(at.hits[0] + at.alarms[0]) / (points.positives + points.negatives)
    return [
        f"{share(recall)} of positives",
        rounded_down(float(sigmoid(score))),
        rounded_down(score, 3),
        percent(float(at.recall[0])),
        percent(float(at.precision[0])),
        percent(float(at.false_rate[0])),
        f"{1000 * flagged:,.1f}",
    ]


def rounded_down(value: float, decimals: int | None = None) -> str:
    """A threshold in digits, never above itself, so that it flags no fewer samples.

    Without `decimals` a probability has as many as distinguish it from 0 and 1.

    >>> rounded_down(0.12349), rounded_down(0.9999967), rounded_down(-1.2341, 3)
    ('0.1234', '0.9999967', '-1.235')
    """
    if not math.isfinite(value):
        return str(value)
    if decimals is None:
        edge = min(value, 1 - value)
        decimals = 4 if edge <= 0 else min(12, max(4, 1 - math.floor(math.log10(edge))))
    if abs(value) * 10**decimals > 1e15:
        return f"{value:g}"
    return f"{math.floor(value * 10**decimals) / 10**decimals:.{decimals}f}"
