"""The same rows learnt in many ways: the network in six, and models of other libraries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from codauc._internal.formats import digits
from codauc._internal.progress import note
from codauc.data.dataset import DataSet
from codauc.data.opening import open_data
from codauc.metrics.calibration import average_precision
from codauc.metrics.weighted_auc import weighted_auc_interval
from codauc.report.comparison import against
from codauc.report.run_page import page
from codauc.reproduce.other_libraries import OTHER_MODELS, Fitted, OtherModel, Sides, sides_of
from codauc.reproduce.study_results import estimate
from codauc.runs.directory import BASELINES, REPORT, SUMMARY, RunFolder
from codauc.runs.settings import Recipe, RunSettings
from codauc.training.build import resolve_settings
from codauc.training.directory_claim import check_free
from codauc.training.recipe import SYNC_EVERY, plan
from codauc.training.train_call import train
from codauc.version import __version__
from codauc.workers.group import LocalGroup

_WORKERS = 4


def ways(settings: RunSettings) -> dict[str, RunSettings]:
    """CoDA, the paper's competitors, and cross-entropy twice, by the names of directories."""
    recipe, parts = settings.recipe, settings.communication
    assert isinstance(recipe, Recipe)
    steps, every = plan(recipe, parts).steps, parts.sync_every or SYNC_EVERY
    bce = replace(recipe, name="bce", warm_start=1.0, steps=steps, stages=1)
    rounds = replace(parts, averages="weights", sync_every=every)
    each_step = replace(rounds, sync_every=1, delay=0, outer=None)
    alone = replace(each_step, workers=1, simulate=True)
    once = replace(rounds, sync_every="once", delay=0, outer=None)
    return {
        "coda": replace(settings, communication=rounds),
        "ppd-sg": replace(settings, communication=alone),
        "np-ppd-sg": replace(settings, communication=each_step),
        "one-shot": replace(settings, communication=once),
        "bce-data-parallel": replace(
            settings, recipe=bce, communication=replace(once, averages="gradients", compress=None)
        ),
        "bce-local-steps": replace(settings, recipe=bce, communication=rounds),
    }


@dataclass(frozen=True)
class Baselines:
    """Runs of all kinds side by side in the directory `out`."""

    settings: RunSettings
    out: Path
    resume: bool = False
    overwrite: bool = False
    quiet: bool = True

    def run(self) -> list[Path]:
        """One after the other, until one is interrupted; returns their directories.

        With `resume` those that are finished are not run again, and an interrupted one is resumed.
        All six ways take the same number of steps, with the same batches per worker; PPD-SG's one
        worker has all the data. The reports of the six say how the other models compare.
        """
        settings = self.settings
        if settings.recipe.name == "bce":
            raise ValueError("recipe bce: expected default or paper; cross-entropy is among them.")
        if settings.communication.size == 1:
            settings = settings.with_changes("communication", workers=_WORKERS, simulate=True)
        RunFolder(self.out).refuse_links()
        opened = open_data(settings.data, LocalGroup(), settings.seed)
        resolved = resolve_settings(settings, opened, settings.communication.size)
        settings = replace(resolved, communication=settings.communication)  # the same for all
        others, networks = list(self._others(opened)), list[Path]()
        for name, each in ways(settings).items():
            self._say(f"{name}:")
            networks.append(self.out / name)
            if not self._train(each, networks[-1]).get("finished"):
                break
            self._compare(networks[-1], others)
        first, *rest = networks
        return [first, *others, *rest] if rest else [*others, first]

    def beside(self, run: RunFolder) -> list[Path]:
        """Fit only the models of other libraries, to the rows of a run; its report compares them.

        `settings` are those of the run.
        """
        run.refuse_links()
        opened = open_data(self.settings.data, LocalGroup(), self.settings.seed)
        others = list(self._others(opened))
        self._compare(run.path, others)
        return others

    def _train(self, settings: RunSettings, out: Path) -> dict[str, Any]:
        resume, overwrite = self.resume, self.overwrite
        return train(settings, out, resume=resume, overwrite=overwrite, quiet=self.quiet)

    def _say(self, text: str) -> None:
        if not self.quiet:
            note(text)

    def _others(self, opened: DataSet) -> Iterator[Path]:
        """The models of other libraries, as far as they apply and are installed."""
        if reason := _not_applicable(opened, self.settings):
            note(f"Only codauc's own ways are compared: {reason}.")
            return
        sides = sides_of(opened)
        for model in OTHER_MODELS:
            folder = RunFolder(self.out / model.name)
            if not (self.resume and folder.finished):
                check_free(folder, overwrite=self.overwrite)
                self._say(f"{model.name}:")
                try:
                    fitted = model.fitted(sides, self.settings.seed)
                except (ImportError, OSError) as error:
                    note(model.missing(error))
                    continue
                except Exception as error:  # of a library: it does not end the comparison
                    note(f"{model.title} is left out, it failed: {type(error).__name__}: {error}")
                    continue
                self._write(folder, model, fitted, opened, sides)
            yield folder.path

    def _write(
        self, folder: RunFolder, model: OtherModel, fitted: Fitted, opened: DataSet, sides: Sides
    ) -> None:
        """A directory as a run leaves it, without a network."""
        folder.path.mkdir(parents=True, exist_ok=True)
        with folder.locked():
            folder.remove_results()
            folder.write_scores(fitted.scores, sides.test.y)
            summary = _summary(model, fitted, opened, sides) | {"run": str(folder.path)}
            data = self.settings.data
            folder.write_json(SUMMARY, summary | {"data": data.source, "target": data.target})

    def _compare(self, network: Path, others: list[Path]) -> None:
        """Let the report of a run say how models of other libraries compare with it."""
        if others:
            folder = RunFolder(network)
            found = against(folder, [RunFolder(other) for other in others])
            if not found:
                raise ValueError(
                    f"the test rows of {network} are not those of {self.settings.data.source}: "
                    "expected the data and the scores of its training; train again."
                )
            folder.write_json(BASELINES, {"models": found})
            folder.write(REPORT, page(folder))


