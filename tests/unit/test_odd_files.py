"""Files as people have them: read rightly, or refused with one message that says what to do."""

import gzip
import re

import numpy as np
import pandas as pd
import pytest
import torch

from codauc.data import read_table

ROWS = 240


def plain(rows=ROWS, seed=0):
    """Amounts, shares, dates and a city; the label depends on them."""
    rng = np.random.default_rng(seed)
    when = pd.Timestamp("2023-01-15") + pd.to_timedelta(rng.integers(0, 500 * 86400, rows), "s")
    amount = rng.normal(1500, 900, rows).round(2)
    return pd.DataFrame(
        {
            "amount": amount,
            "share": rng.integers(0, 101, rows),
            "when": when,
            "city": rng.choice(["Köln", "Ulm", "Aix"], rows),
            "y": ((amount > 1800) ^ (rng.random(rows) < 0.1)).astype(int),
        }
    )


def german(number, places=2):
    return f"{number:,.{places}f}".translate(str.maketrans(",.", ".,"))


def written(data, amount=str, share=str, when="%Y-%m-%d %H:%M:%S"):
    """The table as texts, in the ways of writing that are given."""
    return pd.DataFrame(
        {
            "amount": data["amount"].map(amount),
            "share": data["share"].map(share),
            "when": data["when"].dt.strftime(when),
            "city": data["city"],
            "y": data["y"].astype(str),
        }
    )


def save(data, path, sep=",", encoding="utf-8", head="", **how):
    text = head + data.to_csv(index=False, sep=sep, **how)
    content = text.encode(encoding)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


WAYS = {
    "german": ({"amount": german, "when": "%d.%m.%Y %H:%M:%S"}, {"sep": ";"}),
    "french": (
        {"amount": lambda v: german(v).replace(".", "\u202f"), "when": "%d/%m/%Y %H:%M:%S"},
        {"sep": ";"},
    ),
    "swiss": ({"amount": lambda v: f"{v:,.2f}".replace(",", "\u2019")}, {}),
    "dollars and per cent": ({"amount": "${:,.2f}".format, "share": "{}%".format}, {}),
    "euros behind": ({"amount": lambda v: german(v) + " €"}, {"sep": ";"}),
    "negatives in brackets": (
        {"amount": lambda v: f"({-v:,.2f})" if v < 0 else f"{v:,.2f}"},
        {},
    ),
    "american dates": ({"when": "%m/%d/%Y %I:%M:%S %p"}, {}),
    "years first with slashes": ({"when": "%Y/%m/%d %H:%M:%S"}, {}),
    "excel": ({"amount": german, "when": "%d.%m.%Y %H:%M:%S"},
              {"sep": ";", "head": "sep=;\r\n", "lineterminator": "\r\n"}),
    "byte order mark": ({}, {"encoding": "utf-8-sig", "lineterminator": "\r\n"}),
    "utf-16": ({}, {"encoding": "utf-16", "sep": "\t"}),
    "all quoted": ({"amount": german}, {"quoting": 1}),
    "hidden characters": ({"amount": lambda v: f"\u200b{v}\u00a0"}, {}),
    "pipes between": ({}, {"sep": "|"}),
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_a_table_is_the_same_however_it_is_written(name, tmp_path):
    data = plain()
    how, file = WAYS[name]
    expected = read_table(save(written(data), tmp_path / "plain.csv"), "y")
    found = read_table(save(written(data, **how), tmp_path / "odd.csv", **file), "y")
    assert found.encoder.names == expected.encoder.names
    torch.testing.assert_close(found.x, expected.x, rtol=0, atol=3e-6)
    again = read_table(tmp_path / "odd.csv", encoder=found.encoder)
    torch.testing.assert_close(again.x, found.x)
    assert torch.equal(found.y, expected.y)


def test_a_zipped_file_of_another_locale_is_read(tmp_path):
    data = plain()
    odd = save(written(data, amount=german), tmp_path / "a.csv.gz", sep=";")
    expected = read_table(save(written(data), tmp_path / "plain.csv"), "y")
    torch.testing.assert_close(read_table(odd, "y").x, expected.x, rtol=0, atol=3e-6)


def test_latin_1_is_refused_with_the_option_and_read_with_it(tmp_path):
    data = plain()
    path = save(written(data), tmp_path / "a.csv", encoding="latin-1")
    with pytest.raises(ValueError, match=r"a\.csv is not UTF-8 text.*encoding='latin-1'"):
        read_table(path, "y")
    found = read_table(path, "y", encoding="latin-1")
    assert found.encoder.categories[0].values == ("Aix", "Köln", "Ulm")
    with pytest.raises(ValueError, match="encoding='klingon' is not known"):
        read_table(path, "y", encoding="klingon")


def test_latin_1_far_down_is_refused_with_the_option(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"city,x,y\n" + b"Ulm,1.5,0\nBonn,2.5,1\n" * 150_000 + b"K\xf6ln,3,1\n")
    with pytest.raises(ValueError, match=r"a\.csv is not UTF-8 text.*encoding='latin-1'"):
        read_table(path, "y")


def test_all_that_is_doubtful_is_one_error_that_names_the_arguments(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "a;b;c;d;y\n1.234;5.678;01/02/2024;03-04-2023;0\n"
        + "2.345;1.111;05/06/2024;07-08-2023;1\n" * 30
    )
    with pytest.raises(ValueError, match="may have decimals or thousands") as caught:
        read_table(path, "y")
    said = str(caught.value)
    assert "a.csv, line 2: 'a' (1.234)" in said
    assert all(f"{name!r}" in said for name in "abcd")
    assert "decimal='.'" in said
    assert "dayfirst=True" in said
    by_comma = read_table(path, "y", decimal=",", dayfirst=True).encoder
    by_dot = read_table(path, "y", decimal=".", dayfirst=False).encoder
    assert 1000 < by_comma.numbers[0].mean < 3000
    assert 1 < by_dot.numbers[0].mean < 3


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        (["1.234", "0.500"], 0.867),  # no thousands begin with 0
        (["1.234", "1234"], 617.617),  # 1234 would be 1.234
        (["1.234", "2.5"], 1.867),
        (["1.234.567", "1.000"], 617_783.5),
        (["1,234", "2.5"], 618.25),
        (["1,234", "5,5"], 3.367),
    ],
)
def test_a_number_that_shows_the_mark_tells_of_the_others(values, mean, tmp_path):
    rows = [f"{value};{i % 2}" for i, value in enumerate(values * 20)]
    path = tmp_path / "a.csv"
    path.write_text("x;y\n" + "\n".join(rows) + "\n")
    assert read_table(path, "y").encoder.numbers[0].mean == pytest.approx(mean)


