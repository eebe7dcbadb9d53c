"""Claims about a run that was cut off and goes on: nothing tells it from one that was not."""

import json
import os
import random
import signal
import subprocess
import tomllib
from contextlib import contextmanager, suppress

import pytest
import torch
from runs import assert_same, checkpoints, history, wait_for
from torch import nn

import codauc
from codauc._internal.archive import pack, unpack
from codauc.algorithm.rounds import NotFiniteError
from codauc.data.data_settings import DataSettings
from codauc.data.opening import open_data
from codauc.runs.checkpoints import Checkpoints
from codauc.runs.directory import RunFolder
from codauc.runs.settings import (
    CommunicationSettings,
    ModelSettings,
    RecipeSettings,
    RunSettings,
    SafetySettings,
)
from codauc.workers import LocalGroup


class CutOffError(Exception):
    pass


class Cut(codauc.Callback):
    """Ends the run at a step, without a word, as a power cut would."""

    def __init__(self, step):
        self.step = step

    def on_step(self, step, stage, rounds):
        if step == self.step:
            raise CutOffError


class Normed(nn.Module):
    """A network with BatchNorm and dropout, which both have a state of their own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1)
        )

    def forward(self, x):
        return self.layers(x)


SMALL = {"name": "tabular", "arguments": {"widths": [16]}}  # starts at once, unlike an ensemble


def settings_of(table, workers=1, model=None, recipe=None, rounds=2, **communication):
    return RunSettings(
        DataSettings(str(table), target="y"),
        model=ModelSettings(**(model or SMALL)),
        recipe=RecipeSettings(**{"steps": 60, "evaluations": 6, "patience": 99, **(recipe or {})}),
        communication=CommunicationSettings(
            **{"workers": workers, "simulate": workers > 1, "sync_every": 5, **communication}
        ),
        safety=SafetySettings(checkpoint_minutes=0, checkpoint_rounds=rounds),
    )


def cut_and_resumed(settings, out, *steps):
    """A run that is cut off at each of these steps, and ends at last."""
    for step in steps:
        with pytest.raises(CutOffError):
            codauc.train(settings, out, resume=True, callbacks=[Cut(step)])
    return codauc.train(settings, out, resume=True)


NORMED = {"name": f"{__name__}:Normed"}
WAYS = {
    "one": {},
    "an ensemble, as by default": {"workers": 2, "model": {"arguments": {"widths": [16]}}},
    "three": {"workers": 3},
    "BatchNorm and dropout": {"workers": 2, "model": NORMED},
    "int8": {"workers": 2, "compress": "int8"},
    "bf16 and overlap": {"workers": 2, "compress": "bf16", "delay": 3},
    "int8, overlap, BatchNorm": {"workers": 2, "compress": "int8", "delay": 4, "model": NORMED},
    "the paper's": {"workers": 2, "recipe": {"name": "paper", "steps": 20, "stages": 2}},
    "balanced": {"workers": 2, "recipe": {"balance": 0.3}},
    "plain steps, cross-entropy": {
        "workers": 2,
        "recipe": {"name": "bce", "optimizer": "sgd", "momentum": 0.5},
    },
    "gradients": {"workers": 2, "averages": "gradients"},
    "theorem": {"workers": 2, "sync_every": "theorem"},
    "periods by the step size": {"workers": 2, "sync_every": "qsr:4"},
    "corrected, int8, by samples, some away": {
        "workers": 3,
        "correct": "scaffold",
        "compress": "int8",
        "worker_weight": "samples",
        "present": 0.6,
    },
    "statistics of its own": {"workers": 2, "norm": "local", "model": NORMED},
    "outer steps, int8": {"workers": 2, "compress": "int8", "outer": "0.7,0.9"},
}


OFTEN = {"one", "int8, overlap, BatchNorm"}  # cut off four times, others twice


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_was_cut_off_continues_bit_for_bit(way, table, tmp_path):
    settings = settings_of(table, **WAYS[way])
    codauc.train(settings, tmp_path / "whole")
    cuts = (17, 29, 47, 58) if way in OFTEN else (17, 47)
    cut_and_resumed(settings, tmp_path / "cut", *cuts)
    assert_same(tmp_path / "whole", tmp_path / "cut")
    faults = (tmp_path / "cut" / "faults.jsonl").read_text().splitlines()
    resumed = [json.loads(line)["step"] for line in faults if "resumed" in line]
    assert len(set(resumed)) >= (1 if way == "theorem" else len(cuts) - 1)
    assert not (tmp_path / "cut" / "checkpoints").exists()


def test_what_skewed_shards_choose_stays_when_other_workers_resume(table, tmp_path):
    settings = settings_of(table, 3, sync_every=None).with_changes("data", skew=0.2)
    with pytest.raises(CutOffError):
        codauc.train(settings, tmp_path / "r", resume=True, callbacks=[Cut(40)])
    alone = settings.with_changes("communication", workers=1)
    codauc.train(alone, tmp_path / "r", resume=True)
    ways = tomllib.loads((tmp_path / "r/config.toml").read_text())["communication"]
    assert (ways["sync_every"], ways["correct"], ways["worker_weight"]) == (
        8,
        "scaffold",
        "samples",
    )


def test_workers_of_their_own_statistics_stay_as_many(table, tmp_path):
    settings = settings_of(table, 3, model=NORMED, norm="local")
    with pytest.raises(CutOffError):
        codauc.train(settings, tmp_path / "r", resume=True, callbacks=[Cut(40)])
    fewer = settings.with_changes("communication", workers=2)
    with pytest.raises(ValueError, match="2 workers in place of 3, each with a scaling"):
        codauc.train(fewer, tmp_path / "r", resume=True)


def test_images_continue_bit_for_bit(tmp_path):
    settings = RunSettings(
        DataSettings("fashion-tiny", positive=("6",)),
        recipe=RecipeSettings(steps=6, evaluations=2, batch_size=16, dual_samples=32),
        communication=CommunicationSettings(workers=2, simulate=True, sync_every=2),
        safety=SafetySettings(checkpoint_minutes=0, checkpoint_rounds=1),
    )
    codauc.train(settings, tmp_path / "whole")
    cut_and_resumed(settings, tmp_path / "cut", 5)
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_cut_off_before_the_first_checkpoint_it_begins_anew(table, tmp_path):
    settings = settings_of(table, rounds=1000)
    codauc.train(settings, tmp_path / "whole")
    cut_and_resumed(settings, tmp_path / "cut", 30)
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_a_finished_run_is_not_run_again(table, tmp_path):
    settings = settings_of(table)
    summary = codauc.train(settings, tmp_path, resume=True)
    again = codauc.train(settings, tmp_path, resume=True, callbacks=[Cut(1)])
    assert again == summary


def test_a_run_that_was_asked_to_end_goes_on_where_it_was(table, tmp_path):
    settings = settings_of(table, workers=2)
    codauc.train(settings, tmp_path / "whole")

    class Ask(codauc.Callback):
        def on_step(self, step, stage, rounds):
            if step == 33:
                signal.raise_signal(signal.SIGINT)

    assert codauc.train(settings, tmp_path / "cut", callbacks=[Ask()])["interrupted"]
    codauc.train(settings, tmp_path / "cut", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("way", ["one", "three", "int8, overlap, BatchNorm"])
def test_asked_to_leave_it_saves_and_goes_on_where_it_was(way, table, tmp_path):
    settings = settings_of(table, rounds=1000, **WAYS[way])
    codauc.train(settings, tmp_path / "whole")

    class Ask(codauc.Callback):
        def on_step(self, step, stage, rounds):
            if step == 33:
                os.kill(os.getpid(), signal.SIGTERM)

    left = codauc.train(settings, tmp_path / "cut", callbacks=[Ask()])
    assert left["stopped"]
    assert 33 <= left["steps"] < 45
    codauc.train(settings, tmp_path / "cut", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_two_runs_never_write_to_one_directory(table, tmp_path, monkeypatch):
    settings = settings_of(table, workers=2)
    with pytest.raises(CutOffError):
        codauc.train(settings, tmp_path, callbacks=[Cut(30)])
    before = sorted(path.name for path in checkpoints(tmp_path))
    monkeypatch.setattr("codauc.training.directory_claim._OUTLIVED", 0.3)
    for rank in (0, 1):  # a worker that outlived its launcher
        with (
            RunFolder(tmp_path).locked(rank),
            pytest.raises(ValueError, match=r"another run is being written .* \(process \d+ on"),
        ):
            codauc.train(settings, tmp_path, resume=True)
    assert sorted(path.name for path in checkpoints(tmp_path)) == before
    assert codauc.train(settings, tmp_path, resume=True)["finished"]


@contextmanager
def small_disk(path, size):
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "codauc", path]
    if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here: that needs root")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


class Filler(codauc.Callback):
    """Keeps the disk full for some steps; what was there before stays."""

    def __init__(self, path, first, last):
        self.path, self.first, self.last = path, first, last

    def on_step(self, step, stage, rounds):
        if self.first <= step < self.last:
            self.fill()
        elif step == self.last:
            self.path.unlink()

    def fill(self):
        with suppress(OSError), self.path.open("ab") as file:
            while True:
                file.write(bytes(4096))
                file.flush()


def test_a_full_disk_costs_checkpoints_not_the_run(table, tmp_path, capfd, monkeypatch):
    settings = settings_of(table, recipe={"warm_start": 0.3})
    codauc.train(settings, tmp_path / "whole")
    with small_disk(tmp_path / "disk", "4m") as disk:
        filler, begin = Filler(disk / "filler", 22, 90), Checkpoints.save_alone

        def begin_on_a_full_disk(self, number, state):
            if number > filler.first:
                filler.fill()  # what the oldest checkpoint has just given up, too
            begin(self, number, state)

        monkeypatch.setattr(Checkpoints, "save_alone", begin_on_a_full_disk)
        watching = [filler, Cut(70)]
        with pytest.raises(CutOffError):
            codauc.train(settings, disk / "run", callbacks=watching)
        assert "no checkpoint of step" in capfd.readouterr().err
        numbers = {int(path.name[:9]) for path in checkpoints(disk / "run")}
        assert numbers
        assert max(numbers) < 40
        monkeypatch.undo()
        (disk / "filler").unlink()
        codauc.train(settings, disk / "run", resume=True)
        assert_same(tmp_path / "whole", disk / "run")


def test_a_disk_that_was_full_for_a_while_lacks_no_line(table, tmp_path, capfd):
    settings = settings_of(table)
    codauc.train(settings, tmp_path / "whole")

    with small_disk(tmp_path / "disk", "4m") as disk:
        codauc.train(settings, disk / "run", callbacks=[Filler(disk / "filler", 22, 60)])
        assert_same(tmp_path / "whole", disk / "run")
    assert "No space left" in capfd.readouterr().err


OTHERS = {
    "lr": (lambda s: s.with_changes("recipe", lr=0.5), r"recipe\.lr is 0\.00\d* .* 0\.5 here"),
    "seed": (lambda s: RunSettings(**{**vars(s), "seed": 1}), "seed is 0 .*, 1 here"),
    "network": (
        lambda s: s.with_changes("model", arguments={"widths": [8]}),
        r"model\.arguments .*16.*8",
    ),
    "rounds": (lambda s: s.with_changes("communication", sync_every=6), r"sync_every is 5 .* 6"),
    "time": (lambda s: s.with_changes("data", time="a"), "other data: (training|validation|test)"),
    "columns": (lambda s: s.with_changes("data", drop=("a",)), r"other data: columns"),
    "target": (lambda s: s.with_changes("data", positive=("0",)), r"other data: positive classes"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_another_run_is_refused_and_the_difference_named(other, table, tmp_path):
    settings = settings_of(table)
    with pytest.raises(CutOffError):
        codauc.train(settings, tmp_path, callbacks=[Cut(30)])
    before = sorted(path.name for path in checkpoints(tmp_path))
    change, message = OTHERS[other]
    with pytest.raises(ValueError, match=message):
        codauc.train(change(settings), tmp_path, resume=True)
    assert sorted(path.name for path in checkpoints(tmp_path)) == before


def test_other_rows_are_refused(table, tmp_path):
    settings = settings_of(table)
    with pytest.raises(CutOffError):
        codauc.train(settings, tmp_path / "run", callbacks=[Cut(30)])
    lines = table.read_text().splitlines()
    lines[5] = lines[5][:-1] + ("0" if lines[5][-1] == "1" else "1")
    other = tmp_path / "other.csv"
    other.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match="other data: training"):
        codauc.train(
            settings.with_changes("data", source=str(other)), tmp_path / "run", resume=True
        )
    moved = tmp_path / "moved.csv"
    moved.write_bytes(table.read_bytes())  # the same data elsewhere are the same data
    codauc.train(settings.with_changes("data", source=str(moved)), tmp_path / "run", resume=True)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 3), (4, 1)])
def test_with_other_workers_the_run_goes_on_and_says_so(before, after, table, tmp_path):
    settings = settings_of(table, workers=before)
    with pytest.raises(CutOffError):
        codauc.train(settings, tmp_path, callbacks=[Cut(52)])
    other = settings.with_changes("communication", workers=after, simulate=True)
    summary = codauc.train(other, tmp_path, resume=True)
    assert summary["finished"]
    workers = [record["workers"] for record in history(tmp_path)]
    assert workers == sorted(workers, key=lambda k: k != before)
    assert set(workers) == {before, after}
    if before != after:
        assert f"with {after} worker" in summary["notes"][0]
    steps = [record["step"] for record in history(tmp_path)]
    assert steps == sorted(set(steps))


@pytest.mark.parametrize("way", ["int8", "bf16 and overlap", "the paper's", "balanced", "theorem"])
def test_other_workers_whatever_the_way(way, table, tmp_path):
    settings = settings_of(table, **WAYS[way])
    with pytest.raises(CutOffError):
        codauc.train(settings, tmp_path, callbacks=[Cut(52)])
    other = settings.with_changes("communication", workers=3)
    assert codauc.train(other, tmp_path, resume=True)["finished"]


def test_the_rest_of_the_epoch_is_covered_once_by_other_workers(table, tmp_path, monkeypatch):
    """The samples that two workers have not given before the cut are those that three give."""
    from codauc.training import build as trainer

    given = []

    class Watched(trainer.Batches):
        def __next__(self):
            position = self.position
            x, y = super().__next__()
            given.append((self.worker, *position, x))
            return x, y

    monkeypatch.setattr(trainer, "Batches", Watched)
    settings = settings_of(
        table, workers=2, recipe={"batch_size": 30, "dual_samples": 1, "crossed": False}
    )
    with pytest.raises(CutOffError):
        codauc.train(settings, tmp_path, callbacks=[Cut(17)])
    wait_for(lambda: len(checkpoints(tmp_path)) == 2)  # a worker may still be writing
    saved = [unpack(path.read_bytes())["state"]["run"]["batches"] for path in checkpoints(tmp_path)]
    assert all(state["index"] > 0 and state["epoch"] == 0 for state in saved)
    first = torch.cat([x for k, _, at, x in given if at < saved[k]["index"]])
    given.clear()
    other = settings.with_changes("communication", workers=3)
    codauc.train(other, tmp_path, resume=True)
    rest = torch.cat([x for _, epoch, _, x in given if epoch == 0])
    both = torch.cat([first, rest])
    assert len(both) == 1560  # the training set, of 2400 rows
    assert len(both.unique(dim=0)) == len(both)


def test_damaged_checkpoints_are_refused_or_survived(table, tmp_path):
    """Bits, cuts, fields: a run ends as the undisturbed one does, or says why it cannot go on."""
    settings = settings_of(table, workers=2, recipe={"steps": 57, "evaluations": 3})
    codauc.train(settings, tmp_path / "whole")
    with pytest.raises(CutOffError):
        codauc.train(settings, tmp_path / "cut", callbacks=[Cut(48)])
    files = {path.name: path.read_bytes() for path in checkpoints(tmp_path / "cut")}
    newest = sorted(files)[-1]
    rng, survived = random.Random(0), 0
    for trial in range(6):
        out = tmp_path / str(trial)
        (out / "checkpoints").mkdir(parents=True)
        for name, data in files.items():
            damaged = _damaged(data, trial, rng) if name == newest else data
            (out / "checkpoints" / name).write_bytes(damaged)
        refused = _refusal(settings, out)
        if refused is None:
            assert_same(tmp_path / "whole", out)
            survived += 1
        else:
            assert "\n" not in refused
    assert survived >= 4


def _refusal(settings, out):
    try:
        codauc.train(settings, out, resume=True)
    except ValueError as error:
        return str(error)
    return None


def _damaged(data, trial, rng):
    if trial % 3 == 0:
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(damaged)
    if trial % 3 == 1:
        return data[: rng.randrange(len(data))]
    content = unpack(data)
    tree = content
    while True:
        key = rng.choice(sorted(tree))
        if not isinstance(tree[key], dict) or not tree[key] or rng.random() < 0.3:
            break
        tree = tree[key]
    del tree[key]
    return pack(content)


class Broken(nn.Linear):
    """A network whose outputs are NaN at some of its calls."""

    def __init__(self):
        super().__init__(6, 1)
        self.calls = 0

    def forward(self, x):
        self.calls += self.training
        return super().forward(x) * (torch.nan if self.calls in BROKEN else 1.0)


BROKEN = set()


@pytest.mark.parametrize("workers", [1, 2])
def test_numbers_that_are_not_finite_cost_half_the_step_size(workers, table, tmp_path):
    BROKEN.update({11})
    settings = settings_of(table, workers, {"name": f"{__name__}:Broken"})
    summary = codauc.train(settings, tmp_path, resume=True)
    assert summary["finished"]
    assert "numbers were not finite" in summary["notes"][0]
    assert "1/2 of the step size" in summary["notes"][0]
    steps = [record["step"] for record in history(tmp_path)]
    assert steps == sorted(set(steps))
    assert 0 < summary["test_auc"] < 1


@pytest.mark.parametrize("workers", [1, 2])
def test_or_the_run_ends_with_its_last_good_state(workers, table, tmp_path):
    BROKEN.update({11})
    settings = settings_of(table, workers, {"name": f"{__name__}:Broken"})
    settings = settings.with_changes("safety", not_finite="stop")
    with pytest.raises(ArithmeticError, match="not finite"):
        codauc.train(settings, tmp_path)
    for path in checkpoints(tmp_path):
        state = unpack(path.read_bytes())["state"]
        assert all(t.isfinite().all() for t in state["run"]["coda"]["model"].values())


def test_always_bad_numbers_end_the_run_after_some_tries(table, tmp_path):
    BROKEN.update(range(11, 10_000))
    settings = settings_of(table, 1, {"name": f"{__name__}:Broken"})
    with pytest.raises(ArithmeticError, match="not finite"):
        codauc.train(settings, tmp_path)


@pytest.mark.parametrize("compress", [None, "int8"])
def test_one_workers_nan_is_noticed_by_all_in_the_same_round(compress):
    def work(group):
        model, loss = nn.Linear(3, 1), codauc.MinMaxAUCLoss(pos_ratio=0.5, validate=False)
        opt = codauc.PPDSG(model, loss, lr=0.1)
        coda = codauc.CoDA(opt, group, compress=compress)
        batch = (torch.randn(8, 3), torch.arange(8) % 2)
        before, steps = None, 0
        try:
            for x, y in coda.stage(codauc.Stage(lr=0.1, steps=30, sync_every=5), [batch]):
                opt.zero_grad()
                loss(model(x), y).backward()
                if group.rank == 1 and opt.steps == 13:
                    model.weight.grad.fill_(torch.nan)
                opt.step()
                steps, before = opt.steps, model.weight.detach().clone()
        except NotFiniteError:
            return steps, opt.steps, bool(before.isfinite().all()), bool(model.weight.isnan().any())
        return None

    results = codauc.launch(work, workers=3, simulate=True)
    assert [result[:2] for result in results] == [(14, 15)] * 3
    assert [result[2:] for result in results] == [(True, False), (False, True), (True, False)]


@pytest.fixture(autouse=True)
def _mended():
    BROKEN.clear()
    yield
    BROKEN.clear()


def rewritten(table, path, change):
    """The table with its columns of numbers changed."""
    head, *lines = table.read_text().splitlines()
    rows = [[*change([*map(float, line.split(",")[:-1])]), line[-1]] for line in lines]
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


CHANGES = {
    "exchanged": lambda row: [row[1], row[0], *row[2:]],
    "negated": lambda row: [-row[0], *row[1:]],
}


@pytest.mark.parametrize("change", CHANGES)
def test_columns_that_are_exchanged_or_negated_are_other_data(change, table, tmp_path):
    settings = settings_of(table)
    with pytest.raises(CutOffError):
        codauc.train(settings, tmp_path / "run", callbacks=[Cut(30)])
    other = rewritten(table, tmp_path / "other.csv", CHANGES[change])
    with pytest.raises(ValueError, match="other data: training inputs"):
        codauc.train(
            settings.with_changes("data", source=str(other)), tmp_path / "run", resume=True
        )


def split_rows(table, part):
    """The lines of the file, counted from 0, that are of a part of the usual split."""
    settings = DataSettings(str(table), target="y")
    return [int(row) + 1 for row in getattr(open_data(settings, LocalGroup()), part).rows]


def changed_lines(table, path, lines, change):
    """The table with some lines changed."""
    texts = table.read_text().splitlines()
    for line in lines:
        texts[line] = ",".join(change(texts[line].split(",")))
    path.write_text("\n".join(texts) + "\n")
    return path


def noise(values):
    return [*(f"{random.gauss(0, 1):.5f}" for _ in values[:-1]), values[-1]]


def one_cell(values):
    return [*values[:3], str(float(values[3]) + 0.01), *values[4:]]


@pytest.mark.parametrize("part", ["train", "validation", "test"])
@pytest.mark.parametrize("change", ["one cell", "noise"])
def test_other_inputs_of_any_part_are_other_data(change, part, table, tmp_path):
    settings = settings_of(table, workers=2)
    with pytest.raises(CutOffError):
        codauc.train(settings, tmp_path / "run", callbacks=[Cut(30)])
    rows = split_rows(table, part)
    lines, how = (rows[7:8], one_cell) if change == "one cell" else (rows, noise)
    other = changed_lines(table, tmp_path / "other.csv", lines, how)
    title = "training" if part == "train" else part
    for workers in (2, 3):
        resumed = settings.with_changes("data", source=str(other))
        resumed = resumed.with_changes("communication", workers=workers)
        with pytest.raises(ValueError, match=f"other data: {title} inputs"):
            codauc.train(resumed, tmp_path / "run", resume=True)


@pytest.mark.parametrize("watch", ["validation", "test"])
def test_another_test_file_is_other_data(watch, table, tmp_path):
    test = tmp_path / "test.csv"
    test.write_bytes(table.read_bytes())
    settings = settings_of(table, recipe={"select": "last"})
    settings = settings.with_changes("data", test=str(test), watch=watch)
    with pytest.raises(CutOffError):
        codauc.train(settings, tmp_path / "run", callbacks=[Cut(30)])
    flipped = changed_lines(table, test, range(1, 2401), lambda v: [*v[:-1], str(1 - int(v[-1]))])
    with pytest.raises(ValueError, match=r"other data: (validation|test) positives"):
        codauc.train(settings, tmp_path / "run", resume=True)
    changed_lines(table, flipped, [9], one_cell)
    with pytest.raises(ValueError, match=r"other data: (validation|test) inputs"):
        codauc.train(settings, tmp_path / "run", resume=True)
    moved = tmp_path / "moved.csv"
    moved.write_bytes(table.read_bytes())
    assert codauc.train(
        settings.with_changes("data", test=str(moved)), tmp_path / "run", resume=True
    )


def test_a_run_that_ends_while_another_waits_for_it_is_not_begun_again(
    table, tmp_path, monkeypatch
):
    settings = settings_of(table)
    summary = codauc.train(settings, tmp_path)
    looks = iter([False])  # it was not finished when the other one looked first
    finished = RunFolder.finished.fget
    monkeypatch.setattr(RunFolder, "finished", property(lambda f: next(looks, finished(f))))
    assert codauc.train(settings, tmp_path, resume=True, callbacks=[Cut(1)]) == summary


def test_an_interrupted_runs_results_go_when_it_goes_on(table, tmp_path):
    settings = settings_of(table)

    class Ask(codauc.Callback):
        def on_step(self, step, stage, rounds):
            if step == 20:
                os.kill(os.getpid(), signal.SIGINT)

    assert codauc.train(settings, tmp_path, callbacks=[Ask()])["interrupted"]
    with pytest.raises(CutOffError):
        codauc.train(settings, tmp_path, resume=True, callbacks=[Cut(50)])
    assert not (tmp_path / "summary.json").exists()
    assert not (tmp_path / "report.html").exists()


def test_asked_to_end_in_a_stages_last_steps_it_still_goes_on(table, tmp_path):
    settings = settings_of(table, workers=2, sync_every="once", rounds=1000)
    codauc.train(settings, tmp_path / "whole")

    class Ask(codauc.Callback):
        def on_step(self, step, stage, rounds):
            if step == 20:
                os.kill(os.getpid(), signal.SIGINT)

    assert codauc.train(settings, tmp_path / "cut", callbacks=[Ask()])["interrupted"]
    assert checkpoints(tmp_path / "cut")
    codauc.train(settings, tmp_path / "cut", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "cut")


def test_what_could_not_be_saved_is_not_said_to_be(table, tmp_path, capfd):
    settings = settings_of(table, rounds=1000)

    class Ask(codauc.Callback):
        def on_step(self, step, stage, rounds):
            if step == 20:
                os.kill(os.getpid(), signal.SIGTERM)

    with small_disk(tmp_path / "disk", "1m") as disk:
        filler = Filler(disk / "filler", 5, 1000)
        left = codauc.train(settings, disk / "run", callbacks=[filler, Ask()])
    assert left["stopped"]
    assert not left["saved"]
    assert "No space left" in capfd.readouterr().err
