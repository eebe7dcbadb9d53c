"""Claims about images in files, made here with Pillow: what is read, and what is refused."""

import io
import pickle
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, TiffImagePlugin
from torch.utils.data import DataLoader

from codauc.data import Batches
from codauc.data.augment import Augment, Crop, Flip
from codauc.data.image_files import ImageFiles

RAW = {"mean": 0, "std": 1 / 255}  # values are the pixels, 0 to 255, up to rounding


def noise(width, height, seed=0, channels=3):
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(path, **options)
    return path


def read(path, size, **options):
    """One file's pixels, rounded to whole numbers."""
    options = {**RAW, **options}
    return ImageFiles([path], size, **options).gather(torch.tensor([0]))[0].round().int()


def expected(image, size):
    """The plain way: resize the shorter side, cut out the middle."""
    short = min(image.size)
    image = image.resize([size * side // short for side in image.size], Image.Resampling.BILINEAR)
    left, top = (round((side - size) / 2) for side in image.size)
    pixels = np.array(image.crop((left, top, left + size, top + size)))
    return torch.from_numpy(np.atleast_3d(pixels)).permute(2, 0, 1).int()


@pytest.mark.parametrize(("width", "height"), [(40, 30), (30, 41), (32, 32), (5, 9), (300, 3)])
@pytest.mark.parametrize("size", [1, 8, 31])
def test_the_shorter_side_is_resized_and_the_middle_kept(tmp_path, width, height, size):
    path = save(tmp_path / "a.png", noise(width, height))
    assert torch.equal(read(path, size), expected(Image.open(path), size))


def test_an_image_of_the_right_size_is_unchanged(tmp_path):
    pixels = noise(8, 8)
    path = save(tmp_path / "a.png", pixels)
    assert torch.equal(read(path, 8), torch.from_numpy(pixels).permute(2, 0, 1).int())


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "gif", "webp", "jpg"])
def test_every_format_is_read(tmp_path, suffix):
    image = Image.new("RGB", (20, 16), (200, 40, 90))
    path = save(tmp_path / f"a.{suffix}", image, **({"lossless": True} if suffix == "webp" else {}))
    found = read(path, 8)
    assert (found - torch.tensor([200, 40, 90]).view(3, 1, 1)).abs().max() <= 2
    assert path.rename(tmp_path / "no suffix")
    assert torch.equal(read(tmp_path / "no suffix", 8), found)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_scale_is_the_stated_one(tmp_path, channels):
    path = save(tmp_path / "a.png", noise(8, 8))
    x = ImageFiles([path], 8, channels=channels).gather(torch.tensor([0]))
    usual = {1: ([0.5], [0.5]), 3: ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])}
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in usual[channels])
    pixels = expected(Image.open(path).convert("L" if channels == 1 else "RGB"), 8)
    assert x.dtype == torch.float32
    assert x.is_contiguous()
    torch.testing.assert_close(x[0], (pixels / 255 - mean) / std)
    own = ImageFiles([path], 8, channels=channels, mean=[0.1] * channels, std=2)
    torch.testing.assert_close(own.gather(torch.tensor([0]))[0], (pixels / 255 - 0.1) / 2)


def test_grey_and_black_and_white_become_three_equal_channels(tmp_path):
    grey = noise(9, 8, channels=1)
    for mode in ("L", "1"):
        found = read(save(tmp_path / f"{mode}.png", Image.fromarray(grey).convert(mode)), 8)
        one = read(tmp_path / f"{mode}.png", 8, channels=1)
        assert torch.equal(found, one.expand(3, 8, 8))
        assert found.max() > 200


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize("channels", [1, 3])
def test_grey_of_16_bits_is_scaled_and_keeps_its_fine_levels(tmp_path, suffix, channels):
    levels = np.linspace(0, 65535, 64).round().astype(np.uint16).reshape(8, 8)
    path = save(tmp_path / f"a.{suffix}", Image.fromarray(levels))
    x = ImageFiles([path], 8, channels=channels, **RAW).gather(torch.tensor([0]))[0]
    exact = torch.from_numpy(levels.astype(np.float32) / 257).expand(channels, 8, 8)
    torch.testing.assert_close(x, exact)


