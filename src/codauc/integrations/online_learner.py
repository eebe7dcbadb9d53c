"""What `partial_fit` keeps from call to call, and one pass over new rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.data import Batches
from codauc.data.dataset import Part
from codauc.data.rows import as_rows
from codauc.metrics.calibration import Calibration, calibrate
from codauc.metrics.evaluation import logits_of
from codauc.runs.settings import Recipe
from codauc.training.build import make_loss, make_optimizer

_KEPT, _KEPT_BYTES = 1024, 1 << 24  # the sample of a stream that calibrates: rows, bytes
_ENOUGH = 10  # of each class in it, to calibrate


@dataclass
class Learner:
    """What `partial_fit` keeps: label counts, the optimizer's state, a random sample of rows."""

    seed: int
    counts: Tensor = field(default_factory=lambda: torch.zeros(2, 1, dtype=torch.int64))
    calls: int = 0
    optimizer: dict[str, Any] | None = None
    keys: Tensor = field(default_factory=lambda: torch.empty(0))  # the smallest are kept
    x: Tensor | None = None
    y: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bool))

    @property
    def ratio(self) -> float:
        """The share of positives so far, never 0 or 1."""
        return (float(self.counts[0]) + 0.5) / (float(self.counts.sum()) + 1)

    def learn(self, module: nn.Module, part: Part, recipe: Recipe) -> int:
        """One pass over the rows; returns the number of steps."""
        assert part.y is not None
        loss = make_loss(module, None, recipe.mix).eval()  # which does not count labels by itself
        opt = make_optimizer(module, loss, replace(recipe, average="none"))
        if self.optimizer is None:
            _start(loss, module, part)
        else:
            opt.load_state_dict(self.optimizer)
        loss.counts.copy_(self.counts)
        opt.begin_stage(recipe.lr)
        seed = self.seed + self.calls
        batches = Batches(part.x, part.y, recipe.batch_size, seed=seed)
        objective = loss.cross_entropy if recipe.warm_start == 1 else loss
        module.train()
        while batches.epoch == 0:
            x, y = next(batches)
            opt.zero_grad()
            objective(module(x), y).backward()
            opt.step()
        module.eval()
        steps, self.optimizer = opt.steps, opt.state_dict()
        opt.zero_grad()
        _apart(module)
        self._keep(part, seed)
        self.calls += 1
        return steps

    def _keep(self, part: Part, seed: int) -> None:
        """A random sample of all rows so far: those with the smallest of random keys."""
        assert part.y is not None
        size = 4 * as_rows(part.x).gather(torch.tensor([0])).numel()
        room = min(_KEPT, max(2 * _ENOUGH, _KEPT_BYTES // size))
        fresh = torch.rand(len(part.y), generator=torch.Generator().manual_seed(seed))
        few = fresh.argsort()[:room]
        x, y, keys = as_rows(part.x).gather(few), part.y[few], fresh[few]
        if self.x is not None:
            x, y = torch.cat([self.x, x]), torch.cat([self.y, y])
            keys = torch.cat([self.keys, keys])
        kept = keys.argsort()[:room]
        self.x, self.y, self.keys = x[kept], y[kept], keys[kept]

    def calibrated(self, module: nn.Module) -> Calibration | None:
        """The calibration by the sample; None while it has too few of a class."""
        labels = self.y.numpy()
        if min(labels.sum(), (~labels).sum()) < _ENOUGH:
            return None
        return calibrate(logits_of(module, self.x), labels)


@torch.no_grad()
def _start(loss: MinMaxAUCLoss, module: nn.Module, part: Part) -> None:
    """a, b and alpha from the mean scores of the classes that are there."""
    assert part.y is not None
    h, y = torch.from_numpy(logits_of(module, part.x)).sigmoid(), part.y
    for parameter, members in ((loss.a, h[y]), (loss.b, h[~y])):
        if len(members):
            parameter.fill_(float(members.mean()))
    loss.alpha.copy_(loss.b - loss.a)


def _apart(module: nn.Module) -> None:
    """Give each tensor memory of its own again: a copy of a view holds all that it is a view of."""
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data = tensor.data.clone()
