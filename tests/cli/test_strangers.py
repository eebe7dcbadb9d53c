"""Files from others run nothing, are not waited for without end, and print nothing of theirs."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from codauc import RunSettings
from codauc._internal.archive import SUM, checksum
from codauc.data import ImageFiles
from codauc.runs.settings import ModelSettings

QUICK = ("--target", "fraud", "--positive", "yes", "--steps", "84")
RAN = "ran.txt"

# What a stranger may write in [model]: the name, and arguments with which it would do harm.
PATHS = {
    "a command": ("os:system", {"command": f"touch {RAN}"}),
    "a process": ("subprocess:check_call", {"args": ["touch", RAN]}),
    "a class that is no network": ("subprocess:Popen", {"args": ["touch", RAN]}),
    "a program": ("builtins:exec", {"source": f"import os; os.mknod({RAN!r})"}),
    "a chain": ("os:path.os.system", {"command": f"touch {RAN}"}),
    "a chain from a network": ("torch:nn.modules.os.system", {"command": f"touch {RAN}"}),
    "a function that makes a network": ("side:make", {}),
}
SIDE = f"""
from pathlib import Path
from torch import nn
def tell(what):
    with Path({RAN!r}).open("a") as file:
        file.write(what + " ")
tell("imported")
def make(**arguments):
    tell("called")
    return nn.Linear(1, 1)
class Net(nn.Module):
    def __init__(self, **arguments):
        super().__init__()
        tell("made")
"""
EVERY = {**PATHS, "a network beside the file": ("side:Net", {})}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty directory of a stranger's, with a module that tells when it is imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "side.py").write_text(SIDE)
    before = list(sys.path)
    yield tmp_path
    sys.modules.pop("side", None)
    assert sys.path == before


def with_model(run, to, name, arguments):
    """A copy of the run whose settings name another network, and which is not finished."""
    shutil.copytree(run, to)
    text = (to / "config.toml").read_text()
    settings = RunSettings.from_toml(text).with_changes("communication", simulate=True)
    changed = settings.with_changes("model", name=name, arguments=arguments)
    (to / "config.toml").write_text(changed.to_toml())
    (to / "summary.json").unlink()
    return to


def commands(folder, table):
    """Every command that reads settings or a run."""
    config = folder / "config.toml"
    return {
        "train --config": ("train", "--config", config, "--out", "out"),
        "train --resume": ("train", "--resume", "--out", folder),
        "baselines --config": ("baselines", "--config", config, "--out", "out"),
        "baselines --resume": ("baselines", "--resume", "--out", folder),
        "evaluate": ("evaluate", folder, table),
        "predict": ("predict", folder, table, "--out", "scores.csv"),
        "export": ("export", folder, "--onnx", "m.onnx"),
    }


@pytest.mark.parametrize("name", EVERY)
def test_settings_of_a_stranger_run_nothing(name, run, table, codauc, here):
    path, arguments = EVERY[name]
    theirs = with_model(run, here / "theirs", path, arguments)
    for command, words in commands(theirs, table).items():
        code, output, error = codauc(*words)
        assert not (here / RAN).exists(), command
        assert "side" not in sys.modules, command
        assert code == 2, (command, output, error)
        assert f"--model {path}" in error, command
        assert "--trust-config" in error, command


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("trusted", [False, True], ids=["model", "trust-config"])
def test_only_a_class_that_is_a_network_is_made(
    trusted, name, run, table, codauc, here, monkeypatch
):
    """Every path by the two ways to a network, settings and a model's file; one by all commands."""
    monkeypatch.setattr("codauc.reproduce.baselines.OTHER_MODELS", ())  # fitted before it
    path, arguments = PATHS[name]
    theirs = with_model(run, here / "theirs", path, arguments)
    for command, words in commands(theirs, table).items():
        if name != "a command" and command not in ("train --config", "evaluate"):
            continue
        more = ["--trust-config"] if trusted else ["--model", path]
        code, output, error = codauc(*words, *more)
        written = (here / RAN).read_text() if (here / RAN).exists() else ""
        assert written in ("", "imported "), command
        assert code == 2, (command, output, error)
        assert path in error, command


