"""From a model and data to its AUC, over any number of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from codauc._internal.checks import known_arguments, whole
from codauc.data.rows import as_rows
from codauc.metrics._scoring_threads import side_by_side
from codauc.metrics.auc_values import AUC, auc_interval, share, sorted_interval
from codauc.metrics.binned_auc import bin_counts, binned_interval, cut_points, parts_for
from codauc.metrics.score_classes import Scores, require_both, sorted_classes
from codauc.workers.agreement import raise_everywhere
from codauc.workers.group import Group, LocalGroup

Done = Callable[[int], object]  # called with how many samples are done

_KIND = "evaluate"
_TYPES = (torch.int64, torch.bfloat16, torch.float16, torch.float32, torch.float64)


@known_arguments
def predict(model: nn.Module, x: Any, batch_size: int = 512) -> Tensor:
    """The model's logits for all of `x`, on the CPU, as in evaluation mode.

    `x` is a tensor, a numpy array, a map-style data set or `codauc.data.Rows`.

    The model is afterwards as it was: the mode of each of its parts, also after an error, and
    the statistics of BatchNorm. So is torch's global random state. Batches are moved to the
    model's device.

    >>> predict(torch.nn.Linear(3, 2), torch.zeros(5, 3), batch_size=2).shape
    torch.Size([5, 2])
    """
    batch_size = whole("batch_size", batch_size, least=1, remedy="use for example 512")
    if not len(x):
        raise ValueError("x has 0 samples: expected at least 1; give data to predict.")
    return _predicted(model, x, batch_size)


def _predicted(
    model: nn.Module, x: Any, batch_size: int, threads: int = 1, progress: Done | None = None
) -> Tensor:
    default = x.device if isinstance(x, Tensor) else torch.device("cpu")
    device = next((t.device for t in chain(model.parameters(), model.buffers())), default)
    devices = [device] if device.type == "cuda" else []
    starts, done = range(0, len(x), batch_size), list[Tensor]()

    def output(start: int) -> Tensor:
        with torch.no_grad():  # of each thread
            found: Tensor = model(_batch(x, start, batch_size).to(device)).cpu()
        return found

    # Not inference_mode: what a model caches in it could never be trained on afterwards.
    with _evaluation_mode(model), torch.random.fork_rng(devices):
        outputs = side_by_side(output, starts, threads) if threads > 1 else map(output, starts)
        for batch in outputs:
            done.append(batch)
            if progress is not None:
                progress(min(len(done) * batch_size, len(x)))
        return torch.cat(done)


def logits_of(
    model: nn.Module,
    x: Any,
    batch_size: int = 512,
    *,
    threads: int = 1,
    progress: Done | None = None,
) -> Scores:
    """The logits of a network that gives one per sample, shape [N].

    With several `threads` as many batches are computed at the same time: for small networks whose
    forward pass changes nothing. `progress(samples so far)` is called.
    """
    if not len(x):
        raise ValueError("x has 0 samples: expected at least 1; give data to predict.")
    logits = _predicted(model, x, batch_size, threads, progress)
    if logits.numel() != len(x):
        raise ValueError(
            f"the network gives logits of shape {list(logits.shape)} for {len(x)} samples: "
            "expected one per sample."
        )
    return logits.flatten().numpy()


@known_arguments
def evaluate(
    model: nn.Module,
    x: Any,
    y: Tensor,
    batch_size: int = 512,
    level: float = 0.95,
    *,
    group: Group | None = None,
    tolerance: float | None = None,
) -> AUC:
    """The AUC of the model's scores of `x` against the labels `y`, with its interval at `level`.

    With a `group` each worker gives its own part of the data, and all get the AUC of the whole; see
    `group_auc`, also for `tolerance`. A worker without data does not call its model.

    >>> x = torch.tensor([[3.0], [1.0], [2.0], [0.0]])
    >>> evaluate(torch.nn.Identity(), x[:, 0], torch.tensor([1, 1, 0, 0])).value
    0.75
    """

    def scores() -> Tensor:
        if group is not None and not len(x):
            return torch.empty(0)
        found = predict(model, x, batch_size)
        # a column for one task, as the loss takes it too
        return found.squeeze(1) if found.shape == (len(y), 1) else found

    if group is None and tolerance is None:
        return auc_interval(scores(), y, level)
    return _joint(scores, y, LocalGroup() if group is None else group, level, tolerance)


@known_arguments
def group_auc(
    scores: Any, labels: Any, group: Group, *, level: float = 0.95, tolerance: float | None = None
) -> AUC:
    """The AUC of all workers' scores together, on every worker; each gives its own, shape [N_k].

    Parts may be unequal, of one class or empty. The result is bit for bit `auc_interval` of all
    data in one process. What travels is the scores, in the widest of the workers' types.

    With a `tolerance` the result is off by at most its `bound`, and bound <= tolerance. Its
    interval holds the exact one. What travels does not grow with the data: with
    m = ceil(1/(2 tolerance)), at most 2 (m + 2) scores of each worker and 8 K (m + 2) + 2 counts.
    A class with at most m samples on every worker makes the result exact.

    What is wrong on one worker is an error on all.

    >>> import codauc
    >>> def function(group):
    ...     scores, labels = ([0.1, 0.4], [0, 0]) if group.rank == 0 else ([0.4, 0.8], [1, 1])
    ...     return group_auc(scores, labels, group).value
    >>> codauc.launch(function, workers=2, simulate=True)
    [0.875, 0.875]
    """
    return _joint(lambda: scores, labels, group, level, tolerance)


def _batch(x: Any, start: int, batch_size: int) -> Tensor:
    """Some neighbours of `x`; those of a tensor are a view."""
    stop = min(start + batch_size, len(x))
    if isinstance(x, Tensor):
        return x[start:stop]
    return as_rows(x).gather(torch.arange(start, stop))


class _Header(NamedTuple):
    """What the workers must know of each other before a message can be sent."""

    failed: int = 0
    positives: int = 0
    negatives: int = 0
    length: int = 0
    type: int = 0
    parts: int = 0  # of cut points; 0 asks for the exact AUC


def _joint(
    scores: Callable[[], Any], labels: Any, group: Group, level: float, tolerance: float | None
) -> AUC:
    """`group_auc` of scores yet to be computed, which may fail."""
    mine, error = _Header(failed=1), None
    try:
        level = share(level)
        mine, classes, message = _part(scores(), labels, tolerance)
    except Exception as problem:  # the others wait: first inform them
        error = problem
    gathered = group.gather(torch.tensor(mine, device="cpu"), _KIND)
    headers = [_Header(*row.tolist()) for row in gathered]
    failed = [k for k, header in enumerate(headers) if header.failed]
    if failed:
        raise_everywhere(group, error, failed, _KIND)
    _compare(headers)
    rows = _gathered(message, headers, group)
    if tolerance is None:
        split = [np.split(row, [h.positives]) for row, h in zip(rows, headers, strict=True)]
        ups, downs = (np.sort(np.concatenate(every)) for every in zip(*split, strict=True))
        return sorted_interval(ups, downs, level)
    grid = np.unique(np.concatenate(rows))
    counts = torch.from_numpy(np.stack([bin_counts(values, grid) for values in classes]))
    group.sum_(counts, _KIND)
    ups, downs = counts.numpy()
    return binned_interval(ups, downs, level)


def _part(
    scores: Any, labels: Any, tolerance: float | None
) -> tuple[_Header, tuple[Scores, Scores], Tensor]:
    """A worker's sorted positives and negatives, and what it sends to all: both, or cut points."""
    parts = 0 if tolerance is None else parts_for(tolerance)
    ups, downs = sorted_classes(scores, labels)
    sent = [cut_points(ups, parts), cut_points(downs, parts)] if parts else [ups, downs]
    message = torch.from_numpy(np.concatenate(sent))
    message = message.to(_type(scores, message))
    dtype = _TYPES.index(message.dtype)
    header = _Header(0, len(ups), len(downs), len(message), dtype, parts)
    return header, (ups, downs), message


