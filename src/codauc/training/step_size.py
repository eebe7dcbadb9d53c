"""The factor of the step size at each step: the schedule, and what halvings leave of it."""

from __future__ import annotations

from codauc.algorithm.ppdsg import PPDSG
from codauc.runs.settings import Recipe
from codauc.training.recipe import factor_of


class StepSize:
    """Sets the optimizer's step size for each step of a run."""

    def __init__(self, opt: PPDSG, recipe: Recipe, steps: int) -> None:
        self.opt, self.reduced = opt, 1.0  # below 1 after numbers that were not finite
        self._factor = factor_of(recipe, steps)
        self._base = [group["lr"] for group in opt.param_groups]
        if recipe.optimizer == "adam":  # alpha's own step size, of the last group, stays
            self._base.pop()
        self.set(0)

    def set(self, step: int) -> None:
        """Give the optimizer the step size of this step."""
        factor = self.reduced * self._factor(step)
        for group, lr in zip(self.opt.param_groups, self._base, strict=False):
            group["lr"] = lr * factor