@pytest.mark.parametrize("words", [("report",), ("compare",), ("compare", "--json")])
def test_a_report_imports_nothing(words, run, codauc, here):
    theirs = with_model(run, here / "theirs", "side:Net", {})
    shutil.copy(run / "summary.json", theirs)
    code, _, error = codauc(words[0], theirs, *words[1:])
    assert code == 0, error
    assert not (here / RAN).exists()


def test_links_and_relative_names_change_nothing(run, codauc, here):
    theirs = with_model(run, here / "theirs", "os:system", {"command": f"touch {RAN}"})
    (here / "link.toml").symlink_to(theirs / "config.toml")
    (here / "linked").symlink_to(theirs)
    for words in (
        ("--config", "link.toml", "--out", "out"),
        ("--config", "./theirs/../link.toml", "--out", "out"),
        ("--resume", "--out", "linked"),
        ("--resume", "--out", "./theirs/."),
    ):
        code, _, error = codauc("train", *words)
        assert code == 2
        assert "--trust-config" in error
    assert not (here / RAN).exists()


def test_a_finished_run_that_is_resumed_is_checked_as_well(run, codauc, here):
    theirs = with_model(run, here / "theirs", "side:Net", {})
    shutil.copy(run / "summary.json", theirs)
    code, _, error = codauc("train", "--resume", "--out", theirs)
    assert code == 2
    assert "side:Net" in error
    assert not (here / RAN).exists()


@pytest.mark.parametrize("path", ["os:system", "side:make", "subprocess:Popen", "side:Net"])
def test_a_callback_is_a_class_of_callbacks(path, table, codauc, here):
    code, _, error = codauc("train", table, *QUICK, "--callback", path, "--out", "out")
    assert code == 2
    assert "codauc.Callback" in error
    assert not (here / RAN).exists() or (here / RAN).read_text() == "imported "


def test_settings_in_python_are_read_without_import_paths_unless_trusted():
    text = RunSettings(model=ModelSettings("os:system")).to_toml()
    with pytest.raises(ValueError, match=r"'os:system', an import path.*trust=True"):
        RunSettings.from_toml(text)
    assert RunSettings.from_toml(text, trust=True).model.name == "os:system"


SHADOW = f"open({RAN!r}, 'a').write(__name__)\nfrom torch import nn\nclass Net(nn.Linear): pass\n"


def shadow(folder):
    for name in ("torch", "json", "numpy", "csv", "onnx", "pathlib", "pickle", "socket"):
        (folder / f"{name}.py").write_text(SHADOW)


