"""Claims about the fingerprint of data: the same for any workers, another for any other data."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import codauc
from codauc.data.data_settings import DataSettings
from codauc.data.fingerprint import SAMPLE, file_marks, row_marks, total
from codauc.data.image_files import ImageFiles
from codauc.data.opening import open_data
from codauc.training.run_state import identity


def frame(rows=240, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "a": rng.normal(size=rows),
            "b": np.where(rng.random(rows) < 0.1, np.nan, rng.normal(3e8, 1e-3, rows)),
            "city": rng.choice(["Ulm", "Bonn", "Köln", ""], rows),
            "site": rng.integers(6, size=rows),
            "y": rng.random(rows) < 0.3,
        }
    )


def known(settings, workers=1):
    """What tells the data, on every worker."""
    found = codauc.launch(
        lambda group: identity(open_data(settings, group), group), workers=workers, simulate=True
    )
    assert all(each == found[0] for each in found)
    return found[0]


def laid(folder, kind):
    """Data of a kind, and the settings that name them."""
    rng = np.random.default_rng(1)
    labels = np.arange(90) % 3 == 0
    if kind == "array":
        np.savez(folder / "a.npz", x=rng.normal(size=(90, 5)).astype(np.float32), y=labels)
        return DataSettings(str(folder / "a.npz"), target="y")
    if kind == "images in an array":
        np.savez(
            folder / "a.npz", x=rng.integers(255, size=(90, 1, 5, 5), dtype=np.uint8), y=labels
        )
        return DataSettings(str(folder / "a.npz"), target="y")
    if kind == "fashion-tiny":
        return DataSettings("fashion-tiny", positive=("6",))
    if kind == "folders of images":
        for number in range(40):
            name = folder / "images" / f"class {number % 2}"
            name.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(255, size=(9, 9), dtype=np.uint8)).save(
                name / f"{number}.bmp"
            )
        return DataSettings(str(folder / "images"), positive=("class 1",), image_size=8)
    frame().to_csv(folder / "a.csv", index=False)
    frame(seed=1).to_csv(folder / "test.csv", index=False)
    more = {
        "table": {},
        "table with a test file": {"test": str(folder / "test.csv")},
        "table by silo": {"silo": "site"},
        "table, thinned": {"keep_negatives": 0.5},
        "table, skewed": {"skew": 0.5},
        "table, watching the test": {"watch": "test"},
    }[kind]
    return DataSettings(str(folder / "a.csv"), target="y", **more)


KINDS = (
    *("table", "table with a test file", "table by silo", "table, thinned", "table, skewed"),
    *("table, watching the test", "array", "images in an array", "fashion-tiny"),
    "folders of images",
)


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_workers_has_the_same_fingerprint(kind, tmp_path):
    settings = laid(tmp_path, kind)
    alone = known(settings)
    validation = set() if settings.watch == "test" else {"validation inputs"}
    assert {"training inputs", "test inputs", "test labels"} | validation <= alone.keys()
    assert ("validation inputs" in alone) == bool(validation)
    assert [known(settings, workers) for workers in (2, 3, 5)] == [alone] * 3


def test_formats_that_hold_the_same_values_have_the_same_fingerprint(tmp_path):
    data = frame().assign(city=lambda f: f.city.replace("", "Ulm"))
    data.to_csv(tmp_path / "a.csv", index=False)
    data.to_parquet(tmp_path / "a.parquet")
    one, other = (
        known(DataSettings(str(tmp_path / name), target="y")) for name in ("a.csv", "a.parquet")
    )
    assert one == other


def test_every_single_other_cell_gives_another_fingerprint(tmp_path):
    data = frame(40)
    data.to_csv(tmp_path / "a.csv", index=False)
    settings = DataSettings(str(tmp_path / "a.csv"), target="y")
    seen = {str(known(settings))}
    for row in range(0, 40, 3):
        for column, value in (("a", 7.5), ("b", np.nan if row % 2 else 3e8), ("city", "Rom")):
            other = data.copy()
            other.loc[row, column] = value
            if other.loc[[row]].equals(data.loc[[row]]):
                continue
            other.to_csv(tmp_path / "a.csv", index=False)
            found = known(settings)
            assert str(found) not in seen, (row, column)
            seen.add(str(found))
    assert len(seen) > 30


SAME_BITS = {
    "two signs": lambda x: x * np.array([-1, -1, 1, 1.0]),
    "all signs": lambda x: -x,
    "two columns": lambda x: x[:, [1, 0, 2, 3]],
    "two rows": lambda x: x[[1, 0, *range(2, len(x))]],
    "doubled and halved": lambda x: x * np.array([2, 0.5, 1, 1]),
    "noise": lambda x: x + np.random.default_rng(0).normal(size=x.shape),
    "the smallest change": lambda x: np.where(
        np.arange(x.size).reshape(x.shape) == 9, x * (1 + 2**-52), x
    ),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8])
@pytest.mark.parametrize("change", SAME_BITS)
def test_changes_that_leave_most_bits_are_seen(change, dtype):
    x = np.arange(1.0, 41.0).reshape(10, 4) % 19
    other = SAME_BITS[change](x)
    if change == "the smallest change" and dtype != np.float64:
        other = x + (np.arange(x.size).reshape(x.shape) == 9)
    rows = np.arange(10)
    one, two = (total(rows, row_marks(values.astype(dtype))) for values in (x, other))
    assert one != two


def test_pairs_of_small_whole_numbers_do_not_collide():
    """Their bits differ in the upper twelve alone, where sums of products would cancel out."""
    pairs = np.stack(np.meshgrid(np.arange(-256.0, 256), np.arange(-256.0, 256)), -1).reshape(-1, 2)
    assert len(np.unique(row_marks(pairs))) == len(pairs)


def test_rows_of_any_width_and_byte_order_are_taken_as_their_values():
    x = np.arange(15, dtype=np.int16).reshape(3, 5)
    assert (row_marks(x.astype(">i2")) == row_marks(x)).all()
    assert (row_marks(np.asfortranarray(x)) == row_marks(x)).all()
    assert (row_marks(x) != row_marks(x.astype(np.int32))).all()
    assert row_marks(np.empty((4, 0))).shape == (4,)
    assert row_marks(np.empty((0, 3))).shape == (0,)


def test_files_are_known_by_name_size_and_some_by_their_content(tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(2 * SAMPLE)]
    for path in paths:
        path.write_bytes(bytes(20))
    rows = np.arange(len(paths))

    def marks():
        return file_marks(ImageFiles(paths), rows, len(rows))

    before = marks()
    paths[5].write_bytes(bytes(21))
    assert np.flatnonzero(marks() != before).tolist() == [5]
    paths[5].write_bytes(bytes(20))
    for path in paths:
        path.write_bytes(b"\1" * 20)
    seen = int((marks() != before).sum())
    assert 0.8 * SAMPLE < seen < 1.2 * SAMPLE
    paths[0].unlink()
    assert marks()[0] != before[0]


def test_own_files_that_two_workers_exchange_are_other_data(tmp_path):
    data = [frame(120, seed) for seed in (0, 1)]
    settings = DataSettings(str(tmp_path / "{rank}.csv"), target="y", own=True)
    found = []
    for first in (0, 1):
        for rank in (0, 1):
            data[(first + rank) % 2].to_csv(tmp_path / f"{rank}.csv", index=False)
        found.append(known(settings, 2))
    assert found[0]["training inputs"] != found[1]["training inputs"]


def test_other_silos_are_other_data(tmp_path):
    settings = laid(tmp_path, "table by silo")
    before = known(settings, 2)
    other = frame()
    other.loc[3, "site"] = (other.loc[3, "site"] + 1) % 6
    other.drop(columns="site").assign(site=other.site).to_csv(tmp_path / "a.csv", index=False)
    after = known(settings, 2)
    assert before["training inputs"] != after["training inputs"]
