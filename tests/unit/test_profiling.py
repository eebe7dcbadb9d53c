"""Claims about the profile: it is complete, true, and changes nothing but the clock."""

import json
import time

import numpy as np
import pytest
import torch
from torch import nn

import codauc
from codauc.data import Batches
from codauc.data.data_settings import DataSettings
from codauc.data.opening import open_data
from codauc.report.run_page import page
from codauc.runs.directory import MODEL, PROFILE, TRACE, RunFolder
from codauc.runs.settings import CommunicationSettings, RecipeSettings, RunSettings
from codauc.training import profiler as profiling
from codauc.training.build import resolve_settings
from codauc.training.checkpoint_policy import RunControl
from codauc.training.loop import fit
from codauc.training.profiler import Clock, profile_table

EVERY_STEP = {"reading", "forward", "loss", "backward", "step", "rest"}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 4))
    path = tmp_path_factory.mktemp("data") / "d.npz"
    np.savez(path, x=x, y=x[:, 0] + 0.5 * rng.normal(size=600) > 1)
    return str(path)


def settings_of(source, recipe=None, **communication):
    recipe = {"steps": 21, "batch_size": 32, "evaluations": 3, **(recipe or {})}
    return RunSettings(
        DataSettings(source, target="y"),
        recipe=RecipeSettings(**recipe),
        communication=CommunicationSettings(**communication),
    )


def work(group, settings, clock=None):
    """One worker's part: its weights and the profile."""
    opened = open_data(settings.data, group)
    control = RunControl(clock=clock)
    trained = fit(resolve_settings(settings, opened, group.size), opened, group, control=control)
    weights = torch.cat([p.detach().flatten() for p in trained.model.parameters()])
    return weights, None if clock is None else clock.result(group, trained.steps), trained


def measured(settings, workers=1):
    results = codauc.launch(lambda g: work(g, settings, Clock()), workers=workers, simulate=True)
    return results[0]


def rows_of(profile):
    return {row["name"]: row for row in profile["rows"]}


