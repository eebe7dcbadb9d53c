"""What PPDSG takes: a model, its loss, and parameter groups with checked options."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from codauc._internal.checks import real
from codauc.algorithm.loss import MinMaxAUCLoss


def check_modules(model: nn.Module, loss: MinMaxAUCLoss) -> None:
    """Raise if the two cannot be trained together."""
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model: got {type(model).__name__}, expected an nn.Module; "
            "pass the module itself, and parameter groups by params=."
        )
    if not isinstance(loss, MinMaxAUCLoss):
        raise ValueError(
            f"loss: got {type(loss).__name__}, expected a codauc.MinMaxAUCLoss; "
            "it owns a, b and alpha."
        )
    if loss.a.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"loss of {loss.a.dtype}: a, b and alpha need float32 or float64; cast the model alone."
        )
    if any(module is loss for module in model.modules()):
        raise ValueError(
            "loss is a submodule of model: a and b would count as weights; keep it outside."
        )


def weight_groups(
    model: nn.Module, params: Iterable[nn.Parameter] | Iterable[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    """Torch's parameter groups over the model's parameters; frozen ones may be unfrozen later."""
    given = list(model.parameters() if params is None else params)
    dicts = [item for item in given if isinstance(item, dict)]
    if len(dicts) not in (0, len(given)):
        raise ValueError("params: got groups and parameters mixed; expected one kind only.")
    groups: list[dict[str, Any]] = [dict(g) for g in dicts] or [{"params": given}]
    owned = {id(parameter) for parameter in model.parameters()}
    for group in groups:
        checked_options(group)
        if "params" not in group:
            raise ValueError(f"parameter group {group}: expected the key 'params' in it.")
        listed = group["params"]
        listed = [listed] if isinstance(listed, Tensor) else list(listed)
        for item in listed:
            if id(item) not in owned:
                raise ValueError(
                    f"params: got a {type(item).__name__} that is not the model's; expected "
                    "parameters of the model, or groups (dicts) of them."
                )
        group["params"] = listed
    if not any(parameter.requires_grad for group in groups for parameter in group["params"]):
        raise ValueError(
            "no parameter to train: expected at least one that asks for gradients; "
            "use requires_grad_(True) on what is to be trained."
        )
    return groups


def checked_options(group: dict[str, Any]) -> dict[str, float]:
    """The checked numbers among a group's options; unknown options are refused."""
    limits: dict[str, dict[str, Any]] = {
        "lr": {"above": 0, "remedy": "it is the step size eta, for example 0.1"},
        "momentum": {"least": 0, "below": 1, "remedy": "use 0 for none, or 0.9"},
        "weight_decay": {"least": 0, "remedy": "use 0 for none, or 1e-4"},
    }
    unknown = set(group) - set(limits) - {"params"}
    if unknown:
        raise ValueError(
            f"parameter group with {sorted(unknown)}: expected only params, {', '.join(limits)}; "
            "gamma and max_grad_norm are the optimizer's."
        )
    return {name: real(name, group[name], **limits[name]) for name in limits if name in group}
