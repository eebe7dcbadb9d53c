"""A trained model as one ONNX file, for programs that have neither torch nor Python."""

from __future__ import annotations

import copy
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from codauc._internal.checks import known_arguments
from codauc._internal.files import whole_file
from codauc.data import Encoder
from codauc.data.tables.date_parts import cycle
from codauc.data.tables.encoder import FIRST, MISSING, UNSEEN
from codauc.metrics.calibration import Calibration
from codauc.models.base import positive
from codauc.models.model_file import Saved
from codauc.version import __version__

_KEY = "codauc"
_OPSET = 18  # the one torch writes without a conversion; onnxruntime reads it since 1.14
_EXAMPLES = 2  # samples to trace with: of 0 or 1 torch would think that there are always as many
_FAR = 1e30  # read_table refuses numbers that are further from the mean, in standard deviations


@known_arguments
def export_onnx(
    saved: Saved, path: str | os.PathLike[str], *, shape: Sequence[int] | None = None
) -> Path:
    """Write what `load_model` gives as one ONNX file, for any number N of samples at once.

    Outputs, in float64: `score`, the calibrated log-odds, and `probability`, its sigmoid. They have
    shape [N], and [N, outputs] for more outputs than one. The network computes in float32.

    Inputs for a table are its raw values: `numbers`, float64 [N, n] in the order of
    `encoder.numbers`, with NaN for missing and microseconds since 1970 for dates; and `categories`,
    int64 [N, c], the codes of `encoder.categories`; a code that does not exist counts as 0, unseen.
    An input without columns is left out. The file standardises as `read_table` does, and makes the
    cycles of dates from their microseconds.
    For images the input is `x`, float32 [N, *shape], scaled as in training; `shape` is (channels,
    height, width), and that of an array of images is known.

    A sample with a number that `read_table` refuses, such as infinity, gets the score NaN.

    The metadata of the file has under "codauc" a JSON object: `version`, `target` (name, positive
    and negative values), `numbers`, `categories` with their values, which codes are unseen and
    missing and which is the first value's (`codes`), and the `calibration` that is in the scores.

    The file is complete or not there. Needs the packages of `codauc[onnx]`.
    """
    if not isinstance(saved, Saved):
        raise ValueError(
            f"saved is of type {type(saved).__name__}: expected what codauc.load_model "
            "gives; for a model in memory use Saved(model, encoder)."
        )
    for name in ("onnx", "onnxscript"):
        if find_spec(name) is None:
            raise ValueError(f"ONNX needs {name}, not installed here: pip install 'codauc[onnx]'.")
    encoder = saved.encoder
    if encoder is None or encoder.shape:
        inputs: nn.Module = nn.Identity()
        examples = {"x": torch.zeros(_EXAMPLES, *_image_shape(encoder, shape))}
    elif shape is None:
        inputs, examples = _TableInputs(encoder), _raw_examples(encoder)
    else:
        raise ValueError(
            f"shape={shape!r} for a model of a table: expected none, since its encoder knows the "
            "columns; leave shape out."
        )
    # A copy for the processor in float32, which every runtime knows.
    model = copy.deepcopy(saved.model).requires_grad_(False).to("cpu", torch.float32)
    scorer = _Scorer(inputs, model, saved.calibration).eval()
    _try_out(scorer, examples)
    data = _as_onnx(scorer, examples, _about(saved))
    with whole_file(path, "the model") as partial:
        partial.write_bytes(data)
    return Path(path)


class _TableInputs(nn.Module):
    """From raw numbers and codes to a network's inputs, to the bit as `read_table` does it."""

    means: Tensor
    scales: Tensor
    sizes: Tensor

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.flagged, self.categories = encoder.flagged, len(encoder.categories)
        places = {number.name: i for i, number in enumerate(encoder.numbers)}
        self.parts = [(places[part.name], part.part) for part in encoder.parts]
        self.register_buffer("means", torch.from_numpy(encoder.means()))
        self.register_buffer("scales", torch.from_numpy(1 / encoder.stds()))
        sizes = [category.size for category in encoder.categories]
        self.register_buffer("sizes", torch.tensor(sizes, dtype=torch.int64))

    def forward(self, *columns: Tensor) -> Tensor:
        """Inputs [N, encoder.inputs] in float32."""
        parts = []
        if len(self.means):
            parts += self._numbers(columns[0])
        if self.categories:
            codes = columns[-1]
            known = (codes >= 0) & (codes < self.sizes)
            parts.append(torch.where(known, codes, UNSEEN).float())
        return torch.cat(parts, dim=1)

    def _numbers(self, raw: Tensor) -> list[Tensor]:
        missing = raw.isnan()
        standard = torch.where(missing, 0.0, (raw - self.means) * self.scales).float()
        cycles = [self._cycle(raw[:, place], part) for place, part in self.parts]
        flags = [missing[:, self.flagged].float()] if self.flagged else []
        return [standard, *flags, *cycles]

    @staticmethod
    def _cycle(times: Tensor, part: str) -> Tensor:
        return torch.where(times.isnan()[:, None], 0.0, cycle(times, part)).float()


