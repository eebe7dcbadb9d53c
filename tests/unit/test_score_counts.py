"""Claims about AUCs of scores that stay with their worker."""

import numpy as np
import pytest

import codauc
from codauc.metrics.auc_difference import paired_auc_difference
from codauc.metrics.score_counts import BINS, count_scores, difference_error, put_together


def data(seed, rows=900, ties=False):
    rng = np.random.default_rng(seed)
    labels = rng.random(rows) < 0.3
    scores = rng.normal(size=rows) + labels
    return (np.round(scores, 1) if ties else scores), labels


def over(workers, function, *arrays):
    """`function` of each worker's part of the arrays, on all of them."""
    cuts = np.linspace(0, len(arrays[0]), workers + 1).astype(int) ** 1

    def work(group):
        rows = slice(cuts[group.rank], cuts[group.rank + 1])
        return function(*(array[rows] for array in arrays), group)

    return codauc.launch(work, workers=workers, simulate=True)


@pytest.mark.parametrize("least", [0, 3, 25])
@pytest.mark.parametrize("ties", [False, True])
def test_the_exact_auc_is_within_the_bound(least, ties):
    for seed in range(3):
        scores, labels = data(seed, ties=ties)
        exact = codauc.auc(scores, labels)
        for found in over(3, lambda s, y, g: count_scores(s, y, g, least), scores, labels):
            shown = codauc.auc(*found.scores())
            assert abs(shown - exact) <= found.bound + 1e-12
            assert (found.counts.sum(1) == [(~labels).sum(), labels.sum()]).all()


def test_without_a_least_number_the_bound_is_the_share_of_pairs_in_one_bin():
    scores, labels = data(0)
    found = over(2, count_scores, scores, labels)[0]
    downs, ups = found.counts
    assert found.bound == pytest.approx((downs * ups).sum() / (2 * downs.sum() * ups.sum()))
    assert found.bound < 1e-3


def test_equal_scores_are_half_and_one_worker_may_have_none():
    labels = np.arange(20) % 2 == 0

    def work(group):
        mine = slice(0, 0) if group.rank else slice(0, 20)
        return count_scores(np.zeros(20)[mine], labels[mine], group)

    for found in codauc.launch(work, workers=2, simulate=True):
        assert codauc.auc(*found.scores()) == 0.5
        assert found.bound == 0.5


def test_no_bin_has_fewer_than_the_least_number_and_none_is_lost():
    rng = np.random.default_rng(0)
    counts = rng.poisson(0.3, BINS)
    for least in (2, 7, 100):
        for row in put_together(counts, least):
            assert row.sum() == counts.sum()
            assert not ((row > 0) & (row < least)).any()
    assert not put_together(np.array([1, 1, 0]), 3).any()


@pytest.mark.parametrize("workers", [1, 3])
def test_the_error_of_a_difference_is_delong_s_paired_one(workers):
    first, labels = data(0)
    second = first + 0.3 * np.random.default_rng(1).normal(size=len(first))
    expected = paired_auc_difference(first, second, labels).std_error
    found = over(workers, lambda a, b, y, g: difference_error(a, b, y, g), first, second, labels)
    assert len(set(found)) == 1
    assert found[0] == pytest.approx(expected, rel=1e-2)
