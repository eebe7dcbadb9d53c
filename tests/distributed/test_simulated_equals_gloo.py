"""Simulated workers and real processes over gloo compute the same."""

import functools
import itertools

import pytest
import torch
import workers as w

import codauc
from codauc.metrics.auc_values import auc_interval


@functools.cache
def simulated(function, count):
    """What each worker got, simulated."""
    return codauc.launch(function, workers=count, simulate=True)


def both(function, count):
    """What each worker got, simulated and in processes."""
    return simulated(function, count), codauc.launch(function, workers=count, timeout=120)


@pytest.mark.parametrize("count", [2, 3])
def test_simulated_equals_gloo(count):
    """K=2 bit for bit; otherwise to 1e-10 in float64, and to 1e-6 in float32 after a round."""
    for one, real in zip(*both(w.all_scenarios, count), strict=True):
        for name, (tensors, ledger) in one.items():
            others, other_ledger = real[name]
            assert ledger == other_ledger, name
            limit = 0.0 if count == 2 else 1e-6 if "float32" in name else 1e-10
            for key, tensor in tensors.items():
                error = (tensor.double() - others[key].double()).abs().max().item()
                assert error <= limit, (name, key, error)


def test_scenarios_differ_from_each_other():
    results = simulated(w.all_scenarios, 2)[0]
    weights = {name: results[name][0]["body.0.weight"] for name in w.SCENARIOS}
    same = weights.pop("inner, delayed")
    assert torch.equal(same, weights["inner"])  # one machine: already equal, nothing to correct
    for name, other in itertools.combinations(weights, 2):
        assert not torch.equal(weights[name], weights[other]), (name, other)


@pytest.mark.parametrize("count", [3])
def test_every_worker_gets_the_exact_auc_of_unequal_and_empty_shards(count):
    x, y = w.whole_set(count)
    expected = auc_interval(x.sum(1) + 1, y)
    for results in both(w.evaluations, count):
        for exact, bounded in results:
            assert exact == expected
            assert abs(bounded.value - exact.value) <= bounded.bound <= 0.01
