"""Pages from templates: one file each, nothing from the network, for screens, phones and paper."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from codauc._internal.formats import shortened
from codauc.version import __version__

LONGEST = 600  # characters of one text; a page is read, a file is searched
_TURNS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")


class CardTable(NamedTuple):
    """A header and rows of text; `words` are left-aligned and wrap, `whole` does not scroll.

    With `stack` each row is a block on a phone, its cells behind their names. With `samples` a
    sample of the line of that number stands before each row.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: bool = False
    whole: bool = False
    samples: bool = False
    stack: bool = False


class Card(NamedTuple):
    """A heading, how to read what is below it, and a picture or a table."""

    title: str = ""
    caption: str = ""
    picture: Markup = Markup()
    table: CardTable | None = None

    @property
    def shown(self) -> bool:
        """Whether there is anything to see; a page leaves out the other cards."""
        return bool(self.picture or self.table)


def render(template: str, **values: Any) -> str:
    """The text of a template with `values`: escaped in pages and pictures unless `Markup`."""
    return _environment().get_template(template).render(version=__version__, **values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("codauc.report"),
        autoescape=lambda name: name is None or not name.endswith(".md"),
        undefined=StrictUndefined,
        finalize=displayable,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["shortened"] = shortened
    environment.filters["px"] = lambda place: Markup(f"{float(place):.1f}")
    return environment


def displayable(value: Any) -> Any:
    """A value as text of reasonable length in which every character is visible; `Markup` as it is.

    >>> displayable(0.5), len(displayable("x" * 1000))
    ('0.5', 600)
    """
    if isinstance(value, Markup):
        return value
    plain = shortened(str(value), LONGEST).encode("utf-8", "replace").decode("utf-8")
    return "".join("\ufffd" if _hides(character) else character for character in plain)


def _hides(character: str) -> bool:
    """Whether it is a control character, or turns the direction of the text that follows."""
    kind = unicodedata.category(character)
    turns = unicodedata.bidirectional(character) in _TURNS
    return (kind == "Cc" and character not in "\n\t") or turns
