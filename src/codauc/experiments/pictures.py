"""A study's pictures: the two plots of each panel, and what the target costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from codauc.experiments import headline
from codauc.experiments.panels import Panel
from codauc.experiments.results import Link, Results
from codauc.experiments.study import Point
from codauc.report.formats import count, size
from codauc.report.html import STYLE, escape
from codauc.report.shapes import WIDTH, picture
from codauc.report.svg import Chart, Series, line_chart

_ROW, _LEFT, _GAP = 26.0, 150.0, 16.0


def charts(panel: Panel, results: Results, link: Link) -> list[str]:
    """AUC against iterations and against modelled time, the mean over seeds with their range."""
    known = [(i, point) for i, point in enumerate(panel.points) if point in results]
    axes = [
        ("step", "iterations", "iterations", "count"),
        ("seconds", "time", f"modelled seconds ({link.text})", "number"),
    ]
    found = []
    for field, name, label, kind in axes:
        series = [_series(point, i, results, field) for i, point in known]
        chart = Chart(
            title=f"{panel.title}: test AUC against {name}",
            x_label=label,
            y_label="test AUC",
            series=series,
            x_kind=kind,
            log_x=field == "seconds",
            y_limits=(0.0, 1.0),
        )
        found.append(line_chart(chart))
    return [text for text in found if text]


def _series(point: Point, i: int, results: Results, field: str) -> Series:
    curve = results.mean_curve(point)
    many = len(results.looks[point]) > 1
    return Series(
        point.label,
        curve[field],
        curve["auc"],
        low=curve["low"] if many else None,
        high=curve["high"] if many else None,
        colour=i,
        dash=i % 4,
    )


def cost_bars(results: Results) -> list[str]:
    """Rounds and bytes to the target of NP-PPD-SG, CoDA and data parallel cross-entropy."""
    known = {p: text for p, text in headline.LABELS.items() if p in results}
    forms = {"rounds": ("Rounds to the target AUC", count), "bytes": ("Bytes a worker sends", size)}
    found = []
    for what, (title, form) in forms.items():
        values = {text: results.needed(point, what) for point, text in known.items()}
        bars = [(text, None if v is None else v.mean) for text, v in values.items()]
        if sum(value is not None for _, value in bars) > 1:
            texts = ["does not reach it" if value is None else form(value) for _, value in bars]
            found.append(_bars(title, bars, texts))
    return found


def _bars(title: str, bars: Sequence[tuple[str, float | None]], texts: Sequence[str]) -> str:
    """Lying bars on a logarithmic scale; each ends with its amount."""
    amounts = [value for _, value in bars if value]
    low = 10 ** math.floor(math.log10(min(amounts)) - 0.3)
    span = math.log10(max(amounts) / low)
    room = WIDTH - _LEFT - 70
    body = [f'<text class="key" x="2" y="13">{escape(title)} (logarithmic)</text>']
    for i, ((name, value), text) in enumerate(zip(bars, texts, strict=True)):
        y = 24 + i * _ROW
        width = room * math.log10(value / low) / span if value else 0.0
        body.append(
            f'<text x="{_LEFT - 6:.0f}" y="{y + 13:.1f}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="f{i}" x="{_LEFT:.0f}" y="{y:.1f}" width="{width:.1f}" height="18" '
            f'rx="2"><title>{escape(name)}: {escape(text)}</title></rect>'
            f'<text class="key" x="{_LEFT + width + 6:.1f}" y="{y + 13:.1f}">{escape(text)}</text>'
        )
    told = "; ".join(f"{name}: {text}" for (name, _), text in zip(bars, texts, strict=True))
    return picture(title, f"{title}: {told}.", 30 + _ROW * len(bars), body)


def side_by_side(title: str, pictures: Sequence[str]) -> str:
    """Pictures in a row as one SVG file, with its own style."""
    heights = [_height(text) for text in pictures]
    width, height = len(pictures) * (WIDTH + _GAP) + _GAP, max(heights) + 44
    inner = [
        text.replace(
            "<svg ",
            f'<svg x="{_GAP + i * (WIDTH + _GAP):.0f}" y="36" '
            f'width="{WIDTH:.0f}" height="{high:.0f}" ',
            1,
        )
        for i, (text, high) in enumerate(zip(pictures, heights, strict=True))
    ]
    font = 'text{font-family:system-ui,"Liberation Sans",Arial,sans-serif}'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}"><style>{_plain(STYLE)}{font}</style>\n'
        f'<rect width="100%" height="100%" fill="var(--card)"/>\n'
        f'<text class="key" x="{_GAP:.0f}" y="22" style="font-size:14px">{escape(title)}</text>\n'
        + "\n".join(inner)
        + "\n</svg>\n"
    )


def _height(text: str) -> float:
    return float(text.split('viewBox="', 1)[1].split('"', 1)[0].split()[3])


def _plain(style: str) -> str:
    """The page's style without what only a page has; an SVG file is XML."""
    kept = [line for line in style.splitlines() if line.startswith((":root{", "--", "svg"))]
    return escape("\n".join(_light(kept)), most=10**6)


def _light(lines: list[str]) -> list[str]:
    """Without the lines of the dark colours, which come second."""
    seen, found = set(), []
    for line in lines:
        name = line.split(":", 1)[0]
        if line.startswith("--") and name in seen:
            continue
        seen.add(name)
        found.append(line)
    return found