@pytest.mark.parametrize("options", [(), ("--trust-config",)])
def test_a_file_of_the_current_directory_takes_no_modules_place(options, run, here):
    theirs = with_model(run, here / "theirs", "json:Net", {"in_features": 1, "out_features": 1})
    shadow(here)
    command = [sys.executable, "-m", "codauc", "train", "--config", theirs / "config.toml"]
    done = subprocess.run(
        [*command, "--out", "out", *options], capture_output=True, text=True, cwd=here
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert ("has no 'Net'" if options else "--trust-config") in done.stderr
    assert not (here / RAN).exists()


OWN = """
import torch
from codauc import Callback
class Net(torch.nn.Module):
    def __init__(self, **arguments):
        super().__init__()
        self.head = torch.nn.Linear(4, 1)
    def forward(self, x):
        return self.head(x).squeeze(1)
class Seen(Callback):
    def on_end(self, summary):
        open("seen.txt", "w").write(summary["model"]["name"])
"""


def test_a_network_of_ones_own_is_found_by_workers_and_later(table, codauc, tmp_path, monkeypatch):
    (tmp_path / "own_network.py").write_text(OWN)
    shadow(tmp_path)
    name, out = "own_network:Net", tmp_path / "r"
    words = ("--model", name, "--callback", "own_network:Seen", "--workers", "2", "--out", out)
    command = [sys.executable, "-m", "codauc", "train", table, *QUICK[:4], "--steps", "4", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "seen.txt").read_text() == name
    assert not (tmp_path / RAN).exists()
    monkeypatch.chdir(tmp_path)
    code, output, error = codauc("evaluate", out, table, "--json", "--trust-config")
    assert code == 0, error
    assert 0 <= json.loads(output)["auc"] <= 1


def test_what_was_typed_is_used_without_trusting_the_file(run, table, codauc, here):
    (here / "typed_network.py").write_text(OWN)
    theirs = with_model(run, here / "theirs", "side:Net", {})
    words = ("--config", theirs / "config.toml", "--out", "out", "--steps", "2", "--json")
    code, output, error = codauc("train", *words, "--model", "typed_network:Net")
    assert code == 0, error
    assert json.loads(output)["model"]["name"] == "typed_network:Net"
    assert not (here / RAN).exists()
    code, _, error = codauc("evaluate", "out", table, "--model", "other:Net")
    assert code == 2
    assert "was trained with typed_network:Net" in error
    code, output, error = codauc("evaluate", "out", table, "--json", "--model", "typed_network:Net")
    assert code == 0, error
    assert 0 <= json.loads(output)["auc"] <= 1


# Text for the terminal

EVIL = "\x1b]0;owned\x07\x1b[2J\u202eevil\r\x9b1m\x7fname"
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def test_no_command_prints_control_characters_of_files(run, table, codauc, here):
    theirs = here / f"run{EVIL}"
    shutil.copytree(run, theirs)
    summary = json.loads((theirs / "summary.json").read_text())
    summary |= {"notes": [EVIL + "\nTest AUC 1.0000"], "run": str(theirs), "data": EVIL}
    summary["model"]["name"] = EVIL + "\nnext"
    summary["recipe"] = EVIL
    (theirs / "summary.json").write_text(json.dumps(summary))
    settings = RunSettings.from_toml((theirs / "config.toml").read_text())
    evil = here / "evil.toml"
    evil.write_text(settings.with_changes("model", name=EVIL + ":N").to_toml())
    odd = here / f"table{EVIL}.csv"
    odd.write_text(f"age,{EVIL.replace(chr(13), '')},fraud\n1,2,yes\n3,4,no\n")
    both = here / "plain"
    shutil.copytree(theirs, both)
    texts = []
    for words in (
        ("compare", theirs, both),
        ("compare", theirs, "--json"),
        ("compare", theirs, here / f"none{EVIL}"),
        ("report", theirs),
        ("train", "--resume", "--out", theirs),
        ("train", "--resume", "--out", theirs, "--json"),
        ("train", "--config", evil, "--out", "out"),
        ("train", "--config", evil, "--trust-config", "--out", "out"),
        ("train", odd, "--target", EVIL),
        ("train", odd, "--target", "fraud", "--positive", EVIL),
        ("evaluate", theirs, odd),
        ("train", table, f"--{EVIL}"),
        ("train", table, "--model", EVIL),
    ):
        code, output, error = codauc(*words)
        assert output or error
        if "--json" in words:
            assert code == 0
            json.loads(output)
        texts.append(output + error)
    for text in texts:
        assert not RAW.search(text), text
    assert not re.search(r"^(Test AUC 1.0000|next)", "\n".join(texts), re.M)
    assert r"\x1b]0;owned\x07" in texts[0]


# What is no file, or no whole one

READERS = {  # of each file, the commands that read it
    "config.toml": ("evaluate", "report", "train"),
    "summary.json": ("report", "train"),
    "metrics.jsonl": ("report",),
    "faults.jsonl": ("report", "train"),
    "test_scores.npz": ("report",),
    "profile.json": ("report",),
    "model.safetensors": ("evaluate",),
}
CASES = [(name, command) for name, some in READERS.items() for command in some]


def in_the_place_of(path, kind):
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
@pytest.mark.parametrize(("name", "command"), CASES)
def test_what_is_no_file_is_named_and_not_waited_for(name, command, kind, run, table, codauc, here):
    theirs = here / "theirs"
    shutil.copytree(run, theirs)
    if command == "train" and name != "summary.json":
        (theirs / "summary.json").unlink()
    in_the_place_of(theirs / name, kind)
    words = {
        "evaluate": ("evaluate", theirs, table),
        "report": ("report", theirs),
        "train": ("train", "--resume", "--out", theirs, "--steps", "84"),
    }[command]
    code, output, error = codauc(*words)
    assert code == 2, (output, error)
    assert name in error
    words = {"pipe": "a named pipe", "device": "a device|is a link", "directory": "directory"}
    assert re.search(words[kind], error)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", ["d.csv", "d.csv.gz", "d.parquet", "d.arrow", "d.npy", "d.npz"])
def test_data_that_are_no_file_are_named_and_not_waited_for(name, kind, codauc, here):
    in_the_place_of(here / name, kind)
    code, _, error = codauc("train", name, "--target", "y", "--out", "out")
    assert code == 2
    assert f"{name} is {'a named pipe' if kind == 'pipe' else 'a device'}" in error


@pytest.mark.timeout(30)
def test_an_image_that_is_a_pipe_is_not_waited_for(here):
    os.mkfifo(here / "a.png")
    with pytest.raises(ValueError, match=r"a\.png is a named pipe"):
        ImageFiles([here / "a.png"], 8).gather(torch.tensor([0]))


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="there is no /dev/fd here")
def test_settings_may_come_from_the_shell(run, codauc, here):
    settings = (run / "config.toml").read_text()
    reading, writing = os.pipe()
    os.write(writing, settings.encode())
    os.close(writing)
    words = ("--config", f"/dev/fd/{reading}", "--steps", "2", "--quiet", "--out", "out")
    code, _, error = codauc("train", *words)
    os.close(reading)
    assert code == 0, error


