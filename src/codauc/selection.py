"""Which of the models met during a run is kept, by the validation set."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from torch import Tensor, nn

from codauc.paired import paired_auc_difference
from codauc.parameters import check_weights

_TOLERANCE = 1.0  # standard errors of the difference that do not count
_STATE = ("best_auc", "_best_scores", "_kept", "step", "scores", "auc")


class Selection:
    """Keeps one model: "best", "last", or "steady".

    With few positives the best AUC of many looks is mostly luck, and later models are better than
    they seem; on noisy data the last ones have learnt the noise. "steady" takes the latest model
    whose AUC is below the best by no more than the standard error of the paired difference. So a
    model that is not clearly worse is trained on.
    """

    def __init__(self, model: nn.Module, rule: str) -> None:
        self.model, self.rule = model, rule
        self.best_auc = -1.0
        self._best_scores: NDArray[Any] | None = None
        self._kept: dict[str, Tensor] | None = None
        self.step = 0  # of the model that is kept
        self.scores: NDArray[Any] | None = None  # its scores on the validation set
        self.auc: float | None = None

    def offer(self, step: int, auc: float, scores: NDArray[Any], labels: NDArray[Any]) -> bool:
        """Look at the model as it is now; keep it if the rule says so, and tell whether."""
        better = auc > self.best_auc
        if better:
            self.best_auc, self._best_scores = auc, scores
        steady = self.rule == "steady" and not better and self._close(scores, labels)
        keep = better or steady or self.rule == "last"
        if keep:
            self._kept = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
            self.step, self.scores, self.auc = step, scores, auc
        return keep

    def _close(self, scores: NDArray[Any], labels: NDArray[Any]) -> bool:
        assert self._best_scores is not None
        gap = paired_auc_difference(self._best_scores, scores, labels)
        return gap.value <= _TOLERANCE * gap.std_error

    def state_dict(self) -> dict[str, Any]:
        """What is kept; nothing in it changes later."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what was kept."""
        kept = state["_kept"]
        if kept is not None:
            check_weights("the state", self.model, kept)
        for name in _STATE:
            setattr(self, name, state[name])

    def restore(self) -> None:
        """Give the model the weights that were kept."""
        if self._kept is not None:
            self.model.load_state_dict(self._kept)
