"""How values of a CSV are written, as frozen data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Locale:
    """What is known of a CSV beside its content: asked for, or found in training.

    `decimal` is "." or ",", `dayfirst` whether 01/02/2024 is in February, `na_values` are further
    texts that are missing values, `encoding` is that of the file; None is for what must be found.
    """

    decimal: str | None = None
    dayfirst: bool | None = None
    na_values: tuple[str, ...] = ()
    encoding: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "na_values", tuple(map(str, self.na_values)))


PLAIN = Locale(".")  # of files that are no CSV
