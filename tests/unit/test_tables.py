"""Claims about people's files: columns, the encoder, shares of workers, what is kept where."""

import gzip
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

import codauc
from codauc.data import Batches, Encoder, Rows, Split, read_table
from codauc.data.rows import as_rows
from codauc.data.splits import PARTS
from codauc.data.tables.column_roles import TableRequest
from codauc.data.tables.column_statistics import Moments
from codauc.data.tables.columnar_files import ParquetTable
from codauc.data.tables.csv_files import CSVTable
from codauc.data.tables.reader import read_parts
from codauc.models import TabularNet

CITIES = ["Bonn", "Köln", "Ulm", None]


def frame(rows=200, seed=0):
    """Numbers, some missing, a category, a date and labels that depend on them."""
    rng = np.random.default_rng(seed)
    age, city = rng.normal(50, 10, rows), rng.integers(0, 4, rows)
    return pd.DataFrame(
        {
            "age": np.where(rng.random(rows) < 0.2, np.nan, age),
            "visits": rng.integers(0, 9, rows),
            "city": [CITIES[i] for i in city],
            "when": pd.Timestamp("2024-03-01") + pd.to_timedelta(np.arange(rows), unit="min"),
            "ill": np.where(age + 9 * (city == 2) > 60, "yes", "no"),
        }
    )


def write(data, folder, suffix):
    path = folder / f"data{suffix}"
    if suffix == ".csv":
        data.to_csv(path, index=False)
    elif suffix == ".tsv":
        data.to_csv(path, index=False, sep="\t")
    elif suffix == ".csv.gz":
        with gzip.open(path, "wt", encoding="utf-8") as file:
            data.to_csv(file, index=False, sep=";")
    elif suffix == ".parquet":
        data.to_parquet(path, row_group_size=37)
    elif suffix == ".arrow":
        table = pa.Table.from_pandas(data, preserve_index=False)
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=37)
    elif suffix == ".feather":
        pa.feather.write_feather(data, path)
    return path


SUFFIXES = [".csv", ".tsv", ".csv.gz", ".parquet", ".arrow", ".feather"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_kind_of_file_gives_the_inputs_of_the_frame(suffix, tmp_path):
    data = frame()
    expected = read_table(data, "ill", positive="yes")
    table = read_table(write(data, tmp_path, suffix), "ill", positive="yes")
    torch.testing.assert_close(table.x, expected.x, rtol=0, atol=2e-6)
    assert torch.equal(table.y, expected.y)
    assert table.y.tolist() == (data["ill"] == "yes").tolist()
    cycles = ["when, hour (sin)", "when, hour (cos)"]
    assert table.encoder.names == ["age", "visits", "when", "age is missing", *cycles, "city"]
    assert table.rows.tolist() == list(range(200))


def test_a_folder_of_parquet_files_is_one_table(tmp_path):
    data = frame()
    for i, part in enumerate(np.array_split(np.arange(200), 3)):
        data.iloc[part].to_parquet(tmp_path / f"part-{i}.parquet")
    table = read_table(tmp_path, "ill", positive="yes")
    torch.testing.assert_close(table.x, read_table(data, "ill", positive="yes").x)


def test_numbers_are_standardised_as_scikit_learn_does():
    data = frame()
    table = read_table(data, "ill", positive="yes")
    numbers = data[["age", "visits"]].to_numpy(float)
    expected = np.nan_to_num(StandardScaler().fit_transform(numbers))
    np.testing.assert_allclose(table.x[:, :2], expected, atol=2e-6)
    flags = table.x[:, 3].numpy()
    assert (flags == data["age"].isna().to_numpy()).all()


def test_minutes_of_a_date_stay_apart():
    """In float32 alone all dates of an hour would be equal."""
    when = read_table(frame(), "ill", positive="yes").x[:, 2]
    steps = when.diff()
    assert steps.min() > 0
    torch.testing.assert_close(steps, steps.mean().expand(199), rtol=1e-3, atol=0)


@given(
    st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40),
    st.lists(st.integers(0, 40), max_size=5),
)
@settings(max_examples=80, deadline=None)
def test_moments_do_not_depend_on_how_rows_come(values, cuts):
    column = np.array(values)[:, None]
    moments = Moments(1)
    for part in np.split(column, sorted(min(cut, len(values)) for cut in cuts)):
        if len(part):
            moments.add(part)
    scale = np.abs(column).max() + 1e-100
    np.testing.assert_allclose(moments.mean / scale, column.mean() / scale, atol=1e-14)
    expected = column.var() * len(values)
    np.testing.assert_allclose(moments.squares / scale**2, expected / scale**2, atol=1e-13)


def test_a_constant_column_becomes_zero():
    table = read_table(np.full((5, 1), 0.1), np.array([0, 1, 0, 1, 1]))
    assert table.x.abs().max() == 0


