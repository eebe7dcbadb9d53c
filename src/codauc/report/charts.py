"""Charts as SVG. Colours and dashes are classes of the page's style.

A chart scales to the width of its column, says in words what it shows, and has a tooltip at its
points without any script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from codauc._internal.formats import count, digits, size
from codauc.report.axes import (
    LIMIT,
    Axis,
    Floats,
    log_ticks,
    odds_text,
    odds_ticks,
    stretch,
    tick_labels,
    ticks,
)
from codauc.report.rendering import Card, render

WIDTH, LETTER = 360.0, 6.3  # of a chart; of a letter, about
MOST_POINTS, MOST_TIPS, MOST_LINES = 400, 60, 30
LONGEST_KEY, LONGEST_NAME = 46, 28  # letters in a legend, and before a bar
_DESCRIBED = 7  # series in the words for those who do not see the chart
_GAP, _PITCH = 16, 21.0


@dataclass(frozen=True)
class Series:
    """A line through points; `low` and `high` draw a band, `fill` colours down to 0.

    One point alone is a dot. Points with a coordinate that is not finite are left out. `tips` are
    points with a tooltip, if not the line's own. Series of one label have one entry in the legend.
    There are seven colours and four kinds of dashes: 28 series with `colour=i, dash=i` all differ.
    """

    label: str
    x: Any
    y: Any
    low: Any = None
    high: Any = None
    colour: int = 0
    dash: int = 0
    fill: bool = False
    tips: tuple[Any, Any] | None = None


@dataclass(frozen=True)
class Chart:
    """What a chart shows.

    A kind is "number", "count", "bytes" or "odds" (log-odds, written as probabilities). `lines` are
    places of thin vertical lines. `y_limits` are never left; `x_range` and `y_range` are the whole
    axis, if not what the data needs. The x axis starts at 0 unless `log_x`, which leaves out what
    is not above 0.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_kind: str = "number"
    y_kind: str = "number"
    log_x: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    y_limits: tuple[float, float] = (-LIMIT, LIMIT)
    lines: Sequence[float] = ()
    legend: bool = True
    height: float = 230.0


PROGRESS = {  # how far a run got, by the field of a record: its name, its axis, the axis' kind
    "step": ("iterations", "iterations of each worker", "count"),
    "rounds": ("rounds", "communication rounds", "count"),
    "bytes": ("bytes sent", "bytes sent by each worker", "bytes"),
    "seconds": ("time", "seconds", "number"),
}


def auc_chart(
    whose: str, field: str, series: Sequence[Series], x_label: str = "", **more: Any
) -> Chart:
    """The AUC of a set, "test" or "validation", against how far a run got.

    Without an `x_label` of their own, many seconds become minutes or hours.
    """
    name, usual, kind = PROGRESS[field]
    titles = (f"{whose.capitalize()} AUC against {name}", x_label or usual, f"{whose} AUC")
    chart = Chart(*titles, series, kind, y_limits=(0.0, 1.0), **more)
    longest = max((float(np.nanmax(each.x, initial=0.0)) for each in series), default=0.0)
    if field != "seconds" or x_label or longest < 300:
        return chart
    factor, unit = (60.0, "minutes") if longest < 3 * 3600 else (3600.0, "hours")
    shorter = [replace(each, x=each.x / factor) for each in series]
    return replace(chart, x_label=unit, series=shorter, lines=[at / factor for at in chart.lines])


def line_chart(chart: Chart) -> Markup:
    """The chart as an <svg>; nothing if no series has a point."""
    series = [clean for each in chart.series if (clean := _clean(each, log=chart.log_x)).x.size]
    if not series:
        return Markup()
    keys, top = legend(series if chart.legend else ())
    x, y = _axes(chart, series, top)
    rows = (odds_ticks if chart.y_kind == "odds" else ticks)(y.low, y.high, 6)
    form = _form("odds" if chart.y_kind == "odds" else "number")
    columns, labels = _fitting(chart, x)
    ends = "; ".join(
        f"{s.label} from {form(s.y[0])} to {form(s.y[-1])}" for s in series[:_DESCRIBED]
    )
    return _drawn(
        "line_chart.svg",
        chart.title,
        f"{chart.title}: {chart.y_label} against {chart.x_label}. {ends}.",
        chart.height + top,
        chart=chart,
        x=x,
        y=y,
        keys=keys,
        rows=zip(y.place(rows), tick_labels(rows, chart.y_kind), strict=True),
        columns=zip(x.place(columns), labels, strict=True),
        lines=[x.place(at) for at in chart.lines[:MOST_LINES] if x.low < at < x.high],
        areas=[area for each in series if (area := _area(each, x, y))],
        paths=[(each, _path(x.place(each.x), y.place(each.y))) for each in series],
        tips=[tip for each in series for tip in _tips(each, chart, x, y)],
    )