def _type(scores: Any, message: Tensor) -> torch.dtype:
    """The type in which scores travel: their own, or a wider one where it has no name here."""
    types = {str(each): each for each in _TYPES}
    own = str(getattr(scores, "dtype", "")).removeprefix("torch.")  # numpy's has the same name
    return types.get(f"torch.{own}", message.dtype)


def _compare(headers: list[_Header]) -> None:
    """Raise, on every worker alike, where their parts do not make a whole."""
    for k, header in enumerate(headers):
        if header.parts != headers[0].parts:
            raise ValueError(
                f"worker {k} and worker 0 differ in tolerance: expected the same on every worker; "
                "set it from the configuration."
            )
    whole_numbers = {_TYPES[h.type] is torch.int64: k for k, h in enumerate(headers) if h.length}
    if len(whole_numbers) == 2:  # float64 does not hold every int64, and ties would appear
        raise ValueError(
            f"worker {whole_numbers[True]} has integer scores and worker {whole_numbers[False]} "
            "floating-point ones: expected one kind on every worker; convert them, for example "
            "with .double()."
        )
    require_both(sum(h.positives for h in headers), sum(h.negatives for h in headers))


def _gathered(message: Tensor, headers: list[_Header], group: Group) -> list[Scores]:
    """Every worker's message, of its own length, as int64 or float64."""
    # an empty part has no say in the type, and int64 gives way to all others
    types = [_TYPES[header.type] for header in headers if header.length]
    dtype = reduce(torch.promote_types, types, torch.int64)
    longest = max(header.length for header in headers)
    # as bytes, since not every backend sends every type
    padded = pad(message.to(dtype), (0, longest - len(message))).view(torch.uint8)
    # copies, since a view as another type must start at a multiple of its size
    rows = [row.clone().view(dtype) for row in group.gather(padded, _KIND)]
    exact = torch.float64 if dtype.is_floating_point else torch.int64
    return [row[: h.length].to(exact).numpy() for row, h in zip(rows, headers, strict=True)]


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        # A module may do more in train() than set the flag; the flags come last because
        # train() also sets those of the parts, and a part can be shared.
        for module, mode in modes:
            module.train(mode)
        for module, mode in modes:
            module.training = mode
