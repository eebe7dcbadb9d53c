"""Bad files get an error that names the file, the column or the row; nothing is written."""

import json
import math
import random

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as as_bytes

import codauc
from codauc._internal.archive import checksum
from codauc.data import read_table
from codauc.metrics.calibration import Calibration

GOOD = pd.DataFrame({"age": [1.0, 2.0, 3.0, 4.0], "city": list("abab"), "y": [0, 1, 0, 1]})


def changed(**columns):
    return GOOD.assign(**columns)


def csv(data):
    return lambda folder: data.to_csv(folder / "a.csv", index=False)


def text(content, name="a.csv"):
    return lambda folder: (folder / name).write_bytes(content)


def parquet(data):
    """Written by Arrow, so that NaN stays NaN."""
    schema = {name: pa.array(column.tolist()) for name, column in data.items()}
    return lambda folder: pa.parquet.write_table(pa.table(schema), folder / "a.parquet")


def cut(write, name, keep):
    def both(folder):
        write(folder)
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * keep)])

    return both


def npy(x, y=(0, 1, 0, 1)):
    def both(folder):
        np.save(folder / "x.npy", x)
        np.save(folder / "y.npy", np.array(y))

    return both


NUMBERS = np.arange(8.0).reshape(4, 2)
FILES = {
    "missing target in CSV": (csv(GOOD), {"target": "Y2"}, r"a\.csv has no column 'Y2'"),
    "misspelt target": (csv(GOOD), {"target": "agee"}, r"did you mean 'age'\?"),
    "missing target in Parquet": (parquet(GOOD), {"target": "z"}, r"a\.parquet has no column 'z'"),
    "no target named": (csv(GOOD), {"target": None}, "target is missing"),
    "one class only": (
        csv(changed(y=1)),
        {},
        r"a\.csv, column 'y': got the value '1' \(4 times\) alone",
    ),
    "one class in Parquet": (parquet(changed(y=0)), {}, r"a\.parquet, column 'y'.*alone"),
    "three classes": (
        csv(changed(y=[0, 1, 2, 1])),
        {},
        r"'y': got 3 values, '1' \(2 times\).*positive=",
    ),
    "two texts": (csv(changed(y=list("abab"))), {}, r"'a' \(2 times\).*positive='a'"),
    "no such positive": (
        csv(GOOD),
        {"positive": 7},
        r"positive='7' is no value of .*a\.csv, column 'y'",
    ),
    "all positive": (csv(GOOD), {"positive": [0, 1]}, "names every value of .*column 'y'"),
    "a missing label": (
        csv(changed(y=[0, 1, None, 1])),
        {},
        r"a\.csv, column 'y', line 4: the label is missing in 1 of 4 rows",
    ),
    "a missing text label": (
        csv(changed(y=["n", "y", None, "y"])),
        {"positive": "y"},
        "'y', line 4: the label",
    ),
    "NaN label": (parquet(changed(y=[0.0, 1.0, 0.0, math.nan])), {}, "'y', row 3: the label"),
    "text among numbers": (
        text(b"age,y\n" + b"1,0\n2,1\n" * 10 + b"old,1\n"),
        {},
        r"a\.csv, column 'age', line 22: got the text 'old' among numbers",
    ),
    "text far down": (
        text(b"age,y\n" + b"1,0\n2,1\n" * 400_000 + b"old,1\n"),
        {},
        r"a\.csv, column 'age', line 800002: got the text 'old' among numbers",
    ),
    "NaN in Parquet": (
        parquet(changed(age=[1.0, math.nan, 3.0, 4.0])),
        {},
        r"a\.parquet, column 'age', row 1: got NaN",
    ),
    "infinity in CSV": (
        text(b"age,y\n1,0\ninf,1\n"),
        {},
        r"a\.csv, column 'age', line 3: got infinity",
    ),
    "infinity in Parquet": (
        parquet(changed(age=[1.0, 2.0, -math.inf, 4.0])),
        {},
        r"column 'age', row 2: got infinity",
    ),
    "zero rows in CSV": (csv(GOOD[:0]), {}, r"a\.csv has 0 rows"),
    "zero rows in Parquet": (parquet(GOOD[:0]), {}, r"a\.parquet has 0 rows"),
    "empty file": (text(b""), {}, r"a\.csv (has|cannot)"),
    "not a table": (text(bytes(range(256)) * 9), {}, r"a\.csv"),
    "ragged CSV": (text(b"age,y\n1,0\n2\n"), {}, r"a\.csv cannot be read as CSV: .*2 columns"),
    "two columns of one name": (text(b"age,age,y\n1,2,0\n"), {}, "two columns 'age'"),
    "truncated Parquet": (
        cut(parquet(GOOD), "a.parquet", 0.7),
        {},
        r"a\.parquet cannot be read as Parquet",
    ),
    "empty Parquet": (text(b"", "a.parquet"), {}, r"a\.parquet cannot be read as Parquet"),
    "CSV called Parquet": (text(b"age,y\n1,0\n", "a.parquet"), {}, "cannot be read as Parquet"),
    "list column": (
        parquet(changed(age=[[1], [2], [3], [4]])),
        {},
        r"a\.parquet, column 'age' holds list.*drop=\['age'\]",
    ),
    "unknown suffix": (text(b"", "a.xlsx"), {}, r"a\.xlsx: expected a name that ends in"),
    "truncated NPY": (cut(npy(NUMBERS), "x.npy", 0.6), {}, r"x\.npy cannot be read as NPY"),
    "NaN in NPY": (
        npy(np.where(NUMBERS == 5, np.nan, NUMBERS)),
        {},
        r"x\.npy, column '1', row 2: got NaN",
    ),
    "infinity in NPY": (
        npy(np.where(NUMBERS == 5, np.inf, NUMBERS)),
        {},
        "'1', row 2: got infinity",
    ),
    "objects in NPY": (npy(np.array([[None]] * 4)), {}, r"x\.npy cannot be read.*"),
    "too few labels": (
        npy(NUMBERS, (0, 1)),
        {},
        r"x\.npy has 4 rows and the labels the shape \[2\]",
    ),
    "one class in NPY": (npy(NUMBERS, (1, 1, 1, 1)), {}, r"x\.npy.*alone"),
    "zero rows in NPY": (npy(NUMBERS[:0], ()), {}, r"x\.npy has 0 rows"),
    "no such file": (lambda folder: None, {"path": "b.csv"}, r"b\.csv does not exist"),
    "no such drop": (csv(GOOD), {"drop": ["citi"]}, "no column 'citi': did you mean 'city'"),
    "nothing to learn from": (csv(GOOD), {"drop": ["age", "city"]}, "no columns beside"),
    "text for a list": (csv(GOOD), {"drop": "age"}, r"write \['age'\]"),
    "a list of masks": (
        lambda folder: None,
        {"path": np.ma.masked_less(NUMBERS, 3), "target": [0, 1, 0, 1]},
        "masked",
    ),
    "a name for an array": (lambda folder: None, {"path": NUMBERS}, "target='y' for an array"),
    "drop of an array": (
        npy(NUMBERS),
        {"drop": ["0"]},
        r"drop=\('0',\) with the array .*x\.npy: expected a table",
    ),
    "no features": (npy(NUMBERS[:, :0]), {}, r"x\.npy is an array of float64 and shape \[4, 0\]"),
    "long doubles": (npy(NUMBERS.astype(np.longdouble)), {}, r"x\.npy is an array of float128"),
    "complex labels": (npy(NUMBERS, (1j, 2, 3, 4)), {}, r"complex128"),
    "labels for a file": (csv(GOOD), {"target": [0, 1, 0, 1]}, "target of type list for .*a.csv"),
    "a column without a name": (
        lambda folder: GOOD.to_csv(folder / "a.csv"),
        {},
        r"a\.csv has a column without a name.*index=False",
    ),
    "a text in each row": (
        csv(pd.DataFrame({"name": [f"n{i}" for i in range(500)], "y": [0, 1] * 250})),
        {},
        r"no column is left to learn from: there are 1 of texts that hardly come twice.*'name'",
    ),
    "too large a number": (
        csv(changed(age=[1, 2, 1e200, 4])),
        {},
        "'age', line 4: got 1e.200, beyond",
    ),
    "a partitioned folder": (
        lambda folder: ((folder / "p=1").mkdir(), GOOD.to_parquet(folder / "p=1" / "b.parquet")),
        {},
        "stands for a column",
    ),
    "a late text among dates": (
        text(b"when,y\n" + b"2024-01-01,0\n2024-01-02,1\n" * 60_000 + b"soon,1\n"),
        {},
        r"a\.csv, column 'when', line 120002: got the text 'soon' among others",
    ),
    "a row of megabytes": (
        text(b"age,y\n1,0\n2,1\n" * 200_000 + b'"' + b"x" * 3_000_000),
        {},
        r"a\.csv has a row of more than 1 MB|cannot be read as CSV",
    ),
    "an unpacked promise": (text(b"age,y\n1,0\n", "a.csv.zst"), {"path": "a.csv.zst"}, "unpack it"),
    "no drop at all": (csv(GOOD), {"drop": None}, "drop=None: expected a list"),
    "a column of nothing": (
        csv(changed(age=None)[["age", "y"]]),
        {},
        r"no column is left to learn from: there are 1 of columns without a value.*'age'",
    ),
    "a bad cell among dates": (
        text(b"when,y\n" + b"2024-01-01,0\n2024-01-02,1\n" * 20 + b"soon,1\n"),
        {},
        r"a\.csv, column 'when', line 42: got the text 'soon' among others",
    ),
    "dates for a category": (
        lambda folder: GOOD.assign(age=pd.Timestamp("2024-01-01")).to_parquet(folder / "a.parquet"),
        {"categories": ["age"]},
        "column 'age' holds dates",
    ),
    "ids in a small table": (
        csv(pd.DataFrame({"id": [f"n{i}" for i in range(99)], "y": [0, 1, 0] * 33})),
        {},
        r"no column is left to learn from: there are 1 of texts that hardly come twice.*'id'",
    ),
    "two ways to share": (csv(GOOD), {"silo": "city", "skew": 0.5}, "at most one way"),
}


