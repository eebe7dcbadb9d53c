"""Every column of a table has a record of how it was read."""

import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import torch

from codauc.data import read_table
from codauc.data.column_record import ColumnRecord, record_rows, summary_lines, to_json
from codauc.data.tables import Encoder
from codauc.data.tables.date_parts import PARTS, cycle
from codauc.metrics.calibration import Calibration
from codauc.models import TabularNet
from codauc.models.model_file import Saved
from codauc.models.onnx_export import export_onnx
from codauc.runs.directory import COLUMNS, RunFolder


def mixed(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "amount": np.where(rng.random(rows) < 0.25, np.nan, rng.normal(size=rows)),
            "member": rng.integers(0, 2, rows),
            "city": rng.choice(["Ulm", "Bonn"], rows),
            "seen": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 9e6, rows), "s"),
            "customer_id": rng.permutation(rows) + 10_000,
            "remark": [f"remark {i}" for i in range(rows)],
            "nothing": None,
            "gone": 1.0,
            "y": rng.integers(0, 2, rows),
        }
    )


@pytest.fixture
def records(tmp_path):
    mixed().to_csv(tmp_path / "a.csv", index=False)
    part = read_table(tmp_path / "a.csv", "y", drop=["gone"])
    return {record.name: record for record in part.columns}


def test_each_column_has_its_kind(records):
    assert {name: record.kind for name, record in records.items()} == {
        "amount": "number",
        "member": "flag",
        "city": "category",
        "seen": "date",
        "customer_id": "id",
        "remark": "text",
        "nothing": "empty",
        "gone": "dropped",
        "y": "target",
    }
    used = [name for name, record in records.items() if record.used]
    assert used == ["amount", "member", "seen", "city"]
    assert abs(records["amount"].missing - 0.25) < 0.08
    assert records["city"].levels == 2
    assert set(records["city"].examples) == {"Ulm", "Bonn"}
    assert records["seen"].parts == ("hour", "weekday", "month", "day of year")


def test_ids_texts_and_empty_columns_are_no_inputs_and_not_asked_for_later(tmp_path):
    data = mixed()
    part = read_table(data, "y")
    assert part.encoder.kinds().keys() == {"amount", "member", "city", "seen", "gone"}
    x = read_table(data, encoder=part.encoder).x
    torch.testing.assert_close(x, part.x, rtol=0, atol=2e-6)
    fewer = data.drop(columns=["customer_id", "remark", "nothing"])
    torch.testing.assert_close(read_table(fewer, encoder=part.encoder).x, x)


def test_the_records_go_through_the_run_s_directory(records, tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.columns() == []
    folder.write_json(COLUMNS, to_json(records.values()))
    assert folder.columns() == list(records.values())
    changed = {"columns": [asdict(records["y"]) | {"kind": "strange"}]}
    (tmp_path / COLUMNS).write_text(json.dumps(changed))
    with pytest.raises(ValueError, match=r"columns\.json: a record of a column that cannot"):
        folder.columns()


def test_a_few_lines_tell_of_many_columns():
    few = [ColumnRecord(f"c{i}", "number", True, 0.0, notes=("odd",)) for i in range(5000)]
    lines = summary_lines([*few, ColumnRecord("leak", "flag", True, 0.0, auc=1.0)])
    assert len(lines) <= 10
    assert lines[0] == "Columns: 5000 numbers, 1 flag."
    assert any(
        "'leak' alone gives AUC 1.0000" in line and "drop=['leak']" in line for line in lines
    )
    header, rows = record_rows(few)
    assert (len(rows), len(rows[0])) == (5000, len(header))


@pytest.mark.parametrize("part", PARTS)
def test_cycles_are_those_of_the_calendar(part):
    times = pd.date_range("1895-01-01", "2105-01-01", freq="1231h")
    micro = torch.tensor((times - pd.Timestamp("1970-01-01")) // pd.Timedelta("1us")).double()
    sine, cosine = cycle(micro, part).T.numpy()
    place = np.arctan2(sine, cosine) / (2 * np.pi) % 1
    march = times - pd.Timedelta(days=59)
    expected = {
        "hour": (times.hour + times.minute / 60) / 24,
        "weekday": times.day_of_week / 7,
        "month": (times.month - 1) / 12,
        "day of year": (march.day_of_year - 1) / 365.25,
    }[part]
    apart = np.abs((place - expected.to_numpy() + 0.5) % 1 - 0.5)
    assert apart.max() < (1.5 / 365 if part == "day of year" else 1e-9)


def test_only_cycles_that_vary_are_inputs():
    dates = pd.date_range("2024-01-01", periods=200, freq="7D")
    part = read_table(pd.DataFrame({"when": dates, "y": [0, 1] * 100}), "y")
    assert [each.part for each in part.encoder.parts] == ["month", "day of year"]
    once = pd.DataFrame(
        {"when": [pd.Timestamp("2024-01-01")] * 9, "n": range(9), "y": [0, 1, 1] * 3}
    )
    assert read_table(once, "y").encoder.parts == ()


def test_an_encoder_of_an_earlier_version_reads_as_it_did():
    plain = read_table(mixed(), "y").encoder.to_dict()
    plain.pop("parts")
    plain.pop("locale")
    encoder = Encoder.from_dict(json.loads(json.dumps(plain)))
    assert encoder.parts == ()
    x = read_table(mixed(), encoder=encoder).x
    assert x.shape[1] == encoder.inputs == len(encoder.names) == len(encoder.sources)


def test_an_onnx_file_makes_the_cycles_of_dates(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="codauc[onnx]")
    data = mixed()
    data.loc[::9, "seen"] = None
    part = read_table(data, "y")
    model = TabularNet(**part.encoder.network(), widths=(8,)).eval()
    path = export_onnx(Saved(model, part.encoder, Calibration(1.0, 0.0)), tmp_path / "m.onnx")
    numbers = [number.name for number in part.encoder.numbers]
    raw = data[numbers].copy()
    micro = (raw["seen"] - pd.Timestamp("1970-01-01")) / pd.Timedelta("1us")
    raw["seen"] = micro
    codes = [part.encoder.categories[0].codes(data["city"].tolist())]
    session = onnxruntime.InferenceSession(path)
    inputs = {
        "numbers": raw.to_numpy(np.float64),
        "categories": np.array(codes, np.int64).T,
    }
    expected = model(part.x).detach().numpy()
    np.testing.assert_allclose(session.run(["score"], inputs)[0], expected, atol=2e-5)