WRONG = {  # of each field, values of another kind; None for a field that is missing
    "run": (None, 3, []),
    "notes": (None, "x", {}),
    "workers": (None, 3),
    "finished": ("x", {"a": 1}),
    "test_auc": (None, "x", []),
    "seconds": (None, "x", True),
    "pos_ratio": (None, []),
    "auc_low": (None, {}),
}


@pytest.mark.parametrize("field", WRONG)
def test_a_summary_that_lacks_something_is_one_sentence(field, run, codauc, here):
    theirs = here / "theirs"
    shutil.copytree(run, theirs)
    usual = json.loads((theirs / "summary.json").read_text())
    for value in WRONG[field]:
        summary = {name: part for name, part in usual.items() if name != field}
        summary |= {} if value is None else {field: value}
        (theirs / "summary.json").write_text(json.dumps(summary))
        code, output, error = codauc("train", "--resume", "--out", theirs)
        assert code == 2, (output, error)
        assert f"summary.json has {'no ' if value is None else ''}{field}" in error
        assert error.count("\n") == 1
        for command in ("report", "compare"):  # which show what there is
            assert codauc(command, theirs)[0] == 0


def test_what_else_a_summary_may_hold_is_one_sentence(run, codauc, here):
    theirs = here / "theirs"
    shutil.copytree(run, theirs)
    usual = json.loads((theirs / "summary.json").read_text())
    (theirs / "summary.json").write_text(json.dumps(usual | {"auc_low": None}))
    code, _, error = codauc("train", "--resume", "--out", theirs)
    assert code == 2
    assert "summary.json has no auc_low, but others of test_auc" in error
    (theirs / "summary.json").write_text(json.dumps(usual | {"stopped": True, "run": str(theirs)}))
    (theirs / "profile.json").write_text('{"rows": 3}')
    assert codauc("train", "--resume", "--out", theirs)[0] == 0
    code, _, error = codauc("train", "--resume", "--out", theirs, "--profile")
    assert code == 2
    assert "profile.json cannot be read" in error


@pytest.mark.parametrize("name", [".lock", "faults.jsonl", "metrics.jsonl", "model.safetensors"])
def test_a_file_of_a_run_that_is_a_link_loses_nothing(run, codauc, here, name):
    theirs = here / "theirs"
    shutil.copytree(run, theirs)
    (theirs / "summary.json").unlink()
    (here / "mine.txt").write_text("precious")
    (theirs / name).unlink(missing_ok=True)
    (theirs / name).symlink_to(here / "mine.txt")
    code, _, error = codauc("train", "--resume", "--out", theirs)
    assert code == 2
    assert f"{name} is a link" in error
    assert (here / "mine.txt").read_text() == "precious"