def existing(folder):
    names = ("a.csv", "a.parquet", "a.xlsx", "x.npy")
    return next((folder / name for name in names if (folder / name).exists()), folder)


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_named_and_nothing_is_written(name, tmp_path):
    write, options, message = FILES[name]
    write(tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    options = {"target": tmp_path / "y.npy" if "x.npy" in before else "y", **options}
    path = options.pop("path", existing(tmp_path))
    path = tmp_path / path if isinstance(path, str) else path
    with pytest.raises(ValueError, match=message):
        read_table(path, options.pop("target"), folder=tmp_path, memory=0, **options)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def damage(path, seed):
    """Flip some bytes, then read; what is refused is named."""
    data, rng = bytearray(path.read_bytes()), np.random.default_rng(seed)
    for at in rng.integers(0, len(data), 30):
        data[at] ^= int(rng.integers(1, 256))
    path.write_bytes(data)
    try:
        read_table(path, "y", nan="missing")
    except ValueError as error:
        assert path.name in str(error) or "column" in str(error)  # noqa: PT017


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_arrow_file_is_an_error_or_wrong_values_but_no_crash(seed, tmp_path):
    path = tmp_path / "a.arrow"
    long = pd.concat([GOOD] * 50, ignore_index=True)
    pa.feather.write_feather(long, path, compression=["uncompressed", "lz4"][seed % 2])
    damage(path, seed)


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_npz_is_named(seed, tmp_path):
    path = tmp_path / "a.npz"
    save = np.savez_compressed if seed % 2 else np.savez
    save(path, x=np.arange(4000.0).reshape(1000, 4), y=np.arange(1000) % 2)
    damage(path, seed)


def test_nan_can_be_taken_for_a_missing_value(tmp_path):
    parquet(changed(age=[1.0, math.nan, 3.0, 4.0]))(tmp_path)
    table = read_table(tmp_path / "a.parquet", "y", nan="missing")
    assert table.encoder.names == ["age", "age is missing", "city"]
    assert table.x[:, 1].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("kind", [csv, parquet])
def test_further_columns_at_predict_time_are_left_out_with_a_warning(kind, tmp_path):
    encoder = read_table(GOOD, "y").encoder
    kind(GOOD)(tmp_path)
    path = next(tmp_path.iterdir())
    plain = read_table(path, encoder=encoder).x
    kind(GOOD.assign(new=[["a"]] * 4 if kind is parquet else 1))(tmp_path)
    with pytest.warns(UserWarning, match="training did not have are ignored: 'new'"):
        assert (read_table(path, encoder=encoder).x == plain).all()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (GOOD.drop(columns="age"), r"lacks 'age': expected the columns of training"),
        (GOOD.rename(columns={"age": "Age"}), r"lacks 'age' and has also 'Age'"),
        (
            GOOD.assign(age=list("abcd")),
            r"'age'( is a category: expected a number|, line 2: got the)",
        ),
        (
            GOOD.assign(y=[0, 1, 2, 1]),
            r"column 'y': got the value '2', expected one of those in training, '1', '0'",
        ),
    ],
)
@pytest.mark.parametrize("kind", [csv, parquet])
def test_different_columns_at_predict_time_are_named(other, message, kind, tmp_path):
    encoder = read_table(GOOD, "y").encoder
    kind(other)(tmp_path)
    path = existing(tmp_path)
    with pytest.raises(ValueError, match=message) as caught:
        read_table(path, encoder=encoder)
    assert path.name in str(caught.value)


