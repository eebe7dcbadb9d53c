"""The one pass over a worker's rows: what is kept of them, and what all workers hear of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from codauc.data.fingerprint import Marks, add_texts, row_marks, total
from codauc.data.repeated_values import Examiner
from codauc.data.rows import Rows
from codauc.data.tables.column_roles import TableRequest
from codauc.data.tables.column_statistics import Floats, Summary, Value
from codauc.data.tables.columnar_files import TableSource, arrow
from codauc.data.tables.date_parts import cycle
from codauc.data.tables.described_columns import examples_of
from codauc.data.tables.encoder import Columns, Encoder
from codauc.data.tables.labelled_rows import no_labels, without_label
from codauc.data.tables.labels import Integers, Labels, tidy
from codauc.data.tables.packed_rows import Packer
from codauc.data.tables.row_selection import NumberedBatches

_LARGEST = 1e150  # beyond, squares and so the standard deviation are infinite


class Places(Protocol):
    """What knows where its rows are."""

    def place(self, name: str, row: int) -> str:
        """Where the value of a column is, for a message."""


@dataclass
class Pass:
    """A worker's rows after one pass: its part of the summary, and the labels as codes."""

    rows: Tensor  # their numbers in the file
    summary: Summary
    fingerprint: int  # of the rows' inputs, as they were read
    encoded: Callable[[Encoder], Rows | Tensor]  # the rows as inputs
    labels: Labels | None = None
    codes: Tensor | None = None  # which of the labels each row has
    examiner: Examiner | None = None
    examples: dict[str, tuple[str, ...]] = field(default_factory=dict)  # values of the columns


def check_count(path: str, count: int, workers: int) -> None:
    """Raise where there are fewer rows than workers."""
    if count < workers:
        raise ValueError(
            f"{path} has {count} rows for {workers} workers: expected at least one each; use at "
            f"most {count} workers."
        )


def scan_table(
    table: TableSource,
    batches: NumberedBatches,
    columns: Columns,
    request: TableRequest,
    encoder: Encoder | None,
) -> Pass:
    """The pass over rows of a table, which are packed."""
    path, target = table.path, columns.target
    packer = Packer(columns, request, encoder)
    if request.examine:
        packer.examiner = Examiner(columns.numbers, columns.categories, columns.times)
    labels = None if target is None else Labels(path, target)
    known: list[dict[Any, int]] = [{} for _ in columns.categories]
    rows, codes, fingerprint = list[Tensor](), list[Tensor](), 0
    examples: dict[str, tuple[str, ...]] = {}
    for numbers, batch in batches:
        examples = examples or examples_of(batch)
        rows.append(torch.from_numpy(numbers))
        fingerprint += _pack(table, batch, numbers, columns, packer, known)
        if labels is not None and target is not None:
            found = targets_of(table, target, batch.column(target))
            codes.append(short(labels.add(*found)))
        if request.progress is not None:
            request.progress(packer.rows)
    arrow().default_memory_pool().release_unused()
    summary = packer.summary()
    summary.targets = {} if labels is None else labels.values.as_counts()
    return Pass(
        torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64),
        summary,
        fingerprint,
        packer.encoded,
        labels,
        torch.cat(codes)
        if codes
        else None
        if labels is None
        else torch.empty(0, dtype=torch.int16),
        packer.examiner,
        examples,
    )


def _pack(
    table: TableSource,
    batch: Any,
    rows: Integers,
    columns: Columns,
    packer: Packer,
    known: list[dict[Any, int]],
) -> int:
    """Pack a batch; returns its fingerprint. `known` are numbers of texts that came before."""
    nan, texts, examiner, ids = packer.request.nan, [], packer.examiner, list[Marks]()
    first = 0 if examiner is None else examiner.wanted(rows)
    numbers = _numbers_of(table, columns.numbers, batch, rows, nan)
    if packer.encoder is not None:
        check_far(table, packer.encoder, numbers, rows)
    marks = row_marks(numbers)
    for i, name in enumerate(columns.categories):
        vocabulary, column = packer.vocabularies[i], batch.column(name)
        if name in columns.numeric:
            column = _without_nan(table, name, column, rows, nan)
        found = texts_of(column, numeric=name in columns.numeric)
        texts.append(vocabulary.encode(*found))
        seen = {} if vocabulary.full else known[i]
        add_texts(marks, i, *found, seen)
        if first:
            ids.append(np.array([seen[v] for v in found[0]], np.uint64)[found[1][:first]])
    packer.add(_with_cycles(numbers, columns), texts)
    if examiner is not None:
        examiner.add(marks[:first], numbers[:first], ids)
    return total(rows, marks)


def _with_cycles(numbers: Floats, columns: Columns) -> Floats:
    """The numbers, and beside them sine and cosine of the dates' parts."""
    if not columns.parts:
        return numbers
    places = {name: i for i, name in enumerate(columns.numbers)}
    times = torch.from_numpy(numbers)
    cycles = [cycle(times[:, places[part.name]], part.part) for part in columns.parts]
    return torch.cat([times, *cycles], dim=1).numpy()


