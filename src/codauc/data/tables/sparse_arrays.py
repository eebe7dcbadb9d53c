"""Sparse matrices as arrays that are dense a few rows at a time."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CELLS = 1 << 19  # dense values at a time: 4 MB


def is_sparse(data: Any) -> bool:
    """Whether it is a sparse matrix or array of scipy, which need not be installed."""
    scipy = sys.modules.get("scipy.sparse")
    return scipy is not None and bool(scipy.issparse(data))


class SparseArray:
    """A sparse matrix with what a reader of arrays asks of one; rows come dense.

    Zeros are values, as in a dense array: they count in means, and rows are centred. But a column
    is scaled by std / sqrt(q), with q the share of its values that are not zero: its few values
    then have the size 1, not 1 / sqrt(q), and rare words do not drown the others. For a column
    without zeros this is the standard deviation.

    >>> from scipy.sparse import csc_array
    >>> rows = SparseArray(csc_array(np.array([[0, 3], [4, 0]])))
    >>> rows[np.array([1, 0])].tolist(), rows.shape
    ([[4, 0], [0, 3]], (2, 2))
    """

    ndim = 2

    def __init__(self, matrix: Any) -> None:
        if matrix.ndim != 2:
            raise ValueError(
                f"a sparse array of shape {list(matrix.shape)}: expected [N, features]."
            )
        self.matrix = matrix.tocsr()
        if not self.matrix.has_canonical_format:  # several values of one place are their sum
            self.matrix = self.matrix.copy()
            self.matrix.sum_duplicates()
        self.shape: tuple[int, int] = tuple(self.matrix.shape)
        self.dtype: np.dtype[Any] = self.matrix.dtype
        self.rows_at_a_time = max(_CELLS // max(self.shape[1], 1), 1)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """The bytes of what is stored."""
        parts = (self.matrix.data, self.matrix.indices, self.matrix.indptr)
        return sum(int(part.nbytes) for part in parts)

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """These rows, dense."""
        dense: NDArray[Any] = self.matrix[rows].toarray()
        return dense

    def share_not_zero(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """q of each column, by these rows; 1 where all values are zero or missing."""
        chosen, columns = self.matrix[rows], self.shape[1]
        missing = np.isnan(chosen.data)
        some = np.bincount(chosen.indices[(chosen.data != 0) & ~missing], minlength=columns)
        known = len(rows) - np.bincount(chosen.indices[missing], minlength=columns)
        return np.where(some > 0, some / np.maximum(known, 1), 1.0)