def test_codes_are_unseen_missing_and_the_values_in_order():
    data = frame()
    data.loc[0, "city"] = "Lima"  # once: as good as unseen
    table = read_table(data, "ill", positive="yes")
    (category,) = table.encoder.categories
    assert category.values == ("Bonn", "Köln", "Ulm")
    known = {"Bonn": 2, "Köln": 3, "Ulm": 4, None: 1, "Lima": 0}
    cities = [None if pd.isna(city) else city for city in data["city"]]
    assert table.x[:, -1].tolist() == [known[city] for city in cities]


def test_a_number_column_can_be_taken_for_a_category(tmp_path):
    data = frame()
    for source in (data, write(data, tmp_path, ".csv")):
        table = read_table(source, "ill", positive="yes", categories=["visits"])
        visits = next(c for c in table.encoder.categories if c.name == "visits")
        assert visits.values == tuple("012345678")


def test_other_data_is_encoded_as_in_training():
    train, test = frame(), frame(50, seed=1)
    first = read_table(train, "ill", positive="yes")
    test.loc[3, "city"] = "Lima"
    second = read_table(test, encoder=first.encoder)
    both = read_table(pd.concat([test, train]), encoder=first.encoder)
    torch.testing.assert_close(second.x, both.x[:50])
    torch.testing.assert_close(both.x[50:], first.x)
    assert second.x[3, -1] == 0
    assert second.encoder == first.encoder
    assert second.y.tolist() == (test["ill"] == "yes").tolist()


def test_data_without_labels_can_be_encoded():
    train = frame()
    encoder = read_table(train, "ill", positive="yes").encoder
    table = read_table(train.drop(columns="ill"), encoder=encoder)
    assert table.y is None
    assert len(table.x) == 200


def test_columns_come_in_the_order_of_training():
    train = frame()
    first = read_table(train, "ill", positive="yes")
    again = read_table(train[train.columns[::-1]], encoder=first.encoder)
    torch.testing.assert_close(again.x, first.x, rtol=0, atol=2e-6)


def test_the_encoder_goes_through_json():
    encoder = read_table(frame(), "ill", positive="yes").encoder
    assert Encoder.from_dict(json.loads(json.dumps(encoder.to_dict()))) == encoder


@pytest.mark.parametrize(
    ("values", "positive", "expected"),
    [
        ([0, 1, 1], None, [False, True, True]),
        ([-1, 1, 1], None, [False, True, True]),
        ([True, False, True], None, [True, False, True]),
        (["no", "yes", "yes"], "yes", [False, True, True]),
        (["a", "b", "c"], ["a", "c"], [True, False, True]),
        ([1, 2, 3], 3, [False, False, True]),
        ([1, 2, 3], "3", [False, False, True]),
        ([1.5, 2.5, 2.5], 1.5, [True, False, False]),
        ([0, 1, 1], 0, [True, False, False]),
    ],
)
def test_the_positive_class_is_named_by_value(values, positive, expected):
    data = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": values})
    assert read_table(data, "y", positive=positive).y.tolist() == expected


