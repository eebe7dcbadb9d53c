"""What is called while a run trains: the progress bar, the files, TensorBoard, your own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from codauc._internal.progress import Progress, note
from codauc.data.dataset import DataSet
from codauc.models.model_file import save_model
from codauc.runs.directory import MODEL, SUMMARY, Record, RunFolder
from codauc.runs.history import History
from codauc.runs.settings import CONFIG, RunSettings


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
        """The model was evaluated on the validation set."""

    def on_keep(self, model: nn.Module, step: int) -> None:
        """The run would return this model if it ended now."""

    def on_end(self, summary: dict[str, Any]) -> None:
        """The run is over."""


class ProgressBar(Callback):
    """The progress bar: stage, rounds, validation AUC, time left."""

    progress: Progress
    auc = ""
    planned, step = 0, 0

    def on_start(self, settings: RunSettings, steps: int) -> None:
        """Begin the line."""
        del settings
        self.planned, self.progress = steps, Progress(steps, label="train")

    def on_step(self, step: int, stage: int, rounds: int) -> None:
        """Draw, if it is time to."""
        self.step, name = step, f"stage {stage}" if stage else "warm start"
        count = f" round {rounds}" if rounds else ""
        self.progress.update(step, f"{name} step {step}{count}{self.auc}")

    def on_record(self, record: Record) -> None:
        """Show the AUC from now on."""
        self.auc = f" AUC {record.auc:.4f}"

    def on_end(self, summary: dict[str, Any]) -> None:
        """End the line; a run that ended since models got no better is complete."""
        if summary.get("finished") and 0 < self.step < self.planned:
            ended = f"ended at step {self.step}, as models got no better{self.auc}"
            self.progress.update(self.planned, ended)
        self.progress.close()


class DirectoryWriter(Callback):
    """Writes the run's directory during the run, so that a killed run is still of use.

    If the disk is full, what could not be written is lost, not the run.
    """

    def __init__(self, folder: RunFolder, opened: DataSet, records: Sequence[Record] = ()) -> None:
        self.folder, self.opened = folder, opened
        self.history = History(folder, records)

    def on_start(self, settings: RunSettings, steps: int) -> None:
        """Write the settings, with which the run can be repeated."""
        del steps
        self.folder.write(CONFIG, settings.to_toml())

    def on_record(self, record: Record) -> None:
        """Add a line to the history."""
        with self._tolerating_errors(record.step):
            self.history.write(record)

    def on_keep(self, model: nn.Module, step: int) -> None:
        """Save the model."""
        with self._tolerating_errors(step):
            save_model(self.folder / MODEL, model, self.opened.encoder)

    def on_end(self, summary: dict[str, Any]) -> None:
        """Write the summary."""
        self.history.write()
        self.folder.write_json(SUMMARY, summary)

    @contextmanager
    def _tolerating_errors(self, step: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            note(f"\nStep {step}: {error.strerror or error}; the run continues.")
            self.folder.note_fault("not written", step=step, reason=str(error))


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
