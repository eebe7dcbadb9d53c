"""Runs that never ran, but look as if they had."""

import numpy as np
import pytest

from codauc.metrics.auc_values import auc_interval
from codauc.runs.directory import CONFIG, SUMMARY, Record, RunFolder
from codauc.runs.history import History

PARAMETERS = 272_474
TOML = """
seed = 0
[data]
source = "fraud.parquet"
target = "is_fraud"
columns = ["amount", "age", "country"]
[recipe]
name = "coda"
stages = 3
[communication]
sync_every = {sync_every}
encoding = "fp32"
[model]
name = "resnet20"
"""


def make_records(steps=1200, every=20, sync_every=16, workers=4, quality=0.94, seed=0):
    """A history as training gives it: the AUC rises, a and b follow the means."""
    rng = np.random.default_rng(seed)
    ends = {steps // 4, steps // 2, steps}
    for step in range(0, steps + 1, every):
        done = step / steps
        rounds = step // sync_every if workers > 1 else 0
        auc = 0.5 + (quality - 0.5) * (1 - np.exp(-5 * done)) + rng.normal(0, 0.004)
        up, down = 0.5 + 0.35 * done, 0.5 - 0.32 * done
        lag = rng.normal(0, 0.015, 3)
        yield Record(
            step=step,
            stage=1 + sum(end < step for end in sorted(ends)),
            rounds=rounds,
            bytes=rounds * PARAMETERS * 4,
            seconds=0.31 * step + 2.0,
            lr=0.1 / 3 ** sum(end < step for end in ends),
            loss=float(1.1 * np.exp(-3 * done) + 0.12 + abs(rng.normal(0, 0.01))),
            auc=float(auc),
            auc_low=float(auc - 0.018),
            auc_high=float(min(1, auc + 0.018)),
            positive_mean=up,
            negative_mean=down,
            a=up - 0.05 + lag[0],
            b=down + 0.04 + lag[1],
            alpha=down - up + lag[2],
            drift=float(0.02 * np.exp(-2 * done)) if workers > 1 and rounds else None,
            computing=0.24 * step,
            communicating=0.05 * step if workers > 1 else 0.0,
            waiting=0.02 * step if workers > 1 else 0.0,
            stage_end=step in ends,
        )


def make_scores(n=6000, ratio=0.05, shift=2.1, seed=0, noise_seed=None):
    rng = np.random.default_rng(seed)
    labels = rng.random(n) < ratio
    noise = rng if noise_seed is None else np.random.default_rng(noise_seed)
    return noise.normal(-1.6, 1.1, n) + shift * labels, labels


def make_summary(scores, labels, records, workers=4):
    interval, last = auc_interval(scores, labels), records[-1]
    order = np.argsort(-scores)
    precision = np.cumsum(labels[order]) / np.arange(1, len(labels) + 1)
    held = [{"samples": 9000 + 700 * k, "positives": 400 + 90 * k} for k in range(workers)]
    return {
        "test_auc": interval.value,
        "auc_low": interval.low,
        "auc_high": interval.high,
        "average_precision": float(precision[labels[order]].mean()),
        "steps": last.step,
        "rounds": last.rounds,
        "bytes_per_worker": last.bytes,
        "seconds": last.seconds,
        "pos_ratio": 0.05,
        "best_step": last.step // 5 * 4,
        "validation_auc": 0.9312,
        "test_samples": len(labels),
        "test_positives": int(labels.sum()),
        "train_samples": sum(worker["samples"] for worker in held),
        "validation_samples": 6000,
        "workers": held,
        "computing": last.computing,
        "communicating": last.communicating,
        "waiting": last.waiting,
        "finished": True,
        "interrupted": False,
        "version": "0.1.0",
        "model": {"name": "resnet20", "parameters": PARAMETERS},
        "data": "fraud.parquet",
        "target": "is_fraud",
        "positive": ["1"],
        "negative": ["0"],
        "notes": [],
    }


@pytest.fixture
def make_run(tmp_path):
    """A function that makes the directory of a run."""

    def make(name="coda-4x16", workers=4, sync_every=16, scores=None, summary=None, **history):
        folder = RunFolder(tmp_path / name)
        folder.path.mkdir(parents=True)
        folder.write(CONFIG, TOML.format(sync_every=sync_every))
        records = list(make_records(workers=workers, sync_every=sync_every, **history))
        writer = History(folder)
        for record in records:
            writer.write(record)
        values, labels = make_scores() if scores is None else scores
        folder.write_scores(values, labels)
        usual = make_summary(values, labels, records, workers)
        folder.write_json(SUMMARY, usual | (summary or {}))
        return folder

    return make


@pytest.fixture(name="make_records")
def _make_records():
    return make_records


@pytest.fixture(name="make_scores")
def _make_scores():
    return make_scores
