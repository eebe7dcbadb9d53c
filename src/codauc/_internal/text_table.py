"""Plain tables for the terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from codauc._internal.terminal import printable


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)
) -> str:
    """Rows under a header; the first column, or those of `left`, to the left, others to the right.

    >>> print(table(["method", "AUC"], [["CoDA", "0.9"], ["PPD-SG", "0.85"]]))
    method   AUC
    ------  ----
    CoDA     0.9
    PPD-SG  0.85
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
