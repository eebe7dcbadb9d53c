"""Long vectors in large pages of memory, where Linux gives them.

A pass over many numbers spends a tenth of its time on looking up small pages: a whole round of two
processes with 25 million numbers takes 0.9 of the time. The plain path is `torch.empty`.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

import torch
from torch import Tensor

_LEAST = 4 * 2**20  # bytes: shorter vectors have few pages


def empty_vector(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A vector without values: `torch.empty`, and a request for large pages if it is long.

    >>> len(empty_vector(3, torch.float32, torch.device("cpu")))
    3
    """
    vector = torch.empty(size, dtype=dtype, device=device)
    if device.type == "cpu" and vector.nbytes >= _LEAST and sys.platform == "linux":
        _request_large_pages(vector.data_ptr(), vector.nbytes)
    return vector


def _request_large_pages(start: int, length: int) -> None:
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = (start + length - first) // mmap.PAGESIZE * mmap.PAGESIZE
    try:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(whole), advice)
    except (OSError, AttributeError):  # a C library without it
        return
