"""The interface by which a training loop says which part of its work it does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, TypeVar

from codauc.algorithm.engine import CoDA

T = TypeVar("T")

# A section of the time of training. "apart" is inside a collective, while others may compute.
_Step = Literal["reading", "forward", "loss", "backward", "step", "round", "apart", "rest"]
_Between = Literal["window", "stage", "evaluation", "files", "checkpoint", "trace"]
Section = _Step | _Between


class Observer:
    """Override what you need: the loop enters a section for each part of its work."""

    def section(self, name: Section) -> AbstractContextManager[None]:
        """Inside this block the time belongs to the section `name`."""
        del name
        return nullcontext()

    def reading(self, batches: Iterator[T]) -> Iterator[T]:
        """The same batches; the time to get one belongs to "reading"."""
        return batches

    def on_step(self) -> None:
        """A step was taken."""

    def measuring(self, coda: CoDA) -> AbstractContextManager[None]:
        """Training happens inside this block."""
        del coda
        return nullcontext()
