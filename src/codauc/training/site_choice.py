"""What a run chooses by its sites, and the lines that say what and why."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from codauc._internal.checks import listed
from codauc._internal.formats import share
from codauc.algorithm.sites import chosen_dual, contingency, labels_differ
from codauc.data.in_memory import InMemory
from codauc.data.opening import sites_of
from codauc.data.row_sites import EACH, site_number
from codauc.runs.settings import RunSettings
from codauc.training.site_results import SiteResult

MOST_WORKERS = 16  # that are chosen; each has its own copy of the model
_NAMED = 6  # sites up to which a line names all
OWN_MODELS = (
    "Each worker has a model of its own: model.safetensors is worker 0's, for rows of its sites "
    "alone, model-worker-1.safetensors worker 1's, and so on. To score rows of another site, put "
    "its worker's file in the place of model.safetensors in a copy of the directory."
)


def with_workers(settings: RunSettings, memory: InMemory | None = None) -> RunSettings:
    """The settings with a number of workers, where it follows from the sites.

    Without a number each site gets a worker, up to 16, simulated in this process: that gives what
    processes would give. A site that is left out for the test has none.
    """
    data, asked = settings.data, settings.communication
    left_out = data.test_site is not None
    if data.silo is None or "RANK" in os.environ or (asked.workers is not None and not left_out):
        return settings
    names = [site.name for site in sites_of(data, memory)]
    if data.test_site not in (None, EACH):
        site_number(str(data.test_site), names, data.silo)
    sites = len(names) - left_out
    if sites < 1:
        raise ValueError(
            f"column {data.silo!r} names one site, {names[0]!r}: expected another one to train on; "
            "leave test_site out."
        )
    if asked.workers is None:
        simulated = replace(asked, workers=min(sites, MOST_WORKERS), simulate=True)
        return replace(settings, communication=simulated)
    return settings.with_changes("communication", workers=min(sites, asked.workers))


def with_choices(settings: RunSettings, sites: Sequence[SiteResult]) -> RunSettings:
    """The settings with what follows from the sites' labels, where it was left open.

    It depends on the sites alone, not on the number of workers, so that a run can be resumed with
    another one.
    """
    if not sites or settings.communication.dual != "auto":
        return settings
    return settings.with_changes("communication", dual=chosen_dual(_labels(sites)))


def unlikeness(settings: RunSettings, sites: Sequence[SiteResult]) -> float:
    """How far labels differ between sites, or are to differ between shards: from 0 to 1.

    0 where chance explains it. It does not depend on the number of workers, so that a run can be
    resumed with another one.
    """
    labels = _labels(sites)
    if settings.data.skew is not None:
        return 1.0
    return contingency(labels) if labels_differ(labels) else 0.0


def _labels(sites: Sequence[SiteResult]) -> list[tuple[int, int]]:
    """Samples and positives of the sites that tell them."""
    return [
        (site.samples, site.positives)
        for site in sites
        if site.samples is not None and site.positives is not None
    ]


def shard_lines(sites: Sequence[SiteResult], settings: RunSettings) -> list[str]:
    """What was chosen by sites, or since rows are shared out unevenly."""
    skew = settings.data.skew
    if skew is None:
        return site_lines(sites, settings)
    if settings.communication.size == 1:
        alone = f"One worker has all rows, so skew={skew:g} changes nothing: expected several."
        return [alone, *site_lines(sites, settings)]
    return [f"Rows are shared out unevenly by label (skew={skew:g}): workers {_ways(settings)}."]


def _ways(settings: RunSettings) -> str:
    """How workers whose data differ train together."""
    ways = settings.communication
    steps = "not corrected" if ways.correct == "none" else f"corrected (correct={ways.correct})"
    alike = "alike" if ways.worker_weight == "equal" else "by their samples"
    every = ways.sync_every
    often = f"every {every} steps" if isinstance(every, int) else f"by sync_every={every}"
    return (
        f"average {often}, count {alike} (worker_weight={ways.worker_weight}), and their "
        f"steps are {steps}"
    )


def site_lines(sites: Sequence[SiteResult], settings: RunSettings) -> list[str]:
    """What was found and chosen, for the person who has started the run."""
    if not sites:
        return []
    data, ways = settings.data, settings.communication
    where = f" in {data.silo!r}" if data.silo else ", one for each worker's file"
    lines = [f"Sites: {len(sites)}{where}: {_sizes(sites)}."]
    alone = [site.name for site in sites if site.share in (0.0, 1.0) and site.samples]
    if alone:
        lines.append(f"Of one class: {listed(alone, most=5)}. They take part, but have no AUC.")
    if data.test_site is not None:
        lines.append(f"Test set: all rows of {data.test_site!r}; none of them is trained on.")
    if data.silo is not None:
        lines.append(_workers(len(sites) - (data.test_site is not None), ways.size, settings))
    if ways.size > 1:
        lines.append(_method(sites, settings))
    return lines


def _method(sites: Sequence[SiteResult], settings: RunSettings) -> str:
    """How the method deals with sites that differ."""
    ways = settings.communication
    shares = [site.share for site in sites if site.share is not None]
    differ = len(shares) > 1 and labels_differ(_labels(sites))
    why = "Shares of positives do not differ beyond chance"
    if differ:
        why = f"Shares of positives differ ({share(min(shares))} to {share(max(shares))})"
    dual = "over all sites together" if ways.dual == "pooled" else "as the mean of the sites'"
    scaling = "all sites together"
    if settings.data.scale == "own":
        scaling = "each worker's own rows (data.scale=own)"
    own = "; BatchNorm's statistics are each worker's own (norm=local)" * (ways.norm == "local")
    return (
        f"{why}: alpha is estimated {dual} (dual={ways.dual}); workers "
        f"{_ways(settings)}; columns are scaled by {scaling}{own}."
    )


def _sizes(sites: Sequence[SiteResult]) -> str:
    if len(sites) <= _NAMED:
        return ", ".join(f"{site.name} ({_size(site)})" for site in sites)
    samples = [site.samples for site in sites if site.samples is not None]
    shares = [site.share for site in sites if site.share is not None]
    parts = [f"{min(samples):,} to {max(samples):,} samples"] if samples else []
    parts += [f"{share(min(shares))} to {share(max(shares))} positive"] if shares else []
    return ", ".join(parts)


def _size(site: SiteResult) -> str:
    if site.samples is None:
        return "too few samples to be told"
    positive = "" if site.share is None else f", {share(site.share)} positive"
    return f"{site.samples:,} sample{'s' * (site.samples != 1)}{positive}"


def _workers(sites: int, workers: int, settings: RunSettings) -> str:
    if workers == 1:
        return "Workers: 1, which holds all sites: they train as one (simulate=K keeps them apart)."
    shared = "one for each site" if workers == sites else f"for {sites} sites, none of them divided"
    how = "simulated in this process" if settings.communication.simulate else "as processes"
    return f"Workers: {workers}, {shared}, {how}."


def models_differ(settings: RunSettings) -> bool:
    """Whether each worker has a model of its own, by its scaling or its statistics."""
    return settings.data.scale == "own" or settings.communication.norm == "local"


def check_norm(settings: RunSettings, model: nn.Module) -> None:
    """Raise where statistics are each worker's own in a network that has none."""
    if settings.communication.norm == "mean":
        return
    kept = (getattr(module, "running_mean", None) for module in model.modules())
    if not any(isinstance(each, Tensor) for each in kept):
        raise ValueError(
            f"norm='local' with {settings.model.name}, a network without running statistics: "
            "expected one with BatchNorm, such as resnet20; leave norm out."
        )


def check_least_samples(settings: RunSettings) -> None:
    """Raise where what a round or a checkpoint tells would be of fewer samples than allowed.

    A round's weights are those of its steps; periods that set themselves may be one step.
    """
    least, ways = settings.data.least_samples, settings.communication
    if least is None or ways.size == 1:
        return
    steps = ways.sync_every if isinstance(ways.sync_every, int) else 1
    samples = steps * settings.recipe.batch_size
    if samples < least:
        raise ValueError(
            f"sync_every={ways.sync_every} with batch_size={settings.recipe.batch_size}: a round "
            f"would tell of {samples} samples; expected at least least_samples={least}; use longer "
            "periods or larger batches."
        )
