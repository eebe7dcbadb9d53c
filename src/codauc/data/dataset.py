"""A worker's samples of any source: the one object that readers give and trainers take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from codauc.data.column_record import ColumnRecord
from codauc.data.repeated_values import Examined
from codauc.data.row_sites import RowSites
from codauc.data.shards import ShardCount

if TYPE_CHECKING:
    from codauc.data.tables.encoder import Encoder


@dataclass(frozen=True)
class Part:
    """A worker's samples of one part of a source.

    `x` are the inputs: a tensor [N, ...], or `Rows` to read them from. `y` are the labels, None
    where the source has none, and `rows` the samples' numbers in the source, from 0. `counts` has
    every worker's samples and positives, if all have labels. `encoder` is that of a table or an
    array, and `columns` says of a table's training part how each column was read. `fingerprint` is
    a number of this worker's inputs as they were read; its sum over all workers, modulo 2**64,
    differs for different data. `examined` is what hints are made of. `groups` are numbers of the
    groups that a split keeps together. `notes` say what is odd about data that are read with the
    encoder of a training set. `weights` are how much each sample counts, and `weight_sums` the sums
    of all workers' weights: of positives, and of all. `sites` are those of the rows, if a column
    names them or each worker has a file of its own. `folds` say of which member of an ensemble
    each sample is held out.
    """

    x: Any
    y: Tensor | None
    rows: Tensor = field(repr=False)
    counts: list[ShardCount]
    encoder: Encoder | None = field(default=None, repr=False)
    fingerprint: int = field(default=0, repr=False)
    examined: Examined | None = field(default=None, repr=False)
    columns: tuple[ColumnRecord, ...] = field(default=(), repr=False)
    groups: Tensor | None = field(default=None, repr=False)
    notes: tuple[str, ...] = field(default=(), repr=False)
    weights: Tensor | None = field(default=None, repr=False)
    folds: Tensor | None = field(default=None, repr=False)
    weight_sums: tuple[float, float] = field(default=(0.0, 0.0), repr=False)
    sites: RowSites | None = field(default=None, repr=False)

    @property
    def samples(self) -> int:
        """How many samples all workers have."""
        return sum(count.samples for count in self.counts)

    @property
    def positives(self) -> int:
        """How many of them are positive."""
        return sum(count.positives for count in self.counts)

    @property
    def pos_ratio(self) -> float:
        """The share of positives in the samples of all workers, or in their weights."""
        if self.weights is not None and self.counts:
            return self.weight_sums[0] / self.weight_sums[1]
        if not self.counts:
            raise ValueError("the data has no labels: expected some, for the share of positives.")
        return self.positives / self.samples


@dataclass(frozen=True)
class DataSet:
    """The parts of a source; `watch` names the one that is evaluated during training."""

    train: Part
    validation: Part | None
    test: Part | None
    positive: tuple[str, ...]
    negative: tuple[str, ...]
    shape: tuple[int, ...] = ()  # of an image: channels, height, width
    watch: str = "validation"
    hints: tuple[str, ...] = ()  # what is doubtful of the data, and what to do about it

    @staticmethod
    def of_table(
        train: Part,
        validation: Part | None = None,
        test: Part | None = None,
        watch: str = "validation",
    ) -> DataSet:
        """The parts of a table or an array, whose encoder knows the rest."""
        encoder = train.encoder
        assert encoder is not None
        shape = (len(encoder.numbers), *encoder.shape) if encoder.shape else ()
        target = encoder.target
        return DataSet(train, validation, test, target.positive, target.negative, shape, watch)

    @property
    def encoder(self) -> Encoder | None:
        """The encoder of a table or an array."""
        return self.train.encoder

    @property
    def watched(self) -> Part | None:
        """The part that is evaluated during training."""
        return self.test if self.watch == "test" else self.validation

    def network(self) -> tuple[str, dict[str, Any]]:
        """The name of a network that fits, and the arguments it cannot do without."""
        if self.shape:
            return "convnet", {"in_channels": self.shape[0]}
        assert self.encoder is not None
        return "tabular-ensemble", self.encoder.network()