def test_numbers_in_the_place_of_texts_are_refused(tmp_path):
    """In a file that has types; in a CSV they may be texts of which none was seen before."""
    encoder = read_table(GOOD, "y").encoder
    parquet(GOOD.assign(city=1.0))(tmp_path)
    with pytest.raises(ValueError, match="column 'city' is a number: expected a category"):
        read_table(tmp_path / "a.parquet", encoder=encoder)


def test_other_images_at_predict_time_are_refused():
    encoder = read_table(np.zeros((4, 1, 5, 5)), np.array([0, 1, 0, 1])).encoder
    with pytest.raises(ValueError, match=r"images of \[6, 6\] pixels: expected \[5, 5\]"):
        read_table(np.zeros((4, 1, 6, 6)), encoder=encoder)


@pytest.mark.parametrize("simulate", [True, False])
def test_a_bad_row_of_one_worker_is_an_error_on_all(simulate, tmp_path):
    data = pd.DataFrame({"x": np.arange(40.0), "y": np.arange(40) % 2})
    data.loc[17, "x"] = math.inf
    data.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(Exception, match=r"a\.csv, column 'x', line 19: got infinity"):
        codauc.launch(Reading(tmp_path / "a.csv"), workers=2, simulate=simulate, timeout=60)


class Reading:
    """Reads in a worker; a class because it goes to other processes."""

    def __init__(self, path):
        self.path = path

    def __call__(self, group):
        return len(read_table(self.path, "y", group=group).rows)


