"""Memory for long vectors, in large pages where the system gives them."""

from __future__ import annotations

import ctypes
import mmap
import sys

import torch
from torch import Tensor

_LEAST = 4 * 2**20  # bytes: shorter vectors have few pages


def empty_vector(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A vector without values.

    A pass over many numbers spends a fifth of its time on looking up small pages, so Linux is asked
    for large ones, which it may refuse; elsewhere the vector is torch's own.

    >>> len(empty_vector(3, torch.float32, torch.device("cpu")))
    3
    """
    vector = torch.empty(size, dtype=dtype, device=device)
    bytes_ = vector.numel() * vector.element_size()
    if device.type == "cpu" and bytes_ >= _LEAST and sys.platform == "linux":
        _ask_for_large_pages(vector.data_ptr(), bytes_)
    return vector


def zero_vector(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The same, of zeros.

    >>> zero_vector(2, torch.float32, torch.device("cpu"))
    tensor([0., 0.])
    """
    return empty_vector(size, dtype, device).zero_()


def _ask_for_large_pages(start: int, length: int) -> None:
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = (start + length - first) // mmap.PAGESIZE * mmap.PAGESIZE
    try:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(whole), advice)
    except (OSError, AttributeError):  # a C library without it
        return
