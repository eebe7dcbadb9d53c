"""K simulated workers of a small network as one model, whose parameters have a leading K."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from codauc.checks import known_arguments, whole
from codauc.data.batches import Batches
from codauc.data.order import Plan, Position
from codauc.data.rows import TensorRows
from codauc.loss import MinMaxAUCLoss
from codauc.models import MLP

INSTEAD = "use codauc.launch(..., simulate=True), which runs any model, worker after worker"

Pair = tuple[Tensor, Tensor]


class Stack(nn.Module):
    """K `workers` that step at once: `model` with K copies of every parameter, [K, *shape].

    Inputs are [K, B, ...], a batch of each worker, and logits [B, K]: a loss of K tasks is then K
    workers' losses side by side, a step of the optimizer is elementwise and so K workers' steps,
    and a round of `CoDA(opt)` the mean over the leading dimension. All workers start equal. What
    they compute is, to rounding, what `codauc.launch(..., workers=K, simulate=True)` computes; a
    small network takes less time, for each operation is called once and not K times.

    Parameters that are frozen, and buffers, are shared. What makes chance (Dropout) or keeps
    statistics (BatchNorm) is refused. `model` itself stays as it is; `unstack` gives one like it.

    >>> stack = Stack(nn.Linear(3, 1), workers=4)
    >>> [(name, list(p.shape)) for name, p in stack.named_parameters()]
    [('each.weight', [4, 1, 3]), ('each.bias', [4, 1])]
    >>> loss = stack.loss(pos_ratio=0.1)
    >>> logits = stack(torch.randn(4, 8, 3))
    >>> logits.shape, loss(logits, torch.arange(32).view(8, 4) == 0).shape
    (torch.Size([8, 4]), torch.Size([]))
    """

    @known_arguments
    def __init__(self, model: nn.Module, *, workers: int) -> None:
        super().__init__()
        self.workers = whole(
            "workers", workers, least=2, remedy="train one worker's model as it is"
        )
        _check_model(model)
        copies = {
            id(p): nn.Parameter(p.detach().expand(self.workers, *p.shape).clone())
            for p in model.parameters()
            if p.requires_grad
        }
        # deepcopy puts what it is told it has copied in the place of each parameter, tied or not
        self.each: nn.Module = copy.deepcopy(model, dict(copies))
        stacked = {id(p) for p in copies.values()}
        self._names = [
            f"{prefix}.{name}".lstrip(".")
            for prefix, module in self.each.named_modules()
            for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
            if id(parameter) in stacked
        ]
        self._chain = [(layer, _Spare()) for layer in _in_place(_chain(self.each) or [])]

    def stacked(self) -> dict[str, Tensor]:
        """The parameters of which every worker has its own, by their names in the model."""
        return {name: self.each.get_parameter(name) for name in self._names}

    def forward(self, x: Tensor) -> Tensor:
        """Logits [B, K] of inputs [K, B, ...]."""
        if not isinstance(x, Tensor) or x.dim() < 2 or len(x) != self.workers:
            got = f"of shape {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(
                f"x {got}: expected [{self.workers}, B, ...], a batch of each worker; draw them "
                "with codauc.stacked, or use unstack() to predict."
            )
        logits = self._layer_by_layer(x) if self._chain else self._mapped(x)
        if logits.numel() != x.shape[0] * x.shape[1]:
            raise ValueError(
                f"the model gives each worker {list(logits.shape[1:])} for {x.shape[1]} samples: "
                "expected one logit a sample; use the difference of two softmax logits."
            )
        return logits.reshape(x.shape[:2]).t()

    def _layer_by_layer(self, x: Tensor) -> Tensor:
        """In 0.35 (batch 8) to 0.8 (128) of the time of vmap, forward and backward."""
        for layer, spare in self._chain:
            if type(layer) is nn.Linear:
                x = _linear(x, layer.weight, layer.bias, spare)
            else:
                x = x.flatten(2) if type(layer) is nn.Flatten else layer(x)
        return x

    def _mapped(self, x: Tensor) -> Tensor:
        try:
            logits: Tensor = torch.vmap(self._one, randomness="error")(self.stacked(), x)
        except RuntimeError as error:
            if not any(word in str(error) for word in ("vmap", "Batching rule")):
                raise
            why = str(error).strip().partition("\n")[0]
            raise RuntimeError(
                f"the model cannot run for all workers at once ({why}): expected one without "
                f"chance and without buffers that change; {INSTEAD}."
            ) from error
        return logits

    def _one(self, own: dict[str, Tensor], x: Tensor) -> Tensor:
        # All names of tied parameters are there: torch's own way, where a module is there twice,
        # leaves what it put in place of them.
        found: Tensor = functional_call(self.each, own, (x,), tie_weights=False)
        return found

    def loss(self, pos_ratio: float, **options: Any) -> MinMaxAUCLoss:
        """The workers' losses side by side, with one p and the options of `MinMaxAUCLoss`."""
        if pos_ratio is None or isinstance(pos_ratio, Sequence):
            raise ValueError(
                f"pos_ratio={pos_ratio!r}: expected one number, the share of positives in all "
                f"workers' data; count the labels, or, to estimate it, {INSTEAD}."
            )
        return MinMaxAUCLoss([pos_ratio] * self.workers, **options)

    @torch.no_grad()
    def unstack(self, worker: int = 0) -> nn.Module:
        """A model as it was given, with copies of one worker's weights; after a stage all agree.

        >>> Stack(nn.Linear(3, 1), workers=4).unstack(2)
        Linear(in_features=3, out_features=1, bias=True)
        """
        if not 0 <= worker < self.workers:
            raise ValueError(f"worker={worker}: expected 0 to {self.workers - 1}.")
        copies = {
            id(p): nn.Parameter(p[worker].clone(), p.requires_grad) for p in self.stacked().values()
        }
        return copy.deepcopy(self.each, dict(copies))


