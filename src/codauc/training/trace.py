"""A trace of a few steps, as Chrome and Perfetto show it."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from codauc._internal.files import whole_file
from codauc._internal.progress import note
from codauc.runs.directory import TRACE


class Trace:
    """A trace of some steps. What goes wrong is a message; the run continues."""

    def __init__(self, path: Path) -> None:
        self.path, self.going, self.written = path, False, False
        self._profile: Any = None
        self._label: Any = None

    def start(self, device: torch.device) -> None:
        """Begin."""
        kind = device.type if device.type in ("cuda", "xpu") else None
        try:
            # what torch.profiler is made of; the latter would first import torch's compiler
            prepare()
            self._profile = torch.autograd.profiler.profile(use_device=kind, use_kineto=True)
            self._profile.__enter__()
            self.going = True
        except Exception as error:  # another profiler may be at work
            self._report(error)

    def label(self, name: str) -> None:
        """Give what follows the name of its section."""
        if self._label is not None:
            self._label.__exit__(None, None, None)
        self._label = torch.autograd.profiler.record_function(f"codauc: {name}")
        self._label.__enter__()

    def stop(self) -> None:
        """End, and write the file."""
        if not self.going:
            return
        self.going = False
        try:
            if self._label is not None:
                self._label.__exit__(None, None, None)
            self._profile.__exit__(None, None, None)
            with whole_file(self.path, "the trace") as partial_file:
                self._profile.export_chrome_trace(str(partial_file))
            self.written = True
        except Exception as error:  # a full disk, or an odd build of torch
            self._report(error)

    def _report(self, error: Exception) -> None:
        note(f"\nNo {TRACE} ({error}); the run continues.")


@cache
def prepare() -> None:
    """Start torch's profiler once, before there are threads of workers.

    It warns if its first use is in another thread than the one that imported torch.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would log when it starts and ends
    with suppress(Exception), torch.autograd.profiler.profile(use_kineto=True):
        pass