def big_endian_tiff(path, levels, *, bits=16, kind=1):
    """A plain TIFF of grey levels, most significant byte first."""
    data = levels.astype(">u2").tobytes()
    rows, columns = levels.shape
    tags = [(256, columns), (257, rows), (258, bits), (259, 1), (262, kind), (273, 8)]
    tags += [(277, 1), (278, rows), (279, len(data))]
    directory = b"".join(struct.pack(">HHIHH", tag, 3, 1, value, 0) for tag, value in tags)
    head = b"MM\0*" + struct.pack(">I", 8 + len(data)) + data
    path.write_bytes(head + struct.pack(">H", len(tags)) + directory + bytes(4))
    return path


def test_the_order_of_bytes_and_the_meaning_of_zero_are_respected_in_16_bits(tmp_path):
    levels = np.linspace(0, 65535, 64).round().astype(np.uint16).reshape(8, 8)
    plain = read(save(tmp_path / "a.tif", Image.fromarray(levels)), 8)
    assert torch.equal(read(big_endian_tiff(tmp_path / "b.tif", levels), 8), plain)
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[262] = 0
    path = save(tmp_path / "c.tif", Image.fromarray(65535 - levels), tiffinfo=tags)
    assert torch.equal(read(path, 8), plain)


def test_what_is_transparent_lies_on_white(tmp_path):
    rgba = np.zeros((8, 8, 4), np.uint8)
    rgba[:, :4] = [10, 20, 30, 255]
    rgba[:, 4:] = [99, 99, 99, 0]
    found = read(save(tmp_path / "rgba.png", rgba), 8)
    assert found[:, 0, 0].tolist() == [10, 20, 30]
    assert found[:, 0, 7].tolist() == [255, 255, 255]
    for channels in (1, 3):
        path = save(tmp_path / "la.png", Image.fromarray(rgba).convert("LA"))
        assert read(path, 8, channels=channels)[:, 0, 7].tolist() == [255] * channels


@pytest.mark.parametrize(
    ("suffix", "transparency"),
    [("png", None), ("png", 1), ("png", b"\xff\x00"), ("gif", None), ("gif", 1)],
)
def test_palettes_become_colours(tmp_path, suffix, transparency):
    image = Image.new("P", (8, 8))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.paste(1, (4, 0, 8, 8))
    options = {} if transparency is None else {"transparency": transparency}
    found = read(save(tmp_path / f"a.{suffix}", image, **options), 8)
    assert found[:, 0, 0].tolist() == [10, 20, 30]
    assert found[:, 0, 7].tolist() == ([40, 50, 60] if transparency is None else [255] * 3)


@pytest.mark.parametrize("suffix", ["jpg", "tif"])
def test_cmyk_becomes_rgb(tmp_path, suffix):
    path = save(tmp_path / f"a.{suffix}", Image.new("CMYK", (8, 8), (0, 255, 255, 0)))
    off = (read(path, 8) - torch.tensor([255, 0, 0]).view(3, 1, 1)).abs()
    assert off.max() <= 3
    assert read(path, 8, channels=1).shape == (1, 8, 8)


@pytest.mark.parametrize("suffix", ["gif", "png", "tiff", "webp"])
def test_the_first_frame_is_taken(tmp_path, suffix):
    first, second = (Image.new("RGB", (8, 8), colour) for colour in ("red", "blue"))
    path = save(tmp_path / f"a.{suffix}", first, save_all=True, append_images=[second])
    red, _, blue = read(path, 8)[:, 4, 4].tolist()
    assert red > 245
    assert blue < 10


TURNS = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).swapaxes(0, 1),
    8: lambda a: np.rot90(a),
}


@pytest.mark.parametrize("suffix", ["png", "tiff", "webp"])
@pytest.mark.parametrize("orientation", TURNS)
def test_exif_orientation_is_respected(tmp_path, suffix, orientation):
    pixels, exif = noise(8, 8), Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True, "exact": True} if suffix == "webp" else {}
    path = save(tmp_path / f"a.{suffix}", pixels, exif=exif.tobytes(), **options)
    upright = TURNS[orientation](pixels)
    assert np.array_equal(read(path, 8).permute(1, 2, 0).numpy(), upright)


