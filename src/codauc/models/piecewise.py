"""Numbers as pieces: how far a value has come through each of its column's ranges."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
        self.outputs = columns * (1 + pieces)
        for name in ("starts", "slopes"):
            self.register_buffer(name, torch.zeros(columns, pieces))

    def forward(self, x: Tensor) -> Tensor:
        """The inputs [N, columns] as [N, outputs]."""
        ways = ((x.unsqueeze(2) - self.starts) * self.slopes).clamp(0, 1)
        return torch.cat([x.asinh(), ways.flatten(1)], dim=1)

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """Set the edges from rows of training data [N, columns]."""
        for column in range(self.columns):
            edges = edges_of(x[:, column].double(), self.pieces)
            width = edges.diff()
            inert = width <= 0
            self.starts[column] = edges[:-1]
            self.slopes[column] = torch.where(inert, 0.0, 1 / width.masked_fill(inert, 1.0))


def edges_of(values: Tensor, pieces: int) -> Tensor:
    """The `pieces + 1` edges of one column, ascending; the last is repeated where there are fewer.

    They are quantiles; or all values, if these are few. A value that is as frequent as a whole
    range, such as 0 in counts, is one edge, and the others are the quantiles of the rest.

    >>> edges_of(torch.tensor([0.0, 0, 0, 0, 0, 0, 1, 2, 3, 4]), pieces=3)
    tensor([0., 1., 3., 4.])
    """
    distinct, counts = torch.unique(values, return_counts=True)
    if len(distinct) > pieces + 1:
        frequent = counts * pieces > len(values)
        atoms, rest = (
            distinct[frequent][: pieces - 1],
            values[~torch.isin(values, distinct[frequent])],
        )
        levels = torch.linspace(0, 1, pieces + 1 - len(atoms), dtype=values.dtype)
        quantiles = torch.quantile(rest, levels, interpolation="nearest")
        distinct = torch.unique(torch.cat([atoms, quantiles]))
    missing = pieces + 1 - len(distinct)
    return torch.cat([distinct, distinct[-1:].expand(missing)])
