"""The local step of the algorithm as a torch optimizer, and the running average of its iterates."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks as _after_all
from torch.optim.optimizer import _global_optimizer_pre_hooks as _before_all

from codauc.checks import known_arguments, real, warn
from codauc.compiled import Compiled, Loop, Numbers
from codauc.flat import Block, Entry, FlatState, entries_of
from codauc.loss import MinMaxAUCLoss
from codauc.parameters import check_modules, checked_options, weight_groups
from codauc.stretches import Cut, Stretch, stretches
from codauc.theory import step_limits


class PPDSG(torch.optim.Optimizer):
    """Proximal primal-dual stochastic gradient: descends in v = (w, a, b), ascends in alpha.

        v     <- argmin_u <g, u> + |u - v|^2 / (2 eta) + |u - v0|^2 / (2 gamma)
               = (gamma (v - eta g) + eta v0) / (eta + gamma)
        alpha <- alpha + eta dF/dalpha

    with both gradients at the old point. eta is `lr`, gamma is `gamma` (`math.inf`: no pull), v0 is
    the anchor: where the stage began. w are the model's parameters that ask for gradients; a, b and
    alpha are the loss's. The running average of the stage's iterates is kept in at least float32;
    with `average=False` the stage returns its last iterate instead.

    `weight_decay` (decoupled), `momentum` (torch's meaning: buf = momentum buf + g) and
    `max_grad_norm` concern w alone; a, b and alpha always take the paper's step. `params` may give
    torch's parameter groups over the model's parameters, with `lr`, `weight_decay` and `momentum`
    of their own; the last two of `param_groups` are those of a and b, and of alpha. A parameter
    without gradient is left alone, as by torch's optimizers.

    The step size is the stage's `lr` times the factor `group["lr"] / lr`, so that a torch
    `lr_scheduler` multiplies within a stage. One above 1/(2p(1-p)) makes alpha diverge and is
    refused; one above 1/(2 max(p, 1-p)) may push a and b out of [-1, 1] and is warned about.

    All tensors become views of one flat vector: move and cast the model before. A step touches
    memory once, in parts that fit the processor's cache. `compile=True` makes it one loop, with the
    machine's C compiler, for float32 and float64 on the CPU; equal to rounding.

    >>> model, loss = nn.Linear(3, 1), MinMaxAUCLoss(pos_ratio=0.5)
    >>> opt = PPDSG(model, loss, lr=0.1, gamma=500.0)
    >>> loss(model(torch.ones(2, 3)), torch.tensor([0, 1])).backward()
    >>> opt.step()
    >>> opt.steps
    1
    """

    flat: FlatState  # model, a, b, alpha and BatchNorm statistics; made last

    @known_arguments
    def __init__(
        self,
        model: nn.Module,
        loss: MinMaxAUCLoss,
        *,
        lr: float = 0.1,
        gamma: float = 500.0,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
        average: bool = True,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]] | None = None,
        compile: bool = False,
    ) -> None:
        check_modules(model, loss)
        self.model, self.loss = model, loss
        self.gamma = real(
            "gamma", gamma, above=0, infinite=True, remedy="use math.inf for no pull to the anchor"
        )
        self.max_grad_norm = None
        if max_grad_norm is not None:
            self.max_grad_norm = real(
                "max_grad_norm", max_grad_norm, above=0, remedy="use None not to clip"
            )
        if not isinstance(average, bool):
            raise ValueError(f"average={average!r}: expected True, or False for the last iterate.")
        if not isinstance(compile, bool):
            raise ValueError(f"compile={compile!r}: expected True, or False to step without.")
        self.average = average
        self.base_lr = self.stage_lr = checked_options({"lr": lr})["lr"]
        self.steps = 0
        self.engaged = False  # whether a CoDA drives it
        self._warned = False
        self._check_step_size(self.stage_lr)
        defaults = checked_options({"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        groups = weight_groups(model, params)
        plain = {"momentum": 0.0, "weight_decay": 0.0}
        own: list[dict[str, Any]] = [
            {"params": [loss.a, loss.b], **plain},
            {"params": [loss.alpha], **plain},
        ]
        super().__init__([*groups, *own], defaults)
        self._flatten([group["params"] for group in groups])
        self._compiled = Compiled(self.flat.vectors) if compile else None

    def _flatten(self, groups: list[list[nn.Parameter]]) -> None:
        entries = list(entries_of(self.model, groups))
        names = {"a": "ab", "b": "ab", "alpha": "alpha"}
        for name, role in names.items():
            group = len(groups) if role == "ab" else len(groups) + 1
            entries.append(Entry(f"loss.{name}", role, group, self.loss, name))
        self.flat = flat = FlatState([*entries, *self._moments(entries)])
        self.anchor = flat.like_primal()
        self.averages = flat.like_primal(torch.float32) if self.average else []
        self.momenta: list[Tensor] = []  # made when a group first has momentum
        self._dual = self.loss.alpha
        self._weights = [entry.tensor for entry in flat.entries if entry.role == "weight"]
        self._cut: list[Stretch] = []  # see _stretches
        self._cut_for: tuple[Any, ...] = ()
        self._known = {id(p) for p in self.model.parameters()}
        self._frozen = [p for p in self.model.parameters() if not p.requires_grad]
        self._last_gradients: list[Callable[[], Tensor | None]] = [lambda: None, lambda: None]

    def _moments(self, entries: list[Entry]) -> list[Entry]:
        """Further tensors that rounds average: none for plain steps."""
        del entries
        return []

    def begin_stage(self, lr: float | None = None) -> None:
        """Start a stage: the next step begins at its anchor; averages and momentum restart."""
        lr = self.stage_lr if lr is None else checked_options({"lr": lr})["lr"]
        self._check_step_size(self._step_size(self.param_groups[-1], lr))
        self.stage_lr, self.steps = lr, 0
        for vector in [*self.averages, *self.momenta]:
            vector.zero_()

    @torch.no_grad()
    def end_stage(self) -> None:
        """Take the stage's result, the average of its iterates, as the point to begin anew from."""
        if self.steps:
            for v, result in zip(self.flat.primal, self.result, strict=True):
                v.copy_(result)
            self.flat.mark_changed()
        self.begin_stage()

    @property
    def result(self) -> list[Tensor]:
        """What the stage returns: the running average of v, or its last value."""
        return self.averages if self.average else self.flat.primal

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One local step from the gradients at hand."""
        arguments = (self,) if closure is None else (self, closure)
        if type(self).step is not PPDSG.step:  # torch has wrapped the subclass's, with hooks
            return type(self)._step(*arguments)
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            name = f"Optimizer.step#{type(self).__name__}.step"
            with torch.autograd.profiler.record_function(name):
                return self._hooked_step(arguments)
        return self._hooked_step(arguments)

    # torch would wrap it in what _hooked_step does, which for a small network takes a third longer
    step.hooked = True  # type: ignore[attr-defined]

    def _hooked_step(self, args: tuple[Any, ...]) -> float | None:
        """The step between its hooks, as torch calls them."""
        named: dict[str, Any] = {}
        for before in chain(_before_all.values(), self._optimizer_step_pre_hooks.values()):
            changed = before(self, args, named)
            if changed is not None:
                if not (isinstance(changed, tuple) and len(changed) == 2):
                    raise RuntimeError(
                        f"a step pre-hook returned {changed!r}: expected None, or a tuple of new "
                        "arguments and named arguments."
                    )
                args, named = changed
        value: float | None = type(self)._step(*args, **named)
        for after in chain(self._optimizer_step_post_hooks.values(), _after_all.values()):
            after(self, args, named)
        return value

    @torch.no_grad()
    def _step(self, closure: Callable[[], float] | None = None) -> float | None:
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        flat = self.flat
        self._check_tensors()
        sizes = [self._step_size(group, self.stage_lr) for group in self.param_groups]
        self._check_step_size(sizes[-1])
        if not self._has_gradients():
            return value  # as torch's optimizers: nothing to do, and not counted
        if not self.momenta and self._has_momentum():
            self.momenta = flat.like_primal()
        if self.steps == 0:
            for anchor, v in zip(self.anchor, flat.primal, strict=True):
                anchor.copy_(v)
        clip = self._clip_factor()
        for stretch in self._stretches(sizes):
            eta = sizes[stretch.block.group]
            if stretch.loop is None:
                self._step_stretch(stretch, eta, clip)
            else:
                self._run_loop(stretch.loop, stretch, eta, clip)
        if self._dual.grad is not None:
            self._dual_step(self._alpha, self._dual.grad, sizes[-1])
        flat.mark_changed()
        self.steps += 1
        return value

    def _has_momentum(self) -> bool:
        return any(group["momentum"] for group in self.param_groups[:-2])

    def _stretches(self, sizes: list[float]) -> list[Stretch]:
        """The stretches of v that take a step each, kept until something moves."""
        ways = [self._way(block, sizes) for block in self.flat.blocks]
        same = [ways.index(way) for way in ways]  # a scheduler changes ways, but seldom these
        kept = self._cut_for
        if not (
            kept and kept[0] == same and kept[1] is self.flat.vectors and kept[2] is self.momenta
        ):
            self._cut = self._cut_up([*same])
            (block,) = [block for block in self.flat.blocks if block.role == "alpha"]
            self._alpha = block.of(self.flat.vectors)
            self._cut_for = (same, self.flat.vectors, self.momenta)
        return self._cut

    def _cut_up(self, ways: list[object]) -> list[Stretch]:
        if self._compiled is None:
            found = stretches(self.flat, ways)
            for stretch in found:
                stretch.cut(self._sides(stretch))
            return found
        found = stretches(self.flat, ways, most=sys.maxsize)
        for stretch in found:
            sizes = [tensor.numel() for tensor in stretch.tensors]
            stretch.loop = self._compiled.loop(sizes, *self._sides(stretch)[:4])
        return found

    def _way(self, block: Block, sizes: list[float]) -> tuple[Any, ...]:
        """What tells the step of one block from that of another."""
        if block.role != "weight":  # a, b take the paper's step, whatever a scheduler sets
            return (sizes[block.group], 0.0, 0.0, None)
        group = self.param_groups[block.group]
        return (sizes[block.group], group["momentum"], group["weight_decay"], self.max_grad_norm)

    def _sides(self, stretch: Stretch) -> list[Tensor | None]:
        """What `Stretch.cut` wants."""
        kept = (self.flat.vectors, self.anchor, self.averages, self.momenta)
        sides = [stretch.of(vectors) if vectors else None for vectors in kept]
        return [*sides, None, None]

    def _step_stretch(self, stretch: Stretch, eta: float, clip: Tensor | None) -> None:
        """Step and average, part by part; what has no gradient is left alone."""
        gradients, missing = stretch.gradients()
        role, group = stretch.block.role, self.param_groups[stretch.block.group]
        kept = [(t, t.clone()) for i in missing if gradients for t in self._state_of(stretch, i)]
        for cut, own in zip(stretch.cuts, gradients, strict=False):
            if clip is not None and role == "weight":
                own = [gradient * clip.to(gradient.dtype) for gradient in own]
            self._primal_step(role, cut, own, eta, group)
            if not missing:
                self._average(cut)
        for tensor, before in kept:
            tensor.copy_(before)
        for cut in stretch.cuts if missing else ():
            self._average(cut)

    def _run_loop(self, loop: Loop, stretch: Stretch, eta: float, clip: Tensor | None) -> None:
        """The same in one pass over memory."""
        weights, group = stretch.block.role == "weight", self.param_groups[stretch.block.group]
        numbers = Numbers(
            eta=eta,
            keep=1 - eta * group["weight_decay"] if weights else 1.0,
            pull=eta / (eta + self.gamma),
            part=1 / (self.steps + 1),
            beta=group["momentum"] if weights else 0.0,
            scale=float(clip) if clip is not None and weights else 1.0,
        )
        loop.step(stretch.ordered_gradients(), numbers)

    def _average(self, cut: Cut) -> None:
        if cut.average is not None:
            v = cut.v if cut.average.dtype == cut.v.dtype else cut.v.to(cut.average.dtype)
            cut.average.lerp_(v, 1 / (self.steps + 1))

    def _dual_step(self, alpha: Tensor, gradient: Tensor, eta: float) -> None:
        alpha.add_(gradient, alpha=eta)

    def _primal_step(
        self, role: str, cut: Cut, gradients: list[Tensor], eta: float, group: dict[str, Any]
    ) -> None:
        if role == "weight" and group["weight_decay"]:
            cut.v.mul_(1 - eta * group["weight_decay"])
        if role == "weight" and group["momentum"]:
            assert cut.momentum is not None
            cut.momentum.mul_(group["momentum"])
            torch._foreach_add_(cut.momenta, gradients)
            cut.v.add_(cut.momentum, alpha=-eta)
        else:
            torch._foreach_add_(cut.tensors, gradients, alpha=-eta)
        cut.v.lerp_(cut.anchor, eta / (eta + self.gamma))

    def _state_of(self, stretch: Stretch, index: int) -> list[Tensor]:
        """One tensor of a stretch, and what the optimizer keeps of it from step to step."""
        kept = [stretch.tensors[index].data]
        if stretch.entries[index].role == "weight" and self.momenta:
            kept.append(stretch.view(index, stretch.of(self.momenta)))
        return kept

    def _clip_factor(self) -> Tensor | None:
        """What to multiply the gradients of w by, so that together they are not too long."""
        if self.max_grad_norm is None:
            return None
        gradients = [tensor.grad for tensor in self._weights if tensor.grad is not None]
        if not gradients:
            return None
        dense = (g.to_dense() if g.is_sparse else g for g in gradients)
        norms = [torch.linalg.vector_norm(g, dtype=self.flat.dtype) for g in dense]
        norm = torch.linalg.vector_norm(torch.stack(norms))
        return torch.clamp(self.max_grad_norm / (norm + 1e-6), max=1.0)

    def _step_size(self, group: dict[str, Any], stage_lr: float) -> float:
        return stage_lr * (float(group["lr"]) / self.base_lr)

    @property
    def step_size(self) -> float:
        """The step size of the next step: the stage's, times what a scheduler makes of it."""
        return self._step_size(self.param_groups[-1], self.stage_lr)

    def _check_tensors(self) -> None:
        """Raise where something in the model asks for gradients but would not be trained."""
        self.flat.check()
        doubtful = [p for p in self._frozen if p.requires_grad]
        if self.steps == 0:  # a walk through all modules: once a stage
            new = (p for p in self.model.parameters() if id(p) not in self._known)
            doubtful.extend(p for p in new if p.requires_grad)
        if doubtful:
            name = next(n for n, p in self.model.named_parameters() if p is doubtful[0])
            raise RuntimeError(
                f"{name} asks for gradients, but was frozen or not there when PPDSG was made, and "
                "would not be trained: make a new PPDSG, between stages, to train it."
            )

    def _has_gradients(self) -> bool:
        """Whether there is anything to do; raise if those of a, b, alpha were missed or kept."""
        first = next((g for tensor in self._weights if (g := tensor.grad) is not None), None)
        alpha = self._dual.grad
        if first is None or alpha is None:
            if first is not None and self.loss.a.grad is None and self.loss.b.grad is None:
                raise RuntimeError(
                    "backward() reached the model but not a, b and alpha: the loop's loss is not "
                    "the one given to PPDSG. Use that one."
                )
            return first is not None or alpha is not None
        kept_first, kept_alpha = (gradient() for gradient in self._last_gradients)
        if kept_alpha is alpha and kept_first is not first:
            raise RuntimeError(
                "the gradients of a, b and alpha were not cleared since the last step: call "
                "opt.zero_grad(), which clears them too, instead of model.zero_grad()."
            )
        self._last_gradients = [weakref.ref(first), weakref.ref(alpha)]
        return True

    def _check_step_size(self, eta: float) -> None:
        # 0.5 is the smallest value either limit can have, so usual step sizes ask nothing.
        if eta <= 0.5:
            return
        ratios = self.loss.known_ratio
        if ratios is None:
            if self.steps or self.loss.a.is_meta:  # on the device: looked at once a stage
                return
            ratios = tuple(self.loss.pos_ratio.tolist())
        limits = [(p, *step_limits(p)) for p in ratios]
        for p, refused, warned in limits:
            if eta > refused:
                raise ValueError(
                    f"lr={eta:g} with pos_ratio={p:g}: expected at most 1/(2p(1-p)) = {refused:g}, "
                    f"above which alpha diverges; use at most 1/(2 max(p, 1-p)) = {warned:g}."
                )
        for p, _, warned in limits:
            if eta > warned and not self._warned:
                self._warned = True
                warn(
                    f"lr={eta:g} with pos_ratio={p:g} is above 1/(2 max(p, 1-p)) = {warned:g}: "
                    "a and b may leave [-1, 1]; lower lr to keep them inside."
                )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused once the vector is laid out: make a new optimizer instead."""
        if hasattr(self, "flat"):
            raise ValueError(
                "a parameter group cannot join a PPDSG that is already laid out: "
                "make a new PPDSG, between stages, with params=[...]."
            )
        param_group.update(checked_options(param_group))
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """All of the optimizer's state and the loss's a, b, alpha and counts, as copies."""
        loss = {name: tensor.detach().clone() for name, tensor in self.loss.state_dict().items()}
        state = {
            "layout": self.flat.layout(),
            "anchor": [vector.clone() for vector in self.anchor],
            "averages": [vector.clone() for vector in self.averages],
            "momenta": [vector.clone() for vector in self.momenta],
            "loss": loss,
            "steps": self.steps,
            "stage_lr": self.stage_lr,
            "base_lr": self.base_lr,
            "gamma": self.gamma,
            "max_grad_norm": self.max_grad_norm,
            "settings": self.settings(),
        }
        groups = super().state_dict()["param_groups"]
        return {"state": {"ppdsg": state}, "param_groups": [dict(group) for group in groups]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` gave; the argument is neither kept nor changed."""
        state = self._checked_state(state_dict)
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})
        self.momenta = self.flat.like_primal() if state["momenta"] else []
        for mine, theirs in (
            (self.anchor, state["anchor"]),
            (self.averages, state["averages"]),
            (self.momenta, state["momenta"]),
        ):
            for vector, saved in zip(mine, theirs, strict=True):
                vector.copy_(saved)
        self.loss.load_state_dict(state["loss"])
        self.steps, self.stage_lr = state["steps"], state["stage_lr"]
        self.base_lr, self.gamma = state["base_lr"], state["gamma"]
        self.max_grad_norm = state["max_grad_norm"]

    def _checked_state(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        state = state_dict.get("state", {}).get("ppdsg")
        if state is None:
            raise ValueError("state_dict: expected one of PPDSG.state_dict(); this is of another.")
        mine = self.flat.layout()
        for here, there in zip(mine, state["layout"], strict=False):
            if here != list(there):
                raise ValueError(
                    f"state_dict of another model: {' '.join(there)} there, {' '.join(here)} here; "
                    "build the same model, with the same parameters frozen, before loading."
                )
        for name, here_setting in self.settings().items():
            if state["settings"].get(name) != here_setting:
                raise ValueError(
                    f"state_dict with {name}={state['settings'].get(name)}, here {here_setting}: "
                    "make model, loss and PPDSG as they were when it was saved."
                )
        missing = sorted(self.loss.state_dict().keys() ^ state["loss"].keys())
        if missing:
            raise ValueError(f"state_dict whose loss differs in {missing}: it is not whole.")
        return dict(state)

    def settings(self) -> dict[str, Any]:
        """What a saved state must share with the optimizer that loads it, beside the layout."""
        loss = self.loss
        return {
            "tensors": len(self.flat.entries),
            "groups": [len(group["params"]) for group in self.param_groups],
            "average": self.average,
            "pos_ratio": None if loss.known_ratio is None else list(loss.known_ratio),
            "margin": loss.margin,
            "link": loss.link,
        }

    def __getstate__(self) -> dict[str, Any]:
        """Refused: a copy would no longer share memory with the model it trains."""
        raise TypeError("PPDSG cannot be copied or pickled: make a new one and load_state_dict.")
