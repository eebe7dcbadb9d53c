"""Charts: what is drawn is where it should be, whatever the data."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codauc._internal.formats import digits
from codauc.report.axes import Axis, log_ticks, stretch, tick_labels, ticks
from codauc.report.charts import (
    MOST_POINTS,
    Chart,
    Series,
    legend,
    line_chart,
    row_chart,
    thinned,
)
from codauc.report.history_cards import worker_chart

numbers = st.floats(allow_nan=True, allow_infinity=True)
HOSTILE = "</title></svg><script>alert(1)</script><img src=x onerror=alert(1)>"


def chart(*series, **settings):
    return line_chart(Chart("Title", "x", "y", series, **settings))


def parsed(text):
    return ElementTree.fromstring(text)


def coordinates(text):
    """All points of all paths and circles."""
    paths = re.findall(r'class="(?:line|band|fill)[^"]*"[^>]* d="([^"]+)"', text)
    pairs = [pair for path in paths for pair in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)]
    return np.array(pairs, float).reshape(-1, 2)


@given(st.floats(-1e150, 1e150), st.floats(1e-12, 1e150), st.integers(2, 8))
def test_ticks_are_round_few_and_inside(low, span, most):
    high = low + span
    if high - low < 1e-7 * max(abs(low), abs(high)):
        return  # such ends are never asked for
    found = ticks(low, high, most)
    assert 1 <= len(found) <= most
    slack = 1e-5 * (high - low)
    assert all(low - slack <= value <= high + slack for value in found)
    if len(found) > 1:
        step = (found[-1] - found[0]) / (len(found) - 1)
        leading = step / 10 ** math.floor(math.log10(step) + 1e-6)
        assert min(abs(leading - good) for good in (1, 2, 5, 10)) < 1e-3


@given(st.floats(1e-9, 1e12), st.floats(1.1, 1e12))
def test_log_ticks_are_inside_and_few(low, factor):
    found = log_ticks(low, low * factor)
    assert len(found) <= 6
    assert found == sorted(found)
    assert all(low * 0.999 <= value <= low * factor * 1.001 for value in found)


@given(st.lists(numbers, max_size=20), st.booleans())
def test_an_axis_always_has_a_length(values, log):
    low, high = stretch(np.array(values, float), log=log)
    assert low < high
    assert np.isfinite([low, high]).all()
    assert len(ticks(low, high)) >= 1 or log


def test_labels_of_an_axis_are_told_apart():
    for values in ([0.001, 0.002], [0, 1e6, 2e6], [99998, 99999], [1e-9, 2e-9], [-0.5, 0, 0.5]):
        for kind in ("number", "count"):
            if kind == "count" and min(values) < 1 and values[0] != 0:
                continue
            assert len(set(tick_labels(values, kind))) == len(values)
    assert tick_labels([0, 1e9, 2e9], "bytes") == ["0", "1 GB", "2 GB"]
    assert tick_labels([1e7, 1e8, 1e9], "bytes") == ["10 MB", "100 MB", "1 GB"]
    assert tick_labels([0, 2e5], "count") == ["0", "200k"]


def test_an_axis_maps_its_ends_and_is_monotone():
    for log in (False, True):
        axis = Axis(1, 1000, 50, 350, log)
        assert axis.place([1, 1000]).tolist() == [50, 350]
        assert (np.diff(axis.place([1, 2, 10, 500, 1000])) > 0).all()
    assert Axis(1, 1000, 50, 350, True).place(math.sqrt(1000)) == pytest.approx(200)


@given(
    st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=30),
    st.booleans(),
    st.sampled_from(["number", "count", "bytes"]),
)
def test_any_numbers_give_a_well_formed_chart_within_its_frame(points, log, kind):
    x, y, low, high = np.array(points, float).reshape(-1, 4).T
    text = chart(Series("s", x, y, low, high), log_x=log, x_kind=kind)
    if not text:
        assert not (np.isfinite(x) & np.isfinite(y) & ((x > 0) | (not log))).any()
        return
    root = parsed(text)
    assert "nan" not in text.lower()
    assert "inf" not in text.lower()
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    found = coordinates(text)
    assert (found >= 0).all()
    assert (found <= [width, height]).all()


def test_a_chart_says_what_it_shows():
    root = parsed(chart(Series("AUC", [0, 10], [0.5, 0.9])))
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == "Title: y against x. AUC from 0.5 to 0.9."
    assert root[0].tag == "title"
    assert root[0].text == "Title"


def test_points_have_tooltips():
    text = chart(Series("AUC", [0, 1_500_000], [0.5, 0.9]), x_kind="bytes")
    tips = [each.text for each in parsed(text).iter("title")]
    assert "AUC: 0.9 at 1.5 MB (x)" in tips


def test_text_of_others_has_no_effect():
    text = line_chart(Chart(HOSTILE, HOSTILE, HOSTILE, [Series(HOSTILE, [1], [1])] * 2))
    root = parsed(text)
    assert "<script" not in text
    assert "<img" not in text
    assert root[0].text == HOSTILE
    assert {each.tag for each in root.iter()} <= {"svg", "title", "text", "path", "circle", "rect"}


def test_one_point_is_seen():
    text = chart(Series("AUC", [3], [0.7], [0.6], [0.8]))
    assert text.count('class="mark f0"') == 1


def test_no_points_no_chart():
    assert chart() == ""
    assert chart(Series("s", [], [])) == ""
    assert chart(Series("s", [math.nan], [1.0])) == ""
    assert line_chart(worker_chart("t", "y", [])) == ""
    assert row_chart("t", [("a", 0.0, "0")]) == ""


@pytest.mark.parametrize("n", [401, 5000, 100_003])
def test_thinning_keeps_ends_and_extremes(n):
    y = np.random.default_rng(n).normal(size=n)
    kept = thinned(y)
    assert len(kept) <= MOST_POINTS
    assert (np.diff(kept) > 0).all()
    assert {0, n - 1, int(y.argmin()), int(y.argmax())} <= set(kept.tolist())


def test_many_points_stay_small():
    x = np.arange(100_000.0)
    assert len(chart(Series("s", x, np.sin(x), np.sin(x) - 1, np.sin(x) + 1))) < 40_000


def test_marks_and_lines_are_drawn_where_they_are():
    text = chart(
        Series("s", [0, 100], [0, 1]), Series("m", [100], [1]), x_range=(0, 100), lines=[50, 200]
    )
    root = parsed(text)
    assert text.count('class="stage"') == 1
    mark = next(each for each in root.iter("circle") if each.get("class") == "mark f0")
    line = re.search(r'class="line s0 d0" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', text)
    left, _, right, top = map(float, line.groups())
    stage = float(re.search(r'class="stage" d="M([\d.]+)', text).group(1))
    assert stage == pytest.approx((left + right) / 2, abs=0.1)
    assert mark is not None
    assert f'cx="{right:.1f}" cy="{top:.1f}" r="5"' in text


def test_numbers_along_the_axis_do_not_touch():
    for largest in (7.0, 1234.0, 123_456.0, 98_765_432.0):
        for kind in ("number", "count", "bytes"):
            root = parsed(chart(Series("s", [0, largest], [0, 1]), x_kind=kind))
            below = [each for each in root.iter("text") if each.get("text-anchor") == "middle"][:-1]
            places = [float(each.get("x")) for each in below]
            wide = max(len(each.text) for each in below) * 6.3
            assert len(places) >= 2
            assert min(np.diff(places)) > wide


def test_a_legend_grows_down_not_out():
    named = [Series("a long name of a run " + str(i), [0, 1], [0, 1]) for i in range(8)]
    placed, height = legend(named)
    assert height > 50
    assert max(x for _, x, _ in placed) + 28 < 340
    assert [each for each, *_ in placed] == named
    assert chart(*named).count('class="key"') == 8
    assert legend(named[:1]) == ([], 0.0)


def test_bars_are_as_long_as_their_values():
    root = parsed(row_chart("t", [("a", 1.0, "1"), ("b", 2.0, "2"), ("c", 1.0, "1")]))
    bars = [float(each.get("width")) for each in root.iter("rect")]
    assert bars[1] == pytest.approx(2 * bars[0], abs=0.2)
    assert bars[0] == bars[2]


@pytest.mark.parametrize("n", [1, 4, 60, 64, 1000])
def test_bars_for_any_number_of_workers(n):
    values = [float(i + 1) for i in range(n)]
    text = line_chart(worker_chart("t", "samples", values, level=3.0))
    found = coordinates(text)
    assert (found >= 0).all()
    assert (found <= [360, 260]).all()
    tips = [each.text for each in parsed(text).iter("title")]
    assert f"samples: {digits(n, 4)} at {n - 1:,} (worker)" in tips
    numbers = [each.text for each in parsed(text).iter("text") if each.get("text-anchor")]
    assert not [each for each in numbers if "." in each and n > 4]


def test_a_bar_is_a_rectangle_and_bars_have_gaps():
    (series,) = worker_chart("t", "samples", [3.0, 4.0]).series
    assert series.y.tolist() == [0, 3, 3, 0, 0, 4, 4, 0]
    assert series.x.tolist() == pytest.approx([-0.38, -0.38, 0.38, 0.38, 0.62, 0.62, 1.38, 1.38])
