"""Claims about the thin loop: one model on all workers, whatever the way they communicate."""

import numpy as np
import pytest
import torch
from torch import nn

import codauc
from codauc.data.data_settings import DataSettings
from codauc.data.opening import open_data
from codauc.runs.directory import RunFolder
from codauc.runs.settings import CommunicationSettings, RecipeSettings, RunSettings
from codauc.training.build import resolve_settings
from codauc.training.checkpoint_policy import RunControl
from codauc.training.loop import fit
from codauc.training.validation import Window


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 4)) * [1, 10, 100, 1000]
    y = x[:, 0] + 0.5 * rng.normal(size=600) > 1
    path = tmp_path_factory.mktemp("data") / "d.npz"
    np.savez(path, x=x, y=y)
    return str(path)


def settings_of(source, recipe=None, **communication):
    return RunSettings(
        DataSettings(source, target="y"),
        recipe=RecipeSettings(
            **{"steps": 42, "batch_size": 32, "evaluations": 6, **(recipe or {})}
        ),
        communication=CommunicationSettings(**communication),
    )


def test_the_watched_test_set_holds_nothing_out_and_chooses_nothing(source):
    settings = settings_of(source, recipe={"select": "last"}).with_changes("data", watch="test")
    opened = open_data(settings.data, codauc.launch(lambda group: group, simulate=True)[0])
    assert opened.validation is None
    assert opened.watched is opened.test
    assert opened.train.samples + opened.test.samples == 600
    chosen = settings.with_changes("recipe", select="best")
    with pytest.raises(ValueError, match="must not choose the model"):
        resolve_settings(chosen, opened, 1)
    without = settings.with_changes("data", test_fraction=0.0)
    with pytest.raises(ValueError, match="has no test set"):
        codauc.launch(lambda group: open_data(without.data, group), simulate=True)


def test_a_table_is_not_augmented(source):
    settings = settings_of(source, recipe={"augment": "flip"})
    opened = open_data(settings.data, codauc.launch(lambda group: group, simulate=True)[0])
    with pytest.raises(ValueError, match="augment=flip for a table: expected images"):
        resolve_settings(settings, opened, 1)


def test_curves_on_the_test_set_end_with_the_test_auc(source, tmp_path):
    settings = settings_of(source, recipe={"select": "last", "average": "none"})
    summary = codauc.train(settings.with_changes("data", watch="test"), tmp_path)
    last = RunFolder(tmp_path).records()[-1]
    assert summary["test_auc"] == last.auc
    assert summary["validation_samples"] == 0
    page = (tmp_path / "report.html").read_text()
    assert "Test AUC against iterations" in page
    assert "Validation AUC" not in page


def test_an_estimated_start_has_a_and_b_at_the_mean_scores(source):
    def distance(start):
        recipe = {"optimizer": "sgd", "warm_start": 0.0, "balance": 0.0, "mix": 0.0, "lr": 0.5}
        recipe |= {"schedule": "constant", "average": "none", "steps": 4, "evaluations": 4}
        recipe |= {"initial_bias": False}
        settings = settings_of(source, recipe={**recipe, "start": start}, workers=2, simulate=True)
        settings = settings.with_changes("communication", sync_every=1)
        found = codauc.launch(lambda g: work(g, settings)[1], workers=2, simulate=True)
        first = next(record for record in found[0] if record.step)
        assert first.step == 1
        return abs(first.a - first.positive_mean) + abs(first.b - first.negative_mean)

    assert distance("estimate") < 0.2
    assert distance("zero") > 0.5


def work(group, settings, **control):
    opened = open_data(settings.data, group)
    resolved = resolve_settings(settings, opened, group.size)
    trained = fit(resolved, opened, group, control=RunControl(**control))
    weights = torch.cat([p.detach().flatten() for p in trained.model.parameters()])
    return weights, trained.records, trained.validation_auc, trained.interrupted, trained.steps


def run(settings, workers=3, **options):
    return codauc.launch(lambda g: work(g, settings, **options), workers=workers, simulate=True)


WAYS = {
    "plain": {},
    "every step": {"sync_every": 1},
    "once": {"sync_every": 10**9},
    "int8": {"compress": "int8"},
    "bf16": {"compress": "bf16"},
    "delayed": {"delay": 3},
    "data parallel": {"averages": "gradients", "sync_every": 10**9},
}


