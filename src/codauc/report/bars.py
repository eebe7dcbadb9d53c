"""Bars: one for each of many, and one that is cut into parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from codauc._internal.formats import share, shortened
from codauc.report.axes import Axis, tick_labels, ticks
from codauc.report.chart_parts import LETTER, WIDTH, Key, entry, grid, picture
from codauc.report.rendering import escape

_HEIGHT = 220.0
_PITCH, _LONGEST_NAME = 21.0, 28  # of rows


@dataclass(frozen=True)
class BarChart:
    """A bar for each value, numbered from 0.

    `form` writes a value in words, `kind` is that of the y axis, `level` is a line across.
    """

    title: str
    x_label: str
    y_label: str
    values: Sequence[float]
    colour: int = 0
    form: Callable[[float], str] = str
    kind: str = "count"
    level: float | None = None


def bar_chart(chart: BarChart) -> Markup:
    """The chart as an <svg>; nothing without a value."""
    values, form = chart.values, chart.form
    if not values:
        return Markup()
    highest = max(max(values), chart.level or 0.0) or 1.0
    rows = ticks(0, highest * 1.05, 5)
    left = 12 + max(map(len, tick_labels(rows, chart.kind))) * LETTER
    y = Axis(0, highest * 1.05, _HEIGHT - 40, 24)
    x = Axis(-0.5, len(values) - 0.5, left, WIDTH - 10)
    body = [*grid(rows, chart.kind, x, y), *_bars(chart, x, y)]
    numbers = [value for value in ticks(0, len(values), 8) if value == int(value) < len(values)]
    body += [
        f'<text x="{at:.1f}" y="{y.start + 17:.1f}" text-anchor="middle">{number:.0f}</text>'
        for at, number in zip(x.place(numbers), numbers, strict=True)
    ]
    if chart.level is not None:
        at = float(y.place(chart.level))
        body.append(f'<path class="axis" stroke-dasharray="4 3" d="M{left:.1f} {at:.1f}H{x.end}"/>')
    body.append(
        f'<text x="2" y="14">{escape(chart.y_label)}</text>'
        f'<text x="{(x.start + x.end) / 2:.1f}" y="{y.start + 35:.1f}" text-anchor="middle">'
        f"{escape(chart.x_label)}</text>"
    )
    said = f"{chart.title}: {len(values)} bars, from {form(min(values))} to {form(max(values))}."
    return picture(chart.title, said, _HEIGHT, body)


def _bars(chart: BarChart, x: Axis, y: Axis) -> list[str]:
    values = chart.values
    pitch = (x.end - x.start) / len(values)
    width = min(pitch * 0.76, 44.0) if pitch > 3 else pitch
    return [
        f'<rect class="f{chart.colour}" x="{at - width / 2:.2f}" y="{top:.1f}" '
        f'width="{width:.2f}" height="{max(y.start - top, 0):.1f}"><title>'
        f"{escape(chart.x_label)} {i}: {escape(chart.form(value))}</title></rect>"
        for i, (at, top, value) in enumerate(
            zip(x.place(range(len(values))), y.place(values), values, strict=True)
        )
    ]


def row_chart(
    title: str, rows: Sequence[tuple[str, float, str]], *, heading: bool = False
) -> Markup:
    """A bar to the right for each name and value, and a text behind it; nothing without a bar.

    With `heading` the title stands above, and each bar has a colour of its own.
    """
    longest = max((value for _, value, _ in rows), default=0.0)
    if not longest > 0:
        return Markup()
    left = 8 + max(min(len(name), _LONGEST_NAME) for name, *_ in rows) * 1.1 * LETTER
    room = WIDTH - left - 8 - max(len(text) for *_, text in rows) * LETTER
    top = 24 if heading else 4
    body = [f'<text class="key" x="2" y="13">{escape(title)}</text>'] if heading else []
    for i, (name, value, text) in enumerate(rows):
        y, width, colour = top + _PITCH * i, room * value / longest, i if heading else 0
        body.append(
            f'<text class="key" x="{left - 6:.1f}" y="{y + 12:.1f}" text-anchor="end">'
            f"{escape(shortened(name, _LONGEST_NAME))}</text>"
            f'<rect class="f{colour}" x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="15"/>'
            f'<text x="{left + width + 5:.1f}" y="{y + 12:.1f}">{escape(text)}</text>'
        )
    said = "; ".join(f"{name}: {text}" for name, _, text in rows)
    return picture(title, f"{title}: {said}.", top + 2 + _PITCH * len(rows), body)


def stacked_bar(
    title: str, parts: Sequence[tuple[str, float]], form: Callable[[float], str]
) -> Markup:
    """One bar cut into `parts`, each with its amount and share; nothing if they add up to 0."""
    total = sum(value for _, value in parts)
    if not total > 0:
        return Markup()
    body, x, said = [], 2.0, []
    for colour, (name, value) in enumerate(parts):
        width = (WIDTH - 4) * value / total
        said.append(f"{name}: {form(value)} ({share(value / total)})")
        body.append(
            f'<rect class="f{colour}" x="{x:.1f}" y="4" width="{width:.1f}" height="30">'
            f"<title>{escape(said[-1])}</title></rect>"
        )
        x += width
    body += [entry(Key(text, i, shape="box"), 0, 54 + 20 * i) for i, text in enumerate(said)]
    return picture(title, f"{title}: {'; '.join(said)}.", 52 + 20 * len(parts), body)
