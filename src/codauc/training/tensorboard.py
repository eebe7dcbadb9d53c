"""A run's history for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from codauc.runs.directory import Record
from codauc.training.callbacks import Callback


class TensorBoard(Callback):
    """Writes every number of every record as a scalar, and the end's AUC with the settings."""

    def __init__(self, folder: Path, records: Sequence[Record] = ()) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(
                f"TensorBoard's events cannot be written ({error}): install tensorboard, or leave "
                "out tensorboard=True."
            ) from error
        again = {"purge_step": records[-1].step + 1} if records else {}
        self.writer: Any = SummaryWriter(folder / "tensorboard", **again)

    def on_record(self, record: Record) -> None:
        """One point of each curve."""
        plain = asdict(record)
        step = plain.pop("step")
        for name, value in plain.items():
            if value is not None and not isinstance(value, bool):
                self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def on_end(self, summary: dict[str, Any]) -> None:
        """The test set's numbers."""
        for name in ("test_auc", "average_precision"):
            if summary.get(name) is not None:
                self.writer.add_scalar(name, summary[name], summary["steps"])
        self.writer.close()
