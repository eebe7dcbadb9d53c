"""Claims about recipes, the selection of a model, pieces and calibration."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from codauc.metrics.auc_difference import paired_auc_difference
from codauc.metrics.auc_values import auc
from codauc.metrics.calibration import Calibration, average_precision, calibrate
from codauc.models import ConvNet, TabularNet
from codauc.models.tabular import Pieces, range_edges
from codauc.runs.settings import (
    RECIPES,
    CommunicationSettings,
    Recipe,
    RecipeSettings,
    RunSettings,
)
from codauc.training.build import augmentation
from codauc.training.recipe import Facts, factor_of, image_network, plan, resolve
from codauc.training.validation import ModelChoice

TABLE = Facts(10_000, 500, images=False)


def test_what_is_said_stays_and_the_rest_is_decided():
    recipe = resolve(RecipeSettings(lr=0.02, stages=2), 1, TABLE)
    assert type(recipe) is Recipe
    assert (recipe.lr, recipe.stages) == (0.02, 2)
    assert None not in vars(recipe).values()
    assert resolve(recipe, 1, TABLE) == recipe


def test_cross_entropy_alone_has_the_same_budget():
    ways = CommunicationSettings()
    for samples in (100, 10_000, 1_000_000):
        facts = Facts(samples, samples // 10, images=False)
        steps = [
            plan(resolve(RecipeSettings(name=n), 1, facts), ways).steps for n in ("default", "bce")
        ]
        assert steps[0] == pytest.approx(steps[1], abs=3)


@pytest.mark.parametrize("samples", [1_000, 30_000, 400_000])
@pytest.mark.parametrize("positives", [40, 5_000])
def test_workers_take_as_many_steps_with_smaller_batches_where_positives_are_many(
    samples, positives
):
    facts = Facts(samples, min(positives, samples // 2), images=False)
    alone, several = (resolve(RecipeSettings(), workers, facts) for workers in (1, 4))
    assert several.steps == pytest.approx(alone.steps, abs=1)
    many = facts.rarer >= 1000
    assert several.batch_size == (alone.batch_size // 2 if many else alone.batch_size)


@pytest.mark.parametrize(
    ("samples", "positives", "steps"),
    [
        (500, 20, 1000),  # the least
        (9_999, 250, 1250),  # five for each positive
        (10_000, 250, 2500),  # ten
        (40_000, 4000, 4000),  # so many samples
        (1_000_000, 50_000, 1000),
        (3_000_000, 50_000, 2930),  # one pass
    ],
)
def test_larger_tables_get_more_steps_but_a_million_rows_one_pass(samples, positives, steps):
    recipe = resolve(RecipeSettings(), 1, Facts(samples, positives, False, linear=True))
    assert recipe.steps == steps


def test_images_are_shifted_but_not_mirrored_and_tables_neither():
    images = Facts(10_000, 500, images=True)
    found = {name: resolve(RecipeSettings(name), 1, images).augment for name in RECIPES}
    assert found == {"default": "shift", "bce": "shift", "paper": "none"}
    assert resolve(RecipeSettings(), 1, TABLE).augment == "none"
    assert resolve(RecipeSettings(augment="flip"), 1, images).augment == "flip"


@pytest.mark.parametrize("side", [1, 2, 3, 8, 28, 65, 300])
def test_the_network_of_images_takes_images_of_its_side(side):
    arguments = image_network(side)
    assert ConvNet(2, **arguments)(torch.randn(2, 2, side, side + 3)).shape == (2,)
    pixels = side // 2 ** len(arguments["widths"])
    assert pixels >= 1 if side < 100 else pixels > 2


def test_a_shift_moves_each_image_of_a_batch_by_at_most_a_twelfth():
    x = torch.zeros(500, 1, 28, 28)
    x[:, :, 14, 14] = 1
    place = augmentation("shift")(x, torch.Generator().manual_seed(0)).flatten(1).argmax(1)
    for places in (place // 28, place % 28):
        assert set(places.tolist()) == {12, 13, 14, 15, 16}


def test_the_papers_recipe_is_the_papers():
    found = plan(resolve(RecipeSettings(name="paper"), 16, TABLE), CommunicationSettings(16))
    assert [stage.steps for stage in found.stages] == [2000, 6000, 18000]
    assert [stage.lr for stage in found.stages] == pytest.approx([0.1, 0.1 / 3, 0.1 / 9])
    assert found.warm == 0


@pytest.mark.parametrize(
    ("every", "periods"),
    [
        (5, [5, 5]),
        ("growing", [8, 24]),
        ("growing:5", [5, 15]),
        ("theorem", [9, 9]),
        ("qsr:5", ["qsr:5", "qsr:5"]),
        ("qsr", ["qsr:32", "qsr:32"]),
        ("auto", ["auto", "auto"]),
        (None, [32, 32]),
    ],
)
def test_periods(every, periods):
    recipe = resolve(RecipeSettings(stages=2, warm_start=0.0), 4, TABLE)
    found = plan(recipe, CommunicationSettings(4, True, every))
    assert [stage.sync_every for stage in found.stages] == periods


@pytest.mark.parametrize("text", ["0.7", "0.7,1", "0,0.9", "a,b", "0.7;0.9", "", "1,2,3"])
def test_bad_outer_steps_are_refused(text):
    with pytest.raises(ValueError, match="expected a step size above 0 and a momentum"):
        CommunicationSettings(outer=text)


def test_outer_steps_need_averages_of_weights():
    with pytest.raises(ValueError, match="expected averages of the weights"):
        CommunicationSettings(outer="0.7,0.9", averages="gradients")


def test_the_step_size_rises_then_falls_to_nothing():
    factor = factor_of(resolve(RecipeSettings(), 1, TABLE), 1000)
    sizes = [factor(step) for step in range(1000)]
    assert sizes.index(max(sizes)) < 60
    assert sizes[0] < 0.05
    assert 0 < sizes[-1] < 1e-4
    assert min(sizes) > 0


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"name": "papre"}, "did you mean 'paper'"),
        ({"lr": 0}, "lr=0"),
        ({"warm_start": 1.5}, "at most 1"),
        ({"optimizer": "adma"}, "did you mean 'adam'"),
        ({"balance": 0.6}, "balance"),
        ({"steps": 1.5}, "steps=1.5"),
        ({"select": "first"}, "select"),
    ],
)
def test_bad_recipes_are_refused(bad, words):
    with pytest.raises(ValueError, match=words):
        RecipeSettings(**bad)


def test_unknown_names_in_a_file_are_refused():
    with pytest.raises(ValueError, match="did you mean 'recipe'"):
        RunSettings.from_toml("[recipes]\nlr = 1")
    with pytest.raises(ValueError, match="expected a table"):
        RunSettings.from_toml("recipe = 3")


def offers(rule, aucs_and_scores, labels):
    model = nn.Linear(1, 1, bias=False)
    choice = ModelChoice(model, rule)
    for step, (value, scores) in enumerate(aucs_and_scores, 1):
        nn.init.constant_(model.weight, float(step))
        choice.offer(step, value, scores, labels)
    choice.restore()
    assert model.weight.item() == choice.state.step
    return choice.state.step


def looks(shifts, labels, seed=0):
    """Scores whose separation grows or falls, with their AUC; the noise is shared."""
    noise = np.random.default_rng(seed).normal(size=len(labels))
    for shift in shifts:
        scores = noise + shift * labels + 0.05 * np.sin(shift * 50 * np.arange(len(labels)))
        yield auc(scores, labels), scores


def test_best_and_last_are_what_they_say():
    labels = np.arange(400) % 4 == 0
    found = list(looks([0.5, 2.0, 1.0], labels))
    assert offers("best", found, labels) == 2
    assert offers("last", found, labels) == 3


def test_steady_keeps_a_clearly_better_early_model():
    labels = np.arange(400) % 4 == 0
    assert offers("steady", list(looks([0.5, 2.0, 1.0, 0.8], labels)), labels) == 2


@pytest.mark.parametrize("within", [True, False])
def test_steady_goes_on_to_a_model_within_one_standard_error(within):
    """With few positives a little less is mostly luck."""
    labels = np.arange(60) % 20 == 0
    rng = np.random.default_rng(0)
    first = rng.normal(size=60) + 1.5 * labels
    for _ in range(1000):
        later = first + rng.normal(scale=0.5, size=60)
        gap = paired_auc_difference(first, later, labels)
        if gap.value > 0 and (gap.value < gap.std_error) == within:
            break
    found = [(auc(scores, labels), scores) for scores in (first, later)]
    assert offers("steady", found, labels) == (2 if within else 1)
    assert offers("best", found, labels) == 1


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.integers(1, 9))
def test_edges_ascend_and_span_the_values(values, pieces):
    edges = range_edges(torch.tensor(values, dtype=torch.float64), pieces)
    assert len(edges) == pieces + 1
    assert bool((edges.diff() >= 0).all())
    assert edges[-1].item() <= max(values)
    assert edges[0].item() >= min(values)


def test_pieces_tell_frequent_values_from_the_rest():
    """90% zeros: the other values still get all ranges but one."""
    values = torch.cat([torch.zeros(900), torch.arange(1, 101).float()])
    edges = range_edges(values, 8)
    assert edges[0] == 0
    assert len(torch.unique(edges)) == 9


def test_pieces_are_monotone_and_bounded():
    layer = Pieces(columns=2, pieces=4)
    layer.fit(torch.randn(500, 2))
    x = torch.linspace(-50, 50, 101)[:, None].expand(-1, 2)
    out = layer(x)[:, 2:]
    assert bool((out.diff(dim=0) >= 0).all())
    assert 0 <= out.min() <= out.max() <= 1


def test_a_constant_or_enormous_column_does_no_harm():
    layer = Pieces(columns=2, pieces=4)
    rows = torch.stack([torch.ones(50), torch.linspace(-1e30, 1e30, 50)], dim=1)
    layer.fit(rows)
    assert bool(layer(rows).isfinite().all())


def test_a_network_with_pieces_is_the_same_after_saving(tmp_path):
    from codauc import load_model, save_model

    net = TabularNet(numbers=2, categories=[3], widths=[4], pieces=3)
    x = torch.cat([torch.randn(40, 2), torch.randint(0, 3, (40, 1)).float()], dim=1)
    net.fit_pieces(x)
    save_model(tmp_path / "net.safetensors", net, calibration=Calibration(2.0, -1.0))
    saved = load_model(tmp_path / "net.safetensors")
    assert torch.equal(saved.model(x), net(x))
    assert saved.calibration == (2.0, -1.0)


def test_calibrated_scores_are_probabilities():
    rng = np.random.default_rng(0)
    truth = rng.normal(-2, 1.5, 20_000)
    labels = rng.random(20_000) < 1 / (1 + np.exp(-truth))
    scale, shift = calibrate(3 * truth + 5, labels)
    assert scale == pytest.approx(1 / 3, rel=0.05)
    assert shift == pytest.approx(-5 / 3, rel=0.05)


@pytest.mark.parametrize("scores", [[0, 0, 0, 0.0], [1, 2, 3, 4.0], [1e30, 2e30, -1e30, 0.0]])
def test_calibration_of_odd_scores_is_finite(scores):
    labels = np.array([0, 0, 1, 1], bool)
    scale, shift = calibrate(np.array(scores), labels)
    assert math.isfinite(scale)
    assert math.isfinite(shift)
    assert scale > 0


def test_scores_that_differ_by_rounding_alone_get_one_probability():
    scores, labels = np.full(600, -1.1414, np.float32), np.arange(600) % 4 == 0
    scores[::5] = np.nextafter(scores[::5], np.float32(0))
    odds = calibrate(scores, labels).log_odds(scores)
    assert len(set(odds)) == 1
    assert 1 / (1 + np.exp(-odds[0])) == pytest.approx(0.25, abs=0.002)


def test_scores_in_the_wrong_order_are_left_alone():
    assert calibrate(np.arange(50.0), np.arange(50) < 10) == Calibration()


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=60))
def test_average_precision_is_scikit_learns(pairs):
    from sklearn.metrics import average_precision_score

    scores = np.array([float(score) for score, _ in pairs])
    labels = np.array([label for _, label in pairs])
    if labels.any() and not labels.all():
        assert average_precision(scores, labels) == pytest.approx(
            average_precision_score(labels, scores), abs=1e-12
        )


def test_average_precision_counts_infinite_scores_as_tied():
    scores = np.array([math.inf, math.inf, 0.0, -0.0, -math.inf])
    labels = np.array([True, False, False, True, False])
    assert average_precision(scores, labels) == (1 / 2 + 2 / 4) / 2