def test_texts_true_and_false_of_a_csv_need_no_word(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,True\n2,False\n")
    assert read_table(tmp_path / "a.csv", "y").y.tolist() == [True, False]


def shares(source, workers, **options):
    """What each of some simulated workers read."""

    def work(group):
        return read_table(source, "ill", positive="yes", group=group, **options)

    return codauc.launch(work, workers=workers, simulate=True)


@pytest.mark.parametrize("workers", [1, 2, 3, 16])
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow"])
@pytest.mark.parametrize("large", [False, True])
def test_shares_are_even_disjoint_and_complete(workers, suffix, large, tmp_path, monkeypatch):
    if large:  # a worker then reads blocks of its own
        monkeypatch.setattr("codauc.data.tables.table_sources.LARGE", 0)
    path = write(frame(1000), tmp_path, suffix)
    parts = shares(path, workers, seed=3)
    whole = read_table(path, "ill", positive="yes")
    rows = torch.cat([part.rows for part in parts])
    assert sorted(rows.tolist()) == list(range(1000))
    sizes = [len(part.rows) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert [(len(p.y), int(p.y.sum())) for p in parts] == [tuple(c) for c in parts[0].counts]
    for part in parts:
        assert part.encoder == parts[0].encoder
        torch.testing.assert_close(part.x, whole.x[part.rows], rtol=0, atol=2e-6)
        assert torch.equal(part.y, whole.y[part.rows])
        assert part.pos_ratio == whole.pos_ratio


def test_the_seed_decides_who_gets_what(tmp_path):
    path = write(frame(), tmp_path, ".csv")
    first, again, other = (shares(path, 2, seed=seed)[0].rows for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_worker_reads_only_its_own_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr("codauc.data.tables.table_sources.LARGE", 0)
    path = write(frame(1000), tmp_path, ".parquet")
    read = []
    original = codauc.data.tables.columnar_files.ParquetTable.read

    def spy(self, columns, block=None):
        read.append(block)
        return original(self, columns, block)

    monkeypatch.setattr("codauc.data.tables.columnar_files.ParquetTable.read", spy)
    shares(path, 4)
    groups = -(-1000 // 37)
    assert len(read) <= groups + 3  # at most one row group is divided between two workers
    assert set(read) == set(range(groups))


def test_a_silo_is_never_divided(tmp_path):
    data = frame().fillna({"city": "Aachen"})
    parts = shares(write(data, tmp_path, ".parquet"), 4, silo="city")
    for part, city in zip(parts, ["Aachen", "Bonn", "Köln", "Ulm"], strict=True):
        assert set(data["city"][part.rows.numpy()]) == {city}
        assert part.encoder.names[:4] == ["age", "visits", "when", "age is missing"]
    assert sum(len(part.rows) for part in parts) == 200


def test_skewed_shares_are_disjoint_and_complete(tmp_path):
    parts = shares(write(frame(), tmp_path, ".csv"), 4, skew=0.3)
    assert sorted(torch.cat([part.rows for part in parts]).tolist()) == list(range(200))
    ratios = [part.y.float().mean().item() for part in parts]
    assert max(ratios) - min(ratios) > 0.1


def test_each_worker_can_have_a_file_of_its_own(tmp_path):
    paths = []
    for i in range(3):
        (tmp_path / str(i)).mkdir()
        paths.append(write(frame(100 + i, seed=i), tmp_path / str(i), ".csv"))

    def work(group):
        return read_table(paths[group.rank], "ill", positive="yes", group=group, own=True)

    parts = codauc.launch(work, workers=3, simulate=True)
    assert [len(part.rows) for part in parts] == [100, 101, 102]
    whole = read_table(pd.concat([frame(100 + i, seed=i) for i in range(3)]), "ill", positive="yes")
    torch.testing.assert_close(torch.cat([part.x for part in parts]), whole.x, rtol=0, atol=2e-6)


@pytest.mark.parametrize("workers", [1, 3])
def test_negatives_are_thinned_by_the_seed_whatever_the_number_of_workers(workers, tmp_path):
    path = write(frame(), tmp_path, ".parquet")
    alone = shares(path, 1, keep_negatives=0.4, seed=5)[0]
    parts = shares(path, workers, keep_negatives=0.4, seed=5)
    assert sorted(torch.cat([p.rows for p in parts]).tolist()) == alone.rows.tolist()
    positives = int((frame()["ill"] == "yes").sum())
    assert alone.counts[0] == (positives + round(0.4 * (200 - positives)), positives)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_rows_on_disk_give_the_batches_of_rows_in_memory(suffix, tmp_path):
    path = write(frame(), tmp_path, suffix)
    memory = read_table(path, "ill", positive="yes")
    disk = read_table(path, "ill", positive="yes", memory=0, folder=tmp_path)
    assert isinstance(disk.x, Rows)
    ours, theirs = (Batches(table.x, table.y, 32) for table in (memory, disk))
    for _ in range(10):
        (x, y), (z, w) = next(ours), next(theirs)
        assert torch.equal(x, z)
        assert torch.equal(y, w)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]  # nothing is left behind


def arrays(folder, rows=300):
    rng = np.random.default_rng(0)
    x = rng.normal(5, 3, (rows, 4)).astype(np.float32)
    y = (x[:, 0] > 8).astype(np.int64)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    np.savez(folder / "stored.npz", x=x, y=y)
    np.savez_compressed(folder / "small.npz", x=x, y=y)
    return x, y


@pytest.mark.parametrize("memory", [0, 1 << 20])
@pytest.mark.parametrize(
    ("name", "target"), [("x.npy", "{}/y.npy"), ("stored.npz", "y"), ("small.npz", "y")]
)
def test_arrays_are_standardised_where_they_are(name, target, memory, tmp_path):
    x, y = arrays(tmp_path)
    table = read_table(tmp_path / name, target.format(tmp_path), memory=memory)
    assert isinstance(table.x, Rows) == (memory == 0)
    inputs = table.x.gather(torch.arange(300)) if memory == 0 else table.x
    np.testing.assert_allclose(inputs, StandardScaler().fit_transform(x.astype(float)), atol=1e-5)
    assert table.y.tolist() == (y == 1).tolist()


def test_an_uncompressed_npz_is_mapped_and_not_read(tmp_path):
    arrays(tmp_path)
    table = read_table(tmp_path / "stored.npz", "y", memory=0)
    base = table.x.matrix
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("workers", [2, 3, 16])
def test_shares_of_an_array_are_disjoint_and_complete(workers, large, tmp_path, monkeypatch):
    if large:
        monkeypatch.setattr("codauc.data.tables.table_sources.LARGE", 0)
        monkeypatch.setattr("codauc.data.rows.BLOCK", 160)
    arrays(tmp_path)

    def work(group):
        return read_table(tmp_path / "x.npy", tmp_path / "y.npy", group=group, memory=0)

    parts = codauc.launch(work, workers=workers, simulate=True)
    whole = read_table(tmp_path / "x.npy", tmp_path / "y.npy")
    assert sorted(torch.cat([part.rows for part in parts]).tolist()) == list(range(300))
    assert max(len(p.rows) for p in parts) - min(len(p.rows) for p in parts) <= 1
    for part in parts:
        own = part.x.gather(torch.arange(len(part.rows)))
        torch.testing.assert_close(own, whole.x[part.rows], rtol=0, atol=2e-6)


def test_images_in_an_array_are_standardised_by_channel():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (20, 3, 5, 4), dtype=np.uint8)
    table = read_table(x, np.arange(20) % 2)
    assert table.x.shape == (20, 3, 5, 4)
    flat = table.x.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(flat.mean(1), torch.zeros(3, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(flat.var(1, correction=0), torch.ones(3, dtype=torch.float64))


def test_a_table_trains_and_a_saved_model_scores_new_rows(tmp_path):
    path = write(frame(1000), tmp_path, ".csv")

    def work(group):
        table = read_table(path, "ill", positive="yes", group=group)
        torch.manual_seed(0)
        model = TabularNet(**table.encoder.network(), widths=(16,))
        loss = codauc.MinMaxAUCLoss(pos_ratio=table.pos_ratio)
        opt = codauc.PPDSG(model, loss, lr=0.5, momentum=0.9)
        coda = codauc.CoDA(opt, group, settings={"columns": table.encoder.names})
        batches = Batches(table.x, table.y, 32, worker=group.rank)
        for x, y in coda.stage(codauc.Stage(lr=0.5, steps=60, sync_every=8), batches):
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
        return model, table.encoder

    model, encoder = codauc.launch(work, workers=2, simulate=True)[0]
    codauc.save_model(tmp_path / "ill.safetensors", model, encoder)
    loaded = codauc.load_model(tmp_path / "ill.safetensors")
    assert loaded.encoder == encoder
    test = read_table(frame(500, seed=9), encoder=loaded.encoder)
    assert torch.equal(codauc.predict(loaded.model, test.x), codauc.predict(model, test.x))
    assert codauc.evaluate(loaded.model, test.x, test.y).value > 0.85


@pytest.mark.parametrize("form", [np.asarray, np.ndarray.tolist, torch.from_numpy])
def test_features_and_labels_as_scikit_learn_has_them(form):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)), rng.integers(0, 2, 30)
    expected = read_table(x, y)
    assert torch.equal(read_table(form(x), form(y)).x, expected.x)
    frame, series = pd.DataFrame(x, columns=list("abc")), pd.Series(y, name="ill")
    table = read_table(frame, series)
    torch.testing.assert_close(table.x, expected.x)
    assert torch.equal(table.y, expected.y)
    assert table.encoder.target.name == "ill"
    again = read_table(frame, encoder=table.encoder)
    torch.testing.assert_close(again.x, table.x, rtol=0, atol=2e-6)


def test_progress_is_told_how_many_rows_were_read(tmp_path):
    for source, target in (
        (write(frame(), tmp_path, ".parquet"), "ill"),
        (np.eye(200), np.arange(200) % 2),
    ):
        told = []
        read_table(
            source,
            target,
            positive="yes" if isinstance(target, str) else None,
            progress=told.append,
        )
        assert told == sorted(told)
        assert told[-1] == 200


def test_a_full_disk_is_told_with_what_to_do(tmp_path):
    path = write(frame(), tmp_path, ".csv")
    with pytest.raises(OSError, match=r"cannot be kept in .*TMPDIR"):
        read_table(path, "ill", positive="yes", memory=0, folder=tmp_path / "missing")


def test_numbers_taken_for_texts_are_so_ever_after(tmp_path):
    """Also where they are floats since some are missing, and in a CSV."""
    data = frame()
    first = read_table(data, "ill", positive="yes", categories=["visits"])
    later = data.assign(visits=data["visits"].astype(float))
    for source in (data, later, write(data, tmp_path, ".csv"), write(later, tmp_path, ".parquet")):
        x = read_table(source, encoder=first.encoder).x
        torch.testing.assert_close(x, first.x, rtol=0, atol=2e-6)


def test_what_a_column_is_in_a_csv_was_settled_in_training(tmp_path):
    train = pd.DataFrame({"zip": ["1", "2", "x"] * 9, "age": range(27), "y": [0, 1, 0] * 9})
    encoder = read_table(train, "y").encoder
    path = tmp_path / "new.csv"
    path.write_text("zip,age\n1,5\n2,\n,\n")  # only numbers, and a last row of nothing
    assert read_table(path, encoder=encoder).x[:, -1].tolist() == [2, 3, 1]
    path.write_text("zip,age\n1,five\n2,six\n")
    with pytest.raises(ValueError, match="column 'age', line 2: got the text 'five' among numbers"):
        read_table(path, encoder=encoder)


def test_a_column_of_nothing_fits_any_kind():
    train = frame()
    encoder = read_table(train, "ill", positive="yes").encoder
    table = pa.Table.from_pandas(train.drop(columns=["city", "age"]), preserve_index=False)
    empty = table.append_column("city", pa.nulls(200)).append_column("age", pa.nulls(200))
    x = read_table(empty, encoder=encoder).x
    assert (x[:, -1] == 1).all()
    assert (x[:, 0] == 0).all()
    assert (x[:, 3] == 1).all()


def test_a_row_s_inputs_do_not_depend_on_the_other_rows():
    data = pd.DataFrame({"a": np.random.default_rng(0).normal(size=1000), "y": np.arange(1000) % 2})
    encoder = read_table(data, "y").encoder
    alone = read_table(pd.DataFrame({"a": [0.0, 1.0, -1.0]}), encoder=encoder).x
    beside = read_table(pd.DataFrame({"a": [0.0, 1.0, -1.0, 1e12]}), encoder=encoder).x
    assert torch.equal(beside[:3], alone)


def test_an_outlier_in_training_does_not_blur_the_others():
    values = np.random.default_rng(0).lognormal(3, 1, 1000)
    for outlier in (1e9, 1e30):
        values[0] = outlier
        x = read_table(pd.DataFrame({"a": values, "y": np.arange(1000) % 2}), "y").x.flatten()
        expected = (values - values.mean()) / values.std()
        np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-100, 1e-46, 1e-39, 1e39, 1e100])
