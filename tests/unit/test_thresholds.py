"""Thresholds: what they reach, how sure that is, and scikit-learn's tools around them."""

import json
import warnings

import numpy as np
import pytest

from codauc._internal.threshold_rules import threshold_rule
from codauc.metrics.shares import share_interval
from codauc.metrics.thresholds import Threshold, UnreachableError, choose_threshold


def sample(rows=2000, share=0.1, seed=0, shift=1.5, digits=None):
    rng = np.random.default_rng(seed)
    y = rng.random(rows) < share
    scores = rng.normal(size=rows) + shift * y
    return (scores if digits is None else scores.round(digits)), y


def every_cut(scores, y):
    """The counts of all thresholds, the plain way."""
    for value in [np.inf, *np.unique(scores)[::-1]]:
        positive = scores >= value
        yield int((positive & y).sum()), int((positive & ~y).sum())


@pytest.mark.parametrize("digits", [None, 1, 0])  # with ever more ties
@pytest.mark.parametrize("seed", range(3))
def test_each_rule_takes_the_best_of_all_thresholds(digits, seed):
    scores, y = sample(300, 0.2, seed, digits=digits)
    cuts, P, N = list(every_cut(scores, y)), y.sum(), (~y).sum()

    def chosen(rule):
        found = choose_threshold(scores, y, rule)
        counts = found.confusion(scores, y)
        assert (counts.found, counts.false) == (found.found, found.false)
        return counts.found, counts.false

    assert chosen("recall=0.8") == min(c for c in cuts if c[0] >= 0.8 * P)
    assert chosen("fpr=0.1")[1] == max(f for t, f in cuts if f <= 0.1 * N)
    t, f = chosen("precision=0.5")
    assert t == max(t for t, f in cuts if t and t >= 0.5 * (t + f))
    assert t >= 0.5 * (t + f)
    t, f = chosen("f1")
    assert 2 * t / (t + f + P) == pytest.approx(max(2 * t / (t + f + P) for t, f in cuts))
    t, f = chosen("cost=2:7")
    assert 2 * f + 7 * (P - t) == min(2 * f + 7 * (P - t) for t, f in cuts)


def test_a_threshold_lies_between_two_scores_so_that_rounding_changes_nothing():
    scores, y = sample(500)
    chosen = choose_threshold(scores, y, "recall=0.9")
    for other in (scores.astype(np.float32), scores + 1e-7, scores - 1e-7):
        assert (chosen.positive(other) == chosen.positive(scores)).all()


def test_the_interval_is_clopper_and_pearson_s():
    beta = pytest.importorskip("scipy.stats").beta
    for k, n in [(0, 1), (1, 1), (3, 3), (5, 10), (50, 60_000), (999_999, 1_000_000), (0, 10**6)]:
        low, high = share_interval(k, n)
        assert low == pytest.approx(0 if k == 0 else beta.ppf(0.025, k, n - k + 1), abs=1e-12)
        assert high == pytest.approx(1 if k == n else beta.ppf(0.975, k + 1, n - k), abs=1e-12)
    assert share_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("rule", ["recall=0.9", "fpr=0.05"])
@pytest.mark.parametrize("positives", [3, 40])
def test_intervals_hold_what_new_data_show_although_the_threshold_was_chosen(rule, positives):
    rng, held, times = np.random.default_rng(1), 0, 400
    fresh = rng.normal(size=20_000)
    for _ in range(times):
        y = np.arange(positives + 200) < positives
        chosen = choose_threshold(rng.normal(size=len(y)) + 1.5 * y, y, rule)
        true = (fresh + 1.5 * (rule[0] == "r") >= chosen.value).mean()
        held += chosen.low - 0.005 <= true <= chosen.high + 0.005
    assert held / times > 0.93


def test_three_positives_in_sixty_thousand_get_an_honest_wide_interval():
    rng = np.random.default_rng(0)
    y = np.arange(60_000) < 3
    scores = rng.normal(size=60_000) + 6 * y
    chosen = choose_threshold(scores, y, "recall=0.9")
    assert (chosen.found, chosen.reached) == (3, 1.0)
    assert (chosen.low, chosen.high) == (pytest.approx(0.2924, abs=1e-4), 1.0)
    for rule in ("f1", "cost=1:1000"):
        best = choose_threshold(scores, y, rule)
        assert best.low <= best.reached <= best.high
    assert choose_threshold(scores, y, "f1").low < 0.3
    perfect = choose_threshold([0.0, 1, 2, 3], [0, 0, 1, 1], "f1")
    assert (perfect.reached, perfect.low < 0.5) == (1.0, True)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("precision=0.9", r"highest precision that finds a positive is 0\.\d+.*ask for precision="),
        ("fpr=0.0", r"lowest fpr that finds a positive is 0\.\d+.*ask for fpr="),
    ],
)
def test_what_cannot_be_reached_is_answered_with_what_can(rule, words):
    rng = np.random.default_rng(0)
    y = np.arange(1000) < 20
    scores = np.where(y, rng.uniform(0, 0.9, 1000), rng.uniform(0, 1, 1000))
    with pytest.raises(UnreachableError, match=words) as error:
        choose_threshold(scores, y, rule)
    asked = str(error.value).rsplit("ask for ", 1)[1].rstrip(".")
    assert choose_threshold(scores, y, asked).found > 0  # which is true


