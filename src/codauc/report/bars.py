"""Bars: one for each of many, and one that is cut into parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from codauc.report.axes import Axis, tick_labels, ticks
from codauc.report.formats import share, shortened
from codauc.report.html import escape
from codauc.report.shapes import LETTER, WIDTH, Key, entry, picture

_HEIGHT = 220.0
_PITCH, _LONGEST_NAME = 21.0, 24  # of rows


def bar_chart(
    title: str,
    x_label: str,
    y_label: str,
    values: Sequence[float],
    *,
    colour: int = 0,
    form: Callable[[float], str] = str,
    kind: str = "count",
    level: float | None = None,
) -> str:
    """A bar for each value, numbered from 0; `level` is a line across, `form` words a value."""
    if not values:
        return ""
    highest = max(max(values), level or 0.0) or 1.0
    rows = ticks(0, highest * 1.05, 5)
    left = 12 + max(map(len, tick_labels(rows, kind))) * LETTER
    y = Axis(0, highest * 1.05, _HEIGHT - 40, 24)
    x = Axis(-0.5, len(values) - 0.5, left, WIDTH - 10)
    body = [_grid(rows, kind, x, y), *_bars(values, colour, x, y, x_label, form)]
    numbers = [value for value in ticks(0, len(values), 8) if value == int(value) < len(values)]
    body += [
        f'<text x="{at:.1f}" y="{y.start + 17:.1f}" text-anchor="middle">{number:.0f}</text>'
        for at, number in zip(x.place(numbers), numbers, strict=True)
    ]
    if level is not None:
        at = float(y.place(level))
        body.append(f'<path class="axis" stroke-dasharray="4 3" d="M{left:.1f} {at:.1f}H{x.end}"/>')
    body.append(
        f'<text x="2" y="14">{escape(y_label)}</text>'
        f'<text x="{(x.start + x.end) / 2:.1f}" y="{y.start + 35:.1f}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )
    told = f"{title}: {len(values)} bars, from {form(min(values))} to {form(max(values))}."
    return picture(title, told, _HEIGHT, body)


def _grid(rows: Sequence[float], kind: str, x: Axis, y: Axis) -> str:
    return "\n".join(
        f'<path class="rule" d="M{x.start:.1f} {at:.1f}H{x.end:.1f}"/>'
        f'<text x="{x.start - 6:.1f}" y="{at + 4:.1f}" text-anchor="end">{text}</text>'
        for at, text in zip(y.place(rows), tick_labels(rows, kind), strict=True)
    )


def _bars(
    values: Sequence[float], colour: int, x: Axis, y: Axis, name: str, form: Callable[[float], str]
) -> list[str]:
    pitch = (x.end - x.start) / len(values)
    width = min(pitch * 0.76, 44.0) if pitch > 3 else pitch
    return [
        f'<rect class="f{colour}" x="{at - width / 2:.2f}" y="{top:.1f}" width="{width:.2f}" '
        f'height="{max(y.start - top, 0):.1f}"><title>{escape(name)} {i}: {escape(form(value))}'
        "</title></rect>"
        for i, (at, top, value) in enumerate(
            zip(x.place(range(len(values))), y.place(values), values, strict=True)
        )
    ]


def row_chart(title: str, rows: Sequence[tuple[str, float, str]], colour: int = 0) -> str:
    """A bar to the right for each name and value, and a text behind it; nothing without a bar."""
    longest = max((value for _, value, _ in rows), default=0.0)
    if not longest > 0:
        return ""
    left = 8 + max(min(len(name), _LONGEST_NAME) for name, *_ in rows) * LETTER
    room = WIDTH - left - 8 - max(len(text) for *_, text in rows) * LETTER
    body = []
    for i, (name, value, text) in enumerate(rows):
        y, width = 4 + _PITCH * i, room * value / longest
        body.append(
            f'<text class="key" x="{left - 6:.1f}" y="{y + 12:.1f}" text-anchor="end">'
            f"{escape(shortened(name, _LONGEST_NAME))}</text>"
            f'<rect class="f{colour}" x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="15"/>'
            f'<text x="{left + width + 5:.1f}" y="{y + 12:.1f}">{escape(text)}</text>'
        )
    said = "; ".join(f"{name}: {text}" for name, _, text in rows)
    return picture(title, f"{title}: {said}.", 6 + _PITCH * len(rows), body)


def stacked_bar(
    title: str, parts: Sequence[tuple[str, float]], form: Callable[[float], str]
) -> str:
    """One bar cut into `parts`, each with its amount and share; nothing if they add up to 0."""
    total = sum(value for _, value in parts)
    if not total > 0:
        return ""
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