def test_a_report_is_not_written_through_a_link(run, codauc, here):
    theirs = here / "theirs"
    shutil.copytree(run, theirs)
    (here / "mine.txt").write_text("precious")
    (theirs / "report.html").unlink()
    (theirs / "report.html").symlink_to(here / "mine.txt")
    code, _, error = codauc("report", theirs)
    assert code == 2
    assert "report.html is a link" in error
    assert (here / "mine.txt").read_text() == "precious"


def test_another_runs_checkpoints_are_not_reached_by_a_link(run, codauc, here):
    theirs = here / "theirs"
    shutil.copytree(run, theirs)
    (theirs / "summary.json").unlink()
    (here / "mine").mkdir()
    name = "000000001-0-of-1-00000000.safetensors"
    (here / "mine" / name).write_text("precious")
    (theirs / "checkpoints").symlink_to(here / "mine")
    code, _, error = codauc("train", "--resume", "--out", theirs)
    assert code == 2
    assert "checkpoints is a link" in error
    assert (here / "mine" / name).read_text() == "precious"


@pytest.mark.timeout(30)
def test_a_lock_that_is_a_pipe_is_not_waited_for(run, codauc, here):
    theirs = here / "theirs"
    shutil.copytree(run, theirs)
    (theirs / "summary.json").unlink()
    os.mkfifo(theirs / ".lock")
    code, _, error = codauc("train", "--resume", "--out", theirs)
    assert code == 2
    assert ".lock is no file" in error


def test_a_report_shows_no_characters_that_turn_or_hide_text(run, codauc, here):
    theirs = here / "theirs"
    shutil.copytree(run, theirs)
    summary = json.loads((theirs / "summary.json").read_text())
    (theirs / "summary.json").write_text(json.dumps(summary | {"notes": [EVIL], "data": EVIL}))
    assert codauc("report", theirs)[0] == 0
    text = (theirs / "report.html").read_text()
    assert "evil" in text
    assert not RAW.search(text)


def test_settings_nested_without_end_are_one_sentence(run, codauc, here):
    theirs = here / "theirs"
    shutil.copytree(run, theirs)
    (theirs / "summary.json").write_text("[" * 200_000)
    code, _, error = codauc("report", theirs)
    assert code == 2
    assert "summary.json cannot be read" in error
    (here / "deep.toml").write_text("a = " + "[" * 200_000)
    code, _, error = codauc("train", "--config", "deep.toml")
    assert code == 2
    assert "deep.toml is not TOML" in error


