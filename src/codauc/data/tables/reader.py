"""From people's files to a worker's inputs and labels."""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from codauc._internal.checks import choice, known_arguments, warn
from codauc.data.column_record import ColumnRecord
from codauc.data.dataset import Part
from codauc.data.row_sites import SiteCount
from codauc.data.rows import Rows
from codauc.data.shards import ShardCount
from codauc.data.splits import PARTS, Split
from codauc.data.tables.column_roles import LARGE, TableRequest
from codauc.data.tables.column_statistics import Moments, Summary, Value, of_all
from codauc.data.tables.described_columns import RARE, check_values, described, left_out
from codauc.data.tables.encoder import Encoder, Target, fit
from codauc.data.tables.labels import Labels, choice_note, positives_of, resolve
from codauc.data.tables.least_samples import check_labels, hidden_note, told
from codauc.data.tables.reading_notes import extra_columns, reading_notes
from codauc.data.tables.scan import Pass
from codauc.data.tables.table_sources import FromTable, RowSource, open_source
from codauc.data.tables.worker_rows import WorkerRows
from codauc.workers.agreement import compare, together
from codauc.workers.group import Group, LocalGroup


@known_arguments
def read_table(
    source: Any,
    target: Any = None,
    *,
    positive: Any = None,
    group: Group | None = None,
    seed: int = 0,
    encoder: Encoder | None = None,
    categories: Sequence[str] = (),
    drop: Sequence[str] = (),
    keep_negatives: float = 1.0,
    silo: str | None = None,
    skew: float | None = None,
    own: bool = False,
    split: Split | None = None,
    weight: Any = None,
    part: str = "train",
    nan: str = "error",
    unlabelled: str = "error",
    decimal: str | None = None,
    dayfirst: bool | None = None,
    na_values: Sequence[str] = (),
    encoding: str | None = None,
    memory: int = LARGE,
    folder: str | os.PathLike[str] | None = None,
    progress: Callable[[int], object] | None = None,
) -> Part:
    """A worker's share of a table, as inputs and labels.

    `source` is a file (.csv, .tsv, also .gz; .parquet; .arrow, .feather; .npy, .npz), a folder of
    Parquet files, a pandas frame, a pyarrow table, or a numpy array. `target` names the column of
    labels; for an .npy file it is the file of labels, for an .npz the name of their array, for an
    array the labels themselves. `positive` is the value, or the values, that are positive; 0 and 1,
    -1 and 1, true and false need none.

    Numbers are standardised with the mean and the standard deviation of all workers' rows. Missing
    values become the mean and get a flag; texts become codes (those rarer than 5 times one code for
    all unseen ones). `categories` are columns to take for texts, `drop` columns to leave out;
    `nan="missing"` takes NaN for missing instead of refusing it, and `unlabelled="drop"` leaves out
    rows without a label. What was learnt of the columns is
    `table.encoder`: given as `encoder`, other data is read the same way, with or without labels;
    columns that training did not have are left out with a warning, and `table.notes` say what else
    is odd: columns without a value, and texts that training did not have.

    In a CSV the decimal mark, marks between thousands, signs of currencies and per cent, and the
    order of day and month are found where values show them; where they do not, `decimal="."` or
    `","` and `dayfirst=True` or `False` say it. `na_values` are further texts that are missing
    values, and `encoding` is that of a file that is not UTF-8 and does not begin with its mark.

    Every worker of the `group` calls this and gets its own rows: an even, random share by `seed`.
    From a large file (256 MB) with as many blocks as workers (row groups of Parquet, record batches
    of Arrow) it reads blocks of its own. `silo` names a column, such as the hospital: no silo is
    divided. `skew` gives label-skewed shards (`skewed_shards`). With `own=True` each worker names a
    file of its own and keeps all of it. `keep_negatives` is the part of the negatives to keep.
    With a `split` only one `part` of the rows is read: "train", "validation" or "test"; the other
    two are read with the encoder of the first, and keep all their negatives. `weight` names a
    column of weights, which is no input, or is one weight per row; rows of weight 0 are left out.

    A worker keeps up to `memory` bytes of rows in memory, more in a file without a name in `folder`
    (default: the system's for temporary files); .npy and uncompressed .npz stay where they are.
    While it reads, `progress(rows so far)` is called.

    >>> import numpy as np
    >>> features, labels = np.array([[1.0, 5.0], [3.0, 5.0]]), np.array([0, 1])
    >>> table = read_table(features, labels)
    >>> table.x, table.y, table.pos_ratio
    (tensor([[-1.,  0.],
            [ 1.,  0.]]), tensor([False,  True]), 0.5)
    """
    if choice("part", part, PARTS) != "train" and split is None:
        raise ValueError(f"part={part!r} without a split: expected split=Split(...) too.")
    request = TableRequest(
        target=target,
        positive=positive,
        encoder=encoder,
        categories=categories,  # type: ignore[arg-type]
        drop=drop,  # type: ignore[arg-type]
        keep_negatives=keep_negatives,
        silo=silo,
        skew=skew,
        own=own,
        split=split,
        weight=weight,
        seed=seed,
        nan=nan,
        unlabelled=unlabelled,
        decimal=decimal,
        dayfirst=dayfirst,
        na_values=na_values,  # type: ignore[arg-type]
        encoding=encoding,
        memory=memory,
        folder=None if folder is None else Path(folder),
        progress=progress,
    )
    group = LocalGroup() if group is None else group
    found = read_parts(source, request, [part], group)[part]
    if group.rank == 0:
        for note in filter(extra_columns, found.notes):
            warn(note)
    return found