def test_scores_that_are_all_equal_are_on_one_side():
    y = np.arange(10) < 3
    assert choose_threshold(np.zeros(10), y, "recall=0.1").false == 7
    nobody = choose_threshold(np.zeros(10), y, "cost=1:1")
    assert (nobody.found, nobody.false) == (0, 0)
    assert not nobody.positive(np.zeros(2)).any()
    with pytest.raises(UnreachableError, match="lowest fpr"):
        choose_threshold(np.zeros(10), y, "fpr=0.01")


@pytest.mark.parametrize(
    "text",
    ["", "recall", "recall=", "recall=2", "recall=-1", "recall=nan", "f1=0.5", "cost=1", "cost=0:1",
     "cost=1:inf", "accuracy=0.9", "recall=0.9=3", 0.5, None],
)  # fmt: skip
def test_a_rule_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match=r"expected recall=R, precision=P or fpr=F"):
        threshold_rule(text)


def test_a_threshold_passes_through_json():
    chosen = choose_threshold(*sample(), "cost=1:20")
    assert Threshold.from_dict(json.loads(json.dumps(chosen.to_dict()))) == chosen
    for change in ({"value": "x"}, {"value": float("nan")}, {"rule": "y"}, {"more": 1}):
        with pytest.raises(ValueError):
            Threshold.from_dict({**chosen.to_dict(), **change})


# AUCClassifier and scikit-learn's own tools


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 4))
    return X, np.where(X[:, 0] + rng.normal(size=900) > 1.6, "sick", "well")


def estimator(**options):
    pytest.importorskip("sklearn")
    from codauc import AUCClassifier

    return AUCClassifier(steps=40, random_state=0, **options)


def test_the_estimator_predicts_by_its_threshold(rows):
    X, y = rows
    plain, model = estimator().fit(X, y), estimator(threshold="recall=0.95").fit(X, y)
    assert plain.threshold_ is None
    assert (plain.predict(X) == plain.classes_[(plain.decision_function(X) > 0).astype(int)]).all()
    chosen = model.threshold_
    assert chosen.reached >= 0.95
    assert chosen.positives + chosen.negatives == 900  # each row, by a member that never saw it
    called = model.classes_[chosen.positive(model.decision_function(X)).astype(int)]
    assert (model.predict(X) == called).all()
    assert (model.decision_function(X) == plain.decision_function(X)).all()
    assert (model.predict(X) != plain.predict(X)).any()


def test_the_estimator_warns_of_a_threshold_that_is_not_reached(rows):
    X, y = rows
    with pytest.warns(UserWarning, match="No threshold: precision=0.99 is not reached"):
        model = estimator(threshold="precision=0.99").fit(np.zeros_like(X), y)
    assert model.threshold_ is None
    with pytest.raises(ValueError, match="expected recall=R"):
        estimator(threshold="recal=1").fit(X, y)
    for fit in (estimator(threshold="f1", validation_fraction=0).fit,
                estimator(threshold="f1").partial_fit):  # fmt: skip
        with pytest.raises(ValueError, match="without a validation set"):
            fit(X, y)


def test_tuned_threshold_classifier_and_frozen_estimator_work_around_it(rows):
    selection = pytest.importorskip("sklearn.model_selection")
    frozen = pytest.importorskip("sklearn.frozen")
    X, y = rows
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuned = selection.TunedThresholdClassifierCV(
            estimator(), scoring="balanced_accuracy", cv=2, random_state=0
        ).fit(X, y)
        assert set(tuned.predict(X)) == {"sick", "well"}
        model = estimator(threshold="recall=0.9").fit(X[:600], y[:600])
        kept = frozen.FrozenEstimator(model)
        assert (kept.fit(X[:10], y[:10]).predict(X) == model.predict(X)).all()
        again = selection.TunedThresholdClassifierCV(
            kept, scoring="f1_macro", cv="prefit", refit=False
        ).fit(X[600:], y[600:])
    proba = model.predict_proba(X)[:, list(model.classes_).index(again.classes_[1])]
    called = again.classes_[(proba >= again.best_threshold_).astype(int)]
    assert (again.predict(X) == called).all()
