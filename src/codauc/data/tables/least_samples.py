"""What a worker may tell of its rows where no statistic may be of fewer than so many samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from codauc.data.tables.column_statistics import Moments, Summary, Traits, Value


def told(summary: Summary, least: int) -> Summary:
    """The summary without what fewer than `least` samples are behind.

    - The mean and deviation of a column with fewer values are left out, and fewer missing values
      are not told of: the column counts as without.
    - Values of a category that come less often are left out, together; if they are still too few,
      so is the rarest of the others. They count as unseen.
    - Least and largest values are those of single rows, and marks by which ids are recognised can
      be guessed: none are told.

    `hidden` counts the columns of which something was left out.
    """
    categories = [_frequent(counts, least) for counts in summary.categories]
    pairs = zip(categories, summary.categories, strict=True)
    hidden = sum(len(new) < len(old) for new, old in pairs)
    moments, changed = _moments(summary.moments, summary.rows, least)
    traits = Traits(len(summary.traits.flag))
    traits.flag, traits.hashes = summary.traits.flag, {}
    return replace(
        summary, moments=moments, categories=categories, traits=traits, hidden=hidden + changed
    )


def _frequent(counts: Mapping[Value, int], least: int) -> dict[Value, int]:
    kept = {value: count for value, count in counts.items() if count >= least}
    rest = sum(counts.values()) - sum(kept.values())
    if 0 < rest < least and kept:
        del kept[min(kept, key=lambda value: (kept[value], str(value)))]
    return kept


def _moments(moments: Moments, rows: int, least: int) -> tuple[Moments, int]:
    found = Moments(len(moments.count))
    few, nearly = moments.count < least, (moments.count < rows) & (rows - moments.count < least)
    found.count = np.where(few, 0.0, np.where(nearly, rows, moments.count))
    found.mean = np.where(few, 0.0, moments.mean)
    found.squares = np.where(few, 0.0, moments.squares)
    return found, int((found.count != moments.count).sum())


def check_labels(counts: Mapping[Value, int], least: int, what: str) -> None:
    """Raise where a label has rows, but too few: counts and sums of each class leave a worker."""
    few = [value for value, count in counts.items() if 0 < count < least]
    if few:
        raise ValueError(
            f"fewer than {least} of {what} have the label {few[0]!r}: expected none, or at least "
            f"as many as least_samples={least} asks for, since counts, sums and gradients of each "
            "class leave a worker; put sites together with fewer workers, leave this one out, or "
            "ask for less."
        )


def hidden_note(columns: int, least: int) -> str:
    """What a person should know of what was left out."""
    return (
        f"least_samples={least}: something of {columns} columns is left out, such as values of a "
        f"category in fewer than {least} rows of a worker, which count as unseen. Ids are not "
        "recognised: leave them out by name with drop=COLUMN."
    )
