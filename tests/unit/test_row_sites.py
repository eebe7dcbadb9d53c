"""Claims about sites: who holds them, and how each is split."""

import numpy as np
import pytest
import torch

import codauc
from codauc.data import Split
from codauc.data.data_settings import DataSettings
from codauc.data.opening import open_data, sites_of
from codauc.data.row_sites import site_parts

SHARES = (0.65, 0.15, 0.2)


@pytest.fixture
def labels_and_sites():
    rng = np.random.default_rng(0)
    sites = rng.integers(40, size=2000)
    return rng.random(2000) < 0.02 + 0.02 * sites, sites


def test_each_site_gives_its_share_of_each_class(labels_and_sites):
    labels, sites = labels_and_sites
    home = site_parts(labels, sites, SHARES, seed=0)
    for site in range(40):
        for positive in (False, True):
            mine = home[(sites == site) & (labels == positive)]
            for part in (1, 2):
                assert abs((mine == part).sum() - SHARES[part] * len(mine)) < 2
    for positive in (False, True):
        mine = home[labels == positive]
        assert (mine == 2).sum() == pytest.approx(0.2 * len(mine), abs=1)


def test_a_site_of_one_row_is_trained_on_whatever_the_seed():
    labels = np.arange(50) % 2 == 0
    sites = np.append(np.zeros(48, int), [1, 2])
    for seed in range(20):
        home = site_parts(labels, sites, SHARES, seed)
        assert home[48] == home[49] == 0


def test_a_split_by_sites_depends_on_the_seed_alone(labels_and_sites):
    labels, sites = labels_and_sites
    first, again, other = (
        Split(0.2, 0.15, seed).parts(torch.from_numpy(labels), None, sites) for seed in (0, 0, 1)
    )
    assert torch.equal(first["test"], again["test"])
    assert not torch.equal(first["test"], other["test"])
    assert sum(map(len, first.values())) == 2000


def test_too_few_of_a_class_are_not_held_out(labels_and_sites):
    labels, sites = labels_and_sites
    home = site_parts(labels, sites, SHARES, seed=0, least=4)
    for site, part, positive in np.ndindex(40, 3, 2):
        count = ((sites == site) & (home == part) & (labels == bool(positive))).sum()
        assert part == 0 or count == 0 or count >= 4


def test_where_no_site_can_spare_a_row_it_is_said():
    labels = np.array([True, False] * 6)
    with pytest.raises(ValueError, match="as each site keeps a row"):
        site_parts(labels, np.arange(12), SHARES, seed=0)
    with pytest.raises(ValueError, match="2 positives: expected at least 3"):
        site_parts(np.arange(40) < 2, np.arange(40) % 3, SHARES, seed=0)


def table(tmp_path, names, positives=lambda i: i % 3 == 0):
    rows = [f'{i % 17},"{name}",{"ab"[i % 2]},{int(positives(i))}' for i, name in enumerate(names)]
    (tmp_path / "t.csv").write_text("\n".join(["x,site,kind,y", *rows]), encoding="utf-8")
    return DataSettings(source=str(tmp_path / "t.csv"), target="y", silo="site")


def parts_of(settings, workers):
    def work(group):
        data = open_data(settings, group)
        return [
            None if part is None else (part.sites, part.rows.tolist(), part.y.tolist())
            for part in (data.train, data.validation, data.test)
        ]

    return codauc.launch(work, workers=workers, simulate=True)


def test_rows_know_their_site_and_a_site_has_one_worker_in_every_part(tmp_path):
    names = [("Bad Tölz", "東京", "a, b", " x")[min(3, i % 7)] for i in range(280)]
    settings = table(tmp_path, names)
    homes = {}
    for worker, parts in enumerate(parts_of(settings, 3)):
        for sites, rows, _ in parts:
            assert sites.column == "site"
            for place, row in zip(sites.which.tolist(), rows, strict=True):
                assert sites.names[place].strip() == names[row].strip()
                assert homes.setdefault(names[row], worker) == worker
    assert len(homes) == 4
    assert len(set(homes.values())) == 3


def test_a_worker_may_have_no_rows_to_test_or_validate(tmp_path):
    settings = table(tmp_path, ["big"] * 200 + ["tiny"] * 2)
    big, tiny = parts_of(settings, 2)
    assert [len(rows) for _, rows, _ in tiny] == [2, 0, 0]
    assert len(big[2][1]) > 30


def test_rows_of_a_test_site_are_the_test_set_and_nothing_else(tmp_path):
    settings = table(tmp_path, [f"s{i % 4}" for i in range(200)])
    settings = DataSettings(**{**vars(settings), "test_site": "s2"})
    found = parts_of(settings, 3)
    tested = sorted(row for parts in found for row in parts[2][1])
    assert tested == [i for i in range(200) if i % 4 == 2]
    trained = [row for parts in found for part in parts[:2] for row in part[1]]
    assert sorted(trained) == [i for i in range(200) if i % 4 != 2]


@pytest.mark.parametrize(
    ("site", "message"),
    [
        ("ulm", r"test_site='ulm' is no site in the column 'site', .*did you mean 'Ulm'\?"),
        ("Ulmm", r"did you mean 'Ulm'\?"),
        ("nowhere at all", "name one of them"),
        ("one", r"all rows of the site 'one' \(20\) are positive; expected both classes"),
    ],
)
def test_a_test_site_that_cannot_be_one_is_said(site, message, tmp_path):
    names = ["Ulm"] * 90 + ["Bonn"] * 90 + ["one"] * 20
    settings = table(tmp_path, names, lambda i: i >= 180 or i % 3 == 0)
    settings = DataSettings(**{**vars(settings), "test_site": site})
    with pytest.raises(ValueError, match=message):
        parts_of(settings, 2)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"test_site": "a", "silo": None}, "without a column of sites"),
        ({"test_site": "a", "test": "b.csv"}, "expected one way to choose the test set"),
        ({"test_site": "a", "time": "when"}, "expected one way to choose the test set"),
        ({"scores": "rows", "least_samples": 5}, "as the score of a row is of one sample"),
        ({"scores": "counts", "weight": "w"}, "weighted AUCs need the score of each row"),
        ({"least_samples": 5, "group": "g"}, "intervals of groups need the score of each row"),
        ({"least_samples": 1}, "expected an integer >= 2"),
    ],
)
def test_settings_that_contradict_each_other(more, message):
    with pytest.raises(ValueError, match=message):
        DataSettings(**{"source": "t.csv", "target": "y", "silo": "site", **more})


def test_a_row_without_a_site_is_an_error_with_its_place(tmp_path):
    settings = table(tmp_path, ["a"] * 10 + [""] + ["b"] * 10)
    with pytest.raises(ValueError, match=r"line 12.*the site is missing"):
        sites_of(settings)


def test_more_workers_than_sites_are_an_error_that_names_the_number(tmp_path):
    with pytest.raises(ValueError, match=r"names 2 sites for 3 workers.*use at most 2 workers"):
        parts_of(table(tmp_path, ["a", "b"] * 50), 3)


def test_sites_are_counted_before_workers_start(tmp_path):
    found = sites_of(table(tmp_path, ["b"] * 6 + ["a"] * 30))
    assert [tuple(site) for site in found] == [("a", 30, 10), ("b", 6, 2)]
