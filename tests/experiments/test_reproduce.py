"""Claims about `codauc reproduce`: real runs in real processes, interrupted and resumed."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from codauc.cli.main import main
from codauc.reproduce.jobs import MADE_BY, RunJob, run_side_by_side
from codauc.reproduce.measured_constants import measure_once, read_constants
from codauc.reproduce.reproduction import Reproduction
from codauc.reproduce.study import Study, StudyPoint, Tuned
from codauc.runs.directory import METRICS, SUMMARY, Record, RunFolder

CIFAR = object()  # stands for the directory
COMMAND = [sys.executable, "-m", "codauc", "reproduce"]


def short(cifar10, tmp_path, name, **recipe):
    settings = Study("cifar10", 71, "tiny", source=str(cifar10)).settings(
        StudyPoint(2, 8), Tuned(32, 0.1), seed=0
    )
    settings = settings.with_changes("recipe", **{"stages": 1, "evaluations": 2, **recipe})
    return RunJob(name, settings, tmp_path / name)


def test_what_is_finished_is_not_run_again_and_what_fails_is_named(cifar10, tmp_path):
    good, bad = short(cifar10, tmp_path, "good"), short(cifar10, tmp_path, "bad", lr=50.0)
    good.out.mkdir()
    (good.out / MADE_BY).write_text('{"cpu_seconds": 1000.0}')  # of a part before an interruption
    failed = run_side_by_side([bad, good], at_once=2)
    assert 1000 < good.facts["cpu_seconds"] < 2000
    assert list(failed) == ["bad"]
    assert "lr=50" in failed["bad"]
    made = (good.out / METRICS).stat().st_mtime_ns
    assert run_side_by_side([good], at_once=1) == {}
    assert (good.out / METRICS).stat().st_mtime_ns == made
    for changed, name in (
        (replace(good.settings, seed=1), "seed 0, not 1"),
        (good.settings.with_changes("recipe", lr=0.2), r"recipe\.lr 0\.1, not 0\.2"),
    ):
        with pytest.raises(ValueError, match=name):
            run_side_by_side([good._replace(settings=changed)], at_once=1)


def test_a_step_size_with_which_a_run_diverges_is_not_chosen(cifar10, tmp_path):
    study = Study("cifar10", 71, "tiny", source=str(cifar10))
    made = Reproduction(study, ("tuning",), tmp_path, seeds=1)
    for lr, auc in ((0.1, 0.7), (0.3, 0.8)):
        folder = RunFolder(made.job(StudyPoint(1), Tuned(64, lr), 0, tuning=True).out)
        folder.path.mkdir(parents=True)
        folder.write_json(SUMMARY, {"finished": True, "validation_auc": auc})
    bad = made.job(StudyPoint(1), Tuned(64, 0.9), 0, tuning=True)
    bad = bad._replace(settings=bad.settings.with_changes("safety", not_finite="stop"))
    bad = bad._replace(settings=bad.settings.with_changes("recipe", lr=0.9, name="bce", mix=0.0))
    bad = bad._replace(settings=bad.settings.with_changes("recipe", warm_start=1.0))
    failed = run_side_by_side([bad], at_once=1)  # cross-entropy does diverge with it here
    assert list(failed) == [bad.name]
    assert "not finite" in failed[bad.name]
    assert run_side_by_side([bad], at_once=1) == failed  # at once
    assert made.tuned("auc") == {Tuned(64, 0.1): 0.7, Tuned(64, 0.3): 0.8, Tuned(64, 0.9): 0.0}
    assert made.chosen()["auc"] == Tuned(64, 0.3)


def test_a_step_size_that_fails_with_one_seed_is_not_chosen(tmp_path):
    study = Study("cifar10", 71, "tiny", source="somewhere")
    made = Reproduction(study, ("tuning",), tmp_path, seeds=2)

    def finish(lr, seed, auc):
        folder = RunFolder(made.tuning_job("auc", Tuned(64, lr), seed).out)
        folder.path.mkdir(parents=True)
        folder.write_json(SUMMARY, {"finished": True, "validation_auc": auc})

    for lr, aucs in ((0.1, (0.70, 0.72)), (0.3, (0.73, 0.73)), (0.9, (0.80, 0.47))):
        finish(lr, 0, aucs[0])
        assert made.tuned("auc")[Tuned(64, lr)] is None  # until both seeds are known
        finish(lr, 1, aucs[1])
    assert made.chosen()["auc"] == Tuned(64, 0.3)
    assert made.tried("auc")[Tuned(64, 0.9)] == pytest.approx(0.635)
    assert len(made.tuning_jobs()) == 6


def test_a_copy_of_the_tables_is_gone_on_with(cifar10, tmp_path, monkeypatch, capsys):
    """Elsewhere, without the runs' directories: what is finished is not run again."""
    begun, numbers = [], dict.fromkeys((field.name for field in fields(Record)), 0)
    ended = Record(**numbers | {"stage_end": True})

    def finish(jobs, *_):
        for job in (job for job in jobs if not job.done and not job.diverged):
            begun.append(job.name)
            job.out.mkdir(parents=True)
            if "eta0.9" in job.name:
                (job.out / "diverged.txt").write_text("not finite")
                continue
            auc = 0.7 + job.settings.recipe.lr / 100
            seconds = 0.00123456789 * job.steps
            ends = {"finished": True, "validation_auc": auc, "steps": job.steps, "seconds": seconds}
            RunFolder(job.out).write_json(SUMMARY, ends)
            record = asdict(ended) | {"step": job.steps, "auc": auc}
            (job.out / METRICS).write_text(json.dumps(record) + "\n")
        return {job.name: job.diverged for job in jobs if job.diverged}

    monkeypatch.setattr("codauc.reproduce.reproduction.run_side_by_side", finish)
    measured = []
    monkeypatch.setattr(
        "codauc.reproduce.reproduction.measure_once", lambda *at: measured.append(at[2])
    )
    arguments = ["cifar10-71-period-k4", "--data", cifar10, "--scale", "tiny", "--out"]
    assert reproduce(capsys, *arguments, tmp_path / "here")[0] == 0
    assert (
        len(begun) == len(set(begun)) == 3 * 3 + 2 + 3 * 4
    )  # tuning, timing, K=1 and three of K=4
    tables = {p.name: p for p in (tmp_path / "here" / "cifar10-71-tiny").iterdir() if p.is_file()}
    copy = tmp_path / "there" / "cifar10-71-tiny"
    copy.mkdir(parents=True)
    for name, path in tables.items():
        if name != "study.json":  # which names the place of the data
            (copy / name).write_bytes(path.read_bytes())
    begun.clear()
    assert reproduce(capsys, *arguments, tmp_path / "there")[0] == 0
    assert begun == []
    for name, path in tables.items():
        assert (copy / name).read_bytes() == path.read_bytes(), name
    more = ["cifar10-71-table1", *arguments[1:]]
    assert reproduce(capsys, *more, tmp_path / "there")[0] == 0
    assert len(begun) == 3 * 3  # K=16
    assert len(measured) == 2
    whole = (copy / "curves.csv").read_text()
    assert reproduce(capsys, *more, tmp_path / "there", "--seeds", 1)[0] == 0
    assert (copy / "curves.csv").read_text() == whole  # other seeds are not lost
    (copy / "curves.csv").write_text(tables["curves.csv"].read_text().splitlines()[0])
    code, _, told = reproduce(capsys, *arguments, tmp_path / "there")
    assert code == 2
    assert "curves.csv lacks K=1 (PPD-SG), seed 0" in told
    (copy / "curves.csv").unlink()
    code, _, told = reproduce(capsys, *arguments, tmp_path / "there")
    assert code == 2
    assert "curves.csv cannot be read (FileNotFoundError" in told
    (copy / "runs.csv").write_text("run\nk1\n")
    code, _, told = reproduce(capsys, *arguments, tmp_path / "there")
    assert code == 2
    assert "runs.csv cannot be read" in told


