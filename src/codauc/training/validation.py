"""Evaluation on the validation set, with the scores of all workers, and the model to keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from codauc.algorithm.ppdsg import PPDSG
from codauc.algorithm.rounds import NotFiniteError
from codauc.data.dataset import Part
from codauc.data.rows import as_rows
from codauc.metrics import AUC, weighted_auc_interval
from codauc.metrics.auc_difference import paired_auc_difference
from codauc.metrics.evaluation import logits_of
from codauc.models import TabularEnsemble
from codauc.models.weights import check_weights
from codauc.runs.settings import RunSettings
from codauc.training.shared_scores import CountedScores, gathered, shared_scores
from codauc.workers.group import Group

_SHARES = (1.0, 0.75, 0.5, 0.25)  # of the best model, in a blend with logistic regression
_EQUAL = 2.0**-20  # of their size, by which scores of equal rows may differ, and more
_TOLERANCE = 1.0  # standard errors of a difference of AUCs that do not count


@dataclass(frozen=True)
class WindowState:
    """A window in a checkpoint."""

    count: int
    means: list[Tensor]


class Window:
    """The mean of the models that all workers shared since it was last used; nothing is sent."""

    def __init__(self, opt: PPDSG) -> None:
        self.opt, self.count = opt, 0
        self.means = [torch.zeros_like(weights) for weights in self._weights()]

    def _weights(self) -> list[Tensor]:
        return self.opt.trained.weights

    @torch.no_grad()
    def add(self) -> None:
        """Add the weights as they are now."""
        self.count += 1
        for mean, weights in zip(self.means, self._weights(), strict=True):
            mean.lerp_(weights, 1 / self.count)

    @contextmanager
    def as_weights(self) -> Iterator[None]:
        """Inside this block the model has the mean for weights; then a new mean begins."""
        own = [weights.clone() for weights in self._weights()]
        if self.count:
            self._set(self.means)
        try:
            yield
        finally:
            self._set(own)
            self.count = 0

    @torch.no_grad()
    def _set(self, values: list[Tensor]) -> None:
        for weights, value in zip(self._weights(), values, strict=True):
            weights.copy_(value)

    def state(self) -> WindowState:
        """The mean so far, as a copy."""
        return WindowState(self.count, [mean.clone() for mean in self.means])

    @torch.no_grad()
    def load(self, state: WindowState) -> None:
        """Continue a mean that was saved."""
        self.count = int(state.count)
        for mean, saved in zip(self.means, state.means, strict=True):
            mean.copy_(saved)


@dataclass(frozen=True)
class ChoiceState:
    """The model that is kept, its scores on the validation set, and the best AUC so far."""

    best_auc: float = -1.0
    best_scores: NDArray[Any] | None = None
    weights: dict[str, Tensor] | None = None
    step: int = 0
    scores: NDArray[Any] | None = None
    auc: float | None = None
    linear: dict[str, Tensor] | None = None  # logistic regression, to blend it with the best
    linear_scores: NDArray[Any] | None = None


class ModelChoice:
    """Keeps one model: "best", "last", "steady", or "blend".

    With few positives the best AUC of many evaluations is mostly luck, and later models are better
    than they seem; on noisy data the last ones have learnt the noise. "steady" takes the latest
    model whose AUC is below the best by no more than the standard error of the paired difference.
    So training continues on a model that is not clearly worse. "blend" takes the best, of equal
    ones the latest, and at the end as much of logistic regression, with which the run began, as
    makes its AUC the largest.
    """

    def __init__(
        self,
        model: nn.Module,
        rule: str,
        error: Callable[[NDArray[Any], NDArray[Any]], float] | None = None,
    ) -> None:
        self.model, self.rule, self.error = model, rule, error
        self.state = ChoiceState()

    def offer(
        self,
        step: int,
        auc: float,
        scores: NDArray[Any],
        labels: NDArray[Any],
        *,
        weighted: bool = False,
    ) -> bool:
        """Keep the model as it is now if the rule says so; returns whether it does.

        Where the AUC is `weighted`, so is the difference of two; its error is that without weights.
        `scores` are what a worker keeps of them, which `error` of two models takes.
        """
        if self.rule == "blend" and self.state.weights is None:
            assert isinstance(self.model, TabularEnsemble)
            linear = self.model.linear_weights()
            self.state = replace(self.state, linear=linear, linear_scores=scores)
        better = auc > self.state.best_auc
        if better:
            self.state = replace(self.state, best_auc=auc, best_scores=scores)
        equal = auc == self.state.best_auc  # where all are ordered rightly, nothing speaks for less
        keep = better or self.rule == "last" or (self.rule == "blend" and equal)
        if not keep and self.rule == "steady":
            keep = self._close(scores, labels, auc, weighted=weighted)
        if keep:
            weights = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
            self.state = replace(self.state, weights=weights, step=step, scores=scores, auc=auc)
        return keep

    def _close(
        self, scores: NDArray[Any], labels: NDArray[Any], auc: float, *, weighted: bool
    ) -> bool:
        best = self.state.best_scores
        assert best is not None
        lost = self.state.best_auc - auc
        if self.error is not None:
            return lost <= _TOLERANCE * self.error(best, scores)
        gap = paired_auc_difference(best, scores, labels)
        return (lost if weighted else gap.value) <= _TOLERANCE * gap.std_error

    def load(self, state: ChoiceState) -> None:
        """Continue with a choice that was saved."""
        if state.weights is not None:
            check_weights("the state", self.model, state.weights)
        self.state = state

    def restore(self) -> None:
        """Give the model the weights that were kept."""
        if self.state.weights is not None:
            self.model.load_state_dict(self.state.weights)

    def blend(self, auc_of: Callable[[NDArray[Any]], float]) -> None:
        """Restore the best model, blended with logistic regression for the largest `auc_of`.

        A logit becomes share * logit + (1 - share) * (logit of logistic regression).
        """
        self.restore()
        kept = self.state
        if kept.linear is None:
            return
        assert isinstance(self.model, TabularEnsemble)
        assert kept.scores is not None
        assert kept.linear_scores is not None
        blends = {w: w * kept.scores + (1 - w) * kept.linear_scores for w in _SHARES}
        aucs = {share: auc_of(scores) for share, scores in blends.items()}
        share = max(_SHARES, key=aucs.__getitem__)
        self.model.blend(kept.linear, share)
        self.state = replace(kept, scores=blends[share], auc=aucs[share])


@dataclass(frozen=True)
class ValidationResult:
    """The scores of one evaluation, that belong to the labels, and what follows from them."""

    scores: NDArray[Any]
    auc: AUC
    drift: float | None  # root mean square over the workers
    kept: bool


class Validation:
    """Evaluates the model on the validation set, and chooses which model to keep.

    Every worker scores its part, and all know the scores of all, or how many are in each bin. With
    `average` "window" the model that is evaluated is the mean of those that all workers shared
    since the last evaluation.
    """

    def __init__(self, opt: PPDSG, part: Part | None, group: Group, settings: RunSettings) -> None:
        recipe = settings.recipe
        self.model, self.part, self.group = opt.model, part, group
        self.members = settings.model.arguments.get("members", 1)
        self.window = Window(opt) if recipe.average == "window" else None
        self.shared = None if part is None else shared_scores(part, group, settings.data)
        counted = isinstance(self.shared, CountedScores)
        error = self.shared.difference_error if self.shared is not None and counted else None
        self.choice = ModelChoice(opt.model, recipe.select, error)
        self.labels: NDArray[np.bool_] = np.empty(0, bool)
        self.weights: NDArray[np.float64] | None = None
        if self.shared is not None:
            self.labels, self.weights = self.shared.labels, self.shared.weights

    @contextmanager
    def evaluated(self, step: int, drift: float | None) -> Iterator[ValidationResult]:
        """Evaluate; inside this block the model has the weights that were evaluated."""
        with nullcontext() if self.window is None else self.window.as_weights():
            mine, mean_drift = self._scores(drift)
            scores = self._shown(mine)
            if np.isnan(scores).any():
                raise NotFiniteError("scores are not numbers: lower the step size.")
            auc = self._auc(scores)
            kept = self.choice.offer(
                step, auc.value, mine, self.labels, weighted=self.weights is not None
            )
            yield ValidationResult(scores, auc, mean_drift, kept)

    def restore_choice(self) -> None:
        """Give the model the weights of the choice."""
        if self.choice.rule == "blend":
            self.choice.blend(lambda kept: self._auc(self._shown(kept)).value)
        else:
            self.choice.restore()

    def chosen_scores(self) -> NDArray[Any] | None:
        """The scores of the model that is kept, that belong to the labels."""
        kept = self.choice.state.scores
        return None if kept is None else self._shown(kept)

    def _shown(self, kept: NDArray[Any]) -> NDArray[Any]:
        assert self.shared is not None
        return self.shared.shown(kept)

    def _auc(self, scores: NDArray[Any]) -> AUC:
        groups = None if self.shared is None else self.shared.groups
        return weighted_auc_interval(scores, self.labels, self.weights, groups)

    def _scores(self, drift: float | None) -> tuple[NDArray[Any], float | None]:
        """What this worker keeps of the model's scores, and the drift of all."""
        assert self.part is not None
        assert self.shared is not None
        own = scores_of(self.model, self.part)
        if self.part.folds is not None:
            own = levelled(own, self.part.folds.numpy(), self.members, self.group)
        scores = self.shared.kept(own)
        if self.group.size == 1:
            return scores, None
        drifts = gathered(np.array([np.nan if drift is None else drift]), self.group)
        mean = None if np.isnan(drifts).any() else float(np.sqrt((drifts**2).mean()))
        return scores, mean


