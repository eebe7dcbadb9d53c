"""A worker's rows of a table, packed into one matrix: in memory, or on disk when it is large."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codauc.data.repeated_values import Examiner
from codauc.data.rows import Rows, block_of
from codauc.data.tables.column_roles import TableRequest
from codauc.data.tables.column_statistics import Floats, Moments, Summary, Traits, Value
from codauc.data.tables.date_parts import WAVES
from codauc.data.tables.encoder import Columns, Encoder
from codauc.data.tables.sparse_arrays import SparseArray

Matrix = NDArray[Any]

_FAR = 1e30  # units, that float32 can hold
_TEXTS = 100_000  # different texts from which on a column is no category
_SHORT = (np.float32, np.float16, np.int16, np.uint8, np.int8, np.bool_)  # exact in float32


class Vocabulary:
    """The texts of one column in the order in which they came, and how often each did."""

    def __init__(self) -> None:
        self.codes: dict[Value, int] = {}
        self.counts: list[int] = []
        self.full = False  # of so many texts that it is no category

    def encode(self, values: Sequence[Value], which: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        """The codes of `values[which]`."""
        if self.full:
            return np.zeros(len(which), np.int64)
        used = np.bincount(which, minlength=len(values))
        table = np.zeros(len(values), np.int64)
        for i in np.flatnonzero(used).tolist():
            code = self.codes.setdefault(values[i], len(self.codes))
            if code == len(self.counts):
                self.counts.append(0)
            self.counts[code] += int(used[i])
            table[i] = code
        self.full = len(self.codes) > _TEXTS
        codes: NDArray[np.int64] = table[which]
        return codes

    def as_counts(self) -> dict[Value, int]:
        """How often each text came."""
        return dict(zip(self.codes, self.counts, strict=True))


class Packer:
    """Takes rows in and keeps them as float32, numbers first, then codes of its own vocabularies.

    Beyond `memory` bytes the rows go to a file in `folder` that has no name any more, so that
    nothing is left behind however the program ends. Numbers are kept as (x - shift) / unit, since
    float32 alone would not tell the minutes of a date apart: with an `encoder` its mean and
    standard deviation, so that a row does not depend on others, else the median and the spread of
    a column's first values.
    """

    def __init__(
        self, columns: Columns, request: TableRequest, encoder: Encoder | None = None
    ) -> None:
        plain, waves = len(columns.numbers), len(WAVES) * len(columns.parts)
        self.columns, self.traits = columns, Traits(plain)
        self.moments = Moments(plain + waves)
        self.vocabularies = [Vocabulary() for _ in columns.categories]
        self.width, self.rows = plain + waves + len(columns.categories), 0
        self.request, self.memory, self.folder = request, request.memory, request.folder
        self.shift, self.unit = np.full(plain, np.nan), np.ones(plain)
        self.encoder = encoder
        if encoder is not None:
            self.shift, self.unit = encoder.means(), encoder.stds()
        self.shift = np.concatenate([self.shift, np.zeros(waves)])
        self.unit = np.concatenate([self.unit, np.ones(waves)])
        self.examiner: Examiner | None = None
        self._parts: list[NDArray[np.float32]] = []
        self._file: IO[bytes] | None = None

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, numbers: Floats, codes: Sequence[NDArray[np.int64]]) -> None:
        """Take in rows: numbers, cycles of dates, and codes; NaN is a missing number."""
        self.moments.add(numbers)
        if self.encoder is None:
            self.traits.add(numbers[:, : len(self.columns.numbers)])
        for column in np.flatnonzero(np.isnan(self.shift)).tolist():
            self._measure(column, numbers[:, column])
        block = np.empty((len(numbers), self.width), np.float32)
        apart = numbers - self.shift
        with np.errstate(all="ignore"):  # a column that is still of nothing is NaN
            far = np.nanmax(np.abs(apart), axis=0, initial=0.0)
            for column in np.flatnonzero(far > _FAR * self.unit).tolist():
                self._widen(column, float(far[column]))
            apart *= 1 / self.unit
            block[:, : numbers.shape[1]] = apart
        for column, values in enumerate(codes, numbers.shape[1]):
            block[:, column] = values
        self.rows += len(block)
        self._parts.append(block)
        if self.rows * self.width * 4 > self.memory:
            self._to_disk()

    def _measure(self, column: int, values: Floats) -> None:
        """Choose a column's shift and unit from the first values it has, outliers or not."""
        there = values[~np.isnan(values)]
        if len(there):
            self.shift[column] = np.median(there)
            spread = float(np.median(np.abs(there - self.shift[column]))) or float(there.std())
            self.unit[column] = max(spread, 1e-290) if spread else 1.0

    def _widen(self, column: int, size: float) -> None:
        """Take a larger unit, where values came that float32 would not hold in the old one."""
        unit = size / _FAR
        for part in self._parts:
            part[:, column] *= self.unit[column] / unit
        if self._file is not None:
            shape = (self.rows - sum(map(len, self._parts)), self.width)
            kept = np.memmap(self._file, np.float32, "r+", shape=shape)
            kept[:, column] *= self.unit[column] / unit
            kept.flush()
        self.unit[column] = unit

    def _to_disk(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115
            for part in self._parts:
                rest = part.data.cast("B")
                while len(rest):  # a single write may take less
                    rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise OSError(
                error.errno,
                f"rows beyond {self.memory} bytes of memory cannot be kept in "
                f"{self.folder or tempfile.gettempdir()} ({error.strerror}): this worker has "
                f"{self.rows * self.width * 4 / 1e9:.1f} GB of them so far; make room there, or "
                "name another folder in the environment variable TMPDIR",
            ) from error
        self._parts = []

    def encoded(self, encoder: Encoder) -> Tensor | EncodedRows:
        """All rows: encoded at once from memory, when asked for from disk. Ends the packing."""
        reals, texts = self._places(encoder)
        pairs = zip(encoder.categories, texts, strict=True)
        lookups = [category.codes(list(self.vocabularies[i].codes)) for category, i in pairs]
        shift = np.nan_to_num(self.shift)  # of a column of nothing it is still NaN
        coder = Coder(encoder, np.dtype(np.float32), shift[reals], self.unit[reals], lookups)
        coder.pick([*reals, *(len(self.shift) + i for i in texts)], self.width)
        if self._file is None:
            self._parts.reverse()
            parts = (self._parts.pop() for _ in range(len(self._parts)))
            return coder.encode_all(parts, self.rows)
        matrix = np.memmap(self._file, np.float32, "r", shape=(self.rows, self.width))
        return EncodedRows(matrix, coder)

    def _places(self, encoder: Encoder) -> tuple[list[int], list[int]]:
        """Which of the packed numbers and cycles, and which of the categories, are inputs."""
        columns, waves = self.columns, len(WAVES)
        numbers = {number.name for number in encoder.numbers}
        categories = {category.name for category in encoder.categories}
        reals = [i for i, name in enumerate(columns.numbers) if name in numbers]
        for i, part in enumerate(columns.parts):
            if part in encoder.parts:
                first = len(columns.numbers) + waves * i
                reals += range(first, first + waves)
        return reals, [i for i, name in enumerate(columns.categories) if name in categories]

    def summary(self) -> Summary:
        """What the rows taken in tell."""
        categories = [vocabulary.as_counts() for vocabulary in self.vocabularies]
        full = {i for i, vocabulary in enumerate(self.vocabularies) if vocabulary.full}
        return Summary(self.rows, self.moments, categories, traits=self.traits, full=full)


class Coder:
    """An encoder, made ready for raw rows of one kind.

    Raw rows are numbers as (x - `shift`) / `unit`, then codes of which `lookups` give the
    encoder's; or images.
    """

    def __init__(
        self,
        encoder: Encoder,
        dtype: np.dtype[Any],
        shift: Floats | float = 0.0,
        unit: Floats | float = 1.0,
        lookups: Sequence[Sequence[int]] = (),
    ) -> None:
        self.dtype = torch.float32 if dtype in _SHORT else torch.float64
        self.native = dtype.newbyteorder("=")
        cycles = encoder.reals - len(encoder.numbers)  # which are neither shifted nor scaled
        means = np.concatenate([encoder.means(), np.zeros(cycles)])
        scale = unit / np.concatenate([encoder.stds(), np.ones(cycles)])
        exact = (means - shift) / unit
        centre = torch.from_numpy(exact).to(self.dtype)
        # What rounding does to a large mean is added back; before it would be lost in it.
        left = (centre.numpy() - exact) * scale
        self.centre, self.scale, self.left = (
            torch.as_tensor(part, dtype=self.dtype).view(-1, *(1 for _ in encoder.shape))
            for part in (centre, scale, left)
        )
        self.numbers, self.inputs = encoder.reals, encoder.inputs
        self.plain = len(encoder.numbers)  # of the numbers, those that are no cycles
        self.picked: Tensor | None = None
        self.shape = encoder.shape
        self.flagged = torch.tensor(encoder.flagged)
        sizes = [len(lookup) for lookup in lookups]
        self.starts = torch.tensor([0, *np.cumsum(sizes)[:-1]] if sizes else [], dtype=torch.int64)
        self.lookup = torch.tensor([code for lookup in lookups for code in lookup]).float()

    def pick(self, places: list[int], width: int) -> None:
        """Take these columns of raw rows that have `width`, in place of all."""
        self.picked = None if places == list(range(width)) else torch.tensor(places)

    def encode(self, raw: Matrix) -> Tensor:
        """Inputs from raw rows."""
        rows = torch.from_numpy(raw.astype(self.native, order="C", copy=False))
        if self.picked is not None:
            rows = rows.index_select(1, self.picked)
        x = rows[:, : self.numbers].to(self.dtype)
        missing = x.isnan()
        x = torch.addcmul(self.left, x - self.centre, self.scale).float()
        if missing.any():
            x.masked_fill_(missing, 0.0)
        parts = [x] if self.plain == self.numbers else [x[:, : self.plain]]
        if len(self.flagged):
            parts.append(missing[:, self.flagged].float())
        if self.plain < self.numbers:
            parts.append(x[:, self.plain :])
        if len(self.starts):
            parts.append(self.lookup[rows[:, self.numbers :].long() + self.starts])
        return torch.cat(parts, dim=1) if len(parts) > 1 else x

    def encode_all(self, parts: Iterable[Matrix], rows: int) -> Tensor:
        """Inputs from raw rows that come in parts; each is given up as soon as it is encoded."""
        out = torch.empty(rows, self.inputs, *self.shape)
        start = 0
        for raw in parts:
            out[start : start + len(raw)] = self.encode(raw)
            start += len(raw)
        return out


class EncodedRows(Rows):
    """Rows of a matrix on disk, or a sparse one, encoded when asked for; `chosen` are meant."""

    def __init__(
        self, matrix: Matrix | SparseArray, coder: Coder, chosen: Tensor | None = None
    ) -> None:
        self.coder, self.chosen, self.matrix = coder, chosen, matrix
        if isinstance(matrix, np.ndarray):
            self.matrix = matrix.view(np.ndarray)  # numpy's memmap would make each batch one too
            self.block = block_of(matrix)

    def __len__(self) -> int:
        return len(self.matrix) if self.chosen is None else len(self.chosen)

    def gather(self, indices: Tensor) -> Tensor:
        """Read and encode some rows."""
        if self.chosen is not None:
            indices = self.chosen.index_select(0, indices)
        return self.coder.encode(self.matrix[indices.numpy()])