def test_two_decimal_marks_in_one_file_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a;b;y\n" + "1.5;2,5;0\n3.5;4,5;1\n" * 20)
    with pytest.raises(
        ValueError, match=r"column 'a' has a decimal dot and column 'b' a decimal comma"
    ):
        read_table(path, "y")


def test_one_row_of_german_numbers_is_read_as_in_training(tmp_path):
    data = plain()
    encoder = read_table(
        save(written(data, amount=german), tmp_path / "a.csv", sep=";"), "y"
    ).encoder
    new = tmp_path / "new.csv"
    new.write_text("amount;share;when;city\n1.234;5;2024-01-01 00:00:00;Ulm\n")
    mean, std = encoder.numbers[0].mean, encoder.numbers[0].std
    x = read_table(new, encoder=encoder).x
    assert x[0, 0].item() == pytest.approx((1234 - mean) / std, abs=1e-5)


@pytest.mark.parametrize("text", ["n/a", "unknown", "NaN", "-", "?", "None", "#DIV/0!", "."])
def test_spellings_of_missing_among_numbers_are_missing_and_named(text, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + "1.5,0\n2.5,1\n" * 20 + f"{text},1\n")
    part = read_table(path, "y")
    assert part.x[-1].tolist() == [0, 1]
    record = part.columns[0]
    assert (record.kind, record.missing) == ("number", pytest.approx(1 / 41))
    assert record.notes == (f"read as missing: {text!r}",)


