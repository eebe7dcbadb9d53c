"""Text for the terminal: what files hold must not move the cursor, hide words or change titles."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    r"""`text` in one line, with what is no letter, digit, mark or space as an escape.

    Control characters, and those that hide text or turn its direction, are escaped; letters of
    all languages stay.

    >>> print(printable("naïve \x1b[2J\r\n\u202eevil"))
    naïve \x1b[2J\r\n\u202eevil
    """
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape").decode()


def printable_lines(text: str) -> str:
    r"""`text` with its lines kept; see `printable`.

    >>> print(printable_lines("one\n\x07two"))
    one
    \x07two
    """
    return "\n".join(map(printable, text.split("\n")))


def message_lines(text: str) -> str:
    r"""A message in which no line but the first begins at the margin, as if it were one of its own.

    >>> print(message_lines("cannot be read:\ncodauc train: \x1b[1mall is well"))
    cannot be read:
      codauc train: \x1b[1mall is well
    """
    return printable_lines(text).replace("\n", "\n  ")
