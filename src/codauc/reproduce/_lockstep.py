"""K simulated workers in lockstep: PatchNet with the paper's step, equal to `CoDA` to rounding.

The plain path is `codauc.launch(..., simulate=True)` with `PPDSG` and `CoDA`. Here the state of all
workers is one tensor with a row for each, gradients are written by hand, and no thread changes
hands, which takes half the time. Batches of a worker are those of its own iterator; codecs and
outer steps are the library's own, on rows of the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from codauc.algorithm.compression import Compressed, Means, StateSizes
from codauc.algorithm.inner_steps import BatchMeans, InnerVariables, gradient_step, towards
from codauc.algorithm.objective import gradients
from codauc.algorithm.outer_step import Nesterov, OuterStep
from codauc.algorithm.round_costs import MessageSizes, Network, estimate_cost, round_cost
from codauc.algorithm.schedules import Stage
from codauc.algorithm.sites import Mean
from codauc.models.small_networks import PatchNet, joined_places, patches_of
from codauc.workers.group import Call

_OWN = 3  # a, b and alpha, after the weights in a message
_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)  # twice as fast as addmm with AVX512

Batches = Iterator[tuple[Tensor, Tensor]]


class LockstepProgress(NamedTuple):
    """How far a run is: steps of each worker, rounds, and bytes that one worker has sent."""

    steps: int
    rounds: int
    bytes: int
    stage_end: bool


Look = Callable[[LockstepProgress, Tensor], None]


def patches(x: Tensor, side: int) -> Tensor:
    """Images [N, C, H, W] as the rows of patches [N, places, C side side] that batches are of."""
    return patches_of(x, side).flatten(1, 2)


class Lockstep:
    """K workers that begin with the weights of `model`, and a = b = alpha = 0.

    `stage` takes the steps and rounds of a stage, from an iterator of (patches, labels) for each
    worker; `look(progress, weights)` is called after each round, with what all workers then have.
    """

    def __init__(
        self,
        model: PatchNet,
        pos_ratio: float,
        workers: int,
        *,
        gamma: float = 500.0,
        compress: str | None = None,
        outer: Nesterov | None = None,
    ) -> None:
        start = torch.cat([w.detach().flatten() for w in model.parameters()])
        self.shapes = [w.shape for w in model.parameters()]
        self.pos_ratio, self.workers, self.gamma = pos_ratio, workers, gamma
        self.weights = start.repeat(workers, 1)
        self.own = InnerVariables(*start.new_zeros(_OWN, workers))
        self.gradient = torch.zeros_like(self.weights)
        self.average, self.own_average = torch.zeros_like(self.weights), self.own[:2]
        self.messages = start.new_zeros(workers, len(start) + _OWN)
        self.outer = OuterStep(outer, self.messages[0], len(start)) if outer else None
        self.encodings = [self._encoding(compress) for _ in range(workers)] if compress else []
        self._restart_encodings()
        network = Network(workers, 1.0, 0.0)
        self.round_bytes = round_cost(network, MessageSizes(len(start)), compress).bytes
        self.estimate_bytes = estimate_cost(network).bytes
        self.progress = LockstepProgress(0, 0, 0, stage_end=False)

    def _encoding(self, name: str) -> Compressed:
        size = self.weights.shape[1]
        sizes = StateSizes(weights=size, moments=0, state=size + _OWN)
        return Compressed(_AllWorkers(self.workers), sizes, self.messages[0], name)  # type: ignore[arg-type]

    def _restart_encodings(self) -> None:
        self._pack(self.weights, *self.own[:2])
        for encoding, message in zip(self.encodings, self.messages, strict=bool(self.encodings)):
            encoding.reset(message)

    @torch.no_grad()
    def stage(self, stage: Stage, batches: Sequence[Batches], look: Look) -> None:
        """The steps of a stage, its rounds, its result, and alpha for that."""
        assert isinstance(stage.sync_every, int)
        anchors = self.weights.clone(), *(value.clone() for value in self.own[:2])
        if self.outer is not None:
            self._pack(self.weights, *self.own[:2])
            self.outer.begin(self.messages[0])
        for step in range(stage.steps):
            self._step(step, stage.lr, anchors, batches)
            if (step + 1) % stage.sync_every == 0 and step + 1 < stage.steps:
                self._round(self.weights, *self.own[:2], closing=False)
                look(self.progress, self.weights[0])
        self._round(self.average, *self.own_average, closing=True)
        self._estimate(stage.dual_samples, batches)
        look(self.progress, self.weights[0])

    def _step(
        self, step: int, eta: float, anchors: Sequence[Tensor], batches: Sequence[Batches]
    ) -> None:
        means = [self._backward(k, *next(source)) for k, source in enumerate(batches)]
        found = BatchMeans(*torch.stack(means).t())
        a, b, alpha = gradient_step(found, self.pos_ratio, self.own, eta)
        self.weights.add_(self.gradient, alpha=-eta)
        if math.isfinite(self.gamma):
            pull = eta / (eta + self.gamma)
            self.weights.lerp_(anchors[0], pull)
            a, b = towards(a, anchors[1], pull), towards(b, anchors[2], pull)
        self.own = InnerVariables(a, b, alpha)
        share = 1 / (step + 1)
        self.average.lerp_(self.weights, share)
        mean = self.own_average if step else (a, b)
        self.own_average = towards(mean[0], a, share), towards(mean[1], b, share)
        self.progress = self.progress._replace(steps=self.progress.steps + 1, stage_end=False)

    def _backward(self, k: int, x: Tensor, y: Tensor) -> Tensor:
        """Write worker k's gradient; return its batch's means of [+], [-], h[+] and h[-]."""
        layers = self._parts(self.weights[k])
        inputs = _forward(layers, x)
        h = _logits(layers, inputs, len(x)).sigmoid()
        a, b, alpha = (value[k] for value in self.own)
        slope = gradients(h, y, (a, b, alpha), self.pos_ratio).scores
        slope = slope.mul_(h * (1 - h)).div_(len(x))
        _write_gradient(layers, self._parts(self.gradient[k]), inputs, slope)
        up = y.to(h.dtype)
        marks = torch.stack((up, 1 - up))
        return torch.cat((marks.mean(1), (marks * h).mean(1)))

    def _parts(self, row: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The matrix and the shift of each layer, as views of a row."""
        parts = row.split([shape.numel() for shape in self.shapes])  # type: ignore[no-untyped-call]
        views = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return list(zip(views[::2], views[1::2], strict=True))

    def _pack(self, weights: Tensor, a: Tensor, b: Tensor) -> None:
        size = weights.shape[1]
        self.messages[:, :size] = weights
        self.messages[:, size:] = torch.stack((a, b, self.own.alpha), 1)

    def _round(self, weights: Tensor, a: Tensor, b: Tensor, *, closing: bool) -> None:
        """All workers take the mean of these weights, a, b and alpha, or what is made of it."""
        self._pack(weights, a, b)
        if self.encodings:
            _average(self.encodings, self.messages)
        else:
            self.messages.copy_(self.messages.mean(0, keepdim=True))
        if self.outer is not None and not closing:
            self.outer.take(self.messages[0])
            for encoding in self.encodings:
                encoding.follow(self.messages[0])
        answer, size = self.messages[0], weights.shape[1]
        self.weights.copy_(answer[:size])
        self.own = InnerVariables(*answer[size:].unsqueeze(1).repeat(1, self.workers))
        done = self.progress
        self.progress = LockstepProgress(
            done.steps, done.rounds + 1, done.bytes + self.round_bytes, stage_end=closing
        )

    def _estimate(self, samples: int, batches: Sequence[Batches]) -> None:
        """Alpha for the weights of now: the mean over the workers of the means' differences."""
        layers, found = self._parts(self.weights[0]), []
        for source in batches:
            scores, labels, left = [], [], samples
            while left > 0:
                x, y = next(source)
                scores.append(_logits(layers, _forward(layers, x), len(x)).sigmoid()[:left])
                labels.append(y[:left])
                left -= len(x)
            h, up = torch.cat(scores), torch.cat(labels).bool()
            found.append(torch.stack((h[~up].mean(), h[up].mean())))
        negative, positive = torch.stack(found).mean(0)
        alpha = (negative - positive).repeat(self.workers)
        self.own = InnerVariables(self.own.a, self.own.b, alpha)
        self.progress = self.progress._replace(bytes=self.progress.bytes + self.estimate_bytes)

    @torch.no_grad()
    def scores(self, weights: Tensor, x: Tensor, at_once: int = 500) -> Tensor:
        """Logits of patches with these weights."""
        layers = self._parts(weights)
        parts = torch.split(x, at_once)
        return torch.cat([_logits(layers, _forward(layers, part), len(part)) for part in parts])