def short(codes: Integers) -> Tensor:
    """Codes of labels, of which there are at most a thousand."""
    return torch.from_numpy(codes.astype(np.int16))


def _numbers_of(
    table: Places, names: Sequence[str], batch: Any, rows: Integers, nan: str
) -> Floats:
    """The numbers of some columns, NaN where a value is missing; `rows` are for errors."""
    out = np.empty((batch.num_rows, len(names)))
    for i, name in enumerate(names):
        column = batch.column(name)
        out[:, i] = _as_floats(column)
        if doubtful(out[:, i]):
            check_numbers(table, name, out[:, i], rows, nan, missing=_missing(column))
    return out


def doubtful(values: Floats) -> bool:
    """Whether some values may be no numbers to work with; one pass, and mostly the answer is no."""
    return not np.abs(values).sum() <= _LARGEST


def check_numbers(
    table: Places, name: str, values: Floats, rows: Integers, nan: str, missing: Any = False
) -> None:
    """Raise with the place of the first value that is too large, or NaN and not `missing`."""
    bad = np.abs(values) > _LARGEST
    if nan == "error":
        bad |= np.isnan(values) & ~np.asarray(missing)
    if not bad.any():
        return
    at = int(bad.argmax())
    if np.isnan(values[at]):
        got, remedy = "NaN", "correct it, or say nan='missing' to take NaN for a missing value"
    else:
        got = "infinity" if np.isinf(values[at]) else f"{values[at]:g}, beyond {_LARGEST:g}"
        remedy = "correct it, or leave it empty"
    raise ValueError(f"{table.place(name, int(rows[at]))}: got {got}, expected a number; {remedy}.")


def texts_of(column: Any, numeric: bool = False) -> tuple[list[Value], Integers]:
    """The different values of a column as texts, None if missing, and which each row has.

    With `numeric` they are numbers, which are written in many ways.
    """
    pa, pc = arrow(), arrow("pyarrow.compute")
    if not pa.types.is_dictionary(column.type):
        column = _as_text(column).dictionary_encode()
    values = _as_text(column.dictionary).to_pylist()
    if numeric:
        values = [tidy(value) for value in values]
    which = pc.fill_null(column.indices.cast(pa.int64()), len(values)).to_numpy()
    return [*values, None], which


def targets_of(table: TableSource, name: str, column: Any) -> tuple[list[Value], Integers]:
    """The different values of a target, and which each row has; all are there."""
    if arrow().types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if without_label(column).any():
        raise ValueError(no_labels(table, name))
    values, which = texts_of(column)
    return values[:-1], which


def filled_numbers(table: Places, name: str, what: str, column: Any, rows: Integers) -> Floats:
    """The numbers of a column, or its dates as numbers; none is missing, no weight below 0."""
    values = _as_floats(column).astype(np.float64)
    bad = ~np.isfinite(values) | ((values < 0) & (what == "weight"))
    if bad.any():
        at = int(bad.argmax())
        got = "missing" if np.isnan(values[at]) else f"{values[at]:g}"
        raise ValueError(
            f"{table.place(name, int(rows[at]))}: the {what} is {got}; expected a finite number "
            f"{'>= 0 ' if what == 'weight' else ''}in every row: correct it, or leave the row out."
        )
    return values


def _without_nan(table: Places, name: str, column: Any, rows: Integers, nan: str) -> Any:
    """A column of numbers that are taken for texts, with NaN refused or made missing."""
    pa, pc = arrow(), arrow("pyarrow.compute")
    if not pa.types.is_floating(column.type):
        return column
    values = _as_floats(column)
    if doubtful(values):
        check_numbers(table, name, values, rows, nan, missing=_missing(column))
    return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)


def check_far(table: Places, encoder: Encoder, numbers: Floats, rows: Integers) -> None:
    """Raise with the place of a value that training's mean and deviation cannot make an input."""
    with np.errstate(all="ignore"):
        far = np.abs((numbers - encoder.means()) / encoder.stds()) > 1e30
    if far.any():
        row, column = np.argwhere(far)[0].tolist()
        raise ValueError(
            f"{table.place(encoder.numbers[column].name, int(rows[row]))}: got "
            f"{numbers[row, column]:g}, too far from all values of training; correct it, or leave "
            "it empty."
        )


def _missing(column: Any) -> NDArray[np.bool_]:
    missing: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return missing.astype(bool)


def _as_floats(column: Any) -> Floats:
    """Times as microseconds, whatever unit they have in this file."""
    pa = arrow()
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        zone = kind.tz if pa.types.is_timestamp(kind) else None
        column = column.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())
    elif pa.types.is_duration(kind):
        column = column.cast(pa.duration("us"), safe=False).cast(pa.int64())
    if column.type != pa.float32():
        column = column.cast(pa.float64(), safe=False)
    floats: Floats = column.to_numpy(zero_copy_only=False)
    return floats


def _as_text(column: Any) -> Any:
    pa = arrow()
    if pa.types.is_string(column.type):
        return column
    if pa.types.is_floating(column.type):  # pandas makes integers floats where some are missing
        with contextlib.suppress(pa.ArrowInvalid):
            column = column.cast(pa.int64())
    return column.cast(pa.string(), safe=False)