WAYS = {
    "one": {},
    "simulated": {"workers": 2, "sync_every": 8},
    "delayed": {"workers": 2, "sync_every": 8, "delay": 3},
    "data parallel": {"workers": 2, "averages": "gradients", "sync_every": 10**9},
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_add_up_to_the_time_of_training_and_the_model_is_the_same(way, source):
    settings = settings_of(source, **WAYS[way])
    workers = settings.communication.size
    weights, profile, trained = measured(settings, workers)
    rows = rows_of(profile)
    assert sum(row["seconds"] for row in profile["rows"]) == pytest.approx(profile["seconds"])
    assert sum(row["share"] for row in profile["rows"]) == pytest.approx(1)
    assert profile["seconds"] == pytest.approx(trained.seconds, rel=0.01, abs=0.1)
    assert {name for name, row in rows.items() if row["times"] == 21} >= EVERY_STEP
    assert ("round" in rows) == (workers > 1)
    plain = codauc.launch(lambda g: work(g, settings)[0], workers=workers, simulate=True)[0]
    assert torch.equal(plain, weights)


def test_rounds_and_evaluations_are_counted(source):
    settings = settings_of(source, workers=2, sync_every=8)
    _, profile, trained = measured(settings, 2)
    rows = rows_of(profile)
    assert rows["round"]["times"] == trained.ledger["rounds"]
    assert rows["evaluation"]["times"] == len(trained.records)
    assert rows["turns"]["seconds"] > 0


def test_a_slow_source_shows_up_as_reading(source, monkeypatch):
    fetch = Batches.__next__

    def slow(self):
        time.sleep(0.02)
        return fetch(self)

    monkeypatch.setattr(Batches, "__next__", slow)
    rows = rows_of(measured(settings_of(source))[1])
    assert rows["reading"]["ms_each"] > 20
    assert rows["reading"]["share"] > 0.5
    assert rows["forward"]["ms_each"] < 20


def test_time_in_rounds_is_sending_or_waiting_by_the_ledger():
    part = {"seconds": {"forward": 6.0, "round": 1.0, "apart": 3.0}, "waited": 2.0}
    assert profiling._one(part) == {"forward": 6.0, "round": 1.0, "waiting": 2.0, "sending": 1.0}
    hidden = part | {"waited": 5.0}  # much of it while this worker computed
    assert profiling._one(hidden)["waiting"] == 3.0


def test_devices_are_waited_for_at_each_mark(monkeypatch):
    calls = []
    monkeypatch.setattr(profiling, "synchroniser", lambda device: lambda: calls.append(device))
    clock = Clock()
    opt = codauc.PPDSG(nn.Linear(2, 1), codauc.MinMaxAUCLoss(pos_ratio=0.5), lr=0.1)
    with clock.measuring(codauc.CoDA(opt)):
        for name in ("forward", "backward"):
            clock.mark(name)
    assert len(calls) == 3


def test_an_accelerator_has_a_synchroniser():
    assert profiling.synchroniser(torch.device("cpu")) is None
    assert callable(profiling.synchroniser(torch.device("cuda")))


def test_an_error_leaves_everything_as_it_was(source):
    def trains(group):
        settings = settings_of(source, workers=2, sync_every=8)
        opened = open_data(settings.data, group)

        def requested(_):
            raise OSError("no")

        clock = Clock()
        control = RunControl(requested, clock=clock)
        with pytest.raises(OSError, match="no"):
            fit(resolve_settings(settings, opened, 2), opened, group, control=control)
        seconds = dict(clock.seconds)
        group.gather(torch.zeros(1), "round")
        return clock.seconds == seconds and clock._now == {}

    assert codauc.launch(trains, workers=2, simulate=True) == [True, True]


FIELDS = {"seconds", "steps", "last_step", "workers", "simulated", "device"}
FIELDS |= {"rows", "by_worker", "trace"}
ROW = {"name", "label", "seconds", "share", "ms_a_step", "times", "ms_each"}


def test_the_run_s_directory_has_the_profile_a_trace_and_a_part_of_the_report(source, tmp_path):
    codauc.train(settings_of(source), tmp_path, profile=True)
    folder = RunFolder(tmp_path)
    profile = folder.profile()
    assert set(profile) == FIELDS
    assert all(set(row) == ROW for row in profile["rows"])
    assert (profile["steps"], profile["last_step"], profile["trace"]) == (21, 21, TRACE)
    events = json.loads((tmp_path / TRACE).read_text())["traceEvents"]
    assert sum(event["name"] == "codauc: forward" for event in events) == 5
    text = (tmp_path / "report.html").read_text()
    assert "Time of a step" in text
    codauc.train(settings_of(source), tmp_path, overwrite=True)
    assert not (tmp_path / PROFILE).exists()
    assert not (tmp_path / TRACE).exists()
    assert "Time of a step" not in (tmp_path / "report.html").read_text()


class _Broken(codauc.Callback):
    def on_step(self, step, stage, rounds):
        if step == 20:
            raise OSError("cut off")


def test_a_run_begun_without_goes_on_with_a_profile_to_the_same_model(source, tmp_path):
    settings = settings_of(source).with_changes("safety", checkpoint_rounds=6)
    codauc.train(settings, tmp_path / "whole")
    with pytest.raises(OSError, match="cut off"):
        codauc.train(settings, tmp_path / "cut", callbacks=[_Broken()])
    codauc.train(settings, tmp_path / "cut", resume=True, profile=True)
    models = [(tmp_path / name / MODEL).read_bytes() for name in ("whole", "cut")]
    assert models[0] == models[1]
    profile = RunFolder(tmp_path / "cut").profile()
    assert (profile["steps"], profile["last_step"]) == (3, 21)  # of this process, and in all


def test_a_report_survives_any_value_in_a_profile(source, tmp_path):
    codauc.train(settings_of(source, {"steps": 7}), tmp_path, profile=True)
    folder = RunFolder(tmp_path)
    usual = folder.profile()
    for value in (None, "text", -1, 10**400, [], {}, [None], [{}], True):
        row = {**usual["rows"][0], "share": value, "ms_a_step": value, "label": value}
        for key in ("rows", "by_worker", "simulated"):
            folder.write_json(PROFILE, usual | {key: value})
            assert "<html" in page(folder)
        folder.write_json(PROFILE, usual | {"rows": [row], "by_worker": [{"waiting": value}, {}]})
        assert "<html" in page(folder)


def test_a_run_goes_on_without_a_trace(source, tmp_path, capsys, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("another profiler is at work")

    monkeypatch.setattr(torch.autograd.profiler, "profile", fails)
    summary = codauc.train(settings_of(source), tmp_path, profile=True)
    assert summary["finished"]
    assert RunFolder(tmp_path).profile()["trace"] is None
    assert "another profiler is at work" in capsys.readouterr().err


def profile_of(*waits):
    """Of workers that wait such shares of their time."""
    parts = [{"forward": 10 * (1 - wait), "waiting": 10 * wait} for wait in waits]
    rows = [
        {"name": name, "label": name, "share": seconds / 10, "times": 5, "ms_each": None}
        | {"seconds": seconds, "ms_a_step": 200 * seconds}
        for name, seconds in parts[0].items()
    ]
    facts = {"seconds": 10.0, "steps": 5, "simulated": False, "trace": None, "workers": len(parts)}
    return facts | {"rows": rows, "by_worker": parts if len(parts) > 1 else []}


def test_the_table_names_the_worker_that_others_wait_for(tmp_path):
    text = profile_table(profile_of(0.3, 0.32, 0.01), tmp_path, 100)
    assert "worker 0  worker 2" in text
    assert text.endswith(
        "Worker 1 waits 32.0% of its time, worker 2 1.0%: the others wait for worker 2."
    )
    assert "worker 0  worker 1" in profile_table(profile_of(0.0, 0.4), tmp_path, 100)
    assert "wait little" in profile_table(profile_of(0.02, 0.01), tmp_path, 100)


def test_bars_are_drawn_where_they_fit(tmp_path):
    wide, narrow = (profile_table(profile_of(0.0), tmp_path, width) for width in (100, 40))
    assert "#" * 30 in wide
    assert "#" not in narrow
    assert max(map(len, wide.splitlines())) <= 100
