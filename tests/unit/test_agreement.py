"""What is compared over the workers, and what the error names."""

import itertools
import math

import numpy as np
import pytest
import torch

import codauc
from codauc.workers.agreement import compare, gather_bytes, plain

CPU = torch.device("cpu")


def difference(first, other, workers=3):
    """The errors of all workers, of whom the last has another value."""

    def work(group):
        mine = other if group.rank == group.size - 1 else first
        try:
            compare(group, {"same": 1, "setting": mine}, CPU)
        except ValueError as error:
            return str(error)
        return None

    errors = set(codauc.launch(work, workers=workers, simulate=True))
    assert len(errors) == 1
    return errors.pop()


@pytest.mark.parametrize(
    ("first", "other", "text"),
    [
        (1, 2, "worker 0 and worker 2 differ in setting (1 and 2)"),
        (1, 1.0, "differ in setting (1 and 1.0)"),
        (1, True, "differ in setting (1 and True)"),
        ("a", None, "differ in setting (a and None)"),
        ([1, 2, 3], [1, 2], "differ in setting[2] (3 and absent)"),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "differ in setting a[1] b (2 and 3)"),
        ({"a": math.nan, "b": 1}, {"a": math.nan, "b": 2}, "differ in setting b (1 and 2)"),
        ({"a": 1}, {}, "differ in setting a (1 and absent)"),
        (np.arange(5000), np.where(np.arange(5000) == 2500, 0, np.arange(5000)), "differ in"),
        (torch.zeros(3), torch.ones(3), "differ in setting (float64 [3]"),
        (torch.tensor(1.0), torch.tensor(2.0), "differ in setting (1.0 and 2.0)"),
        (np.float32(1), np.float32(2), "differ in setting (1.0 and 2.0)"),
    ],
)
def test_every_worker_gets_the_same_error_with_the_first_difference(first, other, text):
    assert text in difference(first, other)


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}),
        ({"x", "y", "z"}, {"z", "y", "x"}),
        ((1, 2), [1, 2]),
        (math.inf, math.inf),
        (np.int64(3), 3),
    ],
)
def test_what_is_equal_is_not_reported(first, other):
    assert difference(first, other) is None


def test_only_a_hash_is_sent_where_all_agree():
    def work(group):
        compare(group, {"setting": "x" * 10_000}, CPU)
        return group.ledger.bytes_sent

    assert codauc.launch(work, workers=2, simulate=True) == [8, 8]


def test_what_cannot_be_compared_is_named():
    with pytest.raises(ValueError, match=r"model\[1\]: got object, which cannot be compared"):
        plain({"model": [1, object()]})


def test_bytes_of_any_length_are_gathered():
    texts = [b"", b"a", b"bb \x00 \xff "]

    def work(group):
        return gather_bytes(group, texts[group.rank], "start", CPU)

    for order in itertools.permutations(range(3)):
        texts = [texts[k] for k in order]
        assert codauc.launch(work, workers=3, simulate=True) == [texts] * 3
