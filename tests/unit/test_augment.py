"""Claims about random changes of images: each equals a slow loop over the samples."""

import pickle

import pytest
import torch

from codauc.data.augment import Augment, CenterCrop, Crop, Flip

SHAPES = [(7, 3, 8, 8), (5, 1, 6, 11), (4, 2, 9, 5), (1, 3, 1, 1), (0, 3, 8, 8)]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def images(shape=(7, 3, 8, 8), dtype=torch.float32):
    return torch.randn(shape, generator=seeded(9)).to(dtype)


def flip_loop(x, probability, generator):
    draws = torch.rand(len(x), generator=generator)
    out = [x[n].flip(2) if draws[n] < probability else x[n] for n in range(len(x))]
    return torch.stack(out) if out else x.clone()


def crop_loop(x, size, padding, generator):
    count, channels, rows, columns = x.shape
    height, width = (rows, columns) if size is None else (size, size)
    tall, wide = rows + 2 * padding, columns + 2 * padding
    tops = torch.randint(tall - height + 1, (count,), generator=generator).tolist()
    lefts = torch.randint(wide - width + 1, (count,), generator=generator).tolist()
    out = torch.empty(count, channels, height, width, dtype=x.dtype)
    for n, (top, left) in enumerate(zip(tops, lefts, strict=True)):
        canvas = torch.zeros(channels, tall, wide, dtype=x.dtype)
        canvas[:, padding : padding + rows, padding : padding + columns] = x[n]
        out[n] = canvas[:, top : top + height, left : left + width]
    return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("probability", [0, 0.3, 0.5, 1])
def test_flip_equals_the_loop(shape, probability):
    x = images(shape)
    found = Flip(probability)(x, seeded())
    assert torch.equal(found, flip_loop(x, probability, seeded()))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("size", "padding"), [(None, 4), (None, 0), (1, 0), (3, 2), (5, 3)])
def test_crop_equals_the_loop(shape, size, padding):
    x = images(shape)
    found = Crop(size, padding)(x, seeded(1))
    assert torch.equal(found, crop_loop(x, size, padding, seeded(1)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("size", "padding"), [(None, 4), (None, 0), (3, 2)])
def test_a_filled_edge_repeats_the_outermost_pixels(shape, size, padding):
    x = images(shape)
    padded = torch.nn.functional.pad(x, (padding,) * 4, mode="replicate") if len(x) else x
    size = size or shape[2]
    if shape[2] == shape[3] and len(x):  # a given size is a square
        expected = crop_loop(padded, size, 0, seeded(1))
        assert torch.equal(Crop(size, padding, fill="edge")(x, seeded(1)), expected)
    assert Crop(None, padding, fill="edge")(x, seeded(1)).shape == x.shape
    assert Crop(padding=padding, fill="edge")(x.byte(), seeded(1)).dtype == torch.uint8


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.uint8])
def test_the_dtype_stays(dtype):
    x = images(dtype=dtype)
    assert torch.equal(Crop(5, 1)(x, seeded()), crop_loop(x, 5, 1, seeded()))
    assert Flip()(x, seeded()).dtype == CenterCrop(3)(x).dtype == dtype


def test_parts_follow_one_another_on_one_generator():
    x, generator = images(), seeded(2)
    expected = flip_loop(crop_loop(x, None, 2, generator), 0.5, generator)
    assert torch.equal(Augment(Crop(padding=2), Flip())(x, seeded(2)), expected)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_center_crop_is_the_middle(size):
    x = images((2, 3, 4, 7))
    top, left = round((4 - size) / 2), round((7 - size) / 2)
    expected = x[:, :, top : top + size, left : left + size]
    assert torch.equal(CenterCrop(size)(x), expected)
    assert torch.equal(CenterCrop(size)(x, seeded()), expected)


PARTS = [Flip(), Flip(0), Crop(), Crop(padding=0), Crop(8, 0), Augment(Crop(), Flip())]
PARTS += [Crop(fill="edge")]


