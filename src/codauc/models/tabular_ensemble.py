"""Several networks for tables in one: members side by side, each beside a linear model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from codauc._internal.checks import known_arguments, whole
from codauc.models.base import MOST_LAYERS, check_size, checked_widths, products
from codauc.models.tabular import Pieces, TableModel, asinh, embedding_width

_FARTHEST = 10.0  # standard deviations that a linear model tells apart


class TabularEnsemble(TableModel, name="tabular-ensemble"):
    """Members side by side, each a network for tables: x [N, numbers + len(categories)] to logits.

        logit_j(x) = network_j(x) + linear_j(x),    logit(x) = mean of logit_j(x) over the members

    The inputs are those of `TabularNet`: numbers, best standardised, then codes of categories. A
    member is a network of its own (embeddings, layers with a ReLU and dropout, head) and a linear
    model of the numbers, their asinh, and the categories. Members share no weight, so that a member
    knows nothing of rows that it was not trained on. All are computed together, which takes less
    time than one after the other.

    In training mode the result is every member's logits, [N, members], for
    `MinMaxAUCLoss(pos_ratio=[p] * members)` with the labels of each row repeated; in evaluation
    mode their mean, [N]. `member` asks for the logits of one, [N], in either mode.

    >>> net = TabularEnsemble(numbers=2, categories=[3], members=4)
    >>> x = torch.tensor([[0.5, -1.0, 0.0], [1.5, 0.3, 2.0]])
    >>> net(x).shape, net(x, member=3).shape, net.eval()(x).shape
    (torch.Size([2, 4]), torch.Size([2]), torch.Size([2]))
    """

    @known_arguments
    def __init__(
        self,
        numbers: int,
        categories: Iterable[int] = (),
        members: int = 4,
        widths: Iterable[int] = (128, 128),
        dropout: float = 0.0,
        pieces: int = 0,
    ) -> None:
        remedy = "use 1 for a single network"
        super().__init__(
            numbers=numbers,
            categories=categories,
            members=whole("members", members, least=1, most=MOST_LAYERS, remedy=remedy),
            widths=checked_widths(widths),
            dropout=dropout,
            pieces=pieces,
        )
        numbers, categories, members, widths, self.dropout, pieces = self.arguments.values()
        sizes = [numbers * (1 + pieces) + sum(map(embedding_width, categories)), *widths]
        rows = sum(size * (1 + embedding_width(size)) for size in categories)
        check_size(members * (2 * numbers * (2 + pieces) + rows + products((*sizes, 1))))
        self.pieces = Pieces(numbers, pieces) if pieces else None
        self.embeddings = nn.ModuleList(
            MemberEmbedding(members, size, embedding_width(size)) for size in categories
        )
        self.layers = nn.ModuleList(MemberLinear(members, *pair) for pair in pairwise(sizes))
        self.head = MemberLinear(members, sizes[-1], 1)
        self.linear = LinearModels(members, numbers, categories)

    def forward(self, x: Tensor, member: int | None = None) -> Tensor:
        """Logits of the rows `x`: of each member in training, their mean in evaluation."""
        chosen = slice(None) if member is None else slice(member, member + 1)
        numbers, codes = self.columns(x)
        linear = self.linear(linear_inputs(numbers), codes, chosen)
        found: Tensor = self._networks(numbers, codes, chosen) + linear
        if member is not None:
            return found[0]
        return found.t() if self.training else found.mean(0)

    def linear_weights(self) -> dict[str, Tensor] | None:
        """The weights of the linear models, as copies; None if the networks add something."""
        if bool(self.head.weight.any()):
            return None
        return {name: each.detach().clone() for name, each in self._linear_parameters()}

    @torch.no_grad()
    def blend(self, linear: Mapping[str, Tensor], share: float) -> None:
        """Make each logit `share` times itself, plus 1 - share times that of linear models.

        `linear` are weights that `linear_weights` gave.
        """
        self.head.weight.mul_(share)
        for name, weights in self._linear_parameters():
            weights.lerp_(linear[name], 1 - share)

    def _linear_parameters(self) -> Iterator[tuple[str, Tensor]]:
        yield "bias", self.head.bias
        yield from self.linear.named_parameters()

    def _networks(self, numbers: Tensor, codes: tuple[Tensor, ...], chosen: slice) -> Tensor:
        shared = numbers if self.pieces is None else self.pieces(numbers)
        parts = [
            table(column, chosen) for table, column in zip(self.embeddings, codes, strict=True)
        ]
        z = shared.expand(len(self.head.bias[chosen]), -1, -1)
        z = torch.cat([z, *parts], dim=2) if parts else z
        for layer in self.layers:
            z = layer(z, chosen).relu()
            z = _dropped(z, self.dropout) if self.training and self.dropout else z
        found: Tensor = self.head(z, chosen)
        return found.squeeze(2)


def _dropped(z: Tensor, share: float) -> Tensor:
    """Dropout with one mask for all members: random numbers take longer than the layers.

    On the processor each number gives eight bytes, and a byte decides for a unit.
    """
    if not z.is_cpu:
        return z * torch.empty_like(z[0]).bernoulli_(1 - share).div_(1 - share)
    kept = min(255, max(1, round(256 * (1 - share))))
    numbers = torch.empty(-(-z[0].numel() // 8), dtype=torch.int64).random_(-(2**63), None)
    mask = numbers.view(torch.uint8)[: z[0].numel()].view(z[0].shape) < kept
    return z * (mask * z.new_tensor(256 / kept))


class MemberLinear(nn.Module):
    """A linear layer of each member: [members, N, inputs] to [members, N, outputs]."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(max(1, inputs))  # as nn.Linear begins
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor, chosen: slice) -> Tensor:
        """The outputs of the chosen members."""
        return torch.baddbmm(self.bias[chosen], x, self.weight[chosen])


class MemberEmbedding(nn.Module):
    """A category's embedding of each member: codes [N] to [members, N, width]; code 0 is zero."""

    def __init__(self, members: int, size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, members, width))
        with torch.no_grad():
            self.weight[0] = 0.0

    def forward(self, codes: Tensor, chosen: slice) -> Tensor:
        """The embeddings of the chosen members."""
        return self.weight[:, chosen].index_select(0, codes).transpose(0, 1)


def linear_inputs(numbers: Tensor) -> Tensor:
    """Each number twice: as it is, up to about ten standard deviations, and by its asinh.

    So a linear model may follow a column's scale or its logarithm, and no value is beyond bounds.

    >>> linear_inputs(torch.tensor([[1.0], [1000.0]]))
    tensor([[0.9950, 0.8814],
            [9.9995, 7.6009]])
    """
    scaled = (numbers / _FARTHEST).clamp(-1e6, 1e6)
    bounded = _FARTHEST * scaled / (1 + scaled * scaled).sqrt()
    return torch.cat([bounded, asinh(numbers)], dim=1)


class LinearModels(nn.Module):
    """A linear model of each member, of `linear_inputs` and of the categories; zero at first.

    The intercept is the bias of the member's head.
    """

    def __init__(self, members: int, numbers: int, categories: Iterable[int]) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.zeros(2 * numbers, members))
        self.categories = nn.ParameterList(torch.zeros(size, members) for size in categories)

    def forward(self, numbers: Tensor, codes: tuple[Tensor, ...], chosen: slice) -> Tensor:
        """Logits [members, N] of the chosen members, without the intercept; of linear inputs."""
        found = numbers @ self.numbers[:, chosen]
        for weights, column in zip(self.categories, codes, strict=True):
            found = found + weights[:, chosen].index_select(0, column)
        return found.t()
