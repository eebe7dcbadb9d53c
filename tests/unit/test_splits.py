"""Claims about the split into training, validation and test, and about opening any source."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import codauc
from codauc.data import Split, read_table
from codauc.data.data_settings import DataSettings
from codauc.data.opening import open_data, open_whole
from codauc.data.rows import as_rows
from codauc.data.splits import PARTS
from codauc.workers import LocalGroup


@given(
    st.integers(4, 60), st.integers(4, 200), st.floats(0, 0.3), st.floats(0, 0.3), st.integers(0, 9)
)
def test_parts_are_disjoint_complete_and_stratified(positives, negatives, test, validation, seed):
    labels = torch.arange(positives + negatives) < positives
    split = Split(test, validation, seed)
    rows = {part: split.rows(labels, part) for part in PARTS}
    assert torch.equal(torch.cat(list(rows.values())).sort().values, torch.arange(len(labels)))
    for part, share in (("test", test), ("validation", validation)):
        for positive, count in ((True, positives), (False, negatives)):
            found = int((labels[rows[part]] == positive).sum())
            assert found == (max(1, round(share * count)) if share else 0)


def test_other_seeds_give_other_rows():
    labels = torch.arange(100) % 5 == 0
    first, second = (Split(0.2, 0.1, seed).rows(labels, "test") for seed in (0, 1))
    assert not torch.equal(first, second)


def test_too_few_of_a_class_is_told():
    with pytest.raises(ValueError, match="2 positives: expected at least 3"):
        Split(0.2, 0.2).rows(torch.arange(50) < 2, "train")


@pytest.mark.parametrize("bad", [{"test": 1.0}, {"test": -0.1}, {"test": 0.6, "validation": 0.4}])
def test_shares_that_leave_nothing_are_refused(bad):
    with pytest.raises(ValueError, match="expected"):
        Split(**bad)


def frame_of(count=400):
    x = np.random.default_rng(0).normal(size=(count, 3)) * [1, 100, 1e6]
    return x, (np.arange(count) % 8 == 0).astype(int)


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_read_disjoint_rows_of_every_part_and_the_training_part_makes_the_encoder(workers):
    x, y = frame_of()
    split = Split(0.25, 0.1)

    def work(group):
        train = read_table(x, y, group=group, split=split)
        others = [
            read_table(x, y, group=group, split=split, part=part, encoder=train.encoder)
            for part in ("validation", "test")
        ]
        return [table.rows for table in (train, *others)], train.encoder

    results = codauc.launch(work, workers=workers, simulate=True)
    found = [torch.cat([rows[part] for rows, _ in results]) for part in range(3)]
    assert torch.equal(torch.cat(found).sort().values, torch.arange(len(x)))
    train = found[0].numpy()
    assert np.array_equal(np.sort(train), split.rows(torch.tensor(y == 1), "train").numpy())
    for column, number in enumerate(results[0][1].numbers):
        assert number.mean == pytest.approx(x[train, column].mean(), rel=1e-9)


def test_only_training_negatives_are_thinned():
    x, y = frame_of()
    split = Split(0.25, 0.1)
    train = read_table(x, y, split=split, keep_negatives=0.5)
    test = read_table(x, y, split=split, part="test", encoder=train.encoder, keep_negatives=0.5)
    assert len(train.y) < 0.65 * 400 * 0.62
    assert len(test.y) == 100


def test_a_part_without_a_split_is_refused():
    with pytest.raises(ValueError, match="without a split"):
        read_table(*frame_of(), part="test")


def opened(**settings):
    return open_data(DataSettings(**settings), LocalGroup())


def image(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((9, 9, 3), value, np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path):
    for label, value in (("benign", 10), ("malign", 200)):
        for i in range(12):
            image(tmp_path / "scans" / label / f"{i}.png", value + i)
    return tmp_path / "scans"


def test_image_folders_are_split_by_class(folder):
    data = opened(source=str(folder), positive=("malign",), image_size=8)
    counts = [(p.samples, p.positives) for p in (data.train, data.validation, data.test)]
    assert counts == [(16, 8), (4, 2), (4, 2)]
    assert data.network() == ("convnet", {"in_channels": 3})
    assert (data.positive, data.negative) == (("malign",), ("benign",))
    assert data.shape == (3, 8, 8)


def test_classes_of_images_are_named_as_labels_of_tables_are(tmp_path):
    for label in ("False", "True"):
        for i in range(8):
            image(tmp_path / label / f"{i}.png", i)
    for positive in ((), ("True",)):
        data = opened(source=str(tmp_path), positive=positive, image_size=8)
        assert (data.positive, data.negative) == (("True",), ("False",))
    with pytest.raises(ValueError, match=r"positive='tru' is no value of .*did you mean 'true'"):
        opened(source=str(tmp_path), positive=("tru",), image_size=8)
    with pytest.raises(ValueError, match=r"names every value of .*the classes"):
        opened(source=str(tmp_path), positive=("True", "False"), image_size=8)


def test_train_and_test_folders_are_taken_as_they_are(folder, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    folder.rename(root / "train")
    image(root / "test" / "malign" / "0.png", 200)
    image(root / "test" / "benign" / "0.png", 10)
    data = opened(source=str(root), positive=("malign",), image_size=8)
    assert (data.test.samples, data.train.samples + data.validation.samples) == (2, 24)


def test_a_table_of_images(folder, tmp_path):
    rows = [f"{label}/{i}.png,{label}" for label in ("benign", "malign") for i in range(12)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,diagnosis", *rows]))
    data = opened(
        source=str(tmp_path / "labels.csv"), images=str(folder), file_column="path",
        target="diagnosis", positive=("malign",), image_size=8, channels=1,
    )  # fmt: skip
    assert data.shape == (1, 8, 8)
    assert data.train.positives == 8


def test_images_without_labels_can_be_scored(folder, tmp_path):
    flat = tmp_path / "new"
    flat.mkdir()
    for path in (folder / "benign").iterdir():
        path.rename(flat / path.name)
    settings = DataSettings(source=str(flat), positive=("malign",), image_size=8)
    part = open_whole(settings, LocalGroup(), None)
    assert (len(part.x), part.y) == (12, None)


@pytest.mark.parametrize("workers", [1, 3])
def test_images_in_memory_are_shared_out(workers):
    settings = DataSettings(source="fashion-tiny", positive=("6",), keep_negatives=0.5)

    def work(group):
        data = open_data(settings, group, seed=1)
        return data.train.rows, data.test.rows, data.train.counts, len(data.train.x)

    results = codauc.launch(work, workers=workers, simulate=True)
    train = torch.cat([rows for rows, *_ in results])
    assert len(train.unique()) == len(train) == sum(c.samples for c in results[0][2])
    assert sum(c.positives for c in results[0][2]) == 170
    assert len(train) == 170 + 765  # 0.5 of 1530
    assert sum(len(rows) for _, rows, *_ in results) == 500
    assert [size for *_, size in results] == [c.samples for c in results[0][2]]


def test_arrays_and_archives_are_told_apart(tmp_path):
    x, y = frame_of(80)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    np.savez(tmp_path / "both.npz", x=x, y=y)
    first = opened(source=str(tmp_path / "x.npy"), target=str(tmp_path / "y.npy"))
    second = opened(source=str(tmp_path / "both.npz"), target="y")
    inputs = [as_rows(part.x).gather(torch.arange(8)) for part in (first.train, second.train)]
    assert torch.equal(*inputs)
    assert torch.equal(first.test.rows, second.test.rows)
    images = np.random.default_rng(0).normal(size=(80, 2, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "images.npz", x=images, y=y)
    third = opened(source=str(tmp_path / "images.npz"), target="y")
    assert third.network() == ("convnet", {"in_channels": 2})


def test_a_folder_of_folders_of_parquet_files_is_a_table(tmp_path):
    x, y = frame_of(80)
    for part in range(2):
        (tmp_path / "all" / str(part)).mkdir(parents=True)
        rows = slice(40 * part, 40 * part + 40)
        table = pa.table({"a": x[rows, 0], "y": y[rows]})
        pq.write_table(table, tmp_path / "all" / str(part) / "a.parquet")
    data = opened(source=str(tmp_path / "all"), target="y")
    assert sum(part.samples for part in (data.train, data.validation, data.test)) == 80


def test_silos_stay_with_one_worker_in_every_part(tmp_path):
    rows = [f"{i},{'abc'[i % 3]},{int(i % 4 == 0)}" for i in range(240)]
    (tmp_path / "h.csv").write_text("\n".join(["x,hospital,y", *rows]))
    settings = DataSettings(source=str(tmp_path / "h.csv"), target="y", silo="hospital")

    def work(group):
        data = open_data(settings, group)
        parts = (data.train, data.validation, data.test)
        return [set((part.rows % 3).tolist()) for part in parts]

    homes = codauc.launch(work, workers=3, simulate=True)
    assert [home[0] for home in homes] == [{0}, {1}, {2}]
    assert all(home[0] == home[1] == home[2] for home in homes)


def test_without_any_split_negatives_are_still_thinned_and_shared_as_asked(tmp_path):
    rows = [f"{i},{'abc'[i % 3]},{int(i % 4 == 0)}" for i in range(240)]
    (tmp_path / "h.csv").write_text("\n".join(["x,hospital,y", *rows]))
    settings = DataSettings(
        source=str(tmp_path / "h.csv"), target="y", silo="hospital", keep_negatives=0.5,
        test_fraction=0.0, validation_fraction=0.0,
    )  # fmt: skip

    def work(group):
        data = open_data(settings, group)
        assert data.test is data.validation is None
        return data.train.counts, set((data.train.rows % 3).tolist())

    results = codauc.launch(work, workers=3, simulate=True)
    assert sum(count.samples for count in results[0][0]) == 60 + 90
    assert [home for _, home in results] == [{0}, {1}, {2}]


def test_a_shared_test_file_is_counted_once_where_workers_own_their_data(tmp_path):
    for rank in (0, 1):
        rows = [f"{i},{int(i % 4 == 0)}" for i in range(rank, 200 + rank)]
        (tmp_path / f"d{rank}.csv").write_text("\n".join(["x,y", *rows]))
    settings = DataSettings(
        source=str(tmp_path / "d{rank}.csv"), target="y", own=True, test=str(tmp_path / "d0.csv")
    )
    data = codauc.launch(lambda group: open_data(settings, group), workers=2, simulate=True)
    assert data[0].test.samples == 200
    assert data[0].train.samples + data[0].validation.samples == 400