def _linear(x: Tensor, weight: Tensor, shift: Tensor | None, *, relu: bool = False) -> Tensor:
    """Rows times a matrix [out, in], and then a shift and a ReLU."""
    if _ONEDNN is not None and x.dtype == torch.float32:
        found: Tensor = _ONEDNN(x, weight, shift, "relu" if relu else "none", [], "")
        return found
    found = x @ weight.t() if shift is None else torch.addmm(shift, x, weight.t())
    return found.relu_() if relu else found


def _forward(layers: list[tuple[Tensor, Tensor]], x: Tensor) -> list[Tensor]:
    """The rows that enter each layer: patches, then 2 x 2 places of the layer before."""
    side, inputs = math.isqrt(x.shape[1]), [x.reshape(-1, x.shape[2])]
    for weight, shift in layers[:-1]:
        h = _linear(inputs[-1], weight, shift, relu=True).view(len(x), side, side, -1)
        side //= 2
        inputs.append(joined_places(h).view(-1, 4 * h.shape[-1]))
    return inputs


def _logits(layers: list[tuple[Tensor, Tensor]], inputs: list[Tensor], samples: int) -> Tensor:
    weight, shift = layers[-1]
    return torch.addmv(shift, inputs[-1], weight[0]).view(samples, -1).mean(1)