class _Scorer(nn.Module):
    """The whole of the graph: inputs, network, calibration."""

    def __init__(self, inputs: nn.Module, model: nn.Module, calibration: Calibration) -> None:
        super().__init__()
        self.inputs, self.model, self.calibration = inputs, model, calibration

    def forward(self, *raw: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and probabilities."""
        x = self.inputs(*raw)
        logits = self.model(x).double()
        if logits.dim() == 2 and logits.shape[1] == 1:
            logits = logits[:, 0]
        scale, shift = self.calibration
        # Runtimes do not agree on what a ReLU or a maximum makes of NaN.
        refused = ~(x.flatten(1).abs() <= _FAR).all(dim=1)
        refused = refused.view(-1, *(1 for _ in logits.shape[1:]))
        score = torch.where(refused, torch.nan, scale * logits + shift)
        # onnxruntime's Sigmoid is a fit that loses small probabilities, which is what is rare.
        return score, 1 / (1 + torch.exp(-score))


def _image_shape(encoder: Encoder | None, shape: Sequence[int] | None) -> tuple[int, ...]:
    known = None if encoder is None else (encoder.inputs, *encoder.shape)
    if shape is None:
        if known is not None:
            return known
        raise ValueError(
            "shape is missing: expected the shape of a sample, which a model without an encoder "
            "does not know; give shape=(channels, height, width), such as (3, 32, 32)."
        )
    given = tuple(positive("shape", "a side of shape", shape, "use (channels, height, width)"))
    if not given or (known is not None and given != known):
        expected = "(channels, height, width)" if known is None else f"{known}, as in training"
        raise ValueError(f"shape={given}: expected {expected}; give that, or leave shape out.")
    return given


def _raw_examples(encoder: Encoder) -> dict[str, Tensor]:
    examples = {}
    if encoder.numbers:
        examples["numbers"] = torch.zeros(_EXAMPLES, len(encoder.numbers), dtype=torch.float64)
    if encoder.categories:
        examples["categories"] = torch.zeros(_EXAMPLES, len(encoder.categories), dtype=torch.int64)
    return examples


def _try_out(scorer: _Scorer, examples: dict[str, Tensor]) -> None:
    """Run once without a tracer, since the model's own errors say more than an exporter's.

    Raise also where no score could be a number.
    """
    try:
        with torch.no_grad():
            logits = scorer.model(scorer.inputs(*examples.values()))
    except Exception as error:  # a network of others may fail in any way
        shapes = (f"{k} [{', '.join(map(str, ['N', *x.shape[1:]]))}]" for k, x in examples.items())
        raise ValueError(
            f"the model does not take inputs made from {', '.join(shapes)}: "
            f"{str(error).rstrip('.')}. Expected the shape, or the encoder, of its training."
        ) from error
    shape = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if not isinstance(shape, list) or len(shape) not in (1, 2) or shape[0] != _EXAMPLES:
        raise ValueError(
            f"the model gives {shape} for {_EXAMPLES} samples: expected logits of shape "
            f"[{_EXAMPLES}] or [{_EXAMPLES}, outputs]; let it return them."
        )
    numbers = {**scorer.model.state_dict(), "calibration": torch.tensor(tuple(scorer.calibration))}
    for name, tensor in numbers.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(
                f"{name} has numbers that are not finite: expected a model whose scores are "
                "numbers; train again."
            )


def _as_onnx(scorer: nn.Module, examples: dict[str, Tensor], about: dict[str, Any]) -> bytes:
    """The file's content."""
    batch = torch.export.Dim("N")
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                scorer,
                tuple(examples.values()),
                input_names=list(examples),
                output_names=["score", "probability"],
                dynamic_shapes=(tuple({0: batch} for _ in examples),),
                opset_version=_OPSET,
                dynamo=True,
                verbose=False,
            )
            assert program is not None
            proto = program.model_proto
            graph = proto.graph
            for part in (graph, *graph.node, *graph.value_info, *graph.input, *graph.output):
                # where in the source it comes from: paths of this machine
                part.ClearField("metadata_props")
                part.ClearField("doc_string")
            proto.metadata_props.add(key=_KEY, value=json.dumps(about))
            return bytes(proto.SerializeToString())
    except Exception as error:  # the exporter passes on whatever the tracing of a network raises
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ValueError(
            f"the model cannot be written as ONNX ({reason}): expected a network of codauc.models, "
            "or one that torch.export takes for any number of samples."
        ) from error


def _about(saved: Saved) -> dict[str, Any]:
    encoder = saved.encoder
    return {
        "version": __version__,
        "target": None if encoder is None else asdict(encoder.target),
        "numbers": [] if encoder is None else [asdict(number) for number in encoder.numbers],
        "categories": [] if encoder is None else [asdict(c) for c in encoder.categories],
        "codes": {"unseen": UNSEEN, "missing": MISSING, "first": FIRST},
        "calibration": saved.calibration._asdict(),
        "threshold": None if saved.threshold is None else saved.threshold.to_dict(),
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings, logs and prints, which are about the exporter's insides."""
    before, nowhere = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(nowhere), redirect_stderr(nowhere), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
