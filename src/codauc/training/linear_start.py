"""Logistic regression as the start of an ensemble's linear models, on the rows of all workers."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from codauc.models import TabularEnsemble
from codauc.models.tabular_ensemble import linear_inputs
from codauc.workers.group import Group

_RIDGE = 1.0  # of the squares of the weights, for a sum over the rows: scikit-learn's C = 1
_ITERATIONS = 100


class _Solver(torch.optim.LBFGS):
    """L-BFGS without torch's wrapper for its compiler, which imports that for seconds."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)


def start_linear_models(
    model: TabularEnsemble, x: Tensor, y: Tensor, weights: Tensor, group: Group
) -> None:
    """Fit each member's linear model to its rows; the networks begin at zero beside it.

    The minimum of the penalised cross-entropy is found by L-BFGS, whose values and gradients are
    sums over all workers: any division of the rows gives the same result.

    Args:
        model: whose members get it.
        x: some rows of this worker.
        y: their labels.
        weights: how much each counts for each member, [N, members].
        group: the workers; all call it.
    """
    numbers, codes = model.columns(x)
    numbers, weights = linear_inputs(numbers).double(), weights.double()
    labels = y.double().unsqueeze(1).expand_as(weights)
    # a number and its asinh are nearly in line, for which single precision is not enough
    linear = copy.deepcopy(model.linear).double()
    intercept = numbers.new_zeros(weights.shape[1], requires_grad=True)  # the same on all workers
    slopes: list[Tensor] = list(linear.parameters())
    trained = [*slopes, intercept]
    solver = _Solver(trained, max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

    def value() -> Tensor:
        logits = linear(numbers, codes, slice(None)).t() + intercept
        return binary_cross_entropy_with_logits(logits, labels, weights, reduction="sum")

    solver.step(  # type: ignore[no-untyped-call]
        _over_all(value, slopes, trained, group)
    )
    with torch.no_grad():
        if all(bool(tensor.isfinite().all()) for tensor in trained):
            model.linear.load_state_dict(linear.state_dict())
            model.head.bias.copy_(intercept.view_as(model.head.bias))
            model.head.weight.zero_()


def _over_all(
    value: Callable[[], Tensor], slopes: list[Tensor], trained: list[Tensor], group: Group
) -> Callable[[], float]:
    """The penalised sum over all workers, with its gradient, as a solver asks for it."""

    def closure() -> float:
        for tensor in trained:
            tensor.grad = None
        own = value()
        own.backward()  # type: ignore[no-untyped-call]
        parts = [own.detach().flatten(), *(_gradient(tensor) for tensor in trained)]
        message = torch.cat(parts)
        group.sum_(message, "start")
        total, *gradients = torch.split(message, [len(part) for part in parts])
        for tensor, gradient in zip(trained, gradients, strict=True):
            tensor.grad = gradient.view_as(tensor).clone()
        penalty = 0.0
        for tensor in slopes:
            assert tensor.grad is not None
            tensor.grad.add_(tensor.detach(), alpha=_RIDGE)
            penalty += 0.5 * _RIDGE * float(tensor.detach().square().sum())
        return float(total) + penalty

    return closure


def _gradient(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor).flatten() if tensor.grad is None else tensor.grad.flatten()
