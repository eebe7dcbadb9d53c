"""A model as an ONNX file scores as the model itself does, from raw values on."""

import json
import logging
import sys
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import codauc
from codauc.data import read_table
from codauc.data.tables.encoder import Category, Encoder, Number, Target
from codauc.metrics.calibration import Calibration
from codauc.models.model_file import Saved, load_model, save_model
from codauc.models.onnx_export import _TableInputs, export_onnx
from codauc.models.registry import build

pa = pytest.importorskip("pyarrow")
pytest.importorskip("onnxscript", reason="ONNX files are an extra")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX files are an extra")

NETWORKS = {
    "mlp": ({"inputs": 6, "widths": [8], "outputs": 3}, (6,)),
    "convnet": ({"in_channels": 2, "widths": [4, 8]}, (2, 9, 8)),
    "convnet with residual blocks": ({"widths": [4, 8], "residual": True}, (1, 9, 8)),
    "resnet20": ({}, (3, 16, 16)),
    "resnet18": ({"in_channels": 1}, (1, 32, 40)),
}
TARGET = Target("y", ("1",), ("0",))


def small():
    return Saved(build("mlp", inputs=2, widths=[]), None)


def run(path, **inputs):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(Path(path).read_bytes(), options)
    assert [value.name for value in session.get_inputs()] == list(inputs)
    assert [value.name for value in session.get_outputs()] == ["score", "probability"]
    return session.run(None, inputs)


def scores(saved, x):
    """The calibrated scores of torch."""
    with torch.no_grad():
        logits = saved.model.eval()(x).double().numpy()
    return saved.calibration.scale * logits + saved.calibration.shift


def check(found, expected):
    score, probability = found
    assert score.dtype == probability.dtype == np.float64
    assert score.shape == probability.shape == expected.shape
    np.testing.assert_allclose(score, expected, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(probability, 1 / (1 + np.exp(-score)), rtol=1e-12)


def shaken(model):
    """BatchNorm as after training, where it is not the identity."""
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -0.1, 0.1)
            nn.init.uniform_(part.running_var, 0.8, 1.2)
    return model.eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_images_and_vectors_score_in_onnx_as_in_torch(name, tmp_path):
    arguments, shape = NETWORKS[name]
    network = build(name.split()[0], **arguments)
    saved = Saved(shaken(network), None, Calibration(1.5, -2.0))
    path = export_onnx(saved, tmp_path / "net.onnx", shape=shape)
    for samples in (1, 7):
        x = torch.randn(samples, *shape)
        check(run(path, x=x.numpy()), scores(saved, x))


def encoder_of(numbers, categories):
    columns = [Number(f"n{i}", 3.0 * i, 1.0 + i, flagged=i == 1) for i in range(numbers)]
    texts = [Category(f"c{i}", tuple("abcdef"[: 2 + i])) for i in range(categories)]
    return Encoder(tuple(columns), tuple(texts), TARGET)


@pytest.mark.parametrize(
    ("numbers", "categories", "options"),
    [
        (3, 2, {"pieces": 3, "dropout": 0.2}),
        (1, 0, {}),
        (0, 1, {"widths": [], "outputs": 2}),
    ],
)
def test_tables_of_every_kind_score_in_onnx_as_in_torch(numbers, categories, options, tmp_path):
    encoder = encoder_of(numbers, categories)
    model = build("tabular", **encoder.network(), **options).eval()
    raw = {"numbers": np.random.default_rng(0).normal(2, 3, (7, numbers))}
    sizes = [category.size for category in encoder.categories]
    raw["categories"] = np.random.default_rng(1).integers(0, sizes, (7, categories))
    raw = {name: values for name, values in raw.items() if values.size}
    x = _TableInputs(encoder)(*map(torch.from_numpy, raw.values()))
    model.fit_pieces(x)
    saved = Saved(model, encoder)
    path = export_onnx(saved, tmp_path / "net.onnx")
    for rows in (1, 7):
        check(run(path, **{name: v[:rows] for name, v in raw.items()}), scores(saved, x[:rows]))


START = datetime(2024, 1, 1)


def days(*counts):
    return [None if count is None else START + timedelta(days=count) for count in counts]


def training_rows():
    count = 200
    draw = np.random.default_rng(0)
    amount = [None if i % 7 == 0 else float(v) for i, v in enumerate(draw.lognormal(3, 2, count))]
    return pa.table(
        {
            "amount": amount,
            "at": pa.array(days(*draw.uniform(0, 90, count)), pa.timestamp("us")),
            "visits": draw.integers(0, 9, count),
            "city": [None if i % 11 == 0 else "abc"[i % 3] for i in range(count)],
            "zone": draw.integers(1, 4, count),
            "fraud": draw.integers(0, 2, count),
        }
    )