def test_numbers_of_any_size_are_standardised(scale):
    values = np.random.default_rng(0).normal(size=50)
    y = np.arange(50) % 2
    for x in (
        read_table(pd.DataFrame({"a": values * scale, "y": y}), "y").x,
        read_table((values * scale)[:, None], y).x,
    ):
        np.testing.assert_allclose(x.flatten(), (values - values.mean()) / values.std(), atol=1e-5)


def test_a_date_that_is_missing_at_first_keeps_its_minutes(monkeypatch):
    monkeypatch.setattr("codauc.data.tables.columnar_files._CELLS", 1)  # batches of 1024 rows
    when = pd.Timestamp("2024-03-01") + pd.to_timedelta(np.arange(2000), unit="s")
    data = pd.DataFrame({"when": [*[pd.NaT] * 1500, *when], "y": np.arange(3500) % 2})
    assert len(read_table(data, "y").x[1500:, 0].unique()) == 2000


@pytest.mark.parametrize(
    "text",
    [
        "2024-03-01T{:02d}:00:00Z",
        "2024-03-01T{:02d}:00:00+02:00",
        "2024-03-01 {:02d}:00:00.123456789",
    ],
)
def test_times_of_a_csv_are_numbers(text, tmp_path):
    lines = "".join(f"{text.format(i % 24)},{i % 2}\n" for i in range(48))
    (tmp_path / "a.csv").write_text("when,y\n" + lines)
    table = read_table(tmp_path / "a.csv", "y")
    assert table.encoder.numbers[0].time
    assert len(table.x[:, 0].unique()) == 24


