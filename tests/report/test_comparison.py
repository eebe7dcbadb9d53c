"""Runs side by side."""

import re

import numpy as np
import pytest

from codauc._internal.text_table import table
from codauc.metrics.auc_difference import paired_auc_difference
from codauc.report.comparison import DIFFERENCE, comparison_page, comparison_rows
from codauc.runs.directory import CONFIG, SCORES, SUMMARY, RunFolder


def cell(header, row, name):
    return row[header.index(name)]


def test_a_row_has_the_numbers_of_its_run(make_run):
    header, rows = comparison_rows([make_run(), make_run("other", workers=1)])
    first, second = rows
    assert cell(header, first, "run") == "coda-4x16"
    assert cell(header, first, "recipe/model") == "coda/resnet20"
    assert (cell(header, first, "K"), cell(header, first, "I")) == ("4", "16")
    assert (cell(header, second, "K"), cell(header, second, "I")) == ("1", "-")
    assert cell(header, first, "test AUC") == "0.9241"
    assert cell(header, first, "95% interval") == "0.9091 to 0.9391"
    assert cell(header, first, "MB per worker") == "81.7"
    assert len(table(header, rows).splitlines()) == 4


def test_the_difference_is_paired_if_the_labels_are_the_same(make_run, make_scores):
    other = make_scores(noise_seed=9)
    runs = [make_run("a"), make_run("b", scores=other), make_run("c", scores=make_scores(seed=4))]
    header, rows = comparison_rows(runs)
    expected = paired_auc_difference(runs[1].scores().scores, runs[0].scores().scores, other[1])
    assert cell(header, rows[0], DIFFERENCE) == ""
    assert cell(header, rows[1], DIFFERENCE).startswith(f"{expected.value:+.4f} (")
    assert cell(header, rows[2], DIFFERENCE) == "-"


def test_without_common_labels_there_is_no_column(make_run, make_scores):
    runs = [make_run("a"), make_run("b", scores=make_scores(seed=4))]
    assert DIFFERENCE not in comparison_rows(runs)[0]
    (runs[1] / SCORES).unlink()
    assert DIFFERENCE not in comparison_rows(runs)[0]
    one = make_run("c")
    assert DIFFERENCE not in comparison_rows([one])[0]


def test_scores_that_are_no_numbers_are_not_compared(make_run, make_scores):
    runs = [make_run("a"), make_run("b")]
    scores, labels = make_scores()
    runs[1].write_scores(np.where(np.arange(len(scores)) == 3, np.nan, scores), labels)
    assert DIFFERENCE not in comparison_rows(runs)[0]


def test_runs_of_the_same_name_are_told_apart(make_run):
    _, rows = comparison_rows([make_run("one/run"), make_run("two/run")])
    assert rows[0][0] != rows[1][0]


def test_what_is_missing_is_a_dash(make_run):
    run = make_run()
    run.write_json(SUMMARY, {"interrupted": True, "model": None, "workers": None})
    run.write(CONFIG, "communication = 3\n")
    header, rows = comparison_rows([run])
    assert rows == [["coda-4x16", *["-"] * (len(header) - 1)]]
    comparison_page([run])


def test_nothing_to_compare_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="expected at least one run"):
        comparison_rows([])
    with pytest.raises(ValueError, match="is not a directory"):
        comparison_page([RunFolder(tmp_path / "nothing")])


def test_all_runs_are_in_each_picture(make_run):
    runs = [make_run(f"run{i}", seed=i, sync_every=2**i) for i in range(9)]
    text = comparison_page(runs)
    charts = re.findall(r'<svg class="chart".*?</svg>', text, re.S)
    assert len(charts) == 5
    for chart in charts[:4]:
        assert chart.count('class="line s') == 9
    assert charts[4].count('class="line s') == 10  # and chance
    assert "logarithmic" in text
    assert len(text) < 800_000


def test_runs_of_one_worker_are_not_drawn_against_rounds(make_run):
    text = comparison_page([make_run("a"), make_run("b", workers=1)])
    charts = re.findall(r'<svg class="chart".*?</svg>', text, re.S)
    assert [chart.count('class="line s') for chart in charts] == [2, 1, 1, 2, 3]
    alone = comparison_page([make_run("c", workers=1)])
    assert "against rounds" not in alone


def test_names_of_others_have_no_effect(make_run):
    text = comparison_page([make_run("<script>alert(1)<"), make_run("<img src=x onerror=1>")])
    assert "<script" not in text
    assert "<img" not in text
