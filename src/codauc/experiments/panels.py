"""A panel: curves that stand in one picture, each a point of the study."""

from __future__ import annotations

from typing import NamedTuple

from codauc.experiments.study import Point


class Panel(NamedTuple):
    """A panel's name, its title, and its curves in the order of the legend."""

    name: str
    title: str
    points: tuple[Point, ...]
