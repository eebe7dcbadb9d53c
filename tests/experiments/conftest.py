"""Archives in the standard layouts, of images that can be learnt."""

import numpy as np
import pytest
from PIL import Image

from codauc.data.standard_images import fashion_tiny


def _as_colours(x):
    """Images of Fashion-MNIST as those of CIFAR: 32 x 32, three colours, bytes."""
    x = np.asarray(x, np.float32)[:, 0]
    x = (255 * (x - x.min()) / (x.max() - x.min())).astype(np.uint8)
    x = np.pad(x, ((0, 0), (2, 2), (2, 2)), constant_values=x.min())
    return np.repeat(x[:, None], 3, axis=1)


def _records(x, y):
    return np.concatenate([y[:, None].astype(np.uint8), x.reshape(len(x), -1)], axis=1).tobytes()


@pytest.fixture(scope="session")
def cifar10(tmp_path_factory):
    """A CIFAR-10 of the real images that come with the package."""
    root = tmp_path_factory.mktemp("cifar") / "cifar-10-batches-bin"
    root.mkdir()
    images = fashion_tiny()
    x, y = _as_colours(images.train_x), images.train_y.numpy()
    for number, rows in enumerate(np.array_split(np.arange(len(x)), 5), start=1):
        (root / f"data_batch_{number}.bin").write_bytes(_records(x[rows], y[rows]))
    test = _records(_as_colours(images.test_x), images.test_y.numpy())
    (root / "test_batch.bin").write_bytes(test)
    return root


@pytest.fixture(scope="session")
def noisy(tmp_path_factory):
    """A CIFAR-10 of faint patterns under noise: one worker's steps are mostly noise."""
    root = tmp_path_factory.mktemp("noisy") / "cifar-10-batches-bin"
    root.mkdir()
    rng = np.random.default_rng(0)
    patterns = rng.standard_normal((10, 3, 8, 8)).repeat(4, axis=2).repeat(4, axis=3)

    def records(count):
        y = rng.integers(0, 10, count)
        noise = rng.standard_normal((count, 3, 32, 32), dtype=np.float32)
        x = 128 + 32 * (noise + 0.1 * patterns[y])
        return _records(x.clip(0, 255).astype(np.uint8), y)

    for number in range(1, 6):
        (root / f"data_batch_{number}.bin").write_bytes(records(1600))
    (root / "test_batch.bin").write_bytes(records(2000))
    return root


@pytest.fixture(scope="session")
def cifar100(tmp_path_factory):
    """A CIFAR-100 of noise."""
    root = tmp_path_factory.mktemp("cifar") / "cifar-100-binary"
    root.mkdir()
    rng = np.random.default_rng(0)
    for name, count in (("train.bin", 400), ("test.bin", 200)):
        fine = np.arange(count) % 100
        labels = np.stack([fine // 5, fine], axis=1).astype(np.uint8)
        pixels = rng.integers(0, 256, (count, 3072), dtype=np.uint8)
        (root / name).write_bytes(np.concatenate([labels, pixels], axis=1).tobytes())
    return root


@pytest.fixture(scope="session")
def imagenet(tmp_path_factory):
    """Four classes of ImageNet's, with JPEG files of several sizes."""
    root = tmp_path_factory.mktemp("imagenet") / "train"
    rng = np.random.default_rng(0)
    for label in ("n01440764", "n01443537", "n01484850", "n01491361"):
        (root / label).mkdir(parents=True)
        for i in range(52):
            pixels = rng.integers(0, 256, (40 + i, 60, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / label / f"{label}_{i}.JPEG")
    return root