def _write_gradient(
    layers: list[tuple[Tensor, Tensor]],
    out: list[tuple[Tensor, Tensor]],
    inputs: list[Tensor],
    slope: Tensor,
) -> None:
    """From the slope of each sample's logit to the gradients of all layers."""
    n, places = len(slope), len(inputs[-1]) // len(slope)
    side = math.isqrt(places)
    g = slope.div_(places).unsqueeze(1).repeat(1, places).view(-1, 1)
    for i in reversed(range(len(layers))):
        torch.mm(g.t(), inputs[i], out=out[i][0])
        torch.sum(g, 0, out=out[i][1])
        if i:
            weight = layers[i][0]
            back = g * weight if len(weight) == 1 else _linear(g, weight.t().contiguous(), None)
            back = torch.ops.aten.threshold_backward(back, inputs[i], 0)
            blocks = back.view(n, side, side, 2, 2, -1).transpose(2, 3)
            side *= 2
            g = blocks.reshape(n * side * side, -1)


class _AllWorkers:
    """In the place of a group: collectives are answered by `_average` for all workers at once."""

    rank = 0

    def __init__(self, size: int) -> None:
        self.size = size

    def start(self, call: Call) -> Call:
        """Hand the call over."""
        return call


def _average(encodings: Sequence[Compressed], messages: Tensor) -> None:
    """What every encoding's `average` does, with their collectives answered."""
    means = Means(Mean(len(messages)), Mean(len(messages)))
    flights: list[Any] = [
        encoding.average(message, means)
        for encoding, message in zip(encodings, messages, strict=True)
    ]
    while calls := [call for call in (next(flight, None) for flight in flights) if call]:
        given = torch.stack([call.tensor for call in calls])
        for k, call in enumerate(calls):  # an exchange gives worker k row k of each, a gather all
            call.out.copy_(given[:, k] if call.name == "exchange" else given.view_as(call.out))