def test_truth_in_a_csv_is_a_number_as_in_parquet(tmp_path):
    data = pd.DataFrame({"flag": [True, False] * 20, "y": np.arange(40) % 2})
    data["y"] = data["y"].sample(frac=1, random_state=0).to_numpy()
    expected = read_table(data, "y")
    table = read_table(write(data, tmp_path, ".csv"), encoder=expected.encoder)
    torch.testing.assert_close(table.x, expected.x)


def test_labels_are_the_same_in_every_kind_of_file(tmp_path):
    for values, positive in (
        ([True, False], None),
        (["01", "1"], "01"),
        ([1, 2], 2),
        ([1.0, 2.0], 2),
    ):
        data = pd.DataFrame({"a": np.arange(40.0), "y": values * 20})
        encoder = read_table(data, "y", positive=positive).encoder
        expected = [value == (True if positive is None else positive) for value in values * 20]
        for suffix in (".parquet", ".csv", ".feather"):
            if values == ["01", "1"] and suffix == ".csv":
                continue  # there they are the number 1
            path = write(data, tmp_path, suffix)
            assert read_table(path, encoder=encoder).y.tolist() == expected


def test_a_label_never_seen_is_refused_unless_positive_is_said():
    data = pd.DataFrame({"a": np.arange(30.0), "c": [0, 1, 2] * 10})
    encoder = read_table(data, "c", positive=2).encoder
    other = data.assign(c=[0, 1, 7] * 10)
    with pytest.raises(ValueError, match=r"got the value '7'.*say positive="):
        read_table(other, encoder=encoder)
    assert read_table(other, encoder=encoder, positive=[1]).y.tolist() == [False, True, False] * 10