def read_parts(
    source: Any, request: TableRequest, parts: Sequence[str], group: Group
) -> dict[str, Part]:
    """A worker's share of several parts of a table, the training part first if it is one of them.

    A file is read at most twice: for the labels of all rows, if they decide which rows are whose,
    and for the rows of all parts. A CSV file of up to 8 times the request's memory is read once.
    """
    opened = together(group, lambda: open_source(source, request), "start")
    _compare(group, opened, request, parts)
    labels, target = None, None
    if request.need_labels:
        labels, target = _labels(opened, group, request)
    scan = WorkerRows(opened, request, parts, group, labels)
    found: dict[str, Part] = {}
    encoder = request.encoder
    for part in parts:
        done = together(group, partial(scan.read, part, encoder), "start")
        if request.least_samples:
            least, labels_here = request.least_samples, done.summary.targets
            whose = scan.whose(part)
            together(group, partial(check_labels, labels_here, least, whose), "start")
        found[part] = _finished(opened, done, group, request, encoder, target)
        found[part] = scan.completed(found[part])
        encoder = found[part].encoder
        if request.encoder is not None:
            notes = reading_notes(request.encoder, opened.columns, done.summary)
            found[part] = replace(found[part], notes=tuple(notes))
    return found


def count_sites(source: Any, request: TableRequest) -> list[SiteCount]:
    """The rows and positives of each site of a table, by a pass over two of its columns."""
    opened = open_source(source, request)
    names, which = opened.names_and_codes(str(request.silo), "site")
    labels, _ = _labels(opened, LocalGroup(), request)
    samples = np.bincount(which, minlength=len(names))
    positives = np.bincount(which, labels.numpy(), minlength=len(names))
    counts = zip(names, samples.tolist(), positives.tolist(), strict=True)
    return [SiteCount(name, count, round(up)) for name, count, up in counts]


def has_column(source: Any, request: TableRequest, name: str | None) -> bool:
    """Whether a source has a column of this name, beside those that the request needs."""
    if name is None:
        return False
    opened = open_source(source, replace(request, silo=None))
    return isinstance(opened, FromTable) and name in opened.table.kinds


def _compare(group: Group, opened: RowSource, request: TableRequest, parts: Sequence[str]) -> None:
    """See that all workers read the same data, or columns, in the same way."""
    columns, encoder = opened.columns, request.encoder
    same = {
        "columns": {
            name: getattr(columns, name) for name in ("numbers", "categories", "times", "numeric")
        },
        "target": None if encoder is not None else columns.target,
        "data": None if request.own else opened.size,
        "positive": str(request.positive),
        "encoder": None if encoder is None else encoder.to_dict(),
        "split": None if request.split is None else asdict(request.split),
        "parts": parts,
        **{
            name: getattr(request, name)
            for name in (
                "nan",
                "unlabelled",
                "decimal",
                "dayfirst",
                "na_values",
                "drop",
                "keep_negatives",
                "silo",
                "test_site",
                "least_samples",
                "skew",
                "own",
                "scale",
                "seed",
                "weight",
            )
        },
    }
    compare(group, same, torch.device("cpu"))


