"""What a study's runs will take, and how they are run: said before the first of them begins."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from codauc._internal.formats import count, duration
from codauc.algorithm.loss import MinMaxAUCLoss
from codauc.algorithm.ppdsg import PPDSG
from codauc.data.decoded_images import is_decoded, read_decoded
from codauc.models import PatchNet, build
from codauc.reproduce.jobs import RunJob
from codauc.reproduce.lockstep_runs import TrialSteps
from codauc.reproduce.study import DATA, KEEP, Study
from codauc.runs.settings import Recipe
from codauc.training.recipe import PAPER

_PATIENCE = 2.0  # seconds to measure for
_STEPS = 20
_IMAGES = 500  # scored at once in an evaluation
_WORKERS = 4  # in lockstep, to measure them


class StepCosts(NamedTuple):
    """Seconds of a step of one worker, seconds to score an image, and the network's weights.

    `together` are the seconds of a step of one worker among several in lockstep, None where the
    network does not compute so.
    """

    step: float
    image: float
    weights: int
    together: float | None = None


def measured_costs(study: Study) -> StepCosts:
    """Time some steps on random images, on this processor."""
    side, chosen = DATA[study.data].side(study.scale), study.network
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build(chosen.name, **_channels(chosen.name), **chosen.arguments)
        x, y = torch.randn(PAPER.batch_size, 3, side, side), torch.arange(PAPER.batch_size) % 3 > 0
        loss = MinMaxAUCLoss(1 / (1 + KEEP[study.percent]), validate=False)
        opt = PPDSG(model, loss, lr=1e-4, gamma=PAPER.gamma)

        def step() -> None:
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()

        def score() -> None:
            with torch.no_grad():
                model(images)

        seconds = _typical(step)
        images = torch.randn(min(_IMAGES, 50 if side > 64 else _IMAGES), 3, side, side)
        model.eval()
        image = _typical(score, most=3) / len(images)
        together = _in_lockstep(model, x, y) if isinstance(model, PatchNet) else None
    return StepCosts(seconds, image, sum(p.numel() for p in model.parameters()), together)


def _in_lockstep(model: PatchNet, x: Tensor, y: Tensor) -> float:
    run = TrialSteps(model, float(y.float().mean()), _WORKERS)
    return _typical(lambda: run.step_on(x, y)) / _WORKERS


def _channels(name: str) -> dict[str, int]:
    return {} if ":" in name else {"in_channels": 3}


def _typical(call: object, most: int = _STEPS) -> float:
    """The median of some calls after the first, which allocates; few, if they are slow."""
    assert callable(call)
    taken, begin = list[float](), time.perf_counter()
    call()
    while len(taken) < most and (not taken or time.perf_counter() - begin < _PATIENCE):
        before = time.perf_counter()
        call()
        taken.append(time.perf_counter() - before)
    return sorted(taken)[len(taken) // 2]


def seconds_of(job: RunJob, costs: StepCosts, tests: int, *, left: bool = False) -> float:
    """What a run takes on one core: all steps of all workers, and its evaluations."""
    recipe = job.settings.recipe
    assert isinstance(recipe, Recipe)
    work = max(0, job.work - job.done_work) if left else job.work
    share = work / max(1, job.work)
    step = costs.step if costs.together is None or not job.lockstep else costs.together
    return work * step + share * recipe.evaluations * tests * costs.image


def estimated(
    study: Study, jobs: Sequence[RunJob], at_once: int, costs: StepCosts, more: float = 0.0
) -> str:
    """Lines that say what is run how, and how long it will take; `more` are further seconds."""
    tests = _tests(study)
    left = [job for job in jobs if not job.done and not job.diverged]
    most = max((job.settings.communication.size for job in left), default=1)
    total = sum(seconds_of(job, costs, tests, left=True) for job in left) / max(1, at_once) + more
    lines = [
        f"{len(jobs)} runs, {len(jobs) - len(left)} of them finished; {_together(at_once)}.",
        f"{study.network.name} of {count(costs.weights)} weights: "
        f"{1e3 * costs.step:.2f} ms a step of one worker, measured now.",
    ]
    largest = [job for job in left if job.settings.communication.size == most > 1]
    if largest:
        one = max(seconds_of(job, costs, tests) for job in largest)
        lines.append(
            f"A run with K={most}, {count(max(job.steps for job in largest))} steps of each "
            f"worker, {_how(largest)}: about {duration(one)}."
        )
    if left:
        lines.append(f"All that is left: about {duration(math.ceil(total))}.")
    return "\n".join(lines)


def _together(at_once: int) -> str:
    return "one at a time" if at_once == 1 else f"{at_once} at a time, a process each"


def _how(jobs: Sequence[RunJob]) -> str:
    if not all(job.settings.communication.simulate for job in jobs):
        return "a process each"
    together = sum(job.lockstep for job in jobs)
    how = "in lockstep" if together == len(jobs) else "one after the other"
    if 0 < together < len(jobs):
        how = f"in {together} of {len(jobs)} runs in lockstep, in the others one after the other"
    return f"simulated in one process, {how}"


def _tests(study: Study) -> int:
    """The number of test images, 0 where it is not known yet."""
    folder = Path(study.decoded)
    if not study.decoded or not is_decoded(folder):
        return DATA[study.data].tests
    _, parts = read_decoded(folder)
    own = parts.get("test")
    share = DATA[study.data].test_fraction
    return round(share * len(parts["train"].x)) if own is None else len(own.x)