def chart_card(chart: Chart, caption: str) -> Card:
    """A card with a chart under its title."""
    return Card(chart.title, caption, line_chart(chart))


def row_chart(
    title: str, rows: Sequence[tuple[str, float, str]], *, heading: bool = False
) -> Markup:
    """A bar to the right for each name and value, and a text behind it; nothing without a bar.

    With `heading` the title stands above, and each bar has a colour of its own.
    """
    longest = max((value for _, value, _ in rows), default=0.0)
    if not longest > 0:
        return Markup()
    left = 8 + max(min(len(name), LONGEST_NAME) for name, *_ in rows) * 1.1 * LETTER
    room = WIDTH - left - 8 - max(len(text) for *_, text in rows) * LETTER
    top = 24 if heading else 4
    bars = [
        (name, left, top + _PITCH * i, room * value / longest, i if heading else 0, text)
        for i, (name, value, text) in enumerate(rows)
    ]
    said = "; ".join(f"{name}: {text}" for name, _, text in rows)
    height = top + 2 + _PITCH * len(rows)
    return _drawn("row_chart.svg", title, f"{title}: {said}.", height, bars=bars, heading=heading)


def interval_chart(
    title: str, rows: Sequence[tuple[str, float, float, float, str]], mark: float = 0.0
) -> Markup:
    """A dot and a line from low to high for each name, value, low, high and text.

    A vertical line stands at `mark`.
    """
    if not rows:
        return Markup()
    ends = np.array(
        [mark, *(part for _, value, low, high, _ in rows for part in (value, low, high))]
    )
    left = 8 + max(min(len(name), LONGEST_NAME) for name, *_ in rows) * 1.1 * LETTER
    right = WIDTH - 14 - max(len(row[-1]) for row in rows) * LETTER
    axis = Axis(*stretch(ends), left + 6, right)
    dots = [
        (name, 4 + _PITCH * i, *(float(axis.place(part)) for part in (value, low, high)), text)
        for i, (name, value, low, high, text) in enumerate(rows)
    ]
    said = "; ".join(f"{name}: {text}" for name, *_, text in rows)
    values = {"dots": dots, "left": left, "right": right, "zero": float(axis.place(mark))}
    height = 6 + _PITCH * len(rows)
    return _drawn("interval_chart.svg", title, f"{title}: {said}.", height, **values)


def side_by_side(title: str, pictures: Sequence[Markup]) -> str:
    """Pictures in a row as one SVG file, with its own style."""
    heights = [int(text.split('viewBox="', 1)[1].split('"')[0].split()[3]) for text in pictures]
    placed = list(zip(heights, pictures, strict=True))
    return render("pictures.svg", title=title, pictures=placed, width=round(WIDTH), gap=_GAP)


def outline(edges: Any, heights: Any) -> tuple[Floats, Floats]:
    """The outline of a histogram: `heights[i]` stands from edges[i] to edges[i + 1].

    >>> [part.tolist() for part in outline([0.0, 1.0, 2.0], [3.0, 4.0])]
    [[0.0, 0.0, 1.0, 1.0, 2.0, 2.0], [0.0, 3.0, 3.0, 4.0, 4.0, 0.0]]
    """
    return np.repeat(np.asarray(edges, float), 2), np.pad(np.repeat(heights, 2).astype(float), 1)