def _labels(opened: RowSource, group: Group, request: TableRequest) -> tuple[Tensor, Target | None]:
    """Every row's label; and the target, if it is by all rows that positive values are chosen."""

    def read() -> tuple[Labels, Tensor]:
        if opened.columns.target is None:
            raise ValueError(f"{opened.path} has no labels: expected some, to choose rows by them.")
        return opened.targets()

    labels, codes = together(group, read, "start")
    positive, counts = request.positive, labels.values.as_counts()
    if request.least_samples and request.own:  # else all workers read the same rows here
        least = request.least_samples
        together(group, lambda: check_labels(counts, least, "the worker's file"), "start")
    summaries = of_all(Summary(len(codes), Moments(0), [], counts), group)
    target = _target(opened, summaries, positive, request.encoder)
    flags = together(group, lambda: _positive(opened, target, labels, positive), "start")
    return flags[codes], target if positive is None else None


def _positive(opened: RowSource, target: Target, labels: Labels, positive: Any) -> Tensor:
    """Which of the labels, by their codes, are positive."""
    found = positives_of(_where(opened), target, labels.texts(), positive)
    return torch.tensor(found, dtype=torch.bool)


def _target(
    opened: RowSource, summaries: list[Summary], positive: Any, encoder: Encoder | None
) -> Target:
    if encoder is not None:
        return encoder.target
    counts: Counter[Value] = Counter()
    for summary in summaries:
        counts.update(summary.targets)
    return resolve(_where(opened), str(opened.columns.target), counts, positive)


def _where(opened: RowSource) -> str:
    return f"{opened.path}, column {opened.columns.target!r}"


def _finished(
    opened: RowSource,
    done: Pass,
    group: Group,
    request: TableRequest,
    encoder: Encoder | None,
    target: Target | None,
) -> Part:
    positive, least = request.positive, request.least_samples or 0
    summary = done.summary
    if encoder is not None:  # nothing is learnt from these rows
        summary = Summary(summary.rows, Moments(0), targets=summary.targets)
    elif least:
        summary = told(summary, least)
    summaries = of_all(summary, group)
    empty = [rank for rank, summary in enumerate(summaries) if not summary.rows]
    # a small site may have no rows for validation or for the test
    if empty and (encoder is None or request.silo is None):
        raise ValueError(
            f"{opened.path} leaves worker {empty[0]} without rows: expected at least one for each "
            f"of the {group.size} workers; use fewer."
        )
    target = target or _target(opened, summaries, positive, encoder)
    records: tuple[ColumnRecord, ...] = ()
    notes: tuple[str, ...] = ()
    if encoder is None:
        encoder, records = _fitted(opened, done, summaries, target, positive)
        if request.scale == "own":
            encoder = encoder.scaled_by(done.summary.moments, opened.columns)
        hidden = max(each.hidden for each in summaries)
        notes = (hidden_note(hidden, least),) if hidden else ()
    coder = encoder

    def own_part() -> tuple[Rows | Tensor, Tensor | None]:
        y = None
        if done.labels is not None and done.codes is not None:
            y = _positive(opened, target, done.labels, positive)[done.codes.long()]
        return done.encoded(coder), y

    x, y = together(group, own_part, "start")
    samples = [summary.rows for summary in summaries]
    mine = torch.tensor([-1 if y is None else int(y.sum())])
    positives = group.gather(mine, "start").flatten().tolist()
    counts = [ShardCount(*pair) for pair in zip(samples, positives, strict=True)]
    known = counts if -1 not in positives else []
    examined = None
    if done.examiner is not None and y is not None and len(y):
        examined = done.examiner.examined(y.numpy())
    return Part(x, y, done.rows, known, coder, done.fingerprint, examined, records, notes=notes)


def _fitted(
    opened: RowSource, done: Pass, summaries: list[Summary], target: Target, positive: Any
) -> tuple[Encoder, tuple[ColumnRecord, ...]]:
    """The encoder of the rows of all workers, and a record of each column."""
    columns, whole_set = opened.columns, copy.deepcopy(summaries[0])
    for summary in summaries[1:]:
        whole_set.merge(summary)
    out: dict[str, str] = {}
    if opened.selects:
        out = left_out(columns, whole_set)
    else:
        check_values(columns, whole_set)
    encoder = fit(columns, target, whole_set, rare=RARE, left_out=out, shape=opened.shape)
    encoder = replace(encoder, locale=opened.locale)
    if not opened.selects:
        return encoder, ()
    written = opened.written(done.examples)
    note = choice_note(target, whole_set.targets, positive)
    if note:
        written = replace(written, notes={**written.notes, target.name: [note]})
    return encoder, described(columns, encoder, whole_set, out, written)