def damaged(data):
    """Ways to damage a compressed file."""
    return {
        "its codes": data[:12] + b"\xff" * 4 + data[16:],
        "its middle": data[: len(data) // 2] + b"\xff" * 50 + data[len(data) // 2 + 50 :],
        "its end": data[: len(data) // 2],
        "all but its header": data[:8],
        "its checksum": data[:-8] + b"\0" * 8,
        "what follows it": data + b"more",
    }


@pytest.mark.parametrize("way", damaged(b""))
def test_a_damaged_gzip_file_is_one_sentence(way, table, codauc, here):
    data = damaged(gzip.compress(table.read_bytes()))[way]
    (here / "d.csv.gz").write_bytes(data)
    code, _, error = codauc("train", "d.csv.gz", *QUICK, "--quiet", "--out", "out")
    assert code == 2, error
    assert "d.csv.gz cannot be read as CSV" in error
    assert error.count("\n") == 1


# Networks of any size

HUGE = {
    "layers": ("mlp", {"inputs": 5, "widths": [1] * 100_000}, "widths has 100000 values"),
    "convolutions": ("convnet", {"widths": [1] * 1001}, "widths has 1001 values"),
    "patches": ("patchnet", {"widths": [1] * 1001}, "widths has 1001 values"),
    "columns": ("tabular", {"numbers": 1, "categories": [2] * 100_000}, "categories has 100000"),
    "weights": ("mlp", {"inputs": 10**6, "widths": [10**6]}, "weights: expected at most"),
    "a width": ("tabular", {"numbers": 5, "widths": [10**9]}, "weights: expected at most"),
    "an embedding": ("tabular", {"numbers": 5, "categories": [10**9]}, "weights: expected"),
    "pieces": ("tabular", {"numbers": 5, "pieces": 10**9}, "weights: expected at most"),
    "a patch": ("patchnet", {"patch": 10**6}, "weights: expected at most"),
    "outputs": ("resnet18", {"outputs": 10**12}, "outputs=1000000000000"),
    "channels": ("resnet50", {"in_channels": 10**12}, "in_channels=1000000000000"),
    "digits": ("mlp", {"inputs": 10**4000}, "expected"),
    "a negative": ("mlp", {"inputs": 5, "widths": [-1]}, "width=-1"),
    "lists": ("mlp", {"inputs": 5, "widths": [[[3]]]}, "width=[[3]]"),
    "a bool": ("mlp", {"inputs": True}, "inputs=True"),
    "no number": ("tabular", {"numbers": 5, "dropout": float("nan")}, "dropout=nan"),
    "text": ("mlp", {"inputs": 5, "widths": "a" * 10**6}, "widths='aaa"),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", HUGE)
def test_a_network_of_any_size_is_refused_in_one_sentence(name, run, table, codauc, here):
    model, arguments, message = HUGE[name]
    theirs = with_model(run, here / "theirs", model, arguments)
    code, _, error = codauc("train", "--config", theirs / "config.toml", "--quiet", "--out", "out")
    assert code == 2
    assert message in error
    assert error.count("\n") == 1
    assert len(error) < 1000
    about = {"model": {"name": model, "arguments": arguments}, "encoder": None}
    tensors = {"head.weight": torch.zeros(1, 1)}
    about[SUM] = checksum(json.dumps(about), tensors)  # as its maker would do
    save_file(tensors, theirs / "model.safetensors", {"codauc": json.dumps(about)})
    code, _, error = codauc("evaluate", theirs, table)
    assert code == 2
    assert "describes a network that cannot be built" in error
    assert message in error
    assert len(error) < 1000


def test_baselines_are_not_written_through_links(table, codauc, here):
    (here / "mine.txt").write_text("mine")
    (here / "other").mkdir()
    for name, target in (("comparison.html", "mine.txt"), ("coda", "other")):
        out = here / f"out-{name}"
        out.mkdir()
        (out / name).symlink_to(here / target)
        code, _, error = codauc("baselines", table, *QUICK, "--overwrite", "--out", out)
        assert (code, "is a link" in error) == (2, True), error
    assert (here / "mine.txt").read_text() == "mine"
    assert not list((here / "other").iterdir())


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_written_does_not_take_the_place_of_a_pipe_or_device(
    kind, run, table, codauc, here
):
    commands = {
        "r.html": ("report", run, "--out"),
        "c.html": ("compare", run, run, "--out"),
        "p.csv": ("predict", run, table, "--overwrite", "--out"),
        "m.onnx": ("export", run, "--overwrite", "--onnx"),
    }
    if kind == "device":
        del commands["m.onnx"]  # which takes seconds to make, and is written as the others are
    for name, words in commands.items():
        in_the_place_of(here / name, kind)
        code, _, error = codauc(*words, here / name)
        assert (code, "expected a file" in error) == (2, True), (name, error)
        assert not (here / name).is_file()


@pytest.mark.parametrize("shape", [5, 1e308, "x", [None], {"a": 1}, [0]])
def test_a_changed_shape_is_one_sentence(shape, run, codauc, here):
    shutil.copytree(run, here / "theirs")
    summary = json.loads((here / "theirs" / "summary.json").read_text())
    (here / "theirs" / "summary.json").write_text(json.dumps({**summary, "shape": shape}))
    code, _, error = codauc("export", here / "theirs", "--onnx", "m.onnx")
    assert (code, error.count("\n")) == (2, 1), error
    assert "it was changed" in error


def test_a_run_that_was_moved_is_reported_where_it_is(run, codauc, here):
    shutil.copytree(run, here / "moved")
    path = here / "moved" / "summary.json"
    forged = {**json.loads(path.read_text()), "run": "x\nTest AUC 1.0000\nReport: y"}
    path.write_text(json.dumps(forged))
    code, output, _ = codauc("train", "--resume", "--out", here / "moved")
    assert code == 0
    assert f"Report: {here / 'moved' / 'report.html'}" in output
    assert "Test AUC 1.0000\n" not in output
