"""Curves of a test set, against counting by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codauc.metrics.auc_difference import paired_auc_difference
from codauc.metrics.auc_values import auc, auc_interval
from codauc.report.curves import operating, reaching, score_groups, shares, thinned_points, wilson
from codauc.report.test_set_cards import rounded_down

samples = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), min_size=2, max_size=40
).filter(lambda rows: len({row[2] for row in rows}) == 2)


def arrays(rows):
    a, b, labels = zip(*rows, strict=True)
    return np.array(a, float), np.array(b, float), np.array(labels)


@given(samples)
def test_every_threshold_is_counted_and_the_area_is_the_auc(rows):
    scores, _, labels = arrays(rows)
    points = operating(scores, labels)
    for threshold, hits, alarms in zip(*points[:3], strict=True):
        assert hits == (labels & (scores >= threshold)).sum()
        assert alarms == (~labels & (scores >= threshold)).sum()
    area = np.trapezoid(points.recall, points.false_rate)
    assert area == pytest.approx(auc(scores, labels), abs=1e-12)


def test_one_class_or_nothing_has_no_curve():
    assert operating(np.array([1.0, 2.0]), np.array([True, True])) is None
    assert operating(np.array([]), np.array([], bool)) is None
    assert operating(np.array([np.nan, 2.0]), np.array([True, False])) is None


def test_infinite_scores_are_in_order_and_nan_is_left_out():
    points = operating(
        np.array([np.inf, 1.0, -np.inf, np.nan]), np.array([True, True, False, False])
    )
    assert points.recall.tolist() == [0, 0.5, 1, 1]
    assert points.negatives == 1


@pytest.mark.parametrize(("ratio", "shift"), [(0.3, 1.5), (0.02, 2.0)])
def test_a_large_curve_is_thinned_to_its_own_points(ratio, shift):
    rng = np.random.default_rng(0)
    labels = rng.random(300_000) < ratio
    points = operating(rng.normal(size=300_000) + shift * labels, labels)
    thin = thinned_points(points)
    assert len(thin.hits) <= 400
    every = set(zip(points.alarms.tolist(), points.hits.tolist(), strict=True))
    kept = list(zip(thin.alarms.tolist(), thin.hits.tolist(), strict=True))
    assert set(kept) <= every
    assert kept[0] == (0, 0)
    assert kept[-1] == (points.negatives, points.positives)
    fine = np.trapezoid(points.recall, points.false_rate)
    assert np.trapezoid(thin.recall, thin.false_rate) == pytest.approx(fine, abs=1e-3)
    assert np.diff(thin.recall).max() < 0.02  # no gap that could be seen
    assert thin.precision[-1] == pytest.approx(labels.mean())


@given(samples, st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99]))
def test_a_threshold_reaches_its_recall_and_none_higher_does(rows, recall):
    points = operating(*arrays(rows)[::2])
    found = reaching(points, recall)
    assert found.recall[0] >= recall - 1e-9
    higher = points.thresholds > found.thresholds[0]
    assert (points.recall[higher] < recall).all()


@given(st.floats(0, 1))
def test_a_threshold_is_never_rounded_up(value):
    assert float(rounded_down(value)) <= value + 1e-15


def test_constant_scores_are_one_jump():
    points = operating(np.zeros(10), np.arange(10) < 4)
    assert thinned_points(points).recall.tolist() == [0, 1]
    assert thinned_points(points).precision.tolist() == [0, 0.4]


def test_wilson_holds_the_share_and_stays_within_0_and_1():
    rate = np.linspace(0, 1, 101)
    for n in (1, 10, 1000):
        low, high = wilson(rate, n)
        assert (low <= rate + 1e-12).all()
        assert (rate <= high + 1e-12).all()
        assert low.min() >= 0
        assert high.max() <= 1


def test_shares_add_up_to_one():
    edges = np.linspace(-3, 3, 41)
    assert shares(np.array([-1e9, -1.0, 0.0, 5.0, np.inf]), edges).sum() == pytest.approx(1)
    assert shares(np.array([np.nan]), edges).sum() == 0


@pytest.mark.parametrize("ratio", [0.5, 0.01, 0.97])
def test_groups_of_scores_hold_every_sample_and_about_as_many_of_the_rarer_class(ratio):
    rng = np.random.default_rng(0)
    odds = rng.normal(np.log(ratio / (1 - ratio)), 1.0, 20_000)
    labels = rng.random(20_000) < 1 / (1 + np.exp(-odds))
    groups = score_groups(odds, labels)
    assert len(groups) == 10
    assert sum(group.samples for group in groups) == 20_000
    assert sum(group.positives for group in groups) == labels.sum()
    rarer = [g.positives if ratio <= 0.5 else g.samples - g.positives for g in groups]
    assert max(rarer) <= min(rarer) + 1
    # scores that are true log-odds: the share of positives is what is predicted
    for predicted, positives, samples in groups:
        error = np.sqrt(predicted * (1 - predicted) / samples)
        assert abs(positives / samples - predicted) < 4 * error


def test_equal_scores_are_one_group():
    assert len(score_groups(np.zeros(500), np.arange(500) < 50)) == 1
    assert score_groups(np.full(3, np.nan), np.array([True, False, True])) == []


def by_hand(scores, labels):
    """Placements by comparing all pairs."""
    ups, downs = scores[labels][:, None], scores[~labels][None, :]
    wins = (ups > downs) + 0.5 * (ups == downs)
    return wins.mean(1), wins.mean(0)


@given(samples)
def test_paired_difference_equals_comparing_all_pairs(rows):
    a, b, labels = arrays(rows)
    found = paired_auc_difference(a, b, labels)
    (up_a, down_a), (up_b, down_b) = by_hand(a, labels), by_hand(b, labels)
    assert found.value == pytest.approx(up_a.mean() - up_b.mean(), abs=1e-12)
    parts = [up_a - up_b, down_a - down_b]
    if any(len(part) == 1 for part in parts) or all(np.ptp(part) < 1e-12 for part in parts):
        return
    error = np.sqrt(sum(np.var(part, ddof=1) / len(part) for part in parts))
    assert found.std_error == pytest.approx(error, abs=1e-12)
    assert -1 <= found.low <= found.value <= found.high <= 1


@given(samples)
def test_paired_difference_changes_sign_with_the_order(rows):
    a, b, labels = arrays(rows)
    one, two = paired_auc_difference(a, b, labels), paired_auc_difference(b, a, labels)
    assert one.value == pytest.approx(-two.value, abs=1e-12)
    assert one.low == pytest.approx(-two.high, abs=1e-12)


def test_against_a_constant_the_error_is_that_of_one_auc():
    rng = np.random.default_rng(0)
    labels = rng.random(500) < 0.2
    scores = rng.normal(size=500) + labels
    found = paired_auc_difference(scores, np.zeros(500), labels)
    single = auc_interval(scores, labels)
    assert found.value == pytest.approx(single.value - 0.5)
    assert found.std_error == pytest.approx(single.std_error)


def test_equal_differences_do_not_give_an_interval_without_width():
    labels = np.array([True, True, False, False])
    same = paired_auc_difference([1, 2, 3, 4], [1, 2, 3, 4], labels)
    assert same.value == 0
    assert same.low < 0 < same.high
    far = paired_auc_difference([3, 4, 1, 2], [1, 2, 3, 4], labels)
    assert far.value == 1
    assert -1 <= far.low < far.high <= 1


def test_labels_may_be_written_in_each_way():
    a, b = [0.1, 0.5, 0.3, 0.9], [0.2, 0.1, 0.3, 0.4]
    forms = ([0, 1, 0, 1], [-1, 1, -1, 1], [False, True, False, True])
    assert len({paired_auc_difference(a, b, np.array(labels)) for labels in forms}) == 1


def test_one_class_is_an_error():
    with pytest.raises(ValueError, match="expected at least one of each"):
        paired_auc_difference([1.0, 2.0], [1.0, 2.0], [1, 1])


def test_the_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(300):
        labels = np.arange(300) < 90
        common = rng.normal(size=300) + labels
        a, b = common + 0.5 * rng.normal(size=300), common + 0.5 * rng.normal(size=300)
        found = paired_auc_difference(a, b, labels)
        inside += found.low <= 0 <= found.high
    assert 0.91 < inside / 300 < 0.99
