"""Claims about `codauc plan`: what it says before a run is what the run's ledger counts."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import codauc
from codauc.cli.main import main
from codauc.models import PatchNet
from codauc.runs.settings import CommunicationSettings, Recipe
from codauc.training.recipe import PAPER, factor_of, plan

LINK = ("--bandwidth", "100mbit", "--latency", "1ms")


def planned(capsys, *options):
    assert main(["plan", *options, *LINK, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def ledger_of_a_run(make, steps, period, options, *, optimizer=codauc.PPDAdam, factor=None):
    """Rounds and all bytes of each of three workers in one stage of their own loop."""

    def work(group):
        torch.manual_seed(0)
        model, loss = make(), codauc.MinMaxAUCLoss(pos_ratio=0.5)
        opt = optimizer(model, loss, lr=1e-3)
        coda = codauc.CoDA(opt, group, **options)
        data = [(torch.randn(4, 3, 32, 32), torch.tensor([1, 0, 0, 1]))]
        stage = codauc.Stage(lr=1e-3, steps=steps, sync_every=period, dual_samples=4)
        for x, y in coda.stage(stage, data):
            if factor is not None:
                opt.param_groups[0]["lr"] = 1e-3 * factor(opt.steps)
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
        return group.ledger.rounds, group.ledger.bytes_sent

    return codauc.launch(work, workers=3, simulate=True)


def run_of(found, period, compress):
    wanted = ("NP-PPD-SG" if period == 1 else "CoDA", period, compress)
    (run,) = [r for r in found["runs"] if (r["method"], r["period"], r["compress"]) == wanted]
    return run["rounds"], run["bytes_per_worker"]


PATCHNET = ("--workers", "3", "--model", "patchnet", "--steps", "150", "--step-time", "1ms")
PLANNED = [(1, None), (8, "int8"), (8, "int2"), ("qsr:32", None), ("qsr:32", "int2")]


@pytest.mark.parametrize(("period", "compress"), PLANNED)
def test_rounds_and_bytes_equal_the_ledger_of_the_run_that_follows(capsys, period, compress):
    found, factor = planned(capsys, *PATCHNET), factor_of(Recipe(), 150)
    counted = ledger_of_a_run(PatchNet, 150, period, {"compress": compress}, factor=factor)
    assert {run_of(found, period, compress)} == set(counted)


@pytest.mark.parametrize("compress", [None, "int8", "int2"])
@pytest.mark.parametrize("optimizer", [codauc.PPDSG, codauc.PPDAdam])
@pytest.mark.parametrize("way", ["outer", "correct", "delay"])
def test_outer_steps_and_delays_send_nothing_and_control_variates_are_planned(
    capsys, way, optimizer, compress
):
    value = {"outer": codauc.Nesterov(), "correct": "scaffold", "delay": 3}[way]
    options = ["--correct", value] if way == "correct" else []
    options += ["--recipe", "paper"] if optimizer is codauc.PPDSG else []
    found = planned(capsys, *PATCHNET[:-3], "20", *PATCHNET[-2:], *options)
    ways = {"compress": compress, way: value}
    counted = ledger_of_a_run(PatchNet, 20, 8, ways, optimizer=optimizer)
    assert {run_of(found, 8, compress)} == set(counted)


@pytest.mark.parametrize("compress", [None, "int2"])
def test_the_counters_of_batchnorm_are_compared_at_the_start(capsys, compress):
    found = planned(capsys, "--workers", "3", "--model", "resnet8", "--steps", "9", "--step-time",
                    "1ms")  # fmt: skip
    counted = ledger_of_a_run(codauc.models.ResNet8, 9, 8, {"compress": compress})
    assert {run_of(found, 8, compress)} == set(counted)


def test_where_one_worker_is_faster_it_is_suggested(capsys):
    slow = ("--parameters", "25m", "--step-time", "0.5ms", "--recipe", "paper")
    assert planned(capsys, "--workers", "4", *slow)["command"] == "codauc train DATA --recipe paper"
    assert main(["plan", "--workers", "4", *slow, *LINK]) == 0
    said = capsys.readouterr().out
    assert "slower than one alone" in said
    assert said.endswith("Use: codauc train DATA --recipe paper\n")


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


def test_theorem_1_gives_the_harmless_period_and_rare_positives_are_counted(capsys):
    options = ("--workers", "16", "--parameters", "1m", "--step-time", "20ms")
    assert main(["plan", *options, "--lr", "0.001", "--pos-ratio", "0.01"]) == 0
    said = capsys.readouterr().out
    assert "Harmless by Theorem 1 with a step size of 0.001: I up to 7," in said
    assert "With 0.01 positives a batch of 32 has 0.32 samples of the rarer class" in said
    assert "at most 50.5" in said  # 1 / (2 p (1 - p))


def test_the_harmless_period_is_that_of_the_option_theorem(capsys):
    from codauc.training.communication_plan import harmless_period

    for lr, workers in ((0.1, 4), (0.0025, 4), (1e-4, 16), (3.0, 2)):
        every = CommunicationSettings(workers=workers, sync_every="theorem")
        recipe = replace(PAPER, lr=lr, steps=10, stages=1)
        assert plan(recipe, every).stages[0].sync_every == harmless_period(lr, workers)


def test_a_second_machine_is_judged_beside_all(capsys):
    options = ("--workers", "8", "--parameters", "25m", "--step-time", "5ms")
    assert main(["plan", *options, "--bandwidth", "10mbit"]) == 0
    said = capsys.readouterr().out
    assert "8 workers process" in said
    assert "A second machine alone: two process" in said
    both = planned(capsys, *options), planned(capsys, "--workers", "2", *options[2:])
    assert both[0]["speed_up_of_two"] == both[1]["speed_up"]


def test_a_thousand_workers_over_the_internet_need_a_tree_or_levels(capsys):
    options = ("--workers", "1000", "--parameters", "25m", "--step-time", "100ms", "--latency",
               "50ms", "--bandwidth", "20mbit", "--recipe", "paper")  # fmt: skip
    assert main(["plan", *options, "--json"]) == 0
    ways = {way["name"]: way for way in json.loads(capsys.readouterr().out)["averaging"]}
    ring, tree, levels = (ways[n] for n in ("ring", "tree", "two levels, groups of 32"))
    assert (ring["latencies"], tree["latencies"], levels["latencies"]) == (1998, 20, 124)
    assert levels["seconds"] < ring["seconds"] / 4  # 6 s of latency in place of 100
    assert 1.9 * ring["bytes_per_worker"] > levels["bytes_per_worker"] >= ring["bytes_per_worker"]
    message = 25e6 * 2 / 8 * (1 + 2 * 8 / 256)  # codes of two bits, and a scale for each 256
    assert tree["bytes_per_worker"] == pytest.approx(2 * message, rel=0.01)
    assert tree["seconds"] == pytest.approx(20 * (0.05 + message / 2.5e6), rel=0.01)
    for way in ways.values():  # I steps, of which a round is a twentieth
        computing = way["period"] * 0.1
        assert way["seconds"] / (way["seconds"] + computing) <= 0.05
    assert main(["plan", *options]) == 0
    assert "two levels, groups of 32" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--workers", "2", "--parameters", "1m", "--step-time", "1s", "--lr", "0"), "--lr 0"),
        (
            ("--workers", "2", "--parameters", "1m", "--step-time", "1s", "--pos-ratio", "1.5"),
            "--pos-ratio 1.5",
        ),
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
        (
            ("--workers", "2", "--parameters", "1m", "--step-time", "1s", "--batch-size", "-5"),
            "--batch-size -5: expected at least 1",
        ),
        (
            ("--workers", "2", "--model", "mlp", "--step-time", "1s", "--image-size", "0"),
            "--image-size 0: expected at least 1",
        ),
    ],
)
def test_bad_input_is_one_clear_line(capsys, options, words):
    assert main(["plan", *options]) == 2
    assert words in capsys.readouterr().err