# Layers that take each number by itself, so whatever dimensions there are.
_ELEMENTWISE = (
    nn.ELU,
    nn.GELU,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.Mish,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Tanh,
)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _chain(model: nn.Module) -> list[nn.Module] | None:
    """The layers that a model applies one after the other, if all are linear or elementwise."""
    if any(getattr(model, name) for name in _HOOKS):
        return None
    kind, parts = type(model), [part for part in model._modules.values() if part is not None]
    flat = (
        kind is nn.Flatten
        and isinstance(model, nn.Flatten)
        and (model.start_dim, model.end_dim) == (1, -1)
    )
    if flat or kind in (nn.Linear, *_ELEMENTWISE):
        return [model]
    if kind is MLP:
        parts = [nn.Flatten(), *parts]
    elif kind is not nn.Sequential:
        return None
    chains = [_chain(part) for part in parts]
    return None if None in chains else [layer for chain in chains for layer in chain or ()]


def _in_place(chain: list[nn.Module]) -> list[nn.Module]:
    """With every ReLU behind a linear layer in the memory of that one's output, which is fresh."""
    before = [None, *chain]
    return [
        nn.ReLU(inplace=True) if (type(one), type(layer)) == (nn.Linear, nn.ReLU) else layer
        for one, layer in zip(before, chain, strict=False)
    ]


class _Spare:
    """Memory for gradients, kept from step to step: fresh memory takes longer than the product."""

    def __init__(self) -> None:
        self.kept: Tensor | None = None
        self.free = 0.0  # how many hold the memory when no gradient lives there

    def like(self, tensor: Tensor) -> Tensor:
        """A tensor of this shape; not the kept memory if a gradient still lives there."""
        kept = self.kept
        if kept is None or (kept.shape, kept.dtype, kept.device) != (
            (tensor.shape, tensor.dtype, tensor.device)
        ):
            kept = self.kept = _empty(tensor)
            self.free = _holders(kept)
        elif _holders(kept) != self.free:
            return _empty(tensor)
        return kept.view(kept.shape)  # a tensor that nobody else has: autograd makes no copy of it

    def __deepcopy__(self, memo: Any) -> _Spare:
        return _Spare()

    def __reduce__(self) -> Any:
        return (_Spare, ())


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _holders(tensor: Tensor) -> float:
    """How many hold a tensor's memory; not a number where torch cannot tell."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    return math.nan if count is None else count(tensor.untyped_storage()._cdata)


def _linear(x: Tensor, w: Tensor, b: Tensor | None, spare: _Spare) -> Tensor:
    """All workers' layers: x [K, N, in], w [K, out, in], b [K, out]; or shared, without K."""
    if x.dim() != 3:  # [K, N, ..., in]
        return _linear(x.flatten(1, -2), w, b, spare).view(*x.shape[:-1], -1)
    if w.dim() == 2:
        h = linear(x, w)
        return h if b is None else h + (b if b.dim() == 1 else b.unsqueeze(1))
    b = None if b is None else b.expand(len(w), -1).unsqueeze(1)
    if torch.is_autocast_enabled(x.device.type):
        h = torch.matmul(x, w.transpose(1, 2))
        return h if b is None else h + b
    found: Tensor = _Linears.apply(x, w, b, spare)  # type: ignore[no-untyped-call]
    return found


