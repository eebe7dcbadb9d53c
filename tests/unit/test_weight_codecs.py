"""Claims about weights and moments in few bits, against slow references."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codauc.algorithm.weight_codecs import CODECS, MOMENT_CODECS


def reference(codec, block):
    """A block number by number: the scale, then the nearest of the levels."""
    sizes = [abs(x) for x in block]
    scale = max(sizes) / codec.levels
    if codec.spread is not None:
        scale = codec.spread * sum(sizes) / len(sizes)
    scale = torch.tensor(scale, dtype=torch.float32).item()
    levels = range(-codec.levels, codec.levels + 1)
    return [min(levels, key=lambda q: abs(x - q * scale)) * scale for x in block]


def coded(codec, values):
    """Values there and back, by blocks, and their bytes."""
    rows, blocks = values.view(1, -1), values.numel() // codec.block
    scales = torch.zeros(1, 4 * blocks, dtype=torch.uint8)
    codes = torch.zeros(1, rows.numel() * codec.bits // 8, dtype=torch.uint8)
    before = rows.clone()
    codec.encode(rows, scales, codes, torch.empty_like(rows))
    assert torch.equal(rows.nan_to_num(), before.nan_to_num())
    found = torch.full_like(rows, math.nan)
    codec.decode(scales, codes, found)
    return found.flatten(), codes


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=25)  # of 512 numbers each
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


# Moments


def half(value):
    """A number as float16 holds it."""
    return torch.tensor(value).half().item()


def moment_reference(codec, block):
    """A block number by number: the range of the logarithms, then the nearest of the levels."""
    positive = [x for x in block if x > 0]
    if not positive:
        return [0.0] * len(block)
    high = math.log2(max(positive))
    logs = [max(math.log2(x), high - 24) for x in positive]
    low = min(logs)
    if codec.spread is not None:
        mean = sum(logs) / len(logs)
        wide = codec.spread * math.sqrt(sum((log - mean) ** 2 for log in logs) / len(logs))
        low = max(low, mean - wide)
    low, high = half(low), half(high)
    levels = [low + q * (high - low) / (2**codec.bits - 1) for q in range(2**codec.bits)]
    logs = [math.log2(x) if x > 0 else -math.inf for x in block]
    return [2 ** min(levels, key=lambda level: abs(max(log, -1e9) - level)) for log in logs]


def moments(seed, scale=1.0, spread=6.0, blocks=2):
    generator = torch.Generator().manual_seed(seed)
    logs = spread * torch.randn(256 * blocks, generator=generator, dtype=torch.float64)
    return scale * torch.exp2(logs)


@pytest.mark.parametrize("name", MOMENT_CODECS)
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), exponent=st.integers(-24, 6), spread=st.sampled_from([0, 1, 6]))
def test_the_moment_codec_gives_what_the_reference_gives(name, seed, exponent, spread):
    codec, values = MOMENT_CODECS[name], moments(seed, 10.0**exponent, spread)
    values[5::7] = 0.0
    found, codes = coded(codec, values)
    expected = [x for block in values.view(2, -1) for x in moment_reference(codec, block.tolist())]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)
    assert codes.numel() == 2 * codec.block * codec.bits // 8


@pytest.mark.parametrize(("name", "octaves"), [("int8", 0.1), ("int4", 1.2)])
def test_the_error_of_a_moment_is_relative(name, octaves):
    values = moments(0, 1e-6, spread=4.0)
    found = coded(MOMENT_CODECS[name], values)[0]
    assert (found / values).log2().abs().max() <= octaves


@pytest.mark.parametrize("name", MOMENT_CODECS)
def test_moments_stay_positive_between_the_least_and_the_largest_and_zeros_stay(name):
    codec = MOMENT_CODECS[name]
    assert torch.equal(coded(codec, torch.zeros(256))[0], torch.zeros(256))
    values = moments(1).float()
    found = coded(codec, values)[0]
    for block, before in zip(found.view(2, -1), values.view(2, -1), strict=True):
        assert block.min() >= before.min() * 0.99
        assert block.max() <= before.max() * 1.01


@pytest.mark.parametrize("name", MOMENT_CODECS)
def test_moments_that_are_coded_again_and_again_do_not_drift_away(name):
    codec, values = MOMENT_CODECS[name], moments(2, 1e-5, spread=3.0)
    found = values
    for _ in range(20):
        found = coded(codec, found)[0]
    assert (found / values).log2().abs().mean() < {"int8": 0.1, "int4": 0.6, "int2": 2.5}[name]


@pytest.mark.parametrize("name", MOMENT_CODECS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_moments_that_are_not_finite_do_not_become_finite(name, bad):
    values = moments(3)
    values[3] = bad
    assert not coded(MOMENT_CODECS[name], values)[0].isfinite().all()
