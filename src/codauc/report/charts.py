"""Charts as SVG text: pure functions. Colours are classes (s0 to s6, f0 to f6) of the page's style.

A chart scales to the width of its column, says in words what it shows, and has a tooltip at its
points without any script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from codauc._internal.formats import count, digits, size
from codauc.report.axes import LIMIT, Axis, Floats, log_ticks, stretch, tick_labels, ticks
from codauc.report.chart_parts import COLOURS, LETTER, WIDTH, Key, dashes, grid, legend, picture
from codauc.report.rendering import escape

MOST_POINTS, MOST_TIPS, MOST_LINES = 400, 60, 30


@dataclass(frozen=True)
class Series:
    """A line through points; `low` and `high` draw a band, `fill` colours down to 0.

    Points with a coordinate that is not finite are left out. `tips` are points with a tooltip, if
    not the line's own.
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
class Mark:
    """A point that stands out; in the legend too, unless it has the label of a series."""

    label: str
    x: float
    y: float
    colour: int = 0


@dataclass(frozen=True)
class Chart:
    """What a chart shows.

    `x_kind` is "number", "count" or "bytes". `lines` are places of thin vertical lines. `y_limits`
    are never left; `x_range` and `y_range` are the whole axis, if not what the data needs. The x
    axis starts at 0 unless `log_x`, which leaves out what is not above 0.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_kind: str = "number"
    log_x: bool = False
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None
    y_limits: tuple[float, float] = (-LIMIT, LIMIT)
    lines: Sequence[float] = ()
    marks: Sequence[Mark] = ()
    legend: bool = True
    height: float = 230.0


def line_chart(chart: Chart) -> Markup:
    """The chart as an <svg>; nothing if no series has a point."""
    series = [clean for each in chart.series if (clean := _clean(each, log=chart.log_x)).x.size]
    if not series:
        return Markup()
    keys = [Key(each.label, each.colour, each.dash) for each in series if chart.legend]
    known = {key.label for key in keys}
    marks = [mark for mark in chart.marks if mark.label not in known]
    keys += [Key(mark.label, mark.colour, shape="dot") for mark in marks]
    head, top = legend(keys)
    x, y = _axes(chart, series, top)
    body = [_frame(chart, x, y), *(_stage_line(at, x, y) for at in chart.lines[:MOST_LINES])]
    body += [_area(each, x, y) for each in series]
    body += [_line(each, x, y) for each in series]
    body += [_tips(each, chart, x, y) for each in series]
    body += [_mark(mark, chart, x, y) for mark in chart.marks]
    return picture(chart.title, _description(chart, series), chart.height + top, [head, *body])


def stairs(x: Any, y: Any) -> tuple[Floats, Floats]:
    """The corners of a line that is y[i] from x[i - 1] to x[i].

    >>> [part.tolist() for part in stairs([0.0, 1.0, 3.0], [5.0, 5.0, 2.0])]
    [[0.0, 0.0, 1.0, 1.0, 3.0], [5.0, 5.0, 5.0, 2.0, 2.0]]
    """
    return np.repeat(np.asarray(x, float), 2)[:-1], np.repeat(np.asarray(y, float), 2)[1:]


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
    widest = max(map(len, tick_labels(ticks(*y_ends, 6), "number")), default=1)
    last = (tick_labels([x_ends[1]], "number" if chart.x_kind == "number" else "count"))[0]
    right = WIDTH - max(10.0, min(len(last), 7) * LETTER / 2 + 4)
    left = min(12 + widest * LETTER, WIDTH / 3)
    return (
        Axis(*x_ends, left, right, chart.log_x),
        Axis(*y_ends, top + chart.height - 40, top + 28),
    )


def _frame(chart: Chart, x: Axis, y: Axis) -> str:
    """The grid, the numbers beside it, and the names of the axes."""
    parts = grid(ticks(y.low, y.high, 6), "number", x, y)
    values, labels = _fitting(chart, x)
    parts += [
        f'<path class="axis" d="M{at:.1f} {y.start:.1f}v4"/>'
        f'<text x="{at:.1f}" y="{y.start + 17:.1f}" text-anchor="middle">{text}</text>'
        for at, text in zip(x.place(values), labels, strict=True)
    ]
    middle = (x.start + x.end) / 2
    parts += [
        f'<path class="axis" d="M{x.start:.1f} {y.start:.1f}H{x.end:.1f}"/>',
        f'<text x="2" y="{y.end - 13:.1f}">{escape(chart.y_label)}</text>',
        f'<text x="{middle:.1f}" y="{y.start + 35:.1f}" text-anchor="middle">'
        f"{escape(chart.x_label)}</text>",
    ]
    return "\n".join(parts)


def _fitting(chart: Chart, x: Axis) -> tuple[list[float], list[str]]:
    """The most numbers along the x axis that do not touch each other."""
    values: list[float] = []
    labels: list[str] = []
    for most in (7, 6, 5, 4, 3, 2):
        values = (log_ticks if chart.log_x else ticks)(x.low, x.high, most)
        labels = tick_labels(values, chart.x_kind)
        if all(np.diff(x.place(values)) > max(map(len, labels), default=0) * LETTER + 6):
            break
    return values, labels


def _path(x: Floats, y: Floats) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))


def _line(series: Series, x: Axis, y: Axis) -> str:
    across, up = x.place(series.x), y.place(series.y)
    if len(across) == 1:
        return f'<circle class="f{series.colour}" cx="{across[0]:.1f}" cy="{up[0]:.1f}" r="3.5"/>'
    return f'<path class="line s{series.colour}"{dashes(series.dash)} d="{_path(across, up)}"/>'


def _area(series: Series, x: Axis, y: Axis) -> str:
    """The band, or what is under the line."""
    if not series.fill and series.low is None:
        return ""
    low = np.zeros(len(series.x)) if series.fill else series.low
    high = series.y if series.fill else series.high
    across = x.place(series.x)
    if len(across) == 1:
        a, b, c = float(across[0]), float(y.place(low)[0]), float(y.place(high)[0])
        return f'<path class="line s{series.colour}" d="M{a:.1f} {b:.1f}V{c:.1f}"/>'
    d = _path(np.append(across, across[::-1]), np.append(y.place(high), y.place(low)[::-1]))
    kind = "fill" if series.fill else "band"
    return f'<path class="{kind} f{series.colour}" d="{d}Z"/>'


def _tips(series: Series, chart: Chart, x: Axis, y: Axis) -> str:
    xs, ys = (np.asarray(part, float) for part in series.tips or (series.x, series.y))
    index = np.unique(np.linspace(0, len(xs) - 1, min(len(xs), MOST_TIPS)).astype(int))
    places = zip(x.place(xs[index]), y.place(ys[index]), xs[index], ys[index], strict=True)
    return "\n".join(
        f'<circle class="tip f{series.colour}" cx="{a:.1f}" cy="{b:.1f}" r="5"><title>'
        f"{escape(_said(series.label, chart, at, value))}</title></circle>"
        for a, b, at, value in places
    )


def _said(label: str, chart: Chart, at: float, value: float) -> str:
    forms: dict[str, Callable[[float], str]] = {"bytes": size, "count": count, "number": _four}
    place = forms[chart.x_kind](float(at))
    return f"{label}: {_four(value)} at {place} ({chart.x_label})"


def _four(value: float) -> str:
    return digits(float(value), 4)


def _stage_line(at: float, x: Axis, y: Axis) -> str:
    if not x.low < at < x.high:
        return ""
    place = float(x.place(at))
    return f'<path class="stage" d="M{place:.1f} {y.start:.1f}V{y.end:.1f}"/>'


def _mark(mark: Mark, chart: Chart, x: Axis, y: Axis) -> str:
    if not (x.low <= mark.x <= x.high and y.low <= mark.y <= y.high):
        return ""
    return (
        f'<circle class="mark f{mark.colour}" cx="{float(x.place(mark.x)):.1f}" '
        f'cy="{float(y.place(mark.y)):.1f}" r="5">'
        f"<title>{escape(_said(mark.label, chart, mark.x, mark.y))}</title></circle>"
    )


def _description(chart: Chart, series: Sequence[Series]) -> str:
    ends = "; ".join(
        f"{s.label} from {_four(s.y[0])} to {_four(s.y[-1])}" for s in series[:COLOURS]
    )
    return f"{chart.title}: {chart.y_label} against {chart.x_label}. {ends}."
