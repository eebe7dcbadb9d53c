"""A trained model in one file: weights, architecture, and how its inputs are made."""

from __future__ import annotations

import json
import math
import os
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as as_bytes
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from codauc._internal.archive import SUM, checksum
from codauc._internal.checks import known_arguments
from codauc._internal.files import regular_file, whole_file
from codauc.data import Encoder
from codauc.metrics.calibration import Calibration
from codauc.metrics.thresholds import Threshold
from codauc.models.base import Model
from codauc.models.registry import MODELS, build
from codauc.models.weights import check_weights
from codauc.version import __version__

_KEY = "codauc"
_THRESHOLD = "threshold"


class Saved(NamedTuple):
    """What `load_model` gives: the model in evaluation mode, and what it was saved with."""

    model: nn.Module
    encoder: Encoder | None
    calibration: Calibration = Calibration()
    threshold: Threshold | None = None


@known_arguments
def save_model(
    path: str | os.PathLike[str],
    model: nn.Module,
    encoder: Encoder | None = None,
    calibration: Calibration | None = None,
    threshold: Threshold | None = None,
) -> None:
    """Write the model, with the encoder of its table, its calibration and its threshold, as one
    safetensors file.

    The file is complete or not there: it is written under another name, synced and renamed.
    """
    described = isinstance(model, Model)
    about: dict[str, Any] = {
        "version": __version__,
        "model": {"name": model.model_name, "arguments": model.arguments} if described else None,
        "encoder": None if encoder is None else encoder.to_dict(),
        "calibration": None if calibration is None else list(calibration),
    }
    # copies, since safetensors refuses tensors that share memory, as tied weights do
    weights = model.state_dict().items()
    tensors = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in weights}
    if threshold is not None:
        about[_THRESHOLD] = threshold.to_dict()
    _write(path, about, tensors)


def save_threshold(path: str | os.PathLike[str], threshold: Threshold) -> None:
    """Give the model in a file another threshold; the network is neither built nor changed."""
    about, tensors = _read(path)
    _write(path, {**about, _THRESHOLD: threshold.to_dict()}, tensors)


def _write(path: str | os.PathLike[str], about: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    # one entry, as safetensors has no order of entries: the same model is the same file
    about[SUM] = checksum(json.dumps(about), tensors)
    data = as_bytes(tensors, {_KEY: json.dumps(about)})
    with whole_file(path, "the model") as partial:
        partial.write_bytes(data)


class _NoValues(TorchFunctionMode):
    """Leaves out first values, for which torch would load its compiler on the device "meta"."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, unless it is one that gives a tensor its first values."""
        del types
        given = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return given.get("tensor", args[0] if args else None)
        return func(*args, **given)


@known_arguments
def load_model(path: str | os.PathLike[str], model: nn.Module | None = None) -> Saved:
    """The model and the encoder in a file of `save_model`. Loading never runs code.

    A file of which a single bit is not as it was saved is refused, by the SHA-256 that is in it.

    The networks of `codauc.models` are made anew; any other is given as `model`, built as it was.

    >>> import tempfile, torch
    >>> from codauc.models import MLP
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_model(f"{folder}/net.safetensors", MLP(inputs=3))
    ...     load_model(f"{folder}/net.safetensors").model(torch.zeros(2, 3)).shape
    torch.Size([2])
    """
    about, weights = _read(path)
    if model is None:
        dtypes = (each.dtype for each in weights.values() if each.is_floating_point())
        dtype = next(dtypes, torch.float32)
        # without memory: a file may describe a network of any size
        with torch.device("meta"), _NoValues():
            check_weights(str(path), _built(path, about.get("model")).to(dtype), weights)
        model = _built(path, about.get("model")).to(dtype)
    check_weights(str(path), model, weights)
    model.load_state_dict(weights)
    try:
        plain = about.get("encoder")
        encoder = None if plain is None else Encoder.from_dict(plain)
        threshold = about.get(_THRESHOLD)
        threshold = None if threshold is None else Threshold.from_dict(threshold)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as a saved model: {error}") from error
    calibration = _calibration(path, about.get("calibration"))
    return Saved(model.eval(), encoder, calibration, threshold)


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file says about its model, and the weights; both as they were saved."""
    try:
        with safe_open(regular_file(path), framework="pt") as file:
            about = json.loads((file.metadata() or {}).get(_KEY, "null"))
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        reason = str(error).rstrip(".")
        raise ValueError(f"{path} cannot be read as a saved model: {reason}.") from error
    if not isinstance(about, dict):
        raise ValueError(
            f"{path} has weights alone: expected a file of save_model; use "
            "codauc.models.load_pretrained to load weights into a model."
        )
    saved = about.pop(SUM, None)
    if saved is None:
        raise ValueError(
            f"{path} has no checksum: expected a file that this version of save_model wrote; save "
            "the model again, or load its weights alone with codauc.models.load_pretrained."
        )
    if saved != checksum(json.dumps(about), weights):
        raise ValueError(
            f"{path} is damaged: its checksum does not agree with what is in it; expected the file "
            "as it was saved: copy it again, or train the model again."
        )
    return about, weights


def _calibration(path: Any, plain: Any) -> Calibration:
    if plain is None:
        return Calibration()
    try:
        scale, shift = map(float, plain)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} has a calibration that cannot be read: {error}.") from error
    if not (math.isfinite(scale) and math.isfinite(shift) and scale > 0):
        raise ValueError(f"{path} has the calibration {plain}: expected a positive scale.")
    return Calibration(scale, shift)


def _built(path: Any, description: Any) -> nn.Module:
    name = description.get("name") if isinstance(description, dict) else "a network of its own"
    if name not in tuple(MODELS):
        raise ValueError(
            f"{path} holds {str(name)[:200]}, which is not one of codauc.models: expected "
            "model=..., built as it was; loading a file imports nothing."
        )
    try:
        return build(name, **description["arguments"])
    except (ValueError, TypeError, KeyError, RuntimeError, MemoryError) as error:
        raise ValueError(
            f"{path} describes a network that cannot be built ({error}): it was changed."
        ) from error
