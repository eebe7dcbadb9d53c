"""The report of a run: it holds what the run left behind, and never fails for what is missing."""

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from codauc.data.column_record import ColumnRecord, to_json
from codauc.report.run_page import meaning, page
from codauc.runs.directory import (
    COLUMNS,
    CONFIG,
    IMPORTANCE,
    METRICS,
    MISTAKES,
    SCORES,
    SUMMARY,
    RunFolder,
)
from codauc.runs.history import History

HOSTILE = "</script></title><img src=x onerror=alert(1)><svg onload=alert(1)>\"'&"
VOID = {"meta", "img", "br", "link", "input"}
PLOTS = [
    "ROC curve of the test set",
    "Precision and recall of the test set",
    "Scores of the test set",
    "Calibration",
    "Validation AUC against iterations",
    "Validation AUC against rounds",
    "Validation AUC against bytes sent",
    "Validation AUC against time",
    "Objective",
    "The algorithm's own variables",
    "Where the time went",
    "Drift between workers",
    "Samples of each worker",
    "Positives of each worker",
]


class Reader(HTMLParser):
    """Tags, attributes and text; checks that tags are closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def checked(text):
    """The page read back, if it is sound and asks for nothing from elsewhere."""
    reader = Reader(text)
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(reader.tags)
    names = {name for name, _ in reader.attributes}
    assert not {"src", "href", "srcset", "action", "poster"} & names
    assert not [name for name in names if name.startswith("on")]
    assert "url(" not in text
    assert "@import" not in text
    for chart in re.findall(r"<svg.*?</svg>", text, re.S):
        ElementTree.fromstring(chart)
    text.encode("utf-8")
    return reader


def titles(text):
    """The titles of the charts, in order."""
    return re.findall(r'role="img" aria-label="[^"]*"><title>([^<]*)</title>', text)


def test_every_plot_and_the_headline_are_there(make_run):
    text = page(make_run())
    reader = checked(text)
    assert sorted(map(unquoted, titles(text))) == sorted(PLOTS)
    for said in ("Test AUC", "95% interval", "by chance: 0.0515", "resnet20", "fraud.parquet"):
        assert said in reader.text
    assert "A random positive scores above a random negative in 92 of 100 pairs" in reader.text
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in text


def unquoted(text):
    return text.replace("&#39;", "'")


def test_every_plot_has_a_caption(make_run):
    text = page(make_run())
    for card in re.findall(r"<figure.*?</figure>", text, re.S):
        caption = re.search(r"<figcaption>(.*?)</figcaption>", card, re.S).group(1)
        assert len(caption) > 20


def test_a_usual_report_is_small(make_run):
    assert len(page(make_run())) < 400_000


def test_the_same_run_gives_the_same_page(make_run):
    run = make_run()
    assert page(run) == page(run)


def test_one_worker_does_not_communicate(make_run):
    text = page(make_run(workers=1))
    reader = checked(text)
    assert "One worker: no communication." in reader.text
    shown = titles(text)
    assert "Validation AUC against iterations" in shown
    assert "Validation AUC against time" in shown
    absent = ("against rounds", "against bytes", "Drift", "Samples of each")
    assert not [title for title in shown if any(word in title for word in absent)]


def test_the_threshold_table_is_what_counting_gives(make_run, make_scores):
    scores, labels = make_scores()
    reader = checked(page(make_run(scores=(scores, labels))))
    row = re.search(r"90% of positives([\d.]+)(-?[\d.]+\d{3})([\d.]+)%([\d.]+)%", reader.text)
    threshold = float(np.sort(scores[labels])[::-1][int(np.ceil(0.9 * labels.sum())) - 1])
    assert float(row.group(1)) == pytest.approx(1 / (1 + np.exp(-threshold)), abs=1e-4)
    flagged = scores >= threshold
    assert float(row.group(4)) == pytest.approx(100 * labels[flagged].mean(), abs=0.05)


def test_text_of_others_has_no_effect(make_run):
    summary = dict.fromkeys(("data", "target", "version"), HOSTILE) | {
        "positive": [HOSTILE],
        "negative": [HOSTILE],
        "notes": [HOSTILE, "\x00\ud800"],
        "model": {"name": HOSTILE, "parameters": 1},
    }
    run = make_run("x<img src=x onerror=alert(1)>", summary=summary)
    escaped = HOSTILE.replace("\\", "\\\\").replace('"', '\\"')
    run.write(CONFIG, f'"{escaped}" = "{escaped}"\nlong = "{"x" * 100_000}"\n')
    text = page(run)
    reader = checked(text)
    assert reader.text.count(HOSTILE) >= 7
    assert len(text) < 400_000


KEYS = ["auc_low", "average_precision", "steps", "rounds", "bytes_per_worker", "seconds"]
KEYS += ["pos_ratio", "best_step", "validation_auc", "test_samples", "test_positives", "workers"]
KEYS += ["train_samples", "computing", "communicating", "waiting", "finished", "interrupted"]
KEYS += ["version", "model", "data", "target", "positive", "negative", "notes", "test_auc"]


@pytest.mark.parametrize("key", KEYS)
def test_any_value_of_the_summary_is_survived(make_run, make_scores, key):
    run = make_run(steps=60, scores=make_scores(300))
    usual = run.summary()
    for value in (None, "text", -1, 10**400, [], {}, [None], True):
        run.write_json(SUMMARY, usual | {key: value})
        checked(page(run))
    run.write_json(SUMMARY, {name: value for name, value in usual.items() if name != key})
    checked(page(run))


def test_an_interrupted_run_shows_what_is_there(make_run):
    run = make_run()
    (run / SCORES).unlink()
    run.write_json(SUMMARY, {"interrupted": True, "test_auc": None, "steps": 100})
    text = page(run)
    reader = checked(text)
    assert "interrupted" in reader.text
    assert "no test set" in reader.text
    assert "Validation AUC against rounds" in titles(text)
    assert "ROC" not in text


def test_a_killed_run_shows_its_history(make_run):
    run = make_run()
    (run / SUMMARY).unlink()
    said = checked(page(run)).text
    assert "no summary" in said
    assert "not tested" in said
    assert "Data: fraud.parquet; target: is_fraud; model: resnet20" in said
    (run / CONFIG).unlink()
    assert "no summary" in checked(page(run)).text


def test_a_run_without_history_shows_its_test_set(make_run):
    run = make_run()
    (run / METRICS).unlink()
    text = page(run)
    checked(text)
    assert "ROC curve of the test set" in titles(text)
    assert "Validation AUC against time" not in titles(text)


def test_what_is_no_run_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="is not a directory"):
        page(RunFolder(tmp_path / "nothing"))
    with pytest.raises(ValueError, match=r"has no summary\.json"):
        page(RunFolder(tmp_path))


def test_few_positives_are_a_warning(make_run):
    few = make_run(summary={"test_positives": 29, "notes": ["Mind the step."]})
    text = checked(page(few)).text
    assert "only 29 positives: the interval is wide" in text
    assert "Mind the step." in text
    assert "the interval is wide" not in checked(page(make_run("enough"))).text


def with_records(run, records):
    history = History(run)
    for record in records:
        history.write(record)
    return run


@pytest.mark.parametrize("n", [0, 1, 2, 5000])
def test_any_length_of_history(make_run, n, make_records):
    records = list(make_records(steps=5000, every=1))[:n]
    text = page(with_records(make_run(), records))
    checked(text)
    assert len(text) < 400_000
    assert ("Objective" in titles(text)) == (n > 0)


def test_numbers_that_are_none_are_left_out(make_run, make_records):
    nothing = ("auc", "auc_low", "auc_high", "loss", "a", "b", "alpha", "drift", "seconds", "bytes")
    records = [replace(record, **dict.fromkeys(nothing)) for record in make_records()]
    checked(page(with_records(make_run(), records)))
    run = make_run("infinite")
    text = (run / METRICS).read_text()
    run.write(METRICS, re.sub(r'"(loss|auc|a)": [\d.e-]+', r'"\1": Infinity', text))
    checked(page(run))


def scores_of(kind):
    n = 200
    labels = np.arange(n) < 20
    scores = {
        "constant": np.zeros(n),
        "perfect": labels * 1.0,
        "wrong": labels * -1.0,
        "infinite": np.where(labels, np.inf, -np.inf),
        "huge": np.where(labels, 3e38, -3e38),
        "some nan": np.where(np.arange(n) % 7 == 0, np.nan, np.arange(n)),
        "all nan": np.full(n, np.nan),
    }
    return scores[kind], labels


KINDS = ["constant", "perfect", "wrong", "infinite", "huge", "some nan", "all nan"]


@pytest.mark.parametrize("kind", KINDS)
def test_odd_scores(make_run, kind):
    run = make_run()
    run.write_scores(*scores_of(kind))
    text = page(run)
    reader = checked(text)
    assert ("not numbers" in reader.text) == ("nan" in kind)
    assert ("ROC curve of the test set" in titles(text)) == (kind != "all nan")


def test_scores_of_rare_positives_do_not_collapse_at_zero(make_run):
    """The histogram is on the scale of log-odds: probabilities under 3% fill more than one bar."""
    rng = np.random.default_rng(0)
    labels = rng.random(20_000) < 0.01
    run = make_run()
    run.write_scores(rng.normal(-6.0, 1.0, 20_000) + 2 * labels, labels)
    chart = chart_of(page(run), "Scores of the test set")
    assert {"0.1%", "1%"} <= set(re.findall(r">([\d.]+%)</text>", chart))
    heights = re.findall(r"negatives: ([\d.e-]+) at", chart)
    assert sum(float(height) > 1 for height in heights) > 10


def chart_of(text, title):
    return next(c for c in re.findall(r"<svg.*?</svg>", text, re.S) if f"<title>{title}<" in c)


@pytest.mark.parametrize(
    ("calibration", "said"),
    [
        ({"scale": 0.7, "shift": -1.0}, "were calibrated on the validation set"),
        ({"scale": 1.0, "shift": 0.0}, "were not calibrated"),
        ("odd", "not recorded"),
    ],
)
def test_the_calibration_card_says_whether_scores_were_calibrated(make_run, calibration, said):
    assert said in checked(page(make_run(summary={"calibration": calibration}))).text


def test_a_test_auc_over_0_999_is_called_unusual_with_what_to_check(make_run):
    said = checked(page(make_run(summary={"test_auc": 0.99951}))).text
    assert "is unusual" in said
    assert "--drop" in said
    assert "--group" in said
    assert "unusual" not in checked(page(make_run("other", summary={"test_auc": 0.998}))).text


def column(i, lost):
    return {"name": f"column {i}", "lost": lost, "low": lost - 0.01, "high": lost + 0.01}


def test_the_most_important_columns_are_shown_in_order_with_intervals(make_run):
    run = make_run()
    found = {"columns": [column(i, 0.005 * i) for i in range(30)], "of": 500, "measured": 30}
    run.write_json(IMPORTANCE, found | {"rows": 1000, "positives": 20, "permutations": 5})
    text = page(run)
    said = checked(text).text
    names = re.findall(r">(column \d+)</text>", chart_of(text, "Importance of columns"))
    assert names == [f"column {i}" for i in range(29, 9, -1)]
    assert "5 permutations of 1,000 rows, 20 positive" in said
    assert "Of 500 columns, 30 were measured" in said


def test_images_have_a_sentence_in_place_of_importance(make_run):
    run = make_run()
    run.write_json(IMPORTANCE, {"columns": [], "reason": "Not measured for images."})
    text = page(run)
    assert "Not measured for images." in checked(text).text
    assert "Importance of columns" not in titles(text)


def test_mistakes_are_listed_by_row_and_file(make_run):
    run = make_run()
    one = {"row": 71, "positive": True, "score": -4.0, "beyond": 0.9, "file": "b/<7>.png"}
    two = {"row": 5, "positive": False, "score": 3.0, "beyond": 0.25, "file": None}
    run.write_json(MISTAKES, {"samples": [one, two]})
    said = " ".join(checked(page(run)).text.split())
    assert "71b/<7>.pngpositive1.8%90.0%" in said
    assert "5-negative95.3%25.0%" in said


def test_how_the_columns_were_read_is_a_table_with_notes_first(make_run):
    records = [ColumnRecord(f"plain {i}", "number", True, 0.0) for i in range(300)]
    odd = ColumnRecord(
        "date of birth", "date", True, 0.25, notes=("day first",), examples=("3.4.1999",)
    )
    run = make_run()
    run.write_json(COLUMNS, to_json([*records, odd]))
    text = page(run)
    said = checked(text).text
    assert "How the columns were read" in said
    assert said.index("date of birth") < said.index("plain 0") < said.index("plain 198")
    assert "plain 199" not in said
    assert "101 more columns are not listed" in said
    assert "25%" in said
    assert "3.4.1999" in said
    assert "How the columns were read" not in page(make_run("images"))


@pytest.mark.parametrize("name", [IMPORTANCE, MISTAKES])
@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"columns": "x", "samples": 3, "rows": [], "reason": None},
        {"columns": [{}, {"name": None, "lost": "a"}, 5], "samples": [{}, {"row": "x"}, 5]},
        {
            "columns": [{"name": HOSTILE, "lost": 1e300, "low": -1e300, "high": 1e300}],
            "samples": [{"row": 1e300, "file": HOSTILE, "score": 1e300, "beyond": "x"}],
            **dict.fromkeys(("rows", "positives", "permutations", "of", "measured"), HOSTILE),
        },
    ],
)
def test_explanations_that_were_changed_do_no_harm(make_run, name, plain):
    run = make_run()
    run.write_json(name, plain)
    checked(page(run))


@pytest.mark.parametrize("n", [0, 1, 10])
def test_one_class_has_no_curve_but_a_warning(make_run, n):
    run = make_run()
    run.write_scores(np.arange(n), np.zeros(n))
    text = page(run)
    assert "one class only" in checked(text).text
    assert "ROC curve of the test set" not in titles(text)


def test_a_million_scores_stay_small(make_run, make_scores):
    run = make_run()
    run.write_scores(*make_scores(1_000_000, 0.01))
    text = page(run)
    checked(text)
    assert len(text) < 400_000


@pytest.mark.parametrize("workers", [2, 64, 2000])
def test_any_number_of_workers(make_run, workers):
    text = page(make_run(workers=workers))
    reader = checked(text)
    assert ("1,800 more workers are not listed" in reader.text) == (workers == 2000)


def test_zero_samples_on_a_worker(make_run):
    workers = [{"samples": 0, "positives": 0}, {"samples": 5, "positives": 1}, {}, None]
    checked(page(make_run(summary={"workers": workers})))
    checked(page(make_run("none", summary={"workers": workers[:1] * 2})))


@pytest.mark.parametrize(
    ("auc", "said"),
    [
        (1.0, "in every pair"),
        (0.0, "in no pair"),
        (0.5, "50 of 100"),
        (0.994, "99 of 100"),
        (0.9951, "995 of 1,000"),
        (0.99999, "more than 999 of 1,000"),
        (0.0001, "less than 1 of 1,000"),
    ],
)
def test_the_meaning_never_promises_too_much(auc, said):
    assert said in meaning(auc)


def test_reports_do_without_torch():
    code = (
        "import sys, codauc.report.run_page, codauc.report.comparison\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