def test_na_values_are_missing_in_every_column(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,city,y\n" + "1.5,Ulm,0\n-99,Bonn,1\n2.5,tbd,1\n" * 20)
    part = read_table(path, "y", na_values=["-99", "tbd"])
    assert [record.missing for record in part.columns[:2]] == pytest.approx([1 / 3, 1 / 3])
    assert part.encoder.categories[0].values == ("Bonn", "Ulm")


def test_texts_among_numbers_are_one_error_with_the_lines_of_the_file(tmp_path):
    path = tmp_path / "a.csv"
    rows = ['1.5,2,"two\nlines",0\n', "2.5,3,b,1\n"] * 20
    path.write_text("x,n,city,y\n" + "".join(rows) + "1.5,<5,b,1\ntall,2,b,0\n")
    with pytest.raises(ValueError, match="got the text") as caught:
        read_table(path, "y")
    assert "column 'x', line 63: got the text 'tall'" in str(caught.value)
    assert "column 'n', line 62: got the text '<5'" in str(caught.value)
    assert "na_values=['tall', '<5']" in str(caught.value)


def test_numbers_and_texts_in_one_column_are_a_category_with_a_note(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,z,y\n" + "1,5,0\nmany,6,1\n2,7,1\n" * 20)
    record = {record.name: record for record in read_table(path, "y").columns}["x"]
    assert record.kind == "category"
    assert record.notes == ("67% of the texts are numbers, the others are not",)


def test_five_thousand_columns_are_read(tmp_path):
    rng = np.random.default_rng(0)
    data = pd.DataFrame(rng.normal(size=(40, 5000)).round(3)).add_prefix("c")
    data["y"] = [0, 1] * 20
    data.to_csv(tmp_path / "a.csv", index=False)
    part = read_table(tmp_path / "a.csv", "y")
    assert part.encoder.inputs == 5000
    assert len(part.columns) == 5001


def test_one_row_is_one_clear_error(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,0\n")
    with pytest.raises(
        ValueError, match=r"got the value '0' .1 times. alone, expected two classes"
    ):
        read_table(tmp_path / "a.csv", "y")


def test_a_day_that_does_not_exist_is_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("when,y\n" + "13.01.2024,0\n14.02.2024,1\n" * 20 + "30.02.2024,1\n")
    with pytest.raises(ValueError, match=r"column 'when', line 42: got the text '30\.02\.2024'"):
        read_table(path, "y")


@pytest.mark.parametrize(
    ("values", "positive"),
    [
        (["yes", "no", "no"], "yes"),
        (["yes", "yes", "no"], "yes"),
        (["Y", "Y", "N"], "Y"),
        (["TRUE", "FALSE", "TRUE"], "true"),
        (["good", "good", "bad"], "bad"),
        (["Abnormal", "Normal", "Normal"], "Abnormal"),
    ],
)
def test_two_labels_are_told_apart(values, positive, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + "".join(f"{i % 7}.5,{v}\n" for i, v in enumerate(values * 10)))
    part = read_table(path, "y")
    assert part.encoder.target.positive == (positive,)
    notes = part.columns[-1].notes
    rarer = positive in ("bad", "Abnormal")
    assert bool(notes) == rarer
    if rarer:
        assert re.search(r"POSITIVE is '\w+', the rarer of two values \(33.3%\)", notes[0])


def test_two_labels_of_equal_share_are_asked_for(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n" + "1.5,a\n2.5,b\n" * 10)
    with pytest.raises(ValueError, match=r"say for example positive='a'"):
        read_table(tmp_path / "a.csv", "y")


def test_a_positive_among_several_labels_of_a_cell_counts(tmp_path):
    path, rows = tmp_path / "a.csv", ["Effusion", "Mass|Effusion", "Mass", "No Finding"]
    path.write_text("x,y\n" + "".join(f"{i}.5,{v}\n" for i, v in enumerate(rows * 10)))
    part = read_table(path, "y", positive="Effusion")
    assert part.y[:4].tolist() == [True, True, False, False]
    assert "'Mass|Effusion' are positive too" in part.columns[-1].notes[0]
    new = tmp_path / "new.csv"
    new.write_text("x,y\n1.5,Effusion|No Finding\n1.5,Mass|No Finding\n")
    assert read_table(new, encoder=part.encoder).y.tolist() == [True, False]


def test_missing_labels_are_one_error_with_count_and_lines(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + "1.5,0\n2.5,1\n" * 20 + "0.5,NaN\n1.5,\n2.5,1\n0.5,nan\n1.5,\n")
    with pytest.raises(ValueError, match="the label is missing in 4 of 45 rows") as caught:
        read_table(path, "y")
    assert "column 'y', line 42, line 43, line 45, ...:" in str(caught.value)
    assert "unlabelled='drop'" in str(caught.value)
    part = read_table(path, "y", unlabelled="drop")
    assert (part.samples, part.positives) == (41, 21)
    assert part.columns[-1].notes == ("4 of 45 rows have no label and are left out",)


def test_lines_are_those_of_the_file_where_rows_were_left_out(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + "1.5,0\n2.5,1\n" * 20 + "0.5,NaN\n1.5,\ninf,1\n")
    with pytest.raises(ValueError, match="column 'x', line 44: got infinity"):
        read_table(path, "y", unlabelled="drop")


def test_times_of_day_are_cycles(tmp_path):
    path = tmp_path / "a.csv"
    rows = [
        f"{i % 12 + 1}:{i % 60:02d} {'ap'[i % 2]}m,{i % 24}:{i % 60:02d},{i % 3 // 2}"
        for i in range(120)
    ]
    path.write_text("at,until,y\n" + "\n".join(rows) + "\n")
    part = read_table(path, "y")
    assert [(each.name, each.part) for each in part.encoder.parts] == [
        ("at", "hour"),
        ("until", "hour"),
    ]
    assert part.columns[0].written == "times of day"
    at = part.encoder.names.index("at, hour (cos)")
    assert part.x[11, at].item() == pytest.approx(np.cos(2 * np.pi * (12 + 11 / 60) / 24), abs=1e-5)


def test_dates_and_amounts_that_are_not_understood_are_noted(tmp_path):
    path = tmp_path / "a.csv"
    rows = [f"{i % 28 + 1:02d}-Jan-2024,{'$€'[i % 2]}{i % 9}.5,{i % 3 // 2}" for i in range(300)]
    path.write_text("when,paid,y\n" + "\n".join(rows) + "\n", encoding="utf-8")
    notes = {record.name: " ".join(record.notes) for record in read_table(path, "y").columns}
    assert "28 texts with numbers, such as '01-Jan-2024', are taken for a category" in notes["when"]
    assert "18 texts with numbers, such as" in notes["paid"]


def test_dates_in_two_orders_are_refused_unless_they_are_dropped(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("when,x,y\n" + "13/02/2024,1.5,0\n02/13/2024,2.5,1\n" * 20)
    with pytest.raises(ValueError, match="'when' has dates with the day first and dates with the"):
        read_table(path, "y")
    assert read_table(path, "y", drop=["when"]).encoder.names == ["x"]