class _Linears(torch.autograd.Function):
    """The same with gradients that lie as their parameters do, in memory that is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, spare: _Spare) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.spare = spare
        turned = w.transpose(1, 2)
        return torch.bmm(x, turned) if b is None else torch.baddbmm(b, x, turned)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        of_x, of_w, of_b, _ = ctx.needs_input_grad
        slope = torch.bmm(g.transpose(1, 2), x, out=ctx.spare.like(w)) if of_w else None
        return (
            torch.bmm(g, w) if of_x else None,
            slope,
            g.sum(1, keepdim=True) if of_b else None,
            None,
        )


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module) or isinstance(model, Stack):
        raise ValueError(f"model: got {type(model).__name__}, expected one worker's nn.Module.")
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise ValueError(f"{name} has no shape yet: run one batch through lazy modules first.")
    for name, module in model.named_modules():
        where = f"{name or 'the model'} ({type(module).__name__})"
        if isinstance(module, _NormBase) and module.running_mean is not None:
            raise ValueError(
                f"{where} keeps running statistics: expected layers without; use LayerNorm or "
                f"GroupNorm, or {INSTEAD}."
            )
        if isinstance(module, _DropoutNd) and module.p > 0:
            raise ValueError(
                f"{where} draws at random: expected layers without chance; set p=0, or {INSTEAD}."
            )


def stacked(batches: Sequence[Iterator[Pair]]) -> Iterator[Pair]:
    """One batch of each worker at a time: inputs [K, B, ...] and labels [B, K], for a `Stack`.

    Workers' batches must be of one length, so cut shards to one length. Each keeps its own
    position: save and load those.

    >>> x, y = torch.arange(12.0).view(12, 1), torch.arange(12) % 3 == 0
    >>> both = stacked([iter([(x[:4], y[:4])]), iter([(x[4:8], y[4:8])])])
    >>> inputs, labels = next(both)
    >>> inputs.shape, labels.T.tolist()
    (torch.Size([2, 4, 1]), [[True, False, False, True], [False, False, True, False]])
    """
    workers = list(batches)
    if len(workers) < 2:
        raise ValueError(f"batches of {len(workers)} workers: expected those of at least 2.")
    for k, source in enumerate(workers):
        if not isinstance(source, Iterator):
            raise ValueError(
                f"batches of worker {k}: got {type(source).__name__}, expected an endless "
                "iterator, such as codauc.data.Batches."
            )
    return _Gathered(workers) if _Gathered.fits(workers) else _Stacked(workers)


class _Stacked(Iterator[Pair]):
    """No generator, which an error would end."""

    def __init__(self, workers: list[Iterator[Pair]]) -> None:
        self.workers = workers

    def __next__(self) -> Pair:
        drawn = [self._draw(k) for k in range(len(self.workers))]
        _check_sizes([len(y) for _, y in drawn])
        return torch.stack([x for x, _ in drawn]), torch.stack([y for _, y in drawn], 1)

    def _draw(self, worker: int) -> Pair:
        try:
            x, y = next(self.workers[worker])
        except StopIteration:
            raise ValueError(
                f"batches of worker {worker} ended: expected an endless iterator, such as "
                "codauc.data.Batches."
            ) from None
        if y.numel() != len(y):
            raise ValueError(
                f"labels of shape {list(y.shape)} for worker {worker}: expected one a sample."
            )
        return x, y.flatten()


class _Gathered(Iterator[Pair]):
    """The same of shards of one tensor: one gather for all workers, in half the time."""

    def __init__(self, workers: list[Batches]) -> None:
        self.workers = workers
        rows = [b.rows for b in workers if b.rows is not None]
        self.rows = torch.cat(rows)
        starts = [0, *accumulate(map(len, rows))]
        self.starts = torch.tensor(starts[:-1]).unsqueeze(1)
        self.plans: list[tuple[Position, Plan] | None] = [None] * len(workers)

    @staticmethod
    def fits(workers: Sequence[Iterator[Pair]]) -> TypeGuard[list[Batches]]:
        """Whether all have shards of the same tensors, and nothing is done to their batches."""
        first = workers[0]
        return isinstance(first, Batches) and all(
            type(b) is Batches
            and isinstance(b.x, TensorRows)
            and isinstance(first.x, TensorRows)
            and b.x.x is first.x.x
            and b.y is first.y is not None
            and first.y.dim() == 1
            and b.rows is not None
            and not (b.loaders or b.augment)
            for b in workers
        )

    def __next__(self) -> Pair:
        drawn = [self._numbers(k) for k in range(len(self.workers))]
        _check_sizes([len(numbers) for numbers in drawn])
        places = (torch.stack(drawn) + self.starts).flatten()
        numbers, first = self.rows.index_select(0, places), self.workers[0]
        x, y = first.x.gather(numbers), first.y
        assert y is not None
        labels = y.index_select(0, numbers.to(y.device))
        return x.view(len(drawn), -1, *x.shape[1:]), labels.view(len(drawn), -1).t()

    def _numbers(self, worker: int) -> Tensor:
        """Which of its rows a worker's next batch has; its position moves on."""
        batches, plan = self.workers[worker], self.plans[worker]
        if plan is None or plan[0] is not batches.position:  # it was moved by someone else
            plan = (batches.position, batches._order.plan(batches.position))
        numbers, after = next(plan[1])
        batches._move(after)
        self.plans[worker] = (after, plan[1])
        return numbers


def _check_sizes(sizes: list[int]) -> None:
    odd = next((k for k, size in enumerate(sizes) if size != sizes[0]), None)
    if odd is not None:
        raise ValueError(
            f"worker 0 drew {sizes[0]} samples and worker {odd} {sizes[odd]}: expected equally "
            f"many, to step at once; cut all shards to one length, such as shard[:n], or {INSTEAD}."
        )