SEEDS_HEADER = ["model", "test AUC", "AUC - first (95% interval)", "AP", "seconds"]


def seed_rows(seeds: Sequence[Sequence[Path]]) -> list[list[str]]:
    """A row of means over seeds for each model that every seed has; differences are paired.

    Each seed has splits of its own, so the interval (Student's t) is also that of other splits.
    """
    found = [{path.name: RunFolder(path).summary() for path in paths} for paths in seeds]
    common = [path.name for path in seeds[0] if all(path.name in each for each in found)]
    rows = []
    for name in common:

        def values(field: str, name: str = name) -> list[float]:
            return [float(each[name][field]) for each in found]

        aucs, firsts = values("test_auc"), values("test_auc", common[0])
        between = estimate([a - b for a, b in zip(aucs, firsts, strict=True)])
        low, high = max(-1.0, between.low), min(1.0, between.high)
        gap = between._replace(low=low, high=high).text("+.4f")
        means = [estimate(values(field)).mean for field in ("average_precision", "seconds")]
        cells = [f"{estimate(aucs).mean:.4f}", "" if name == common[0] else gap]
        rows.append([name, *cells, f"{means[0]:.4f}", digits(means[1], 3)])
    return rows


def _not_applicable(opened: DataSet, settings: RunSettings) -> str:
    """Why models of other libraries cannot be compared; nothing where they can."""
    if opened.shape or opened.encoder is None:
        return "models of other libraries do not take images"
    if opened.test is None:
        return "there is no test set"
    return "with own, the rows of each worker stay with it" if settings.data.own else ""


def _summary(model: OtherModel, fitted: Fitted, opened: DataSet, sides: Sides) -> dict[str, Any]:
    """What summary.json holds of a model of another library."""
    train, test = opened.train, opened.test
    assert test is not None
    labels, weights = sides.test.y, sides.test.weights
    groups = None if test.groups is None else test.groups[torch.argsort(test.rows, stable=True)]
    auc = weighted_auc_interval(fitted.scores, labels, weights, groups)
    return {
        "test_auc": auc.value,
        "auc_low": auc.low,
        "auc_high": auc.high,
        "average_precision": average_precision(fitted.scores, labels, weights),
        "validation_auc": None,
        "steps": fitted.steps,
        "rounds": 0,
        "bytes_per_worker": 0,
        "seconds": fitted.seconds,
        "pos_ratio": train.pos_ratio,
        "train_samples": train.samples,
        "validation_samples": 0 if opened.validation is None else opened.validation.samples,
        "test_samples": test.samples,
        "test_positives": test.positives,
        "workers": [{"samples": train.samples, "positives": train.positives}],
        "positive": list(opened.positive),
        "negative": list(opened.negative[:20]),
        "model": {"name": model.title},
        "notes": [],
        "finished": True,
        "interrupted": False,
        "version": __version__,
    }
