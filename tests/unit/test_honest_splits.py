"""Claims about splits that keep groups together or follow time."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import codauc
from codauc.data import Split, read_table
from codauc.data.data_settings import DataSettings
from codauc.data.opening import open_data
from codauc.data.splits import PARTS
from codauc.workers import LocalGroup


@given(st.integers(6, 60), st.integers(0, 99), st.floats(0.1, 0.3), st.floats(0, 0.3))
def test_no_group_is_on_two_sides_and_every_part_has_both_classes(count, seed, test, validation):
    random = np.random.default_rng(seed)
    groups = np.concatenate([np.arange(count), random.integers(count, size=5 * count)])
    labels = torch.from_numpy(random.random(len(groups)) < 0.3)
    labels[:count] = torch.arange(count) % 2 == 0  # each class is in enough groups
    parts = Split(test, validation, seed, group=groups).parts(labels)
    assert torch.equal(torch.cat(list(parts.values())).sort().values, torch.arange(len(labels)))
    homes = [set(groups[parts[part]]) for part in PARTS]
    assert not homes[0] & homes[1] | homes[0] & homes[2] | homes[1] & homes[2]
    for part in ["train", "test", *(["validation"] if validation else [])]:
        assert 0 < int(labels[parts[part]].sum()) < len(parts[part])


@pytest.mark.parametrize("seed", range(5))
def test_shares_of_rows_and_of_positives_are_kept(seed):
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 30, size=400)
    groups = np.repeat(np.arange(400), sizes)
    labels = torch.from_numpy((random.random(400) < 0.1)[groups])
    parts = Split(0.2, 0.15, seed, group=groups).parts(labels)
    for part, share in (("test", 0.2), ("validation", 0.15)):
        assert len(parts[part]) == pytest.approx(share * len(labels), rel=0.03)
        ratio = float(labels[parts[part]].float().mean() / labels.float().mean())
        assert ratio == pytest.approx(1, abs=0.08)


def test_another_seed_gives_other_groups_and_the_names_of_groups_do_not_matter():
    groups, labels = np.arange(600) // 6, torch.arange(600) % 4 == 0
    first, second = (Split(0.2, 0.1, s, group=groups).rows(labels, "test") for s in (0, 1))
    assert not torch.equal(first, second)
    texts = np.array([f"patient {g:03}" for g in groups])
    assert torch.equal(Split(0.2, 0.1, group=texts).rows(labels, "test"), first)


def test_rare_positives_reach_every_part():
    groups = np.arange(60_000) // 3
    labels = torch.zeros(60_000, dtype=torch.bool)
    labels[[0, 30_000, 59_999]] = True  # in 3 groups of 20,000
    parts = Split(0.2, 0.15, group=groups).parts(labels)
    assert [int(labels[parts[part]].sum()) for part in PARTS] == [1, 1, 1]


def test_too_few_groups_are_told():
    labels = torch.arange(100) % 2 == 0
    with pytest.raises(ValueError, match="in 2 of its 2 groups, expected at least 3"):
        Split(0.2, 0.1, group=np.arange(100) // 50).parts(labels)
    with pytest.raises(ValueError, match="positives are in 1 of its 10 groups"):
        Split(0.2, 0.1, group=np.arange(100) // 10).parts(torch.arange(100) < 5)


def test_groups_that_allow_no_part_without_a_class_lacking_are_told():
    labels = torch.tensor([True, True, False, False])  # each group is of one class
    with pytest.raises(ValueError, match=r"cannot be split|expected at least 2"):
        Split(0.5, group=np.array([0, 1, 1, 2])).parts(torch.tensor([True, True, True, False]))
    parts = Split(0.5, group=np.arange(4)).parts(labels)
    assert [int(labels[parts[part]].sum()) for part in ("train", "test")] == [1, 1]


def test_the_newest_rows_are_the_test_and_equal_times_stay_together():
    times = np.random.default_rng(0).permutation(np.repeat(np.arange(100.0), 7))
    labels = torch.arange(700) % 3 == 0
    parts = Split(0.2, 0.15, time=times).parts(labels)
    ends = [(times[parts[part]].min(), times[parts[part]].max()) for part in PARTS]
    assert ends == [(0, 64), (65, 79), (80, 99)]


def test_a_time_without_changes_or_with_a_class_on_one_side_is_told():
    labels = torch.arange(40) % 2 == 0
    with pytest.raises(ValueError, match=r"1 different times: .* expected positives and negatives"):
        Split(0.2, time=np.zeros(40)).parts(labels)
    with pytest.raises(ValueError, match="newest samples, to test, are 8 samples, all negatives"):
        Split(0.2, time=np.arange(40)).parts(torch.arange(40) < 5)
    with pytest.raises(ValueError, match="sample 1: the value is missing"):
        Split(0.2, time=np.array(["2026-01-01", "NaT"], "M8[D]"))
    with pytest.raises(ValueError, match="at most one way"):
        Split(0.2, group="a", time="b")
    with pytest.raises(ValueError, match="one value per sample"):
        Split(0.2, group=7)


def patients(count=60, rows=8, seed=0):
    """Noise: the rows of a patient are near copies with one label."""
    random = np.random.default_rng(seed)
    who = np.repeat(np.arange(count), rows)
    x = random.normal(size=(count, 4))[who] + 0.01 * random.normal(size=(count * rows, 4))
    frame = pd.DataFrame(x, columns=list("abcd"))
    frame["patient"] = [f"P{w:04}" for w in who]
    frame["day"] = pd.Timestamp("2026-01-01") + pd.to_timedelta(
        random.integers(90, size=len(who)), "D"
    )
    frame["ill"] = (np.arange(count) % 3 == 0).astype(int)[who]
    return frame.sample(frac=1, random_state=seed)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("by", ["group", "time"])
def test_any_number_of_workers_gives_the_same_split(tmp_path, suffix, by):
    frame, path = patients(), tmp_path / f"p.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path, index=False)
    settings = DataSettings(
        source=str(path),
        target="ill",
        **{by: "patient" if by == "group" else "day"},
        drop=("patient",) if by == "time" else (),
    )
    found = []
    for workers in (1, 3):
        parts = codauc.launch(
            lambda group: [
                (p.rows, p.encoder.names)
                for d in [open_data(settings, group)]
                for p in (d.train, d.validation, d.test)
            ],
            workers=workers,
            simulate=True,
        )
        rows = [torch.cat([own[i][0] for own in parts]).sort().values for i in range(3)]
        found.append(rows)
        assert ("patient" in parts[0][0][1]) is False
        assert ("day" in parts[0][0][1]) is True  # a time is an input unless it is dropped
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    train, _, test = (frame.iloc[rows] for rows in found[0])
    if by == "group":
        assert not set(train.patient) & set(test.patient)
    else:
        assert train.day.max() < test.day.min()


def test_dates_written_day_first_are_in_the_order_of_time(tmp_path):
    frame = patients()
    frame.assign(day=frame.day.dt.strftime("%d.%m.%Y")).to_csv(tmp_path / "p.csv", index=False)
    data = open_data(
        DataSettings(source=str(tmp_path / "p.csv"), target="ill", time="day"), LocalGroup()
    )
    train, test = (frame.iloc[part.rows.numpy()] for part in (data.train, data.test))
    assert train.day.max() < test.day.min()


def test_read_table_takes_the_split_and_the_encoder_ignores_the_group_later():
    frame = patients()
    split = Split(0.2, 0.1, group="patient")
    train = read_table(frame, "ill", split=split)
    assert "patient" not in train.encoder.names
    test = read_table(frame, "ill", split=split, part="test", encoder=train.encoder)
    who = frame.patient.to_numpy()
    assert not set(who[train.rows]) & set(who[test.rows])
    both = [
        read_table(other, encoder=train.encoder).x
        for other in (frame, frame.drop(columns="patient"))
    ]
    assert torch.equal(*both)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group": "patien"}, "has no column 'patien': did you mean 'patient'"),
        ({"time": "dya"}, "has no column 'dya': did you mean 'day'"),
        ({"time": "patient"}, "column 'patient' holds texts: expected numbers or dates"),
        ({"group": "patient", "time": "day"}, "group=patient and time=day"),
        ({"group": "patient", "test": "other.csv"}, "with a test set of its own"),
        ({"time": "day", "test": "other.csv"}, "with a test set of its own"),
        (
            {"group": "patient", "test_fraction": 0.0, "validation_fraction": 0.0},
            "nothing to hold out",
        ),
        ({"group": "ill"}, "group='ill': negatives are in 1 of its 2 groups"),
    ],
)
def test_what_cannot_be_split_is_told(tmp_path, settings, message):
    patients().to_csv(tmp_path / "p.csv", index=False)
    with pytest.raises(ValueError, match=message):
        open_data(
            DataSettings(source=str(tmp_path / "p.csv"), target="ill", **settings), LocalGroup()
        )


@pytest.mark.parametrize(("column", "by"), [("patient", "group"), ("day", "time")])
def test_a_row_without_a_group_or_a_time_is_told(tmp_path, column, by):
    frame = patients()
    frame.loc[frame.index[7], column] = None
    frame.to_csv(tmp_path / "p.csv", index=False)
    with pytest.raises(ValueError, match=f"column '{column}', line 9: the {by} is missing"):
        open_data(
            DataSettings(source=str(tmp_path / "p.csv"), target="ill", **{by: column}), LocalGroup()
        )


def test_ids_are_texts(tmp_path):
    frame = patients()
    frame["patient"] = [f"{int(p[1:]):020}" for p in frame.patient]  # no float64 tells them apart
    frame.to_csv(tmp_path / "p.csv", index=False)
    data = open_data(
        DataSettings(source=str(tmp_path / "p.csv"), target="ill", group="patient"), LocalGroup()
    )
    who = frame.patient.to_numpy()
    assert not set(who[data.train.rows]) & set(who[data.test.rows])
    assert len(set(who[data.test.rows])) == 12


def test_images_that_a_table_names_are_split_by_group(tmp_path):
    rows = []
    for i in range(48):
        Image.fromarray(np.full((9, 9, 3), 5 * i, np.uint8)).save(tmp_path / f"{i}.png")
        rows.append((f"{i}.png", i // 4, "ill" if i // 4 % 3 == 0 else "well"))
    pd.DataFrame(rows, columns=["file", "patient", "finding"]).to_csv(
        tmp_path / "t.csv", index=False
    )
    shared = {"source": str(tmp_path / "t.csv"), "images": str(tmp_path), "target": "finding"}
    shared |= {"file_column": "file", "positive": ("ill",), "image_size": 8}
    data = open_data(DataSettings(**shared, group="patient"), LocalGroup())
    homes = [set((p.rows // 4).tolist()) for p in (data.train, data.validation, data.test)]
    assert not homes[0] & homes[1] | homes[0] & homes[2] | homes[1] & homes[2]
    with pytest.raises(ValueError, match="has no column 'doctor'"):
        open_data(DataSettings(**shared, group="doctor"), LocalGroup())
    with pytest.raises(ValueError, match="time with images"):
        open_data(DataSettings(**shared, time="patient"), LocalGroup())