def test_new_arrays_are_not_given_the_labels_of_training(tmp_path):
    arrays(tmp_path)
    for name, target in (("x.npy", tmp_path / "y.npy"), ("stored.npz", "y")):
        encoder = read_table(tmp_path / name, target).encoder
        np.save(tmp_path / "new.npy", np.load(tmp_path / "x.npy")[:50])
        assert read_table(tmp_path / "new.npy", encoder=encoder).y is None
    assert read_table(tmp_path / "stored.npz", encoder=encoder).y is not None


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (lambda rank: {"seed": rank}, "seed"),
        (lambda rank: {"positive": ["yes", "no"][rank]}, "positive"),
        (lambda rank: {"keep_negatives": [0.5, 0.6][rank]}, "keep_negatives"),
        (lambda rank: {"drop": [["age"], ["age"]][rank], "nan": ["error", "missing"][rank]}, "nan"),
    ],
)
def test_workers_that_read_in_different_ways_are_told(options, named, tmp_path):
    path = write(frame(), tmp_path, ".csv")

    def work(group):
        return read_table(path, "ill", **{"positive": "yes", "group": group, **options(group.rank)})

    with pytest.raises(ValueError, match=f"worker 0 and worker 1 differ in {named}"):
        codauc.launch(work, workers=2, simulate=True)


def test_workers_with_different_files_must_say_so(tmp_path):
    for i in range(2):
        (tmp_path / str(i)).mkdir()
        write(frame(100 + i), tmp_path / str(i), ".parquet")

    def work(group):
        path = tmp_path / str(group.rank) / "data.parquet"
        return read_table(path, "ill", positive="yes", group=group)

    with pytest.raises(ValueError, match="differ in data"):
        codauc.launch(work, workers=2, simulate=True)


def test_a_worker_without_labels_does_not_disturb_the_others():
    data = frame()
    encoder = read_table(data, "ill", positive="yes").encoder

    def work(group):
        own = data if group.rank else data.drop(columns="ill")
        table = read_table(own, encoder=encoder, group=group, own=True)
        return table.y is None, table.counts

    assert codauc.launch(work, workers=2, simulate=True) == [(True, []), (False, [])]


def test_a_silo_without_negatives_keeps_its_rows():
    data = frame()

    def work(group):
        own = data[data["ill"] == "yes"] if group.rank else data
        return read_table(own, "ill", positive="yes", group=group, own=True, keep_negatives=0.5)

    _, positives = codauc.launch(work, workers=2, simulate=True)
    assert len(positives.y) == int((data["ill"] == "yes").sum())


