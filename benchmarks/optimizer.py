"""`opt.step()` alone, from gradients that are there, each a tensor of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import codauc
from benchmarks.measuring import Benchmark, Options, Pairs, alternate
from benchmarks.peers import libauc, mlp, pesg
from codauc.models import ResNet20, ResNet50

Step = Callable[[], Any]
Network = Callable[[Options], nn.Module]


def resnet50(options: Options) -> nn.Module:
    """25.6 million floats in 161 tensors; in the short form a ResNet-20."""
    return ResNet20() if options.short else ResNet50(outputs=1000)


def small(options: Options) -> nn.Module:
    """The MLP."""
    del options
    return mlp()


def with_gradients(model: nn.Module) -> nn.Module:
    """Give every parameter a random gradient; small, as the same is used again and again."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = 1e-4 * torch.randn_like(parameter)
    return model


def ppdsg(model: nn.Module, **options: Any) -> Step:
    """Our step, with the pull to the anchor and the running average."""
    loss = codauc.MinMaxAUCLoss(pos_ratio=0.1)
    return repeated(codauc.PPDSG(with_gradients(model), loss, lr=0.01, average=True, **options))


def repeated(opt: codauc.PPDSG) -> Step:
    """Its step, with the same class sums each time: a step uses them up."""
    sums = opt.loss.sums
    kept = torch.tensor([[0.1, 0.9, 0.06, 0.45, 1.0]])

    def step() -> None:
        sums.grad = kept
        opt.step()

    return step


def ppdadam(model: nn.Module) -> Step:
    """The step of the default recipe."""
    loss = codauc.MinMaxAUCLoss(pos_ratio=0.1)
    return repeated(codauc.PPDAdam(with_gradients(model), loss, lr=1e-4, average=True))


def adam(model: nn.Module) -> Step:
    """Torch's own."""
    return torch.optim.Adam(with_gradients(model).parameters(), lr=1e-4).step


def sgd(model: nn.Module, **options: Any) -> Step:
    """Torch's own, with momentum."""
    parameters = with_gradients(model).parameters()
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, **options).step


def libauc_pesg(model: nn.Module) -> Step:
    """LibAUC's, with its loss's a, b and alpha."""
    loss = libauc().loss()
    opt = pesg(with_gradients(model), with_gradients(loss))
    return opt.step


def measure(
    options: Options,
    network: Network,
    ours: Callable[[nn.Module], Step],
    theirs: Callable[[nn.Module], Step],
    repeats: int,
) -> Pairs:
    """Both on networks of their own."""
    other = theirs(network(options))
    return alternate(ours(network(options)), other, options.times(repeats))


def _benchmark(
    name: str,
    network: Network,
    theirs: tuple[str, Callable[[nn.Module], Step]],
    goal: float | None = None,
    ours: tuple[str, Callable[[nn.Module], Step]] = ("step of PPDSG, with running average", ppdsg),
    repeats: int = 40,
) -> Benchmark:
    run = partial(measure, network=network, ours=ours[1], theirs=theirs[1], repeats=repeats)
    return Benchmark(f"optimizer/{name}", ours[0], theirs[0], run, goal)


_FUSED = ("step of torch SGD(momentum=0.9, fused=True)", partial(sgd, fused=True))
_FOREACH = ("step of torch SGD(momentum=0.9, foreach=True)", partial(sgd, foreach=True))
_SGD = ("step of torch SGD(momentum=0.9)", sgd)
_PESG = ("step of LibAUC's PESG", libauc_pesg)
_MOMENTUM = ("step of PPDSG(momentum=0.9), with running average", partial(ppdsg, momentum=0.9))

_ADAM = ("step of torch Adam", adam)
_PPDADAM = ("step of PPDAdam, with running average", ppdadam)

BENCHMARKS = [
    _benchmark("resnet50-sgd-fused", resnet50, _FUSED, 1.8),
    _benchmark("resnet50-momentum-sgd-fused", resnet50, _FUSED, ours=_MOMENTUM),
    _benchmark("resnet50-sgd-foreach", resnet50, _FOREACH),
    _benchmark("resnet50-libauc", resnet50, _PESG, 0.4),
    _benchmark("mlp-sgd", small, _SGD, 0.7, repeats=200),
    _benchmark("mlp-sgd-foreach", small, _FOREACH, repeats=200),
    _benchmark("mlp-sgd-fused", small, _FUSED, repeats=200),
    _benchmark("mlp-libauc", small, _PESG, repeats=200),
    _benchmark("resnet50-adam", resnet50, _ADAM, ours=_PPDADAM),
    _benchmark("mlp-adam", small, _ADAM, ours=_PPDADAM, repeats=200),
]