@pytest.mark.parametrize("way", WAYS)
def test_all_workers_return_the_same_model_and_the_same_history(way, source):
    settings = settings_of(source, workers=3, **{"sync_every": 8, **WAYS[way]})
    (first, records, auc, *_), *others = run(settings)
    assert auc > 0.8
    assert records[-1].step == 42
    for weights, other_records, other_auc, *_ in others:
        assert torch.equal(weights, first)
        assert other_auc == auc
        assert [r.auc for r in other_records] == [r.auc for r in records]
        assert [r.drift for r in other_records] == [r.drift for r in records]


def test_data_parallel_is_one_message_a_step_and_workers_never_differ(source):
    settings = settings_of(source, workers=2, averages="gradients", sync_every=10**9)
    records = run(settings, workers=2)[0][1]
    assert [record.rounds for record in records if not record.stage_end] == [
        record.step + (record.stage > 1) for record in records if not record.stage_end
    ]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("averages", ["weights", "gradients"])
def test_a_request_to_stop_ends_all_workers_at_the_same_step(workers, averages, source):
    calls = []

    def requested(name):
        calls.append(name)
        return name == "stop" and calls.count("stop") > 20

    settings = settings_of(source, workers=workers, sync_every=4, averages=averages)
    results = run(settings, workers=workers, requested=requested)
    assert all(interrupted for *_, interrupted, _ in results)
    steps = {steps for *_, steps in results}
    assert len(steps) == 1
    assert steps.pop() < 60
    assert all(torch.equal(result[0], results[0][0]) for result in results)


@pytest.mark.parametrize(
    "recipe",
    [
        {"name": "bce"},
        {"name": "paper", "stages": 2, "lr": 0.05},
        {"optimizer": "sgd"},
        {"warm_start": 0.0},
        {"balance": 0.4},
        {"average": "stage"},
        {"average": "none"},
        {"select": "best"},
        {"schedule": "constant", "stages": 2, "factor": 3.0},
        {"gamma": 5.0},
        {"mix": 0.0},
    ],
    ids=str,
)
def test_every_part_of_a_recipe_can_be_changed(recipe, source):
    weights, records, *_ = run(settings_of(source, recipe), workers=1)[0]
    assert bool(weights.isfinite().all())
    assert all(0 <= record.auc <= 1 for record in records)


def test_without_validation_the_last_model_is_returned(source):
    settings = settings_of(source).with_changes("data", validation_fraction=0.0)
    _, records, auc, *_ = run(settings, workers=1)[0]
    assert (records, auc) == ([], None)


def test_a_window_is_the_mean_of_the_models_since_the_last_evaluation():
    model, loss = nn.Linear(2, 1), codauc.MinMaxAUCLoss(pos_ratio=0.5)
    opt = codauc.PPDSG(model, loss, lr=0.1)
    window, seen = Window(opt), []
    for round_ in range(2):
        seen.clear()
        for step in range(5):
            nn.init.constant_(model.weight, float(step**2 + round_))
            seen.append(model.weight.detach().clone())
            window.add()
        with window.as_weights():
            assert torch.allclose(model.weight, torch.stack(seen).mean(0))
        assert torch.equal(model.weight, seen[-1])


def test_a_window_without_models_leaves_the_weights():
    opt = codauc.PPDSG(nn.Linear(2, 1), codauc.MinMaxAUCLoss(pos_ratio=0.5), lr=0.1)
    before = opt.model.weight.detach().clone()
    with Window(opt).as_weights():
        assert torch.equal(opt.model.weight, before)


@pytest.mark.parametrize("name", ["mlp", "tabular", "torch.nn:Linear"])
def test_networks_by_name_fit_the_data(name, source):
    arguments = {"in_features": 4, "out_features": 1} if ":" in name else {}
    settings = settings_of(source, {"steps": 5}).with_changes(
        "model", name=name, arguments=arguments
    )
    assert run(settings, workers=1)[0][2] is not None


def test_a_worker_without_positives_is_no_obstacle(tmp_path):
    rows = [f"{i % 7},{'ab'[i % 2]},{int(i % 2 == 0 and i % 6 == 0)}" for i in range(300)]
    (tmp_path / "s.csv").write_text("\n".join(["x,silo,y", *rows]))
    settings = settings_of(str(tmp_path / "s.csv"), {"balance": 0.3}, workers=2)
    settings = settings.with_changes("data", silo="silo", target="y")
    first, second = run(settings, workers=2)  # alpha is estimated over both: nothing to warn of
    assert torch.equal(first[0], second[0])
    with pytest.warns(UserWarning, match="drew no positives"):
        run(settings.with_changes("communication", dual="mean"), workers=2)