def thinned(y: Floats, most: int = MOST_POINTS) -> NDArray[np.intp]:
    """Indices of at most `most` points: both ends, and the extremes of each stretch between.

    >>> thinned(np.array([0.0, 9.0, 1.0, 1.0, -5.0, 2.0, 2.0, 3.0]), most=4).tolist()
    [0, 1, 4, 7]
    """
    if len(y) <= most:
        return np.arange(len(y))
    edges = np.linspace(1, len(y) - 1, (most - 2) // 2 + 1).astype(int)
    parts = [(a, y[a:b]) for a, b in pairwise(edges)]
    inner = {int(a + pick(part)) for a, part in parts for pick in (np.argmin, np.argmax)}
    return np.array(sorted({0, len(y) - 1, *inner}))


def legend(series: Sequence[Series]) -> tuple[list[tuple[Series, float, float]], float]:
    """What the legend names, each with its place, in as many rows as it needs; and its height.

    One line alone needs no legend.
    """
    named: dict[str, Series] = {}
    for each in series:
        named.setdefault(each.label, each)
    if len(named) < 2:
        return [], 0.0
    placed, x, y = [], 2.0, 10.0
    for each in named.values():
        width = 28 + min(len(each.label), LONGEST_KEY) * LETTER + 14
        if x > 2 and x + width > WIDTH:
            x, y = 2.0, y + 17
        placed.append((each, x, y))
        x += width
    return placed, y + 12


def _drawn(template: str, title: str, said: str, height: float, **values: Any) -> Markup:
    """The picture of a template; `said` is what it shows, for those who do not see it."""
    frame = {"title": title, "said": said, "width": round(WIDTH), "height": round(height)}
    limits = {"longest_key": LONGEST_KEY, "longest_name": LONGEST_NAME}
    return Markup(render(template, **frame, **limits, **values))


def _clean(series: Series, *, log: bool) -> Series:
    """Finite points only, not too many of them; a band is as wide as it is known."""
    x, y = np.asarray(series.x, float).ravel(), np.asarray(series.y, float).ravel()
    index = np.flatnonzero(np.isfinite(x) & np.isfinite(y) & ((x > 0) | (not log)))
    index = index[thinned(y[index])]
    low, high = series.low, series.high
    if low is not None:
        low, high = (np.asarray(part, float).ravel()[index] for part in (low, high))
        low, high = (np.where(np.isfinite(part), part, y[index]) for part in (low, high))
    tips = series.tips or (x[index], y[index])
    return replace(series, x=x[index], y=y[index], low=low, high=high, tips=tips)


def _axes(chart: Chart, series: Sequence[Series], top: float) -> tuple[Axis, Axis]:
    every = [part for s in series for part in (s.y, s.low, s.high) if part is not None]
    every += [np.zeros(1)] * any(s.fill for s in series)
    y_ends = chart.y_range or stretch(np.concatenate(every), pad=0.06, limits=chart.y_limits)
    if any(s.fill for s in series) and not chart.y_range:
        y_ends = max(0.0, y_ends[0]), y_ends[1]
    across = [s.x for s in series] + [np.zeros(1)] * (not chart.log_x)
    x_ends = chart.x_range or stretch(np.concatenate(across), log=chart.log_x)
    rows = (odds_ticks if chart.y_kind == "odds" else ticks)(*y_ends, 6)
    widest = max(map(len, tick_labels(rows, chart.y_kind)), default=1)
    last = (tick_labels([x_ends[1]], "count" if chart.x_kind == "bytes" else chart.x_kind))[0]
    right = WIDTH - max(10.0, min(len(last), 7) * LETTER / 2 + 4)
    left = min(12 + widest * LETTER, WIDTH / 3)
    return (
        Axis(*x_ends, left, right, chart.log_x),
        Axis(*y_ends, top + chart.height - 40, top + 28),
    )


def _fitting(chart: Chart, x: Axis) -> tuple[list[float], list[str]]:
    """The most numbers along the x axis that do not touch each other; counts are whole."""
    values: list[float] = []
    labels: list[str] = []
    places = odds_ticks if chart.x_kind == "odds" else log_ticks if chart.log_x else ticks
    for most in (7, 6, 5, 4, 3, 2):
        values = places(x.low, x.high, most)
        if chart.x_kind == "count":
            values = [value for value in values if value == round(value)]
        labels = tick_labels(values, chart.x_kind)
        if all(np.diff(x.place(values)) > max(map(len, labels), default=0) * LETTER + 6):
            break
    return values, labels


def _path(x: Floats, y: Floats) -> Markup:
    return Markup("M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True)))


def _area(series: Series, x: Axis, y: Axis) -> tuple[str, Markup] | None:
    """The class and the path of the band, or of what is under the line."""
    if not series.fill and series.low is None:
        return None
    low = np.zeros(len(series.x)) if series.fill else series.low
    high = series.y if series.fill else series.high
    across = x.place(series.x)
    d = _path(np.append(across, across[::-1]), np.append(y.place(high), y.place(low)[::-1])) + "Z"
    if len(across) == 1:
        return f"line s{series.colour % 7}", d
    return f"{'fill' if series.fill else 'band'} f{series.colour % 7}", d


def _tips(series: Series, chart: Chart, x: Axis, y: Axis) -> Iterator[tuple[Any, ...]]:
    """Colours, places, and what a tooltip says there."""
    form, value = _form(chart.x_kind), _form("odds" if chart.y_kind == "odds" else "number")
    xs, ys = (np.asarray(part, float) for part in series.tips or (series.x, series.y))
    for i in np.unique(np.linspace(0, len(xs) - 1, min(len(xs), MOST_TIPS)).astype(int)):
        said = f"{series.label}: {value(float(ys[i]))} at {form(float(xs[i]))} ({chart.x_label})"
        yield series.colour, x.place(xs[i]), y.place(ys[i]), said


def _form(kind: str) -> Callable[[float], str]:
    """How a value of an axis is said."""
    return {"bytes": size, "count": count, "odds": odds_text}.get(kind, _four)


def _four(value: float) -> str:
    return digits(float(value), 4)
