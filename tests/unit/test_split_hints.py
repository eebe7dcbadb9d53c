"""Claims about hints at rows that belong together and are on both sides of a split."""

import numpy as np
import pandas as pd
import pytest

import codauc
from codauc.data.data_settings import DataSettings
from codauc.data.opening import open_data
from codauc.data.repeated_values import Examiner
from codauc.workers import LocalGroup


def patients(kind="text", count=250, rows=8, seed=0, noise=0.01):
    """Noise: the rows of a patient are near copies with one label."""
    random = np.random.default_rng(seed)
    who = np.repeat(np.arange(count), rows)
    x = random.normal(size=(count, 4))[who] + noise * random.normal(size=(count * rows, 4))
    frame = pd.DataFrame(x, columns=list("abcd"))
    names = random.permutation(100_000)[:count]
    frame["age"] = random.integers(20, 90, size=count)[who]
    frame["patient"] = [f"P{n}" for n in names[who]] if kind == "text" else names[who]
    frame["ill"] = (random.random(count) < 0.3).astype(int)[who]
    return frame.sample(frac=1, random_state=seed)


def hints(frame, tmp_path, suffix="csv", workers=1, **settings):
    path = tmp_path / f"p.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path, index=False)
    data = DataSettings(source=str(path), target="ill", **settings)
    return codauc.launch(
        lambda group: open_data(data, group).hints, workers=workers, simulate=True
    )[0]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("kind", ["text", "number"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_repeated_id_is_named_with_the_remedy(kind, suffix, workers, tmp_path):
    found = hints(patients(kind), tmp_path, suffix, workers)
    assert len(found) == 1
    assert found[0].startswith("Column 'patient' has ")
    assert found[0].endswith("keep its rows together with group='patient'.")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("kind", ["text", "number"])
def test_an_id_that_was_dropped_is_named_all_the_same(kind, suffix, tmp_path):
    found = hints(patients(kind), tmp_path, suffix, drop=("patient", "age"))
    assert [each[:16] for each in found] == ["Column 'patient'"]


def test_nothing_is_said_where_the_group_is_given(tmp_path):
    assert hints(patients(), tmp_path, group="patient") == ()


def test_copies_of_whole_rows_are_named(tmp_path):
    found = hints(patients(noise=0).drop(columns=["patient", "age"]), tmp_path)
    assert len(found) == 1
    assert "100% of the test rows are copies of training rows" in found[0]


@pytest.mark.filterwarnings("ignore:.*were not seen in training")
def test_validation_rows_are_compared_where_the_test_set_is_a_file(tmp_path):
    patients().to_csv(tmp_path / "other.csv", index=False)
    found = hints(patients(), tmp_path, test=str(tmp_path / "other.csv"))
    assert "of the validation rows share one" in found[0]


@pytest.mark.parametrize("seed", range(4))
def test_good_inputs_that_repeat_are_no_ids(seed, tmp_path):
    random = np.random.default_rng(seed)
    count = 4000
    age, town = random.integers(18, 90, count), random.integers(0, 80, count)
    odds = (age - 60) / 6 + random.normal(size=80)[town]
    frame = pd.DataFrame(
        {
            "age": age,
            "town": [f"town {t}" for t in town],
            "income": (random.lognormal(size=count) * 300).astype(int),
            "flag": random.integers(2, size=count),
            "ill": (random.random(count) < 1 / (1 + np.exp(-odds))).astype(int),
        }
    )
    assert hints(frame, tmp_path) == ()
    few = frame[["flag", "ill"]].assign(sex=random.integers(2, size=count))
    assert hints(few, tmp_path) == ()  # most rows are copies, of a few kinds


def test_ids_that_tell_nothing_of_labels_are_not_named(tmp_path):
    frame = patients()
    frame["ill"] = np.random.default_rng(5).permutation(frame.ill.to_numpy())
    assert hints(frame, tmp_path) == ()


def test_what_is_kept_is_bounded_however_many_columns_and_rows():
    examiner = Examiner([f"c{i}" for i in range(5000)])
    kept = 0
    for start in range(0, 3000, 500):
        rows = np.arange(start, start + 500)
        first = examiner.wanted(rows)
        kept += first
        examiner.add(np.zeros(first, np.uint64), np.zeros((first, 5000)), ())
    assert kept == 1000
    found = examiner.examined(np.zeros(3000, bool))
    assert sum(values.nbytes for values in found.numbers.values()) <= 40e6


@pytest.mark.parametrize("rows", [30, 12])
def test_small_and_one_sided_files_are_answered(rows, tmp_path):
    frame = pd.DataFrame(
        {"a": np.arange(rows), "t": [1.0, None] * (rows // 2), "ill": np.arange(rows) % 2}
    )
    assert hints(frame, tmp_path, "parquet") == ()


def test_arrays_are_examined_for_copies(tmp_path):
    frame = patients(noise=0).drop(columns=["patient"])
    x, y = frame[list("abcd")].to_numpy(), frame.ill.to_numpy()
    np.savez(tmp_path / "p.npz", x=x, y=y)
    data = open_data(DataSettings(source=str(tmp_path / "p.npz"), target="y"), LocalGroup())
    assert "are copies of training rows" in data.hints[0]