def test_workers_with_different_columns_are_told(tmp_path):
    for i in range(2):
        GOOD.rename(columns={"age": f"age{i}"}).to_csv(tmp_path / f"{i}.csv", index=False)

    def work(group):
        return read_table(tmp_path / f"{group.rank}.csv", "y", group=group, own=True)

    with pytest.raises(ValueError, match=r"worker 0 and worker 1 differ in columns.*age0 and age1"):
        codauc.launch(work, workers=2, simulate=True)


def test_more_workers_than_rows_is_refused(tmp_path):
    csv(GOOD)(tmp_path)
    with pytest.raises(ValueError, match="worker"):
        codauc.launch(
            lambda g: read_table(tmp_path / "a.csv", "y", group=g), workers=5, simulate=True
        )


def test_a_model_file_that_is_damaged_or_foreign_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    codauc.save_model(path, codauc.models.MLP(inputs=2))
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    with pytest.raises(ValueError, match=r"m\.safetensors cannot be read as a saved model"):
        codauc.load_model(path)
    codauc.save_model(path, torch.nn.Linear(2, 1))
    with pytest.raises(ValueError, match="expected model="):
        codauc.load_model(path)
    assert codauc.load_model(path, torch.nn.Linear(2, 1)).encoder is None
    with pytest.raises(ValueError, match=r"weight of shape \[1, 2\] and .*: expected \[1, 3\]"):
        codauc.load_model(path, torch.nn.Linear(3, 1))


def test_a_model_that_cannot_be_saved_leaves_what_was_there(tmp_path):
    model = codauc.models.MLP(inputs=2)
    with pytest.raises(OSError, match=r"was not written as .*missing.*No such file"):
        codauc.save_model(tmp_path / "missing" / "m.safetensors", model)
    with pytest.raises(OSError, match="was not written"):
        codauc.save_model(tmp_path, model)
    codauc.save_model(tmp_path / "real.safetensors", model)
    (tmp_path / "link").symlink_to("real.safetensors")
    codauc.save_model(tmp_path / "link", model)
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real.safetensors"]


