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

    All zeros are there, as in a dense array: they count in means and standard deviations, and
    rows are centred. So a model is the same as that of the dense array.

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
