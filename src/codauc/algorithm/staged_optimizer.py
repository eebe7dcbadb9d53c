"""What the optimizers share: stages, the average of their iterates, and the state they save."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from codauc.algorithm.control_variates import ControlVariates
from codauc.algorithm.data_parallel import DataParallelWrapper
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.optimizer_state import OptimizerState
from codauc.algorithm.parameter_groups import checked_options, weight_groups
from codauc.algorithm.trained_state import TrainedState

# torch wraps these so that its compiler leaves them alone, and to do so imports it, for seconds.
_ADD_PARAM_GROUP = inspect.unwrap(torch.optim.Optimizer.add_param_group)
_STATE_DICT = inspect.unwrap(torch.optim.Optimizer.state_dict)
_ZERO_GRAD = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class StagedOptimizer(torch.optim.Optimizer):
    """Stages and saved state of `PPDSG`; the step itself is the subclass's.

    `state[w]` holds for each weight its anchor, the average of its iterates and moments, and is
    made by the first step of a stage. a, b and alpha are in no parameter group.
    """

    gamma: float
    max_grad_norm: float | None

    def __init__(
        self,
        model: nn.Module,
        loss: MinMaxAUCLoss,
        groups: list[dict[str, Any]],
        defaults: dict[str, Any],
        *,
        average: bool,
    ) -> None:
        if not isinstance(average, bool):
            raise ValueError(f"average={average!r}: expected True, or False for the last iterate.")
        self.model, self.loss, self.average = model, loss, average
        self.base_lr: float = defaults["lr"]
        self.stage_lr: float = self.base_lr
        self.steps = 0
        self.engaged = False  # whether a CoDA drives it
        self.away = False  # whether it is a site that takes no part until the next round
        self.variates: ControlVariates | None = None  # what corrects its gradients
        self.local_norm = False  # whether rounds leave BatchNorm's statistics to each worker
        self.own: dict[str, Tensor] = {}  # anchor and average of a and b, [2, tasks]
        self._check_step_size(self.stage_lr)
        super().__init__(groups, defaults)
        self.first_lr: float = float(self.param_groups[0]["lr"])  # before any scheduler
        self.trained = self._find_trained()
        self.data_parallel = DataParallelWrapper(model)
        loss.has_optimizer = True

    def _find_trained(self, names: frozenset[str] = frozenset()) -> TrainedState:
        """What asks for gradients now, and weights of these names."""
        groups = [group["params"] for group in self.param_groups]
        moments = getattr(self, "moments", None)
        statistics = not self.local_norm
        return TrainedState(self.model, self.loss, groups, names, moments, statistics=statistics)

    def _check_step_size(self, eta: float) -> None:
        """Raise if a, b and alpha cannot take steps of this size."""

    def begin_stage(self, lr: float | None = None) -> None:
        """Start a stage: the next step begins at its anchor; averages and moments restart.

        What was frozen or unfrozen since the last stage is left out or trained from here on.
        """
        lr = self.stage_lr if lr is None else checked_options({"lr": lr})["lr"]
        self._check_step_size(self._dual_step_size(lr))
        self.trained = self._find_trained()
        self.stage_lr, self.steps = lr, 0
        self.state.clear()
        self.own = {}

    @torch.no_grad()
    def end_stage(self) -> None:
        """Take the stage's result, the average of its iterates, as the point to begin anew from."""
        if self.engaged:
            raise RuntimeError("end_stage() of an optimizer that a CoDA drives: call coda.end().")
        if self.steps:
            self.take_result()
        self.begin_stage()

    @torch.no_grad()
    def take_result(self) -> None:
        """Give weights, a and b the values that the stage returns."""
        for tensor, result in zip(self.trained.tensors(), self.result, strict=False):
            tensor.copy_(result)

    @property
    def result(self) -> list[Tensor]:
        """What the stage returns, w, a and b: the average of the iterates, or their last value."""
        weights, loss = self.trained.weights, self.loss
        if not (self.average and self.steps):
            return [*weights, loss.a, loss.b]
        return [*(self.state[weight]["average"] for weight in weights), *self.own["average"]]

    def _start_averages(self) -> None:
        """At the first step of a stage: where it begins, and room for the averages."""
        for weight in self.trained.weights:
            self.state[weight] = self._fresh_state(weight)
        self.own = {"anchor": torch.stack((self.loss.a, self.loss.b))}
        if self.average:
            self.own["average"] = torch.zeros_like(self.own["anchor"])

    def _fresh_state(self, weight: Tensor) -> dict[str, Any]:
        """What is kept of a weight from here on; it has been constant since the stage began."""
        state = {}
        if self.gamma < float("inf"):
            state["anchor"] = weight.detach().clone()
        if self.average:
            wide = torch.promote_types(weight.dtype, torch.float32)
            state["average"] = weight.detach().to(wide, copy=True)
        return state

    def _join(self, weight: Tensor) -> dict[str, Any] | None:
        """Train a weight that was frozen until now: constant, so that its average is known.

        None if it has no gradient, or is no longer part of the model.
        """
        name = next((n for n, p in self.model.named_parameters() if p is weight), None)
        if name is None or weight.grad is None:
            return None
        if self.engaged:
            raise RuntimeError(
                f"{name} was unfrozen within a stage of CoDA, whose rounds do not average it: "
                "unfreeze between two stages."
            )
        self.trained = self._find_trained()
        self.state[weight] = state = self._fresh_state(weight)
        return state

    def _follow_moves(self) -> None:
        """Move and cast what is kept of weights and of a and b that were moved or cast."""
        for weight in self.trained.weights:
            kept = self.state[weight]
            for name, tensor in kept.items():
                if isinstance(tensor, Tensor):
                    kept[name] = _like(tensor, weight, wide=name == "average")
        self.own = {name: _like(tensor, self.loss.a) for name, tensor in self.own.items()}

    def _step_size(self, group: dict[str, Any]) -> float:
        return self.stage_lr * (float(group["lr"]) / self.base_lr)

    def _dual_step_size(self, stage_lr: float) -> float:
        """The step size of a, b and alpha; a scheduler multiplies it as that of the first group."""
        return stage_lr * (float(self.param_groups[0]["lr"]) / self.first_lr)

    @property
    def step_size(self) -> float:
        """The weights' next step size: the stage's, times what a scheduler makes of it."""
        return self._step_size(self.param_groups[0])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train further parameters of the model, between two stages."""
        if not hasattr(self, "trained"):
            _ADD_PARAM_GROUP(self, param_group)
            return
        if self.steps:
            raise RuntimeError(
                "add_param_group within a stage: call begin_stage() or end_stage() before."
            )
        (group,) = weight_groups(self.model, [param_group])
        _ADD_PARAM_GROUP(self, group)
        self.trained = self._find_trained()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of the weights, and what the loss keeps for a, b and alpha."""
        if torch.compiler.is_compiling():
            super().zero_grad(set_to_none)
        else:
            _ZERO_GRAD(self, set_to_none)
        self.loss.sums.grad = None

    def state_dict(self) -> dict[str, Any]:
        """All of the optimizer's state and the loss's a, b, alpha and counts, as copies."""
        return self.state_record().pack()

    def state_record(self) -> OptimizerState:
        """The same as a record."""
        packed = _STATE_DICT(self)
        return OptimizerState(
            layout=self.trained.layout(),
            frozen=self.trained.frozen(),
            own=_copies(self.own),
            loss=_copies(self.loss.state_dict()),
            steps=self.steps,
            stage_lr=self.stage_lr,
            base_lr=self.base_lr,
            first_lr=self.first_lr,
            gamma=self.gamma,
            max_grad_norm=self.max_grad_norm,
            settings=self.settings(),
            param_groups=packed["param_groups"],
            state={index: _copies(kept) for index, kept in packed["state"].items()},
        )

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave; the argument is neither kept nor changed."""
        state = OptimizerState.unpack(state_dict)
        trained = self._find_trained(frozenset(state.frozen))
        state.check(trained.layout(), self.settings(), set(self.loss.state_dict()))
        self._check_kept(state, trained.weights)
        super().load_state_dict({"state": state.state, "param_groups": state.param_groups})
        self.trained = trained
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for index, kept in state.state.items():  # torch casts also averages to the weights' dtype
            self.state[parameters[index]] = _copies(kept)
        self.own = _copies(state.own)
        self.loss.load_state_dict(state.loss)
        self.steps, self.stage_lr = state.steps, state.stage_lr
        self.base_lr, self.first_lr, self.gamma = state.base_lr, state.first_lr, state.gamma
        self.max_grad_norm = state.max_grad_norm
        if self.steps:
            self._follow_moves()

    def _check_kept(self, state: OptimizerState, weights: list[Tensor]) -> None:
        """Raise unless a state within a stage has what is kept of every weight, in its shape."""
        index = [p for group in self.param_groups for p in group["params"]]
        kept = {id(index[i]): found for i, found in state.state.items() if i < len(index)}
        for weight in weights if state.steps else ():
            found = kept.get(id(weight), {})
            shapes = {tuple(t.shape) for t in found.values() if isinstance(t, Tensor)}
            needed = {"average"} if self.average else set()
            if not needed <= found.keys() or shapes - {tuple(weight.shape)}:
                raise ValueError(
                    "state_dict: what it keeps of the weights does not fit this model."
                )
        if state.steps and self.average and "average" not in state.own:
            raise ValueError("state_dict: it lacks the average of a and b; it is not whole.")

    def settings(self) -> dict[str, Any]:
        """What a saved state must share with the optimizer that loads it, beside the layout."""
        loss = self.loss
        return {
            "tensors": len(self.trained.slots),
            "groups": [len(group["params"]) for group in self.param_groups],
            "average": self.average,
            "pos_ratio": None if loss.known_ratio is None else list(loss.known_ratio),
            "margin": loss.margin,
            "link": loss.link,
        }

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold: model, loss and state, without an engine and its hooks."""
        left_out = {"trained", "data_parallel", *(n for n in self.__dict__ if n.endswith("_hooks"))}
        left_out |= {"step", "_opt_called"}  # which torch's schedulers put there
        kept = {name: value for name, value in self.__dict__.items() if name not in left_out}
        return {**kept, "engaged": False, "away": False, "variates": None, "local_norm": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over what `__getstate__` gave."""
        super().__setstate__(state)
        self.trained = self._find_trained()
        self.data_parallel = DataParallelWrapper(self.model)


def _like(tensor: Tensor, weight: Tensor, *, wide: bool = False) -> Tensor:
    """The tensor with the device and the dtype of a weight, or at least float32."""
    dtype = torch.promote_types(weight.dtype, torch.float32) if wide else weight.dtype
    return tensor.to(weight.device, dtype)


def _copies(tensors: dict[str, Any]) -> dict[str, Any]:
    return {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in tensors.items()}