def test_the_index_of_a_saved_frame_is_no_column(tmp_path):
    data = frame().sample(frac=1, random_state=0)
    data.to_parquet(tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet", "ill", positive="yes")
    cycles = ["when, hour (sin)", "when, hour (cos)"]
    assert table.encoder.names == ["age", "visits", "when", "age is missing", *cycles, "city"]


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i2", "f2", "u1", "?"])
def test_arrays_of_any_number_type_are_read(dtype, tmp_path):
    x = (np.arange(40).reshape(20, 2) % 7).astype(dtype)
    np.save(tmp_path / "x.npy", np.asfortranarray(x))
    expected = read_table(x.astype(float), np.arange(20) % 2).x
    for memory in (0, 1 << 20):
        table = read_table(tmp_path / "x.npy", np.arange(20) % 2, memory=memory)
        inputs = table.x if memory else table.x.gather(torch.arange(20))
        torch.testing.assert_close(inputs, expected, rtol=0, atol=1e-6)


def test_a_nested_folder_of_parquet_files_is_read_whole(tmp_path):
    data = frame()
    (tmp_path / "later").mkdir()
    data[:100].to_parquet(tmp_path / "a.parquet")
    data[100:].to_parquet(tmp_path / "later" / "b.pq")
    assert len(read_table(tmp_path, "ill", positive="yes").rows) == 200


@pytest.mark.parametrize("value", [0.1, 1.7e18, 1700000000123456789, 1e140, -5e-200])
@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_a_constant_of_any_size_becomes_zero(value, memory):
    data = pd.DataFrame({"k": np.full(30_011, value), "b": np.arange(30_011.0), "y": 0})
    data.loc[::2, "y"] = 1
    for source, target in ((data, "y"), (data[["k", "b"]].to_numpy(float), data["y"].to_numpy())):
        x = read_table(source, target, memory=memory).x
        x = x if isinstance(x, torch.Tensor) else x.gather(torch.arange(30_011))
        assert x[:, 0].abs().max() < 1e-3


def test_what_hardly_varies_stays_small():
    values = 1.7e18 + np.random.default_rng(0).integers(0, 10**6, 1000)
    x = read_table(pd.DataFrame({"a": values, "y": np.arange(1000) % 2}), "y").x
    assert x.abs().max() < 10


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_values_of_other_sizes_may_come_late(memory, monkeypatch):
    """The first batch is of p-values near 1e-55, the next of ordinary ones."""
    monkeypatch.setattr("codauc.data.tables.columnar_files._CELLS", 1)
    rng = np.random.default_rng(0)
    values = np.r_[10.0 ** -np.linspace(60, 50, 2000), rng.random(3000), 1e149]
    data = pd.DataFrame(
        {"a": values[:-1], "b": np.r_[values[1:-1], 1e149], "y": np.arange(5000) % 2}
    )
    x = read_table(data, "y", memory=memory).x
    x = x if isinstance(x, torch.Tensor) else x.gather(torch.arange(5000))
    expected = (data["a"] - data["a"].mean()) / data["a"].std(ddof=0)
    np.testing.assert_allclose(x[:, 0], expected, atol=1e-5)
    assert x.isfinite().all()
    assert x[-1, 1] == pytest.approx(5000**0.5, rel=1e-3)


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_a_value_beyond_all_of_training_is_refused_with_its_place(memory):
    encoder = read_table(frame(), "ill", positive="yes").encoder
    data = frame(50, seed=1)
    data.loc[7, "age"] = 1e60
    with pytest.raises(ValueError, match=r"column 'age', row 7: got 1e.60, too far"):
        read_table(data, encoder=encoder, memory=memory)


def test_labels_of_a_csv_are_texts_on_every_worker(tmp_path):
    """One worker's labels look like numbers, the other's do not."""
    (tmp_path / "0.csv").write_text("a,y\n" + "1,250.10\n2,V27\n" * 20)
    (tmp_path / "1.csv").write_text("a,y\n" + "3,250.10\n4,401.10\n" * 20)

    def work(group):
        path = tmp_path / f"{group.rank}.csv"
        return read_table(path, "y", positive="250.10", own=True, group=group)

    for table in codauc.launch(work, workers=2, simulate=True):
        assert table.counts == [(40, 20), (40, 20)]
        assert table.y.tolist() == [True, False] * 20
        assert table.encoder.target.negative == ("401.10", "V27")


@pytest.mark.parametrize(
    "columns",
    [
        ({"a": ["2024-01-01", "2024-01-02"]}, {"a": [1, 2]}),
        ({"a": [1, 2], "u": [0, 1]}, {"a": [1, 2], "v": [0, 1]}),
    ],
)
def test_workers_whose_columns_mean_other_things_are_told(columns, tmp_path):
    for rank, data in enumerate(columns):
        table = pd.DataFrame({**data, "y": [0, 1]})
        pd.concat([table] * 20).to_csv(tmp_path / f"{rank}.csv", index=False)

    def work(group):
        return read_table(tmp_path / f"{group.rank}.csv", "y", own=True, group=group)

    with pytest.raises(ValueError, match="worker 0 and worker 1 differ in columns"):
        codauc.launch(work, workers=2, simulate=True)


def test_numbers_taken_for_texts_stay_apart(tmp_path):
    values = [9007199254740993, 9007199254740992, 7, 7]
    data = pd.DataFrame({"id": values * 30, "y": [0, 1, 0, 1] * 30})
    for source in (data, write(data, tmp_path, ".csv"), write(data, tmp_path, ".parquet")):
        (category,) = read_table(source, "y", categories=["id"]).encoder.categories
        assert category.values == ("7", "9007199254740992", "9007199254740993")


def test_nan_in_a_numeric_category_is_no_text(tmp_path):
    table = pa.table({"id": [float("nan"), 1.0, 2.0, 1.0] * 30, "y": [0, 1, 0, 1] * 30})
    with pytest.raises(ValueError, match="column 'id', row 0: got NaN"):
        read_table(table, "y", categories=["id"])
    (category,) = read_table(table, "y", categories=["id"], nan="missing").encoder.categories
    assert category.values == ("1", "2")


def test_a_row_of_nothing_can_be_scored(tmp_path):
    """As a frame, where pandas makes it numbers, and as a CSV, where it is nothing at all."""
    encoder = read_table(frame(), "ill", positive="yes").encoder
    empty = pd.DataFrame({"age": [np.nan], "visits": [3], "city": [np.nan], "when": [pd.NaT]})
    first = read_table(empty, encoder=encoder).x
    path = write(empty, tmp_path, ".csv")
    torch.testing.assert_close(read_table(path, encoder=encoder).x, first)
    assert first[0, -1] == 1
    assert first[0, 3] == 1


def test_a_dictionary_that_fills_its_type_is_read():
    texts = [f"t{i}" for i in range(128)]
    indices = pa.array(np.arange(128, dtype=np.int8).repeat(6))
    column = pa.DictionaryArray.from_arrays(indices, pa.array(texts))
    table = pa.table({"t": column, "y": np.arange(768) % 2})
    (category,) = read_table(table, "y").encoder.categories
    assert len(category.values) == 128


def test_labels_keep_their_digits():
    y = [2**60, 2**60 + 1] * 20
    table = read_table(pd.DataFrame({"a": range(40), "y": y}), "y", positive=2**60)
    assert table.y.tolist() == [True, False] * 20
    short = pa.table({"a": range(40), "y": pa.array([0.1, 0.2] * 20, pa.float32())})
    assert read_table(short, "y", positive=0.1).y.tolist() == [True, False] * 20


def test_an_empty_line_of_a_single_column_is_a_row(tmp_path):
    encoder = read_table(pd.DataFrame({"a": [1.0, None] * 20, "y": [0, 1] * 20}), "y").encoder
    (tmp_path / "new.csv").write_text("a\n1\n\n3\n")
    assert len(read_table(tmp_path / "new.csv", encoder=encoder).x) == 3


@pytest.fixture
def passes(monkeypatch):
    """The columns of each pass over a CSV or Parquet file, in order."""
    found = []
    for kind in (CSVTable, ParquetTable):
        read = kind.read

        def counted(table, columns, block=None, read=read):
            if not block:
                found.append(sorted(columns))
            return read(table, columns, block)

        monkeypatch.setattr(kind, "read", counted)
    return found


SPLIT = Split(test=0.2, validation=0.1, seed=3)


def all_parts(path, workers=1, **options):
    request = TableRequest(target="ill", positive="yes", split=SPLIT, **options)
    return codauc.launch(
        lambda group: read_parts(path, request, PARTS, group), workers=workers, simulate=True
    )


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_csv_is_read_once_for_all_parts_and_all_workers_of_a_process(
    suffix, workers, tmp_path, passes
):
    path = write(frame(), tmp_path, suffix)
    all_parts(path, workers)
    assert passes == [sorted(frame().columns)]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_that_does_not_fit_is_read_twice(suffix, tmp_path, passes):
    all_parts(write(frame(), tmp_path, suffix), memory=1000)
    assert passes == [["ill"], sorted(frame().columns)]


def test_a_zipped_file_that_turns_out_too_large_is_kept_on_disk(tmp_path, passes):
    path = write(frame(2000), tmp_path, ".csv.gz")
    all_parts(path, memory=path.stat().st_size + 1000)
    assert passes == [sorted(frame().columns)]


def test_a_csv_that_was_changed_is_read_again(tmp_path, passes):
    path = write(frame(), tmp_path, ".csv")
    first = all_parts(path)[0]["train"]
    write(frame(seed=1), tmp_path, ".csv")
    assert not torch.equal(all_parts(path)[0]["train"].x, first.x)
    assert len(passes) == 2


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".arrow"])
@pytest.mark.parametrize("memory", [0, 3000, 2**28])
@pytest.mark.parametrize("workers", [1, 3])
def test_parts_read_together_equal_parts_read_alone(suffix, memory, workers, tmp_path):
    path = write(frame(), tmp_path, suffix)
    found = all_parts(path, workers, memory=memory)
    encoder = found[0]["train"].encoder
    for part in PARTS:
        known = None if part == "train" else encoder
        alone = shares(path, workers, split=SPLIT, part=part, encoder=known, memory=memory)
        for mine, other in zip((parts[part] for parts in found), alone, strict=True):
            every = torch.arange(len(mine.rows))
            assert torch.equal(as_rows(mine.x).gather(every), as_rows(other.x).gather(every))
            assert torch.equal(mine.y, other.y)
            assert torch.equal(mine.rows, other.rows)
            assert mine.encoder == other.encoder
            assert (mine.counts, mine.fingerprint) == (other.counts, other.fingerprint)


@pytest.mark.parametrize("suffix", [".NPY", ".Npz"])
def test_suffixes_of_arrays_may_be_in_capitals(suffix, tmp_path):
    x = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    path, labels = tmp_path / f"x{suffix}", [0, 1, 1]
    with path.open("wb") as file:
        np.savez(file, X=x, y=labels) if suffix == ".Npz" else np.save(file, x)
    found = read_table(path, "y") if suffix == ".Npz" else read_table(path, np.array(labels))
    assert (found.samples, found.positives) == (3, 2)