def scores_of(model: nn.Module, part: Part) -> NDArray[Any]:
    """The logits of a worker's samples, as float32; where these have folds, of unseen samples."""
    if not len(part.x):
        return np.empty(0, np.float32)
    if part.folds is None:
        return logits_of(model, part.x).astype(np.float32, copy=False)
    found = np.empty(len(part.x), np.float32)
    for member in np.unique(part.folds.numpy()).tolist():
        rows = (part.folds == member).nonzero().flatten()
        found[rows.numpy()] = logits_of(_Member(model, member), part.x[rows])
    return found


def levelled(scores: NDArray[Any], folds: NDArray[Any], members: int, group: Group) -> NDArray[Any]:
    """Scores by several members, each of its own fold, with the mean of all in every fold.

    Folds are alike, but members need not agree on where 0 is: their mean is what is used in the
    end, and no pair of two members' scores should count for a difference of theirs. Nor should
    rounding: equal rows may differ in the last digits of a float32, which are rounded away.
    """
    sums = torch.zeros(3, members, dtype=torch.float64)
    for row, values in enumerate((np.ones(len(scores)), scores, scores.astype(np.float64) ** 2)):
        sums[row] = torch.from_numpy(np.bincount(folds, values, members))
    group.sum_(sums, "evaluate")
    counts, totals, squares = sums.numpy()
    with np.errstate(invalid="ignore"):  # of scores that are not finite nobody makes use
        every = max(1.0, counts.sum())
        means = totals / np.maximum(1.0, counts)
        step = _EQUAL * max(np.sqrt(squares.sum() / every), np.finfo(np.float32).tiny)
        found: NDArray[Any] = np.round((scores - means[folds]) / step) * step
        found += totals.sum() / every
    return found.astype(scores.dtype)