def new_rows():
    """Missing values, also where there were none in training, and values that are new."""
    return pa.table(
        {
            "amount": [1.0, None, 1e6, -3.0, None, 20.0, 0.1],
            "at": pa.array(days(1.5, 20, None, 400, 0, None, 3.25), pa.timestamp("ms")),
            "visits": [3, None, 2, 100, 0, 5, None],
            "city": ["a", None, "elsewhere", "b", "c", "", "a"],
            "zone": [1, 2, 3, 99, None, 1, 2],
        }
    )


def raw_values(table, encoder):
    """What another program would give: numbers, and codes by the metadata's values."""
    at = [None if v is None else (v - datetime(1970, 1, 1)) // timedelta(microseconds=1)
          for v in table["at"].to_pylist()]  # fmt: skip
    columns = {**table.to_pydict(), "at": at}
    numbers = [np.array(columns[n.name], np.float64) for n in encoder.numbers]  # None becomes NaN
    texts = {c.name: [None if v is None else str(v) for v in columns[c.name]]
             for c in encoder.categories}  # fmt: skip
    codes = [np.array(c.codes(texts[c.name]), np.int64) for c in encoder.categories]
    return {"numbers": np.stack(numbers, 1), "categories": np.stack(codes, 1)}


@pytest.fixture(scope="module")
def table_model(tmp_path_factory):
    """A model of a table after a way through its file, and the path of its ONNX file."""
    folder = tmp_path_factory.mktemp("table")
    table = read_table(training_rows(), "fraud", categories=["zone"])
    torch.manual_seed(0)
    model = build("tabular", **table.encoder.network(), pieces=4)
    model.fit_pieces(table.x)
    save_model(folder / "net.safetensors", model, table.encoder, Calibration(2.0, -1.0))
    saved = load_model(folder / "net.safetensors")
    return saved, export_onnx(saved, folder / "net.onnx")


def test_raw_rows_are_encoded_as_read_table_does(table_model):
    saved, path = table_model
    assert [n.name for n in saved.encoder.numbers] == ["amount", "at", "visits"]
    assert [c.name for c in saved.encoder.categories] == ["city", "zone"]
    table = read_table(new_rows(), encoder=saved.encoder)
    raw = raw_values(new_rows(), saved.encoder)
    assert {0, 1} <= set(raw["categories"].ravel().tolist())  # unseen, and missing
    assert torch.equal(_TableInputs(saved.encoder)(*map(torch.from_numpy, raw.values())), table.x)
    expected = scores(saved, table.x)
    for rows in (slice(0, 7), slice(0, 1), slice(1, 2)):
        check(run(path, **{name: v[rows] for name, v in raw.items()}), expected[rows])


def test_codes_that_do_not_exist_count_as_unseen(table_model):
    saved, path = table_model
    numbers = np.zeros((5, 3))
    wrong = np.array([[0, 0], [-1, 0], [0, 5], [2**62, -(2**62)], [5, 5]])
    assert [c.size for c in saved.encoder.categories] == [5, 5]
    score, _ = run(path, numbers=numbers, categories=wrong)
    np.testing.assert_allclose(score, np.full(5, score[0]), rtol=1e-6)


def test_rows_that_read_table_refuses_score_nan_and_leave_others_alone(table_model):
    _, path = table_model
    numbers = np.zeros((4, 3))
    numbers[:3, 0] = np.inf, -np.inf, 1e60
    score, probability = run(path, numbers=numbers, categories=np.zeros((4, 2), np.int64))
    assert np.isnan(score[:3]).all()
    assert np.isnan(probability[:3]).all()
    assert np.isfinite(score[3])


def test_the_metadata_tell_how_to_encode(table_model):
    saved, path = table_model
    session = onnxruntime.InferenceSession(path.read_bytes())
    about = json.loads(session.get_modelmeta().custom_metadata_map["codauc"])
    plain = json.loads(json.dumps(saved.encoder.to_dict()))
    assert {key: about[key] for key in ("target", "numbers", "categories")} == {
        key: plain[key] for key in ("target", "numbers", "categories")
    }
    assert about["version"] == codauc.__version__
    assert about["codes"] == {"unseen": 0, "missing": 1, "first": 2}
    assert about["calibration"] == {"scale": 2.0, "shift": -1.0}


def test_the_file_says_nothing_about_the_machine(table_model):
    _, path = table_model
    content = path.read_bytes()
    for folder in (Path(codauc.__file__).parent, Path(torch.__file__).parent):
        assert str(folder).encode() not in content


def test_small_probabilities_are_exact(tmp_path):
    saved = Saved(small().model, None, Calibration(1e-3, -17.0))
    path = export_onnx(saved, tmp_path / "net.onnx", shape=(2,))
    check(run(path, x=np.ones((5, 2), np.float32)), scores(saved, torch.ones(5, 2)))


