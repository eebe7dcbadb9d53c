"""Which of the models evaluated during a run is kept, by the validation set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray
from torch import Tensor, nn

from codauc.metrics.auc_difference import paired_auc_difference
from codauc.models.weights import check_weights

_TOLERANCE = 1.0  # standard errors of the difference that do not count


@dataclass(frozen=True)
class ChoiceState:
    """The model that is kept, its scores on the validation set, and the best AUC so far."""

    best_auc: float = -1.0
    best_scores: NDArray[Any] | None = None
    weights: dict[str, Tensor] | None = None
    step: int = 0
    scores: NDArray[Any] | None = None
    auc: float | None = None


class ModelChoice:
    """Keeps one model: "best", "last", or "steady".

    With few positives the best AUC of many evaluations is mostly luck, and later models are better
    than they seem; on noisy data the last ones have learnt the noise. "steady" takes the latest
    model whose AUC is below the best by no more than the standard error of the paired difference.
    So training continues on a model that is not clearly worse.
    """

    def __init__(self, model: nn.Module, rule: str) -> None:
        self.model, self.rule = model, rule
        self.state = ChoiceState()

    def offer(self, step: int, auc: float, scores: NDArray[Any], labels: NDArray[Any]) -> bool:
        """Keep the model as it is now if the rule says so; returns whether it does."""
        better = auc > self.state.best_auc
        if better:
            self.state = replace(self.state, best_auc=auc, best_scores=scores)
        keep = (
            better or self.rule == "last" or (self.rule == "steady" and self._close(scores, labels))
        )
        if keep:
            weights = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
            self.state = replace(self.state, weights=weights, step=step, scores=scores, auc=auc)
        return keep

    def _close(self, scores: NDArray[Any], labels: NDArray[Any]) -> bool:
        assert self.state.best_scores is not None
        gap = paired_auc_difference(self.state.best_scores, scores, labels)
        return gap.value <= _TOLERANCE * gap.std_error

    def load(self, state: ChoiceState) -> None:
        """Continue with a choice that was saved."""
        if state.weights is not None:
            check_weights("the state", self.model, state.weights)
        self.state = state

    def restore(self) -> None:
        """Give the model the weights that were kept."""
        if self.state.weights is not None:
            self.model.load_state_dict(self.state.weights)
