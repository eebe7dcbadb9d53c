"""Which of the models met during a run is kept, by the validation set."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from codauc.ranking import auc_difference

_TOLERANCE = 0.5  # standard errors of the difference that do not count


class Selection:
    """Keeps one model: "best", "last", or "steady".

    With few positives the best AUC of many looks is mostly luck, and later models are better than
    they seem; on noisy data the last ones have learnt the noise. "steady" takes the latest model
    whose AUC is below the best by no more than half a standard error of the paired difference. So a
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

    def offer(self, step: int, auc: float, scores: NDArray[Any], labels: NDArray[Any]) -> None:
        """Look at the model as it is now; keep it if the rule says so."""
        better = auc > self.best_auc
        if better:
            self.best_auc, self._best_scores = auc, scores
        if better or self.rule == "last" or (self.rule == "steady" and self._close(scores, labels)):
            self._kept = {name: t.detach().clone() for name, t in self.model.state_dict().items()}
            self.step, self.scores, self.auc = step, scores, auc

    def _close(self, scores: NDArray[Any], labels: NDArray[Any]) -> bool:
        assert self._best_scores is not None
        gap = auc_difference(self._best_scores, scores, labels)
        return gap.value <= _TOLERANCE * gap.std_error or not np.isfinite(gap.std_error)

    def restore(self) -> None:
        """Give the model the weights that were kept."""
        if self._kept is not None:
            self.model.load_state_dict(self._kept)