def test_an_array_of_images_needs_no_shape(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (8, 3, 8, 8)).astype(np.uint8)
    table = read_table(images, np.arange(8) % 2)
    saved = Saved(build("convnet", in_channels=3).eval(), table.encoder)
    path = export_onnx(saved, tmp_path / "net.onnx")
    check(run(path, x=table.x.numpy()), scores(saved, table.x))
    with pytest.raises(ValueError, match=r"shape=\(3, 9, 9\): expected \(3, 8, 8\)"):
        export_onnx(saved, path, shape=(3, 9, 9))


def test_the_model_stays_as_it_was_and_dropout_is_off(tmp_path):
    model = nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.5)).double()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    path = export_onnx(Saved(model, None), tmp_path / "net.onnx", shape=[2])
    assert model.training
    assert all(weight.requires_grad for weight in model.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    x = torch.randn(7, 2)
    check(run(path, x=x.numpy()), scores(Saved(model, None), x.double())[:, 0])


def test_the_exporter_is_quiet(tmp_path, capfd):
    before = logging.root.manager.disable
    export_onnx(small(), tmp_path / "net.onnx", shape=(2,))
    assert capfd.readouterr() == ("", "")
    assert logging.root.manager.disable == before


def test_a_file_is_replaced_as_a_whole_and_a_link_stays_one(tmp_path):
    target, link = tmp_path / "net.onnx", tmp_path / "link.onnx"
    target.write_bytes(b"old")
    link.symlink_to(target)
    with target.open("rb") as reader:
        assert export_onnx(small(), link, shape=(2,)) == link
        assert reader.read() == b"old"  # whoever was reading reads on
    assert link.is_symlink()
    run(target, x=np.zeros((1, 2), np.float32))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.onnx", "net.onnx"]


class Undecided(nn.Module):
    """Decides by what is in the data, which no graph can."""

    def forward(self, x):
        return x[:, 0] if float(x.sum()) > -1 else x[:, 1]


class Whole(nn.Module):
    def forward(self, x):
        return x.sum()


class Several(nn.Module):
    def forward(self, x):
        return x, x


def table_of(model, **options):
    return Saved(build(model, **options), encoder_of(2, 1))


BAD = {
    "no model of load_model": (nn.Linear(2, 1), (2,), "type Linear: expected what .*load_model"),
    "no shape": (small(), None, r"shape is missing: expected .*; give shape=\(channels, height"),
    "a negative side": (small(), (3, -1), "a side of shape=-1: expected an integer >= 1"),
    "a number": (small(), 3, r"shape=3: expected a sequence of integers; write \[3\]"),
    "an empty shape": (small(), (), r"shape=\(\): expected \(channels, height, width\)"),
    "another shape": (small(), (3,), r"inputs made from x \[N, 3\]: .* 2 numbers per sample"),
    "small images": (Saved(build("convnet"), None), (1, 4, 4), "H, W >= 8; use larger images"),
    "a shape for a table": (table_of("mlp", inputs=4), (4,), "expected none, since its encoder"),
    "another table": (
        table_of("tabular", numbers=9),
        None,
        r"numbers \[N, 2\], categories \[N, 1\]: .* 9 numbers then 0 category codes",
    ),
    "one score for all": (Saved(Whole(), None), (2,), r"gives \[\] for 2 samples: .* shape \[2\]"),
    "no scores": (Saved(Several(), None), (2,), "gives tuple for 2 samples"),
    "a decision": (Saved(Undecided(), None), (2,), "cannot be written as ONNX .*: expected a net"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_a_clear_error_and_leaves_the_file_alone(name, tmp_path, capfd):
    saved, shape, message = BAD[name]
    path = tmp_path / "net.onnx"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match=message):
        export_onnx(saved, path, shape=shape)
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]
    assert path.read_bytes() == b"old"
    assert capfd.readouterr() == ("", "")


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    folder = tmp_path / "net.onnx"
    folder.mkdir()
    for path in (folder, tmp_path / "missing" / "net.onnx"):
        with pytest.raises(OSError, match=r"was not written as .*; what was there is as it was"):
            export_onnx(small(), path, shape=(2,))
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("name", ["onnx", "onnxscript"])
def test_a_missing_package_is_an_error_that_says_how_to_get_it(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=rf"needs {name}, .*pip install 'codauc\[onnx\]'"):
        export_onnx(small(), tmp_path / "net.onnx", shape=(2,))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_model_whose_scores_are_no_numbers_is_refused(number, tmp_path):
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.bias.fill_(number)
    with pytest.raises(ValueError, match="bias has numbers that are not finite"):
        export_onnx(Saved(model, None), tmp_path / "m.onnx", shape=(2,))
    assert not (tmp_path / "m.onnx").exists()
    saved = Saved(nn.Linear(2, 1), None, Calibration(1e308, 0.0))
    with pytest.raises(ValueError, match="calibration has numbers that are not finite"):
        export_onnx(saved, tmp_path / "m.onnx", shape=(2,))
