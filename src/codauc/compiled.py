"""The plain step as one loop over memory, made by the machine's C compiler."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

# For each tensor: momentum, decay, step, pull and average. NULL: none, or a missing gradient.
_SOURCE = """
#define STEP(NAME, REAL) \\
void NAME(long count, const long *sizes, REAL *const *vs, const REAL *const *gs, \\
          const REAL *const *anchors, REAL *const *averages, REAL *const *momenta, \\
          double eta_, double keep_, double pull_, double part_, double beta_, double scale_) { \\
  const REAL eta = eta_, keep = keep_, pull = pull_, part = part_, beta = beta_, scale = scale_; \\
  for (long k = 0; k < count; k++) { \\
    const long n = sizes[k]; \\
    REAL *restrict v = vs[k], *restrict x = averages ? averages[k] : 0; \\
    REAL *restrict m = momenta ? momenta[k] : 0; \\
    const REAL *restrict g = gs[k], *restrict v0 = anchors[k]; \\
    if (g && m) \\
      for (long i = 0; i < n; i++) { \\
        m[i] = beta * m[i] + scale * g[i]; \\
        REAL u = keep * v[i] - eta * m[i]; \\
        v[i] = u + pull * (v0[i] - u); \\
      } \\
    else if (g && !x) \\
      for (long i = 0; i < n; i++) { \\
        REAL u = keep * v[i] - eta * (scale * g[i]); \\
        v[i] = u + pull * (v0[i] - u); \\
      } \\
    else if (g) { \\
      for (long i = 0; i < n; i++) { \\
        REAL u = keep * v[i] - eta * (scale * g[i]); \\
        u = u + pull * (v0[i] - u); \\
        v[i] = u; \\
        x[i] = x[i] + part * (u - x[i]); \\
      } \\
      continue; \\
    } \\
    if (x) \\
      for (long i = 0; i < n; i++) x[i] = x[i] + part * (v[i] - x[i]); \\
  } \\
}
STEP(step_float, float)
STEP(step_double, double)
"""
_NAMES = {torch.float32: "step_float", torch.float64: "step_double"}
_PIECE = 2**20  # numbers: longer tensors are cut, so that threads can share them

Pointers = ctypes.Array[ctypes.c_void_p]


class Numbers(NamedTuple):
    """What a step multiplies by: `keep` is what decay leaves of v, `beta` is momentum's factor."""

    eta: float
    keep: float
    pull: float
    part: float
    beta: float
    scale: float


class Compiled:
    """Makes the loop, once for an optimizer; on the CPU, for float32 and float64.

        v <- (1 - pull) (keep v - eta g) + pull v0,   average <- average + part (v - average)

    Equal to the separate operations to rounding. It takes a fraction of a second, and a C compiler.
    """

    def __init__(self, vectors: Sequence[Tensor]) -> None:
        for vector in vectors:
            if vector.device.type != "cpu" or vector.dtype not in _NAMES:
                raise ValueError(
                    f"compile=True with {vector.dtype} on {vector.device}: expected float32 or "
                    "float64 on the CPU; leave compile out."
                )
        self._library = _library()
        self._threads: ThreadPoolExecutor | None = None

    def loop(self, sizes: Sequence[int], *sides: Tensor | None) -> Loop:
        """The loop over tensors that lie one after the other.

        Beside each: v, the anchor, the average and the momentum, which may be None.
        """
        v = sides[0]
        assert v is not None
        return Loop(self, getattr(self._library, _NAMES[v.dtype]), v.element_size(), sizes, sides)

    def share(self, calls: list[Callable[[], object]]) -> None:
        """Make several calls at a time."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(torch.get_num_threads(), "codauc-step")
        for done in [self._threads.submit(call) for call in calls]:
            done.result()


class Loop:
    """The places in memory of a stretch's tensors, and of what belongs to them."""

    def __init__(
        self,
        made_by: Compiled,
        function: Callable[..., object],
        width: int,
        sizes: Sequence[int],
        sides: Sequence[Tensor | None],
    ) -> None:
        self._made_by, self._function = made_by, function
        starts = [0, *accumulate(sizes)]
        self._pieces = [
            (i, at * width, min(_PIECE, size - at))
            for i, size in enumerate(sizes)
            for at in range(0, size, _PIECE)
        ]
        self._sizes = (ctypes.c_long * len(self._pieces))(*(size for _, _, size in self._pieces))
        offsets = [starts[i] * width + at for i, at, _ in self._pieces]
        self._sides = [side if side is None else self._pointers(side, offsets) for side in sides]

    def _pointers(self, side: Tensor, offsets: list[int]) -> Pointers:
        base = side.data_ptr()
        return (ctypes.c_void_p * len(offsets))(*(base + offset for offset in offsets))

    def step(self, gradients: Sequence[Tensor | None], numbers: Numbers) -> None:
        """One step; gradients lie like their tensors, and a tensor without one is left alone."""
        at = [gradient if gradient is None else gradient.data_ptr() for gradient in gradients]
        found = [None if (p := at[i]) is None else p + offset for i, offset, _ in self._pieces]
        pointers = (ctypes.c_void_p * len(found))(*found)
        factors = [ctypes.c_double(number) for number in numbers]
        v, anchor, average, momentum = self._sides
        arrays = (v, pointers, anchor, average, momentum if numbers.beta else None)
        threads = min(torch.get_num_threads(), len(found))
        if threads == 1:
            self._function(ctypes.c_long(len(found)), self._sizes, *arrays, *factors)
            return
        bounds = [round(k * len(found) / threads) for k in range(threads + 1)]
        parts = [
            (ctypes.c_long(b - a), *(_from(array, a) for array in (self._sizes, *arrays)), *factors)
            for a, b in pairwise(bounds)
        ]
        self._made_by.share([partial(self._function, *part) for part in parts])


def _from(array: Any, first: int) -> Any:
    """The tail of an array."""
    return array and ctypes.byref(array, first * ctypes.sizeof(array._type_))


def _library() -> ctypes.CDLL:
    try:
        return _built()
    except (OSError, ValueError) as error:
        raise RuntimeError(
            f"compile=True: the step could not be built ({error}): see that the variable CC, if "
            "set, names a C compiler; or leave compile out to step without."
        ) from error


def _built() -> ctypes.CDLL:
    compiler = (
        shlex.split(os.environ.get("CC", ""))
        or [found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))][:1]
    )
    if not compiler:
        raise ValueError("no cc, gcc or clang was found")
    with tempfile.TemporaryDirectory(prefix="codauc-") as folder:
        source, target = Path(folder, "step.c"), Path(folder, "step.so")
        source.write_text(_SOURCE, encoding="ascii")
        for native in (["-march=native"], []):  # some compilers do not know it
            command = [
                *compiler,
                "-O3",
                *native,
                "-shared",
                "-fPIC",
                "-o",
                str(target),
                str(source),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return ctypes.CDLL(str(target))
    said = done.stderr.strip()[:200] or f"it ended with {done.returncode}"
    raise ValueError(f"{compiler[0]} failed: {said}")
