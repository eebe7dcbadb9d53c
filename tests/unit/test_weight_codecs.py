"""Claims about weights in few bits, against a slow reference."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from codauc.algorithm.weight_codecs import CODECS


def reference(codec, block):
    """A block number by number: the scale, then the nearest of the levels."""
    sizes = [abs(x) for x in block]
    scale = max(sizes) / codec.levels
    if codec.spread is not None:
        scale = codec.spread * sum(sizes) / len(sizes)
    levels = range(-codec.levels, codec.levels + 1)
    return [min(levels, key=lambda q: abs(x - q * scale)) * scale for x in block]


def coded(codec, values):
    """Values there and back, by blocks, and their bytes."""
    rows = values.view(1, -1)
    blocks = rows.view(1, -1, codec.block)
    scales, scratch = codec.scales(blocks.abs()), torch.empty_like(rows)
    codec.quantise(blocks, scales, scratch.view_as(blocks))
    codes = torch.zeros(1, rows.numel() * codec.bits // 8, dtype=torch.uint8)
    codec.pack(scratch, codes)
    found = torch.empty_like(rows)
    codec.unpack(codes, found)
    return (found.view_as(blocks) * scales.unsqueeze(2)).flatten(), codes


@pytest.mark.parametrize("name", CODECS)
@given(seed=st.integers(0, 10**6), exponent=st.integers(-30, 10))
def test_the_codec_gives_what_the_reference_gives(name, seed, exponent):
    codec = CODECS[name]
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(2 * codec.block, generator=generator, dtype=torch.float64) * 10.0**exponent
    values[: codec.block // 2] *= 100
    found, codes = coded(codec, values)
    expected = [x for block in values.view(2, -1) for x in reference(codec, block.tolist())]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)
    assert codes.numel() == 2 * codec.block * codec.bits // 8


@pytest.mark.parametrize("name", CODECS)
def test_zeros_stay_zeros_and_a_single_value_comes_through(name):
    codec = CODECS[name]
    values = torch.zeros(codec.block)
    assert torch.equal(coded(codec, values)[0], values)
    values[7] = -3.0
    found = coded(codec, values)[0]
    assert found[7] < 0
    assert (found != 0).sum() == 1


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_do_not_become_finite(name, bad):
    codec = CODECS[name]
    values = torch.ones(codec.block)
    values[3] = bad
    assert not coded(codec, values)[0].isfinite().all()


@pytest.mark.parametrize("name", CODECS)
def test_error_feedback_brings_the_sum_of_what_was_meant(name):
    codec, total, sent = CODECS[name], torch.zeros(512), torch.zeros(512)
    error = torch.zeros(512)
    for step in range(200):
        change = torch.randn(512, generator=torch.Generator().manual_seed(step)) + 0.05
        total += change
        found = coded(codec, change + error)[0]
        error = change + error - found
        sent += found
    assert torch.allclose(sent + error, total, atol=1e-3)
    assert error.abs().max() < 40  # it stays bounded, while the total grows