def alive(out):
    """The processes that work in a directory."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        found += [int(pid)] * any(str(out) in file for file in files)
    return found


def listen():
    """Let a child hear SIGINT even where the parent ignores it, as background jobs do."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def begun(out, process, seconds=300):
    """Wait until a run with several workers has evaluated its model."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if any(path.stat().st_size for path in out.glob("*/runs/k4*/metrics.jsonl")):
            return
        time.sleep(0.2)
    process.kill()
    raise AssertionError(f"no run has begun: {process.communicate()}")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_study_cut_down_shows_the_papers_directions(noisy, tmp_path):
    """Table 1 at the tiny scale, interrupted by Ctrl-C and by a kill, then finished."""
    out = tmp_path / "out"
    command = [*COMMAND, "cifar10-71-table1", "--data", noisy, "--scale", "tiny", "--seeds", "1"]
    command = [str(part) for part in (*command, "--start", "estimate", "--out", out, "--json")]
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=listen
        )
        begun(out, process)
        process.send_signal(number)
        _, said = process.communicate(timeout=90)
        assert process.returncode == code
        assert number != signal.SIGINT or b"Resume with the same command" in said
        deadline = time.monotonic() + 30
        while alive(out) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert alive(out) == []
    ended = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert ended.returncode == 0, ended.stderr
    found = {f["claim"].split(": ", 1)[-1]: f for f in json.loads(ended.stdout)}
    for claim in ("K=4, I=1 against K=1", "K=16, I=1 against K=1"):
        assert found[claim]["holds"], found[claim]
    (folder,) = out.iterdir()
    for name in ("figure", "workers", "period", "period-k4", "headline"):
        assert (folder / f"{name}.svg").exists()
    with (folder / "ends.csv").open() as file:
        ends = {row["point"]: row for row in csv.DictReader(file)}
    naive, coda, rare = (ends[f"k16-i{every}"] for every in (1, 8, 32))
    assert int(naive["rounds"]) == 8 * int(coda["rounds"]) == 32 * int(rare["rounds"])
    assert 2 * int(coda["rounds_to_target"]) < int(naive["rounds_to_target"])
    assert float(rare["final_auc"]) < float(coda["final_auc"])  # too large an I costs AUC


def reproduce(capsys, *arguments):
    code = main(["reproduce", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("name", "scale", "count"),
    [
        ("cifar100-71", "small", 15),
        pytest.param("cifar100-71-workers", "paper", 3, marks=pytest.mark.long),  # as the last
        ("imagenet-71", "small", 15),
        ("imagenet-71-tuning", "paper", 1),
    ],
)
def test_other_data_sets_build_load_and_train(name, scale, count, request, capsys):
    data = request.getfixturevalue(name.split("-")[0])
    code, said, told = reproduce(capsys, name, "--data", data, "--scale", scale, "--dry-run")
    assert code == 0
    model = {
        ("cifar100", "small"): "patchnet of 43,233",
        ("imagenet", "small"): "patchnet of 47,841",  # at 64 pixels
    }.get((name.split("-")[0], scale), "resnet50 of 23,510,081")
    assert told.count(model) == int(said.split()[0]) == count


def test_weights_are_pretrained_once_on_other_images_and_those_decoded_once(
    cifar10, imagenet, tmp_path, monkeypatch, capsys
):
    begun = []
    monkeypatch.setattr(Reproduction, "run", lambda self, *_: begun.append(self) or {})
    arguments = ["cifar10-71-workers", "--data", cifar10, "--scale", "tiny", "--model", "resnet8"]
    arguments += ["--pretrain", imagenet, "--out", tmp_path, "--lr", "0.1", "--seeds", "1"]
    code, _, told = reproduce(capsys, *arguments)
    assert code == 0
    assert "are decoded once, at 32 pixels" in told
    assert "A run with K=16, 256 steps of each worker, simulated in one process, one after" in told
    assert "All that is left: about" in told
    study = begun[0].study
    assert study.folder == "cifar10-71-tiny-resnet8-finetuned-eta0.1"
    weights = Path(study.pretrained)
    facts = json.loads(weights.with_suffix(".json").read_text())
    assert facts["classes"] == 4
    assert facts["images"] == round(0.9 * 208)
    made = weights.stat().st_mtime_ns
    code, _, told = reproduce(capsys, *arguments)  # what is there is not made again
    assert weights.stat().st_mtime_ns == made
    assert "decoded once" not in told
    short = begun[1].job(StudyPoint(2, 8), Tuned(16, 0.1), 0)
    changed = short.settings.with_changes("recipe", stages=1, evaluations=1)
    assert run_side_by_side([short._replace(settings=changed)], at_once=1) == {}
    (kept,) = RunFolder(short.out).summary()["notes"] or ("",)
    assert "fc.weight" not in kept  # the head of other classes is left out in silence


def test_the_constants_of_table_1_are_measured_once(cifar10, tmp_path):
    study = Study("cifar10", 71, "tiny", source=str(cifar10), start="estimate")
    path = tmp_path / "constants.json"
    for _ in range(2):
        measure_once(study, Tuned(64, 0.1), StudyPoint(4, 8), path)
        made = path.stat().st_mtime_ns
    assert path.stat().st_mtime_ns == made
    first, second = read_constants(path)
    assert (first.stage, second.stage, second.lr) == (1, 2, pytest.approx(0.1 / 3))
    for each in (first, second):
        assert 0 < each.drift <= each.bound <= each.printed_bound
        assert 0 < each.variance < each.gradient**2
        assert each.dual_variance > 0
        assert each.pos_ratio == pytest.approx(5 / 7, abs=0.01)
    assert first.drift > second.drift  # a smaller step size


def test_the_list_names_everything_without_data(capsys):
    code, said, _ = reproduce(capsys, "--list")
    assert code == 0
    assert "imagenet-71-growing" in said


def test_a_plan_says_how_to_run_everything_elsewhere(cifar10, tmp_path, capsys):
    code, said, told = reproduce(
        capsys, "cifar10-71-workers", "--data", cifar10, "--out", tmp_path, "--seeds", 1, "--plan"
    )
    assert code == 0
    commands = said.splitlines()
    assert len(commands) == 3 + 3  # the grid, and K in {1, 4, 16}
    assert (
        sum(line.startswith("torchrun --nproc-per-node 16 -m codauc train") for line in commands)
        == 1
    )
    for line in commands:
        path = line.split("--config ")[1].split()[0]
        assert "nproc" not in line or "simulate = false" in Path(path).read_text()
    assert "6 configurations" in told
    assert len({line.split("--config ")[1].split()[0] for line in commands}) == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "NAME is missing"),
        (["cifar10-72"], "did you mean 'cifar10-71'"),
        (["cifar10-71"], "cifar-10-binary.tar.gz"),
        (["cifar10-71", "--data", "nowhere"], "nowhere does not exist"),
        (["cifar10-71", "--data", "."], ". holds no CIFAR-10"),
        (["cifar10-71", "--data", CIFAR, "--jobs", "0"], "--jobs=0"),
        (["cifar10-71", "--data", CIFAR, "--seeds", "0"], "--seeds=0"),
        (["cifar10-71", "--data", CIFAR, "--scale", "paper"], "--pretrained"),
        (["cifar10-71", "--data", CIFAR, "--latency", "-1"], "--latency=-1"),
        (["cifar100-71", "--data", CIFAR], "holds no CIFAR-100"),
        (["imagenet-71", "--data", CIFAR], "holds no ImageNet"),
        (["cifar10-71", "--data", CIFAR, "--pretrain", CIFAR], "the study's own data"),
        (["cifar10-71", "--data", CIFAR, "--pretrain", "."], "expected images of one of CIFAR-10"),
        (["cifar10-71", "--data", CIFAR, "--model", "resnet9"], "did you mean 'resnet8'"),
        (["overview"], "holds no study"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_run(
    arguments, message, cifar10, capsys, tmp_path
):
    arguments = [str(cifar10) if part is CIFAR else part for part in arguments]
    code = main(["reproduce", *arguments, "--out", str(tmp_path / "out")])
    assert code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_directory_holds_runs_on_one_data_set(cifar10, cifar100, tmp_path, capsys):
    study = tmp_path / "cifar10-71-tiny"
    study.mkdir()
    (study / "study.json").write_text(json.dumps({"data": str(cifar100), "pretrained": ""}))
    code = main(
        [
            "reproduce",
            "cifar10-71",
            "--data",
            str(cifar10),
            "--scale",
            "tiny",
            "--out",
            str(tmp_path),
        ]
    )
    assert code == 2
    assert "choose another directory" in capsys.readouterr().err