def test_a_turned_photograph_is_cut_in_its_upright_form(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = save(tmp_path / "a.jpg", noise(40, 20), exif=exif.tobytes(), quality=95)
    upright = Image.open(path).transpose(Image.Transpose.ROTATE_270)
    assert torch.equal(read(path, 10), expected(upright, 10))


BROKEN_EXIF = [b"garbage", b"MM\0*\0\0\0\x08\0\x05\x01\x12", b"II*\0" + b"\xff" * 9]


@pytest.mark.parametrize("exif", BROKEN_EXIF)
def test_broken_metadata_does_not_spoil_an_image(tmp_path, exif):
    path = save(tmp_path / "a.jpg", noise(16, 16), exif=b"Exif\0\0" + exif)
    assert torch.equal(read(path, 16), read(save(tmp_path / "b.jpg", noise(16, 16)), 16))
    ImageFiles([path]).check(pixels=True)


def tall_png(width, height):
    """A PNG of a few bytes that says to be this large."""

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def encoded(kind, mode="RGB"):
    stream = io.BytesIO()
    Image.fromarray(noise(64, 64)).convert(mode).save(stream, kind)
    return stream.getvalue()


BAD_HEADERS = {
    "zero bytes": (b"", "cannot identify"),
    "text": (b"not an image", "cannot identify"),
    "another format": (encoded("PPM"), "cannot identify"),
    "bomb": (tall_png(10_000, 10_000), "100000000 pixels.*exceeds limit"),
    "larger bomb": (tall_png(20_000, 20_000), "400000000 pixels.*exceeds limit"),
    "strip": (tall_png(1, 1_000_000), "one side above 100 times the other"),
    "32 bits": (encoded("TIFF", "I"), "32-bit pixels"),
    "floats": (encoded("TIFF", "F"), "32-bit pixels"),
}
KINDS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
CUT_OFF = {f"cut {kind}": (encoded(kind)[:-800], ".*") for kind in KINDS}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_a_file_with_a_bad_header_is_named_by_check_and_by_gather(tmp_path, name):
    content, reason = BAD_HEADERS[name]
    good, bad = save(tmp_path / "good.png", noise(9, 9)), tmp_path / "bad ü.png"
    bad.write_bytes(content)
    files = ImageFiles([good, bad], 8)
    message = rf"bad ü\.png cannot be read \(.*{reason}.*expected a whole image, PNG"
    with pytest.raises(ValueError, match=message):
        files.check()
    with pytest.raises(ValueError, match=message):
        files.gather(torch.tensor([0, 1]))
    assert files.gather(torch.tensor([0])).shape == (1, 3, 8, 8)


@pytest.mark.parametrize("name", CUT_OFF)
def test_a_file_that_was_cut_off_is_named(tmp_path, name):
    bad = tmp_path / "cut.png"
    bad.write_bytes(CUT_OFF[name][0])
    files = ImageFiles([bad], 8)
    for attempt in (lambda: files.gather(torch.tensor([0])), lambda: files.check(pixels=True)):
        with pytest.raises(ValueError, match=r"cut\.png cannot be read .* replace the file"):
            attempt()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.png cannot be read .*No such file"):
        ImageFiles([tmp_path / "none.png"]).gather(torch.tensor([0]))


def test_check_tells_how_far_it_is_and_takes_good_files(tmp_path):
    paths = [save(tmp_path / f"{i}.png", noise(9, 9)) for i in range(3)]
    seen = []
    ImageFiles(paths).check(progress=lambda *done: seen.append(done))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_samples_come_in_the_order_asked_for(tmp_path):
    files = ImageFiles([save(tmp_path / f"{i}.png", noise(9, 9, i)) for i in range(4)], 8)
    every = files.gather(torch.arange(4))
    order = torch.tensor([3, 0, 3, 1])
    assert torch.equal(files.gather(order), every[order])
    assert torch.equal(files.take(order).gather(torch.tensor([2, 1])), every[order[[2, 1]]])
    twice = files.take(order).take(torch.tensor([3]))
    assert torch.equal(twice.gather(torch.tensor([0])), every[1:2])
    assert files.gather(torch.arange(0)).shape == (0, 3, 8, 8)


def test_relative_paths_hold_after_a_change_of_directory(tmp_path, monkeypatch):
    save(tmp_path / "a.png", noise(9, 9))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    files = ImageFiles(["a.png"], 8)
    monkeypatch.chdir("other")
    assert files.path(0) == str(tmp_path / "a.png")
    files.check()


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (torch.tensor([1]), "got 1, expected 0 to 0"),
        (torch.tensor([-1]), "got -1, expected 0 to 0"),
        (torch.tensor(0), r"shape \[\], expected torch.int64 of shape \[n\]"),
        (torch.tensor([0.0]), "got torch.float32 .* expected torch.int64"),
    ],
)
def test_wrong_indices_are_refused(tmp_path, indices, message):
    with pytest.raises(ValueError, match=message):
        ImageFiles([tmp_path / "a.png"]).gather(indices)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size=0: expected an integer >= 1"),
        ({"channels": 4}, r"channels=4: expected 3 \(RGB\) or 1"),
        ({"channels": 3.0}, r"channels=3.0: expected an integer .* use 3 \(RGB\) or 1 \(grey\)"),
        ({"channels": True}, "channels=True: expected an integer"),
        ({"files": [1]}, "files holds 1 of type int: expected paths, as str or pathlib.Path"),
        ({"files": ["a.png", None]}, "files holds None of type NoneType: expected paths"),
        ({"files": None}, "files=None: expected several paths"),
        ({"mean": [0.5]}, r"mean=\[0.5\]: expected 3 numbers"),
        ({"std": 0}, "std=0: expected a number > 0"),
        ({"std": [1, 1, float("nan")]}, "std=nan: expected a number > 0"),
        ({"chanels": 1}, "did you mean 'channels'"),
        ({"files": "a.png"}, r"files='a.png': expected several paths; write \['a.png'\]"),
        ({"files": []}, "files holds 0 paths"),
    ],
)
def test_wrong_arguments_of_image_files_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ImageFiles(**{"files": ["a.png"], **options})


