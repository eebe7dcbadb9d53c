"""A network for tables: numbers and categories in one tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from codauc._internal.checks import known_arguments, real, whole
from codauc.models.base import (
    MOST,
    MOST_COLUMNS,
    Model,
    check_floats,
    check_size,
    checked_outputs,
    checked_widths,
    dense,
    one_or_more,
    positive,
    products,
)


class TableModel(Model):
    """What networks for tables share: their inputs are [N, numbers + len(categories)]."""

    sizes: Tensor
    pieces: Pieces | None

    def __init__(self, *, numbers: int, categories: Iterable[int], **others: Any) -> None:
        remedy = "its codes are 0 to size - 1"
        categories = positive("categories", "category size", categories, remedy, MOST_COLUMNS)
        remedy = "it is the number of columns that are not categories"
        least = 0 if categories else 1
        numbers = whole("numbers", numbers, least=least, most=MOST, remedy=remedy)
        remedy = "use 0 for none"
        others["dropout"] = real("dropout", others["dropout"], least=0, below=1, remedy=remedy)
        remedy = "use 0 for the numbers alone"
        pieces = whole("pieces", others.pop("pieces"), least=0, most=MOST, remedy=remedy)
        super().__init__(numbers=numbers, categories=categories, **others, pieces=pieces)
        self.numbers = numbers
        # Follows the model to its device; the architecture says it, so it is not saved.
        self.register_buffer("sizes", torch.tensor(categories, dtype=torch.long), persistent=False)

    def fit_pieces(self, x: Tensor) -> None:
        """Set the ranges of the numbers from rows of training data; without pieces do nothing."""
        self.check_rows(x)
        if self.pieces is not None:
            self.pieces.fit(x[:, : self.numbers])

    def columns(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The numbers [N, numbers] and the codes of each category, checked."""
        self.check_rows(x)
        numbers, codes = x[:, : self.numbers], x[:, self.numbers :]
        # meta tensors have no values to check, and a traced graph takes no decisions
        if len(self.sizes) and not x.is_meta and not _is_traced():
            _check_codes(codes, self.sizes)
        return numbers, codes.long().unbind(dim=1)

    def check_rows(self, x: Tensor) -> None:
        """Refuse `x` unless it has the columns the model was made for."""
        categories = self.arguments["categories"]
        columns = self.numbers + len(categories)
        if x.dim() != 2 or x.shape[1] != columns:
            raise ValueError(
                f"x of shape {list(x.shape)}: expected [N, {columns}], {self.numbers} numbers then "
                f"{len(categories)} category codes; give the columns the model was made for."
            )
        check_floats(self, x)
        largest, exact = max(categories, default=0), 2 / torch.finfo(x.dtype).eps
        if largest > exact:
            raise ValueError(
                f"x of {x.dtype} holds whole numbers exactly up to {exact:g} only: expected a "
                f"dtype for the codes of a category of size {largest}; use float32."
            )


