"""Claims about values as files: they come back as they were, or not at all."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codauc._internal.archive import pack, unpack

SIMPLE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
TENSORS = st.builds(
    lambda values, kind: torch.tensor(values).to(kind),
    st.lists(st.integers(0, 100), max_size=4),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16]),
)
VALUES = st.recursive(
    SIMPLE | TENSORS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(one, other):
    """Equal, of the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor | np.ndarray):
        return one.dtype == other.dtype and bool((one == other).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_values_come_back_as_they_were(value):
    assert same(unpack(pack(value)), value)


def test_shared_memory_zero_dimensions_and_arrays_come_back():
    whole = torch.arange(6.0)
    value = {"a": whole, "b": whole[:3], "c": torch.tensor(2.0), "d": np.array([True, False])}
    back = unpack(pack(value))
    assert same(back, value)
    assert back["c"].dim() == 0


def test_what_is_not_plain_is_refused():
    with pytest.raises(ValueError, match=r"/a/0: object cannot be saved"):
        pack({"a": [object()]})
    with pytest.raises(ValueError, match="a key 1 cannot be saved"):
        pack({1: 2})


def test_no_flipped_bit_and_no_cut_gives_other_values():
    value = {"weights": torch.linspace(0, 1, 9), "step": 12, "names": ["a", "b"]}
    data = pack(value)
    for bit in range(0, 8 * len(data), 3):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found = unpack(bytes(damaged))
        except ValueError:
            continue
        assert same(found, value)
    for length in range(0, len(data), 7):
        with pytest.raises(ValueError, match="not a whole snapshot"):
            unpack(data[:length])


class Bomb:
    def __reduce__(self):
        return Path.touch, (Path("exploded"),)


def test_a_pickle_does_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for data in (pickle.dumps(Bomb()), pickle.dumps({"state": Bomb()})):
        with pytest.raises(ValueError, match="not a whole snapshot"):
            unpack(data)
    torch.save(Bomb(), tmp_path / "bomb")
    with pytest.raises(ValueError, match="not a whole snapshot"):
        unpack((tmp_path / "bomb").read_bytes())
    assert not Path("exploded").exists()