def test_without_pillow_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['PIL'] = None\n"
        "from codauc.data.image_files import ImageFiles\n"
        "try: ImageFiles(['a.png'])\n"
        "except ValueError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'codauc[images]'" in run.stdout


def test_loader_processes_give_identical_tensors(tmp_path):
    paths = [save(tmp_path / f"é {i}.png", noise(12, 9, i)) for i in range(12)]
    files = ImageFiles(paths, 8).take(torch.arange(11, -1, -1))
    loader = DataLoader(
        torch.arange(12).split(3),
        batch_size=None,
        collate_fn=files.gather,
        num_workers=2,
        multiprocessing_context="spawn",  # which pickles the rows
    )
    assert torch.equal(torch.cat(list(loader)), files.gather(torch.arange(12)))


def test_batches_with_loaders_are_those_without(tmp_path):
    paths = [save(tmp_path / f"{i}.png", noise(12, 9, i)) for i in range(8)]
    files, y = ImageFiles(paths, 8), torch.arange(8) % 2
    options = {"rows": torch.arange(1, 8), "augment": Augment(Crop(padding=2), Flip())}
    alone, ahead = (Batches(files, y, 3, loaders=n, **options) for n in (0, 2))
    for _ in range(5):
        for a, b in zip(next(alone), next(ahead), strict=True):
            assert torch.equal(a, b)


def test_a_million_paths_are_small_and_pickle_at_once():
    names = (f"train/n{i % 1000:08d}/n{i % 1000:08d}_{i}.JPEG" for i in range(1_000_000))
    files = ImageFiles(names, root="/images")
    part = files.take(torch.arange(0, 1_000_000, 2))
    stored = pickle.dumps(part, protocol=5)
    again = pickle.loads(stored)
    assert len(stored) < 60e6
    assert again.path(499_999) == "/images/train/n00000998/n00000998_999998.JPEG"
