"""One line in the output of a notebook's cell, replaced in place; no widgets are needed."""

from __future__ import annotations

import sys
from contextlib import suppress
from html import escape
from typing import Any

_CELLS = 30  # of the bar, where only text is shown
_latest: tuple[int, int, NotebookLine] | None = None  # the cell, by its shell and number


class NotebookLine:
    """A bar and a text beside it, as HTML, and as plain text where HTML is not shown."""

    def __init__(self, display: Any) -> None:
        self._display, self._handle = display, None
        self._share = 0.0

    def show(self, text: str, share: float | None = None) -> None:
        """Replace what is there; without a `share` of the way the bar stays where it is."""
        self._share = self._share if share is None else min(max(share, 0.0), 1.0)
        shown = {"text/html": self._html(text), "text/plain": self._plain(text)}
        with suppress(Exception):  # a page that cannot be reached is no reason to stop a run
            if self._handle is None:
                self._handle = self._display(shown, raw=True, display_id=True)
            else:
                self._handle.update(shown, raw=True)

    def _html(self, text: str) -> str:
        return (
            '<div style="display:flex;flex-wrap:wrap;gap:4px 10px;align-items:center">'
            f'<progress value="{self._share:.3f}" max="1" style="width:16em"></progress>'
            f'<span style="font-variant-numeric:tabular-nums">{escape(text)}</span></div>'
        )

    def _plain(self, text: str) -> str:
        return f"[{'#' * round(_CELLS * self._share):.<{_CELLS}}] {text}"


def in_notebook() -> bool:
    """Whether this runs in a cell of a notebook: in a kernel of IPython, not in its terminal."""
    return _shell() is not None


def notebook_line() -> NotebookLine | None:
    """The line of the cell that is running, one for each cell; None outside a notebook."""
    global _latest
    shell = _shell()
    if shell is None:
        return None
    cell = (id(shell), int(shell.execution_count))
    if _latest is None or _latest[:2] != cell:
        _latest = (*cell, NotebookLine(sys.modules["IPython.display"].display))
    return _latest[2]


def _shell() -> Any:
    """IPython's shell, if a kernel runs it; IPython itself is never imported here."""
    ipython = sys.modules.get("IPython")
    get = getattr(ipython, "get_ipython", None)
    shell = None if get is None else get()
    ready = hasattr(shell, "kernel") and "IPython.display" in sys.modules
    return shell if ready else None
