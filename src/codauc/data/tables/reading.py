"""From people's files to a worker's inputs and labels."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from codauc.agreement import compare, together
from codauc.checks import choice, known_arguments, real, whole
from codauc.data.binary import thin_negatives
from codauc.data.rows import Rows
from codauc.data.shards import ShardCount, even_shards, silo_shards, skewed_shards
from codauc.data.splits import PARTS, Split
from codauc.data.tables.encoder import Encoder, Target, fit
from codauc.data.tables.passes import Pass
from codauc.data.tables.roles import LARGE, Options
from codauc.data.tables.sources import Source, label_summary, open_source
from codauc.data.tables.summary import Moments, Summary, Value, of_all
from codauc.data.tables.target import Labels, positives_of, resolve
from codauc.group import Group, LocalGroup

_RARE = 5  # texts that occur less often are as good as unseen


@dataclass(frozen=True)
class Table:
    """A worker's rows of a table.

    `x` are the inputs: a tensor [N, columns], or `Rows` to read them from if they are on disk. `y`
    are the labels, None where the file has none, and `rows` the numbers of the rows in the file,
    from 0. `counts` tells every worker's samples and positives, if all have labels.
    """

    x: Tensor | Rows
    y: Tensor | None
    rows: Tensor = field(repr=False)
    encoder: Encoder = field(repr=False)
    counts: list[ShardCount]

    @property
    def pos_ratio(self) -> float:
        """The share of positives in the rows of all workers."""
        if not self.counts:
            raise ValueError(
                "the data has no labels: expected some, to tell the share of positives."
            )
        return sum(c.positives for c in self.counts) / sum(c.samples for c in self.counts)


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
    part: str = "train",
    nan: str = "error",
    memory: int = LARGE,
    folder: str | os.PathLike[str] | None = None,
    progress: Callable[[int], object] | None = None,
) -> Table:
    """A worker's share of a table, as inputs and labels.

    `source` is a file (.csv, .tsv, also .gz; .parquet; .arrow, .feather; .npy, .npz), a folder of
    Parquet files, a pandas frame, a pyarrow table, or a numpy array. `target` names the column of
    labels; for an .npy file it is the file of labels, for an .npz the name of their array, for an
    array the labels themselves. `positive` is the value, or the values, that are positive; 0 and 1,
    -1 and 1, true and false need none.

    Numbers are standardised with the mean and the standard deviation of all workers' rows. Missing
    values become the mean and get a flag; texts become codes (those rarer than 5 times one code for
    all unseen ones). `categories` are columns to take for texts, `drop` columns to leave out;
    `nan="missing"` takes NaN for missing instead of refusing it. What was learnt of the columns is
    `table.encoder`: given as `encoder`, other data is read the same way, with or without labels.

    Every worker of the `group` calls this and gets its own rows: an even, random share by `seed`.
    From a large file (256 MB) with as many blocks as workers (row groups of Parquet, record batches
    of Arrow) it reads blocks of its own. `silo` names a column, such as the hospital: no silo is
    divided. `skew` gives label-skewed shards (`skewed_shards`). With `own=True` each worker names a
    file of its own and keeps all of it. `keep_negatives` is the part of the negatives to keep.
    With a `split` only one `part` of the rows is read: "train", "validation" or "test"; the other
    two are read with the encoder of the first, and keep all their negatives.

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
    group = LocalGroup() if group is None else group
    seed = whole("seed", seed, least=0, remedy="use 0 if any seed will do")
    keep = real("keep_negatives", keep_negatives, above=0, remedy="use 1 to keep all negatives")
    if keep > 1:
        raise ValueError(f"keep_negatives={keep_negatives!r}: expected at most 1, which keeps all.")
    _one_way(silo=silo, skew=skew, own=own or None)
    if choice("part", part, PARTS) != "train" and split is None:
        raise ValueError(f"part={part!r} without a split: expected split=Split(...) too.")
    if encoder is None and target is None:
        raise ValueError("target is missing: expected the name of the column of labels.")
    options = Options(
        target=target,
        encoder=encoder,
        categories=_names("categories", categories),
        drop=_names("drop", drop),
        silo=silo,
        nan=choice("nan", nan, ("error", "missing")),
        memory=whole("memory", memory, least=0, remedy="it is in bytes"),
        folder=None if folder is None else Path(folder),
        progress=progress,
    )
    opened = together(group, lambda: open_source(source, options), "start")
    keep = keep if part == "train" else 1.0
    shares = _Shares(keep, silo, skew, own, seed, split, part)
    _compare(group, opened, options, shares, positive)
    labels = _labels(opened, group, positive, encoder) if shares.need_labels else None
    done = together(group, lambda: shares.pass_over(opened, labels, group), "start")
    return _finished(opened, done, of_all(done.summary, group), group, positive, encoder)


