"""Texts of frames that a person reads as dates or numbers are pointed at."""

import numpy as np
import pandas as pd
import pytest

import codauc
from codauc.data.column_record import ColumnRecord, texts_to_convert


@pytest.mark.parametrize(
    ("examples", "kind"),
    [
        (("2023-11-11 13:23:43", "2024-01-02"), "dates"),
        (("11.12.2023", "1.2.2024"), "dates"),
        (("$1,841.57", "(1,842)"), "numbers"),
        (("37.7%", "5%"), "numbers"),
        (("007", "012"), ""),
        (("Berlin", "2023-11-11"), ""),
        (("A-1", "B-2"), ""),
    ],
)
def test_what_texts_look_like(examples, kind):
    found = texts_to_convert([ColumnRecord("c", "category", True, examples=examples)])
    assert bool(found) == bool(kind)
    assert all(f"look like {kind}" in text for text in found)


def test_a_frame_with_dates_as_texts_gets_a_note(tmp_path):
    rng = np.random.default_rng(0)
    when = pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 10**7, 300), unit="s")
    frame = pd.DataFrame({"when": when.astype(str), "x": rng.normal(size=300)})
    frame["y"] = (rng.random(300) < 0.2).astype(int)
    summary = codauc.train(frame, tmp_path / "run", target="y", steps=5)
    assert any("'when' holds texts" in note for note in summary["notes"])
