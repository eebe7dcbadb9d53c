"""Claims about `codauc plan`: what it says before a run is what the run's ledger counts."""

import json

import pytest
import torch
from torch import nn

import codauc
from codauc.cli.main import main
from codauc.models import PatchNet
from codauc.runs.settings import Recipe
from codauc.training.recipe import factor_of

LINK = ("--bandwidth", "100mbit", "--latency", "1ms")


def planned(capsys, *options):
    assert main(["plan", *options, *LINK, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


PLANNED = [(1, None), (8, "int8"), (8, "int2"), ("qsr:32", None), ("qsr:32", "int2")]


@pytest.mark.parametrize(("period", "compress"), PLANNED)
def test_rounds_and_bytes_equal_the_ledger_of_the_run_that_follows(capsys, period, compress):
    found = planned(
        capsys, "--workers", "3", "--model", "patchnet", "--steps", "150", "--step-time", "1ms"
    )
    factor = factor_of(Recipe(), 150)
    wanted = ("NP-PPD-SG" if period == 1 else "CoDA", period, compress)
    (run,) = [r for r in found["runs"] if (r["method"], r["period"], r["compress"]) == wanted]

    def work(group):
        torch.manual_seed(0)
        model, loss = PatchNet(), codauc.MinMaxAUCLoss(pos_ratio=0.5)
        opt = codauc.PPDAdam(model, loss)
        coda = codauc.CoDA(opt, group, compress=compress)
        data = [(torch.randn(4, 3, 32, 32), torch.tensor([1, 0, 0, 1]))]
        stage = codauc.Stage(lr=1e-3, steps=150, sync_every=period, dual_samples=4)
        for x, y in coda.stage(stage, data):
            opt.param_groups[0]["lr"] = 1e-3 * factor(opt.steps)
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
        kinds = group.ledger.tallies
        return group.ledger.rounds, sum(
            kinds[k].sent for k in ("round", "reply", "dual") if k in kinds
        )

    for rounds, sent in codauc.launch(work, workers=3, simulate=True):
        assert (run["rounds"], run["bytes_per_worker"]) == (rounds, sent)


def test_a_network_with_batchnorm_counts_its_statistics(capsys):
    found = planned(capsys, "--workers", "2", "--model", "resnet20", "--step-time", "100ms")
    model = codauc.models.ResNet20()
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert found["workload"]["parameters"] == sum(p.numel() for p in model.parameters())
    assert found["workload"]["statistics"] == sum(2 * m.num_features for m in norms)


def test_a_slow_link_is_given_fewer_rounds_and_a_fast_one_more(capsys):
    def command(rate, recipe="paper"):
        assert main(["plan", "--workers", "4", "--parameters", "25m", "--step-time", "100ms",
                     "--bandwidth", rate, "--recipe", recipe, "--json"]) == 0  # fmt: skip
        return json.loads(capsys.readouterr().out)["command"]

    assert "--recipe paper --workers 4 --sync-every 64 --compress int2" in command("10mbit")
    assert command("1gbit").endswith("--sync-every 64 --compress int8")
    assert command("10gbit").endswith("--sync-every 64")
    assert command("100gbit").endswith("--sync-every 8")
    assert command("10gbit", "default").startswith("codauc train DATA --workers 4")


def test_the_table_names_the_suggestion_and_what_workers_are_worth(capsys):
    options = ("--workers", "4", "--parameters", "1.1m", "--step-time", "20ms")
    assert main(["plan", *options, *LINK]) == 0
    said = capsys.readouterr().out
    assert "4 workers, 1,100,000 parameters, 4,000 steps of 20 ms each." in said
    assert sum(line.startswith("> ") for line in said.splitlines()) == 1
    assert "times the samples of one per second" in said
    assert "Use: codauc train DATA --workers 4 --sync-every" in said


def test_a_step_is_measured_on_this_machine(capsys):
    found = planned(
        capsys, "--workers", "2", "--model", "patchnet", "--measure", "--batch-size", "4"
    )
    assert 0 < found["workload"]["step_seconds"] < 60


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--workers", "1", "--parameters", "1m", "--step-time", "1s"), "--workers 1: expected at"),
        (("--workers", "2", "--step-time", "1s"), "--model and --parameters: expected one of them"),
        (("--workers", "2", "--parameters", "1m"), "--step-time and --measure: expected one"),
        (("--workers", "2", "--parameters", "many", "--step-time", "1s"), "--parameters many"),
        (("--workers", "2", "--parameters", "1m", "--step-time", "0s"), "--step-time 0s"),
        (("--workers", "2", "--parameters", "1m", "--measure"), "--measure without --model"),
        (("--workers", "2", "--model", "resnet", "--step-time", "1s"), "did you mean 'resnet"),
        (("--workers", "2", "--model", "tabular", "--step-time", "1s"), "follows from the table"),
        (
            ("--workers", "2", "--parameters", "1m", "--step-time", "1s", "--steps", "0"),
            "--steps 0",
        ),
    ],
)
def test_bad_input_is_one_clear_line(capsys, options, words):
    assert main(["plan", *options]) == 2
    assert words in capsys.readouterr().err
