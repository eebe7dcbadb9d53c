"""Data that a program holds in memory, which settings cannot name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from codauc._internal.checks import listed
from codauc.data.tables.frames import frame_names, is_frame
from codauc.data.tables.sparse_arrays import is_sparse

IN_MEMORY = "<memory>"  # in place of a path, in the settings of a run


@dataclass(frozen=True, eq=False)
class InMemory:
    """Rows and, unless they are a column of them, labels; `test` is a test set of its own."""

    source: Any
    labels: Any = None
    test: InMemory | None = None

    @property
    def target(self) -> str:
        """The name of the labels beside the rows."""
        usual = "target" if is_frame(self.source) else "labels"
        return str(getattr(self.labels, "name", None) or usual)

    def no_target(self) -> ValueError:
        """The error where neither labels nor their column are given."""
        if is_frame(self.source):
            return ValueError(
                "target is missing: expected the column of labels, one of "
                f"{listed(frame_names(self.source))}; or the labels themselves, one per row."
            )
        return ValueError("target is missing: expected the labels, one per row, target=y.")


def is_in_memory(data: Any) -> bool:
    """Whether it is a frame, an array, a tensor or a sparse matrix.

    >>> is_in_memory(np.zeros((2, 2))), is_in_memory("fraud.csv")
    (True, False)
    """
    return isinstance(data, np.ndarray | Tensor) or is_sparse(data) or is_frame(data)


def cannot_be_found_again() -> ValueError:
    """The error of whoever has only the settings of a run whose data were in memory."""
    return ValueError(
        "the data of this run were in memory, a frame or an array, and cannot be found again: "
        "expected the data themselves. In Python give the frame to codauc.train again, with the "
        "same settings and the run's directory; for the command save the frame, for example as "
        "Parquet, and name this file and the settings on the command line."
    )
