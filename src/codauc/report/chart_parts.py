"""The parts that all charts share: the outer element, the legend, a swatch of a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from codauc._internal.formats import shortened
from codauc.report.axes import Axis, tick_labels
from codauc.report.rendering import escape, render

WIDTH, COLOURS = 360.0, 7
LETTER = 6.3  # the width of a letter, about
_ROW, _LONGEST, _GAP = 17.0, 46, 16
_DASHES = ("", "7 3", "2 3", "9 3 2 3")


class Key(NamedTuple):
    """A line of the legend; `shape` is "line", "dot" or "box"."""

    label: str
    colour: int = 0
    dash: int = 0
    shape: str = "line"


def picture(title: str, said: str, height: float, body: Sequence[str]) -> Markup:
    """The outer element; `said` is what it shows, for those who do not see it."""
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(said)}"><title>{escape(title)}</title>\n'
        + "\n".join(part for part in body if part)
        + "\n</svg>"
    )


def side_by_side(title: str, pictures: Sequence[Markup]) -> str:
    """Pictures in a row as one SVG file, with its own style."""
    heights = [int(text.split('viewBox="', 1)[1].split('"')[0].split()[3]) for text in pictures]
    width = round(WIDTH)
    placed = [
        {"x": _GAP + i * (width + _GAP), "width": width, "height": height, "content": text}
        for i, (text, height) in enumerate(zip(pictures, heights, strict=True))
    ]
    size = {"width": len(pictures) * (width + _GAP) + _GAP, "height": max(heights) + 44}
    return render("pictures.svg", title=title, pictures=placed, **size)


def grid(rows: Sequence[float], kind: str, x: Axis, y: Axis) -> list[str]:
    """A rule across for each of `rows`, with its number on the left."""
    return [
        f'<path class="rule" d="M{x.start:.1f} {at:.1f}H{x.end:.1f}"/>'
        f'<text x="{x.start - 6:.1f}" y="{at + 4:.1f}" text-anchor="end">{text}</text>'
        for at, text in zip(y.place(rows), tick_labels(rows, kind), strict=True)
    ]


def legend(keys: Sequence[Key]) -> tuple[str, float]:
    """The legend at the top of a chart, in as many rows as it needs, and its height.

    One line alone needs no legend.
    """
    if len(keys) < 2:
        return "", 0.0
    parts, x, y = [], 2.0, 10.0
    for key in keys:
        width = 28 + min(len(key.label), _LONGEST) * LETTER + 14
        if x > 2 and x + width > WIDTH:
            x, y = 2.0, y + _ROW
        parts.append(entry(key, x, y))
        x += width
    return "\n".join(parts), y + 12


def entry(key: Key, x: float, y: float) -> str:
    """A sample of the line and its name, at (x, y)."""
    return (
        f'{sample(key, x, y)}<text class="key" x="{x + 28:.1f}" y="{y + 4:.1f}">'
        f"{escape(shortened(key.label, _LONGEST))}</text>"
    )


def sample(key: Key, x: float, y: float) -> str:
    """A short piece of what is drawn, 22 wide, at (x, y)."""
    if key.shape == "dot":
        return f'<circle class="mark f{key.colour}" cx="{x + 11:.1f}" cy="{y:.1f}" r="5"/>'
    if key.shape == "box":
        return (
            f'<rect class="f{key.colour}" x="{x + 8:.1f}" y="{y - 5:.1f}" width="11" height="11" '
            'rx="2"/>'
        )
    return f'<path class="line s{key.colour}"{dashes(key.dash)} d="M{x:.1f} {y:.1f}h22"/>'


def dashes(dash: int) -> str:
    """The attribute for the pattern of a line; 0 is an unbroken one.

    >>> dashes(0), dashes(1)
    ('', ' stroke-dasharray="7 3"')
    """
    return f' stroke-dasharray="{_DASHES[dash % 4]}"' if dash % 4 else ""


def swatch(colour: int, dash: int) -> Markup:
    """A sample of a line, to stand before its name in text or a table."""
    return Markup(sample(Key("", colour, dash), 1, 5))
