"""What may look on while a run goes: the progress bar, the files, TensorBoard, your own."""

from __future__ import annotations

from typing import Any

from torch import nn

from codauc.config import RunSettings
from codauc.runs import Record


class Callback:
    """Override what you need; worker 0 calls it. An error in it ends the run.

    >>> class Printer(Callback):
    ...     def on_record(self, record):
    ...         print(record.step, record.auc)
    """

    def on_start(self, settings: RunSettings, steps: int) -> None:
        """The data are read and everything is decided; `steps` will be taken."""

    def on_step(self, step: int, stage: int, rounds: int) -> None:
        """A step was taken; `stage` 0 is the warm start."""

    def on_record(self, record: Record) -> None:
        """The validation set was looked at."""

    def on_keep(self, model: nn.Module, step: int) -> None:
        """The run would return this model if it ended now."""

    def on_end(self, summary: dict[str, Any]) -> None:
        """The run is over."""