class _Member(nn.Module):
    """One member of an ensemble."""

    def __init__(self, ensemble: nn.Module, number: int) -> None:
        super().__init__()
        self.ensemble, self.number = ensemble, number

    def forward(self, x: Tensor) -> Tensor:
        """Its logits."""
        found: Tensor = self.ensemble(x, member=self.number)
        return found


def check_scores(
    source: str, model: nn.Module, part: Part, scores: NDArray[Any], names: list[str] | None
) -> None:
    """Raise if a sample has no finite score; say which, and the reason if it is known.

    `names` are those of the inputs' columns, None for images.
    """
    bad = ~np.isfinite(scores)
    if not bad.any():
        return
    first = int(np.flatnonzero(bad)[part.rows.numpy()[bad].argmin()])
    if not all(bool(value.isfinite().all()) for value in model.state_dict().values()):
        reason = "the model has weights that are not finite: train it again"
    else:
        reason = _farthest(part, first, names)
    raise ValueError(
        f"{source}: {int(bad.sum())} of {len(bad)} rows have no finite score, the first is row "
        f"{int(part.rows[first])} with {scores[first]:g}: expected a number; {reason}."
    )


def _farthest(part: Part, index: int, names: list[str] | None) -> str:
    """The remedy for a sample whose inputs are too large to be scored."""
    inputs = as_rows(part.x).gather(torch.tensor([index])).flatten()
    if names is None or len(names) != len(inputs):
        return "correct its image, or train the model again"
    at = int(inputs.abs().argmax())
    return (
        f"its {names[at]!r} is {inputs[at]:.3g} standard deviations from the mean of training: "
        "correct it, or leave it empty"
    )
