"""Claims about the AUC of weighted samples and of samples in groups."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import codauc
from codauc.metrics import weighted_auc_interval


@given(st.integers(0, 999), st.integers(4, 40))
def test_whole_weights_are_repeated_samples(seed, count):
    random = np.random.default_rng(seed)
    scores, labels = random.integers(0, 9, count) / 8, np.arange(count) % 2
    weights = random.integers(0, 4, count)
    weights[:2] = 1
    found = weighted_auc_interval(scores, labels, weights)
    repeated = codauc.auc(np.repeat(scores, weights), np.repeat(labels, weights))
    assert found.value == pytest.approx(repeated, abs=1e-14)
    larger = weighted_auc_interval(scores, labels, weights * 7.5)
    assert tuple(larger) == pytest.approx(tuple(found), abs=1e-12)


def test_equal_weights_and_groups_of_one_are_delongs_interval():
    random = np.random.default_rng(0)
    scores, labels = random.normal(size=300), random.random(300) < 0.3
    plain = codauc.auc_interval(scores, labels)
    assert weighted_auc_interval(scores, labels) == plain
    ones = weighted_auc_interval(scores, labels, np.full(300, 2.0))
    assert tuple(ones) == pytest.approx(tuple(plain), abs=1e-12)
    alone = weighted_auc_interval(scores, labels, groups=np.arange(300))
    assert tuple(alone) == pytest.approx(tuple(plain), abs=2e-3)


def test_copies_within_a_group_make_no_narrower_interval():
    random = np.random.default_rng(1)
    scores, labels = random.normal(size=80), random.random(80) < 0.4
    plain = codauc.auc_interval(scores, labels)
    copied = weighted_auc_interval(
        np.repeat(scores, 9), np.repeat(labels, 9), groups=np.repeat(np.arange(80), 9)
    )
    assert copied.value == pytest.approx(plain.value)
    assert copied.std_error == pytest.approx(plain.std_error, rel=0.03)


def test_intervals_of_groups_hold_the_truth_as_often_as_they_say():
    random, held, too_narrow = np.random.default_rng(2), 0, 0
    for _ in range(400):
        who = np.repeat(np.arange(60), random.integers(1, 12, 60))
        scores = random.normal(size=60)[who] + 0.1 * random.normal(size=len(who))
        labels = (np.arange(60) % 3 == 0)[who]
        found = weighted_auc_interval(scores, labels, groups=who)
        held += found.low <= 0.5 <= found.high
        plain = codauc.auc_interval(scores, labels)
        too_narrow += not plain.low <= 0.5 <= plain.high
    assert held >= 0.91 * 400
    assert too_narrow > 0.3 * 400


def test_perfect_scores_of_few_groups_are_not_certain():
    scores, labels, who = np.repeat([0.0, 1.0], 50), np.repeat([0, 1], 50), np.arange(100) // 25
    found = weighted_auc_interval(scores, labels, groups=who)
    assert (found.value, found.high) == (1, 1)
    assert found.low == pytest.approx(0.025**0.5)


@pytest.mark.parametrize("bad", [[1, -1, 1, 1], [1, np.nan, 1, 1], [1, np.inf, 1, 1], [1, 1, 1]])
def test_bad_weights_are_refused(bad):
    with pytest.raises(ValueError, match="expected one finite number >= 0 per score"):
        weighted_auc_interval([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1], bad)


def test_a_class_without_weight_is_told():
    with pytest.raises(ValueError, match="0 positives"):
        weighted_auc_interval([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1], [1, 0, 1, 0])
