"""A trained model in one file: weights, architecture, and how its inputs are made."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as as_bytes
from torch import nn

from codauc.checks import known_arguments
from codauc.data import Encoder
from codauc.models import build
from codauc.version import __version__

_KEY = "codauc"


class Saved(NamedTuple):
    """What `load_model` gives: the model in evaluation mode, and the encoder it was saved with."""

    model: nn.Module
    encoder: Encoder | None


@known_arguments
def save_model(
    path: str | os.PathLike[str], model: nn.Module, encoder: Encoder | None = None
) -> None:
    """Write the model, and the encoder of its table, as one safetensors file.

    The file is complete or not there: it is written under another name, synced and renamed.
    """
    name = getattr(model, "model_name", None)
    about = {
        "version": __version__,
        "model": None if name is None else {"name": name, "arguments": model.arguments},
        "encoder": None if encoder is None else encoder.to_dict(),
    }
    # copies, since safetensors refuses tensors that share memory, as tied weights do
    tensors = {key: tensor.detach().cpu().clone() for key, tensor in model.state_dict().items()}
    data = as_bytes({k: t.contiguous() for k, t in tensors.items()}, {_KEY: json.dumps(about)})
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


@known_arguments
def load_model(path: str | os.PathLike[str], model: nn.Module | None = None) -> Saved:
    """The model and the encoder in a file of `save_model`. Loading never runs code.

    The networks of `codauc.models` are made anew; any other is given as `model`, built as it was.

    >>> import tempfile, torch
    >>> from codauc.models import MLP
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(f"{folder}/net.safetensors", MLP(inputs=3))
    ...     load_model(f"{folder}/net.safetensors").model(torch.zeros(2, 3)).shape
    torch.Size([2])
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(_KEY, "null"))
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as a saved model: {error}.") from error
    if not isinstance(about, dict):
        raise ValueError(
            f"{path} has weights alone: expected a file of save_model; use "
            "codauc.models.load_pretrained to load weights into a model."
        )
    model = _built(path, about.get("model")) if model is None else model
    _load(path, model, weights)
    encoder = about.get("encoder")
    return Saved(model.eval(), None if encoder is None else Encoder.from_dict(encoder))


def _built(path: Any, description: Any) -> nn.Module:
    if not isinstance(description, dict) or ":" in str(description.get("name")):
        name = description["name"] if isinstance(description, dict) else "a model of its own kind"
        raise ValueError(
            f"{path} holds {name}, which is not one of codauc.models: expected model=..., built "
            "as it was; loading a file imports nothing."
        )
    return build(description["name"], **description["arguments"])


def _load(path: Any, model: nn.Module, weights: dict[str, Any]) -> None:
    own = model.state_dict()
    for name in sorted(own.keys() ^ weights.keys()):
        where = "lacks" if name in own else "has also"
        raise ValueError(f"{path} {where} {name}: expected the weights of this model.")
    for name, tensor in own.items():
        if tensor.shape != weights[name].shape:
            raise ValueError(
                f"{path} has {name} of shape {list(weights[name].shape)}: expected "
                f"{list(tensor.shape)}; build the model as it was."
            )
    model.load_state_dict(weights)