class TabularNet(TableModel, name="tabular"):
    """A network for tables: x of shape [N, numbers + len(categories)] to logits.

    The first columns are numbers, best standardised. Each further column holds the codes of a
    category, stored as floats: whole numbers from 0 to size - 1, the sizes being `categories`.
    Each category has an embedding of its own, of dimension `embedding_width(size)`; that of code 0,
    which `read_table` gives to values not seen in training, begins at zero. Numbers and embeddings
    go together through layers with a ReLU and dropout; without widths through none. With `pieces`
    each number also says how far it is through that many ranges of its column (see `Pieces`);
    `net.fit_pieces(x)` sets the ranges from training data, before training.
    Logits have shape [N] for one output and [N, outputs] for more.

    Codes are checked in every batch, which on a device waits for it once: a code without an
    embedding would end the process there.

    >>> net = TabularNet(numbers=2, categories=[3])
    >>> net(torch.tensor([[0.5, -1.0, 0.0], [1.5, 0.3, 2.0]])).shape
    torch.Size([2])
    """

    @known_arguments
    def __init__(
        self,
        numbers: int,
        categories: Iterable[int] = (),
        widths: Iterable[int] = (256, 256),
        outputs: int = 1,
        dropout: float = 0.0,
        pieces: int = 0,
    ) -> None:
        super().__init__(
            numbers=numbers,
            categories=categories,
            widths=checked_widths(widths),
            outputs=checked_outputs(outputs),
            dropout=dropout,
            pieces=pieces,
        )
        numbers, categories, widths, outputs, dropout, pieces = self.arguments.values()
        inputs = numbers * (1 + pieces) + sum(map(embedding_width, categories))
        embedded = sum(size * embedding_width(size) for size in categories)
        check_size(2 * numbers * pieces + embedded + products((inputs, *widths, outputs)))
        self.pieces = Pieces(numbers, pieces) if pieces else None
        self.embeddings = nn.ModuleList(map(_embedding, categories))
        self.layers = dense((inputs, *widths), dropout)
        self.head = nn.Linear([inputs, *widths][-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the rows `x`."""
        numbers, codes = self.columns(x)
        if self.pieces is not None:
            numbers = self.pieces(numbers)
        embedded = [table(column) for table, column in zip(self.embeddings, codes, strict=True)]
        return one_or_more(self.head(self.layers(torch.cat([numbers, *embedded], dim=1))))


def _is_traced() -> bool:
    exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)  # torch < 2.7
    return torch._C._get_tracing_state() is not None or bool(exporting())


def _embedding(size: int) -> nn.Embedding:
    table = nn.Embedding(size, embedding_width(size))
    with torch.no_grad():
        table.weight[0] = 0.0
    return table


def embedding_width(size: int) -> int:
    """The dimension of a category's embedding: min(50, round(1.6 size^0.56)).

    >>> [embedding_width(size) for size in (1, 2, 10, 100, 1000)]
    [2, 2, 6, 21, 50]
    """
    return min(50, round(1.6 * math.pow(size, 0.56)))


def _check_codes(codes: Tensor, sizes: Tensor) -> None:
    # Floor finds fractions, and NaN, which differs from itself.
    wrong = (codes < 0) | (codes >= sizes) | (codes != codes.floor())
    if not bool(wrong.any()):
        return
    row, index = wrong.nonzero()[0].tolist()
    size = int(sizes[index])
    raise ValueError(
        f"category {index} has the code {codes[row, index].item():g} in row {row}: expected a "
        f"whole number from 0 to {size - 1}, its size being {size}; give values that were not seen "
        "in training a code of their own, and count it in the size."
    )


def asinh(x: Tensor) -> Tensor:
    """asinh of numbers, by operations that take a tenth of the time of torch's own.

    >>> asinh(torch.tensor([-2.0, 0.0, 0.5]))
    tensor([-1.4436,  0.0000,  0.4812])
    """
    size = x.abs()
    share = size / (1 + (1 + size * size).sqrt())  # stays finite
    return x.sign() * (size + size * share).log1p()


class Pieces(nn.Module):
    """Each number x becomes asinh(x), and its way through `pieces` ranges of its column.

        z_i = clamp((x - e_i) / (e_{i+1} - e_i), 0, 1),  i = 1..pieces

    The edges e are quantiles of training data, so that a network can treat common values finely,
    whatever the column's scale or skew. Until `fit` has set them z is 0. A range without width
    stays 0.

    >>> layer = Pieces(columns=1, pieces=2)
    >>> layer.fit(torch.tensor([[0.0], [1.0], [5.0]]))
    >>> layer(torch.tensor([[0.5], [3.0]]))
    tensor([[0.4812, 0.5000, 0.0000],
            [1.8184, 1.0000, 0.5000]])
    """

    starts: Tensor
    slopes: Tensor

    def __init__(self, columns: int, pieces: int) -> None:
        super().__init__()
        self.columns, self.pieces = columns, pieces
        for name in ("starts", "slopes"):
            self.register_buffer(name, torch.zeros(columns, pieces))

    def forward(self, x: Tensor) -> Tensor:
        """The inputs [N, columns] as [N, columns (1 + pieces)]."""
        ways = ((x.unsqueeze(2) - self.starts) * self.slopes).clamp(0, 1)
        return torch.cat([asinh(x), ways.flatten(1)], dim=1)

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """Set the edges from rows of training data [N, columns]."""
        for column in range(self.columns):
            edges = range_edges(x[:, column].double(), self.pieces)
            width = edges.diff()
            inert = width <= 0
            self.starts[column] = edges[:-1]
            self.slopes[column] = torch.where(inert, 0.0, 1 / width.masked_fill(inert, 1.0))


def range_edges(values: Tensor, pieces: int) -> Tensor:
    """The `pieces + 1` edges of one column, ascending; the last is repeated where there are fewer.

    They are quantiles; or all values, if these are few. A value that is as frequent as a whole
    range, such as 0 in counts, is one edge, and the others are the quantiles of the rest.

    >>> range_edges(torch.tensor([0.0, 0, 0, 0, 0, 0, 1, 2, 3, 4]), pieces=3)
    tensor([0., 1., 3., 4.])
    """
    distinct, counts = torch.unique(values, return_counts=True)
    if len(distinct) > pieces + 1:
        frequent = counts * pieces > len(values)
        atoms = distinct[frequent][: pieces - 1]
        rest = values[~torch.isin(values, distinct[frequent])]
        levels = torch.linspace(0, 1, pieces + 1 - len(atoms), dtype=values.dtype)
        quantiles = torch.quantile(rest, levels, interpolation="nearest")
        distinct = torch.unique(torch.cat([atoms, quantiles]))
    missing = pieces + 1 - len(distinct)
    return torch.cat([distinct, distinct[-1:].expand(missing)])
