"""Claims about groups and sample weights of AUCClassifier."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.model_selection import GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from codauc import AUCClassifier


def patients(count=80, rows=6, seed=0):
    random = np.random.default_rng(seed)
    who = np.repeat(np.arange(count), rows)
    x = random.normal(size=(count, 4))[who] + 0.01 * random.normal(size=(count * rows, 4))
    return x, (np.arange(count) % 3 == 0)[who].astype(int), np.array([f"P{w}" for w in who])


def quick(**options):
    return AUCClassifier(**{"steps": 60, "random_state": 0} | options)


@pytest.mark.parametrize("as_frame", [False, True])
def test_groups_keep_the_validation_auc_of_noise_near_one_half(as_frame):
    x, y, who = patients()
    x = pd.DataFrame(x, columns=list("abcd")) if as_frame else x
    alone, grouped = quick(steps=100).fit(x, y), quick(steps=100).fit(x, y, groups=who)
    assert alone.validation_auc_ > max(0.7, grouped.validation_auc_ + 0.05)


def test_too_few_groups_are_told():
    x, y, _ = patients()
    with pytest.raises(ValueError, match="expected at least 2, one for each part"):
        quick().fit(x, y, groups=np.zeros(len(y)))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        quick().fit(x, y, groups=[1, 2])


def test_equal_weights_give_the_same_model_bit_for_bit():
    x, y, _ = patients()
    plain = quick().fit(x, y).decision_function(x)
    assert np.array_equal(
        quick().fit(x, y, sample_weight=np.full(len(y), 3)).decision_function(x), plain
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_of_weight_zero_are_as_if_not_there(workers):
    x, y, _ = patients()
    weights = (np.arange(len(y)) % 5 > 0).astype(float)
    options = {"workers": workers, "simulate": True}
    mine = quick(**options).fit(x, y, sample_weight=weights).decision_function(x)
    kept = weights > 0
    theirs = quick(**options).fit(x[kept], y[kept]).decision_function(x)
    assert np.corrcoef(mine, theirs)[0, 1] > 0.99


def test_weights_decide_which_rows_are_learnt():
    random = np.random.default_rng(0)
    x = random.normal(size=(1200, 3))
    truth = (x[:, 0] + 0.3 * random.normal(size=1200) > 0.5).astype(int)
    wrong = random.random(1200) < 0.7
    y = np.where(wrong, 1 - truth, truth)
    model = quick(steps=100).fit(x, y, sample_weight=np.where(wrong, 0.01, 1.0))
    assert model.score(x, truth) > 0.9
    assert quick(steps=100).fit(x, y).score(x, truth) < 0.4


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([-1.0] + [1.0] * 479, "row 0: the weight is -1"),
        ([np.nan] + [1.0] * 479, "row 0: the weight is nan"),
        ([0.0] * 480, "all weights are zero"),
        ([1.0, 2.0], r"shape \[2\]: expected one per row"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    x, y, _ = patients()
    with pytest.raises(ValueError, match=message):
        quick().fit(x, y, sample_weight=weights)
    with pytest.raises(ValueError, match="leaves one class alone"):
        quick().fit(x, y, sample_weight=y.astype(float))


def test_the_score_is_weighted():
    x, y, _ = patients()
    model, weights = quick().fit(x, y), np.arange(len(y)) % 3
    repeated = np.repeat(np.arange(len(y)), weights)
    mine = model.score(x, y, sample_weight=weights)
    assert mine == pytest.approx(model.score(x[repeated], y[repeated]), abs=1e-12)
    assert mine != model.score(x, y)


def test_metadata_is_routed_through_a_pipeline_and_a_cross_validation():
    x, y, who = patients()
    with sklearn.config_context(enable_metadata_routing=True):
        model = quick().set_fit_request(groups=True, sample_weight=True)
        model.set_score_request(sample_weight=True)
        found = cross_validate(
            make_pipeline(MinMaxScaler(), model),
            x,
            y,
            cv=GroupKFold(2),
            params={"groups": who, "sample_weight": np.linspace(0.5, 2, len(y))},
            return_estimator=True,
        )
    assert len(found["test_score"]) == 2
    with sklearn.config_context(enable_metadata_routing=True):
        alone = quick().fit(x, y, groups=who, sample_weight=np.linspace(0.5, 2, len(y)))
    assert alone.validation_auc_ is not None