def tampered(path, change):
    """Change what a saved model says of itself, as one who knows of the checksum."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    about = json.loads(header["__metadata__"]["codauc"])
    metadata = header["__metadata__"]
    del about["sha256"]
    about = change(about)
    if isinstance(about, dict):
        about["sha256"] = checksum(json.dumps(about), from_bytes(data))
    metadata["codauc"] = json.dumps(about)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


def model_of(**model):
    return lambda about: {**about, "model": {**about["model"], **model}}


def encoder_of(**encoder):
    return lambda about: {**about, "encoder": {**about["encoder"], **encoder}}


NUMBER = {"name": "a", "mean": 0.0, "std": 1.0, "flagged": False}
CHANGES = {
    "an import path": (
        model_of(name="os:system", arguments={"command": "touch ran"}),
        "imports nothing",
    ),
    "a module": (model_of(name="subprocess:run"), "imports nothing"),
    "another network": (model_of(name="convnet", arguments={}), "lacks|has also"),
    "a giant": (
        model_of(arguments={"inputs": 2, "widths": [10**9, 10**9]}),
        "shape|cannot be built",
    ),
    "odd arguments": (model_of(arguments=[1, 2]), "cannot be built"),
    "unknown arguments": (model_of(arguments={"inputs": 2, "x": 1}), "cannot be built"),
    "no arguments": (lambda about: {**about, "model": {"name": "mlp"}}, "cannot be built"),
    "no model": (lambda about: {**about, "model": 5}, "expected model="),
    "nothing": (lambda about: None, "weights alone"),
    "odd encoder": (lambda about: {**about, "encoder": 5}, "encoder that cannot be read"),
    "odd mean": (encoder_of(numbers=[{**NUMBER, "mean": "x"}]), "mean='x'"),
    "zero std": (encoder_of(numbers=[{**NUMBER, "std": 0}]), "std=0"),
    "odd labels": (
        encoder_of(target={"name": "y", "positive": "1", "negative": ["0"]}),
        "positive='1'",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_model_file_is_refused_and_runs_nothing(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    change, message = CHANGES[name]
    encoder = read_table(GOOD, "y").encoder
    codauc.save_model("m.safetensors", codauc.models.MLP(inputs=2), encoder)
    tampered(tmp_path / "m.safetensors", change)
    with pytest.raises(ValueError, match=message) as caught:
        codauc.load_model("m.safetensors")
    assert "m.safetensors" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_float64_model_comes_back_as_one(tmp_path):
    codauc.save_model(tmp_path / "m.safetensors", codauc.models.MLP(inputs=2).double())
    model = codauc.load_model(tmp_path / "m.safetensors").model
    assert next(model.parameters()).dtype == torch.float64


def loaded(path):
    """The content of a saved model, to compare; or in how many lines it is refused."""
    try:
        model, encoder, calibration, _ = codauc.load_model(path)
    except ValueError as error:
        return str(error).count("\n") + 1 if str(path) in str(error) else str(error)
    weights = {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}
    return weights, model.arguments, encoder, calibration


def test_no_flipped_byte_and_no_cut_of_a_model_file_gives_another_model(tmp_path):
    path = tmp_path / "m.safetensors"
    encoder = read_table(GOOD, "y").encoder
    codauc.save_model(path, codauc.models.MLP(inputs=2, widths=[3]), encoder, Calibration(2.0, 0.5))
    data, whole = path.read_bytes(), loaded(path)
    assert isinstance(whole, tuple)
    chance = random.Random(0)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        assert loaded(path) in (1, whole), place
    for length in range(0, len(data), 5):
        path.write_bytes(data[:length])
        assert loaded(path) == 1


def test_a_model_file_without_a_checksum_is_refused_with_a_remedy(tmp_path):
    path = tmp_path / "m.safetensors"
    model = codauc.models.MLP(inputs=2)
    about = {"model": {"name": "mlp", "arguments": model.arguments}, "encoder": None}
    path.write_bytes(as_bytes(model.state_dict(), {"codauc": json.dumps(about)}))
    with pytest.raises(ValueError, match=r"has no checksum: .* codauc\.models\.load_pretrained"):
        codauc.load_model(path)
    codauc.models.load_pretrained(codauc.models.MLP(inputs=2), path)


def test_the_same_model_is_the_same_file(tmp_path):
    model = codauc.models.MLP(inputs=2)
    for name in "ab":
        codauc.save_model(tmp_path / name, model)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
