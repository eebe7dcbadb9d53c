"""Claims about what a report says of a model: the importance of columns, confident mistakes."""

import time

import numpy as np
import pytest
import torch

from codauc import launch
from codauc.data.data_settings import DataSettings
from codauc.data.opening import open_data
from codauc.models import TabularNet
from codauc.training import column_importance as module
from codauc.training.column_importance import column_importance, effects
from codauc.training.confident_mistakes import ScoredRows, confident_mistakes
from codauc.workers.group import LocalGroup

ALONE = LocalGroup()


class Known(torch.nn.Module):
    """A score whose use of the inputs is known: w . x, and levels of the last input."""

    def __init__(self, weights, levels=()):
        super().__init__()
        self.weights = torch.tensor(weights)
        self.levels = torch.tensor(levels) if levels else None

    def forward(self, x):
        n = len(self.weights)
        found = x[:, :n] @ self.weights
        return found if self.levels is None else found + self.levels[x[:, -1].long()]


def write(path, rows=4000, columns=3, seed=0, ratio=0.3):
    """Columns of which the first decides most, the second a little and the others nothing."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    odds = 2 * x[:, 0] + 0.5 * x[:, 1] + np.log(ratio / (1 - ratio))
    np.savez(path, X=x, y=rng.random(rows) < 1 / (1 + np.exp(-odds)))
    return DataSettings(str(path), target="y")


def test_importance_is_the_auc_lost_and_ranks_what_the_model_uses(tmp_path):
    opened = open_data(write(tmp_path / "a.npz"), ALONE)
    found = column_importance(Known([2.0, 0.5, 0.0]), opened, ALONE, 0, 30)
    first, second, third = found["columns"]
    assert [c["name"] for c in found["columns"]] == list(opened.encoder.inputs_of_columns())
    assert first["lost"] > 0.15 > second["lost"] > 0
    assert first["low"] < first["lost"] < first["high"]
    assert (third["lost"], third["low"], third["high"]) == (0, 0, 0)  # not used at all
    assert found["permutations"] == module.PERMUTATIONS
    assert found["rows"] == opened.test.samples


def test_the_interval_of_importance_holds_what_more_rows_say(tmp_path):
    """19 of 20 intervals should hold the value of the population; at least 16 of them do."""
    large = open_data(write(tmp_path / "l.npz", 60_000, seed=99), ALONE)
    model = Known([2.0, 0.5, 0.0])
    truth = column_importance(model, large, ALONE, 0, 30)["columns"][0]["lost"]
    held = 0
    for seed in range(20):
        small = open_data(write(tmp_path / "s.npz", 1500, seed=seed), ALONE, seed)
        column = column_importance(model, small, ALONE, seed, 30)["columns"][0]
        held += column["low"] <= truth <= column["high"]
    assert held >= 16


def test_the_same_seed_gives_the_same_importance(tmp_path):
    opened = open_data(write(tmp_path / "a.npz"), ALONE)
    model = Known([2.0, 0.5, 0.1])
    one, two, other = (column_importance(model, opened, ALONE, seed, 30) for seed in (1, 1, 2))
    assert one == two != other


def test_a_number_is_exchanged_with_whether_it_is_missing(tmp_path):
    path = tmp_path / "missing.csv"
    rng = np.random.default_rng(0)
    y = rng.random(2000) < 0.3
    gone = y & (rng.random(2000) < 0.8)
    rows = [f"{'' if gone[i] else i % 7},{int(y[i])}" for i in range(2000)]
    path.write_text("\n".join(["amount,y", *rows]))
    opened = open_data(DataSettings(str(path), target="y"), ALONE)
    assert opened.encoder.inputs_of_columns() == {"amount": [0, 1]}
    found = column_importance(Known([0.0, 1.0]), opened, ALONE, 0, 30)
    assert found["columns"][0]["lost"] > 0.3


def test_of_many_columns_those_that_matter_are_measured(tmp_path):
    rng = np.random.default_rng(0)
    columns = 400
    settings = write(tmp_path / "wide.npz", 1500, columns)
    weights = np.zeros(columns, np.float32)
    used = rng.choice(columns, 5, replace=False)
    weights[used] = [2.0, 1.5, 1.0, 0.8, 0.6]
    weights[0] += 2.0
    opened = open_data(settings, ALONE)
    found = column_importance(Known(weights.tolist()), opened, ALONE, 0, 30)
    names = list(opened.encoder.inputs_of_columns())
    assert found["of"] == columns
    assert found["measured"] == module.MOST_MEASURED
    assert len(found["columns"]) == module.MOST_SHOWN
    assert found["columns"][0]["name"] == names[0]


def test_the_first_pass_finds_categories_and_interactions():
    """Of a product of two numbers neither correlates with the score, but the gradient sees both."""

    class Product(torch.nn.Module):
        def forward(self, x):
            return x[:, 0] * x[:, 1] + (x[:, 4] == 3).float() * 3 + 0 * x[:, 2]

    class Encoded:
        inputs, categories = 5, ("a",)

    random = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 5, generator=random)
    x[:, 4] = torch.randint(2, 6, (3000,), generator=random)
    found = effects(Product(), x, x[torch.randperm(3000, generator=random)], Encoded)
    assert found[[0, 1, 4]].min() > 0.5
    assert found[[2, 3]].max() == 0


def test_five_thousand_columns_are_measured_in_bounded_time(tmp_path):
    settings = write(tmp_path / "wide.npz", 600, 5000)
    opened = open_data(settings, ALONE)
    model = TabularNet(5000, widths=(64,))
    begin = time.monotonic()
    found = column_importance(model, opened, ALONE, 0, 1.0)
    assert time.monotonic() - begin < 10
    assert found["of"] == 5000
    assert found["columns"]


def test_no_time_still_measures_the_most_promising_column(tmp_path):
    opened = open_data(write(tmp_path / "a.npz"), ALONE)
    found = column_importance(Known([2.0, 0.5, 0.1]), opened, ALONE, 0, -1.0)
    assert found["permutations"] == 1
    assert len(found["columns"]) == 1


def test_one_worker_that_is_asked_to_end_ends_it_on_all(tmp_path):
    settings = write(tmp_path / "a.npz")

    def measure(group):
        asked = iter([False] * 4 + [group.rank == 1] * 99)  # in the second permutation
        opened = open_data(settings, group)
        model = Known([2.0, 0.5, 0.1])
        return column_importance(model, opened, group, 0, 30, lambda: next(asked))

    one, two = launch(measure, workers=2, simulate=True)
    assert one == two
    assert one["permutations"] == 1
    assert len(one["columns"]) == 3


def test_rare_positives_are_all_in_the_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 1000)
    settings = write(tmp_path / "rare.npz", 40_000, ratio=0.002)
    opened = open_data(settings, ALONE)
    found = column_importance(Known([2.0, 0.5, 0.0]), opened, ALONE, 0, 30)
    assert found["rows"] == 1000
    assert found["positives"] == min(500, opened.test.positives)
    assert found["columns"][0]["lost"] > 0.1


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_exchange_their_own_rows_and_agree(tmp_path, workers):
    settings = write(tmp_path / "a.npz")
    model = Known([2.0, 0.5, 0.0])

    def measure(group):
        opened = open_data(settings, group)
        return column_importance(model, opened, group, 0, 30)

    found = launch(measure, workers=workers, simulate=True)
    assert all(each == found[0] for each in found)
    alone = column_importance(model, open_data(settings, ALONE), ALONE, 0, 30)
    first, other = alone["columns"][0], found[0]["columns"][0]
    assert first["name"] == other["name"]
    assert other["lost"] == pytest.approx(first["lost"], abs=0.03)
    assert found[0]["rows"] == alone["rows"]


def test_mistakes_are_the_worst_of_each_class_and_only_where_classes_overlap():
    scores = np.array([5.0, 1.0, -4.0, 2.0, -1.0, 9.0])
    labels = np.array([False, False, True, True, False, True])
    part = open_data(DataSettings("fashion-tiny", positive=("6",)), ALONE).test
    found = confident_mistakes(ScoredRows(scores, labels, np.arange(10, 16)), part, ALONE)
    assert [(f["row"], f["positive"]) for f in found] == [
        (10, False), (11, False), (14, False), (12, True), (13, True),
    ]  # fmt: skip
    assert found[0]["beyond"] == pytest.approx(2 / 3)
    assert found[3]["beyond"] == 1
    apart = ScoredRows(np.array([0.0, 1.0]), np.array([False, True]), np.arange(2))
    assert confident_mistakes(apart, part, ALONE) == []


def test_mistakes_name_the_files_of_images_on_any_worker(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for kind in ("cat", "dog"):
        (tmp_path / kind).mkdir()
        for i in range(12):
            image.new("L", (8, 8), i * 20).save(tmp_path / kind / f"{i}.png")
    settings = DataSettings(str(tmp_path), positive=("dog",), image_size=8, test_fraction=0.5)

    def names(group):
        part = open_data(settings, group).test
        rows = np.sort(np.concatenate([part.rows.numpy(), *others(part, group)]))
        labels = rows >= 12
        scores = np.where(labels, -1.0, 1.0) * (1 + rows)
        return confident_mistakes(ScoredRows(scores, labels, rows), part, group)

    def others(part, group):
        from codauc.training.shared_scores import gathered

        everyone = gathered(part.rows.numpy(), group)
        return [np.setdiff1d(everyone, part.rows.numpy())]

    alone, *both = names(ALONE), *launch(names, workers=2, simulate=True)
    assert alone == both[0] == both[1]
    assert all(found["file"].startswith("dog" if found["positive"] else "cat") for found in alone)
