"""Whether weights are those of a model."""

from __future__ import annotations

from torch import Tensor, nn


def check_weights(what: str, model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Raise where `weights` are not those of this model, in name, shape or type."""
    own = model.state_dict()
    for name in sorted(own.keys() ^ weights.keys()):
        where = "lacks" if name in own else "has also"
        raise ValueError(f"{what} {where} {name}: expected the weights of this model.")
    for name, tensor in own.items():
        found = weights[name]
        if (tensor.shape, tensor.dtype) != (found.shape, found.dtype):
            raise ValueError(
                f"{what} has {name} of shape {list(found.shape)} and {found.dtype}: expected "
                f"{list(tensor.shape)} and {tensor.dtype}; build the model as it was."
            )