@pytest.mark.parametrize("part", [*PARTS, CenterCrop(8)], ids=repr)
def test_neither_the_part_nor_a_change_of_its_result_changes_the_input(part):
    x = images()
    before = x.clone()
    part(x, seeded()).zero_()
    assert torch.equal(x, before)


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_the_generator_alone_decides(part):
    x = images((64, 1, 8, 8))
    state = torch.get_rng_state()
    first = part(x, seeded(3))
    torch.rand(1, generator=seeded(8))
    assert torch.equal(part(x, seeded(3)), first)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(pickle.loads(pickle.dumps(part))(x, seeded(3)), first)


@pytest.mark.parametrize("part", [Flip(), Crop()], ids=repr)
def test_another_generator_decides_otherwise(part):
    x = images((64, 1, 8, 8))
    assert not torch.equal(part(x, seeded(3)), part(x, seeded(4)))


def test_about_half_of_the_images_are_mirrored():
    x = torch.arange(2.0).view(1, 1, 1, 2).expand(4000, 1, 1, 2)
    mirrored = Flip()(x, seeded())[:, 0, 0, 0].mean().item()
    assert abs(mirrored - 0.5) < 0.04


def test_every_place_of_the_window_comes_equally_often():
    x = torch.arange(12.0).view(1, 1, 3, 4).expand(12_000, 1, 3, 4)
    counts = Crop(1, 0)(x, seeded()).flatten().long().bincount(minlength=12)
    assert counts.min() > 850
    assert counts.max() < 1150


def test_a_batch_in_channels_last_gives_the_same():
    x = images()
    last = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(Crop()(last, seeded()), Crop()(x, seeded()))
    assert torch.equal(Flip()(last, seeded()), Flip()(x, seeded()))


@pytest.mark.parametrize(
    "view", [lambda x: x[2:], lambda x: x[::2, 1:], lambda x: x[:, :, 1:, 2:], lambda x: x.mT]
)
def test_a_view_gives_what_its_copy_gives(view):
    x = view(images())
    assert torch.equal(Crop(3, 0)(x, seeded()), crop_loop(x.clone(), 3, 0, seeded()))
    assert torch.equal(Flip()(x, seeded()), flip_loop(x.clone(), 0.5, seeded()))


@pytest.mark.parametrize("x", [torch.zeros(3, 8, 8), torch.zeros(5), [[1.0]], None])
@pytest.mark.parametrize("part", [Flip(), Crop(), CenterCrop(2), Augment(Flip()), Augment()])
def test_what_is_not_a_batch_of_images_is_refused(part, x):
    with pytest.raises(ValueError, match=r"x: got .* expected images \[N, C, H, W\]"):
        part(x, seeded())


@pytest.mark.parametrize("part", [Crop(9, 0), Crop(20, 4), CenterCrop(9)], ids=repr)
def test_a_window_larger_than_the_image_is_refused(part):
    with pytest.raises(ValueError, match=rf"size={part.size}: expected at most \d+, the shorter"):
        part(images((2, 3, 8, 12)), seeded())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Flip(1.5), "probability=1.5: expected a number <= 1"),
        (lambda: Flip(-0.1), "probability=-0.1: expected a number >= 0"),
        (lambda: Flip(float("nan")), "probability=nan: expected a number"),
        (lambda: Flip(probablity=0.1), "did you mean 'probability'"),
        (lambda: Crop(0), "size=0: expected an integer >= 1"),
        (lambda: Crop(2.5), "size=2.5: expected an integer"),
        (lambda: Crop(padding=-1), "padding=-1: expected an integer >= 0"),
        (lambda: Crop(fill="edges"), "fill='edges': expected one of .* did you mean 'edge'"),
        (lambda: CenterCrop(0), "size=0: expected an integer >= 1"),
        (lambda: Augment(Flip), r"the class Flip: .* make a part first"),
        (lambda: Augment(3), "Augment got 3: expected callables"),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