def _compare(
    group: Group, opened: Source, options: Options, shares: _Shares, positive: Any
) -> None:
    """See that all workers read the same data, or columns, in the same way."""
    columns = opened.columns
    same = {
        "columns": {
            "numbers": columns.numbers,
            "categories": columns.categories,
            "times": columns.times,
            "numeric": columns.numeric,
        },
        "target": None if options.encoder is not None else columns.target,
        "data": None if shares.own else opened.size(),
        "positive": str(positive),
        "nan": options.nan,
        "drop": options.drop,
        "encoder": None if options.encoder is None else options.encoder.to_dict(),
        **shares._asdict(),
        "split": None if shares.split is None else asdict(shares.split),
    }
    compare(group, same, torch.device("cpu"))


class _Shares(NamedTuple):
    """How the rows are shared out."""

    keep_negatives: float
    silo: str | None
    skew: float | None
    own: bool
    seed: int
    split: Split | None
    part: str

    @property
    def need_labels(self) -> bool:
        """Whether the labels of all rows must be known."""
        return self.keep_negatives < 1 or self.skew is not None or self.split is not None

    def pass_over(self, opened: Source, labels: Tensor | None, group: Group) -> Pass:
        """The pass over a worker's rows; `labels` are those of all rows, if they are needed."""
        if labels is not None or self.silo is not None:
            return opened.some(self._chosen(opened, labels, group))
        if self.own or group.size == 1:
            return opened.some(None)
        return opened.even(group.rank, group.size, self.seed)

    def _chosen(self, opened: Source, labels: Tensor | None, group: Group) -> Tensor:
        """The numbers of a worker's rows, in the file's order."""
        silos = None if self.silo is None else opened.silos(self.silo)
        count = len(silos) if labels is None else len(labels)  # type: ignore[arg-type]
        kept = torch.arange(count)
        if labels is not None and self.split is not None:
            kept = self.split.rows(labels, self.part)
        # a file of a worker's own may lack negatives
        if labels is not None and self.keep_negatives < 1 and not labels[kept].all():
            kept = kept[thin_negatives(labels[kept], self.keep_negatives, self.seed)]
        if self.own:
            return kept
        if silos is not None:
            shards = silo_shards(silos[kept.numpy()], group.size)
        elif self.skew is not None and labels is not None:
            shards = skewed_shards(labels[kept], group.size, self.skew, self.seed)
        else:
            shards = even_shards(len(kept), group.size, self.seed)
        return kept[shards[group.rank]].sort().values


def _labels(opened: Source, group: Group, positive: Any, encoder: Encoder | None) -> Tensor:
    """Every row's label."""

    def read() -> tuple[Labels, Tensor]:
        if opened.columns.target is None:
            raise ValueError(f"{opened.path} has no labels: expected some, to choose rows by them.")
        return opened.targets()

    labels, codes = together(group, read, "start")
    target = _target(opened, of_all(label_summary(labels), group), positive, encoder)

    return together(group, lambda: _positive(opened, target, labels, positive), "start")[codes]


def _positive(opened: Source, target: Target, labels: Labels, positive: Any) -> Tensor:
    """Which of the labels, by their codes, are positive."""
    return torch.tensor(positives_of(opened.path, target, labels.texts(), positive))


def _target(
    opened: Source, summaries: list[Summary], positive: Any, encoder: Encoder | None
) -> Target:
    if encoder is not None:
        return encoder.target
    counts: Counter[Value] = Counter()
    for summary in summaries:
        counts.update(summary.targets)
    return resolve(opened.path, str(opened.columns.target), counts, positive)


def _finished(
    opened: Source,
    done: Pass,
    summaries: list[Summary],
    group: Group,
    positive: Any,
    encoder: Encoder | None,
) -> Table:
    for rank, summary in enumerate(summaries):
        if not summary.rows:
            raise ValueError(
                f"{opened.path} leaves worker {rank} without rows: expected at least one for each "
                f"of the {group.size} workers; use fewer."
            )
    target = _target(opened, summaries, positive, encoder)
    coder = _fitted(opened, summaries, target) if encoder is None else encoder

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
    return Table(x, y, done.rows, coder, counts if -1 not in positives else [])


def _fitted(opened: Source, summaries: list[Summary], target: Target) -> Encoder:
    columns = opened.columns
    whole_set = Summary(0, Moments(len(columns.numbers)), [{} for _ in columns.categories])
    for summary in summaries:
        whole_set.merge(summary)
    return fit(columns, target, whole_set, rare=_RARE, shape=opened.shape)


def _names(argument: str, names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or names is None:
        raise ValueError(f"{argument}={names!r}: expected a list of columns; write [{names!r}].")
    return tuple(names)


def _one_way(**ways: Any) -> None:
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)}: expected at most one way to share out the rows.")
